//! Garbage collection of this index's memory: finding objects that dead nodes held, or that dropped
//! operations had taken.
//!
//! `dmtree_parts::gc` drives the phases. This module knows what is reachable (`mark.rs`: a cursor
//! per level, of the inner nodes first), and what a lost object needs before it is free:
//!
//! - It is READ. An abandoned lock on a lost tombstone is taken over, and the client that does so
//!   retires the leaf; an object with a live client's lock is left out. Relocated tombstones that
//!   no queue will unlink become chores.
//! - Before it is retired it is blanked, if a stale record may still lead to it.
//!
//! An object is taken with the largest generation that its bytes show plus one: a grant may have
//! been used up without a word written, and L forbids a generation to be used twice.

use dmtree_fabric::trace::{Event, report};
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, Nanos, OpKind, OpOutcome, Result, Step,
};
use dmtree_parts::gc::{Collector, Run};
use dmtree_parts::{Found, Root, Work};
use dmtree_pool::{ArenaKey, Gc, Grant, Held, Lost, PoolNode, Span, TableId, Told};

use crate::format::{BODY_AT, Table, Ver, View, u64_at};
use crate::leaf::{NodeHeader, Tombstones};
use crate::learned::Trainer;
use crate::lock::is_closed;
use crate::maintenance::Sweep;
use crate::recovery::{Inspected, LeafRecovery, WordRecovery};
use crate::{Chore, Client, Mark, Mutant, Route, is_away};

/// A garbage collection in progress.
pub(crate) type GcRun = Run<Position, Notes>;

/// A position of the mark phase.
#[derive(Clone, Debug)]
pub enum Position {
    /// The inner nodes of a level, from a key on.
    Nodes(u8, Vec<u8>),
    /// The leaves, from a key on.
    Leaves(Vec<u8>),
}

/// What a collection notes besides lost objects.
#[derive(Debug, Default)]
pub struct Notes {
    /// Tombstones of inner nodes that other nodes still name.
    pub(crate) linked: Held,
    /// Relocated tombstones that a left sibling still names, each with its lower fence.
    pub(crate) moved: Vec<(Vec<u8>, Route)>,
    /// Those of them that no maintenance queue will unlink.
    unlinks: Vec<Chore>,
    cells: Vec<TableId>,
}

/// Collects garbage.
#[derive(Clone, Copy)]
pub(crate) struct Collection<'c>(pub &'c Client);

