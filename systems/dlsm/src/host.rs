//! The service of a memory node: jobs that merge tables in its memory, and memory for what they
//! make.
//!
//! A job that ends early has changed nothing but what it has taken, which goes back. Memory that an
//! answer names is freed by its owner, in batches: each batch has a number, and counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, MAX_RPC_BYTES, NodeId, Result, RpcHandler, Service, Stage,
};
use dmtree_pool::MemoryHolder;

use crate::fetch::{self, no_processor};
use crate::merge::{merge, opened};
use crate::store;
use crate::table::{Extent, Meta, Table};
use crate::wire::{self, Merge, Reply, Request};

/// Memory that a memory node has taken, cut into pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Space(Mutex<Pieces>);

#[derive(Debug, Default)]
struct Pieces {
    /// By offset: bytes.
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, Piece>,
}

/// Memory that is in use.
#[derive(Debug)]
struct Piece {
    bytes: u64,
    /// The index, and the owner there; of a job that goes on there is none.
    owner: Option<(u32, u64)>,
}

impl Space {
    fn take(&self, bytes: u64) -> Option<u64> {
        let mut pieces = locked(&self.0);
        let (at, room) = pieces.free.iter().find(|(_, room)| **room >= bytes)?;
        let (at, room) = (*at, *room);
        pieces.free.remove(&at);
        if room > bytes {
            pieces.free.insert(at + bytes, room - bytes);
        }
        pieces.used.insert(at, Piece { bytes, owner: None });
        Some(at)
    }

    fn add(&self, (at, bytes): (u64, u64)) {
        locked(&self.0).put(at, bytes);
    }

    /// Takes a piece back; false when there is none at this place.
    pub(crate) fn free(&self, at: u64) -> bool {
        let mut pieces = locked(&self.0);
        let piece = pieces.used.remove(&at);
        piece.is_some_and(|piece| {
            pieces.put(at, piece.bytes);
            true
        })
    }

    /// Pieces are this owner's.
    pub(crate) fn set_owner(&self, extents: &[Extent], owner: (u32, u64)) {
        let mut pieces = locked(&self.0);
        for extent in extents {
            if let Some(piece) = pieces.used.get_mut(&extent.at().offset()) {
                piece.owner = Some(owner);
            }
        }
    }

    /// Pieces that have an owner are another one's.
    fn adopt(&self, extents: &[Extent], new: u64) {
        let mut pieces = locked(&self.0);
        for extent in extents {
            let piece = pieces.used.get_mut(&extent.at().offset());
            piece.and_then(|piece| piece.owner.as_mut()).into_iter().for_each(|its| its.1 = new);
        }
    }

    /// The owners of pieces of an index.
    fn owners(&self, index: u32) -> Vec<u64> {
        let pieces = locked(&self.0);
        let all = pieces.used.values().filter_map(|piece| piece.owner);
        let all: BTreeSet<u64> = all.filter(|its| its.0 == index).map(|its| its.1).collect();
        all.into_iter().collect()
    }

    /// Takes the pieces of an owner back; how many, and their bytes.
    fn free_of(&self, owner: (u32, u64)) -> (u64, u64) {
        let mut pieces = locked(&self.0);
        let gone = pieces.used.extract_if(.., |_, piece| piece.owner == Some(owner));
        let gone: Vec<_> = gone.map(|(at, piece)| (at, piece.bytes)).collect();
        gone.iter().for_each(|(at, bytes)| pieces.put(*at, *bytes));
        (gone.len() as u64, gone.iter().map(|(_, bytes)| bytes).sum())
    }
}

impl Pieces {
    /// Adds free memory; neighbours become one piece.
    fn put(&mut self, mut at: u64, mut bytes: u64) {
        if let Some((before, its)) = self.free.range(..at).next_back().map(|(a, n)| (*a, *n))
            && before + its == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, its + bytes);
        }
        if let Some(behind) = self.free.remove(&(at + bytes)) {
            bytes += behind;
        }
        self.free.insert(at, bytes);
    }
}

/// The service.
pub(crate) struct Host {
    holder: MemoryHolder,
    pub(crate) space: Space,
    /// The last batch of each owner.
    batches: Mutex<BTreeMap<(NodeId, u64), u64>>,
}

impl Host {
    pub(crate) fn make(holder: MemoryHolder) -> Arc<dyn RpcHandler> {
        Arc::new(Self { holder, space: Space::default(), batches: Mutex::default() })
    }

