//! Sizes as people write them.

use dmtree_fabric::{Error, Result};
use dmtree_pool::parse_bytes;

/// Something that says how many bytes: a number, or a text such as `"64MiB"`.
///
/// Texts are a number and a unit: none or `B`, `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024),
/// or `kB`, `MB`, `GB`, `TB` (powers of 1000). Case does not matter, nor does a space or an
/// underscore.
pub trait ByteSize {
    /// How many bytes.
    ///
    /// # Errors
    /// `InvalidArgument`, quoting a text that is no size.
    fn to_bytes(&self) -> Result<u64>;
}

impl ByteSize for u64 {
    fn to_bytes(&self) -> Result<u64> {
        Ok(*self)
    }
}

impl ByteSize for u32 {
    fn to_bytes(&self) -> Result<u64> {
        Ok(u64::from(*self))
    }
}

impl ByteSize for usize {
    fn to_bytes(&self) -> Result<u64> {
        Ok(*self as u64)
    }
}

impl ByteSize for &str {
    fn to_bytes(&self) -> Result<u64> {
        parse_bytes(self).map_err(Error::invalid)
    }
}

impl ByteSize for String {
    fn to_bytes(&self) -> Result<u64> {
        self.as_str().to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts() {
        for (size, bytes) in [("4096", 4096), ("64MiB", 64 << 20), ("1_000kB", 1_000_000)] {
            assert_eq!(size.to_bytes().expect(size), bytes, "{size}");
            assert_eq!(size.to_owned().to_bytes().expect(size), bytes, "{size}");
        }
        assert_eq!(7u64.to_bytes().expect("a number"), 7);
    }

    #[test]
    fn what_is_no_size_is_quoted() {
        for text in ["", "MiB", "-1", "12 parsecs", "99999999TiB", "٣MiB"] {
            let e = text.to_bytes().expect_err(text);
            assert_eq!(e.kind(), crate::ErrorKind::InvalidArgument);
            assert!(e.to_string().contains("64MiB"), "{e}");
        }
    }
}
