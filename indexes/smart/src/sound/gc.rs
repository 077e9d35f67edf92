//! Garbage collection: finds memory that failed compute nodes held, or that dropped operations had
//! allocated, retires it, and releases abandoned locks of failed nodes.
//!
//! `dmtree_pool::Gc` tells lost memory from memory in use while all clients work. This module
//! supplies the mark phase: a cursor over the keys visits every leaf and node that is in the tree
//! throughout.
//!
//! Phases, in order:
//! 1. Starting: opens the GC log of every compute node, and waits until the operations have ended
//!    that ran at the beginning.
//! 2. Marking: READs nodes and leaves in key order, some leaves at a time, and records them as
//!    live. If the access of a leaf's holder is revoked, CAS word: held -> free.
//! 3. Draining: raises a barrier, and waits until the operations have ended that ran during
//!    marking. An object that is neither marked, nor in a GC log, nor in a list of a compute node
//!    (free list, limbo list) is then lost.
//! 4. Checking: READs the first word of each lost object for its generation.
//! 5. Sweeping: raises a barrier, waits, and reads the GC log. Objects that were logged meanwhile
//!    belong to another operation; all others are retired.
//!
//! Invariant: an object that was in the tree throughout is marked, because the path to a key only
//! grows, and a leaf keeps its place or is replaced by one that is logged. An object is retired
//! with a generation that is larger than any it may have had, so old pointers cannot match it.
//!
//! The state is in the memory of one compute node. A crash loses it, and a later collection starts
//! again.

use dmtree_fabric::{ErrorKind, OpKind, OpOutcome, Result, Step};
use dmtree_parts::{Found, Work};
use dmtree_pool::{ArenaKey, Gc, Grant, Held, Lost, Span, Told};

use super::client::Smart;
use super::find::{SlotRef, View};
use super::format::head::Head;
use super::format::leaf::{LeafState, Stored, Word};
use super::format::slot::{Child, LINE, Slot, Symbol};
use super::get::LeafView;
use super::mutants::Mutant;
use super::node::Task;

/// Pause between two checks whether the operations have ended, ns.
const PAUSE_NS: u64 = 50_000;
/// Collection steps in one call of maintenance.
const STEPS_PER_CALL: u32 = 16;
/// Leaves marked in one step.
const LEAVES_PER_STEP: usize = 256;

/// A collection in progress.
#[derive(Debug)]
pub(crate) struct GcRun {
    gc: Gc,
    phase: Phase,
    live: Held,
    lost: Lost,
    /// Lost objects that are free unless the GC log has them, with the largest generation they may
    /// have had.
    objects: Vec<(ArenaKey, Grant)>,
    found: Found,
}

