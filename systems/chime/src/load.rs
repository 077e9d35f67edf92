//! Bulk load into an empty index: writes whole leaves and inner nodes.
//!
//! The only leaf of the empty index stays in place and becomes the first leaf. Order:
//! 1. Lock the only leaf (CAS lock word), READ it, and check that it is empty.
//! 2. WRITE all other leaves from right to left, then the inner nodes from the bottom up. Nothing
//!    names them yet.
//! 3. WRITE the first leaf with its new pairs and its right sibling, and release its lock. From
//!    here on all pairs are in the index.
//! 4. CAS of the root word: first leaf -> new root.
//!
//! Between 3 and 4 the siblings reach all leaves behind the first one. If another client has
//! divided the first leaf and made a root in between, the CAS fails; this only leaves longer
//! chains. If the index is not empty, the load puts the pairs one by one.
//!
//! A leaf gets as many keys as the fill wants, or as find room in it.
//!
//! A crash before 3 loses the new nodes, and leaves the lock held. A crash after 3 leaves a correct
//! tree without the inner nodes.

use std::ops::Range;

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::blink::{Descent, Levels, Named, Page, PageTree, highest, lowest};
use dmtree_parts::fill::{self, Fill, SplitRule};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;

use crate::client::Chime;
use crate::format::{Geometry, Leaf};
use crate::lock::Held;

impl Geometry {
    /// How inserts in random order divide leaves. A hopscotch leaf is divided when a key finds no
    /// room: the mean of 64 leaves that are filled with keys in a fixed order.
    fn split_rule(&self) -> SplitRule {
        let mut keys = 0u64;
        let mut filled = |_| {
            let mut offsets = vec![None; self.span];
            loop {
                // Any homes do: those of SplitMix64.
                keys += 1;
                let mut x = keys.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                let home = ((x ^ x >> 31) % self.span as u64) as usize;
                let Some(room) = self.room(&offsets, home) else { break };
                for (from, to) in room.moves {
                    let moved: Option<usize> = offsets[from].take();
                    offsets[to] = moved.map(|offset| offset + self.distance(from, to));
                }
                offsets[room.slot] = Some(self.distance(home, room.slot));
            }
            offsets.iter().flatten().count()
        };
        let most = match self.hopscotch {
            true => (0..64).map(&mut filled).sum::<usize>().div_ceil(64),
            false => self.span,
        };
        SplitRule::new(most as u32, most.div_ceil(2) as u32)
    }

    /// A leaf with these pairs; those behind the first one without room are left out.
    fn filled(&self, all: &Pairs, range: Range<usize>) -> (Leaf<'_>, usize) {
        let mut leaf = self.empty_leaf();
        if !self.hopscotch {
            let pairs: Vec<_> = range.clone().map(|i| all.get(i)).collect();
            leaf.set_sorted(pairs.into_iter());
            return (leaf, range.len());
        }
        let mut offsets = leaf.offsets();
        for (n, i) in range.clone().enumerate() {
            let (key, value) = all.get(i);
            let Some(room) = self.room(&offsets, self.home(key)) else { return (leaf, n) };
            leaf.put_into(&room, key, value);
            offsets = leaf.offsets();
        }
        (leaf, range.len())
    }

    /// The sizes of all leaves.
    fn sizes(&self, all: &Pairs, fill: Fill) -> Vec<usize> {
        let (mut sizes, mut next) = (Vec::new(), 0);
        let mut wanted = fill.sizes(self.split_rule(), all.len() as u64, 0);
        let mut last = 1;
        while next < all.len() {
            last = wanted.next().unwrap_or(last);
            // Keys without room are the first ones of the next leaf.
            let (_, size) = self.filled(all, next..(next + last).min(all.len()));
            sizes.push(size);
            next += size;
        }
        fill::give_company(&mut sizes, 2);
        sizes
    }
}

impl Chime {
    /// Locks the only leaf of an index without keys; `None` for any other index.
    async fn lock_empty(&self) -> Result<Option<(GlobalAddr, Held)>> {
        let root = self.read_root().await?;
        if !matches!(self.read_page(root).await?, Page::Leaf) {
            return Ok(None);
        }
        let held = self.lock_leaf(root).await?;
        let all = [0..self.node.g.leaf.bytes()];
        let (held, leaf) = self.under(held, self.read_parts(root, &all).await).await?;
        if leaf.used().next().is_some() || !leaf.sibling().is_null() {
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
        let (held, (root, mut first, leaves)) = self.under(held, built.await).await?;
        self.ep.renew_deadline();
        first.raise();
        let word = Some(first.word()).filter(|_| self.node.g.has_vacancy);
        self.release(held, at, &first, &[0..self.node.g.leaf.bytes()], word).await?;
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
    ) -> Result<(Vec<Named>, Leaf<'_>)> {
        let g = &self.node.g;
        let sizes = g.sizes(all, fill);
        let mut places = vec![first];
        for _ in 1..sizes.len() {
            self.ep.renew_deadline();
            places.push(self.new_page().await?);
        }
        let (lowest, highest) = (lowest(g.key), highest(g.key));
        let mut named: Vec<Named> = Vec::with_capacity(sizes.len());
        let mut first_leaf = None;
        // From the end, so that memory of pairs is freed as leaves are built.
        for (i, size) in sizes.iter().enumerate().rev() {
            self.ep.renew_deadline();
            let begin = all.len() - size;
            let low = if i == 0 { lowest.clone() } else { all.key(begin).to_vec() };
            let high = named.last().map_or(&highest[..], |(low, _)| low);
            let sibling = places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL);
            let (mut leaf, _) = g.filled(all, begin..all.len());
            leaf.set_metadata(sibling, &low, high);
            all.truncate(begin);
            match i {
                0 => first_leaf = Some(leaf),
                _ => self.write_new_leaf(places[i], &leaf).await?,
            }
            named.push((low, places[i]));
        }
        named.reverse();
        let first = first_leaf.ok_or_else(|| Error::invalid("nothing to load"))?;
        Ok((named, first))
    }
}
