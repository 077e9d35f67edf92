//! Bulk load into an empty index: writes whole leaves and inner nodes.
//!
//! The only leaf and the only inner node stay in place and become the first ones of the new tree.
//! Order:
//! 1. Lock the only leaf and the only inner node, and check that the index is empty.
//! 2. WRITE all other leaves with their tables, from right to left, then all other inner nodes from
//!    the bottom up. Nothing names them yet.
//! 3. WRITE the first leaf, then its table, which unlocks. The right links now reach all pairs;
//!    point operations wait, because the leaf's version differs from its record's.
//! 4. WRITE the first bottom node, which unlocks.
//! 5. WRITE the root pointer, under its lock.
//!
//! If the index is not empty, the load puts the pairs one by one.
//!
//! A crash before 3 loses the new memory and leaves both locks held. A crash between 3 and 4 leaves
//! a record with an old version, on which point operations end in `TimedOut`.

use std::ops::Range;

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, Error, GlobalAddr, Result};
use dmtree_parts::blink::{highest, lowest};
use dmtree_parts::fill::{self, Fill, SplitRule};
use dmtree_parts::pairs::Pairs;

use crate::client::FpTree;
use crate::format::inner::Child;
use crate::format::leaf::{self, Header, Sibling};
use crate::lock::LeafLocks;
use crate::lock::Locked;
use crate::parent::Parents;
use crate::parent::{LockedInner, Node};
use crate::route::Routes;
use crate::split::Splits;

/// The children of one level of the new tree, each with its lower fence key.
type Named = (Vec<u8>, Child);

/// The new leaves, and the images of the first leaf and its table.
struct Leaves {
    named: Vec<Named>,
    first: (Buf, Buf),
}

/// The nodes that are written last.
struct Built {
    leaves: u64,
    first: (Buf, Buf),
    bottom: Buf,
    root: GlobalAddr,
}

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c FpTree);

