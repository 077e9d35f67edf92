//! The published benchmark's keys: 24 decimal digits, the FNV-1a hash of a record number.

use dmtree_workload::fnv1a;

pub const KEY_BYTES: usize = 24;
pub type Key = [u8; KEY_BYTES];
pub type Value = [u8; 8];

pub fn key(n: u64) -> Key {
    let digits = format!("{:024}", fnv1a(&n.to_le_bytes()));
    digits.into_bytes().try_into().expect("u64 has 20 digits at most")
}

/// The value of record `n`.
pub fn value(n: u64) -> Value {
    n.to_le_bytes()
}
