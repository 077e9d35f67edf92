//! Adds nodes where a key differs from others: from a leaf (*leaf split*), or from the bytes that
//! all keys of a node share (*header split*).
//!
//! Verbs in order:
//! 1. WRITE new nodes and WRITE new leaf, together. The last new node has the old child in slot 0
//!    and the new leaf in slot 1.
//! 2. CAS of the slot above: old child -> first new node. This is the linearization point.
//! 3. CAS of the old child's reverse pointer: slot above -> slot 0 of the last new node.
//! 4. Header split only: CAS of the old node's header, which then begins behind the shared bytes.
//!
//! As published (`lazy_repairs`) steps 3 and 4 are not awaited; with `help_types` step 4 is
//! repeated until the header is right.
//!
//! Invariants: nothing names new memory before step 2, so a failed CAS gives it back. A reverse
//! pointer and a header are allowed to be old: a descent accepts a header that begins before its
//! position, and corrects reverse pointers behind slots that it has READ.
//!
//! A crash before step 2 loses the new memory. A crash between 2 and 3 leaves a reverse pointer
//! that confirms a stale cached slot; `recheck_absent` covers this. A crash before step 4 leaves a
//! long header, which the descent accepts.

use dmtree_fabric::{GlobalAddr, Result, Step, verb, verb::VerbVec};
use dmtree_parts::op::{SPLIT, Written};

use crate::cursor::Cursor;
use crate::cursor::Cursors;
use crate::format::fork::{Fork, nodes_for};
use crate::format::header::Header;
use crate::format::leaf::{self, Leaf};
use crate::format::node::{HEADER_OFFSET, NewNode, Node, slot_at};
use crate::format::slot::{NodeType, Slot};
use crate::format::{byte_at, shared_from};
use crate::index::Smart;
use crate::write::Job;

/// How an old child and a key differ.
struct Parting<'a> {
    /// The bytes that they share behind the slot's byte.
    shared: &'a [u8],
    /// The first byte of the old child that differs.
    old: u8,
}

/// Splits of leaves.
pub(crate) struct Splits<'c>(pub(crate) &'c Smart);

