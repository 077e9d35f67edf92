//! Checks the invariants of the whole tree while no client writes.
//!
//! The walk READs every node and leaf, from the root down. A prefix is longer than the one above;
//! slots are used in order, with one symbol each; a leaf's key has the prefixes of all nodes on its
//! path, the symbol of its slot, and the length of its slot; no leaf is held; a value block is
//! whole. Tombstones that a slot still names are counted, not refused. A violation is a `Corrupt`
//! error.

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::Shape;

use super::client::Smart;
use super::find::Paths;
use super::find::{SlotRef, View};
use super::format::leaf::{LeafState, Stored};
use super::format::slot::{Child, Slot};
use super::get::Reads;

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c Smart);

impl Walks<'_> {
    pub(crate) async fn walk_op(&self) -> Result<Shape> {
        let _pin = self.0.op.pin()?;
        let top = Paths(self.0).find_until(&[], 0).await?.node;
        let mut shape = Shape { fill: vec![0; 2], ..Shape::default() };
        let mut path: Vec<View> = Vec::new();
        let mut open = vec![(0, top)];
        let mut leaves = 0;
        while let Some((depth, view)) = open.pop() {
            self.0.ep.renew_deadline();
            path.truncate(depth);
            self.walk_node(path.last(), &view, &mut shape)?;
            path.push(view.clone());
            shape.levels = shape.levels.max(path.len() as u32);
            for (i, slot) in view.slots.iter().enumerate() {
                let slot_ref = SlotRef { at: view.slot_at(i), slot: *slot };
                match slot.child()? {
                    Some(Child::Leaf { at, lines }) => {
                        leaves += 1;
                        self.walk_leaf(&path, slot_ref, (at, lines), &mut shape).await?;
                    }
                    Some(Child::Node { at, kind }) => {
                        if let Some(child) = Paths(self.0).child(slot_ref, at, kind).await? {
                            open.push((depth + 1, child));
                        }
                    }
                    _ => {}
                }
            }
        }
        shape.leaves = vec![(1, leaves)];
        Ok(shape)
    }

    fn walk_node(&self, above: Option<&View>, view: &View, shape: &mut Shape) -> Result<()> {
        let wrong = |what: String| Err(Error::corrupt(format!("node {}: {what}", view.at)));
        if above.is_some_and(|a| view.head.len <= a.head.len) {
            return wrong(format!(
                "its prefix of {} bytes is not longer than the one above",
                view.head.len
            ));
        }
        let used = view.slots.iter().position(|s| *s == Slot::EMPTY || s.is_end_mark());
        let used = used.unwrap_or(view.slots.len());
        if let Some(i) = view.slots[used..].iter().skip(1).position(|s| *s != Slot::EMPTY) {
            return wrong(format!("slot {} is used, slot {used} before it is not", used + 1 + i));
        }
        let mut symbols: Vec<_> = view.slots[..used].iter().map(|s| s.symbol()).collect();
        symbols.sort();
        if symbols.windows(2).any(|pair| pair[0] == pair[1]) {
            return wrong("two slots have one symbol".to_owned());
        }
        shape.inner_nodes += 1;
        shape.structure_bytes += u64::from(self.0.node.nodes.key().object_bytes);
        Ok(())
    }

    async fn walk_leaf(
        &self,
        path: &[View],
        slot_ref: SlotRef,
        (at, lines): (GlobalAddr, usize),
        shape: &mut Shape,
    ) -> Result<()> {
        let view = Reads(self.0).read_leaf(at, lines).await?;
        let leaf = view.leaf(self.0);
        let wrong = |what: &str| Err(Error::corrupt(format!("leaf {at}: {what}")));
        if !path.iter().all(|node| node.leads_to(leaf.key)) {
            return wrong("its key lacks the prefix of a node above");
        }
        let len = path.last().map_or(0, |node| node.head.len);
        if !slot_ref.slot.is(super::format::slot::Symbol::of(leaf.key, len)) {
            return wrong("its slot has another symbol than its key");
        }
        if self.0.node.shape.lines(leaf.key.len()) != lines {
            return wrong("its slot gives it another length");
        }
        if view.word.holder.is_some() {
            return wrong("it is locked although no client writes");
        }
        shape.structure_bytes += 64 * lines as u64;
        if view.word.state == LeafState::Tombstone {
            shape.fill[0] += 1;
            return Ok(());
        }
        if let Stored::Block(b) = leaf.value {
            if !Reads(self.0).read_block(b, &mut Vec::new()).await? {
                return wrong("its value's block is not one");
            }
            shape.block_bytes += u64::from(b.capacity());
        }
        shape.keys += 1;
        shape.fill[1] += 1;
        Ok(())
    }
}
