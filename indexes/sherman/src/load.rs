//! Bulk load into an empty index: writes whole leaves and inner pages.
//!
//! The only leaf of the empty index stays in place and becomes the first leaf. Order:
//! 1. Lock the only leaf (CAS lock word), READ it, and check that it is empty.
//! 2. WRITE all other leaves from right to left, then the inner pages from the bottom up. Nothing
//!    names them yet.
//! 3. WRITE the first leaf with its new pairs and its right link, and release its lock. From here
//!    on all pairs are in the index.
//! 4. CAS of the root word: first leaf -> new root.
//!
//! Between 3 and 4 the right links reach all leaves behind the first one. If another client has
//! split the first leaf and made a root in between, the CAS fails; this only leaves longer chains.
//! If the index is not empty, the load puts the pairs one by one.
//!
//! A crash before 3 loses the new pages, and leaves the lock held. A crash after 3 leaves a correct
//! tree without the inner pages.

use dmtree_fabric::{Buf, Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::fill::{self, Fill, SplitRule};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Loaded, Outcome, Write};

use crate::client::Sherman;
use crate::format::{self, Header, inner, leaf, upper};
use crate::lock::Held;
use crate::route::Page;

/// The pages of one level of the new tree, each with its lower fence key.
type Named = (Vec<u8>, GlobalAddr);

impl Sherman {
    pub(crate) async fn load_op(
        &self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        let mut all = Pairs::collect(pairs, sorted, |key, value| {
            self.check_key(key).and_then(|()| self.check_value(value))
        })?;
        let pairs = all.len() as u64;
        if all.is_empty() {
            return Ok(Loaded::default());
        }
        let scope = self.ep.begin(OpKind::Load);
        let leaves = match self.lock_empty().await? {
            Some((at, held)) => self.fill_empty(at, held, &mut all, fill).await?,
            None => {
                scope.end(OpOutcome::Other);
                return self.put_all(&all).await;
            }
        };
        scope.end(OpOutcome::Other);
        Ok(Loaded { pairs, leaves })
    }

    async fn put_all(&self, all: &Pairs) -> Result<Loaded> {
        for (key, value) in (0..all.len()).map(|i| all.get(i)) {
            let outcome = self.write_op(key, Write::Put(value)).await?;
            debug_assert_eq!(outcome, Outcome::Done);
        }
        Ok(Loaded { pairs: all.len() as u64, leaves: 0 })
    }

    /// Locks the only leaf of an index without keys; `None` for any other index.
    async fn lock_empty(&self) -> Result<Option<(GlobalAddr, Held)>> {
        let root = self.read_root().await?;
        if !matches!(self.read_page(root).await?, Page::Leaf) {
            return Ok(None);
        }
        let held = self.lock(root).await?;
        let is_empty = match self.read_leaf(root).await {
            Ok(image) => {
                let h = self.header_of(&image)?;
                upper(h.high).is_none() && leaf::used(&self.node.g, &image).next().is_none()
            }
            Err(e) => return self.fail(held, e).await,
        };
        if !is_empty {
            self.unlock(held).await?;
            return Ok(None);
        }
        Ok(Some((root, held)))
    }

    async fn fill_empty(
        &self,
        at: GlobalAddr,
        held: Held,
        all: &mut Pairs,
        fill: Fill,
    ) -> Result<u64> {
        let built = async {
            let (named, first) = self.build_leaves(at, all, fill).await?;
            let leaves = named.len() as u64;
            Ok::<_, Error>((self.build_inner(named, fill).await?, first, leaves))
        };
        let (root, first, leaves) = match built.await {
            Ok(built) => built,
            Err(e) => return self.fail(held, e).await,
        };
        self.ep.renew_deadline();
        self.write_and_unlock(held, at, first, false).await?;
        if root != at
            && self.ep.cas(self.node.root.word, at.bits(), root.bits()).await? != at.bits()
        {
            // Another client has split the first leaf meanwhile and made a root. The right links
            // reach all leaves.
            self.retried.set(true);
        }
        self.forget_top();
        self.node.cache.clear();
        Ok(leaves)
    }

