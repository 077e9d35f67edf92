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

use dmtree_fabric::{Buf, Error, GlobalAddr, Result};
use dmtree_parts::blink::{
    Descent, Format, Header, Levels, Named, Page, PageTree, highest, lowest, upper,
};
use dmtree_parts::fill::{self, Fill, SplitRule};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;

use crate::client::Sherman;
use crate::format::leaf;
use crate::lock::Held;

impl Sherman {
    /// Locks the only leaf of an index without keys; `None` for any other index.
    async fn lock_empty(&self) -> Result<Option<(GlobalAddr, Held)>> {
        let root = self.read_root().await?;
        if !matches!(self.read_page(root).await?, Page::Leaf) {
            return Ok(None);
        }
        let held = self.lock(root).await?;
        let (held, image) = self.under(held, self.read_leaf(root).await).await?;
        let h = self.header_of(&image)?;
        let is_empty = leaf::used(&self.node.g, &image).next().is_none();
        let is_empty = is_empty && upper(h.high).is_none();
        if !is_empty {
            self.unlock(held).await?;
            return Ok(None);
        }
        Ok(Some((root, held)))
    }

    /// Returns the number of leaves; `None` if the index has keys.
    pub(crate) async fn fill_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        let Some((at, held)) = self.lock_empty().await? else { return Ok(None) };
        let built = async {
            let (named, first) = self.build_leaves(at, all, fill).await?;
            let leaves = named.len() as u64;
            Ok::<_, Error>((self.build_inner(named, fill).await?, first, leaves))
        };
        let (held, (root, first, leaves)) = self.under(held, built.await).await?;
        self.ep.renew_deadline();
        self.write_back(held, at, first, false).await?;
        if root != at
            && self.ep.cas(self.node.root.word, at.bits(), root.bits()).await? != at.bits()
        {
            // Another client has split the first leaf meanwhile and made a root. The right links
            // reach all leaves.
            self.retried.set(true);
        }
        self.node.pages.forget_top();
        self.node.pages.cache.clear();
        Ok(Some(leaves))
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
        let (lowest, highest) = (lowest(g.key), highest(g.key));
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
        g.put_header(&mut image, h);
        for (slot, i) in range.enumerate() {
            leaf::put_entry(g, &mut image, slot, Some(all.get(i)));
        }
        g.seal(&mut image);
        Ok(image)
    }
}