impl GcRun {
    fn of(gc: Gc) -> Self {
        Self {
            gc,
            phase: Phase::Starting,
            live: Held::default(),
            lost: Lost::default(),
            objects: Vec::new(),
            found: Found::default(),
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Waits for operations that ran at the beginning.
    Starting,
    /// Marks reachable objects, from a key on.
    Marking(Vec<u8>),
    /// Waits for operations that ran during the marking.
    Draining,
    /// Reads the generation of lost object number `.0`.
    Checking(usize),
    /// Waits for operations that may have retired one of the lost objects.
    Sweeping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Continue,
    Wait,
    Done,
}

impl Smart {
    /// Runs a whole collection.
    pub(crate) async fn gc_op(&self) -> Result<Found> {
        let gc = self.node.pool.next_gc(&self.ep, self.node.root.index).await?;
        let mut gc_run = GcRun::of(gc);
        let counted = loop {
            match self.gc_step(&mut gc_run).await {
                Ok(Progress::Continue) => {}
                Ok(Progress::Wait) => self.ep.sleep(PAUSE_NS).await,
                Ok(Progress::Done) => break Ok(gc_run.found),
                Err(e) => break Err(e),
            }
        };
        self.node.pool.end_gc(&self.ep, gc_run.gc).await;
        counted
    }

    /// Runs a part of the collection that follows a node failure; one node does it for all. A
    /// collection that fails because of another node is started again.
    pub(crate) async fn gc_task(&self) -> Result<Work> {
        if !self.node.pool.is_first() {
            return Ok(Work::None);
        }
        let scope = self.ep.begin(OpKind::Maintain);
        let again = RequeueGuard { c: self, wanted: true };
        let mut gc_run = match self.node.take_gc() {
            Some(gc_run) => gc_run,
            None => match self.begin_gc().await {
                Ok(gc_run) => Box::new(gc_run),
                Err(e) => return again.after(e),
            },
        };
        for _ in 0..STEPS_PER_CALL {
            match self.gc_step(&mut gc_run).await {
                Ok(Progress::Continue) => {}
                Ok(Progress::Wait) => {
                    self.ep.sleep(PAUSE_NS).await;
                    break;
                }
                Ok(Progress::Done) => {
                    self.node.pool.end_gc(&self.ep, gc_run.gc).await;
                    again.done();
                    scope.end(OpOutcome::Other);
                    return Ok(Work::Some);
                }
                Err(e) => {
                    self.node.pool.end_gc(&self.ep, gc_run.gc).await;
                    return again.after(e);
                }
            }
        }
        self.node.keep_gc(gc_run);
        scope.end(OpOutcome::Other);
        Ok(Work::Some)
    }

    async fn begin_gc(&self) -> Result<GcRun> {
        self.ep.renew_deadline();
        let begun = self.node.pool.begin_gc(&self.ep, self.node.root.index);
        begun.await.map(GcRun::of)
    }

    async fn gc_step(&self, gc_run: &mut GcRun) -> Result<Progress> {
        self.ep.renew_deadline();
        let pool = &self.node.pool;
        pool.hold_gc(&self.ep, &mut gc_run.gc).await?;
        match &gc_run.phase {
            Phase::Starting | Phase::Draining | Phase::Sweeping
                if !pool.is_past(&self.ep, &gc_run.gc).await? =>
            {
                return Ok(Progress::Wait);
            }
            Phase::Starting => gc_run.phase = Phase::Marking(Vec::new()),
            Phase::Marking(from) => {
                let from = from.clone();
                let pin = self.pin();
                let next = self.mark_some(&from, &mut gc_run.live).await?;
                drop(pin);
                match next {
                    Some(next) => gc_run.phase = Phase::Marking(next),
                    None => {
                        pool.raise_barrier(&self.ep, &mut gc_run.gc).await?;
                        gc_run.phase = Phase::Draining;
                    }
                }
            }
            Phase::Draining => {
                let held = pool.collect(&self.ep, &gc_run.gc, Told::All).await?;
                gc_run.found.doubly = (held.twice.len() + gc_run.live.overlaps(&held)) as u64;
                gc_run.lost = pool.lost(&gc_run.gc, &[&gc_run.live, &held]);
                gc_run.phase = Phase::Checking(0);
            }
            Phase::Checking(i) => {
                let i = *i;
                let Some((key, at)) = gc_run.lost.objects.get(i).copied() else {
                    pool.raise_barrier(&self.ep, &mut gc_run.gc).await?;
                    gc_run.phase = Phase::Sweeping;
                    return Ok(Progress::Continue);
                };
                let pin = self.pin();
                if let Some(generation) = self.last_generation(key, at).await? {
                    gc_run.objects.push((key, Grant { addr: at, generation }));
                }
                drop(pin);
                gc_run.phase = Phase::Checking(i + 1);
            }
            Phase::Sweeping => {
                // This part is pinned, too: a collection that another node has begun meanwhile
                // waits for it.
                let _pin = self.pin();
                self.take_lost(gc_run).await?;
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::Continue)
    }

    /// The largest generation that a lost object may have had; `None` when its first word does not
    /// show it.
    async fn last_generation(
        &self,
        key: ArenaKey,
        at: dmtree_fabric::GlobalAddr,
    ) -> Result<Option<u16>> {
        self.ep.step(Step::Structure);
        let first = self.ep.read(at, 8).await?.word(0);
        let written = match key == self.node.nodes.key() {
            true => Head::of_bits(first).map(|h| h.generation),
            false => Word::of_bits(first).map(|w| w.generation),
        };
        // A grant may have been used up before any word was written.
        Ok(if first == 0 {
            Some(0)
        } else {
            written.map(|generation| generation.saturating_add(1))
        })
    }

    /// The sweep: objects in the GC log belong to another operation; retires all others.
    async fn take_lost(&self, gc_run: &mut GcRun) -> Result<()> {
        let pool = &self.node.pool;
        let logged = pool.collect(&self.ep, &gc_run.gc, Told::GcLog).await?;
        for (key, g) in std::mem::take(&mut gc_run.objects) {
            let bytes = u64::from(key.object_bytes);
            let logged = logged.has(Span::object(g.addr, bytes));
            if (logged && !self.node.has(Mutant::GcNoLog)) || pool.is_worn_out(key, g.generation) {
                continue;
            }
            gc_run.found.objects += 1;
            gc_run.found.bytes += bytes;
            pool.retire_lost(key, g);
        }
        for (at, bytes) in std::mem::take(&mut gc_run.lost.space) {
            if logged.has(Span::Bytes(at.bits(), bytes)) {
                continue;
            }
            gc_run.found.space_bytes += bytes;
            pool.retire_space(&gc_run.gc, at, bytes);
        }
        Ok(())
    }

    /// Marks reachable objects from a key on; returns the key to continue from.
    async fn mark_some(&self, from: &[u8], live: &mut Held) -> Result<Option<Vec<u8>>> {
        let root_grant = self.root_grant().await?;
        let node = |v: &View| Span::object(v.at, u64::from(self.node.nodes.key().object_bytes));
        let root = self.find_until(&[], 0).await?.node;
        if root.at != root_grant.addr {
            return Err(dmtree_fabric::Error::corrupt(format!("{} is no root", root.at)));
        }
        live.add(node(&root));
        let mut stack = vec![(in_order(&root, Some(from)), root, true, 0)];
        let mut marked = 0;
        while let Some((slots, view, border, next)) = stack.last_mut() {
            let Some(slot) = slots.get(*next).copied() else {
                stack.pop();
                continue;
            };
            *next += 1;
            let Some(i) = view.slots.iter().position(|s| *s == slot) else { continue };
            let slot_ref = SlotRef { at: view.slot_at(i), slot };
            let on_border = *border && slot.is(Symbol::of(from, view.head.len));
            match slot.child()? {
                Some(Child::Node { at, kind }) => {
                    let Some(child) = self.child(slot_ref, at, kind).await? else { continue };
                    live.add(node(&child));
                    let border = on_border && child.leads_to(from);
                    stack.push((in_order(&child, border.then_some(from)), child, border, 0));
                }
                Some(Child::Leaf { at, lines }) => {
                    let key = self.mark_leaf(at, lines, live).await?;
                    marked += 1;
                    if marked >= LEAVES_PER_STEP && &key[..] >= from {
                        return Ok(Some([&key[..], &[0]].concat()));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    async fn mark_leaf(
        &self,
        at: dmtree_fabric::GlobalAddr,
        lines: usize,
        live: &mut Held,
    ) -> Result<Vec<u8>> {
        let view = self.read_leaf(at, lines).await?;
        live.add(Span::object(at, lines as u64 * LINE));
        let leaf = view.leaf(self);
        if let Stored::Block(b) = leaf.value {
            live.add(Span::block(b));
        }
        if view.word.state == LeafState::Tombstone {
            self.node.push_task(Task::Unlink(leaf.key.to_vec()));
        }
        self.release_abandoned(&view).await?;
        Ok(leaf.key.to_vec())
    }

    /// Releases an abandoned lock: the access of the holder's compute node is revoked.
    async fn release_abandoned(&self, view: &LeafView) -> Result<()> {
        let word = view.word;
        if word.holder.is_some_and(|h| self.node.is_revoked(h)) {
            self.ep.cas(view.at, word.bits(), word.held_by(None).bits()).await?;
        }
        Ok(())
    }
}

/// The slots of a node in key order, from a key on.
fn in_order(view: &View, from: Option<&[u8]>) -> Vec<Slot> {
    let first = from.map(|key| Symbol::of(key, view.head.len));
    let mut slots: Vec<Slot> = view.slots.iter().copied().filter(|s| s.has_child()).collect();
    slots.retain(|s| s.symbol() >= first);
    slots.sort_by_key(|s| s.symbol());
    slots
}

/// Queues the collection again on drop, unless it is done.
struct RequeueGuard<'c> {
    c: &'c Smart,
    wanted: bool,
}

impl RequeueGuard<'_> {
    fn done(mut self) {
        self.wanted = false;
    }

    /// Returns errors that a later attempt would meet again, and no others.
    fn after(self, e: dmtree_fabric::Error) -> Result<Work> {
        let transient = [ErrorKind::Unreachable, ErrorKind::Busy, ErrorKind::TimedOut];
        if transient.contains(&e.kind()) {
            return Ok(Work::None);
        }
        if e.kind() == ErrorKind::Corrupt {
            self.done();
        }
        Err(e)
    }
}

impl Drop for RequeueGuard<'_> {
    fn drop(&mut self) {
        if self.wanted {
            self.c.node.push_task(Task::Gc);
        }
    }
}
