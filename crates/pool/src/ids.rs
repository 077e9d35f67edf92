//! Names of table cells and blocks, as they stand in remote memory. Any bits may come back from
//! there: nothing here panics.

use std::fmt;

use dmtree_fabric::{GlobalAddr, MAX_BUF_BYTES, NodeId};

/// Partitions of the table space that compute nodes own: numbers 0 to 1023.
pub const COMPUTE_PARTITIONS: u16 = 1024;
/// Partitions that memory nodes own: the numbers behind those.
pub const MEMORY_PARTITIONS: u16 = 64;
/// All partitions.
pub const PARTITIONS: u16 = COMPUTE_PARTITIONS + MEMORY_PARTITIONS;

/// Bytes of a line, the unit of table cells.
pub(crate) const LINE: u64 = 64;
/// Segments of a partition; segment `j` holds `16 << j` lines.
pub(crate) const SEGMENTS: usize = 16;
/// Lines of a partition that has grown to its end.
const MAX_LINES: u64 = 16 * ((1 << SEGMENTS) - 1);

/// Lines of the largest cell that has a table alone. Cells of more lines have room for an image of
/// what the table is for.
pub const TABLE_LINES: u8 = 4;

/// Names a table cell wherever its partition is: partition + 1 (12 bits) | the low bits of
/// lines - 1 (2) | its high bits (6) | first line (28 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TableId(u64);

impl TableId {
    /// No table.
    pub const NONE: Self = Self(0);
    const LINE_BITS: u32 = 28;
    const LINES_AT: u32 = 34;
    const SIZE_BITS: u64 = 0xff << Self::LINE_BITS;

    /// The id with these bits, which may come from remote memory.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The packed form: 48 bits for an id that was granted.
    pub const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn new(partition: u16, lines: u8, first: u64) -> Self {
        debug_assert!(partition < PARTITIONS && lines > 0 && first < MAX_LINES);
        let (partition, more) = (u64::from(partition) + 1, u64::from(lines) - 1);
        let size = (more & 3) << Self::LINES_AT | more >> 2 << Self::LINE_BITS;
        Self(partition << 36 | size | first)
    }

    /// Lines of 64 bytes of the cell, 1 to 255, as the bits say.
    pub const fn lines(self) -> u8 {
        (self.more_lines() as u8).saturating_add(1)
    }

    /// Lines of the cell behind its first one, as the bits say: 8 bits.
    const fn more_lines(self) -> u64 {
        self.0 >> Self::LINES_AT & 3 | (self.0 >> Self::LINE_BITS & 0x3f) << 2
    }

    /// The cell of another size that begins at the same place; `None` when none can.
    pub fn with_lines(self, lines: u8) -> Option<Self> {
        let p = self.partition().filter(|_| lines > 0)?;
        let wider = Self::new(p, lines, self.first_line());
        wider.place().map(|_| wider)
    }

    /// The cells of one line that it consists of.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let one = self.0 & !Self::SIZE_BITS;
        (0..u64::from(self.lines())).map(move |i| Self(one + i))
    }

    /// Whether the first line of another cell is one of its lines.
    pub fn holds(self, other: Self) -> bool {
        self.each().any(|line| Some(line) == other.with_lines(1))
    }

    /// The partition; `None` when no such partition exists.
    #[inline]
    pub fn partition(self) -> Option<u16> {
        let p = (self.0 >> 36).wrapping_sub(1);
        (p < u64::from(PARTITIONS)).then_some(p as u16)
    }

    /// First line inside the partition.
    pub(crate) const fn first_line(self) -> u64 {
        self.0 & ((1 << Self::LINE_BITS) - 1)
    }

    /// Partition, segment and byte offset in the segment; `None` for an id that can never have been
    /// granted.
    #[inline]
    pub(crate) fn place(self) -> Option<(u16, usize, u64)> {
        let partition = self.partition()?;
        let first = self.first_line();
        let segment = segment_of(first);
        let start = segment_start(segment);
        // The first line behind it: segments double.
        let end = 2 * start + 16;
        let is_out = segment >= SEGMENTS || first + self.more_lines() >= end;
        if is_out || self.0 & Self::SIZE_BITS == Self::SIZE_BITS {
            return None;
        }
        Some((partition, segment, (first - start) * LINE))
    }
}

impl fmt::Debug for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition() {
            Some(p) => write!(f, "table {p}:{}x{}", self.first_line(), self.lines()),
            None => write!(f, "table {:#x}", self.0),
        }
    }
}

/// The segment of a line.
#[inline]
pub(crate) fn segment_of(line: u64) -> usize {
    (line / 16 + 1).ilog2() as usize
}

/// First line of a segment, and so the number of lines before it.
pub(crate) fn segment_start(segment: usize) -> u64 {
    16 * ((1 << segment) - 1)
}

/// Bytes of a segment.
pub(crate) fn segment_bytes(segment: usize) -> u64 {
    (16 << segment) * LINE
}

/// How many block size classes there are.
pub const BLOCK_CLASSES: u8 = 56;
/// The largest block.
pub const BLOCK_MAX_BYTES: u32 = MAX_BUF_BYTES;

/// Bytes of a size class. Classes that do not exist (garbage bits) count as the largest.
pub const fn block_class_bytes(class: u8) -> u32 {
    match class {
        0..=2 => 64 * (class as u32 + 1),
        3..=54 => {
            let (doubling, quarter) = ((class as u32 - 3) / 4, (class as u32 - 3) % 4);
            (256 + 64 * quarter) << doubling
        }
        _ => BLOCK_MAX_BYTES,
    }
}

