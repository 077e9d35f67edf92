//! Blocks of tables: entries that share prefixes with the one before, restarts, a checksum.
//!
//! An entry is three variable lengths (shared bytes of the key, other bytes of the key, value),
//! the other bytes, the tag (8) and the value. Every 16th entry is a restart: it shares nothing. A
//! block ends in the places of its restarts (4 each), their count (4) and a checksum (4).

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, Result};

use crate::format::{Each, check_lengths, take, take_tag};
use crate::key::Tag;

/// Entries between two restarts.
const INTERVAL: usize = 16;

/// A block that is being built.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    last: Vec<u8>,
    entries: usize,
}

impl Builder {
    pub(crate) fn push(&mut self, user: &[u8], tag: Tag, value: &[u8]) {
        let mut shared = 0;
        if self.entries.is_multiple_of(INTERVAL) {
            self.restarts.push(self.bytes.len() as u32);
        } else {
            shared = self.last.iter().zip(user).take_while(|(a, b)| a == b).count();
        }
        for length in [shared, user.len() - shared, value.len()] {
            put_length(&mut self.bytes, length as u32);
        }
        self.bytes.extend_from_slice(&user[shared..]);
        self.bytes.extend_from_slice(&tag.0.to_le_bytes());
        self.bytes.extend_from_slice(value);
        self.last.clear();
        self.last.extend_from_slice(user);
        self.entries += 1;
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + 4 * self.restarts.len() + 8
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The block; the builder is empty again.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let Self { mut bytes, restarts, .. } = std::mem::take(self);
        for at in &restarts {
            bytes.extend_from_slice(&at.to_le_bytes());
        }
        bytes.extend_from_slice(&(restarts.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c([0; 2], &bytes).to_le_bytes());
        bytes
    }
}

fn put_length(out: &mut Vec<u8>, mut n: u32) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_length(bytes: &mut &[u8]) -> Result<usize> {
    let mut n = 0u32;
    for shift in (0..28).step_by(7) {
        let byte = take(bytes, 1)?[0];
        n |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(n as usize);
        }
    }
    Err(Error::corrupt("a length in a block has too many bytes"))
}

/// Decodes a block.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn decode(bytes: &[u8], each: &mut Each<'_>) -> Result<()> {
    let broken = || Error::corrupt("a block is too short, or its checksum fails");
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(broken)?;
    if crc32c([0; 2], body) != u32::from_le_bytes(*sum) {
        return Err(broken());
    }
    let (body, restarts) = body.split_last_chunk::<4>().ok_or_else(broken)?;
    let restarts = u32::from_le_bytes(*restarts) as usize;
    let entries = restarts.checked_mul(4).and_then(|n| body.len().checked_sub(n));
    let mut rest = &body[..entries.ok_or_else(broken)?];
    let mut user = Vec::new();
    while !rest.is_empty() {
        let (shared, own) = (take_length(&mut rest)?, take_length(&mut rest)?);
        let value = take_length(&mut rest)?;
        if shared > user.len() {
            return Err(broken());
        }
        check_lengths(shared + own, value)?;
        user.truncate(shared);
        user.extend_from_slice(take(&mut rest, own)?);
        let tag = take_tag(&mut rest)?;
        each(&user, tag, take(&mut rest, value)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_damage_is_noticed() {
        let mut builder = Builder::default();
        let entry = |n: u32| (format!("key {n:04}").into_bytes(), vec![n as u8; n as usize]);
        for n in 0..200 {
            let (user, value) = entry(n);
            builder.push(&user, Tag::new(n.into(), n % 3 > 0), &value);
        }
        let estimate = builder.len();
        let bytes = builder.finish();
        assert_eq!(bytes.len(), estimate);
        let mut n = 0;
        let mut each = |user: &[u8], tag: Tag, value: &[u8]| {
            assert_eq!((user.to_vec(), value.to_vec()), entry(n));
            assert_eq!(tag, Tag::new(n.into(), n % 3 > 0));
            n += 1;
        };
        decode(&bytes, &mut each).expect("whole");
        assert_eq!(n, 200);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            assert!(decode(&other, &mut |_, _, _| {}).is_err());
            assert!(decode(&bytes[..at], &mut |_, _, _| {}).is_err());
        }
    }
}
