//! Background work: flushes, compactions, and memory that goes back.
//!
//! Workers of the compute node execute it piece by piece. A writer that waits for room raises their
//! signal; where no worker takes a piece in time, because there is none, it executes one itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dmtree_fabric::{Error, ErrorKind, NodeId, OpKind, OpOutcome, Result, Stage};
use dmtree_parts::Pause;

use crate::build::Built;
use crate::client::Client;
use crate::cursor::Cursor;
use crate::durable::Durability;
use crate::fetch::{InUse, ask};
use crate::key::KeyRange;
use crate::merge::write_all;
use crate::mutants::Mutant;
use crate::near::{Made, NearMerges};
use crate::options::Merging;
use crate::parts::OwnMerges;
use crate::recorder::Recorder;
use crate::router::Router;
use crate::shard::{Compaction, Flush, Shard};
use crate::store::{Remote, Store, block_of};
use crate::table::Table;
use crate::version::Version;
use crate::wire::{self, Reply, Request, Rule};

/// How long a writer leaves a piece of work to the workers, in steps, ns.
const LEFT_NS: (u32, u64) = (10, 20_000);
/// A worker without work looks again after this time, ns.
const IDLE_NS: u64 = 10_000_000;
/// After work that finds no memory a worker tries again after this time, ns.
const FULL_NS: u64 = 5_000_000;

/// How a piece of work went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// None was due.
    None,
    Done,
    /// It was due, and there was no memory for it.
    Full,
}

/// One of so many at a time.
pub(crate) struct Running<'a>(&'a AtomicU32);