/// The smallest class that holds `bytes`; `None` above the largest.
pub fn block_class_of(bytes: u32) -> Option<u8> {
    if bytes > BLOCK_MAX_BYTES {
        return None;
    }
    // 56 classes: a binary search over a closed form needs no table.
    let (mut low, mut high) = (0u8, BLOCK_CLASSES - 1);
    while low < high {
        let middle = (low + high) / 2;
        if block_class_bytes(middle) < bytes {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// A block: node (16 bits) | offset / 64 (42 bits) | size class (6 bits). 0 is null.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockPtr(u64);

impl BlockPtr {
    /// No block.
    pub const NULL: Self = Self(0);

    /// The pointer with these bits, which may come from remote memory.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The packed form.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether this is [`BlockPtr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// A block at an offset of a node.
    pub fn new(node: NodeId, offset: u64, class: u8) -> Self {
        debug_assert!(offset.is_multiple_of(64) && class < BLOCK_CLASSES);
        Self(u64::from(node.bits()) << 48 | (offset / 64) << 6 | u64::from(class))
    }

    /// Where it begins. Garbage bits give some address; using it can fail, never panic.
    pub const fn addr(self) -> GlobalAddr {
        let offset = (self.0 >> 6 & ((1 << 42) - 1)) * 64;
        let node = self.0 & (0xffff << 48);
        GlobalAddr::from_bits(node | offset & (GlobalAddr::MAX_OFFSET - 1))
    }

    /// Its size class, as the bits say.
    pub const fn class(self) -> u8 {
        (self.0 & 63) as u8
    }

    /// Bytes of its class.
    pub const fn capacity(self) -> u32 {
        block_class_bytes(self.class())
    }

    /// The pointer if its bits can name a block at all: class and offset exist.
    pub(crate) fn plausible(self) -> Option<Self> {
        let offset = self.0 >> 6 & ((1 << 42) - 1);
        (self.class() < BLOCK_CLASSES && offset * 64 < GlobalAddr::MAX_OFFSET).then_some(self)
    }
}

dmtree_fabric::debug_line!(BlockPtr, it => "block {} x{}", it.addr(), it.capacity());

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_grow_by_a_quarter_of_a_doubling() {
        let all: Vec<u32> = (0..BLOCK_CLASSES).map(block_class_bytes).collect();
        assert_eq!(all[..9], [64, 128, 192, 256, 320, 384, 448, 512, 640]);
        assert_eq!(all.last(), Some(&BLOCK_MAX_BYTES));
        assert_eq!(all[54], 7 * (BLOCK_MAX_BYTES / 8));
        assert!(all.windows(2).all(|w| w[0] < w[1]) && all.iter().all(|b| b % 64 == 0));
        const { assert!(BLOCK_MAX_BYTES >= (1 << 20) + (1 << 10) + 64 && BLOCK_CLASSES <= 64) }
    }

    #[test]
    fn segments_tile_the_partition() {
        for j in 0..SEGMENTS {
            assert_eq!(segment_of(segment_start(j)), j);
            assert_eq!(segment_of(segment_start(j + 1) - 1), j);
            assert_eq!((segment_start(j + 1) - segment_start(j)) * LINE, segment_bytes(j));
        }
    }

    #[test]
    fn a_cell_lies_in_one_segment() {
        for segment in 0..SEGMENTS {
            let end = segment_start(segment + 1);
            for lines in [1, 3, 16] {
                let last = TableId::new(7, lines, end - u64::from(lines));
                let offset = segment_bytes(segment) - u64::from(lines) * LINE;
                assert_eq!(last.place(), Some((7, segment, offset)));
                let out = TableId::from_bits(last.bits() + 1);
                let is_next = lines == 1 && segment + 1 < SEGMENTS;
                assert_eq!(out.place(), is_next.then_some((7, segment + 1, 0)), "{out:?}");
            }
        }
        let beside = |partition: u64| TableId::from_bits(partition << 36).place();
        assert_eq!([0, u64::from(PARTITIONS) + 1].map(beside), [None, None]);
        assert!(beside(u64::from(PARTITIONS)).is_some());
    }

    proptest! {
        #[test]
        fn a_class_fits_and_wastes_at_most_a_quarter(bytes in 1u32..=BLOCK_MAX_BYTES) {
            let class = block_class_of(bytes).expect("within the limit");
            let cap = block_class_bytes(class);
            prop_assert!(cap >= bytes);
            prop_assert!(class == 0 || block_class_bytes(class - 1) < bytes, "the smallest that fits");
            prop_assert!((cap - bytes.next_multiple_of(64)) * 4 <= cap);
        }

        #[test]
        fn garbage_bits_have_defined_meanings(bits: u64) {
            let b = BlockPtr::from_bits(bits);
            prop_assert!(b.capacity() >= 64 && b.capacity() <= BLOCK_MAX_BYTES);
            let _ = (b.addr(), format!("{b:?}"), b.plausible());
            let t = TableId::from_bits(bits);
            prop_assert!(t.lines() > 0);
            if let Some((p, segment, offset)) = t.place() {
                prop_assert!(p < PARTITIONS && segment < SEGMENTS);
                prop_assert!(offset + u64::from(t.lines()) * LINE <= segment_bytes(segment));
                prop_assert_eq!(TableId::new(p, t.lines(), t.first_line()), t);
            }
            let _ = format!("{t:?}");
        }

        #[test]
        fn blocks_pack_and_unpack(node in 0u16..100, line in 1u64..1 << 38, class in 0..BLOCK_CLASSES) {
            let b = BlockPtr::new(NodeId::memory(node), line * 64, class);
            prop_assert_eq!(b.addr(), GlobalAddr::new(NodeId::memory(node), line * 64));
            prop_assert_eq!((b.class(), b.plausible()), (class, Some(b)));
        }
    }
}
