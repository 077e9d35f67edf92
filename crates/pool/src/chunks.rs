//! The chunk service of a memory node: hands out runs of chunks, and records their owner before it
//! answers.
//!
//! The calls, all served one at a time:
//!
//! - **alloc** (use, index, kind, size, count): answers first with deposits of the same kind
//!   (`deposits.rs`), else with a run of free chunks. Zeroes chunks that were used before (not for
//!   blocks), writes the records *from the back*, the head last, and then answers. 0 means full.
//! - **free** (index, offset, count): takes a whole run back. Erases the records *from the front*,
//!   the head first, and then marks the chunks free.
//! - **purge** (index): drops the deposits of a dropped index, and takes its runs back.
//! - **deposit** (pieces), **take** (kind): stores and hands out free memory that its holder does
//!   not need. Space that makes a whole chunk goes the way of *free*.
//! - **retired**, **stamp**, **release**: counts, stamps and frees runs of the node's own services
//!   (`holder.rs`).
//! - **list** (number, from): what is deposited, page by page, for garbage collection.
//!
//! Invariants. *Owner first*: a chunk's record is on the memory node before a client learns of the
//! chunk. The head of a run, which has its length, is the last record written and the first one
//! erased: a run without a head has no owner. *Zero*: an arena's or a table's memory is zero before
//! its first grant. Single chunks come from the front and longer runs from the back, so that they
//! get into each other's way late.
//!
//! The index of a run is in the bookkeeping, too. What comes back is of that index, or is refused:
//! a call with a lost answer may arrive when the chunks have another index.
//!
//! Crashes. The bookkeeping is as volatile as the memory. A client that dies between the grant and
//! the first use leaves a recorded run that garbage collection finds; so does a grant with a
//! lost answer. A *free* that ends in an error half way keeps the run taken in the bookkeeping and
//! headless in the records: it is lost, never granted twice.

use std::sync::Mutex;

use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, MAX_BUF_BYTES, Member, NodeId, Result, Role, Service, ServiceId,
};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::arena::ArenaKey;
use crate::deposits::Deposits;
use crate::gc_log::{self, Span};
use crate::holder::{RetiredRuns, Stamp};
use crate::layout::{ChunkRecord, ChunkUse, NodeLayout};
use crate::mutants::{Mutant, Mutants};
use crate::pieces::{self, Piece, Wanted};
#[cfg(feature = "tcp")]
use crate::reports::MemoryReport;
use crate::wire::{self, Half, Word, locked};

/// Runs of chunks, on every memory node.
pub(crate) const CHUNK_SERVICE: ServiceId = ServiceId(0x10);

/// A call of the service.
#[derive(Serialize, Deserialize)]
enum Call {
    /// A run of chunks, or deposited pieces in its place.
    Alloc {
        run: RunRequest,
        #[serde(with = "fixint::le")]
        incarnation: u32,
    },
    /// Returns a run.
    Free(ReturnedRun),
    /// Deposits the pieces that follow.
    Deposit,
    /// Takes deposited pieces.
    Take(Wanted),
    /// A page of the deposits, for the garbage collection of this number.
    List {
        #[serde(with = "fixint::le")]
        number: u64,
        #[serde(with = "fixint::le")]
        first: u32,
    },
    /// Counts the runs that the node's own services have retired.
    Retired,
    /// Stamps what was counted.
    Stamp(Stamp),
    /// No operation holds the first so many of them.
    Release(Word),
    /// No operation of any index of this number runs, and none begins.
    Purge(Half),
}

/// A run that a compute node returns.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ReturnedRun {
    #[serde(with = "fixint::le")]
    pub(crate) index: u32,
    #[serde(with = "fixint::le")]
    pub(crate) count: u32,
    #[serde(with = "fixint::le")]
    pub(crate) offset: u64,
}

/// Answers of [`Call::Alloc`] and [`Call::Take`].
#[derive(Serialize, Deserialize)]
enum Answer {
    /// The offset of a run; 0, which is no chunk's offset: full.
    Granted(Word),
    /// The pieces that follow.
    Returned,
}

