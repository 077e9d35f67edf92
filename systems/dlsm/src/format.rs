//! The bytes of a table. All integers are little endian.
//!
//! *Data* is units, in the order of their first versions. A unit does not cross from one extent to
//! the next.
//!
//! - [`Format::Dense`]: a unit is so many entries, one behind the other: length of key and tag (4
//!   bytes), length of value (4), key, tag (8), value.
//! - [`Format::Blocks`]: a unit is a block (`block.rs`).
//!
//! *Index*: a count (4), the largest key with its length (2), a record for each unit, and a
//! checksum (4). A record is the length of the key (2), the first version of the unit, its place in
//! the data (4) and its bytes (4).
//!
//! Bytes that come back from a memory node are decoded with every length checked; keys of an index
//! ascend, and its units have no gap.

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, Result};
use dmtree_parts::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use serde::{Deserialize, Serialize};

use crate::block;
use crate::key::{Tag, order};

/// How entries lie in the data of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Byte-addressable: an index record for so many entries.
    Dense(u32),
    /// Blocks of about so many bytes, with restarts and a checksum; one pair at least.
    Blocks(u32),
}

/// Bytes of a dense entry beside key and value: two lengths and the tag.
pub(crate) const ENTRY_BYTES: usize = 16;
/// Bytes of an index record beside the key.
const RECORD_BYTES: usize = 18;

/// Bytes of the index record of a unit that begins with this key.
pub(crate) fn record_bytes(user: &[u8]) -> u64 {
    (RECORD_BYTES + user.len()) as u64
}

/// Bytes of a dense entry.
pub(crate) fn entry_bytes(user: &[u8], value: &[u8]) -> usize {
    ENTRY_BYTES + user.len() + value.len()
}

/// Appends a dense entry.
pub(crate) fn put_entry(out: &mut Vec<u8>, user: &[u8], tag: Tag, value: &[u8]) {
    out.extend_from_slice(&(user.len() as u32 + 8).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(user);
    out.extend_from_slice(&tag.0.to_le_bytes());
    out.extend_from_slice(value);
}

/// Takes bytes from the front.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (front, rest) = bytes
        .split_at_checked(n)
        .ok_or_else(|| Error::corrupt("a table ends in the midst of an entry"))?;
    *bytes = rest;
    Ok(front)
}

pub(crate) fn take_u16(bytes: &mut &[u8]) -> Result<u16> {
    Ok(u16::from_le_bytes(take(bytes, 2)?.try_into().expect("two bytes")))
}

pub(crate) fn take_u64(bytes: &mut &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(take(bytes, 8)?.try_into().expect("eight bytes")))
}

pub(crate) fn take_u32(bytes: &mut &[u8]) -> Result<u32> {
    Ok(u32::from_le_bytes(take(bytes, 4)?.try_into().expect("four bytes")))
}

pub(crate) fn take_tag(bytes: &mut &[u8]) -> Result<Tag> {
    Ok(Tag(u64::from_le_bytes(take(bytes, 8)?.try_into().expect("eight bytes"))))
}

/// Refuses lengths that no write has stored.
pub(crate) fn check_lengths(key: usize, value: usize) -> Result<()> {
    match key > 0 && key <= MAX_KEY_BYTES && value <= MAX_VALUE_BYTES {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "an entry of a table has a key of {key} bytes and a value of {value}"
        ))),
    }
}

/// An entry as it is decoded: key, tag, value.
pub(crate) type Each<'f> = dyn FnMut(&[u8], Tag, &[u8]) + 'f;

/// Decodes a unit.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn decode_unit(format: Format, bytes: &[u8], each: &mut Each<'_>) -> Result<()> {
    match format {
        Format::Blocks(_) => block::decode(bytes, each),
        Format::Dense(_) => {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (key, value) = (take_u32(&mut rest)? as usize, take_u32(&mut rest)? as usize);
                let key = key.wrapping_sub(8);
                check_lengths(key, value)?;
                let user = take(&mut rest, key)?;
                let tag = take_tag(&mut rest)?;
                each(user, tag, take(&mut rest, value)?);
            }
            Ok(())
        }
    }
}

#[derive(Debug)]
struct Record {
    key_end: u32,
    tag: Tag,
    at: u32,
    bytes: u32,
}

/// The index of a table, in the memory of a node.
#[derive(Debug, Default)]
pub(crate) struct Index {
    keys: Vec<u8>,
    records: Vec<Record>,
    pub(crate) largest: Vec<u8>,
}

impl Index {
    /// Adds a unit.
    pub(crate) fn push(&mut self, (user, tag): (&[u8], Tag), (at, bytes): (u32, u32)) {
        self.keys.extend_from_slice(user);
        self.records.push(Record { key_end: self.keys.len() as u32, tag, at, bytes });
    }

    /// How many units.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The first version of a unit.
    pub(crate) fn first(&self, i: usize) -> (&[u8], Tag) {
        let from = i.checked_sub(1).map_or(0, |before| self.records[before].key_end);
        let Record { key_end, tag, .. } = self.records[i];
        (&self.keys[from as usize..key_end as usize], tag)
    }

    /// Where a unit is in the data, and its bytes.
    pub(crate) fn place(&self, i: usize) -> (u32, u32) {
        (self.records[i].at, self.records[i].bytes)
    }

