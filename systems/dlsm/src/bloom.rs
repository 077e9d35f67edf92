//! A Bloom filter over user keys: all bits of a key are in one line of 512 bits.

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, Result};
use dmtree_parts::hash::check64;

/// Bytes of a line.
const LINE: usize = 64;
/// Probes of a key, at 10 bits a key.
const PROBES: u32 = 6;
/// Bytes behind the lines: number of lines, checksum.
const TRAILER: usize = 8;

/// A filter.
#[derive(Debug)]
pub(crate) struct Bloom(Vec<u8>);

/// What a key's bits follow from.
pub(crate) fn hash(user: &[u8]) -> u64 {
    check64(user, 0x0062_6c6f_6f6d)
}

impl Bloom {
    /// Of these keys' hashes.
    pub(crate) fn of(hashes: &[u64], bits: u32) -> Self {
        let lines = (hashes.len() * bits as usize).div_ceil(8 * LINE).max(1) | 1;
        let mut filter = Self(vec![0; lines * LINE]);
        for hash in hashes {
            let from = filter.line(*hash);
            for bit in bits_of(*hash) {
                filter.0[from + bit / 8] |= 1 << (bit % 8);
            }
        }
        filter
    }

    fn line(&self, hash: u64) -> usize {
        (hash % (self.0.len() / LINE) as u64) as usize * LINE
    }

    /// Whether a key may be there.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let from = self.line(hash);
        bits_of(hash).all(|bit| self.0[from + bit / 8] >> (bit % 8) & 1 == 1)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// As it lies on a memory node.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = self.0.clone();
        out.extend_from_slice(&((self.0.len() / LINE) as u32).to_le_bytes());
        out.extend_from_slice(&crc32c([0; 2], &out).to_le_bytes());
        out
    }

    /// From the bytes that were read back.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(mut bytes: Vec<u8>) -> Result<Self> {
        let body = bytes.len().saturating_sub(TRAILER);
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let lines = word(body).ok_or_else(|| Error::corrupt("a filter is too short"))?;
        let sum = crc32c([0; 2], &bytes[..body + 4]);
        if lines == 0 || lines as usize * LINE != body || word(body + 4) != Some(sum) {
            return Err(Error::corrupt("a filter has another length, or its checksum fails"));
        }
        bytes.truncate(body);
        Ok(Self(bytes))
    }
}

fn bits_of(hash: u64) -> impl Iterator<Item = usize> {
    let (low, step) = (hash >> 32, hash >> 41 | 1);
    (0..u64::from(PROBES)).map(move |i| (low.wrapping_add(i * step) & 511) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_its_keys_and_few_others() {
        let keys = |from: u32| (from..from + 10_000).map(|n| hash(&n.to_be_bytes()));
        let filter = Bloom::of(&keys(0).collect::<Vec<_>>(), 10);
        let back = Bloom::decode(filter.encoded()).expect("whole");
        assert!(keys(0).all(|h| back.may_have(h)));
        let wrong = keys(10_000).filter(|h| back.may_have(*h)).count();
        assert!(wrong < 300, "{wrong} of 10 000 are false positives");
    }

    #[test]
    fn damage_is_noticed() {
        let whole = Bloom::of(&[1, 2, 3], 10).encoded();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(Bloom::decode(bytes).is_err());
            assert!(Bloom::decode(whole[..at].to_vec()).is_err());
        }
    }
}
