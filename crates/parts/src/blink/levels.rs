//! Whole levels: the inner pages of a bulk load, and the walk that checks inner pages.
//!
//! A bulk load writes the inner pages from the bottom up; nothing names them before the root word
//! does. The walk READs all pages of a level along the right links, from the root's level down. On
//! every level the pages cover the key space without gap or overlap, and agree with the records
//! above. No client writes during a walk.

use std::iter::Peekable;
use std::slice::Iter;

use dmtree_fabric::{Error, GlobalAddr, Result};

use super::{Descent, Format, Header, Inner, Page, PageTree, Separators, highest, lowest, upper};
use crate::contract::Shape;
use crate::fill::{Fill, SplitRule};
use crate::published::must;

/// A page, with the lower fence key that the page above has for it.
pub type Named = (Vec<u8>, GlobalAddr);

/// The pages of one level as a walk meets them: those with a record above, and those that only
/// right links reach.
#[derive(Debug)]
pub struct Chain<'k> {
    rest: Peekable<Iter<'k, Named>>,
    low: Vec<u8>,
    /// The page that is next.
    pub at: GlobalAddr,
}

impl<'k> Chain<'k> {
    /// A level, by the names that the level above has for its pages.
    pub fn new(known: &'k [Named]) -> Self {
        let (low, at) = known[0].clone();
        Self { rest: known.iter().peekable(), low, at }
    }

    /// The page begins where its left sibling ends. If the page above has a record for its lower
    /// fence key, the record names it.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn enter(&mut self, h: &Header<'_>) -> Result<()> {
        let at = self.at;
        must(h.low == self.low, "begins where its left sibling does not end", at)?;
        if self.rest.peek().is_some_and(|(key, _)| key == h.low) {
            let named = self.rest.next().map(|(_, child)| *child);
            must(named == Some(at), "differs from its record", at)?;
        }
        must(
            self.rest.peek().is_none_or(|(key, _)| &key[..] > h.low),
            "a record without a page",
            at,
        )
    }

    /// Goes to the right sibling; false at the right end.
    ///
    /// # Errors
    /// `Corrupt` when the right end is somewhere else.
    pub fn leave(&mut self, h: &Header<'_>) -> Result<bool> {
        let is_end = upper(h.high).is_none();
        must(is_end == h.sibling.is_null(), "the chain ends where the keys do not", self.at)?;
        if is_end {
            must(self.rest.peek().is_none(), "the chain ends before the records", self.at)?;
            return Ok(false);
        }
        (self.low, self.at) = (h.high.to_vec(), h.sibling);
        Ok(true)
    }
}

/// Whole levels of inner pages.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Levels: PageTree {
    /// Writes all inner pages above some leaves; returns the root.
    async fn build_inner(&self, leaves: Vec<Named>, fill: Fill) -> Result<GlobalAddr> {
        let g = self.format();
        let slots = g.inner_slots() as u32;
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
                let highest = highest(g.key_bytes());
                let h = Header {
                    leftmost: children[0].1,
                    sibling: places.get(i + 1).copied().unwrap_or(GlobalAddr::NULL),
                    level,
                    records: size - 1,
                    low: &children[0].0,
                    high: below.get(next).map_or(&highest[..], |(low, _)| low),
                    beyond: below.get(next).map_or(GlobalAddr::NULL, |(_, at)| *at),
                };
                let records = children[1..].iter().map(|(key, child)| (&key[..], *child));
                let image = self.inner_image(&h, records).await?;
                self.ep.write(places[i], image).await?;
                above.push((children[0].0.clone(), places[i]));
            }
            below = above;
        }
        Ok(below[0].1)
    }

    /// Checks all inner pages; returns the leaves that they name, in order.
    async fn walk_inner(&self, shape: &mut Shape) -> Result<Vec<Named>> {
        let root = self.read_root().await?;
        let mut named = vec![(lowest(self.format().key_bytes()), root)];
        let mut height = None;
        loop {
            self.ep.renew_deadline();
            let Page::Inner(image) = self.read_page(named[0].1).await? else { break };
            let h = Inner::of(self.format(), &image)?.h.level;
            must(height.is_none_or(|above| h + 1 == above), "a level is missing", root)?;
            height = Some(h);
            named = self.walk_level(&named, shape).await?;
            shape.levels += 1;
        }
        must(height.is_none_or(|h| h == 1), "leaves are not on level 0", root)?;
        Ok(named)
    }

    /// Checks the pages of one level. Returns all children, in order.
    async fn walk_level(&self, known: &[Named], shape: &mut Shape) -> Result<Vec<Named>> {
        let g = self.format();
        let mut below = Vec::new();
        let mut chain = Chain::new(known);
        let mut beyond = GlobalAddr::NULL;
        loop {
            self.ep.renew_deadline();
            let at = chain.at;
            let Page::Inner(image) = self.read_page(at).await? else {
                return Err(Error::corrupt(format!("{at}: a leaf among inner pages")));
            };
            let n = Inner::of(g, &image)?;
            chain.enter(&n.h)?;
            let follows = beyond.is_null() || beyond == n.h.leftmost;
            must(follows, "its left sibling names another child after its last one", at)?;
            beyond = n.h.beyond;
            below.extend(n.children().map(|(key, child)| (key.to_vec(), child)));
            shape.inner_nodes += 1;
            shape.structure_bytes += g.inner_bytes() as u64;
            if !chain.leave(&n.h)? {
                return Ok(below);
            }
        }
    }
}

impl<T: PageTree> Levels for T {}
