//! Bulk load into an empty index: builds the whole tree, and links it by one CAS of the root slot.
//!
//! The load walks the sorted pairs depth first. A node is WRITTEN when the addresses of all its
//! children are known; leaves are placed side by side and WRITTEN in groups. The last verb is CAS
//! root slot: 0 -> root node, the linearization point of all pairs.
//!
//! Invariant: nothing names the new memory before that CAS, so the order of the WRITEs does not
//! matter. If the root slot is not empty, before or at the CAS, the load puts the pairs one by one.
//!
//! A crash before the CAS loses the new memory and leaves an empty index.

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::pairs::Pairs;

use crate::cursor::Cursors;
use crate::format::fork::{Fork, nodes_for};
use crate::format::leaf;
use crate::format::node::{NewNode, slot_at};
use crate::format::slot::Slot;
use crate::format::{byte_at, shared_from};
use crate::index::Smart;

/// Leaves that are adjacent in memory, and written together.
const LEAVES_TOGETHER: usize = 64;

/// A subtree that is to be built: pairs `from..to` below a slot.
struct Due {
    from: usize,
    to: usize,
    /// The slot that will name it, and the position behind its byte.
    above: GlobalAddr,
    depth: usize,
    /// The open node that has the slot, and the slot's number; `None` for the root slot.
    in_node: Option<(usize, usize)>,
}

/// Leaves that are not written yet.
#[derive(Default)]
struct Leaves {
    at: GlobalAddr,
    image: Vec<u8>,
    room: usize,
}

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c Smart);

impl Loads<'_> {
    /// Builds the tree and links it. Returns the number of leaves; `None` if the index has keys.
    pub(crate) async fn fill_empty(&self, all: &Pairs) -> Result<Option<u64>> {
        let root = Cursors(self.0).root().await?;
        if !root.slot.is_empty() {
            return Ok(None);
        }
        let slot = self.build(all).await?;
        self.0.ep.renew_deadline();
        let is_linked = self.0.ep.cas(root.at, 0, slot.bits()).await? == 0;
        Ok(is_linked.then_some(all.len() as u64))
    }

    /// Writes the whole tree, and returns the root slot's word. A node is written when its children
    /// are known; in depth-first order these come right after it.
    async fn build(&self, all: &Pairs) -> Result<Slot> {
        let root = self.0.node.root.word;
        let mut due = vec![Due { from: 0, to: all.len(), above: root, depth: 1, in_node: None }];
        let mut open: Vec<NewNode> = Vec::new();
        let mut leaves = Leaves::default();
        let mut root_slot = Slot::EMPTY;
        while let Some(d) = due.pop() {
            self.0.ep.renew_deadline();
            // The open nodes behind the one that waits for this subtree have all their children.
            let waiting = d.in_node.map_or(0, |(n, _)| n + 1);
            self.write_nodes(open.drain(waiting..)).await?;
            let byte = byte_at(all.key(d.from), d.depth - 1);
            let slot = if d.to - d.from == 1 {
                self.load_leaf(&mut leaves, all.get(d.from), d.above, byte).await?
            } else {
                self.open_node(all, &d, &mut open, &mut due).await?.with_partial(byte)
            };
            match d.in_node {
                Some((n, i)) => open[n].slots[i] = slot,
                None => root_slot = slot.with_partial(0),
            }
        }
        self.write_nodes(open.drain(..)).await?;
        self.write_leaves(&mut leaves).await?;
        Ok(root_slot)
    }

    /// Places the nodes where several pairs part, and adds the subtrees below them to `due`.
    /// Returns the slot that names the first node.
    async fn open_node(
        &self,
        all: &Pairs,
        d: &Due,
        open: &mut Vec<NewNode>,
        due: &mut Vec<Due>,
    ) -> Result<Slot> {
        let (first, last) = (all.key(d.from), all.key(d.to - 1));
        let shared = shared_from(first, last, d.depth);
        let position = d.depth + shared;
        let mut begins = vec![d.from];
        begins.extend(
            (d.from + 1..d.to)
                .filter(|i| byte_at(all.key(*i), position) != byte_at(all.key(*i - 1), position)),
        );
        let kind = self.0.node.g.types.fitting(begins.len()).ok_or_else(|| {
            dmtree_fabric::Error::invalid(format!(
                "{} different bytes follow one prefix: make the index with a larger largest_node",
                begins.len()
            ))
        })?;
        let mut places = Vec::new();
        for _ in 0..nodes_for(shared) {
            places.push(self.0.new_node().await?);
        }
        let bytes = &first[d.depth - 1..position - 1];
        let fork = Fork { above: d.above, depth: d.depth, shared: bytes, kind };
        let nodes = fork.build(&places, vec![Slot::EMPTY; begins.len()])?;
        let slot = Slot::node(0, nodes[0].kind(), nodes[0].at)?;
        let last = nodes.len() - 1;
        let (n, at) = (open.len(), nodes[last].at);
        let mut nodes = nodes;
        let bottom = nodes.pop();
        self.write_nodes(nodes.into_iter()).await?;
        open.extend(bottom);
        for (i, from) in begins.iter().enumerate().rev() {
            let to = begins.get(i + 1).copied().unwrap_or(d.to);
            let above = slot_at(at, i);
            due.push(Due { from: *from, to, above, depth: position + 1, in_node: Some((n, i)) });
        }
        Ok(slot)
    }

    async fn write_nodes(&self, nodes: impl Iterator<Item = NewNode>) -> Result<()> {
        for n in nodes {
            let mut image = self.0.blank(n.bytes()).await?;
            n.put(&mut image);
            self.0.ep.write(n.at, image).await?;
        }
        Ok(())
    }

    async fn load_leaf(
        &self,
        leaves: &mut Leaves,
        (key, value): (&[u8], &[u8]),
        above: GlobalAddr,
        byte: u8,
    ) -> Result<Slot> {
        let g = &self.0.node.g;
        let step = g.leaf_footprint();
        if leaves.room == 0 {
            self.write_leaves(leaves).await?;
            let bytes = (step * LEAVES_TOGETHER) as u32;
            leaves.at = self
                .0
                .node
                .pool
                .supply()
                .alloc_bump(&self.0.ep, &self.0.node.leaves, bytes)
                .await?;
            leaves.room = LEAVES_TOGETHER;
        }
        let from = leaves.image.len();
        leaves.image.resize(from + step, 0);
        leaf::put(g, &mut leaves.image[from..from + g.leaf_bytes()], above, key, value);
        leaves.room -= 1;
        Slot::leaf(byte, g.leaf_bytes(), leaves.at.plus(from as u64))
    }

    /// Writes the buffered leaves, and keeps the rest of their memory for later.
    async fn write_leaves(&self, leaves: &mut Leaves) -> Result<()> {
        if leaves.image.is_empty() {
            return Ok(());
        }
        let step = self.0.node.g.leaf_footprint();
        let mut image = self.0.blank(leaves.image.len()).await?;
        image.copy_from_slice(&leaves.image);
        let used = leaves.image.len() / step;
        self.0.ep.write(leaves.at, image).await?;
        for i in used..used + leaves.room {
            self.0.spare_leaves.give_back(leaves.at.plus((i * step) as u64));
        }
        *leaves = Leaves::default();
        Ok(())
    }
}
