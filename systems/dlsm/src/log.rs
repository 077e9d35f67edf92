//! The log of a shard: records of writes, in blocks that the manifest names.
//!
//! A record is in the buffer of its block from the moment that its number is drawn. One client at a
//! time WRITEs all that the buffer has: a *group*; the next one forms meanwhile. A group that has
//! failed, or that a dropped client has left, is written again, the same bytes at the same place. A
//! record is complete when its group is on the memory node.

use std::collections::VecDeque;

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::BatchWrite;
use dmtree_pool::BlockPtr;

use crate::format::{take, take_u64};
use crate::frame::{FORM, Life, Series, contents, frame_bytes, put_frame};
use crate::key::Seq;
use crate::memtable::Number;
use crate::wire;

/// What names a write that another node has asked for: its client, and the number there.
pub(crate) type Origin = (u64, u64);

/// Bytes of a record before its pairs: form, sequence number, origin (zeros: none).
const HEAD: usize = 1 + 3 * 8;

/// A block of the log.
struct LogBlock {
    id: u64,
    place: BlockPtr,
    /// The manifest names it from this edit on.
    named: u64,
    written: u32,
    /// Frames that are not written yet, and the numbers of their writes.
    pending: Vec<u8>,
    numbers: Vec<Number>,
    last: Seq,
    /// A WRITE of a dropped client may still be in flight: it never goes back.
    tainted: bool,
}

/// The blocks of a log, oldest first.
#[derive(Default)]
pub(crate) struct Log {
    series: Series,
    blocks: VecDeque<LogBlock>,
    /// The one that takes records.
    current: usize,
    /// A group is under way.
    writing: bool,
    next_id: u64,
}

/// A group that its holder is to write.
pub(crate) struct Group {
    id: u64,
    pub(crate) at: GlobalAddr,
    pub(crate) bytes: Vec<u8>,
    numbers: usize,
}