impl<'a> Running<'a> {
    pub(crate) fn one_of(count: &'a AtomicU32, most: u32) -> Option<Self> {
        let more = |n: u32| (n < most).then_some(n + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok().map(|_| Self(count))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Pieces of background work, by a client.
pub(crate) struct Background<'c>(pub(crate) &'c Client);

impl<'c> Background<'c> {
    /// A worker's piece of work, and when the next one is due.
    pub(crate) async fn work_piece(&self) -> Result<Pause> {
        let rest = |ns| Pause::Until(self.0.node.signal.clone(), ns);
        Ok(match self.piece().await? {
            Piece::Done => Pause::None,
            Piece::None => rest(IDLE_NS),
            Piece::Full => Pause::For(FULL_NS),
        })
    }

    /// Waits until there may be room for another MemTable of a shard.
    ///
    /// # Errors
    /// `Full` when flushes and compactions find no memory, and nothing is left to free.
    pub(crate) async fn wait_for_room(&self, shard: &Shard) -> Result<()> {
        let node = &self.0.node;
        let full = || {
            Error::full(
                "memory nodes have no room for a flush, and MemTables are full: delete the index, \
                 or give the pool more memory",
            )
        };
        if shard.is_full(self.0.ep.now()) {
            return Err(full());
        }
        let before = node.progress.load(Ordering::SeqCst);
        node.signal.raise();
        let (steps, ns) = LEFT_NS;
        for _ in 0..steps {
            self.0.ep.sleep(ns).await;
            if node.progress.load(Ordering::SeqCst) != before {
                return Ok(());
            }
        }
        self.0.ep.check_deadline("room for a write", 0)?;
        let runs = [&node.flushes, &node.compactions].map(|n| n.load(Ordering::SeqCst));
        if runs != [0, 0] {
            return Ok(());
        }
        match self.piece().await? {
            Piece::Full if shard.is_full(self.0.ep.now()) => Err(full()),
            Piece::None if node.room.is_full() => {
                node.seal_largest();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Executes a piece of work, if any is due.
    async fn piece(&self) -> Result<Piece> {
        let Some(router) = self.0.node.router.get() else { return Ok(Piece::None) };
        if Box::pin(NearMerges(self.0).end_left()).await || Box::pin(self.bring_back()).await? {
            return Ok(Piece::Done);
        }
        let mut full = false;
        let freed = match Box::pin(self.free_garbage(router)).await {
            Err(e) if e.kind() == ErrorKind::Full => {
                full = true;
                false
            }
            freed => freed?,
        };
        let kept = match Box::pin(self.keep_all(router)).await {
            Err(e) if e.kind() == ErrorKind::Full => {
                full = true;
                false
            }
            kept => kept?,
        };
        if kept {
            return Ok(Piece::Done);
        }
        let n = router.shards.len().max(1);
        let turn = self.0.node.turn.fetch_add(1, Ordering::Relaxed) as usize;
        // One at a time: a shard that this client holds is not given away.
        let own = || (0..n).filter_map(|i| router.shards.get((turn + i) % n)?.get());
        for shard in own() {
            match Box::pin(self.flush_one(&shard)).await? {
                Piece::Done => return Ok(Piece::Done),
                piece => full |= piece == Piece::Full,
            }
        }
        if Box::pin(OwnMerges(self.0).take_part()).await {
            return Ok(Piece::Done);
        }
        for shard in own() {
            match Box::pin(self.compact_one(&shard)).await? {
                Piece::Done => return Ok(Piece::Done),
                piece => full |= piece == Piece::Full,
            }
        }
        match (freed, full) {
            (true, _) => Ok(Piece::Done),
            (_, true) => Ok(Piece::Full),
            _ => Ok(Piece::None),
        }
    }

    /// Executes a piece of the work of one shard.
    pub(crate) async fn piece_of(&self, kept: (&Shard, &Recorder)) -> Result<Piece> {
        if Box::pin(NearMerges(self.0).end_left()).await
            || Box::pin(Durability(self.0).keep_up(kept)).await?
        {
            return Ok(Piece::Done);
        }
        match Box::pin(self.flush_one(kept.0)).await? {
            Piece::None => Box::pin(self.compact_one(kept.0)).await,
            piece => Ok(piece),
        }
    }

    /// READs the index of a table when its pages have cost as much; whether there was one.
    async fn bring_back(&self) -> Result<bool> {
        let Some(table) = self.0.node.indexes.wanted() else { return Ok(false) };
        let _in_use = InUse(&self.0.ep, &table);
        let scope = self.0.ep.begin(OpKind::Maintain);
        table.bring_back(&self.0.node.remote(&self.0.ep)).await?;
        scope.end(OpOutcome::Other);
        self.0.node.indexes.shrink();
        Ok(true)
    }

    /// Gives back what no table names any more; whether there was anything.
    async fn free_garbage(&self, router: &Router) -> Result<bool> {
        let node = &self.0.node;
        let (mut own, theirs) = (node.garbage.take_own(), node.garbage.batch());
        // What is taken has been removed by an edit that was enqueued before.
        if (!own.is_empty() || theirs.is_some()) && !node.mutants.has(Mutant::InputsFreedEarly) {
            let shards: Vec<_> = router.own().collect();
            if node.leaving.load(Ordering::SeqCst) > 0 {
                return Ok(false);
            }
            for shard in &shards {
                if let Some(recorder) = &shard.recorder {
                    Durability(self.0).keep((shard, recorder), recorder.last_edit()).await?;
                }
            }
        }
        let extents = own.take();
        node.give_back(extents.iter().map(block_of));
        let had_own = !extents.is_empty();
        let Some((to, batch, extents)) = theirs else { return Ok(had_own) };
        let scope = self.0.ep.begin(OpKind::Maintain);
        match ask(&self.0.ep, to, &Request::Free { owner: node.me, batch, extents }).await? {
            Reply::Done => node.garbage.acknowledged(to, batch),
            _ => return Err(wire::unexpected(to)),
        }
        scope.end(OpOutcome::Other);
        Ok(true)
    }

    /// Keeps what is due of the shards with a recorder; whether there was anything.
    async fn keep_all(&self, router: &Router) -> Result<bool> {
        let mut was_due = false;
        for shard in router.own() {
            if let Some(recorder) = &shard.recorder {
                was_due |= Durability(self.0).keep_up((&shard, recorder)).await?;
            }
        }
        Ok(was_due)
    }

    async fn flush_one(&self, shard: &Shard) -> Result<Piece> {
        let node = &self.0.node;
        let Some(_running) = Running::one_of(&node.flushes, node.o.flush_workers) else {
            return Ok(Piece::None);
        };
        let Some(flush) = shard.begin_flush() else { return Ok(Piece::None) };
        let scope = self.0.ep.begin(OpKind::Maintain);
        let built = self.flush(shard, &flush).await;
        scope.end(OpOutcome::Other);
        match built {
            Ok(table) => {
                shard.end_flush(&flush, table);
                self.has_progressed();
                Ok(Piece::Done)
            }
            Err(e) if e.kind() == ErrorKind::Full => {
                shard.set_full(self.0.ep.now() + FULL_NS);
                Ok(Piece::Full)
            }
            Err(e) => Err(e.context("a flush")),
        }
    }

    fn has_progressed(&self) {
        self.0.node.progress.fetch_add(1, Ordering::SeqCst);
        self.0.node.signal.raise();
    }

    /// The store of an owner, near a memory node.
    pub(crate) fn blocks(&self, near: NodeId, ring: bool) -> Remote<'c> {
        let node = &self.0.node;
        Remote { ep: &self.0.ep, node, near, ring, calls: node.o.calls, put: Vec::new() }
    }

    /// Writes a MemTable as a table.
    async fn flush(&self, shard: &Shard, flush: &Flush<'_>) -> Result<Option<Arc<Table>>> {
        let o = &self.0.node.o;
        let mut cursor = Cursor::new(KeyRange::default(), false, 0);
        cursor.add_memory(flush.table.clone(), usize::MAX);
        let oldest = if o.defects.forgets_snapshots { u64::MAX } else { flush.oldest };
        let rule = Rule { table_bytes: u64::MAX, ..self.rule(KeyRange::default(), oldest) };
        let mut store = self.blocks(shard.home, o.ring);
        let fetch = self.0.node.remote(&self.0.ep);
        match write_all((&self.0.ep, &fetch), &mut store, (cursor, Stage::TableEntry), &rule).await
        {
            Ok(built) => {
                store.keep();
                let last = self.tables_of(shard, built).await?.pop();
                Ok(last)
            }
            Err(e) => {
                store.abandon().await;
                Err(e)
            }
        }
    }

    pub(crate) fn rule(&self, range: KeyRange, oldest: u64) -> Rule {
        let o = &self.0.node.o;
        let (format, table_bytes, piece_bytes) = (o.format, o.table_bytes, o.piece_bytes);
        let (bottom, skips_one, splits) = (false, false, false);
        Rule { range, oldest, bottom, format, table_bytes, piece_bytes, skips_one, splits }
    }

    /// Tables that were built; those that are not opened when this is dropped are garbage.
    pub(crate) async fn tables_of(
        &self,
        shard: &Shard,
        built: Vec<Built>,
    ) -> Result<Vec<Arc<Table>>> {
        let (node, mut tables) = (&self.0.node, Vec::new());
        let metas = built.iter().rev().map(|built| built.meta.clone()).collect();
        let mut made = Made(&self.0.ep, node.garbage.clone(), metas);
        for Built { meta, index, filter } in built {
            let (number, garbage) = (shard.next_number(), Some(node.garbage.clone()));
            let table = match node.o.reads_back {
                true => Table::open(&node.remote(&self.0.ep), meta, number, garbage).await?,
                false => Table::new(meta, number, (index, Some(filter)), garbage),
            };
            node.indexes.add(&table);
            tables.push(table);
            made.2.pop();
        }
        Ok(tables)
    }

    async fn compact_one(&self, shard: &Shard) -> Result<Piece> {
        let node = &self.0.node;
        let Some(_running) = Running::one_of(&node.compactions, node.o.compaction_workers) else {
            return Ok(Piece::None);
        };
        let Some(compaction) = shard.begin_compaction() else { return Ok(Piece::None) };
        let scope = self.0.ep.begin(OpKind::Maintain);
        let merged = match compaction.pick.is_move() {
            true => Ok(compaction.pick.upper.clone()),
            false => self.compact(shard, &compaction).await,
        };
        scope.end(OpOutcome::Other);
        match merged {
            Ok(tables) => {
                shard.end_compaction(&compaction, tables);
                self.has_progressed();
                Ok(Piece::Done)
            }
            Err(e) if e.kind() == ErrorKind::Full => {
                shard.set_full(self.0.ep.now() + FULL_NS);
                Ok(Piece::Full)
            }
            Err(e) => Err(e.context("a compaction")),
        }
    }

    /// Merges tables where the options say, or at the owner.
    async fn compact(&self, shard: &Shard, compaction: &Compaction<'_>) -> Result<Vec<Arc<Table>>> {
        let (node, pick) = (&self.0.node, &compaction.pick);
        let near = self.near(compaction);
        let borders = Version::borders(pick, node.o.subcompactions);
        let defects = &node.o.defects;
        let lows = [None].into_iter().chain(borders.iter().cloned().map(Some));
        let highs = borders.iter().cloned().map(Some).chain([None]);
        let rules = lows.zip(highs).map(|(low, high)| Rule {
            bottom: pick.bottom,
            // As published the owner knows of snapshots, and a job does not.
            oldest: match defects.forgets_snapshots && near.is_some() {
                true => u64::MAX,
                false => compaction.oldest,
            },
            skips_one: defects.skips_keys && near.is_some() && low.is_some(),
            splits: defects.splits_keys && near.is_none(),
            ..self.rule(KeyRange { low, high }, 0)
        });
        let rules: Vec<Rule> = rules.collect();
        if let Some(memory) = near
            && let Some(tables) =
                NearMerges(self.0).merge_near(shard, compaction, memory, &rules).await?
        {
            return Ok(tables);
        }
        Box::pin(OwnMerges(self.0).merge_here(shard, pick.runs(), rules)).await
    }

    /// The memory node that is to merge: the one that has all inputs.
    fn near(&self, compaction: &Compaction<'_>) -> Option<NodeId> {
        let node = &self.0.node;
        match node.o.merging {
            Merging::Owner => return None,
            Merging::Adaptive if OwnMerges(self.0).compactions() > self.0.ep.caps().mn_cores => {
                return None;
            }
            Merging::Near | Merging::Adaptive => {}
        }
        let mut extents = compaction.pick.inputs().flat_map(|table| table.meta.extents());
        let memory = extents.next()?.at().node();
        extents.all(|extent| extent.at().node() == memory).then_some(memory)
    }
}
