//! Garbage collection: blocks that dead owners had taken and no manifest names, and what jobs have
//! made for them.
//!
//! A compute node *holds* the blocks that it builds in, and those that the manifests of its ranges
//! name: they are pending on the pool's lists, which the collection of `dmtree_pool` asks for. So
//! its marking visits nothing. It sees to it that every range has an owner that lives. A range that
//! moves meanwhile is logged where it leaves, before its word is changed.
//!
//! What a job has made is marked at its memory node with its owner's opening of the index, and
//! with that of the next owner when a range is taken over. What has the mark of a dead owner once
//! all ranges have others is lost.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Endpoint, ErrorKind, NodeId, OpKind, OpOutcome, Result};
use dmtree_parts::gc::{Collector, Run};
use dmtree_parts::{Found, Root, Work};
use dmtree_pool::{BlockPtr, Gc, PoolNode, Span, Told};

use crate::calls::{Calls, What};
use crate::client::Client;
use crate::fetch::ask;
use crate::garbage::BATCH;
use crate::node::DlsmNode;
use crate::options::Merging;
use crate::shard::Shard;
use crate::store::block_of;
use crate::table::{Extent, Maker, Meta};
use crate::version::Version;
use crate::wire::{self, Reply, Request};

/// A collection: its notes are the marks of dead owners, by memory node.
type Collection = Run<(), Vec<(NodeId, u64)>>;

impl DlsmNode {
    /// A new block, which this node holds.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub(crate) async fn take_block(
        &self,
        ep: &Endpoint,
        bytes: u32,
        near: NodeId,
    ) -> Result<BlockPtr> {
        // For a moment the block is on no list: a collection that begins then waits for this.
        let epoch = self.pool.register();
        let _announced = epoch.guard();
        let block = self.pool.alloc_block(ep, self.root.index, bytes, Some(near)).await?;
        self.hold([block]);
        Ok(block)
    }

    /// Gives blocks back that nothing names any more.
    pub(crate) fn give_back(&self, blocks: impl IntoIterator<Item = BlockPtr>) {
        let epoch = self.pool.register();
        let _announced = epoch.guard();
        for block in blocks {
            // In this order: the next holder may hold it at once.
            self.pool.collection().log_retired(block.addr());
            self.pool.give_back_block(self.root.index, block);
        }
    }

    /// Holds blocks that a manifest of this node names.
    pub(crate) fn hold(&self, blocks: impl IntoIterator<Item = BlockPtr>) {
        for block in blocks {
            let span = (block.addr(), u64::from(block.capacity()));
            self.pool.collection().log_pending(self.root.index, span, None);
        }
    }

    /// Blocks are another node's, or will be: its word of the range has not changed yet.
    pub(crate) fn let_go(&self, blocks: impl IntoIterator<Item = BlockPtr>) {
        blocks.into_iter().for_each(|block| self.pool.collection().log_retired(block.addr()));
    }
}

/// The index is closed here: what its manifests name is that of the next owners. What is in doubt
/// stays held as long as the node lives.
impl Drop for DlsmNode {
    fn drop(&mut self) {
        let shards: Vec<_> = self.router.get().into_iter().flat_map(|r| r.own()).collect();
        shards.iter().for_each(|shard| self.let_go(blocks_of(shard)));
        let garbage = self.garbage.take_own().take();
        self.give_back(garbage.iter().map(block_of));
    }
}

/// The blocks of tables.
pub(crate) fn blocks_in<'m>(
    metas: impl Iterator<Item = &'m Meta>,
) -> impl Iterator<Item = BlockPtr> {
    metas.filter(|meta| meta.maker == Maker::Owner).flat_map(Meta::extents).map(block_of)
}

/// What the manifest of a shard names, and the manifest.
pub(crate) fn blocks_of(shard: &Shard) -> Vec<BlockPtr> {
    let version = shard.view().version.clone();
    let tables = blocks_in(version.tables().map(|table| &table.meta));
    let kept = shard.recorder.iter().flat_map(|recorder| recorder.blocks());
    tables.chain(kept).collect()
}

/// A garbage collection, by a client.
pub(crate) struct Collecting<'c>(pub(crate) &'c Client);

