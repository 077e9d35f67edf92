//! An inner node: the shared header, a lock word, and unsorted records that are each valid alone.
//!
//! A record: word0 (bits 0-1 state, 2-3 key mode, 8-31 generation of the child 16 and range of this
//! node 8, 32-63 CRC-32C over this node's address and generation, the record's number, bits 0-31
//! and the rest), key K, child 8, {table id 48, slots 8} 8.

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::{Numbering, Records, crc32c, crc32c_whole};
use dmtree_pool::TableId;

use super::area::{self, Mode, Stored};
use super::leaf::{Header, check_header};
use super::{Geometry, Ver, put_u64, u64_at};

/// A child as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its address.
    pub addr: GlobalAddr,
    /// Its generation.
    pub generation: u16,
    /// Its table (leaves).
    pub table: TableId,
    /// Its slots or records.
    pub slots: usize,
}

/// A checked record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where in the node.
    pub index: usize,
    /// Lower fence of the child.
    pub key: Stored<'a>,
    /// Key area as stored.
    pub area: &'a [u8],
    /// How to read it.
    pub mode: Mode,
    /// The child.
    pub child: Child,
}

fn crc(node: GlobalAddr, generation: u16, index: usize, low: u32, rest: &[u8]) -> u32 {
    let which = u64::from(generation) | u64::from(index as u16) << 16;
    crc32c([node.bits(), which | u64::from(low) << 32], rest)
}

/// word0 of a free record.
pub fn free_word(node: GlobalAddr, ver: Ver, index: usize) -> u64 {
    let low = u32::from(ver.range) << 8;
    u64::from(crc(node, ver.generation, index, low, &[])) << 32 | u64::from(low)
}

/// Writes record `index` of a node of version `ver` into its bytes.
pub fn put_record(
    g: &Geometry,
    node: GlobalAddr,
    ver: Ver,
    index: usize,
    out: &mut [u8],
    key: (&[u8], Mode),
    child: &Child,
) {
    out[8..8 + g.k].copy_from_slice(key.0);
    put_u64(out, 8 + g.k, child.addr.bits());
    put_u64(out, 16 + g.k, child.table.bits() | (child.slots as u64) << 48);
    let ver_bits = u32::from(child.generation) << 8 | u32::from(ver.range);
    let low = LIVE | (key.1 as u32) << 2 | ver_bits << 8;
    let sum = crc(node, ver.generation, index, low, &out[8..g.record()]);
    put_u64(out, 0, u64::from(sum) << 32 | u64::from(low));
}

/// Checks a whole node: header, level and every record, all of one range. `None` when anything is
/// torn.
pub fn check<'a>(g: &Geometry, node: GlobalAddr, bytes: &'a [u8]) -> Option<Header<'a>> {
    let header = check_header(g, node, bytes)?;
    if header.level == 0 || header.slots != g.fanout {
        return None;
    }
    let (len, covered) = (g.record(), g.record() - 8);
    let records = bytes.get(g.record_at(0)..g.record_at(g.fanout))?;
    for (round, bytes) in records.chunks(TOGETHER * len).enumerate() {
        let from = round * TOGETHER;
        let second = u32::from(header.ver.generation) | (from as u32) << 16;
        let numbering = Numbering { first: node.bits(), second, step: 1 << 16, state: STATE };
        let whole = crc32c_whole(numbering, Records { bytes, len, covered, from });
        if whole.count_ones() as usize != bytes.len() / len {
            return None;
        }
        let is_accepted = |raw: &[u8]| {
            let low = u64_at(raw, 0) as u32;
            let is_record =
                low & STATE == LIVE && (has_key(g, raw, low) || key_in(g, raw, low).is_some());
            (low & STATE == 0 || is_record) && low >> 8 & 0xff == u32::from(header.ver.range)
        };
        if !bytes.chunks_exact(len).all(is_accepted) {
            return None;
        }
    }
    Some(header)
}

/// Records that are checked together.
const TOGETHER: usize = 32;

/// The record at a place as it stands, if it is live: for bytes that were accepted before.
#[inline]
pub fn record<'a>(g: &Geometry, bytes: &'a [u8], index: usize) -> Option<Record<'a>> {
    record_in(g, &bytes[g.record_at(index)..][..g.record()], index)
}

#[inline]
fn record_in<'a>(g: &Geometry, raw: &'a [u8], index: usize) -> Option<Record<'a>> {
    let low = u64_at(raw, 0) as u32;
    if low & STATE != LIVE {
        return None;
    }
    let (area, mode) = (&raw[8..8 + g.k], Mode::from_bits(u64::from(low >> 2)));
    let key = key_in(g, raw, low)?;
    Some(Record { index, key, area, mode, child: child_of(g, raw) })
}

/// The key of a live record of an accepted node.
#[inline]
pub fn key_of<'a>(g: &Geometry, raw: &'a [u8]) -> Option<Stored<'a>> {
    key_in(g, raw, u64_at(raw, 0) as u32)
}

/// The child of a live record as it stands.
#[inline]
pub fn child_of(g: &Geometry, raw: &[u8]) -> Child {
    let last = u64_at(raw, 16 + g.k);
    Child {
        addr: GlobalAddr::from_bits(u64_at(raw, 8 + g.k)),
        generation: Ver::from_bits(u64_at(raw, 0) as u32 >> 8).generation,
        table: TableId::from_bits(last & 0xffff_ffff_ffff),
        slots: (last >> 48 & 0xff) as usize,
    }
}