    pub(crate) fn smallest(&self) -> &[u8] {
        if self.records.is_empty() { &[] } else { self.first(0).0 }
    }

    /// How many units begin with a version for which `before` holds: it holds for a prefix.
    pub(crate) fn partition(&self, before: impl Fn(&[u8], Tag) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let (user, tag) = self.first(middle);
            if before(user, tag) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Bytes in the memory of a node.
    pub(crate) fn bytes(&self) -> u64 {
        let records = self.records.len() * size_of::<Record>();
        (self.keys.len() + records + self.largest.len()) as u64
    }

    /// Bytes before the first record on a memory node.
    pub(crate) fn head_bytes(&self) -> u64 {
        6 + self.largest.len() as u64
    }

    /// As it lies on a memory node.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.keys.len() + RECORD_BYTES * self.len() + 16);
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.largest.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.largest);
        for i in 0..self.len() {
            let ((user, tag), (at, bytes)) = (self.first(i), self.place(i));
            out.extend_from_slice(&(user.len() as u16).to_le_bytes());
            out.extend_from_slice(user);
            out.extend_from_slice(&tag.0.to_le_bytes());
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
        }
        out.extend_from_slice(&crc32c([0; 2], &out).to_le_bytes());
        out
    }

    /// From the bytes that were read back, of a table with so many bytes of data.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(bytes: &[u8], data_bytes: u64) -> Result<Self> {
        let broken = |what: &str| Error::corrupt(format!("the index of a table: {what}"));
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| broken("it is too short"))?;
        if u32::from_le_bytes(*sum) != crc32c([0; 2], body) {
            return Err(broken("its checksum fails"));
        }
        let mut rest = body;
        let count = take_u32(&mut rest)? as usize;
        if count > rest.len() / RECORD_BYTES {
            return Err(broken("it has fewer records than it says"));
        }
        let largest = usize::from(take_u16(&mut rest)?);
        let mut index = Self { largest: take(&mut rest, largest)?.to_vec(), ..Self::default() };
        for _ in 0..count {
            index.push_record(&mut rest)?;
        }
        if index.records.first().is_some_and(|first| first.at != 0)
            || index.end() != data_bytes
            || !rest.is_empty()
            || count == 0
        {
            return Err(broken("it is of other data"));
        }
        match index.first(count - 1).0 > &index.largest[..] {
            true => Err(broken("its largest key is below another one")),
            false => Ok(index),
        }
    }

    /// A part of an index, of records alone.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn of_records(mut bytes: &[u8]) -> Result<Self> {
        let mut index = Self::default();
        while !bytes.is_empty() {
            index.push_record(&mut bytes)?;
        }
        Ok(index)
    }

    /// Where its last unit ends in the data.
    fn end(&self) -> u64 {
        self.records.last().map_or(0, |last| u64::from(last.at) + u64::from(last.bytes))
    }

    /// Adds the record that is next in some bytes.
    fn push_record(&mut self, rest: &mut &[u8]) -> Result<()> {
        let broken = |what: &str| Error::corrupt(format!("the index of a table: {what}"));
        let key = usize::from(take_u16(rest)?);
        check_lengths(key, 0)?;
        let (user, tag) = (take(rest, key)?, take_tag(rest)?);
        let last = self.len().checked_sub(1);
        if last.is_some_and(|last| order(self.first(last), (user, tag)).is_ge()) {
            return Err(broken("its versions do not ascend"));
        }
        let (at, bytes) = (take_u32(rest)?, take_u32(rest)?);
        if bytes == 0 || last.is_some() && u64::from(at) != self.end() {
            return Err(broken("its units have a gap"));
        }
        self.push((user, tag), (at, bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_published_lengths() {
        let mut out = Vec::new();
        put_entry(&mut out, &[1; 20], Tag::new(5, true), &[2; 400]);
        assert_eq!((out.len(), entry_bytes(&[1; 24], &[2; 8])), (436, 48));
    }

    fn index() -> Index {
        let mut index = Index::default();
        for n in 0..5u8 {
            let bytes = 10 + u32::from(n);
            let at = (0..u32::from(n)).map(|n| 10 + n).sum();
            index.push((&[n, 7], Tag::new(9, true)), (at, bytes));
        }
        index.largest = vec![4, 9];
        index
    }

    #[test]
    fn an_index_comes_back_and_damage_is_noticed() {
        let bytes = index().encoded();
        let back = Index::decode(&bytes, 60).expect("whole");
        assert_eq!((back.len(), back.first(3), back.place(3)), (5, index().first(3), (33, 13)));
        assert_eq!(back.partition(|user, _| user < &[2, 7][..]), 2);
        assert!(Index::decode(&bytes, 61).is_err());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(Index::decode(&other, 60).is_err(), "byte {at}");
            assert!(Index::decode(&bytes[..at], 60).is_err());
        }
    }

    #[test]
    fn units_that_end_early_are_refused() {
        let mut unit = Vec::new();
        put_entry(&mut unit, b"key", Tag::new(5, true), b"value");
        let decode = |bytes: &[u8]| decode_unit(Format::Dense(1), bytes, &mut |_, _, _| {});
        decode(&unit).expect("whole");
        for end in 1..unit.len() {
            assert!(decode(&unit[..end]).is_err());
        }
        unit[0] = 3;
        assert!(decode(&unit).is_err(), "a length below that of the tag");
    }
}