/// A request for a run of chunks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    pub(crate) used_for: ChunkUse,
    pub(crate) kind: u8,
    #[serde(with = "fixint::le")]
    pub(crate) index: u32,
    #[serde(with = "fixint::le")]
    pub(crate) object_bytes: u32,
    #[serde(with = "fixint::le")]
    pub(crate) count: u32,
    /// Bytes of the block that is wanted; 0 when it is none.
    #[serde(with = "fixint::le")]
    pub(crate) least: u64,
}

impl RunRequest {
    /// The free memory that would do as well. Runs of several chunks are never deposited, and
    /// memory of a bump allocator is never free.
    pub(crate) fn instead(&self) -> Option<Wanted> {
        let RunRequest { kind, index, object_bytes, .. } = *self;
        match self.used_for {
            ChunkUse::Arena => Some(Wanted::Objects(ArenaKey { index, kind, object_bytes })),
            ChunkUse::Blocks if self.count == 1 => Some(Wanted::Space(index, self.least)),
            ChunkUse::Blocks | ChunkUse::Tables => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Free,
    /// The first of a run.
    Head(Run),
    Behind,
}

/// A run that was handed out.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    chunks: u32,
    /// The index, if compute nodes have it for one.
    index: Option<u32>,
}

/// Volatile bookkeeping; the records say the same, and more.
struct ChunkMap {
    chunks: Vec<ChunkState>,
    /// In use before: not zero any more.
    dirty: Vec<bool>,
}

/// The service.
pub(crate) struct ChunkService {
    layout: NodeLayout,
    chunk_map: Mutex<ChunkMap>,
    deposits: Mutex<Deposits>,
    /// Of the node's own services.
    pub(crate) retired: RetiredRuns,
    /// The listing for the garbage collection of this number, read page by page.
    listing: Mutex<(u64, Vec<Span>)>,
    mutants: Mutants,
}

impl ChunkService {
    pub(crate) fn new(layout: NodeLayout) -> Self {
        let n = layout.chunks as usize;
        let chunk_map = ChunkMap { chunks: vec![ChunkState::Free; n], dirty: vec![false; n] };
        let (chunk_map, deposits, listing) =
            (Mutex::new(chunk_map), Mutex::default(), Mutex::default());
        let (retired, mutants) = (RetiredRuns::default(), Mutants::default());
        Self { layout, chunk_map, deposits, retired, listing, mutants }
    }

    /// How much of the memory is handed out.
    #[cfg(feature = "tcp")]
    pub(crate) fn report(&self) -> MemoryReport {
        let chunk_map = locked(&self.chunk_map);
        let free = chunk_map.chunks.iter().filter(|c| **c == ChunkState::Free).count() as u64;
        let all = chunk_map.chunks.len() as u64;
        let bytes = self.layout.chunk_bytes;
        MemoryReport { total_bytes: all * bytes, used_bytes: (all - free) * bytes }
    }

    /// Finds and marks a free run: single chunks from the front, longer runs from the back.
    fn find(&self, run: Run) -> Option<u32> {
        let mut chunk_map = locked(&self.chunk_map);
        let free = |run: &[ChunkState]| run.iter().all(|c| *c == ChunkState::Free);
        let count = run.chunks as usize;
        if count == 0 || count > chunk_map.chunks.len() {
            return None;
        }
        let at = if count == 1 {
            chunk_map.chunks.iter().position(|c| *c == ChunkState::Free)?
        } else {
            (0..=chunk_map.chunks.len() - count)
                .rev()
                .find(|i| free(&chunk_map.chunks[*i..*i + count]))?
        };
        chunk_map.chunks[at..at + count].fill(ChunkState::Behind);
        chunk_map.chunks[at] = ChunkState::Head(run);
        Some(at as u32)
    }

    fn set_free(&self, first: u32, count: u32) {
        let mut chunk_map = locked(&self.chunk_map);
        let range = first as usize..(first + count) as usize;
        chunk_map.chunks[range].fill(ChunkState::Free);
    }

    /// Takes a run and records its owner. `None`: no such run is free.
    pub(crate) async fn take(
        &self,
        ep: &Endpoint,
        owner: Member,
        r: RunRequest,
    ) -> Result<Option<u64>> {
        let is_for_index = owner.node.role() == Role::Compute && r.used_for != ChunkUse::Tables;
        let run = Run { chunks: r.count, index: is_for_index.then_some(r.index) };
        let Some(first) = self.find(run) else { return Ok(None) };
        if let Err(e) = self.prepare(ep, first, owner, r).await {
            self.set_free(first, r.count);
            return Err(e);
        }
        Ok(Some(self.layout.chunk(first)))
    }

