//! A fingerprint table at its owner: one byte per slot of a leaf, its lock, and the identity of its
//! leaf.
//!
//! | offset | field |
//! |---|---|
//! | 0 | lock: 0, or the holder's tag; touched by atomics only |
//! | 8 | leaf address |
//! | 16 | version 24 bits, flags 8 (1: closed, 2: behind), fence tag 32 |
//! | 24 | fingerprints, one byte per slot, 0 = not live |
//! | 24 + C | CRC-32C over table id, all above but the lock, write count; write count 32 |

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::crc32c;
use dmtree_parts::slots::Slots;
use dmtree_pool::TableId;

use super::{Ver, put_u64, u64_at};
use crate::Route;

/// Offset of what a WRITE of the table covers: everything but the lock.
pub const BODY_AT: usize = 8;
const FPS_AT: usize = 24;

/// Slots of the largest leaf.
pub const MAX_SLOTS: usize = 128;
/// Bytes of the largest table, without its lock.
pub const MAX_BODY: usize = bytes(MAX_SLOTS) - BODY_AT;

/// Bytes of a table.
pub const fn bytes(capacity: usize) -> usize {
    FPS_AT + capacity + 8
}

/// Lines of a table.
pub fn lines(capacity: usize) -> u8 {
    bytes(capacity).div_ceil(64) as u8
}

/// Lines of a cell with a table and an image of `image_bytes` behind it; `None` when there are no
/// cells so large.
pub fn imaged_lines(capacity: usize, image_bytes: usize) -> Option<u8> {
    u8::try_from(usize::from(lines(capacity)) + image_bytes.div_ceil(64)).ok()
}

/// Identifies a lock's holder: node 16, incarnation 16, client 16, acquisition 16 bits. Unique, so
/// that a client that reads its own tag back holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTag(pub u64);

/// A table, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The leaf.
    pub leaf: GlobalAddr,
    /// The leaf's version.
    pub ver: Ver,
    /// Tag of the leaf's upper fence.
    pub fence: u32,
    /// The leaf is a tombstone, and this table is closed.
    pub closed: bool,
    /// The leaf at its memory node may be behind: records of a log say what its slots are.
    pub behind: bool,
    /// Counts the WRITEs of the table.
    pub writes: u32,
    /// Of its fingerprints one is known: it is never written.
    is_part: bool,
    fps: [u8; MAX_SLOTS],
    capacity: usize,
}

impl Default for Table {
    /// A table of no leaf.
    fn default() -> Self {
        Self::new(GlobalAddr::NULL, Ver { generation: 0, range: 0 }, 0, 0)
    }
}

/// Result of READing a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// A whole table.
    Whole(Table),
    /// Never written since its cell was zeroed.
    Unbuilt,
    /// A mix of two writes.
    Torn,
}

impl Table {
    /// An empty table of a leaf.
    pub fn new(leaf: GlobalAddr, ver: Ver, fence: u32, capacity: usize) -> Self {
        let (closed, behind, is_part, fps) = (false, false, false, [0; MAX_SLOTS]);
        Self { leaf, ver, fence, closed, behind, writes: 0, is_part, fps, capacity }
    }

    /// Becomes what a live slot tells of the table of its leaf.
    pub fn be_part(&mut self, route: &Route, ver: Ver, (slot, fp): (usize, u8)) {
        let Route { leaf, fence, capacity, .. } = *route;
        (self.leaf, self.ver, self.fence, self.capacity) = (leaf, ver, fence, capacity);
        (self.closed, self.behind, self.writes, self.is_part) = (false, false, 0, true);
        self.fps[..capacity].fill(0);
        self.set(slot, fp);
    }

    /// Whether a slot has told what is known of it: [`Self::be_part`].
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// The fingerprints.
    #[inline]
    pub fn fps(&self) -> &[u8] {
        &self.fps[..self.capacity]
    }

    /// Sets the fingerprint of a slot; 0 frees it.
    #[inline]
    pub fn set(&mut self, slot: usize, fp: u8) {
        self.fps[..self.capacity][slot] = fp;
    }

    /// The slots with this fingerprint; with 0 the free ones.
    #[inline]
    pub fn slots(&self, fp: u8) -> Slots {
        Slots::with(self.fps(), fp)
    }

    /// Live slots.
    pub fn live(&self) -> usize {
        self.capacity - self.slots(0).len()
    }

    /// The lowest free slot.
    pub fn free_slot(&self) -> Option<usize> {
        self.slots(0).next()
    }

