//! Splits a full leaf: it gets a right sibling.
//!
//! Verbs in order, under the lock of the leaf (steps 1 to 5 are those of the insert that finds it
//! full):
//! - (6) READ leaf.
//! - (7) WRITE sibling and (8) WRITE its table, both with version 0.
//! - (9) WRITE leaf, all entries with the version raised by one.
//! - (10) WRITE its table, which unlocks.
//! - (11) to (13) lock, READ and WRITE the bottom inner node (`parent.rs`).
//!
//! Invariants: nothing names the sibling before step 9; the leaf's new header has the right link to
//! it. Record, table, header and entries of a leaf have one version, so an operation that meets two
//! versions knows that a split is in progress. Between (10) and (13) the leaf's version differs
//! from its record's, and point operations on it wait for the new record.
//!
//! A crash before (9) loses the sibling's memory and leaves the leaf locked. A crash at (9) or (10)
//! leaves two versions, and the lock held. A crash between (10) and (13) leaves a record with an
//! old version: point operations on the leaf end in `TimedOut`. As published no client recovers
//! these.

use std::ops::Range;

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, Divided, Error, Result, Stage, Step, Verified};
use dmtree_parts::combine::LeaderGuard;
use dmtree_parts::hash::KeyHash;
use dmtree_parts::op::{SPLIT, Written};
use dmtree_parts::pairs::Pairs;

use crate::client::{FpTree, Route};
use crate::format::MAX_CAPACITY;
use crate::format::inner::Child;
use crate::format::leaf::{self, Header, Sibling};
use crate::format::table::Table;
use crate::lock::LeafLocks;
use crate::lock::Locked;
use crate::node::FpNode;
use crate::parent::Change;
use crate::parent::Parents;
use crate::write::seal;

/// A plan for the division of a leaf.
struct Plan {
    /// The slots of the full leaf, in the order of their keys. The number behind the last slot
    /// stands for the pending pair.
    order: [u8; MAX_CAPACITY + 1],
    /// The number of pairs that stay.
    stay: usize,
    /// Number of slots of the sibling.
    capacity: usize,
    separator: Vec<u8>,
    /// The leaf keeps no key and no range: its record is replaced, and only its left sibling names
    /// it.
    replaced: bool,
}

/// The images of a leaf and its table.
type Images = (Buf, Buf);

/// Splits of leaves.
pub(crate) struct Splits<'c>(pub(crate) &'c FpTree);

