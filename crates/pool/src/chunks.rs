//! The chunk service of a memory node: hands out runs of chunks, and records whose they are before it says so.

use std::sync::Mutex;

use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, MAX_BUF_BYTES, NodeId, Result, RpcFuture, RpcHandler, ServiceId,
};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::arena::ArenaKey;
use crate::deposits::Deposits;
use crate::gc_log::{self, Span};
use crate::layout::{ChunkRecord, ChunkUse, NodeLayout};
use crate::membership_agent::not_now;
use crate::mutants::{Mutant, Mutants};
use crate::pieces::{self, Piece, Wanted};
use crate::wire::{self, Half, Word, locked};

/// Runs of chunks, on every memory node.
pub(crate) const CHUNK_SERVICE: ServiceId = ServiceId(0x10);

/// What the service is asked for.
#[derive(Serialize, Deserialize)]
enum Call {
    /// A run, or what does as well.
    Alloc {
        run: RunRequest,
        #[serde(with = "fixint::le")]
        incarnation: u32,
    },
    /// A run comes back.
    Free {
        #[serde(with = "fixint::le")]
        count: u32,
        #[serde(with = "fixint::le")]
        offset: u64,
    },
    /// The pieces that follow are left here.
    Deposit,
    /// Pieces that were left here.
    Take(Wanted),
    /// All that was left here, for a census, from a place on.
    List {
        #[serde(with = "fixint::le")]
        number: u64,
        #[serde(with = "fixint::le")]
        first: u32,
    },
}

/// Answers of [`Call::Alloc`] and [`Call::Take`].
#[derive(Serialize, Deserialize)]
enum Answer {
    /// A run by its offset; 0, which is no chunk's: full.
    Granted(Word),
    /// The pieces that follow.
    Returned,
}

/// What a chunk is asked for.
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
    /// Which free memory would do as well. Runs of several chunks are never deposited, and what is cut from a bump allocator is never
    /// free.
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
    /// The first of a run of this many.
    Head(u32),
    Behind,
}

/// Volatile bookkeeping; the records say the same, and more.
struct Book {
    chunks: Vec<ChunkState>,
    /// Was in use before: not zero any more.
    dirty: Vec<bool>,
}

/// The service.
pub(crate) struct ChunkService {
    layout: NodeLayout,
    book: Mutex<Book>,
    deposits: Mutex<Deposits>,
    /// What the census of this number is being told, page by page.
    told: Mutex<(u64, Vec<Span>)>,
    mutants: Mutants,
}

impl ChunkService {
    pub(crate) fn new(layout: NodeLayout) -> Self {
        let n = layout.chunks as usize;
        let book = Book { chunks: vec![ChunkState::Free; n], dirty: vec![false; n] };
        let (book, deposits, told) = (Mutex::new(book), Mutex::default(), Mutex::default());
        Self { layout, book, deposits, told, mutants: Mutants::default() }
    }

    /// Single chunks come from the front and longer runs from the back, so that they get into each other's way late.
    fn find(&self, count: u32) -> Option<u32> {
        let mut book = locked(&self.book);
        let free = |run: &[ChunkState]| run.iter().all(|c| *c == ChunkState::Free);
        let count = count as usize;
        if count == 0 || count > book.chunks.len() {
            return None;
        }
        let at = if count == 1 {
            book.chunks.iter().position(|c| *c == ChunkState::Free)?
        } else {
            (0..=book.chunks.len() - count).rev().find(|i| free(&book.chunks[*i..*i + count]))?
        };
        book.chunks[at..at + count].fill(ChunkState::Behind);
        book.chunks[at] = ChunkState::Head(count as u32);
        Some(at as u32)
    }

    fn set_free(&self, first: u32, count: u32) {
        let mut book = locked(&self.book);
        let range = first as usize..(first + count) as usize;
        book.chunks[range].fill(ChunkState::Free);
    }

    /// Takes a run and records its owner. `None`: no such run is free.
    pub(crate) async fn take(
        &self,
        ep: &Endpoint,
        owner: NodeId,
        incarnation: u32,
        r: RunRequest,
    ) -> Result<Option<u64>> {
        let Some(first) = self.find(r.count) else { return Ok(None) };
        let taken = self.prepare(ep, first, owner, incarnation, r).await;
        if let Err(e) = taken {
            self.set_free(first, r.count);
            return Err(e);
        }
        Ok(Some(self.layout.chunk(first)))
    }

