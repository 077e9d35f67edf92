//! Hashes that do not vary between runs, versions or machines.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The hash of a key; everything else about a key is derived from it. Part of the formats: XXH3-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes a key.
    #[inline]
    pub fn of(key: &[u8]) -> Self {
        Self(xxh3_64(key))
    }

    /// Its fingerprint: 1 to 255; 0 marks a free slot.
    #[inline]
    pub fn fingerprint(self) -> u8 {
        ((self.0 >> 56) as u8).max(1)
    }

    /// 48 bits stored beside a pointer to a long key.
    pub fn low48(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }
}

/// A 32-bit tag of an upper fence; `None` is the right end.
pub fn fence_tag(hi: Option<&[u8]>) -> u32 {
    match hi {
        None => 1,
        Some(key) => (xxh3_64_with_seed(key, 0x66_65_6e_63_65) >> 32) as u32 | 2,
    }
}

/// A 64-bit check of some bytes under a seed.
pub fn check64(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_depend_on_these_values() {
        // XXH3-64 of the empty string, from the algorithm's specification.
        assert_eq!(KeyHash::of(b"").0, 0x2d06_8005_38d3_94c2);
        assert_ne!(fence_tag(None), fence_tag(Some(b"")));
        assert!(KeyHash(0x00ff_ffff_ffff_ffff).fingerprint() == 1);
    }
}
