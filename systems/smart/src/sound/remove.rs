//! Removes the objects that deletes leave behind: tombstones (their slots become vacant) and nodes
//! without children. The module also runs the maintenance tasks.
//!
//! Unlinking a leaf's tombstone (`unlink_leaf`): READ of the path, READ leaf, CAS slot: leaf ->
//! vacant. The client that succeeds with this CAS retires the leaf.
//!
//! Removing a node (`prune`), which has to be *closed* first so that no client inserts into it:
//! 1. CAS head: linked -> closing, with the next number.
//! 2. CAS of all used slots and of the first that was never used: frozen under that number. Slots
//!    are taken in order, so no slot behind these is used.
//! 3. CAS head: closing -> tombstone; or, if a slot had changed, back to linked with the next
//!    number.
//! 4. CAS of the slot above: node -> vacant. The client that succeeds with this CAS retires the
//!    node.
//!
//! Invariants: an inserting client changes the head before it uses a frozen slot
//! (`cancel_closing`), so step 3 fails if the node has got a child. A node is unlinked only after
//! it has become a tombstone, and the slots of a tombstone are frozen. Only the CAS that unlinks
//! retires, so memory is retired exactly once.
//!
//! A crash after step 1 or 2 leaves a closing unfinished; the next closer starts again under the
//! next number, and an inserting client cancels it. A crash after step 3 leaves a tombstone that a
//! slot names; the next client on the slow path makes the slot vacant. After a crash behind the
//! last CAS garbage collection finds the memory.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{ErrorKind, OpKind, OpOutcome, Result};
use dmtree_parts::Work;
use dmtree_parts::maintenance::Maintained;
use dmtree_parts::op::{reclaim_for_room, reclaim_when_due};

use super::client::Smart;
use super::find::Paths;
use super::find::{Content, View};
use super::format::head::{Head, NodeState};
use super::format::leaf::LeafState;
use super::format::slot::Slot;
use super::gc::Collecting;
use super::get::Reads;
use super::insert::Inserts;
use super::mutants::Mutant;
use super::node::Task;
use super::update::Updates;

/// Leaves and nodes that go.
pub(crate) struct Removals<'c>(pub(crate) &'c Smart);