    async fn prepare(&self, ep: &Endpoint, first: u32, owner: Member, r: RunRequest) -> Result<()> {
        let Member { node: owner, incarnation } = owner;
        let RunRequest { used_for, kind, index, object_bytes, count, .. } = r;
        for i in first..first + count {
            let dirty = std::mem::replace(&mut locked(&self.chunk_map).dirty[i as usize], true);
            // Objects and tables rely on zeroes; blocks do not.
            if dirty && used_for != ChunkUse::Blocks {
                self.zero(ep, i).await?;
            }
        }
        // From the back: the record with the length is written after all others of its run.
        for i in (first..first + count).rev() {
            let run = if i == first { count } else { 0 };
            let record =
                ChunkRecord { used_for, kind, index, object_bytes, owner, incarnation, run };
            self.write_record(ep, i, Some(&record)).await?;
        }
        Ok(())
    }

    async fn write_record(
        &self,
        ep: &Endpoint,
        chunk: u32,
        record: Option<&ChunkRecord>,
    ) -> Result<()> {
        ep.write_bytes(self.layout.record(chunk), &ChunkRecord::encode(record)).await
    }

    async fn zero(&self, ep: &Endpoint, chunk: u32) -> Result<()> {
        let piece = self.layout.chunk_bytes.min(u64::from(MAX_BUF_BYTES));
        let mut buf = ep.buf(piece as u32).await?;
        buf.fill(0);
        let begin = self.layout.chunk(chunk);
        for at in (begin..begin + self.layout.chunk_bytes).step_by(piece as usize) {
            buf = ep.write(GlobalAddr::new(self.layout.node, at), buf).await?;
        }
        Ok(())
    }

    async fn give_back(&self, ep: &Endpoint, offset: u64, run: Run) -> Result<()> {
        let (layout, count) = (&self.layout, run.chunks);
        let known = layout
            .chunk_at(offset)
            .filter(|i| locked(&self.chunk_map).chunks[*i as usize] == ChunkState::Head(run));
        let Some(first) = known else {
            return Err(Error::invalid(format!(
                "{} has no run of {count} chunks at {offset:#x} to take back",
                layout.node
            )));
        };
        // From the front: a crash in between leaves records without a head, which name no owner.
        for i in first..first + count {
            self.write_record(ep, i, None).await?;
        }
        self.set_free(first, count);
        Ok(())
    }

    /// Takes back everything that compute nodes have for an index; how many chunks.
    async fn purge(&self, ep: &Endpoint, index: u32) -> Result<u64> {
        locked(&self.deposits).forget_index(index);
        let heads = |(i, state): (usize, &ChunkState)| match state {
            ChunkState::Head(run) if run.index == Some(index) => Some((i as u32, *run)),
            _ => None,
        };
        let runs: Vec<_> =
            locked(&self.chunk_map).chunks.iter().enumerate().filter_map(heads).collect();
        let mut chunks = 0;
        for (first, run) in runs {
            ep.renew_deadline();
            self.give_back(ep, self.layout.chunk(first), run).await?;
            chunks += u64::from(run.chunks);
        }
        Ok(chunks)
    }

    fn take_deposits(&self, wanted: Wanted) -> Vec<Piece> {
        locked(&self.deposits).take(wanted, &self.layout)
    }

    /// Whether the chunk of a piece is that of its index.
    fn is_of_its_index(&self, piece: &Piece) -> bool {
        let (index, at) = match *piece {
            Piece::Object(key, g) => (key.index, g.addr),
            Piece::Fresh(key, at, _) => (key.index, at),
            Piece::Space(index, at, _) => (index, at),
            Piece::Cell(..) => return true,
        };
        let run = ChunkState::Head(Run { chunks: 1, index: Some(index) });
        let chunk = self.layout.chunk_of(at.offset());
        chunk.is_some_and(|i| locked(&self.chunk_map).chunks[i as usize] == run)
    }