/// Whether a place that begins here, of an accepted node, has no record.
#[inline]
pub fn is_free(raw: &[u8]) -> bool {
    u64_at(raw, 0) as u32 & STATE == 0
}

/// Whether the bytes of a place of an accepted node are the record of a child in a generation, with
/// its key in its area.
#[inline]
pub fn is_short_of(g: &Geometry, raw: &[u8], child: GlobalAddr, generation: u16) -> bool {
    let low = u64_at(raw, 0) as u32;
    low & (STATE | OUTSIDE) == LIVE
        && Ver::from_bits(low >> 8).generation == generation
        && u64_at(raw, 8 + g.k) == child.bits()
}

/// The live records as they stand, in the order of their places: for bytes that were accepted
/// before.
pub fn records<'a>(g: &Geometry, bytes: &'a [u8]) -> impl Iterator<Item = Record<'a>> {
    (0..g.fanout).filter_map(move |i| record(g, bytes, i))
}

/// The state of a record in word0: 0 free, 1 live.
const STATE: u32 = 3;
const LIVE: u32 = 1;
/// The bit of a key's mode in word0 that says that the key is not in its area.
const OUTSIDE: u32 = (Mode::Block as u32 & Mode::Infinite as u32) << 2;

/// A record by itself, with the range of the node when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnvalidatedRecord<'a> {
    /// Half written.
    Torn,
    /// None.
    Free(u8),
    /// Valid.
    Live(Record<'a>, u8),
}

/// The low half of the word0 of a record that has its checksum.
#[inline]
fn whole_record(node: GlobalAddr, generation: u16, index: usize, raw: &[u8]) -> Option<u32> {
    let word = u64_at(raw, 0);
    let low = word as u32;
    let covered = match low & STATE {
        0 => &[],
        LIVE => &raw[8..],
        _ => return None,
    };
    let sum = crc(node, generation, index, low, covered);
    (sum == (word >> 32) as u32).then_some(low)
}

/// The key of a live record with this low half of its word0; `None` for bytes that are no key.
#[inline]
fn key_in<'a>(g: &Geometry, raw: &'a [u8], low: u32) -> Option<Stored<'a>> {
    let key = area::get_key(&raw[8..8 + g.k], Mode::from_bits(u64::from(low >> 2)))?;
    (!matches!(key, Stored::Infinite)).then_some(key)
}

/// Whether a live record surely has a key: one that fills its area, or as much of it as its last
/// byte tells.
#[inline]
fn has_key(g: &Geometry, raw: &[u8], low: u32) -> bool {
    match Mode::from_bits(u64::from(low >> 2)) {
        Mode::Full => true,
        Mode::Short => usize::from(raw[7 + g.k]) <= g.k.min(254),
        Mode::Block | Mode::Infinite => false,
    }
}

/// Checks one record of a node of some generation.
pub fn unvalidated_record<'a>(
    g: &Geometry,
    node: GlobalAddr,
    generation: u16,
    index: usize,
    raw: &'a [u8],
) -> UnvalidatedRecord<'a> {
    let Some(low) = whole_record(node, generation, index, raw) else {
        return UnvalidatedRecord::Torn;
    };
    let range = Ver::from_bits(low >> 8).range;
    if low & STATE == 0 {
        return UnvalidatedRecord::Free(range);
    }
    match record_in(g, raw, index) {
        Some(record) => UnvalidatedRecord::Live(record, range),
        None => UnvalidatedRecord::Torn,
    }
}

#[cfg(test)]
mod tests {
    use super::super::leaf::{FenceArea, HeaderParts, put_header};
    use super::*;

    #[test]
    fn nodes_come_back_and_mixed_ranges_are_refused() {
        let g = Geometry { k: 24, v: 8, fanout: 32 };
        let node = GlobalAddr::from_bits(0x8000);
        let ver = Ver { generation: 2, range: 0 };
        let mut image = vec![0; g.inner_image()];
        let (lo, hi) = (FenceArea::inline(&g, b"").expect("fits"), FenceArea::infinite(&g));
        let parts = HeaderParts {
            ver,
            table: TableId::from_bits(0),
            slots: 32,
            level: 1,
            lo: &lo,
            hi: &hi,
            next: GlobalAddr::NULL,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, node, &mut image, &parts);
        for i in 0..32 {
            put_u64(&mut image, g.record_at(i), free_word(node, ver, i));
        }
        let addr = GlobalAddr::from_bits(0x9000);
        let child = Child { addr, generation: 9, table: TableId::from_bits(4), slots: 64 };
        let at = g.record_at(3);
        let key = FenceArea::inline(&g, b"kk").expect("fits");
        put_record(
            &g,
            node,
            ver,
            3,
            &mut image[at..at + g.record()],
            (&key.bytes, key.mode),
            &child,
        );
        check(&g, node, &image).expect("whole");
        let records: Vec<Record<'_>> = records(&g, &image).collect();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].key, records[0].child), (Stored::Inline(b"kk"), child));
        put_u64(&mut image, g.record_at(5), free_word(node, ver.bumped(), 5));
        assert!(check(&g, node, &image).is_none());
    }
}