impl Loads<'_> {
    /// Locks the only leaf and the only inner node of an index without keys; `None` for any other
    /// index.
    async fn lock_empty(&self) -> Result<Option<(Locked, LockedInner)>> {
        let (lowest, highest) = (lowest(self.0.node.g.key), highest(self.0.node.g.key));
        let l = LeafLocks(self.0).lock_leaf(&lowest).await?;
        let image = LeafLocks(self.0)
            .under(&l.route, Splits(self.0).read_locked_leaf(&l.route).await)
            .await?;
        let whole = leaf::header(&self.0.node.g, &image)
            .is_some_and(|h| h.min == lowest && h.max == highest);
        if !whole || l.table.used() > 0 {
            LeafLocks(self.0).unlock(&l).await?;
            return Ok(None);
        }
        let n = Parents(self.0).lock_inner(l.route.bottom, &lowest).await;
        let n = LeafLocks(self.0).under(&l.route, n).await?;
        let only = Routes(self.0).read_root().await? == n.addr && Parents(self.0).records(&n) == 1;
        if !only {
            Parents(self.0).unlock_inner(n.addr).await?;
            LeafLocks(self.0).unlock(&l).await?;
            return Ok(None);
        }
        Ok(Some((l, n)))
    }

    /// Returns the number of leaves; `None` if the index has keys.
    pub(crate) async fn fill_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        let Some((l, n)) = self.lock_empty().await? else { return Ok(None) };
        let built = async {
            let leaves = self.build_leaves(&l, all, fill).await?;
            self.build_inner(&l, n.addr, leaves, fill).await
        };
        let Built { leaves, first, bottom, root } = match built.await {
            Ok(built) => built,
            Err(e) if e.effect() == dmtree_fabric::Effect::None => {
                Parents(self.0).unlock_inner(n.addr).await?;
                return LeafLocks(self.0).fail_at(&l.route, e).await;
            }
            Err(e) => return Err(e),
        };
        let (image, table) = first;
        self.0.ep.renew_deadline();
        self.0.ep.write(l.route.leaf, image).await?;
        LeafLocks(self.0).write_table_and_unlock(&l.route, table).await?;
        self.0.ep.write(n.addr, bottom).await?;
        if root != n.addr {
            Parents(self.0).set_root(root).await?;
        }
        self.0.node.cache.clear();
        Ok(Some(leaves))
    }

    /// Writes all leaves but the first, and returns the images of the first.
    async fn build_leaves(&self, l: &Locked, all: &mut Pairs, fill: Fill) -> Result<Leaves> {
        let g = &self.0.node.g;
        let capacity = l.route.capacity;
        let rule = SplitRule::new(capacity as u32, (capacity as u32).div_ceil(2));
        let mut sizes: Vec<usize> = fill.sizes(rule, all.len() as u64, 0).collect();
        fill::give_company(&mut sizes, capacity);
        let mut chunks: Vec<Range<usize>> = Vec::new();
        for size in sizes {
            let first = chunks.last().map_or(0, |c| c.end);
            chunks.push(first..first + size);
        }
        let first = Sibling { leaf: l.route.leaf, table: l.route.table, capacity };
        let mut places = vec![first];
        for _ in 1..chunks.len() {
            self.0.ep.renew_deadline();
            places.push(self.0.new_leaf(capacity).await?);
        }
        let (lowest, highest) = (lowest(g.key), highest(g.key));
        let mut first = None;
        let mut named: Vec<Named> = Vec::with_capacity(chunks.len());
        // From the end, so that memory of pairs is freed as leaves are built.
        for (i, (at, chunk)) in places.iter().zip(&chunks).enumerate().rev() {
            self.0.ep.renew_deadline();
            let min = if i == 0 { lowest.clone() } else { all.key(chunk.start).to_vec() };
            let max = named.last().map_or(&highest[..], |(low, _)| low);
            let version = if i == 0 { l.route.version + 1 } else { 0 };
            let right = places.get(i + 1).copied().unwrap_or_default();
            let h = Header { max, min: &min, capacity, version, right };
            let (image, table) = Splits(self.0).built_leaf(&h, all, chunk.clone()).await?;
            if i == 0 {
                first = Some((image, table));
            } else {
                self.0.ep.batch((write_verb(at.leaf, image), write_verb(at.table, table))).await?;
            }
            let child = Child { addr: at.leaf, table: at.table, capacity, version };
            named.push((min, child));
            all.truncate(chunk.start);
        }
        named.reverse();
        let first = first.ok_or_else(|| Error::invalid("nothing to load"))?;
        Ok(Leaves { named, first })
    }

    /// Writes all inner nodes but the first bottom node, and returns the image of that node.
    async fn build_inner(
        &self,
        l: &Locked,
        first_node: GlobalAddr,
        leaves: Leaves,
        fill: Fill,
    ) -> Result<Built> {
        debug_assert_eq!(leaves.named[0].1.addr, l.route.leaf);
        let fanout = self.0.node.g.fanout as u32;
        let rule = SplitRule::new(fanout, fanout / 2);
        let count = leaves.named.len() as u64;
        let mut children = leaves.named;
        let mut bottom = None;
        let mut level = 1;
        loop {
            let sizes = fill.sizes(rule, children.len() as u64, level);
            let mut places = Vec::new();
            for i in 0..sizes.nodes() {
                self.0.ep.renew_deadline();
                let keep = level == 1 && i == 0;
                places.push(if keep { first_node } else { self.0.new_inner().await? });
            }
            let is_root = places.len() == 1;
            let mut rest = children.into_iter();
            let mut nodes: Vec<Node> = Vec::with_capacity(places.len());
            for (i, size) in sizes.enumerate() {
                let right = places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL);
                let records: Vec<Named> = rest.by_ref().take(size).collect();
                nodes.push(Node { right, is_root, next_is_leaf: level == 1, records });
            }
            let mut upper = Vec::with_capacity(nodes.len());
            let lows: Vec<Vec<u8>> = nodes.iter().map(|n| n.records[0].0.clone()).collect();
            for (i, node) in nodes.into_iter().enumerate() {
                self.0.ep.renew_deadline();
                let max = lows.get(i + 1).cloned().unwrap_or_else(|| highest(self.0.node.g.key));
                let image = Parents(self.0).node_image(&node, &max).await?;
                if level == 1 && i == 0 {
                    bottom = Some(image);
                } else {
                    self.0.ep.write(places[i], image).await?;
                }
                upper.push((lows[i].clone(), Child { addr: places[i], ..Child::default() }));
            }
            if is_root {
                let bottom = bottom.ok_or_else(|| Error::corrupt("a level without nodes"))?;
                let root = places[0];
                return Ok(Built { leaves: count, first: leaves.first, bottom, root });
            }
            (children, level) = (upper, level + 1);
        }
    }
}
