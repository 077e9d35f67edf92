//! Little-endian fields of requests, replies and records, with bounds checked: such bytes come from other nodes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dmtree_fabric::{Error, Result};

/// Locks for a few instructions. A panic elsewhere under the lock leaves consistent (if incomplete) bookkeeping behind.
pub(crate) fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes fields off the front of a message.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.0.split_at_checked(n) else {
            return Err(Error::corrupt(format!(
                "a message of the pool ends {} bytes early",
                n - self.0.len()
            )));
        };
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.bytes(2)?.try_into().expect("2 bytes")))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().expect("4 bytes")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("8 bytes")))
    }
}

/// Puts the CRC-32C of all but the last four bytes there.
pub(crate) fn seal(bytes: &mut [u8]) {
    let body = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..body]);
    bytes[body..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether [`seal`] was the last to change these bytes.
pub(crate) fn sealed(bytes: &[u8]) -> bool {
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(body) == u32::from_le_bytes(*crc)
}
