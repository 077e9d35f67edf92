//! Finds the place where a key is or belongs.
//!
//! *Fast path*: along cached slots, which may be stale and lead anywhere. An object at their end
//! counts only if it validates itself: a live leaf with the key. The fast path proves nothing
//! else, and no absence. Verbs: READ node per level that is not cached, READ leaf.
//!
//! *Slow path*: from a node that is known to be in the tree, which is the root, or a cached node
//! that still has the generation under which it was cached and is linked. Verbs: READ of that node,
//! then READ node per level. The child that a slot of such a node names was in the tree at a time
//! after this operation began, and its memory is not reused before the operation ends.
//!
//! The slow path relies on these invariants (DESIGN.md, section 10): a node is unlinked only after
//! it has become a tombstone; the slots of a tombstone are frozen; memory is reused only after the
//! operations have ended that ran when it was unlinked. The slow path completes the changes that a
//! crash or a slow client has left unfinished:
//!
//! - A new node that a slot names, but that no client has marked as linked (`Pending`): CAS head ->
//!   linked.
//! - A tombstone that a slot still names: CAS slot -> vacant. The client that succeeds with this
//!   CAS retires the node, so the node is retired exactly once. A crash between this CAS and the
//!   retirement loses the memory until the next garbage collection.

use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_pool::Grant;

use super::cache;
use super::client::Smart;
use super::format::head::{self, Head, NodeState, NodeType, SLOTS_AT, prefix_hash, slot_at};
use super::format::slot::{Child, Slot, Symbol};
use super::mutants::Mutant;

/// A node as it was read.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub at: GlobalAddr,
    pub head: Head,
    pub hash: u64,
    /// As many slots as its type has.
    pub slots: Vec<Slot>,
}

impl View {
    /// Whether all keys of the node begin with the first bytes of `key`.
    pub fn leads_to(&self, key: &[u8]) -> bool {
        key.get(..self.head.len).is_some_and(|prefix| prefix_hash(prefix) == self.hash)
    }

    /// The slot of a symbol.
    pub fn slot_of(&self, s: Symbol) -> Option<(usize, Slot)> {
        self.slots.iter().copied().enumerate().find(|(_, slot)| slot.is(s))
    }

    /// Address of slot `i`.
    pub fn slot_at(&self, i: usize) -> GlobalAddr {
        slot_at(self.at, i)
    }

    /// Its slots with their addresses.
    pub fn slot_refs(&self) -> impl Iterator<Item = (GlobalAddr, Slot)> + '_ {
        self.slots.iter().enumerate().map(|(i, s)| (self.slot_at(i), *s))
    }

    /// The slots with a child, by their symbols.
    pub fn children(&self) -> Vec<(GlobalAddr, Slot)> {
        let mut all: Vec<_> = self.slot_refs().filter(|(_, s)| s.has_child()).collect();
        all.sort_by_key(|(_, s)| s.symbol());
        all
    }

    /// Whether the node has any child.
    pub fn has_children(&self) -> bool {
        self.slots.iter().any(|s| s.has_child())
    }

    /// The allocator's grant of the node: address and generation.
    pub fn grant(&self) -> Grant {
        Grant { addr: self.at, generation: self.head.generation }
    }
}

/// A slot of a node that is in the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef {
    pub at: GlobalAddr,
    pub slot: Slot,
}

/// The place where a key is or belongs: in this node, which is the last on its path.
pub(crate) struct Place {
    pub node: View,
    /// The slot that names the node; `None` for the first node of the descent.
    pub above: Option<SlotRef>,
    pub content: Content,
}

/// The content of a place.
pub(crate) enum Content {
    /// A leaf, of this key or of another one.
    Leaf { slot_ref: SlotRef, at: GlobalAddr, lines: usize },
    /// A node with a prefix that is not a prefix of the key.
    Node { slot_ref: SlotRef, view: View },
    /// The slot of the symbol, without a child.
    Vacant(SlotRef),
    /// The symbol has no slot.
    NoSlot,
}

/// The way to a key.
pub(crate) struct Paths<'c>(pub(crate) &'c Smart);

