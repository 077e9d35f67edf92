//! The chunk service of a memory node: hands out runs of chunks, and records whose they are before it says so.

use std::sync::Mutex;

use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, MAX_BUF_BYTES, NodeId, Result, RpcFuture, RpcHandler, ServiceId,
};

use crate::layout::{ChunkRecord, ChunkUse, NodeLayout};
use crate::wire::{Fields, locked};

/// Runs of chunks, on every memory node.
pub(crate) const CHUNK_SERVICE: ServiceId = ServiceId(0x10);

const ALLOC: u8 = 1;
const FREE: u8 = 2;

/// What a chunk is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRequest {
    pub(crate) used_for: ChunkUse,
    pub(crate) kind: u8,
    pub(crate) index: u32,
    pub(crate) object_bytes: u32,
    pub(crate) count: u32,
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
}

impl ChunkService {
    pub(crate) fn new(layout: NodeLayout) -> Self {
        let n = layout.chunks as usize;
        let book = Book { chunks: vec![ChunkState::Free; n], dirty: vec![false; n] };
        Self { layout, book: Mutex::new(book) }
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
        let RunRequest { used_for, kind, index, object_bytes, count } = r;
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

    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let mut f = Fields(request);
        match f.u8()? {
            ALLOC => {
                let used_for = match f.u8()? {
                    0 => ChunkUse::Arena,
                    1 => ChunkUse::Blocks,
                    2 => ChunkUse::Tables,
                    other => {
                        return Err(Error::invalid(format!("chunks have no use {other}")));
                    }
                };
                let kind = f.u8()?;
                let (index, object_bytes, count, incarnation) =
                    (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let r = RunRequest { used_for, kind, index, object_bytes, count };
                let offset = self.take(ep, from, incarnation, r).await?;
                // 0 is no chunk's offset: full.
                Ok(offset.unwrap_or(0).to_le_bytes().to_vec())
            }
            FREE => {
                let (count, offset) = (f.u32()?, f.u64()?);
                self.give_back(ep, offset, count).await?;
                Ok(Vec::new())
            }
            other => Err(Error::invalid(format!("the chunk service has no call {other}"))),
        }
    }
}

impl RpcHandler for ChunkService {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(self.answer(ep, from, request))
    }
}

/// Asks a memory node for a run. `None`: it has none.
pub(crate) async fn ask_run(
    ep: &Endpoint,
    layout: &NodeLayout,
    incarnation: u32,
    r: RunRequest,
) -> Result<Option<u64>> {
    let mut request = vec![ALLOC, r.used_for as u8, r.kind];
    for field in [r.index, r.object_bytes, r.count, incarnation] {
        request.extend(field.to_le_bytes());
    }
    let mut reply = Vec::new();
    ep.rpc(layout.node, CHUNK_SERVICE, &request, &mut reply).await?;
    let offset = Fields(&reply).u64()?;
    if offset == 0 {
        return Ok(None);
    }
    let first = layout.chunk_of(offset).filter(|i| layout.chunk(*i) == offset);
    if first.is_none_or(|i| u64::from(i) + u64::from(r.count) > u64::from(layout.chunks)) {
        return Err(Error::corrupt(format!(
            "{} granted a run at {offset:#x}, where no chunk begins",
            layout.node
        )));
    }
    Ok(Some(offset))
}

/// Returns a run.
pub(crate) async fn return_run(ep: &Endpoint, node: NodeId, offset: u64, count: u32) -> Result<()> {
    let mut request = vec![FREE];
    request.extend(count.to_le_bytes());
    request.extend(offset.to_le_bytes());
    ep.rpc(node, CHUNK_SERVICE, &request, &mut Vec::new()).await
}