impl Removals<'_> {
    /// Makes the slot vacant that names the tombstone of a key.
    pub(crate) async fn unlink_leaf(&self, key: &[u8]) -> Result<()> {
        let place = Paths(self.0).find(key).await?;
        let Content::Leaf { slot_ref, at, lines } = place.content else { return Ok(()) };
        let view = Reads(self.0).read_leaf(at, lines).await?;
        if view.leaf(self.0).key != key || view.word.state != LeafState::Tombstone {
            return Ok(());
        }
        if self.0.node.has(Mutant::RetireNamed) {
            Inserts(self.0).retire_leaf(&view);
        }
        if self.0.ep.cas(slot_ref.at, slot_ref.slot.0, slot_ref.slot.hole().0).await?
            != slot_ref.slot.0
        {
            // The slot was split, or another client has unlinked the leaf; the task is repeated.
            self.0.node.maintenance.push(Task::Unlink(key.to_vec()));
            return Ok(());
        }
        if !self.0.node.has(Mutant::RetireNamed) {
            Inserts(self.0).retire_leaf(&view);
        }
        let others =
            place.node.slots.iter().filter(|s| s.has_child() && **s != slot_ref.slot).count();
        if others == 0 {
            Inserts(self.0).prune_later(&key[..place.node.head.len]);
        }
        Ok(())
    }

    /// Closes and unlinks the node with a prefix, if it has no children; then the node above, if it
    /// has none any more.
    async fn prune(&self, prefix: &[u8]) -> Result<()> {
        let place = Paths(self.0).find_until(prefix, prefix.len()).await?;
        let view = &place.node;
        if view.head.len != prefix.len() || view.has_children() || prefix.is_empty() {
            return Ok(());
        }
        if !self.close(view).await? {
            return Ok(());
        }
        match place.above {
            Some(above) if !Paths(self.0).unlink(above, view.grant()).await? => return Ok(()),
            Some(_) => {}
            // The descent began at this node, which is cached. No descent starts at a tombstone:
            // the next one comes from above, and makes the slot vacant.
            None => _ = Paths(self.0).find_until(prefix, prefix.len()).await?,
        }
        // The node above may have no children now.
        let place = Paths(self.0).find_until(prefix, prefix.len()).await?;
        if place.node.head.len < prefix.len() && !place.node.has_children() {
            Inserts(self.0).prune_later(&prefix[..place.node.head.len]);
        }
        Ok(())
    }

    /// Turns a node without children into a tombstone. False: it has children, or a client inserts.
    pub(crate) async fn close(&self, view: &View) -> Result<bool> {
        let closings = view.head.closings.wrapping_add(1);
        let closing = Head { state: NodeState::Closing, closings, ..view.head };
        if self.0.ep.cas(view.at, view.head.bits(), closing.bits()).await? != view.head.bits() {
            return Ok(false);
        }
        let frozen = match self.0.node.has(Mutant::CloseUnfrozen) {
            true => Ok(true),
            false => self.freeze(view, closings).await,
        };
        let end = match frozen {
            Ok(true) => Head { state: NodeState::Tombstone, ..closing },
            _ => Head { state: NodeState::Linked, closings: closings.wrapping_add(1), ..closing },
        };
        let was = self.0.ep.cas(view.at, closing.bits(), end.bits()).await?;
        Ok(frozen? && was == closing.bits())
    }

    async fn freeze(&self, view: &View, closing: u16) -> Result<bool> {
        let mut verbs = VerbVec::new();
        let mut expected: Vec<u64> = Vec::new();
        for (i, slot) in view.slots.iter().enumerate() {
            verbs.cas(view.slot_at(i), slot.0, slot.frozen(closing).0);
            expected.push(slot.0);
            if *slot == Slot::EMPTY || slot.is_end_mark() {
                break;
            }
        }
        let verbs = self.0.ep.batch(verbs).await?;
        Ok(expected.iter().enumerate().all(|(i, old)| verbs.word(i) == *old))
    }

    // ---- maintenance ----

    pub(crate) async fn maintain_op(&self) -> Result<Work> {
        if self.0.node.maintenance.begin_sweep(&self.0.node.pool)
            && self.0.node.pool.membership().is_first()
        {
            self.0.node.maintenance.push(Task::Gc);
        }
        if let Some((lock, _)) = self.0.node.abandoned_locks.nth(self.0.next_round(), |_| true) {
            let scope = self.0.ep.begin(OpKind::Maintain);
            let _pin = self.0.op.pin()?;
            match Updates(self.0).recover_lock(lock.at).await {
                Ok(()) => {
                    scope.end(OpOutcome::Other);
                    return Ok(Work::Some);
                }
                Err(e) if e.kind() == ErrorKind::Unreachable => {}
                Err(e) => return Err(e),
            }
        }
        match self.0.node.maintenance.pop() {
            Some(Task::Gc) => return Box::pin(Collecting(self.0).gc_task()).await,
            Some(task) => return self.run_task(task).await,
            None => {}
        }
        reclaim_when_due(&self.0.ep, &self.0.node.pool).await
    }

    async fn run_task(&self, task: Task) -> Result<Work> {
        let scope = self.0.ep.begin(OpKind::Maintain);
        let _pin = self.0.op.pin()?;
        let done = match &task {
            Task::Prune(prefix) => self.prune(prefix).await,
            Task::Unlink(key) => self.unlink_leaf(key).await,
            Task::Gc => Ok(()),
        };
        if let Err(e) = done {
            return self.0.node.begun(task).failed(e);
        }
        scope.end(OpOutcome::Other);
        Ok(Work::Some)
    }

    /// Runs queued maintenance, so that freed memory can be reused; returns whether memory became
    /// free.
    pub(crate) async fn reclaim_memory(&self) -> Result<bool> {
        for _ in 0..256 {
            if self.maintain_op().await? == Work::None {
                break;
            }
        }
        reclaim_for_room(&self.0.ep, &self.0.node.pool).await
    }
}