impl Splits<'_> {
    pub(crate) async fn split(
        &self,
        l: Locked,
        (key, fp): (&[u8], u8),
        value: &mut Vec<u8>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        let r = l.route;
        let prepared = async {
            let leaf = self.read_locked_leaf(&r).await?;
            let plan = self.plan(&leaf, &r, key)?;
            self.0.reserve_inner().await?;
            let sibling = self.0.new_leaf(plan.capacity).await?;
            seal(lease, value);
            let images = self.images(&l, &leaf, &plan, sibling, (key, fp, value)).await?;
            Ok::<_, Error>((plan, sibling, images))
        };
        let (plan, sibling, images) = LeafLocks(self.0).under(&r, prepared.await).await?;
        self.write_split(&r, sibling, images).await.map_err(Error::effect_unknown)?;
        let Sibling { leaf: addr, table, capacity } = sibling;
        let change = Change {
            separator: plan.separator,
            left: Child {
                addr: r.leaf,
                table: r.table,
                capacity: r.capacity,
                version: r.version + 1,
            },
            right: Child { addr, table, capacity, version: 0 },
            replaced: plan.replaced,
        };
        Parents(self.0).publish(&r, &change).await.map_err(Error::effect_unknown)?;
        let slots = r.capacity as u64;
        self.0.ep.count_divided(Divided { keys: slots, slots });
        Ok(SPLIT)
    }

    /// Step 6. The lock keeps other writers out.
    pub(crate) async fn read_locked_leaf(&self, r: &Route) -> Result<Verified> {
        let g = &self.0.node.g;
        self.0.ep.step(Step::Structure);
        let bytes = self.0.ep.read(r.leaf, g.leaf_bytes(r.capacity) as u32).await?;
        self.0.ep.stage_cost(Stage::NodeImage, r.capacity as u32);
        let whole = bytes.check(|b| {
            let h = leaf::check(g, b, r.capacity, r.capacity);
            h.filter(|h| h.version == r.version).map(|_| ()).ok_or(())
        });
        let wrong = |()| Error::corrupt(format!("locked leaf {} is not of one version", r.leaf));
        whole.map(|((), bytes)| bytes).map_err(wrong)
    }

    fn plan(&self, image: &[u8], r: &Route, key: &[u8]) -> Result<Plan> {
        if r.version == u32::MAX {
            return Err(Error::full(format!(
                "leaf {} was divided 2^32 times; load the index anew",
                r.leaf
            )));
        }
        let key_of = |slot: u8| match usize::from(slot) {
            slot if slot == r.capacity => key,
            slot => leaf::entry_of(&self.0.node.g, image, slot).key,
        };
        let mut order = std::array::from_fn(|i| i as u8);
        order[..=r.capacity].sort_unstable_by(|a, b| key_of(*a).cmp(key_of(*b)));
        let least = FpNode::least_cache_bytes(&self.0.node.g);
        let tight = self.0.node.o.adaptive_capacity && self.0.node.cache.is_short_of(least);
        let capacity = if tight { (2 * r.capacity).min(MAX_CAPACITY) } else { r.capacity };
        // All pairs move to a larger sibling; otherwise half of them, the pending one included.
        let stay = if capacity > r.capacity { 0 } else { r.capacity.div_ceil(2) };
        let separator = key_of(order[stay]).to_vec();
        let min = leaf::header(&self.0.node.g, image).map_or(&[][..], |h| h.min);
        let replaced = separator == min;
        Ok(Plan { order, stay, capacity, separator, replaced })
    }

    /// The images of the divided leaf, and of its sibling.
    async fn images(
        &self,
        l: &Locked,
        old: &[u8],
        plan: &Plan,
        sibling: Sibling,
        (key, fp, value): (&[u8], u8, &[u8]),
    ) -> Result<(Images, Images)> {
        let (g, r) = (&self.0.node.g, &l.route);
        let wrong = || Error::corrupt(format!("leaf {} has no header", r.leaf));
        let h = leaf::header(g, old).ok_or_else(wrong)?;
        self.0.ep.stage_cost(Stage::NodeImage, (r.capacity + plan.capacity) as u32);
        let pair = |slot: &u8| match usize::from(*slot) {
            slot if slot == r.capacity => (key, value, fp),
            slot => {
                let e = leaf::entry_of(g, old, slot);
                (e.key, e.value, l.table.fps()[slot])
            }
        };
        let (stay, moved) = plan.order[..=r.capacity].split_at(plan.stay);
        let header = Header { min: &plan.separator, capacity: plan.capacity, version: 0, ..h };
        let right = self.leaf_images(&header, moved.iter().map(pair)).await?;
        let header = Header { max: &plan.separator, version: r.version + 1, right: sibling, ..h };
        let left = self.leaf_images(&header, stay.iter().map(pair)).await?;
        Ok((left, right))
    }

    /// Steps 7 to 10.
    async fn write_split(
        &self,
        r: &Route,
        s: Sibling,
        ((leaf, table), (sibling, sibling_table)): (Images, Images),
    ) -> Result<()> {
        self.0.ep.step(Step::Structure);
        if self.0.node.o.round_trip_combining {
            let both = (write_verb(s.leaf, sibling), write_verb(s.table, sibling_table));
            self.0.ep.batch(both).await?;
        } else {
            self.0.ep.write(s.leaf, sibling).await?;
            self.0.ep.write(s.table, sibling_table).await?;
        }
        self.0.ep.write(r.leaf, leaf).await?;
        LeafLocks(self.0).write_table_and_unlock(r, table).await
    }

    /// The images of a leaf and its table from pairs in key order, for bulk loads.
    pub(crate) async fn built_leaf(
        &self,
        h: &Header<'_>,
        pairs: &Pairs,
        range: Range<usize>,
    ) -> Result<Images> {
        let pair = |i| {
            let (key, value) = pairs.get(i);
            (key, value, KeyHash::of(key).fingerprint())
        };
        self.leaf_images(h, range.map(pair)).await
    }

    /// Pairs with their fingerprints in the first slots of a leaf; the other slots are free.
    async fn leaf_images<'p>(
        &self,
        h: &Header<'_>,
        mut pairs: impl Iterator<Item = (&'p [u8], &'p [u8], u8)>,
    ) -> Result<Images> {
        let g = &self.0.node.g;
        let mut image = self.0.ep.buf(g.leaf_bytes(h.capacity) as u32).await?;
        leaf::put_header(g, &mut image, h);
        let mut table = Table::new(u64::from(h.version), h.capacity);
        for i in 0..h.capacity {
            let out = &mut image[g.entry_at(i)..g.entry_at(i + 1)];
            match pairs.next() {
                Some((key, value, fp)) => {
                    leaf::put_entry(g, out, h.version, key, value);
                    table.set(i, fp);
                }
                None => leaf::put_free(out, h.version),
            }
        }
        Ok((image, LeafLocks(self.0).table_image(&table).await?))
    }
}
