//! Values that can be verified.
//!
//! A reader must be able to prove that a value was written for its key, in one piece. So a value is
//! not constant or random but a function of key, version and length, and [`ValueMaker::check`]
//! knows which bytes are possible.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result};
use crate::rng::{Rng, Seed, mix64};
use crate::text;

/// The longest value, bytes: 1 MiB.
pub const MAX_VALUE: u32 = 1 << 20;

/// Shortest value with a version and a tag over it, bytes.
const TAGGED: usize = 8;

/// The lengths of values. As text: `8`, `64KiB`, or `16..=1024` (uniform).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueSize {
    /// Every value has this many bytes.
    Fixed(u32),
    /// Uniform over a range, ends included, bytes. A function of record and version.
    Uniform {
        /// Shortest, bytes.
        min: u32,
        /// Longest, bytes.
        max: u32,
    },
}

impl ValueSize {
    /// The longest value, bytes.
    pub fn max(self) -> u32 {
        match self {
            ValueSize::Fixed(len) => len,
            ValueSize::Uniform { max, .. } => max,
        }
    }

    /// The length of version `version` of `record`.
    pub(crate) fn of(self, seed: Seed, record: u64, version: u32) -> usize {
        match self {
            ValueSize::Fixed(len) => len as usize,
            ValueSize::Uniform { min, max } => {
                let mut rng = Seed(mix64(seed.0 ^ mix64(record)) ^ u64::from(version)).rng();
                rng.between(u64::from(min), u64::from(max)) as usize
            }
        }
    }

    pub(crate) fn checked(self) -> Result<Self> {
        if self.max() > MAX_VALUE || matches!(self, ValueSize::Uniform { min, max } if min > max) {
            return Err(Error::new(format!(
                "value size {self} is not usable: give bytes within 0..={MAX_VALUE}, the smaller end first"
            )));
        }
        Ok(self)
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSize::Fixed(len) => write!(f, "{len}"),
            ValueSize::Uniform { min, max } => write!(f, "{min}..={max}"),
        }
    }
}

impl FromStr for ValueSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (min, max) = text::byte_range32("value size", text)?;
        let ranged = text.contains("..=");
        if ranged { ValueSize::Uniform { min, max } } else { ValueSize::Fixed(min) }.checked()
    }
}

text::serde_by_text!(ValueSize, "a value size in bytes such as 8 or \"16..=1024\"");

/// A value that was not written for the key under which it was found, or not in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the value ({len} bytes) was not written for this key in one piece: it differs from byte {at} on"
)]
pub struct Mismatch {
    /// Length of the value found, bytes.
    pub len: usize,
    /// First byte that differs from those that the key, the version in the value, and the length
    /// determine.
    pub at: usize,
}

/// Makes and checks values. It needs no seed, so a run can check the values of an earlier run with
/// another seed.
///
/// Format, by length:
///
/// * 8 bytes and more: version (32 bits, little endian), tag (32 bits of a hash of key, version and
///   length), then the output of the frozen generator, seeded with that hash. Every byte is
///   checked. The value of another key, of another length, or two versions torn together at any
///   point pass with probability 2^-32, and with less the more bytes past the eighth are involved.
/// * 1 to 7 bytes: the first bytes of a hash of key and length, without a version. Another key's
///   value passes with probability 2^-8 per byte. Versions are equal, so a torn mix of them cannot
///   be detected.
/// * 0 bytes: nothing is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueMaker;

impl ValueMaker {
    /// Replaces the content of `out` by the value of `len` bytes that is version `version` of
    /// `key`.
    pub fn fill(self, key: &[u8], version: u32, len: usize, out: &mut Vec<u8>) {
        out.clear();
        let mut stream = Stream::new(key, version, len);
        let mut left = len;
        while left > 0 {
            let word = stream.next().to_le_bytes();
            let take = left.min(word.len());
            out.extend_from_slice(&word[..take]);
            left -= take;
        }
    }

    /// Whether `value` can have been written for `key` by [`ValueMaker::fill`], with any version.
    ///
    /// # Errors
    /// [`Mismatch`] when it cannot.
    pub fn check(self, key: &[u8], value: &[u8]) -> std::result::Result<(), Mismatch> {
        let mut stream = Stream::new(key, self.version(value).unwrap_or(0), value.len());
        let mut at = 0;
        for chunk in value.chunks(8) {
            let word = stream.next().to_le_bytes();
            if chunk != &word[..chunk.len()] {
                let off = chunk.iter().zip(word).take_while(|(found, due)| *found == due).count();
                return Err(Mismatch { len: value.len(), at: at + off });
            }
            at += chunk.len();
        }
        Ok(())
    }

