//! Byte maps: the head of a memory node, chunk owner records, the partition directory. All little
//! endian; `DESIGN.md` has the tables.

use dmtree_fabric::{Error, GlobalAddr, Member, NodeId, Result};
use serde::{Deserialize, Serialize};

use crate::ids::{LINE, PARTITIONS, SEGMENTS, segment_bytes, segment_start};
use crate::wire::{self, Half, Quarter, Word, sealed};

const MAGIC: u64 = u64::from_le_bytes(*b"dmtpool\x01");
const VERSION: u32 = 1;
/// The superblock's line.
pub(crate) const SUPERBLOCK: u64 = 64;
/// Bytes of an encoded superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 64;
/// Memory node 0: the global epoch.
pub(crate) const EPOCH_WORD: u64 = 128;
/// Memory node 0: how many index ids were ever given.
pub(crate) const INDEX_IDS_WORD: u64 = 192;
/// Memory node 0: 1 + the index that has the on-chip memory of all memory nodes.
pub(crate) const ON_CHIP_WORD: u64 = 256;
/// Memory node 0: catalog slots; the other nodes' chunk records begin here.
pub(crate) const CATALOG: u64 = 4096;
/// Bytes of a catalog slot.
pub(crate) const SLOT_BYTES: u64 = 2304;
/// How many slots.
pub(crate) const SLOTS: u64 = 64;
/// Memory node 0: one record per partition.
pub(crate) const DIRECTORY: u64 = CATALOG + SLOTS * SLOT_BYTES;
/// Bytes of a directory record.
pub(crate) const DIRECTORY_BYTES: u64 = 256;
const FIRST_RECORDS: u64 = DIRECTORY + PARTITIONS as u64 * DIRECTORY_BYTES;
/// Bytes of a chunk record.
pub(crate) const RECORD_BYTES: u64 = 32;
const CHUNK_ALIGN: u64 = 4096;

/// Where the node with the catalog keeps an offset.
pub(crate) fn first_node(offset: u64) -> GlobalAddr {
    GlobalAddr::new(NodeId::memory(0), offset)
}

/// A compute node's region: words in which waiters for its locks announce themselves.
pub(crate) const WAIT_WORDS: u64 = 64;
/// Words of a group: the waiters of different nodes for one lock.
pub(crate) const WAIT_GROUP_WORDS: u64 = 4;
/// How many groups.
pub(crate) const WAIT_GROUPS: u64 = 28;
const _: () = assert!(WAIT_WORDS + WAIT_GROUPS * WAIT_GROUP_WORDS * 8 <= compute_base());

/// First byte of a compute node's region that tables may use.
pub(crate) const fn compute_base() -> u64 {
    1024
}

/// Where things are on one memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeLayout {
    pub(crate) node: NodeId,
    pub(crate) region_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) chunks: u32,
    /// Offset of the chunk records.
    pub(crate) records: u64,
    /// Offset of chunk 0.
    pub(crate) chunk0: u64,
}

impl NodeLayout {
    fn records_at(node: NodeId) -> u64 {
        if node.index() == 0 { FIRST_RECORDS } else { CATALOG }
    }

    /// Bytes before chunk 0 when there are `chunks` chunks.
    pub(crate) fn head_bytes(node: NodeId, chunks: u64) -> u64 {
        (Self::records_at(node) + chunks * RECORD_BYTES).next_multiple_of(CHUNK_ALIGN)
    }

    /// As many chunks as fit.
    pub(crate) fn new(node: NodeId, region_bytes: u64, chunk_bytes: u64) -> Self {
        let mut chunks = region_bytes / chunk_bytes;
        while chunks > 0 && Self::head_bytes(node, chunks) + chunks * chunk_bytes > region_bytes {
            chunks -= 1;
        }
        let chunks = chunks.min(u64::from(u32::MAX));
        let chunk0 = Self::head_bytes(node, chunks);
        let records = Self::records_at(node);
        Self { node, region_bytes, chunk_bytes, chunks: chunks as u32, records, chunk0 }
    }

    /// Offset of chunk `i`.
    pub(crate) fn chunk(&self, i: u32) -> u64 {
        self.chunk0 + u64::from(i) * self.chunk_bytes
    }

    /// The chunk that holds an offset.
    pub(crate) fn chunk_of(&self, offset: u64) -> Option<u32> {
        let i = offset.checked_sub(self.chunk0)? / self.chunk_bytes;
        (i < u64::from(self.chunks)).then_some(i as u32)
    }

    /// The chunk that begins at an offset.
    pub(crate) fn chunk_at(&self, offset: u64) -> Option<u32> {
        self.chunk_of(offset).filter(|i| self.chunk(*i) == offset)
    }

