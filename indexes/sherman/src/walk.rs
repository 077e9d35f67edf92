//! Checks the whole structure; no client may write meanwhile.
//!
//! The walk READs all pages of a level along the right links, from the root's level down. On every
//! level the pages cover the key space without gap or overlap, and agree with the records above.
//! Leaves have keys between their fence keys, each key once and in order where leaves are sorted,
//! equal versions, and a free slot. No lock is held. A violation is a `Corrupt` error.

use dmtree_fabric::{Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::Shape;

use crate::client::Sherman;
use crate::format::{leaf, upper};
use crate::route::Page;

/// A page, with the lower fence key that the page above has for it.
type Named = (Vec<u8>, GlobalAddr);

fn must(holds: bool, what: &str, at: GlobalAddr) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::corrupt(format!("{at}: {what}"))) }
}

impl Sherman {
    pub(crate) async fn walk_op(&self) -> Result<Shape> {
        let scope = self.ep.begin(OpKind::Admin);
        self.ep.drain().await?;
        let mut shape = Shape::default();
        self.walk_locks().await?;
        let root = self.read_root().await?;
        let mut level = vec![(self.node.g.lowest(), root)];
        let mut height = None;
        loop {
            self.ep.renew_deadline();
            let first = self.read_page(level[0].1).await?;
            match first {
                Page::Leaf => break,
                Page::Inner(image) => {
                    let h = self.accepted(&image)?.h.level;
                    must(height.is_none_or(|above| h + 1 == above), "a level is missing", root)?;
                    height = Some(h);
                }
            }
            level = self.walk_level(&level, &mut shape).await?;
            shape.levels += 1;
        }
        must(height.is_none_or(|h| h == 1), "leaves are not on level 0", root)?;
        self.walk_leaves(&level, &mut shape).await?;
        scope.end(OpOutcome::Other);
        Ok(shape)
    }

    /// No lock is held.
    async fn walk_locks(&self) -> Result<()> {
        let held = self.locks().await?.words.held(&self.ep).await?;
        match held.first() {
            Some((word, _)) => must(false, "locked", *word),
            None => Ok(()),
        }
    }

    /// Checks the pages of one level: those with a record above, and those that only right links
    /// reach. Returns all children, in order.
    async fn walk_level(&self, known: &[Named], shape: &mut Shape) -> Result<Vec<Named>> {
        let mut below = Vec::new();
        let (mut low, mut at) = known[0].clone();
        let mut rest = known.iter().peekable();
        loop {
            self.ep.renew_deadline();
            let Page::Inner(image) = self.read_page(at).await? else {
                return Err(Error::corrupt(format!("{at}: a leaf among inner pages")));
            };
            let n = self.accepted(&image)?;
            must(n.h.low == low, "begins where its left sibling does not end", at)?;
            self.pass(&mut rest, &low, at)?;
            below.push((low.clone(), n.h.leftmost));
            below.extend((0..n.h.records).map(|i| (n.key(i).to_vec(), n.child(i))));
            shape.inner_nodes += 1;
            shape.structure_bytes += self.node.g.inner_bytes() as u64;
            let end = upper(n.h.high).is_none();
            must(end == n.h.sibling.is_null(), "the chain ends where the keys do not", at)?;
            if end {
                must(rest.next().is_none(), "the chain ends before the records", at)?;
                return Ok(below);
            }
            (low, at) = (n.h.high.to_vec(), n.h.sibling);
        }
    }

    /// If the page above has a record for this fence key, the record names this page.
    fn pass<'k>(
        &self,
        rest: &mut std::iter::Peekable<impl Iterator<Item = &'k Named>>,
        low: &[u8],
        at: GlobalAddr,
    ) -> Result<()> {
        if rest.peek().is_some_and(|(key, _)| key == low) {
            let named = rest.next().map(|(_, child)| *child);
            must(named == Some(at), "differs from its record", at)?;
        }
        must(rest.peek().is_none_or(|(key, _)| &key[..] > low), "a record without a page", at)
    }

    async fn walk_leaves(&self, known: &[Named], shape: &mut Shape) -> Result<()> {
        let g = &self.node.g;
        let (mut low, mut at) = known[0].clone();
        let mut rest = known.iter().peekable();
        loop {
            self.ep.renew_deadline();
            let image = self.read_leaf(at).await?;
            let h = self.header_of(&image)?;
            must(h.low == low, "begins where its left sibling does not end", at)?;
            self.pass(&mut rest, &low, at)?;
            let mut keys = Vec::new();
            for (_, e) in leaf::used(g, &image) {
                must(e.whole, "an entry of two versions", at)?;
                must(h.covers(e.key), "a key outside", at)?;
                keys.push(e.key);
            }
            if !g.two_level {
                must(keys.is_sorted(), "keys out of order", at)?;
            }
            keys.sort_unstable();
            must(keys.windows(2).all(|w| w[0] != w[1]), "a key occurs twice", at)?;
            must(keys.len() < g.leaf_slots, "left full", at)?;
            shape.keys += keys.len() as u64;
            shape.fill.resize(shape.fill.len().max(keys.len() + 1), 0);
            shape.fill[keys.len()] += 1;
            match shape.leaves.first_mut() {
                Some((_, n)) => *n += 1,
                None => shape.leaves.push((g.leaf_slots as u32, 1)),
            }
            shape.structure_bytes += g.leaf_bytes() as u64;
            let end = upper(h.high).is_none();
            must(end == h.sibling.is_null(), "the chain ends where the keys do not", at)?;
            if end {
                return must(rest.next().is_none(), "the chain ends before the records", at);
            }
            (low, at) = (h.high.to_vec(), h.sibling);
        }
    }
}
