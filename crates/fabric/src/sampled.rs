//! The result of a READ: bytes that no code may use before a validator has accepted them.

use std::ops::Deref;

use crate::slab::Buf;

/// Bytes as sampled: torn, stale or garbage until proved otherwise. Access only through
/// [`Sampled::check`].
#[derive(Debug)]
pub struct Sampled(Buf);

impl Sampled {
    pub(crate) fn new(buf: Buf) -> Self {
        Self(buf)
    }

    /// Runs a validator over the bytes. On success the bytes become readable together with the
    /// validator's result; on failure they are dropped.
    ///
    /// # Errors
    /// Those of the validator.
    pub fn check<T, E>(
        self,
        validator: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<(T, Verified), E> {
        let derived = validator(&self.0)?;
        Ok((derived, Verified(self.0)))
    }

    /// Runs a validator that copies the accepted parts out.
    pub fn extract<T>(&self, validator: impl FnOnce(&[u8]) -> T) -> T {
        validator(&self.0)
    }

    /// One whole word: words are never torn, so there is nothing to validate but the caller's own
    /// meaning of it.
    pub fn word(&self, index: usize) -> u64 {
        u64::from_le_bytes(self.0[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
    }
}

/// Bytes that a validator accepted.
#[derive(Debug)]
pub struct Verified(Buf);

impl Verified {
    /// The buffer, to be changed and written back.
    pub fn into_buf(self) -> Buf {
        self.0
    }

    /// With parts that a validator has accepted elsewhere.
    #[must_use]
    pub fn amended(mut self, amend: impl FnOnce(&mut [u8])) -> Self {
        amend(&mut self.0);
        self
    }
}

impl Deref for Verified {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
