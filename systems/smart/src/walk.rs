//! Checks the whole structure: a depth-first walk that expects no concurrent writer.
//!
//! The walk READs the lock tables, and then every node and leaf from the root slot down. It checks
//! these invariants: no lock is held; a node's type agrees with the slot that names it; a header
//! begins at the position of its path (as published it may begin before, if it could not be
//! shortened); no slot is in use behind the type or behind an empty slot; a byte has one slot; a
//! leaf is whole, valid, unlocked, and has a key with the bytes of its path. A violation is a
//! `Corrupt` error.

use dmtree_fabric::Result;
use dmtree_parts::Shape;
use dmtree_parts::published::must;

use crate::cursor::Cursors;
use crate::format::leaf;
use crate::format::node::{self, Node};
use crate::format::slot::Slot;
use crate::index::Smart;

/// A subtree that is still to be checked.
struct Due {
    slot: Slot,
    /// The bytes that lead to it.
    prefix: Vec<u8>,
    level: u32,
}

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c Smart);

impl Walks<'_> {
    pub(crate) async fn walk_tree(&self, shape: &mut Shape) -> Result<()> {
        if self.0.node.o.has_lock_table() {
            self.0.node.locks.check_free(&self.0.ep, &self.0.node).await?;
        }
        let root = Cursors(self.0).root().await?;
        let mut due = vec![Due { slot: root.slot, prefix: Vec::new(), level: 0 }];
        if root.slot.is_empty() {
            due.clear();
        }
        while let Some(d) = due.pop() {
            self.0.ep.renew_deadline();
            shape.levels = shape.levels.max(d.level);
            match d.slot.is_leaf() {
                true => self.walk_leaf(&d, shape).await?,
                false => self.walk_node(&d, &mut due, shape).await?,
            }
        }
        shape.leaves = vec![(1, shape.keys)];
        shape.fill = vec![0, shape.keys];
        Ok(())
    }

    async fn walk_node(&self, d: &Due, due: &mut Vec<Due>, shape: &mut Shape) -> Result<()> {
        let g = &self.0.node.g;
        let at = d.slot.child();
        let bytes = self.0.ep.read(at, node::bytes(g.types.largest) as u32).await?;
        let seen = bytes.extract(|b| {
            let n = Node::parse(at, b)?;
            let behind = &b[node::bytes(n.header.kind.capacity().min(g.types.largest))..];
            Some((n, behind.iter().all(|byte| *byte == 0)))
        });
        let Some((n, is_clean)) = seen else { return must(false, "no node", at) };
        must(is_clean, "slots beyond its type", at)?;
        must(d.slot.kind() == Some(n.header.kind), "the slot has another type", at)?;
        let depth = usize::from(n.header.depth);
        let next = d.prefix.len() + 1;
        must(depth <= next && n.header.discriminates() >= next, "begins somewhere else", at)?;
        // As published, a header that was to be shortened can stay long; its first bytes are then
        // bytes of the path.
        must(depth == next || !self.0.node.o.help_types, "a header that was not shortened", at)?;
        let (way, rest) = n.header.shared().split_at(next - depth);
        must(d.prefix.ends_with(way), "other bytes than those of its path", at)?;
        let taken = n.taken();
        must(n.slots[taken..].iter().all(|s| s.is_empty()), "a slot behind an empty one", at)?;
        must(taken > 0, "empty", at)?;
        let mut partials: Vec<u8> = n.slots[..taken].iter().map(|s| s.partial()).collect();
        partials.sort_unstable();
        must(partials.windows(2).all(|w| w[0] != w[1]), "two slots of one byte", at)?;
        shape.inner_nodes += 1;
        shape.structure_bytes += g.node_footprint() as u64;
        for slot in &n.slots[..taken] {
            let prefix = [&d.prefix, rest, &[slot.partial()]].concat();
            must(prefix.len() <= g.key, "deeper than a key", at)?;
            due.push(Due { slot: *slot, prefix, level: d.level + 1 });
        }
        Ok(())
    }

    async fn walk_leaf(&self, d: &Due, shape: &mut Shape) -> Result<()> {
        let g = &self.0.node.g;
        let at = d.slot.child();
        let size = if g.leaf_bytes() < 128 { g.leaf_bytes() } else { 0 };
        must(d.slot.leaf_bytes() == size, "the slot has another size", at)?;
        let bytes = self.0.ep.read(at, g.leaf_bytes() as u32).await?;
        let seen = bytes.extract(|b| {
            let l = leaf::check(g, b)?;
            Some((l.valid, l.key.starts_with(&d.prefix), leaf::is_locked(g, b)))
        });
        let Some((valid, fits, is_locked)) = seen else {
            return must(false, "a checksum that is wrong", at);
        };
        must(valid, "an invalid leaf", at)?;
        must(fits, "a key that its path does not lead to", at)?;
        must(!is_locked, "a locked leaf", at)?;
        shape.keys += 1;
        shape.structure_bytes += g.leaf_footprint() as u64;
        Ok(())
    }
}