impl Splits<'_> {
    /// Puts a node between a slot and its leaf, which has another key. `None`: the slot has
    /// changed, and the descent goes on from its new word.
    pub(crate) async fn split_leaf(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        l: Leaf<'_>,
    ) -> Result<Option<Written>> {
        let count = shared_from(job.key, l.key, c.next);
        let from = c.next - 1;
        let parting =
            Parting { shared: &job.key[from..from + count], old: byte_at(l.key, c.next + count) };
        let (old, at) = (c.slot.child(), c.at);
        let Some(nodes) = self.put_between(job, c, &parting).await? else { return Ok(None) };
        // The outcome of this CAS does not matter: a descent can repair the pointer, too.
        let names = slot_at(nodes[nodes.len() - 1].at, 0);
        self.repair(verb::cas(old, at.bits(), names.bits())).await?;
        self.remember_new(&nodes, job.key);
        Ok(Some(SPLIT))
    }

    /// Puts a node between a slot and its node. The key differs at number `at` of the node's shared
    /// bytes.
    pub(crate) async fn split_header(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        n: &Node,
        at: usize,
    ) -> Result<Option<Written>> {
        let depth = usize::from(n.header.depth);
        let (from, to) = (c.next - 1, depth + at - 1);
        // Bytes in front of the slot's position belong to the path of the slot.
        let shared = job.key.get(from..to).unwrap_or(&[]);
        let parting = Parting { shared, old: n.header.shared()[at] };
        let above = c.at;
        let Some(nodes) = self.put_between(job, c, &parting).await? else { return Ok(None) };
        // The old node gets the slot that names it now, and the position at which it begins.
        let names = slot_at(nodes[nodes.len() - 1].at, 0);
        self.repair(verb::cas(n.at, above.bits(), names.bits())).await?;
        let target = depth + at + 1;
        let shorter = |h: Header| (usize::from(h.depth) < target).then(|| h.starting_at(target));
        match (self.0.node.o.help_types, shorter(n.header)) {
            (true, _) => Cursors(self.0).change_header(n, shorter).await?,
            // As published: one attempt, with any outcome.
            (false, Some(new)) => {
                let at = n.at.plus(HEADER_OFFSET);
                self.repair(verb::cas(at, n.header.bits(), new.bits())).await?;
            }
            (false, None) => {}
        }
        self.remember_new(&nodes, job.key);
        Ok(Some(SPLIT))
    }

    /// Puts new nodes between a slot and its child; they separate the child from a new leaf.
    async fn put_between(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        p: &Parting<'_>,
    ) -> Result<Option<Vec<NewNode>>> {
        let mut places = Vec::new();
        for _ in 0..nodes_for(p.shared.len()) {
            places.push(self.0.new_node().await?);
        }
        let word = c.compared(self.0.node.o.keep_words);
        // After an error a WRITE may still be in flight, so the memory is not used again.
        let nodes = self.write_between(job, c, p, &places).await?;
        let new = Slot::node(c.slot.partial(), nodes[0].kind(), nodes[0].at)?;
        self.0.ep.step(Step::Structure);
        let was = self.0.ep.cas(c.at, word.bits(), new.bits()).await?;
        if was != word.bits() {
            self.0.retried.set(true);
            self.0.ep.check_deadline("a slot to split", c.at.bits())?;
            places.into_iter().for_each(|at| self.0.spare_nodes.give_back(at));
            Cursors(self.0).forget(c);
            c.reread(was);
            return Ok(None);
        }
        job.leaf = None;
        Ok(Some(nodes))
    }

    async fn write_between(
        &self,
        job: &mut Job<'_>,
        c: &Cursor,
        p: &Parting<'_>,
        places: &[GlobalAddr],
    ) -> Result<Vec<NewNode>> {
        let g = &self.0.node.g;
        let at = match job.leaf {
            Some(at) => at,
            None => self.0.new_leaf().await?,
        };
        job.leaf = Some(at);
        let fork = Fork { above: c.at, depth: c.next, shared: p.shared, kind: NodeType::N4 };
        let behind = c.next + p.shared.len();
        let children = vec![
            self.child_of(c).with_partial(p.old),
            Slot::leaf(byte_at(job.key, behind), g.leaf_bytes(), at)?,
        ];
        let nodes = fork.build(places, children)?;
        job.latest();
        let mut verbs = VerbVec::new();
        for n in &nodes {
            let mut image = self.0.blank(n.bytes()).await?;
            n.put(&mut image);
            verbs.write(n.at, image);
        }
        let mut image = self.0.blank(g.leaf_bytes()).await?;
        let named_by = slot_at(nodes[nodes.len() - 1].at, 1);
        leaf::put(g, &mut image, named_by, job.key, &job.value);
        verbs.write(at, image);
        self.0.ep.step(Step::Structure);
        self.0.ep.batch(verbs).await?;
        Ok(nodes)
    }

    /// The child as its new slot names it: with the type of its header, or with a larger type that
    /// so far only the slot has.
    fn child_of(&self, c: &Cursor) -> Slot {
        let capacity = |s: Slot| s.kind().map_or(0, NodeType::capacity);
        match self.0.node.o.keep_words && capacity(c.word) > capacity(c.slot) {
            true => c.word,
            false => c.slot,
        }
    }

    /// A repair after a split; as published it is not awaited.
    async fn repair(&self, cas: verb::Atomic) -> Result<()> {
        if self.0.node.o.lazy_repairs {
            self.0.ep.detach(cas, None);
            return Ok(());
        }
        self.0.ep.chain(cas).await.map(|_| ())
    }

    fn remember_new(&self, nodes: &[NewNode], key: &[u8]) {
        nodes.iter().for_each(|n| Cursors(self.0).remember(&n.as_read(), key));
    }
}
