//! A block: one long key, or one long value, or both, immutable once written.
//!
//! | offset | field |
//! |---|---|
//! | 0 | key length 32, value length 32 |
//! | 8 | XXH3-64 over the block's address, lengths and contents |
//! | 16 | key, then value |

use crate::hash::check64;
use crate::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use dmtree_pool::BlockPtr;

use super::{put_u64, u64_at};

/// Bytes before the contents.
pub const HEADER: usize = 16;

/// Bytes of a block with these contents.
pub fn bytes(key: usize, value: usize) -> u32 {
    (HEADER + key + value) as u32
}

/// Fills a block; the length written.
pub fn fill(at: BlockPtr, out: &mut [u8], key: &[u8], value: &[u8]) -> usize {
    let end = HEADER + key.len() + value.len();
    put_u64(out, 0, key.len() as u64 | (value.len() as u64) << 32);
    out[HEADER..HEADER + key.len()].copy_from_slice(key);
    out[HEADER + key.len()..end].copy_from_slice(value);
    let sum = check64(&out[HEADER..end], u64_at(out, 0) ^ at.bits().rotate_left(17));
    put_u64(out, 8, sum);
    end
}

/// Key and value of a block; `None` when it is torn, reused or garbage.
pub fn check(at: BlockPtr, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if bytes.len() < HEADER {
        return None;
    }
    let lengths = u64_at(bytes, 0);
    let (k, v) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
    if k > MAX_KEY_BYTES || v > MAX_VALUE_BYTES || HEADER + k + v > bytes.len() {
        return None;
    }
    let contents = &bytes[HEADER..HEADER + k + v];
    let sum = check64(contents, lengths ^ at.bits().rotate_left(17));
    (sum == u64_at(bytes, 8)).then(|| contents.split_at(k))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn contents_come_back(key in proptest::collection::vec(any::<u8>(), 0..99), value in proptest::collection::vec(any::<u8>(), 0..999), flip in 0usize..100) {
            let at = BlockPtr::from_bits(0x1_0000);
            let mut out = vec![0; bytes(key.len(), value.len()) as usize];
            let end = fill(at, &mut out, &key, &value);
            prop_assert_eq!(end, out.len());
            prop_assert_eq!(check(at, &out), Some((&key[..], &value[..])));
            prop_assert!(check(BlockPtr::from_bits(0x2_0000), &out).is_none());
            let flip = flip % out.len();
            out[flip] ^= 0x10;
            prop_assert!(check(at, &out).is_none());
        }

        #[test]
        fn garbage_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = check(BlockPtr::from_bits(64), &bytes);
        }
    }
}