    async fn prepare(
        &self,
        ep: &Endpoint,
        first: u32,
        owner: NodeId,
        incarnation: u32,
        r: RunRequest,
    ) -> Result<()> {
        let RunRequest { used_for, kind, index, object_bytes, count, .. } = r;
        for i in first..first + count {
            let dirty = std::mem::replace(&mut locked(&self.book).dirty[i as usize], true);
            // Objects and tables rely on zeroes; blocks on nothing.
            if dirty && used_for != ChunkUse::Blocks {
                self.zero(ep, i).await?;
            }
        }
        // From the back: a record with a length is written when all behind it are.
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
        let bytes = ChunkRecord::encode(record);
        let mut buf = ep.buf(bytes.len() as u32).await?;
        buf.copy_from_slice(&bytes);
        ep.write(self.layout.record(chunk), buf).await?;
        Ok(())
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

    async fn give_back(&self, ep: &Endpoint, offset: u64, count: u32) -> Result<()> {
        let layout = &self.layout;
        let first = layout.chunk_of(offset).filter(|i| layout.chunk(*i) == offset);
        let known =
            first.filter(|i| locked(&self.book).chunks[*i as usize] == ChunkState::Head(count));
        let Some(first) = known else {
            return Err(Error::invalid(format!(
                "{} has no run of {count} chunks at {offset:#x} to take back",
                layout.node
            )));
        };
        // From the front: what is left after a crash in between has no head, and a sweep frees it.
        for i in first..first + count {
            self.write_record(ep, i, None).await?;
        }
        self.set_free(first, count);
        Ok(())
    }

    fn take_deposits(&self, wanted: Wanted) -> Vec<Piece> {
        locked(&self.deposits).take(wanted, &self.layout)
    }

    /// How many pieces cannot be what they say they are: those are left alone.
    fn deposit(&self, pieces: Vec<(Piece, bool)>) -> u32 {
        let mut deposits = locked(&self.deposits);
        let mut refused = 0;
        for (piece, retired) in pieces {
            // What operations may still read is nobody's yet.
            if retired || !deposits.put(piece, &self.layout) {
                refused += 1;
            }
        }
        refused
    }

    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let mut rest = request;
        let call = wire::take_call("the chunk service", &mut rest)?;
        if matches!(call, Call::Free { .. } | Call::Deposit)
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
                let offset = self.take(ep, from, incarnation, run).await?;
                Ok(wire::encode(&Answer::Granted(Word(offset.unwrap_or(0)))))
            }
            Call::Free { count, offset } => {
                self.give_back(ep, offset, count).await?;
                Ok(Vec::new())
            }
            Call::Deposit => {
                let refused = self.deposit(pieces::decode(rest)?);
                let whole = locked(&self.deposits).take_whole(self.layout.chunk_bytes);
                for offset in whole {
                    self.give_back(ep, offset, 1).await?;
                }
                Ok(wire::encode(&Half(refused)))
            }
            Call::Take(wanted) => Ok(message(&Answer::Returned, self.take_deposits(wanted))),
            Call::List { number, first } => {
                let mut told = locked(&self.told);
                if first == 0 {
                    *told = (number, locked(&self.deposits).spans(&self.layout));
                }
                if told.0 != number {
                    return Err(not_now("another census has begun meanwhile".to_owned()));
                }
                let page = gc_log::page_of(&told.1, first as usize);
                if first as usize + gc_log::PAGE >= told.1.len() {
                    told.1 = Vec::new();
                }
                Ok(page)
            }
        }
    }
}

impl RpcHandler for ChunkService {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(self.answer(ep, from, request))
    }
}

fn message(head: &impl Serialize, pieces: Vec<Piece>) -> Vec<u8> {
    pieces::encode(head, pieces.into_iter().map(|p| (p, false)))
}

/// Asks a memory node something; an answer's beginning is taken off its front by the caller.
async fn ask(ep: &Endpoint, of: NodeId, call: &Call) -> Result<Vec<u8>> {
    let mut reply = Vec::new();
    ep.rpc(of, CHUNK_SERVICE, &wire::encode(call), &mut reply).await?;
    Ok(reply)
}

/// What a memory node gives.
#[derive(Debug)]
pub(crate) enum Granted {
    Nothing,
    /// A run of chunks, by its offset.
    Run(u64),
    /// Free memory that an earlier life has left.
    Pieces(Vec<Piece>),
}

/// Asks a memory node for a run, or for what does as well.
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
    let first = layout.chunk_of(offset).filter(|i| layout.chunk(*i) == offset);
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

/// Leaves free memory with a memory node.
pub(crate) async fn ask_deposit(ep: &Endpoint, to: NodeId, pieces: &[Piece]) -> Result<()> {
    let request = message(&Call::Deposit, pieces.to_vec());
    ep.rpc(to, CHUNK_SERVICE, &request, &mut Vec::new()).await
}

/// Asks a memory node for free memory that earlier lives have left.
pub(crate) async fn ask_deposited(ep: &Endpoint, of: NodeId, w: Wanted) -> Result<Vec<Piece>> {
    let reply = ask(ep, of, &Call::Take(w)).await?;
    let mut rest = &reply[..];
    match wire::take(&mut rest)? {
        Answer::Returned => free_only(rest),
        Answer::Granted(_) => Err(Error::corrupt(format!("{of} grants what it was not asked for"))),
    }
}

/// What has been left with a memory node, for a census.
pub(crate) async fn ask_list(ep: &Endpoint, of: NodeId, number: u64) -> Result<Vec<Span>> {
    gc_log::all_pages(of, async |first: u32| ask(ep, of, &Call::List { number, first }).await)
        .await?
        .ok_or_else(|| Error::corrupt(format!("{of} knows nothing of its own deposits")))
}

/// Returns a run.
pub(crate) async fn return_run(ep: &Endpoint, node: NodeId, offset: u64, count: u32) -> Result<()> {
    ask(ep, node, &Call::Free { count, offset }).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call costs on a simulated fabric follows from its length.
    #[test]
    fn calls_have_their_lengths() {
        let key = ArenaKey { index: 1, kind: 2, object_bytes: 64 };
        let (used_for, kind, index, object_bytes) = (ChunkUse::Tables, 2, 1 << 20, u32::MAX);
        let run = RunRequest { used_for, kind, index, object_bytes, count: 7, least: 1 << 40 };
        let lengths = [
            Call::Alloc { run, incarnation: 300 },
            Call::Free { count: 1, offset: 1 << 30 },
            Call::Deposit,
            Call::Take(Wanted::Objects(key)),
            Call::List { number: 1, first: 3000 },
        ]
        .map(|call| wire::encode(&call).len());
        assert_eq!(lengths, [27, 13, 1, 19, 13]);
        assert_eq!(wire::encode(&Answer::Granted(Word(0))).len(), 9);
    }
}