    /// Stores pieces. Returns how many are implausible: those are refused and left alone.
    fn deposit(&self, pieces: Vec<(Piece, bool)>) -> u32 {
        let mut deposits = locked(&self.deposits);
        let mut refused = 0;
        for (piece, retired) in pieces {
            // Memory that operations may still read cannot be deposited.
            if retired || !self.is_of_its_index(&piece) || !deposits.put(piece, &self.layout) {
                refused += 1;
            }
        }
        refused
    }
}

impl Service for ChunkService {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let mut rest = request;
        let call = wire::take_call("the chunk service", &mut rest)?;
        if matches!(call, Call::Free(_) | Call::Deposit)
            && self.mutants.has(Mutant::NothingComesBack)
        {
            return Ok(Vec::new());
        }
        if !matches!(call, Call::Deposit) {
            wire::ends(rest)?;
        }
        match call {
            Call::Alloc { run, incarnation } => {
                let returned = run.instead().map_or_else(Vec::new, |w| self.take_deposits(w));
                if !returned.is_empty() {
                    return Ok(message(&Answer::Returned, returned));
                }
                let offset = self.take(ep, Member { node: from, incarnation }, run).await?;
                Ok(wire::encode(&Answer::Granted(Word(offset.unwrap_or(0)))))
            }
            Call::Free(ReturnedRun { index, count, offset }) => {
                let run = Run { chunks: count, index: Some(index) };
                self.give_back(ep, offset, run).await?;
                Ok(Vec::new())
            }
            Call::Deposit => {
                let refused = self.deposit(pieces::decode(rest)?);
                let whole = locked(&self.deposits).take_whole(self.layout.chunk_bytes);
                for (index, offset) in whole {
                    let run = Run { chunks: 1, index: Some(index) };
                    self.give_back(ep, offset, run).await?;
                }
                Ok(wire::encode(&Half(refused)))
            }
            Call::Take(wanted) => Ok(message(&Answer::Returned, self.take_deposits(wanted))),
            Call::List { number, first } => {
                let mut listing = locked(&self.listing);
                if first == 0 {
                    *listing = (number, locked(&self.deposits).spans(&self.layout));
                }
                if listing.0 != number {
                    return Err(Error::busy("another garbage collection has begun meanwhile"));
                }
                let page = gc_log::page_of(&listing.1, first as usize);
                if first as usize + gc_log::PAGE >= listing.1.len() {
                    listing.1 = Vec::new();
                }
                Ok(page)
            }
            Call::Retired => Ok(wire::encode(&self.retired.counted())),
            Call::Stamp(stamp) => Ok(wire::encode(&self.retired.stamp(stamp))),
            Call::Release(Word(counted)) => {
                let mut chunks = 0;
                for (offset, count) in self.retired.release(counted)? {
                    self.give_back(ep, offset, Run { chunks: count, index: None }).await?;
                    chunks += u64::from(count);
                }
                Ok(wire::encode(&Word(chunks)))
            }
            Call::Purge(Half(index)) => Ok(wire::encode(&Word(self.purge(ep, index).await?))),
        }
    }
}

fn message(head: &impl Serialize, pieces: Vec<Piece>) -> Vec<u8> {
    pieces::encode(head, pieces.into_iter().map(|p| (p, false)))
}

/// Calls the service of a memory node. The caller takes the head off the front of the answer.
async fn ask(ep: &Endpoint, of: NodeId, call: &Call) -> Result<Vec<u8>> {
    let mut reply = Vec::new();
    ep.rpc(of, CHUNK_SERVICE, &wire::encode(call), &mut reply).await?;
    Ok(reply)
}

/// The answer to a request for a run.
#[derive(Debug)]
pub(crate) enum Granted {
    Nothing,
    /// A run of chunks, by its offset.
    Run(u64),
    /// Free memory that an earlier incarnation has deposited.
    Pieces(Vec<Piece>),
}

/// Asks a memory node for a run, or for deposits that do as well.
pub(crate) async fn ask_run(
    ep: &Endpoint,
    layout: &NodeLayout,
    incarnation: u32,
    r: RunRequest,
) -> Result<Granted> {
    let reply = ask(ep, layout.node, &Call::Alloc { run: r, incarnation }).await?;
    let mut rest = &reply[..];
    let Answer::Granted(Word(offset)) = wire::take(&mut rest)? else {
        return Ok(Granted::Pieces(free_only(rest)?));
    };
    wire::ends(rest)?;
    if offset == 0 {
        return Ok(Granted::Nothing);
    }
    let first = layout.chunk_at(offset);
    if first.is_none_or(|i| u64::from(i) + u64::from(r.count) > u64::from(layout.chunks)) {
        return Err(Error::corrupt(format!(
            "{} granted a run at {offset:#x}, where no chunk begins",
            layout.node
        )));
    }
    Ok(Granted::Run(offset))
}