impl Collecting<'_> {
    /// Runs a whole collection.
    pub(crate) async fn gc_op(&self) -> Result<Found> {
        if !self.0.node.o.any_node {
            return Ok(Found::default());
        }
        // A range that is claimed now is no change during the collection.
        self.own_all().await?;
        let gc = self.0.node.pool.collection().next_gc(&self.0.ep, self.0.node.root.index).await?;
        self.collect(gc).await
    }

    /// Runs a collection once this node has taken ranges of dead owners over, unless another node
    /// has done so.
    ///
    /// # Errors
    /// As [`Collecting::gc_op`]; while nodes join, die or do not answer it stays due.
    pub(crate) async fn collect_when_due(&self) -> Result<Work> {
        let (node, root) = (&self.0.node, self.0.node.root.word);
        if !node.is_collection_due.swap(false, Ordering::SeqCst) {
            return Ok(Work::None);
        }
        let scope = self.0.ep.begin(OpKind::Maintain);
        let collected = match node.pool.collection().has_uncounted_deaths(&self.0.ep, root).await {
            Ok(true) => Box::pin(self.gc_op()).await.map(|_| Work::Some),
            other => other.map(|_| Work::None),
        };
        scope.end(OpOutcome::Other);
        collected.or_else(|e| {
            node.is_collection_due.store(true, Ordering::SeqCst);
            match e.kind() {
                // A member that has restarted, or is away, is not reached for now.
                ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::Unreachable => Ok(Work::None),
                _ => Err(e.context("a garbage collection")),
            }
        })
    }

    /// Every range has an owner that lives, and that holds what its manifest names.
    async fn own_all(&self) -> Result<()> {
        let Some(router) = self.0.node.opened(&self.0.ep).await? else { return Ok(()) };
        for range in 0..router.shards.len() {
            self.0.ep.renew_deadline();
            Calls(self.0).ask_owner(router, range, &What::Own).await?;
        }
        Ok(())
    }

    /// What jobs have made of these tables is this node's.
    ///
    /// # Errors
    /// Those of calls.
    pub(crate) async fn adopt(&self, version: &Version) -> Result<()> {
        let mut theirs: BTreeMap<NodeId, Vec<Extent>> = BTreeMap::new();
        let made = version.tables().filter(|table| table.meta.maker == Maker::Memory);
        for extent in made.flat_map(|table| table.meta.extents()) {
            theirs.entry(extent.at().node()).or_default().push(*extent);
        }
        let owner = self.0.node.me;
        for (node, extents) in &theirs {
            for some in extents.chunks(BATCH) {
                self.0.ep.renew_deadline();
                let request = Request::Adopt { owner, extents: some.to_vec() };
                self.done(*node, &request).await?;
            }
        }
        Ok(())
    }

    async fn done(&self, to: NodeId, request: &Request<'_>) -> Result<()> {
        match ask(&self.0.ep, to, request).await? {
            Reply::Done => Ok(()),
            _ => Err(wire::unexpected(to)),
        }
    }

    /// The marks of dead owners at all memory nodes.
    async fn dead(&self) -> Result<Vec<(NodeId, u64)>> {
        let (node, mut all) = (&self.0.node, Vec::new());
        if node.o.merging == Merging::Owner {
            return Ok(all);
        }
        for memory in (0..node.pool.memory_nodes()).map(|n| NodeId::memory(n as u16)) {
            let request = Request::Owners { index: node.root.index };
            let Reply::Owners(owners) = ask(&self.0.ep, memory, &request).await? else {
                return Err(wire::unexpected(memory));
            };
            all.extend(owners.into_iter().filter(|o| node.is_gone(*o)).map(|o| (memory, o)));
        }
        Ok(all)
    }
}

impl Collector for Collecting<'_> {
    type Position = ();
    type Notes = Vec<(NodeId, u64)>;

    fn place(&self) -> (&Endpoint, &PoolNode, Root) {
        (&self.0.ep, &self.0.node.pool, self.0.node.root)
    }

    async fn first(&self) -> Result<()> {
        Ok(())
    }

    async fn mark(&self, (): (), run: &mut Collection) -> Result<Option<()>> {
        // In this order: what has the mark of one that is dead now is adopted, or lost.
        run.own = self.dead().await?;
        self.own_all().await.map(|()| None)
    }

    async fn find_lost(&self, run: &mut Collection) -> Result<()> {
        let pool = &self.0.node.pool;
        let held = pool.collection().collect(&self.0.ep, &run.gc, Told::All).await?;
        run.found.doubly = held.twice.len() as u64;
        run.lost = pool.collection().lost(&run.gc, &[&held]);
        Ok(())
    }

    async fn check_lost(&self, _: &mut Collection, _: usize) -> Result<bool> {
        Ok(false)
    }

    async fn take_lost(&self, run: &mut Collection) -> Result<()> {
        let pool = &self.0.node.pool;
        let logged = pool.collection().collect(&self.0.ep, &run.gc, Told::GcLog).await?;
        for (at, bytes) in std::mem::take(&mut run.lost.space) {
            if !logged.has(Span::Bytes(at.bits(), bytes)) {
                run.found.space_bytes += bytes;
                pool.collection().retire_space(&run.gc, at, bytes);
            }
        }
        for (memory, owner) in std::mem::take(&mut run.own) {
            let request = Request::FreeOf { index: self.0.node.root.index, owner };
            match ask(&self.0.ep, memory, &request).await? {
                Reply::Freed { pieces, bytes } => {
                    run.found.objects += pieces;
                    run.found.bytes += bytes;
                }
                _ => return Err(wire::unexpected(memory)),
            }
        }
        Ok(())
    }

    async fn note_done(&self, gc: &Gc) -> Result<()> {
        self.0.node.pool.collection().note_counted(&self.0.ep, gc, self.0.node.root.word).await
    }
}
