//! Byte strings in areas of fixed size: keys, values and fences.
//!
//! A string that fills its area is stored as it is; a shorter one is padded with zeros, and the
//! last byte tells how many bytes are unused (255: the two bytes before it tell); a longer one is
//! in a block, and the area holds a pointer to it. A key's area then also has a prefix and 48 bits
//! of its hash, when there is room.

use crate::hash::KeyHash;
use dmtree_pool::BlockPtr;

/// How an area is to be read: 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The string fills the area.
    Full = 0,
    /// It is shorter.
    Short = 1,
    /// It is in a block.
    Block = 2,
    /// Fences only: beyond every key.
    Infinite = 3,
}

impl Mode {
    /// From 2 bits.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Full,
            1 => Self::Short,
            2 => Self::Block,
            _ => Self::Infinite,
        }
    }
}

/// A string as its area shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// The string itself.
    Inline(&'a [u8]),
    /// Where the string is.
    Block(BlockPtr),
    /// Beyond every key.
    Infinite,
}

/// Stores a string that fits; `None` when it does not.
#[inline]
pub fn put_inline(area: &mut [u8], bytes: &[u8]) -> Option<Mode> {
    if area.len() == bytes.len() {
        area.copy_from_slice(bytes);
        return Some(Mode::Full);
    }
    put_short(area, bytes)
}

fn put_short(area: &mut [u8], bytes: &[u8]) -> Option<Mode> {
    let n = bytes.len();
    let unused = area.len().checked_sub(n)?;
    area[..n].copy_from_slice(bytes);
    area[n..].fill(0);
    let last = area.len() - 1;
    if unused < 255 {
        area[last] = unused as u8;
    } else {
        area[last] = 255;
        area[last - 2..last].copy_from_slice(&(unused as u16).to_le_bytes());
    }
    Some(Mode::Short)
}

/// Stores a pointer to a long key, with the prefix and hash that reject other keys without
/// following it.
pub fn put_key_block(area: &mut [u8], key: &[u8], hash: KeyHash, block: BlockPtr) -> Mode {
    let at = area.len() - 8;
    area[at..].copy_from_slice(&block.bits().to_le_bytes());
    if at >= 8 {
        area[at - 6..at].copy_from_slice(&hash.low48().to_le_bytes()[..6]);
        area[..at - 6].copy_from_slice(&key[..at - 6]);
    }
    Mode::Block
}

/// Stores a pointer to a long value.
pub fn put_value_block(area: &mut [u8], block: BlockPtr) -> Mode {
    area.fill(0);
    area[..8].copy_from_slice(&block.bits().to_le_bytes());
    Mode::Block
}

#[inline]
fn inline(area: &[u8], mode: Mode) -> Option<&[u8]> {
    if mode == Mode::Full {
        return Some(area);
    }
    let last = area.len().checked_sub(1)?;
    let unused = match area[last] {
        255 => usize::from(u16::from_le_bytes([*area.get(last.checked_sub(2)?)?, area[last - 1]])),
        n => usize::from(n),
    };
    area.get(..area.len().checked_sub(unused)?)
}

/// Reads a key or a fence; `None` for bytes that no client stores.
#[inline]
pub fn get_key(area: &[u8], mode: Mode) -> Option<Stored<'_>> {
    match mode {
        Mode::Full | Mode::Short => inline(area, mode).map(Stored::Inline),
        Mode::Block => {
            let bits = u64::from_le_bytes(area[area.len() - 8..].try_into().expect("8 bytes"));
            Some(Stored::Block(BlockPtr::from_bits(bits)))
        }
        Mode::Infinite => Some(Stored::Infinite),
    }
}

/// Reads a value; `None` for bytes that no client stores.
#[inline]
pub fn get_value(area: &[u8], mode: Mode) -> Option<Stored<'_>> {
    match mode {
        Mode::Full | Mode::Short => inline(area, mode).map(Stored::Inline),
        Mode::Block => {
            let bits = u64::from_le_bytes(area.get(..8)?.try_into().expect("8 bytes"));
            Some(Stored::Block(BlockPtr::from_bits(bits)))
        }
        Mode::Infinite => None,
    }
}

/// Whether an area that points to a block may belong to this key.
pub fn may_be(area: &[u8], key: &[u8], hash: KeyHash) -> bool {
    let at = area.len() - 8;
    if key.len() <= area.len() {
        return false;
    }
    at < 8
        || (area[at - 6..at] == hash.low48().to_le_bytes()[..6] && area[..at - 6] == key[..at - 6])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn strings_come_back(area in 1usize..40, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for len in [area * 8, 1024] {
                let mut buf = vec![0xee; len];
                match put_inline(&mut buf, &bytes) {
                    Some(mode) => prop_assert_eq!(get_key(&buf, mode), Some(Stored::Inline(&bytes[..]))),
                    None => prop_assert!(bytes.len() > len),
                }
            }
        }

        #[test]
        fn any_bytes_are_survived(area in proptest::collection::vec(any::<u8>(), 8..40), mode in 0u64..4) {
            let _ = get_key(&area, Mode::from_bits(mode));
            let _ = get_value(&area, Mode::from_bits(mode));
        }

        #[test]
        fn long_keys_are_told_apart(key in proptest::collection::vec(any::<u8>(), 33..60), other in proptest::collection::vec(any::<u8>(), 1..60)) {
            for len in [8usize, 16, 24, 32] {
                let mut buf = vec![0; len];
                let block = BlockPtr::from_bits(0x1234_5678_9abc_def0);
                let mode = put_key_block(&mut buf, &key, KeyHash::of(&key), block);
                prop_assert_eq!(get_key(&buf, mode), Some(Stored::Block(block)));
                prop_assert!(may_be(&buf, &key, KeyHash::of(&key)));
                if len >= 16 && other != key {
                    prop_assert!(!may_be(&buf, &other, KeyHash::of(&other)));
                }
            }
        }
    }
}