fn free_only(bytes: &[u8]) -> Result<Vec<Piece>> {
    Ok(pieces::decode(bytes)?.into_iter().filter(|(_, retired)| !retired).map(|(p, _)| p).collect())
}

/// Deposits free memory at a memory node.
pub(crate) async fn ask_deposit(ep: &Endpoint, to: NodeId, pieces: &[Piece]) -> Result<()> {
    let request = message(&Call::Deposit, pieces.to_vec());
    ep.rpc(to, CHUNK_SERVICE, &request, &mut Vec::new()).await
}

/// Asks a memory node for deposited memory.
pub(crate) async fn ask_deposited(ep: &Endpoint, of: NodeId, w: Wanted) -> Result<Vec<Piece>> {
    let reply = ask(ep, of, &Call::Take(w)).await?;
    let mut rest = &reply[..];
    match wire::take(&mut rest)? {
        Answer::Returned => free_only(rest),
        Answer::Granted(_) => {
            Err(Error::corrupt(format!("{of} grants a run that no call requested")))
        }
    }
}

/// The deposits of a memory node, for garbage collection.
pub(crate) async fn ask_list(ep: &Endpoint, of: NodeId, number: u64) -> Result<Vec<Span>> {
    gc_log::all_pages(of, async |first: u32| ask(ep, of, &Call::List { number, first }).await)
        .await?
        .ok_or_else(|| Error::corrupt(format!("{of} has no report of its own deposits")))
}

/// Returns a run.
pub(crate) async fn return_run(ep: &Endpoint, node: NodeId, run: ReturnedRun) -> Result<()> {
    ask(ep, node, &Call::Free(run)).await.map(|_| ())
}

/// Lets a memory node take back what compute nodes had for an index; how many chunks that are.
pub(crate) async fn ask_purge(ep: &Endpoint, node: NodeId, index: u32) -> Result<u64> {
    let Word(chunks) = wire::decode(&ask(ep, node, &Call::Purge(Half(index))).await?)?;
    Ok(chunks)
}

/// What the services of a memory node have retired; `None` when none of it waits.
pub(crate) async fn ask_retired(ep: &Endpoint, node: NodeId) -> Result<Option<Stamp>> {
    wire::decode(&ask(ep, node, &Call::Retired).await?)
}

/// Stamps it; the stamp that counts.
pub(crate) async fn ask_stamp(ep: &Endpoint, node: NodeId, stamp: Stamp) -> Result<Stamp> {
    wire::decode(&ask(ep, node, &Call::Stamp(stamp)).await?)
}

/// Lets a memory node free the first so many of them; how many chunks that are.
pub(crate) async fn ask_release(ep: &Endpoint, node: NodeId, counted: u64) -> Result<u64> {
    let Word(chunks) = wire::decode(&ask(ep, node, &Call::Release(Word(counted))).await?)?;
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a call on a simulated fabric follows from its length.
    #[test]
    fn calls_have_their_lengths() {
        let key = ArenaKey { index: 1, kind: 2, object_bytes: 64 };
        let (used_for, kind, index, object_bytes) = (ChunkUse::Tables, 2, 1 << 20, u32::MAX);
        let run = RunRequest { used_for, kind, index, object_bytes, count: 7, least: 1 << 40 };
        let lengths = [
            Call::Alloc { run, incarnation: 300 },
            Call::Free(ReturnedRun { index: 1, count: 1, offset: 1 << 30 }),
            Call::Purge(Half(1 << 20)),
            Call::Deposit,
            Call::Take(Wanted::Objects(key)),
            Call::List { number: 1, first: 3000 },
        ]
        .map(|call| wire::encode(&call).len());
        assert_eq!(lengths, [27, 17, 5, 1, 19, 13]);
        assert_eq!(wire::encode(&Answer::Granted(Word(0))).len(), 9);
    }
}