impl Collection<'_> {
    /// A whole garbage collection, at once.
    pub(crate) async fn run(self) -> Result<Found> {
        let (pool, index) = (&self.0.node.pool, self.0.node.root.index);
        let gc = pool.collection().next_gc(&self.0.ep, index).await?;
        self.collect(gc).await
    }

    /// A garbage collection for a write that finds no room; `TimedOut` when it has not ended at
    /// `until`, a reading of the fabric's clock. Then the next such write goes on with it: a
    /// collection of a large index may take longer than a write may.
    pub(crate) async fn run_until(self, until: Nanos) -> Result<()> {
        let maintenance = &self.0.node.maintenance;
        let mut gc_run = self.collect_some(maintenance.take_gc()).await?;
        while let Some(kept) = gc_run {
            if self.0.ep.now() >= until {
                maintenance.keep_gc(kept);
                return Err(Error::timed_out(
                    "the garbage collection that searches for room has not ended in time: try again",
                ));
            }
            gc_run = self.collect_some(Some(kept)).await?;
        }
        Ok(())
    }

    /// A step of the garbage collection that follows a death; one node does it for all. An
    /// unreachable node makes it start over later.
    pub(crate) async fn chore(self) -> Result<Work> {
        let c = self.0;
        if !c.node.pool.membership().is_first() {
            return Ok(Work::None);
        }
        let scope = c.ep.begin(OpKind::Maintain);
        let begun = c.begun(Chore::Gc);
        let (pool, kept) = (&c.node.pool, c.node.maintenance.take_gc());
        let steps = async {
            // Perhaps an earlier collection has found what the dead node held.
            if kept.is_none()
                && !pool.collection().has_uncounted_deaths(&c.ep, c.node.root.word).await?
            {
                return Ok(None);
            }
            self.collect_some(kept).await
        };
        match steps.await {
            Ok(None) => {
                begun.done();
                report(Event::GarbageCollection, || "lost memory of dead nodes is free".to_owned());
            }
            Ok(Some(gc_run)) => c.node.maintenance.keep_gc(gc_run),
            Err(e) => return begun.gc_failed(e),
        }
        scope.end(OpOutcome::Other);
        Ok(Work::Some)
    }

    /// The largest generation that a lost object may have had; `None` when it is not free.
    async fn free_object(self, key: ArenaKey, at: GlobalAddr, lost: &Lost) -> Result<Option<u16>> {
        let (c, g) = (self.0, self.0.node.g);
        let capacities = c.node.o.capacities();
        let capacity = capacities.into_iter().find(|n| c.node.leaf_arena(*n).key() == key);
        let is_inner = key == c.node.inner_arena.key();
        // Chunks of lock words are not objects of the index.
        if !is_inner && capacity.is_none() {
            return Ok(None);
        }
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(at, key.object_bytes).await?;
        let image = bytes.extract(<[u8]>::to_vec);
        if image.iter().all(|b| *b == 0) {
            return Ok(Some(0));
        }
        let h = NodeHeader::of(&g, at, &image);
        if is_inner {
            let lock = at.plus(g.inner_lock_at() as u64);
            let was = u64_at(&image, g.inner_lock_at());
            let free =
                was == 0 || (c.node.is_abandoned(was) && c.ep.cas(lock, was, 0).await? == was);
            return Ok(free.then(|| h.ver.generation.saturating_add(1)));
        }
        let Some(capacity) = capacity else { return Ok(None) };
        let stamp = |i: usize| Ver::from_bits(u64_at(&image, g.slot_at(i)) as u32 >> 8).generation;
        let generation = (0..capacity).map(stamp).fold(h.ver.generation, u16::max);
        let is_tombstone = !h.forward.is_null() && h.slots == capacity && h.level == 0;
        if is_tombstone && !self.is_unlocked(&h.route(at), lost).await? {
            return Ok(None);
        }
        // A grant may have been used up without a word written.
        Ok(Some(generation.saturating_add(1)))
    }

    /// A stale record may lead to a tombstone until the address has another generation: readers
    /// must find it whole.
    async fn blank_lost(self, key: ArenaKey, at: GlobalAddr) -> Result<()> {
        let c = self.0;
        if key == c.node.inner_arena.key() {
            return Ok(());
        }
        let h = NodeHeader::read(c, at).await?;
        if !h.forward.is_null() && h.is_leaf(&c.node) && c.node.leaf_arena(h.slots).key() == key {
            c.check_lease()?;
            Tombstones(c).blank_unvalidated(at, &h).await?;
        }
        Ok(())
    }

    /// Whether no client holds, or will take over, the lock of a tombstone. An abandoned lock is
    /// taken over, and its recovery retires the leaf.
    async fn is_unlocked(self, route: &Route, lost: &Lost) -> Result<bool> {
        let c = self.0;
        if !c.node.has_tables() {
            return WordRecovery(c).is_unchanged(route).await;
        }
        let at = match c.node.pool.resolve(&c.ep, route.table).await {
            Ok(at) => at,
            // No such cell: the id is that of a torn image.
            Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(true),
            Err(e) if is_away(&e) => return Ok(false),
            Err(e) => return Err(e),
        };
        let len = Table::body_len(route.capacity);
        let (was, body) = c.cas_and_read(at, (0, 0), at.plus(BODY_AT as u64), len).await?;
        if was == 0 || c.node.has(Mutant::GcNoLocks) {
            return Ok(true);
        }
        let view = body.extract(|b| Table::view(route.table, route.capacity, b));
        let names = matches!(&view, View::Whole(t) if t.leaf == route.leaf);
        let nobodys =
            route.table.with_lines(1).is_some_and(|t| lost.lines.binary_search(&t).is_ok());
        if !names && !nobodys {
            // The cell belongs to another leaf by now; this leaf's own lock is gone.
            return Ok(true);
        }
        if !c.node.is_abandoned(was) {
            return Ok(false);
        }
        Mark::GcLock.hit();
        if is_closed(&view, route.leaf) {
            return Ok(c.ep.cas(at, was, 0).await? == was);
        }
        LeafRecovery(c).help_route(route).await?;
        Ok(false)
    }

    /// A relocated tombstone that no maintenance queue will unlink. Its lock tells whether a client
    /// still works on it.
    async fn unlink_lost(self, lo: Vec<u8>, route: &Route) -> Result<Option<Chore>> {
        let c = self.0;
        let is_idle = match c.node.has_tables() {
            false => WordRecovery(c).is_unchanged(route).await?,
            true => {
                let Some(at) = c.cell(route.table).await? else { return Ok(None) };
                let is_free = c.ep.cas(at, 0, 0).await? == 0;
                if !is_free && LeafRecovery(c).help_route(route).await? == Inspected::Open {
                    c.node.push_chore(Chore::Inspect(*route));
                }
                is_free
            }
        };
        Ok(is_idle.then_some(Chore::Unlink { lo, route: *route }))
    }

    /// The cell that begins at a lost line, when no client holds its lock.
    async fn free_cell(self, line: TableId, lost: &[TableId]) -> Result<Option<TableId>> {
        let at = match self.0.node.pool.resolve(&self.0.ep, line).await {
            Ok(at) => at,
            Err(e) if is_away(&e) || e.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(e) => return Err(e),
        };
        let is_lost = |t: TableId| t.each().all(|line| lost.binary_search(&line).is_ok());
        let cell = match self.image_cell(at, line).await {
            Ok(Some(t)) if t.with_lines(1) != Some(line) || !is_lost(t) => return Ok(None),
            Ok(Some(t)) => t,
            Ok(None) => self.shown_cell(at, line, is_lost).await?,
            Err(e) if is_away(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let was = self.0.ep.cas(at, 0, 0).await?;
        if was != 0 && !(self.0.node.is_abandoned(was) && self.0.ep.cas(at, was, 0).await? == was) {
            return Ok(None);
        }
        Ok(Some(cell))
    }

    /// The cell with an image around a lost line, which its owner tells: it counts the cell.
    async fn image_cell(self, at: GlobalAddr, line: TableId) -> Result<Option<TableId>> {
        let Client { ep, node, .. } = self.0;
        if !node.has_images() {
            return Ok(None);
        }
        node.pool.collection().image_cell(ep, at.node(), line).await
    }

    /// The cell that begins at a lost line, as large as its contents say. A line without contents
    /// is a cell of its own.
    async fn shown_cell(
        self,
        at: GlobalAddr,
        line: TableId,
        is_lost: impl Fn(TableId) -> bool,
    ) -> Result<TableId> {
        let mut cell = line;
        let sizes = [32, 64, 128].into_iter().flat_map(|capacity| {
            let plain = crate::format::table::lines(capacity);
            let imaged = self.0.node.imaged_lines(capacity);
            std::iter::once(plain).chain(imaged).map(move |lines| (capacity, lines))
        });
        for (capacity, lines) in sizes {
            let Some(wide) = line.with_lines(lines) else { continue };
            if !is_lost(wide) {
                continue;
            }
            let body = self.0.ep.read(at.plus(BODY_AT as u64), Table::body_len(capacity) as u32);
            let view = body.await?.extract(|b| Table::view(wide, capacity, b));
            if matches!(view, View::Whole(_)) {
                cell = wide;
            }
        }
        Ok(cell)
    }
}

impl Collector for Collection<'_> {
    type Position = Position;
    type Notes = Notes;

    fn place(&self) -> (&Endpoint, &PoolNode, Root) {
        (&self.0.ep, &self.0.node.pool, self.0.node.root)
    }

    async fn is_past(&self, gc: &Gc) -> Result<bool> {
        let past = self.0.node.pool.collection().is_past(&self.0.ep, gc).await?;
        Ok(past || self.0.node.has(Mutant::GcNoBarrier))
    }

    async fn first(&self) -> Result<Position> {
        let _pin = self.0.pin()?;
        Ok(Position::Nodes(Sweep(self.0).top_level().await?, Vec::new()))
    }

    async fn mark(&self, from: Position, gc_run: &mut GcRun) -> Result<Option<Position>> {
        let _pin = self.0.pin()?;
        if let (Position::Nodes(_, from), Some(models)) = (&from, &self.0.node.models)
            && from.is_empty()
        {
            Trainer(self.0, models).mark(gc_run).await?;
        }
        Ok(match from {
            Position::Nodes(level, from) => {
                Some(match self.mark_node(level, &from, gc_run).await? {
                    Some(next) => Position::Nodes(level, next),
                    None if level > 1 => Position::Nodes(level - 1, Vec::new()),
                    None => Position::Leaves(Vec::new()),
                })
            }
            Position::Leaves(from) => self.mark_leaf(&from, gc_run).await?.map(Position::Leaves),
        })
    }

    /// Objects that are neither reachable nor on a list nor in the gc log.
    async fn find_lost(&self, gc_run: &mut GcRun) -> Result<()> {
        let what = match self.0.node.has(Mutant::GcNoLog) {
            true => Told::Lists,
            false => Told::All,
        };
        let held = self.0.node.pool.collection().collect(&self.0.ep, &gc_run.gc, what).await?;
        gc_run.found.doubly = (held.twice.len() + gc_run.live.overlaps(&held)) as u64;
        for (lo, route) in std::mem::take(&mut gc_run.own.moved) {
            let bytes = self.0.node.leaf_bytes(route.capacity);
            if !held.has(Span::object(route.leaf, bytes)) {
                gc_run.own.moved.push((lo, route));
            }
        }
        let sets = [&gc_run.live, &gc_run.own.linked, &held];
        gc_run.lost = self.0.node.pool.collection().lost(&gc_run.gc, &sets);
        Ok(())
    }

    /// Objects that another client still works on are left out.
    async fn check_lost(&self, gc_run: &mut GcRun, i: usize) -> Result<bool> {
        let (objects, moved) = (gc_run.lost.objects.len(), gc_run.own.moved.len());
        let _pin = self.0.pin()?;
        if let Some((key, at)) = gc_run.lost.objects.get(i).copied() {
            if let Some(generation) = self.free_object(key, at, &gc_run.lost).await? {
                gc_run.objects.push((key, Grant { addr: at, generation }));
            }
        } else if let Some((lo, route)) = gc_run.own.moved.get(i - objects).cloned() {
            gc_run.own.unlinks.extend(self.unlink_lost(lo, &route).await?);
        } else if let Some(t) = gc_run.lost.lines.get(i - objects - moved).copied() {
            // Part of a cell that was taken already?
            let last = gc_run.own.cells.last().copied();
            let inside = last.is_some_and(|l| l.holds(t));
            if !inside && let Some(cell) = self.free_cell(t, &gc_run.lost.lines).await? {
                gc_run.own.cells.push(cell);
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    async fn take_lost(&self, gc_run: &mut GcRun) -> Result<()> {
        let _pin = self.0.pin()?;
        let noted = match self.0.node.has(Mutant::GcNoLog) {
            true => Held::default(),
            false => {
                self.0.node.pool.collection().collect(&self.0.ep, &gc_run.gc, Told::GcLog).await?
            }
        };
        let pool = &self.0.node.pool;
        for (key, g) in std::mem::take(&mut gc_run.objects) {
            let bytes = u64::from(key.object_bytes);
            if noted.has(Span::object(g.addr, bytes))
                || pool.collection().is_worn_out(key, g.generation)
            {
                continue;
            }
            self.blank_lost(key, g.addr).await?;
            Mark::GcObject.hit();
            gc_run.found.objects += 1;
            gc_run.found.bytes += bytes;
            pool.collection().retire_lost(key, g);
        }
        for chore in std::mem::take(&mut gc_run.own.unlinks) {
            let Chore::Unlink { route, .. } = &chore else { continue };
            let bytes = self.0.node.leaf_bytes(route.capacity);
            if !noted.has(Span::object(route.leaf, bytes)) {
                Mark::GcUnlink.hit();
                self.0.node.push_chore(chore);
            }
        }
        for (at, bytes) in std::mem::take(&mut gc_run.lost.space) {
            if noted.has(Span::Bytes(at.bits(), bytes)) {
                continue;
            }
            Mark::GcSpace.hit();
            gc_run.found.space_bytes += bytes;
            pool.collection().retire_space(&gc_run.gc, at, bytes);
        }
        for t in std::mem::take(&mut gc_run.own.cells) {
            if noted.has(Span::table(t)) {
                continue;
            }
            Mark::GcCell.hit();
            gc_run.found.cells += 1;
            pool.retire_table(self.0.node.root.index, t);
        }
        Ok(())
    }

    async fn note_done(&self, gc: &Gc) -> Result<()> {
        self.0.node.pool.collection().note_counted(&self.0.ep, gc, self.0.node.root.word).await
    }
}
