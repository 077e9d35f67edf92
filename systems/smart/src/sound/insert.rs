//! Inserts of new keys.
//!
//! | case | verbs after the descent |
//! |---|---|
//! | the symbol has no slot | WRITE leaf, CAS slot: 0 -> leaf |
//! | no slot is left | CAS head: the next type, before that |
//! | the symbol's slot is vacant, or names the key's tombstone | WRITE leaf, CAS slot |
//! | the slot names another key's leaf, or another node | {WRITE node, WRITE leaf}, CAS slot |
//!
//! The CAS of the slot is the linearization point. In the last case it replaces the leaf or node by
//! the new node, which has the old child and the new leaf.
//!
//! Invariants: slots are taken in order and belong to one symbol, so two clients that insert under
//! one symbol meet at the same slot. A type is raised before a slot behind it is used, so no reader
//! misses a slot. New memory is linked or live at once only in the first generation of its address,
//! when no old pointer leads there; otherwise it is `Pending` until a client has seen it behind
//! a slot. An insertion into a frozen slot first changes the head, which makes the closing fail.
//!
//! A crash before the CAS loses the new memory until the next garbage collection. A crash after it
//! leaves at most a pending leaf or node, which the next client on the slow path marks. The client
//! that replaces a tombstone retires it; if that client crashes first, garbage collection finds the
//! memory.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{Buf, Effect, Error, GlobalAddr, OpOutcome, Result, Step};
use dmtree_parts::Outcome;
use dmtree_parts::combine::LeaderGuard;
use dmtree_parts::keys::common;
use dmtree_parts::op::{SPLIT, Written};
use dmtree_pool::Grant;

use super::client::{Smart, Taken};
use super::find::Paths;
use super::find::{Content, Place, SlotRef, View};
use super::format::head::{Head, NodeState, NodeType};
use super::format::leaf::{LeafState, Word};
use super::format::slot::{Child, Slot, Symbol};
use super::get::LeafView;
use super::get::Reads;
use super::mutants::Mutant;
use super::node::Task;
use super::remove::Removals;
use super::write::seal;

/// A leaf image that is not written yet.
pub(crate) struct NewLeaf {
    pub slot: Slot,
    pub at: GlobalAddr,
    pub image: Buf,
}

/// Inserts of new keys.
pub(crate) struct Inserts<'c>(pub(crate) &'c Smart);