impl Paths<'_> {
    pub(crate) async fn root_grant(&self) -> Result<Grant> {
        if let Some(grant) = self.0.node.root_grant.get() {
            return Ok(*grant);
        }
        let bits = self.0.ep.read(self.0.node.root.word, 8).await?.word(0);
        let addr = GlobalAddr::from_bits(bits);
        if addr.is_null() {
            return Err(Error::corrupt("the index has no root"));
        }
        let view = self.read_node(addr, NodeType::SMALLEST).await?;
        let view = view.filter(|v| v.head.len == 0 && v.head.is_linked());
        let view = view.ok_or_else(|| Error::corrupt(format!("{addr} is no root")))?;
        Ok(*self.0.node.root_grant.get_or_init(|| view.grant()))
    }

    /// READs a node; `None` when there is no node.
    pub(crate) async fn read_node(&self, at: GlobalAddr, kind: NodeType) -> Result<Option<View>> {
        self.0.ep.step(Step::Structure);
        let first = self.0.ep.read(at, kind.bytes() as u32).await?;
        let Some(head) = Head::of_bits(first.word(0)) else { return Ok(None) };
        let has = head.kind.slots();
        self.0.ep.stage_cost(Stage::NodeImage, has as u32);
        let mut view = View { at, head, hash: first.word(1), slots: Vec::with_capacity(has) };
        let known = kind.slots().min(has);
        view.slots.extend((0..known).map(|i| Slot(first.word(SLOTS_AT / 8 + i))));
        if known < has {
            // The node has grown since the type was recorded.
            let rest = self.0.ep.read(slot_at(at, known), 8 * (has - known) as u32).await?;
            view.slots.extend((0..has - known).map(|i| Slot(rest.word(i))));
        }
        Ok(Some(view))
    }

    /// The node at which a slow descent begins.
    async fn begin(&self, key: &[u8]) -> Result<View> {
        loop {
            self.0.ep.stage_cost(Stage::CacheLookup, 1);
            let Some(start) = cache::start(&self.0.node.cache, key) else { break };
            let view = self.read_node(start.node.addr, start.kind).await?;
            let fits = |v: &View| {
                v.head.generation == start.node.generation
                    && v.head.len == start.len
                    && v.head.is_linked()
            };
            if let Some(view) = view.filter(|v| fits(v) && v.leads_to(key)) {
                return Ok(view);
            }
            self.0.op.retried.set(true);
            self.0.node.cache.remove(start.entry);
        }
        self.0.node.lookups.count_miss();
        let root_grant = self.root_grant().await?;
        let view = self.read_node(root_grant.addr, NodeType::LARGEST).await?;
        let view = view.filter(|v| v.head.generation == root_grant.generation && v.head.len == 0);
        view.ok_or_else(|| Error::corrupt(format!("the root at {} is gone", root_grant.addr)))
    }

    /// The place where a key is or belongs, by the slow path.
    pub(crate) async fn find(&self, key: &[u8]) -> Result<Place> {
        self.find_until(key, usize::MAX).await
    }

    /// The same; a descent that has reached a prefix of at least `len` bytes goes no further.
    pub(crate) async fn find_until(&self, key: &[u8], len: usize) -> Result<Place> {
        let mut backoff = self.0.ep.backoff("a path to a key", self.0.node.root.word);
        let mut node = self.begin(key).await?;
        let mut above = None;
        loop {
            self.cache_node(key, &node);
            if node.head.len >= len {
                return Ok(Place { node, above, content: Content::NoSlot });
            }
            let symbol = Symbol::of(key, node.head.len);
            let Some((i, slot)) = node.slot_of(symbol) else {
                return Ok(Place { node, above, content: Content::NoSlot });
            };
            let slot_ref = SlotRef { at: node.slot_at(i), slot };
            let content = match slot.child()? {
                Some(Child::Leaf { at, lines }) => Content::Leaf { slot_ref, at, lines },
                Some(Child::Node { at, kind }) => match self.child(slot_ref, at, kind).await? {
                    Some(view) if view.leads_to(key) => {
                        above = Some(slot_ref);
                        node = view;
                        continue;
                    }
                    Some(view) => Content::Node { slot_ref, view },
                    None => {
                        self.0.op.retried.set(true);
                        backoff.step().await?;
                        node = self.begin(key).await?;
                        above = None;
                        continue;
                    }
                },
                Some(Child::Hole | Child::Frozen(_)) | None => Content::Vacant(slot_ref),
            };
            return Ok(Place { node, above, content });
        }
    }

    /// The child node of a slot of a node in the tree, marked as linked. `None`: the child was a
    /// tombstone, and the slot is vacant now.
    pub(crate) async fn child(
        &self,
        slot_ref: SlotRef,
        at: GlobalAddr,
        kind: NodeType,
    ) -> Result<Option<View>> {
        let lost = || Error::corrupt(format!("{} names {at}, where no node is", slot_ref.at));
        let mut view = self.read_node(at, kind).await?.ok_or_else(lost)?;
        match view.head.state {
            NodeState::Linked | NodeState::Closing => {}
            NodeState::Pending => {
                let linked = Head { state: NodeState::Linked, ..view.head };
                let was = self.0.ep.cas(at, view.head.bits(), linked.bits()).await?;
                if was != view.head.bits() {
                    self.0.op.retried.set(true);
                    view = self.read_node(at, kind).await?.ok_or_else(lost)?;
                    return Ok((view.head.is_linked()).then_some(view));
                }
                view.head = linked;
            }
            NodeState::Tombstone => {
                self.unlink(slot_ref, view.grant()).await?;
                return Ok(None);
            }
        }
        Ok(Some(view))
    }

    /// Makes the slot of a tombstone vacant. The client that succeeds with the CAS retires the
    /// node.
    pub(crate) async fn unlink(&self, slot_ref: SlotRef, tombstone: Grant) -> Result<bool> {
        let was = self.0.ep.cas(slot_ref.at, slot_ref.slot.0, slot_ref.slot.hole().0).await?;
        let won = was == slot_ref.slot.0;
        if won {
            self.0.node.pool.retire(&self.0.node.nodes, tombstone);
        }
        Ok(won)
    }

    /// Caches a node of the tree.
    pub(crate) fn cache_node(&self, key: &[u8], view: &View) {
        if let Some(prefix) = key.get(..view.head.len) {
            self.0.ep.stage_cost(Stage::CacheFill, 1);
            self.0.node.cache.insert(prefix, view.grant(), &view.slots);
        }
    }

    /// The leaf that the fast path leads to, unvalidated.
    pub(crate) async fn find_fast(&self, key: &[u8]) -> Result<Option<(GlobalAddr, usize)>> {
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        let Some((mut slot, mut len)) = cache::next_slot(&self.0.node.cache, key) else {
            return Ok(None);
        };
        loop {
            match slot.child().ok().flatten() {
                Some(Child::Leaf { at, lines }) => {
                    self.0.node.lookups.count_hit();
                    return Ok(Some((at, lines)));
                }
                Some(Child::Node { at, kind }) => {
                    let Some(view) = self.read_node(at, kind).await? else { return Ok(None) };
                    let deeper = view.head.len > len && view.head.is_linked();
                    if !deeper || !view.leads_to(key) {
                        return Ok(None);
                    }
                    self.cache_node(key, &view);
                    len = view.head.len;
                    match view.slot_of(Symbol::of(key, len)) {
                        Some((_, next)) => slot = next,
                        None => return Ok(None),
                    }
                }
                _ => return Ok(None),
            }
        }
    }

    /// The image of a new node: all of its memory where an earlier generation may have left slots.
    /// No old pointer can lead to memory that was never used, so such a node is linked at once.
    pub(crate) async fn node_image(
        &self,
        generation: u16,
        kind: NodeType,
        prefix: &[u8],
        slots: &[Slot],
    ) -> Result<Buf> {
        let is_fresh = generation == 1;
        let written = if is_fresh { kind } else { NodeType::LARGEST };
        let mut image = self.0.buf(written.bytes()).await?;
        let at_once = is_fresh || self.0.node.has(Mutant::NeverPending);
        let state = if at_once { NodeState::Linked } else { NodeState::Pending };
        let head = Head { len: prefix.len(), kind, state, closings: 0, generation };
        head::fill(&mut image, head, prefix, slots);
        Ok(image)
    }
}
