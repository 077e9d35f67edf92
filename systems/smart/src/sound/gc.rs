//! Garbage collection: finds memory that failed compute nodes held, or that dropped operations had
//! allocated, retires it, and releases abandoned locks of failed nodes.
//!
//! `dmtree_parts::gc` drives the phases. This module knows what is reachable: a cursor over the
//! keys READs every node and leaf that is in the tree throughout, some leaves at a time, and
//! records them as live. If the access of a leaf's holder is revoked, CAS word: held -> free. Of a
//! lost object it READs the first word, for its generation.
//!
//! Invariant: an object that was in the tree throughout is marked, because the path to a key only
//! grows, and a leaf keeps its place or is replaced by one that is logged. An object is retired
//! with a generation that is larger than any it may have had, so old pointers cannot match it.

use dmtree_fabric::{Endpoint, Error, GlobalAddr, OpKind, OpOutcome, Result, Step};
use dmtree_parts::gc::{Collector, Run};
use dmtree_parts::maintenance::Maintained;
use dmtree_parts::{Found, Root, Work};
use dmtree_pool::{ArenaKey, Grant, Held, PoolNode, Span, Told};

use super::client::Smart;
use super::find::Paths;
use super::find::{SlotRef, View};
use super::format::head::Head;
use super::format::leaf::{LeafState, Stored, Word};
use super::format::slot::{Child, LINE, Slot, Symbol};
use super::get::LeafView;
use super::get::Reads;
use super::mutants::Mutant;
use super::node::Task;

const LEAVES_PER_STEP: usize = 256;

/// A collection in progress; the marking goes on at a key.
pub(crate) type GcRun = Run<Vec<u8>, ()>;

/// A garbage collection, by a client.
pub(crate) struct Collecting<'c>(pub(crate) &'c Smart);