/// A record as a take-over reads it.
pub(crate) struct Record {
    pub(crate) seq: Seq,
    pub(crate) origin: Option<Origin>,
    pub(crate) writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// The pairs of a record as bytes.
///
/// # Errors
/// `Corrupt`: they cannot be encoded.
pub(crate) fn pairs(batch: &[BatchWrite<'_>]) -> Result<Vec<u8>> {
    wire::encode(&batch)
}

/// Bytes of the frame of a record.
pub(crate) fn record_bytes(pairs: &[u8]) -> usize {
    frame_bytes(HEAD + pairs.len())
}

/// Decodes the records of a block.
///
/// # Errors
/// `Corrupt`; `Incompatible`.
pub(crate) fn records(bytes: &[u8], life: Life, torn: bool) -> Result<Vec<Record>> {
    let decode = |mut rest: &[u8]| {
        let [seq, client, number] =
            [take_u64(&mut rest)?, take_u64(&mut rest)?, take_u64(&mut rest)?];
        let n = rest.len();
        let writes = wire::decode(take(&mut rest, n)?)?;
        Ok(Record { seq, origin: (client != 0).then_some((client, number)), writes })
    };
    contents(bytes, life, torn)?.into_iter().map(decode).collect()
}

impl Log {
    /// With the blocks of a former owner, which take no more records.
    pub(crate) fn taken_over(
        series: Series,
        blocks: &[(u64, BlockPtr, Seq)],
        next_id: u64,
    ) -> Self {
        let block = |(id, place, last): &(u64, BlockPtr, Seq)| LogBlock {
            id: *id,
            place: *place,
            named: 0,
            written: place.capacity(),
            pending: Vec::new(),
            numbers: Vec::new(),
            last: *last,
            tainted: false,
        };
        let blocks: VecDeque<_> = blocks.iter().map(block).collect();
        Self { series, current: blocks.len(), blocks, writing: false, next_id }
    }

    /// Adds a block, which the manifest names from an edit on. Returns its number.
    pub(crate) fn add(&mut self, place: BlockPtr, named: u64) -> u64 {
        self.next_id += 1;
        let (id, pending, numbers) = (self.next_id, Vec::new(), Vec::new());
        let (written, last, tainted) = (0, 0, false);
        self.blocks.push_back(LogBlock {
            id,
            place,
            named,
            written,
            pending,
            numbers,
            last,
            tainted,
        });
        id
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The blocks as the manifest names them.
    pub(crate) fn named(&self) -> Vec<(u64, u64)> {
        self.blocks.iter().map(|block| (block.id, block.place.bits())).collect()
    }

    /// Whether all records are on the memory node.
    pub(crate) fn is_written(&self) -> bool {
        self.blocks.iter().all(|block| block.pending.is_empty())
    }

    /// Bytes of records that are not.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.pending.len() as u64).sum()
    }

    /// Whether it has taken a record.
    pub(crate) fn is_used(&self) -> bool {
        self.current < self.blocks.len()
    }

    /// Whether there is a block behind the one that takes records.
    pub(crate) fn has_spare(&self) -> bool {
        self.current + 1 < self.blocks.len()
    }

    /// The edit that must be in the manifest before there is room for a record; `None` when no
    /// block has room.
    pub(crate) fn room(&mut self, bytes: usize) -> Option<u64> {
        while let Some(block) = self.blocks.get(self.current) {
            let filled = block.written as usize + block.pending.len();
            if filled + bytes <= block.place.capacity() as usize {
                return Some(block.named);
            }
            self.current += 1;
        }
        None
    }

    /// Appends a record to the block with room for it.
    pub(crate) fn append(&mut self, number: Number, origin: Option<Origin>, pairs: &[u8]) {
        let Some(block) = self.blocks.get_mut(self.current) else { return };
        let mut record = Vec::with_capacity(HEAD + pairs.len());
        record.push(FORM);
        let (client, op) = origin.unwrap_or_default();
        [number.seq(), client, op].iter().for_each(|n| record.extend_from_slice(&n.to_le_bytes()));
        record.extend_from_slice(pairs);
        put_frame(&mut block.pending, (self.series, block.id), &record);
        block.last = number.seq();
        block.numbers.push(number);
    }

    /// Begins a group, if there is anything to write and none is under way.
    pub(crate) fn begin(&mut self) -> Option<Group> {
        let block = self.blocks.iter().find(|block| !block.pending.is_empty())?;
        if self.writing {
            return None;
        }
        self.writing = true;
        let at = block.place.addr().plus(u64::from(block.written));
        let (bytes, numbers) = (block.pending.clone(), block.numbers.len());
        Some(Group { id: block.id, at, bytes, numbers })
    }

    /// A group is on the memory node. Its numbers are complete once they are dropped.
    pub(crate) fn written(&mut self, group: &Group) -> Vec<Number> {
        self.writing = false;
        let Some(block) = self.blocks.iter_mut().find(|block| block.id == group.id) else {
            return Vec::new();
        };
        block.written += group.bytes.len() as u32;
        block.pending.drain(..group.bytes.len());
        block.numbers.drain(..group.numbers).collect()
    }

    /// A group may be on the memory node, or get there later.
    pub(crate) fn in_doubt(&mut self, group: &Group) {
        self.writing = false;
        let block = self.blocks.iter_mut().find(|block| block.id == group.id);
        block.into_iter().for_each(|block| block.tainted = true);
    }

    /// No block takes records any more.
    pub(crate) fn end(&mut self) {
        self.current = self.blocks.len();
    }

    /// Forgets the blocks that have records up to a number alone: tables have all of them. Returns
    /// the number of each, and the block unless it never goes back.
    pub(crate) fn release(&mut self, flushed: Seq) -> Vec<(u64, Option<BlockPtr>)> {
        let mut gone = Vec::new();
        while self.current > 0 {
            let Some(block) = self.blocks.front() else { break };
            if !block.pending.is_empty() || block.last > flushed {
                break;
            }
            gone.push((block.id, (!block.tainted).then_some(block.place)));
            self.blocks.pop_front();
            self.current -= 1;
        }
        gone
    }
}

/// Bytes that no record fits into: what a batch may have at most.
pub(crate) fn check_record(pairs: &[u8]) -> Result<()> {
    let (bytes, most) = (record_bytes(pairs), dmtree_pool::BLOCK_MAX_BYTES as usize);
    match bytes > most {
        true => Err(Error::invalid(format!(
            "a record of {bytes} bytes is over a block of the log, which has {most}: divide it"
        ))),
        false => Ok(()),
    }
}