    /// Where the record of chunk `i` is.
    pub(crate) fn record(&self, i: u32) -> GlobalAddr {
        GlobalAddr::new(self.node, self.records + u64::from(i) * RECORD_BYTES)
    }

    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES as usize] {
        let spare = Quarter(0);
        let node = (Half(VERSION), Quarter(self.node.bits()), spare);
        let bytes = [self.region_bytes, self.chunk_bytes, self.chunk0, self.records].map(Word);
        wire::record(&(Word(MAGIC), node, bytes, Half(self.chunks)))
    }

    /// Reads a superblock back; it must describe the layout that follows from the node's region.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<()> {
        if bytes == self.encode() {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "the superblock of {} does not describe this pool: was its region formatted with other options?",
            self.node
        )))
    }
}

/// The use of a chunk. The first byte of its record has the number; that of a free chunk is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChunkUse {
    /// Objects of one type-stable arena.
    Arena = 1,
    /// Blocks of any size.
    Blocks,
    /// Segments of table partitions that the memory node itself owns.
    Tables,
}

/// The owner of a run of chunks, as the memory node records it before it hands the run out: garbage
/// collection starts from these records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// What it is used for.
    pub used_for: ChunkUse,
    /// The arena's kind; 0 for other uses.
    pub kind: u8,
    /// The index; 0 for tables.
    pub index: u32,
    /// Bytes of an object; 0 for other uses.
    pub object_bytes: u32,
    /// The compute node that it was granted to.
    pub owner: NodeId,
    /// The incarnation of that node.
    pub incarnation: u32,
    /// How many chunks the run has; 0 for those behind its first.
    pub run: u32,
}

impl ChunkRecord {
    /// The bytes of a record. A free chunk is all zero, as fresh memory is.
    pub(crate) fn encode(this: Option<&Self>) -> [u8; RECORD_BYTES as usize] {
        let Some(r) = this else { return [0; RECORD_BYTES as usize] };
        let numbers = [r.index, r.object_bytes, r.incarnation, r.run].map(Half);
        wire::record(&(r.used_for as u8, r.kind, Quarter(r.owner.bits()), numbers))
    }

    /// `Ok(None)` for a free chunk.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let torn = || Error::corrupt("a chunk record fails its checksum");
        if bytes.len() != RECORD_BYTES as usize || !sealed(bytes) {
            return Err(torn());
        }
        let mut fields = bytes;
        let (used, kind, Quarter(owner), numbers): (u8, _, _, [Half; 4]) =
            wire::take(&mut fields).map_err(|_| torn())?;
        let used_for = match used {
            1 => ChunkUse::Arena,
            2 => ChunkUse::Blocks,
            3 => ChunkUse::Tables,
            _ => return Err(torn()),
        };
        let owner = NodeId::from_bits(owner);
        let [index, object_bytes, incarnation, run] = numbers.map(|Half(n)| n);
        Ok(Some(Self { used_for, kind, index, object_bytes, owner, incarnation, run }))
    }
}

/// One partition of the table space, as memory node 0 lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) number: u16,
    pub(crate) owner: Member,
    /// How often the owner has changed.
    pub(crate) moves: u32,
    /// Lines handed out: all cells lie below.
    pub(crate) lines: u64,
    /// Segments, packed addresses; 0 is not there yet.
    pub(crate) segments: [u64; SEGMENTS],
    /// The index of its cells: an index's number, [`NO_INDEX`] or [`ANY_INDEX`].
    pub(crate) index: u32,
}

/// A partition's record: number + 1 and owner are one word, so are moves and index.
type PartitionFields = ((Quarter, (Quarter, Half)), Word, [Word; SEGMENTS], (Half, Half));

/// A partition of which no cell is granted.
pub(crate) const NO_INDEX: u32 = 0;
/// Owner of cells that belong to no index of the catalog, and of partitions with cells of several
/// indexes.
pub const ANY_INDEX: u32 = u32::MAX;

impl Partition {
    pub(crate) fn new(number: u16, owner: Member) -> Self {
        Self { number, owner, moves: 0, lines: 0, segments: [0; SEGMENTS], index: NO_INDEX }
    }

    /// The same without cells, if its index is none of these.
    #[must_use]
    pub(crate) fn emptied_unless(self, there: &[u32]) -> Self {
        match self.index {
            NO_INDEX | ANY_INDEX => self,
            index if there.contains(&index) => self,
            _ => Self { lines: 0, index: NO_INDEX, ..self },
        }
    }

    /// Where its record is.
    pub(crate) fn record(number: u16) -> GlobalAddr {
        first_node(DIRECTORY + u64::from(number) * DIRECTORY_BYTES)
    }

    /// How many segments it has.
    pub(crate) fn grown(&self) -> usize {
        self.segments.iter().take_while(|s| **s != 0).count()
    }

    pub(crate) fn encode(&self) -> [u8; DIRECTORY_BYTES as usize] {
        let owner = (Quarter(self.owner.node.bits()), Half(self.owner.incarnation));
        let fields: PartitionFields = (
            (Quarter(self.number + 1), owner),
            Word(self.lines),
            self.segments.map(Word),
            (Half(self.moves), Half(self.index)),
        );
        wire::record(&fields)
    }