    /// Writes all leaves but the first, and returns the image of the first.
    async fn build_leaves(
        &self,
        first: GlobalAddr,
        all: &mut Pairs,
        fill: Fill,
    ) -> Result<(Vec<Named>, Buf)> {
        let g = &self.node.g;
        let slots = g.leaf_slots as u32;
        let rule = SplitRule::new(slots - 1, slots / 2);
        let mut sizes: Vec<usize> = fill.sizes(rule, all.len() as u64, 0).collect();
        fill::give_company(&mut sizes, g.leaf_slots - 1);
        let mut places = vec![first];
        for _ in 1..sizes.len() {
            self.ep.renew_deadline();
            places.push(self.new_page().await?);
        }
        let (lowest, highest) = (g.lowest(), g.highest());
        let mut named: Vec<Named> = Vec::with_capacity(sizes.len());
        let mut first_image = None;
        // From the end, so that memory of pairs is freed as leaves are built.
        for (i, size) in sizes.iter().enumerate().rev() {
            self.ep.renew_deadline();
            let end = all.len();
            let begin = end - size;
            let low = if i == 0 { lowest.clone() } else { all.key(begin).to_vec() };
            let high = named.last().map_or(&highest[..], |(low, _)| low);
            let sibling = places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL);
            let image =
                self.leaf_image(&Header::of_leaf(sibling, &low, high), all, begin..end).await?;
            all.truncate(begin);
            match i {
                0 => first_image = Some(image),
                _ => _ = self.ep.write(places[i], image).await?,
            }
            named.push((low, places[i]));
        }
        named.reverse();
        let first = first_image.ok_or_else(|| Error::invalid("nothing to load"))?;
        Ok((named, first))
    }

    /// A leaf's image from pairs in key order.
    pub(crate) async fn leaf_image(
        &self,
        h: &Header<'_>,
        all: &Pairs,
        range: std::ops::Range<usize>,
    ) -> Result<Buf> {
        let g = &self.node.g;
        let mut image = self.blank(g.leaf_bytes()).await?;
        format::put_header(g, &mut image, h);
        for (slot, i) in range.enumerate() {
            leaf::put_entry(g, &mut image, slot, Some(all.get(i)));
        }
        format::seal(g, &mut image);
        Ok(image)
    }

    /// Writes all inner pages; returns the root.
    async fn build_inner(&self, leaves: Vec<Named>, fill: Fill) -> Result<GlobalAddr> {
        let g = &self.node.g;
        let slots = g.inner_slots as u32;
        // Counted in children: one more than records.
        let rule = SplitRule::new(slots, slots / 2 + 1);
        let (mut below, mut level) = (leaves, 0u8);
        while below.len() > 1 {
            level += 1;
            let sizes: Vec<usize> =
                fill.sizes(rule, below.len() as u64, u32::from(level)).collect();
            let mut places = Vec::new();
            for _ in &sizes {
                self.ep.renew_deadline();
                places.push(self.new_page().await?);
            }
            let mut above = Vec::with_capacity(sizes.len());
            let mut next = 0;
            for (i, size) in sizes.iter().enumerate() {
                self.ep.renew_deadline();
                let children = &below[next..next + size];
                next += size;
                let highest = g.highest();
                let high = below.get(next).map_or(&highest[..], |(low, _)| low);
                let h = Header {
                    leftmost: children[0].1,
                    sibling: places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL),
                    level,
                    records: size - 1,
                    low: &children[0].0,
                    high,
                };
                let mut image = self.blank(g.inner_bytes()).await?;
                format::put_header(g, &mut image, &h);
                for (slot, (key, child)) in children[1..].iter().enumerate() {
                    inner::put_record(g, &mut image, slot, key, *child);
                }
                format::seal(g, &mut image);
                self.ep.write(places[i], image).await?;
                above.push((children[0].0.clone(), places[i]));
            }
            below = above;
        }
        Ok(below[0].1)
    }
}