impl Collecting<'_> {
    /// Runs a whole collection.
    pub(crate) async fn gc_op(&self) -> Result<Found> {
        let gc = self.0.node.pool.collection().next_gc(&self.0.ep, self.0.node.root.index).await?;
        self.0.collect(gc).await
    }

    /// Runs a part of the collection that follows a node failure; one node does it for all. A
    /// collection that fails because of another node is started again.
    pub(crate) async fn gc_task(&self) -> Result<Work> {
        if !self.0.node.pool.membership().is_first() {
            return Ok(Work::None);
        }
        let scope = self.0.ep.begin(OpKind::Maintain);
        let begun = self.0.node.begun(Task::Gc);
        match self.0.collect_some(self.0.node.maintenance.take_gc()).await {
            Ok(None) => begun.done(),
            Ok(Some(gc_run)) => self.0.node.maintenance.keep_gc(gc_run),
            Err(e) => return begun.gc_failed(e),
        }
        scope.end(OpOutcome::Other);
        Ok(Work::Some)
    }

    /// The largest generation that a lost object may have had; `None` when its first word does not
    /// show it.
    async fn last_generation(&self, key: ArenaKey, at: GlobalAddr) -> Result<Option<u16>> {
        self.0.ep.step(Step::Structure);
        let first = self.0.ep.read(at, 8).await?.word(0);
        let written = match key == self.0.node.nodes.key() {
            true => Head::of_bits(first).map(|h| h.generation),
            false => Word::of_bits(first).map(|w| w.generation),
        };
        // A grant may have been used up before any word was written.
        Ok(if first == 0 { Some(0) } else { written.map(|g| g.saturating_add(1)) })
    }

    /// Marks reachable objects from a key on; returns the key to continue from.
    async fn mark_some(&self, from: &[u8], live: &mut Held) -> Result<Option<Vec<u8>>> {
        let root_grant = Paths(self.0).root_grant().await?;
        let node = |v: &View| Span::object(v.at, u64::from(self.0.node.nodes.key().object_bytes));
        let root = Paths(self.0).find_until(&[], 0).await?.node;
        if root.at != root_grant.addr {
            return Err(Error::corrupt(format!("{} is no root", root.at)));
        }
        live.add(node(&root));
        let mut stack = vec![(in_order(&root, Some(from)), root, true)];
        let mut marked = 0;
        while let Some((slots, view, border)) = stack.last_mut() {
            let Some((at, slot)) = slots.next() else {
                stack.pop();
                continue;
            };
            let slot_ref = SlotRef { at, slot };
            let on_border = *border && slot.is(Symbol::of(from, view.head.len));
            match slot.child()? {
                Some(Child::Node { at, kind }) => {
                    let Some(child) = Paths(self.0).child(slot_ref, at, kind).await? else {
                        continue;
                    };
                    live.add(node(&child));
                    let border = on_border && child.leads_to(from);
                    stack.push((in_order(&child, border.then_some(from)), child, border));
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

    async fn mark_leaf(&self, at: GlobalAddr, lines: usize, live: &mut Held) -> Result<Vec<u8>> {
        let view = Reads(self.0).read_leaf(at, lines).await?;
        live.add(Span::object(at, lines as u64 * LINE));
        let leaf = view.leaf(self.0);
        if let Stored::Block(b) = leaf.value {
            live.add(Span::block(b));
        }
        if view.word.state == LeafState::Tombstone {
            self.0.node.maintenance.push(Task::Unlink(leaf.key.to_vec()));
        }
        self.release_abandoned(&view).await?;
        Ok(leaf.key.to_vec())
    }

    /// Releases an abandoned lock: the access of the holder's compute node is revoked.
    async fn release_abandoned(&self, view: &LeafView) -> Result<()> {
        let word = view.word;
        if word.holder.is_some_and(|h| self.0.node.is_revoked(h)) {
            self.0.ep.cas(view.at, word.bits(), word.held_by(None).bits()).await?;
        }
        Ok(())
    }
}

impl Collector for Smart {
    type Position = Vec<u8>;
    type Notes = ();

    fn place(&self) -> (&Endpoint, &PoolNode, Root) {
        (&self.ep, &self.node.pool, self.node.root)
    }

    async fn first(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn mark(&self, from: Vec<u8>, gc_run: &mut GcRun) -> Result<Option<Vec<u8>>> {
        let _pin = self.op.pin()?;
        Collecting(self).mark_some(&from, &mut gc_run.live).await
    }

    async fn find_lost(&self, gc_run: &mut GcRun) -> Result<()> {
        let pool = &self.node.pool;
        let held = pool.collection().collect(&self.ep, &gc_run.gc, Told::All).await?;
        gc_run.found.doubly = (held.twice.len() + gc_run.live.overlaps(&held)) as u64;
        gc_run.lost = pool.collection().lost(&gc_run.gc, &[&gc_run.live, &held]);
        Ok(())
    }

    async fn check_lost(&self, gc_run: &mut GcRun, i: usize) -> Result<bool> {
        let Some((key, at)) = gc_run.lost.objects.get(i).copied() else { return Ok(false) };
        let _pin = self.op.pin()?;
        if let Some(generation) = Collecting(self).last_generation(key, at).await? {
            gc_run.objects.push((key, Grant { addr: at, generation }));
        }
        Ok(true)
    }

    async fn take_lost(&self, gc_run: &mut GcRun) -> Result<()> {
        let _pin = self.op.pin()?;
        let pool = &self.node.pool;
        let logged = pool.collection().collect(&self.ep, &gc_run.gc, Told::GcLog).await?;
        for (key, g) in std::mem::take(&mut gc_run.objects) {
            let bytes = u64::from(key.object_bytes);
            let logged = logged.has(Span::object(g.addr, bytes));
            if (logged && !self.node.has(Mutant::GcNoLog))
                || pool.collection().is_worn_out(key, g.generation)
            {
                continue;
            }
            gc_run.found.objects += 1;
            gc_run.found.bytes += bytes;
            pool.collection().retire_lost(key, g);
        }
        for (at, bytes) in std::mem::take(&mut gc_run.lost.space) {
            if logged.has(Span::Bytes(at.bits(), bytes)) {
                continue;
            }
            gc_run.found.space_bytes += bytes;
            pool.collection().retire_space(&gc_run.gc, at, bytes);
        }
        Ok(())
    }
}

/// The children of a node in key order, from a key on.
fn in_order(view: &View, from: Option<&[u8]>) -> std::vec::IntoIter<(GlobalAddr, Slot)> {
    let first = from.map(|key| Symbol::of(key, view.head.len));
    let mut children = view.children();
    children.retain(|(_, s)| s.symbol() >= first);
    children.into_iter()
}