impl Inserts<'_> {
    /// Inserts an absent key at a place. `other`: the leaf that is there. `None`: the place has
    /// changed.
    pub(crate) async fn insert(
        &self,
        key: &[u8],
        value: &[u8],
        place: Place,
        other: Option<LeafView>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let (slot_ref, fork) = match &place.content {
            Content::Leaf { slot_ref, .. } => {
                let Some(view) = &other else { return Ok(None) };
                let leaf = view.leaf(self.0);
                (*slot_ref, (leaf.key != key).then(|| parting(leaf.key, key)))
            }
            Content::Node { slot_ref, view } => match self.any_key(view).await? {
                Some(below) => (*slot_ref, Some(parting(&below, key))),
                None => {
                    // The node has no keys: it is removed, and its slot becomes vacant.
                    self.prune_child(*slot_ref, view).await?;
                    return Ok(None);
                }
            },
            Content::Vacant(slot_ref) => {
                if !self.cancel_closing(&place.node, slot_ref.slot).await? {
                    return Ok(None);
                }
                (*slot_ref, None)
            }
            Content::NoSlot => match self.free_slot(&place).await? {
                Some(slot_ref) => (slot_ref, None),
                None => return Ok(None),
            },
        };
        let len = place.node.head.len;
        if let Some((lcp, _)) = fork
            && lcp <= len
        {
            return Err(Error::corrupt(format!(
                "{} leads to a key that shares {lcp} bytes, where {} are shared by all",
                slot_ref.at,
                len + 1
            )));
        }
        let mut taken = Taken::default();
        let linked =
            self.build_and_link(key, value, (len, slot_ref, fork), lease, &mut taken).await;
        let linked = match linked {
            Ok(linked) => linked,
            Err(e) => {
                // Memory that may have been linked is not given back; garbage collection finds it
                // if it was not linked.
                if e.effect() == Effect::None {
                    self.0.give_back(taken);
                }
                return Err(e);
            }
        };
        if !linked {
            self.0.give_back(taken);
            return Ok(None);
        }
        if fork.is_none() {
            if let Some(view) = other {
                self.retire_leaf(&view);
            }
            return Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::InsertPlain))));
        }
        Ok(Some(SPLIT))
    }

    /// Writes the leaf and, for a fork, the node, and links them. False: the slot has changed.
    async fn build_and_link(
        &self,
        key: &[u8],
        value: &[u8],
        (len, slot_ref, fork): (usize, SlotRef, Option<(usize, Symbol)>),
        lease: &mut Option<LeaderGuard>,
        taken: &mut Taken,
    ) -> Result<bool> {
        // If this attempt fails, a later one writes the value of the batch's leader; the leader
        // then takes effect last.
        let value = seal(lease, value);
        let symbol = Symbol::of(key, fork.map_or(len, |(lcp, _)| lcp));
        let leaf = self.new_leaf(key, &value, symbol, taken).await?;
        let Some((lcp, below)) = fork else {
            self.0.ep.step(Step::Entry);
            let (at, old, new) = (slot_ref.at, slot_ref.slot.0, leaf.slot.0);
            if self.0.node.has(Mutant::SlotBeforeLeaf) {
                let linked = self.0.ep.cas(at, old, new).await? == old;
                self.0.ep.write(leaf.at, leaf.image).await?;
                return Ok(linked);
            }
            if leaf.at.node() == at.node() {
                let linked = (write(leaf.at, leaf.image), cas(at, old, new));
                return Ok(self.0.ep.chain(linked).await?.1 == old);
            }
            self.0.ep.write(leaf.at, leaf.image).await?;
            return Ok(self.0.ep.cas(at, old, new).await? == old);
        };
        let grant = self.0.take_node(taken).await?;
        let kind = NodeType::SMALLEST;
        let slots = [slot_ref.slot.under(below), leaf.slot];
        let image = Paths(self.0).node_image(grant.generation, kind, &key[..lcp], &slots).await?;
        let node = Slot::node(Symbol::of(key, len), grant.addr, kind);
        self.0.ep.step(Step::Structure);
        let both = (write(leaf.at, leaf.image), write(grant.addr, image));
        let was = if self.0.node.has(Mutant::SlotBeforeNode) {
            let was = self.0.ep.cas(slot_ref.at, slot_ref.slot.0, node.0).await?;
            self.0.ep.batch(both).await?;
            was
        } else {
            self.0.ep.batch(both).await?;
            self.0.ep.cas(slot_ref.at, slot_ref.slot.0, node.0).await?
        };
        if was == slot_ref.slot.0 {
            self.0.node.cache.insert(&key[..lcp], grant, &slots);
        }
        Ok(was == slot_ref.slot.0)
    }

    /// No old pointer can lead to memory that was never used, so a leaf there is live at once.
    pub(crate) async fn new_leaf(
        &self,
        key: &[u8],
        value: &[u8],
        symbol: Symbol,
        taken: &mut Taken,
    ) -> Result<NewLeaf> {
        let shape = self.0.node.shape;
        let Grant { addr: at, generation } = self.0.take_leaf(key, taken).await?;
        let stored = self.0.store(value, at, taken).await?;
        let mut image = self.0.buf(shape.bytes(key.len())).await?;
        let at_once = generation == 1 || self.0.node.has(Mutant::NeverPending);
        let state = if at_once { LeafState::Live } else { LeafState::Pending };
        let word = Word { state, active: false, version: 0, generation, holder: None };
        shape.fill(&mut image, at, word, key, stored);
        Ok(NewLeaf { slot: Slot::leaf(symbol, at, shape.lines(key.len())), at, image })
    }

    /// The slot to take in a node that has none for the symbol. `None`: the node has changed.
    async fn free_slot(&self, place: &Place) -> Result<Option<SlotRef>> {
        let view = &place.node;
        let free = view.slots.iter().position(|s| *s == Slot::EMPTY || s.is_end_mark());
        if let Some(i) = free {
            let slot = view.slots[i];
            let open = slot == Slot::EMPTY || self.cancel_closing(view, slot).await?;
            return Ok(open.then(|| SlotRef { at: view.slot_at(i), slot }));
        }
        let Some(kind) = view.head.kind.next() else {
            return Err(Error::corrupt(format!("node {} has no slot left for a symbol", view.at)));
        };
        // A new number makes a closing in progress fail.
        let closings =
            view.head.closings.wrapping_add(u16::from(view.head.state == NodeState::Closing));
        let larger = Head { kind, state: NodeState::Linked, closings, ..view.head };
        if self.0.ep.cas(view.at, view.head.bits(), larger.bits()).await? != view.head.bits() {
            return Ok(None);
        }
        if let Some(above) = place.above
            && let Some(symbol) = above.slot.symbol()
        {
            // A hint: the next reader asks for all slots at once.
            let hint = Slot::node(symbol, view.at, kind);
            self.0.ep.cas(above.at, above.slot.0, hint.0).await?;
        }
        Ok(Some(SlotRef { at: view.slot_at(view.slots.len()), slot: Slot::EMPTY }))
    }

    /// Called before a frozen slot is used: cancels the closing that froze it. False: the node has
    /// changed.
    async fn cancel_closing(&self, view: &View, slot: Slot) -> Result<bool> {
        let Some(Child::Frozen(closing)) = slot.child()? else { return Ok(true) };
        if view.head.state != NodeState::Closing || view.head.closings != closing {
            // The closing was cancelled, unless the slot was READ after the head: then it may go
            // on.
            let later = view.head.closings.wrapping_sub(closing) as i16;
            return Ok(later > 0 && view.head.is_linked());
        }
        let head = view.head;
        let open =
            Head { state: NodeState::Linked, closings: head.closings.wrapping_add(1), ..head };
        Ok(self.0.ep.cas(view.at, head.bits(), open.bits()).await? == head.bits())
    }

    /// Any key below a node, present or not: all of them have its prefix. `None`: there is no key.
    pub(crate) async fn any_key(&self, view: &View) -> Result<Option<Vec<u8>>> {
        let mut open: Vec<(GlobalAddr, Slot)> = view.slot_refs().collect();
        while let Some((at, slot)) = open.pop() {
            self.0.ep.check_deadline("a key below a node", view.at.bits())?;
            match slot.child()? {
                Some(Child::Leaf { at, lines }) => {
                    let leaf = Reads(self.0).read_leaf(at, lines).await?;
                    let key = leaf.leaf(self.0).key.to_vec();
                    if !view.leads_to(&key) {
                        return Err(Error::corrupt(format!(
                            "leaf {at} is below node {}, but its key does not have the prefix",
                            view.at
                        )));
                    }
                    return Ok(Some(key));
                }
                Some(Child::Node { at: node, kind }) => {
                    if let Some(child) =
                        Paths(self.0).child(SlotRef { at, slot }, node, kind).await?
                    {
                        open.extend(child.slot_refs());
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Removes a node without keys from the slot that an insert needs: begins by closing it.
    async fn prune_child(&self, slot_ref: SlotRef, view: &View) -> Result<()> {
        let empty = !view.has_children();
        if empty && Removals(self.0).close(view).await? {
            Paths(self.0).unlink(slot_ref, view.grant()).await?;
        } else if !empty {
            // Its empty children are removed first.
            let mut below = view.slot_refs().filter(|(_, s)| s.has_child());
            if let Some((at, slot)) = below.next()
                && let Some(Child::Node { at: node, kind }) = slot.child()?
                && let Some(child) = Paths(self.0).child(SlotRef { at, slot }, node, kind).await?
            {
                return Box::pin(self.prune_child(SlotRef { at, slot }, &child)).await;
            }
        }
        Ok(())
    }

    /// Retires a tombstone that no slot names any more, and its value.
    pub(crate) fn retire_leaf(&self, view: &LeafView) {
        let grant = Grant { addr: view.at, generation: view.word.generation };
        self.0.retire_value(view.leaf(self.0).value);
        self.0.node.pool.retire(self.0.node.leaves(view.lines), grant);
    }

    pub(crate) fn prune_later(&self, prefix: &[u8]) {
        if !prefix.is_empty() {
            self.0.node.maintenance.push(Task::Prune(prefix.to_vec()));
        }
    }
}

/// The number of bytes that two different keys share, and the symbol that follows in the first.
fn parting(a: &[u8], b: &[u8]) -> (usize, Symbol) {
    let n = common(a, b);
    (n, Symbol::of(a, n))
}
