//! Bulk load into an empty index: writes whole leaves and inner pages.
//!
//! The only leaf of the empty index stays in place and becomes the first leaf. Order:
//! 1. Lock the only leaf, READ it, and check that it is empty.
//! 2. WRITE all other leaves from right to left, then the inner pages from the bottom up. Nothing
//!    names them yet.
//! 3. WRITE the first leaf with its new pairs and its right sibling, and release its lock. From
//!    here on all pairs are in the index.
//! 4. CAS of the root word: first leaf -> new root.
//!
//! Between 3 and 4 the right links reach all leaves behind the first one. If another client has
//! split the first leaf and made a root in between, the CAS fails; this only leaves longer chains.
//! If the index is not empty, the load puts the pairs one by one.
//!
//! A crash before 3 loses the new pages, and leaves the lock held. A crash after 3 leaves a correct
//! tree without the inner pages.

use std::ops::Range;

use dmtree_fabric::{Error, GlobalAddr, Result};

use super::{Descent, Format, Header, Levels, Named, Page, highest, lowest};
use crate::fill::Fill;
use crate::pairs::Pairs;

/// What a bulk load needs to know of leaves.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait BulkLoad: Levels {
    /// A leaf that is not written yet.
    type NewLeaf<'c>
    where
        Self: 'c;

    /// Takes the lock of a leaf, and READs it; whether it has neither pairs nor a right sibling.
    async fn lock_first(&self, leaf: GlobalAddr) -> Result<(Self::Held, bool)>;
    /// How many pairs each leaf gets, from the left.
    fn leaf_sizes(&self, all: &Pairs, fill: Fill) -> Vec<usize>;
    /// The lower fence key of a leaf that begins with this pair, which is not the first.
    fn low_fence(&self, all: &Pairs, begin: usize) -> Vec<u8>;
    /// A leaf with some of the pairs.
    async fn new_leaf(
        &self,
        h: &Header<'_>,
        all: &Pairs,
        range: Range<usize>,
    ) -> Result<Self::NewLeaf<'_>>;
    /// WRITEs a leaf that nothing names yet.
    async fn write_new<'c>(&'c self, at: GlobalAddr, leaf: Self::NewLeaf<'c>) -> Result<()>;
    /// WRITEs the first leaf, and releases its lock.
    async fn write_first<'c>(
        &'c self,
        held: Self::Held,
        at: GlobalAddr,
        leaf: Self::NewLeaf<'c>,
    ) -> Result<()>;

    /// Locks the only leaf of an index without keys; `None` for any other index.
    async fn lock_empty(&self) -> Result<Option<(GlobalAddr, Self::Held)>> {
        let root = self.read_root().await?;
        if !matches!(self.read_page(root).await?, Page::Leaf) {
            return Ok(None);
        }
        match self.lock_first(root).await? {
            (held, true) => Ok(Some((root, held))),
            (held, false) => self.unlock(held).await.map(|()| None),
        }
    }

    /// Returns the number of leaves; `None` if the index has keys.
    async fn fill_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        let Some((at, held)) = self.lock_empty().await? else { return Ok(None) };
        let built = async {
            let (named, first) = self.build_leaves(at, all, fill).await?;
            let leaves = named.len() as u64;
            Ok::<_, Error>((self.build_inner(named, fill).await?, first, leaves))
        };
        let (held, (root, first, leaves)) = self.under(held, built.await).await?;
        self.ep.renew_deadline();
        self.write_first(held, at, first).await?;
        if root != at
            && self.ep.cas(self.node.root.word, at.bits(), root.bits()).await? != at.bits()
        {
            self.retried.set(true);
        }
        self.pages().forget_top();
        self.pages().cache.clear();
        Ok(Some(leaves))
    }

    /// Writes all leaves but the first, and returns the first.
    async fn build_leaves(
        &self,
        first: GlobalAddr,
        all: &mut Pairs,
        fill: Fill,
    ) -> Result<(Vec<Named>, Self::NewLeaf<'_>)> {
        let key_bytes = self.format().key_bytes();
        let sizes = self.leaf_sizes(all, fill);
        let mut places = vec![first];
        for _ in 1..sizes.len() {
            self.ep.renew_deadline();
            places.push(self.new_page().await?);
        }
        let (lowest, highest) = (lowest(key_bytes), highest(key_bytes));
        let mut named: Vec<Named> = Vec::with_capacity(sizes.len());
        let mut first_leaf = None;
        // From the end, so that memory of pairs is freed as leaves are built.
        for (i, size) in sizes.iter().enumerate().rev() {
            self.ep.renew_deadline();
            let begin = all.len() - size;
            let low = if i == 0 { lowest.clone() } else { self.low_fence(all, begin) };
            let high = named.last().map_or(&highest[..], |(low, _)| low);
            let sibling = places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL);
            let header = Header::of_leaf(sibling, &low, high);
            let leaf = self.new_leaf(&header, all, begin..all.len()).await?;
            all.truncate(begin);
            match i {
                0 => first_leaf = Some(leaf),
                _ => self.write_new(places[i], leaf).await?,
            }
            named.push((low, places[i]));
        }
        named.reverse();
        let first = first_leaf.ok_or_else(|| Error::invalid("nothing to load"))?;
        Ok((named, first))
    }
}