    /// Memory for a piece of a table.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub(crate) async fn take(&self, ep: &Endpoint, index: u32, bytes: u64) -> Result<GlobalAddr> {
        let bytes = bytes.max(1).next_multiple_of(64);
        loop {
            if let Some(offset) = self.space.take(bytes) {
                return Ok(GlobalAddr::new(self.holder.node(), offset));
            }
            let run = self.holder.take(ep, index, bytes).await?;
            self.space.add(run.keep());
        }
    }

    async fn merge(&self, ep: &Endpoint, request: &Merge) -> Result<Vec<u8>> {
        let fetch = fetch::Own(ep);
        let mut runs = Vec::with_capacity(request.runs.len());
        for metas in &request.runs {
            let mut run = Vec::with_capacity(metas.len());
            for meta in metas {
                run.push(Table::open_unfiltered(&fetch, meta.clone()).await?);
                ep.yield_now().await;
            }
            runs.push(run);
        }
        let mut made = store::Own::new(ep, self, request.index);
        let runs = opened(&fetch, &runs).await?;
        let built = merge((ep, &fetch), &mut made, &runs, &request.rule).await?;
        let metas: Vec<Meta> = built.into_iter().map(|built| built.meta).collect();
        let answer = wire::encode(&metas)?;
        if answer.len() > MAX_RPC_BYTES / 2 {
            return Err(Error::invalid(format!(
                "a merge has {} tables, more than an answer names: make tables larger",
                metas.len()
            )));
        }
        made.keep_all(request.owner);
        Ok(answer)
    }

    fn free(&self, owner: (NodeId, u64), batch: u64, extents: &[Extent]) -> Result<()> {
        let mut batches = locked(&self.batches);
        let last = batches.entry(owner).or_default();
        if batch <= *last {
            return Ok(());
        }
        *last = batch;
        drop(batches);
        let here = |e: &&Extent| e.at().node() == self.holder.node();
        let freed = extents.iter().filter(here).filter(|e| self.space.free(e.at().offset()));
        match extents.len() - freed.count() {
            0 => Ok(()),
            n => Err(Error::invalid(format!(
                "{}: {n} pieces of memory are not taken: they were freed before",
                self.holder.node()
            ))),
        }
    }
}

impl Service for Host {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let memory = || ep.own_memory().ok_or_else(|| no_processor(self.holder.node()));
        let reply = match wire::decode(request)? {
            Request::Free { owner, batch, extents } => {
                self.free((from, owner), batch, &extents)?;
                Reply::Done
            }
            Request::Adopt { owner, extents } => {
                self.space.adopt(&extents, owner);
                Reply::Done
            }
            Request::Owners { index } => Reply::Owners(self.space.owners(index)),
            Request::FreeOf { index, owner } => {
                locked(&self.batches).retain(|(_, its), _| *its != owner);
                let (pieces, bytes) = self.space.free_of((index, owner));
                Reply::Freed { pieces, bytes }
            }
            Request::Read { offset, bytes } if bytes as usize <= wire::MOST_BYTES => {
                ep.stage_cost(Stage::ServerCopy, bytes.div_ceil(1024));
                let mut out = vec![0; bytes as usize];
                memory()?.read(offset, &mut out)?;
                Reply::Bytes(out)
            }
            Request::Write { offset, bytes } => {
                ep.stage_cost(Stage::ServerCopy, bytes.len().div_ceil(1024) as u32);
                memory()?.write(offset, bytes)?;
                Reply::Done
            }
            Request::Read { .. } | Request::Merge(_) => {
                return Err(Error::invalid("a request of dlsm that is no call"));
            }
        };
        wire::encode(&reply)
    }

    async fn job(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        match wire::decode(request)? {
            Request::Merge(merge) => self.merge(ep, &merge).await,
            _ => Err(Error::invalid("a request of dlsm that is no job")),
        }
    }

    fn is_data(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_whole_and_once() {
        let space = Space::default();
        assert_eq!(space.take(64), None);
        space.add((1000, 256));
        let pieces: Vec<_> = (0..4).map(|_| space.take(64).expect("room")).collect();
        assert_eq!((&pieces[..], space.take(1)), (&[1000, 1064, 1128, 1192][..], None));
        for at in [1064, 1192, 1000, 1128] {
            assert!(space.free(at) && !space.free(at));
        }
        assert_eq!(space.take(256), Some(1000));
    }
}