    /// The version in a value, if the value is long enough. Meaningful after [`ValueMaker::check`].
    pub fn version(self, value: &[u8]) -> Option<u32> {
        let bytes = value.get(..TAGGED)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }
}

/// The words of a value, 8 bytes each.
struct Stream {
    first: Option<u64>,
    rng: Rng,
}

impl Stream {
    fn new(key: &[u8], version: u32, len: usize) -> Self {
        let short = len < TAGGED;
        let version = if short { 0 } else { version };
        let hash = mix64(xxh3_64_with_seed(key, len as u64) ^ mix64(u64::from(version) + 1));
        let first = if short { hash } else { u64::from(version) | (hash & !0xFFFF_FFFF) };
        Stream { first: Some(first), rng: Seed(hash).rng() }
    }

    fn next(&mut self) -> u64 {
        self.first.take().unwrap_or_else(|| self.rng.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn value(key: &[u8], version: u32, len: usize) -> Vec<u8> {
        let mut out = vec![9; 3];
        ValueMaker.fill(key, version, len, &mut out);
        out
    }

    #[test]
    fn values_are_frozen() {
        // An index loaded by an older version must still pass the check.
        assert_eq!(xxh3_64(&value(b"key", 7, 100)), FROZEN);
    }
    const FROZEN: u64 = 14_959_756_385_556_901_392;

    #[test]
    fn another_key_or_length_is_seen() {
        let mut passed = 0;
        for i in 0..10_000u32 {
            let v = value(&i.to_be_bytes(), i, 8);
            passed += u32::from(ValueMaker.check(&(i + 1).to_be_bytes(), &v).is_ok());
            let long = value(&i.to_be_bytes(), i, 32);
            passed += u32::from(ValueMaker.check(&i.to_be_bytes(), &long[..24]).is_ok());
        }
        assert_eq!(passed, 0);
        // Seven bytes still distinguish keys; one byte does in 255 of 256 cases.
        assert!(ValueMaker.check(b"a", &value(b"b", 0, 7)).is_err());
        let one = (0..10_000u32)
            .filter(|i| ValueMaker.check(b"x", &value(&i.to_be_bytes(), 0, 1)).is_ok())
            .count();
        assert!((10..80).contains(&one), "{one}");
        assert!(ValueMaker.check(b"a", b"").is_ok());
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn every_version_passes_for_its_key(key: Vec<u8>, version: u32, len in 0usize..200) {
            let v = value(&key, version, len);
            prop_assert_eq!(v.len(), len);
            prop_assert_eq!(ValueMaker.check(&key, &v), Ok(()));
            prop_assert_eq!(ValueMaker.version(&v), (len >= 8).then_some(version));
        }

        #[test]
        fn torn_versions_are_seen(key: Vec<u8>, a: u32, b: u32, len in 8usize..200, cut: prop::sample::Index) {
            let (a, b) = (value(&key, a, len), value(&key, b, len));
            let cut = 1 + cut.index(len - 1);
            let torn = [&a[..cut], &b[cut..]].concat();
            prop_assume!(torn != a && torn != b);
            prop_assert!(ValueMaker.check(&key, &torn).is_err());
        }

        #[test]
        fn one_flipped_bit_is_seen(key: Vec<u8>, version: u32, len in 8usize..100, bit: prop::sample::Index) {
            let mut v = value(&key, version, len);
            let bit = bit.index(8 * len);
            v[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ValueMaker.check(&key, &v).is_err());
        }
    }

    #[test]
    fn sizes_survive_their_text() {
        for text in ["0", "8", "16..=1024", "8..=8"] {
            assert_eq!(text.parse::<ValueSize>().unwrap().to_string(), text);
        }
        for (text, bytes) in [("64KiB", 65_536), ("1MiB", 1 << 20), ("1e3", 1000), ("4k", 4000)] {
            assert_eq!(text.parse::<ValueSize>().unwrap().max(), bytes, "{text}");
        }
        assert_eq!("1KiB..=1MiB".parse::<ValueSize>().unwrap().to_string(), "1024..=1048576");
        for bad in ["", "-1", "2MiB", "9..=8", "0..=1048577", "8..16", "8 bytes"] {
            assert!(bad.parse::<ValueSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranged_sizes_are_uniform() {
        let size = ValueSize::Uniform { min: 10, max: 19 };
        let mut counts = [0u32; 10];
        for record in 0..5000 {
            for version in 0..4 {
                counts[size.of(Seed(1), record, version) - 10] += 1;
            }
        }
        let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - 2000.0).powi(2) / 2000.0).sum();
        // 9 degrees of freedom: the 99.9 % point is 27.9.
        assert!(chi2 < 27.9, "{counts:?}");
    }
}
