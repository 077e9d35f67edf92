//! Little-endian words and addresses in images of nodes.

use dmtree_fabric::GlobalAddr;

/// A word of bytes that are long enough.
#[inline]
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Sets one.
#[inline]
pub fn put_u64(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// A half word.
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Sets one.
pub fn put_u32(bytes: &mut [u8], at: usize, half: u32) {
    bytes[at..at + 4].copy_from_slice(&half.to_le_bytes());
}

/// An address.
pub fn get_addr(bytes: &[u8], at: usize) -> GlobalAddr {
    GlobalAddr::from_bits(get_u64(bytes, at))
}