    /// The fields of a record of partition `number`, whatever number the record itself states.
    fn of(number: u16, fields: PartitionFields) -> Self {
        let ((_, (Quarter(node), Half(incarnation))), Word(lines), segments, last) = fields;
        let owner = Member { node: NodeId::from_bits(node), incarnation };
        let (Half(moves), Half(index)) = last;
        let segments = segments.map(|Word(s)| s);
        Self { number, owner, moves, lines, segments, index }
    }

    /// What a torn image still tells: its words are whole, each of the old image or of the new one.
    /// Number and owner are one word; either line count lies above every cell that was granted. The
    /// segments of a mix are worth nothing.
    pub(crate) fn remains(bytes: &[u8], number: u16) -> Self {
        let mut rest = bytes;
        let mut p = match wire::take(&mut rest) {
            Ok(fields) => Self::of(number, fields),
            Err(_) => Self::new(number, Member { node: NodeId::from_bits(0), incarnation: 0 }),
        };
        p.segments = [0; SEGMENTS];
        // Moves and index are one word: the index that a torn record names is the old one or the
        // new one, and cells are granted under the new one only. A partition with granted
        // lines and no index counts as any index's.
        if p.index == NO_INDEX && p.lines > 0 {
            p.index = ANY_INDEX;
        }
        p.lines = p.lines.min(segment_start(SEGMENTS));
        p
    }

    /// `Ok(None)` while it was never written; `Err(())` for a torn or foreign image.
    pub(crate) fn decode(bytes: &[u8], number: u16) -> Result<Option<Self>, ()> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if bytes.len() != DIRECTORY_BYTES as usize || !sealed(bytes) {
            return Err(());
        }
        let mut rest = bytes;
        let fields: PartitionFields = wire::take(&mut rest).map_err(|_| ())?;
        // 0 is no number: only an unwritten record has it.
        let Quarter(stored) = fields.0.0;
        if stored.checked_sub(1) != Some(number) {
            return Err(());
        }
        let p = Self::of(number, fields);
        if p.lines > segment_start(p.grown()) {
            return Err(());
        }
        Ok(Some(p))
    }

    /// Whether every segment lies inside the owner's region.
    pub(crate) fn inside(&self, region_bytes: Option<u64>) -> bool {
        let Some(region) = region_bytes else { return false };
        self.segments[..self.grown()].iter().enumerate().all(|(j, s)| {
            let at = GlobalAddr::from_bits(*s);
            at.node() == self.owner.node
                && at.space() == 0
                && at.offset().is_multiple_of(LINE)
                && at.offset() >= LINE
                && at.offset() + segment_bytes(j) <= region
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_fill_the_region_behind_the_head() {
        for node in [NodeId::memory(0), NodeId::memory(1)] {
            for region in [600 << 10, 2 << 20, 16 << 20, (256 << 20) + 64] {
                let l = NodeLayout::new(node, region, 64 << 10);
                assert!(l.chunks > 0 && l.chunk(l.chunks) <= region, "{l:?}");
                assert!(l.records + u64::from(l.chunks) * RECORD_BYTES <= l.chunk0);
                assert!(l.chunk(l.chunks) + (64 << 10) + 4096 + 32 > region, "no chunk is lost");
                l.check(&l.encode()).expect("describes itself");
                let other = NodeLayout::new(node, region + (64 << 10), 64 << 10);
                other.check(&l.encode()).expect_err("another geometry");
            }
        }
    }

    /// Found by the fuzz target `heads`: the number before 0 was taken for the last one.
    #[test]
    fn a_partition_record_without_a_number_is_refused() {
        let owner = Member { node: NodeId::compute(1), incarnation: 1 };
        let mut bytes = Partition::new(u16::MAX - 1, owner).encode();
        assert!(Partition::decode(&bytes, u16::MAX - 1).is_ok());
        bytes[0..2].fill(0);
        wire::seal(&mut bytes);
        assert!(Partition::decode(&bytes, u16::MAX).is_err());
    }

    proptest! {
        #[test]
        fn records_come_back_or_are_refused(kind: u8, index: u32, object_bytes: u32, owner: u16, run: u32, flip in 0usize..256) {
            let owner = NodeId::from_bits(owner);
            let r = ChunkRecord { used_for: ChunkUse::Blocks, kind, index, object_bytes, owner, incarnation: 3, run };
            let mut bytes = ChunkRecord::encode(Some(&r));
            prop_assert_eq!(ChunkRecord::decode(&bytes).ok().flatten(), Some(r));
            bytes[flip / 8] ^= 1 << (flip % 8);
            prop_assert!(ChunkRecord::decode(&bytes).is_err());
        }

        #[test]
        fn garbage_partitions_are_refused(bytes in proptest::collection::vec(1u8.., 256)) {
            prop_assert!(Partition::decode(&bytes, 5).is_err());
        }
    }
}
