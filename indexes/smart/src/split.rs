//! New nodes where a key parts from others: from a leaf (*leaf split*), or from the bytes that all keys of a node share (*header split*).
//! The new nodes are WRITTEN with the new leaf; a compare-and-swap of the slot above makes them part of the tree.

use dmtree_fabric::{GlobalAddr, OpOutcome, Result, Step, verb, verb::VerbVec};
use dmtree_parts::Outcome;

use crate::client::Smart;
use crate::cursor::Cursor;
use crate::format::fork::{Fork, nodes_for};
use crate::format::header::Header;
use crate::format::leaf::{self, Leaf};
use crate::format::node::{HEADER_OFFSET, NewNode, Node, slot_at};
use crate::format::slot::{NodeType, Slot};
use crate::format::{byte_at, shared_from};
use crate::write::{Job, Written};

const SPLIT: Written = (Outcome::Done, OpOutcome::InsertSplit);

/// How a child parts from a key.
struct Parting<'a> {
    /// The bytes that they share behind the slot's.
    shared: &'a [u8],
    /// The first byte of the old child that differs.
    old: u8,
}

impl Smart {
    /// A node between a slot and its leaf, which is another key's. `None`: the slot has changed; the way goes on from what it holds.
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
        // The leaf learns who names it. Whatever comes of it.
        let names = slot_at(nodes[nodes.len() - 1].at, 0);
        self.repair(verb::cas(old, at.bits(), names.bits())).await?;
        self.remember_new(&nodes, job.key);
        Ok(Some(SPLIT))
    }

    /// A node between a slot and its node, whose shared bytes a key leaves at number `at`.
    pub(crate) async fn split_header(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        n: &Node,
        at: usize,
    ) -> Result<Option<Written>> {
        let depth = usize::from(n.header.depth);
        let (from, to) = (c.next - 1, depth + at - 1);
        // Bytes in front of the slot's are the slot's way.
        let shared = job.key.get(from..to).unwrap_or(&[]);
        let parting = Parting { shared, old: n.header.shared()[at] };
        let above = c.at;
        let Some(nodes) = self.put_between(job, c, &parting).await? else { return Ok(None) };
        // The node learns who names it, and where it begins.
        let names = slot_at(nodes[nodes.len() - 1].at, 0);
        self.repair(verb::cas(n.at, above.bits(), names.bits())).await?;
        let target = depth + at + 1;
        let shorter = |h: Header| (usize::from(h.depth) < target).then(|| h.from_depth(target));
        match (self.node.o.help_types, shorter(n.header)) {
            (true, _) => self.change_header(n, shorter).await?,
            // As published, once, whatever comes of it.
            (false, Some(new)) => {
                let at = n.at.plus(HEADER_OFFSET);
                self.repair(verb::cas(at, n.header.bits(), new.bits())).await?;
            }
            (false, None) => {}
        }
        self.remember_new(&nodes, job.key);
        Ok(Some(SPLIT))
    }

    /// Nodes that part the child of a slot from a new leaf.
    async fn put_between(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        p: &Parting<'_>,
    ) -> Result<Option<Vec<NewNode>>> {
        let mut places = Vec::new();
        for _ in 0..nodes_for(p.shared.len()) {
            places.push(self.new_node().await?);
        }
        let word = c.compared(self.node.o.keep_words);
        // After an error a WRITE may still be on its way: the places are left alone.
        let nodes = self.write_between(job, c, p, &places).await?;
        let new = Slot::node(c.slot.partial(), nodes[0].kind(), nodes[0].at)?;
        self.ep.step(Step::Structure);
        let was = self.ep.cas(c.at, word.bits(), new.bits()).await?;
        if was != word.bits() {
            self.retried.set(true);
            self.ep.check_deadline("a slot to split", c.at.bits())?;
            self.give_back_nodes(places);
            self.forget(c);
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
        let g = &self.node.g;
        let at = match job.leaf {
            Some(at) => at,
            None => self.new_leaf().await?,
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
            let mut image = self.blank(n.bytes()).await?;
            n.put(&mut image);
            verbs.write(n.at, image);
        }
        let mut image = self.blank(g.leaf_bytes()).await?;
        let named_by = slot_at(nodes[nodes.len() - 1].at, 1);
        leaf::put(g, &mut image, named_by, job.key, &job.value);
        verbs.write(at, image);
        self.ep.step(Step::Structure);
        self.ep.batch(verbs).await?;
        Ok(nodes)
    }

    /// The child as its new slot names it: of the type that the node says, or of a larger one that somebody has set in the slot alone so far.
    fn child_of(&self, c: &Cursor) -> Slot {
        let capacity = |s: Slot| s.kind().map_or(0, NodeType::capacity);
        match self.node.o.keep_words && capacity(c.word) > capacity(c.slot) {
            true => c.word,
            false => c.slot,
        }
    }

    /// A repair that a splitter owes: as published it is not waited for.
    async fn repair(&self, cas: verb::Cas) -> Result<()> {
        if self.node.o.lazy_repairs {
            self.ep.detach(cas, None);
            return Ok(());
        }
        self.ep.chain(cas).await.map(|_| ())
    }

    fn remember_new(&self, nodes: &[NewNode], key: &[u8]) {
        nodes.iter().for_each(|n| self.remember(&n.as_read(), key));
    }
}