    /// One more than the highest used slot.
    pub fn used(&self) -> usize {
        self.fps().iter().rposition(|fp| *fp != 0).map_or(0, |i| i + 1)
    }

    /// Length of [`Table::body`].
    #[inline]
    pub fn body_len(capacity: usize) -> usize {
        bytes(capacity) - BODY_AT
    }

    /// Writes everything but the lock, one write count on.
    pub fn body(&mut self, id: TableId, out: &mut [u8]) {
        debug_assert!(!self.is_part, "F: a part of the table of {} is written", self.leaf);
        self.writes = self.writes.wrapping_add(1);
        put_u64(out, 0, self.leaf.bits());
        let flags = u64::from(self.closed) | u64::from(self.behind) << 1;
        put_u64(out, 8, u64::from(self.ver.bits()) | flags << 24 | u64::from(self.fence) << 32);
        let fps_end = FPS_AT - BODY_AT + self.capacity;
        out[FPS_AT - BODY_AT..fps_end].copy_from_slice(self.fps());
        let sum = sum(id, &out[..fps_end], self.writes);
        put_u64(out, fps_end, u64::from(sum) | u64::from(self.writes) << 32);
    }

    /// One write count on, and nothing else has changed: the last word of the body, and where it is
    /// there.
    pub fn counted(&mut self, id: TableId) -> (usize, u64) {
        let mut body = [0; MAX_BODY];
        let body = &mut body[..Self::body_len(self.capacity)];
        self.body(id, body);
        let at = body.len() - 8;
        (at, u64_at(body, at))
    }

    /// Reads a table of `capacity` slots from its body.
    pub fn view(id: TableId, capacity: usize, body: &[u8]) -> View {
        let mut table = Self::default();
        match table.load(id, capacity, body) {
            true => View::Whole(table),
            false if body[..Self::body_len(capacity)].iter().all(|b| *b == 0) => View::Unbuilt,
            false => View::Torn,
        }
    }

    /// [`Table::view`] into memory that is reused; false, and nothing changes, unless the table is
    /// whole.
    #[inline]
    pub fn load(&mut self, id: TableId, capacity: usize, body: &[u8]) -> bool {
        let fps_end = FPS_AT - BODY_AT + capacity;
        let last = u64_at(body, fps_end);
        let writes = (last >> 32) as u32;
        if sum(id, &body[..fps_end], writes) != last as u32 {
            return false;
        }
        let meta = u64_at(body, 8);
        self.leaf = GlobalAddr::from_bits(u64_at(body, 0));
        self.ver = Ver::from_bits(meta as u32 & 0xff_ffff);
        self.closed = meta >> 24 & 1 == 1;
        self.behind = meta >> 25 & 1 == 1;
        self.is_part = false;
        self.fence = (meta >> 32) as u32;
        self.writes = writes;
        self.fps[..capacity].copy_from_slice(&body[FPS_AT - BODY_AT..fps_end]);
        self.capacity = capacity;
        true
    }
}

#[inline]
fn sum(id: TableId, body: &[u8], writes: u32) -> u32 {
    crc32c([id.bits(), u64::from(writes) | 0x5a5a_5a5a << 32], body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_published_leaf_is_one_line() {
        assert_eq!([32, 64, 128].map(lines), [1, 2, 3]);
    }

    #[test]
    fn tables_come_back_and_belong_to_their_id() {
        let id = TableId::from_bits(77);
        for capacity in [32, 64, 128] {
            let mut t = Table::new(
                GlobalAddr::from_bits(0x40),
                Ver { generation: 2, range: 1 },
                99,
                capacity,
            );
            t.set(capacity - 1, 7);
            t.behind = capacity == 64;
            let mut all = vec![0; Table::body_len(capacity)];
            assert_eq!(Table::view(id, capacity, &all), View::Unbuilt);
            t.body(id, &mut all);
            assert_eq!(Table::view(id, capacity, &all), View::Whole(t.clone()));
            let (at, word) = t.counted(id);
            put_u64(&mut all, at, word);
            assert_eq!(Table::view(id, capacity, &all), View::Whole(t.clone()));
            assert_eq!(t.writes, 2);
            assert_eq!(Table::view(TableId::from_bits(78), capacity, &all), View::Torn);
            all[30] ^= 1;
            assert_eq!(Table::view(id, capacity, &all), View::Torn);
            assert_eq!((t.live(), t.used(), t.free_slot()), (1, capacity, Some(0)));
        }
    }
}
