//! READs of leaves, and the checks that accept them.
//!
//! A READ takes some slots of a leaf with the metadata that stands between them: one READ, or two
//! in one doorbell where the neighbourhood goes past the last slot (`parts::hopscotch`).
//!
//! Whether a leaf is the right one (`place`): with fence keys, if it covers the key. Otherwise, if
//! its sibling is the leaf that the node above names next (the *terminator*). A leaf from the cache
//! that fails makes the client drop the cached node. Any other one has been divided, and the node
//! above does not know yet: the key is there, or in a leaf to the right, before the terminator.
//!
//! Invariants: a leaf keeps its address and its lower end, so a route never leads past its key.
//! READs change nothing, so a crash leaves nothing behind.

use dmtree_fabric::{Error, GlobalAddr, Result, Stage};
use dmtree_parts::blink::{Route, upper};

use crate::format::{Leaf, Part};
use crate::index::Chime;

/// Where a key is, according to a leaf that a route has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this leaf or nowhere.
    Here,
    /// In this leaf, or in one to the right before the terminator.
    HereOrRight,
    /// In a leaf to the right.
    Right,
    /// The route is stale.
    Stale,
}

/// Leaves as they are read.
pub(crate) struct Leaves<'c>(pub(crate) &'c Chime);

impl<'c> Leaves<'c> {
    /// Parts of a leaf, and the slots that an inspection of them costs.
    fn costs<'p>(&self, parts: &'p [Part]) -> (&'p [Part], usize) {
        let bytes: usize = parts.iter().map(Part::len).sum();
        (parts, bytes.div_ceil(self.0.node.g.leaf.entry))
    }

    /// READs parts of a leaf once; `None` while it is being written.
    pub(crate) async fn sample(&self, at: GlobalAddr, parts: &[Part]) -> Result<Option<Leaf<'c>>> {
        let mut leaf = self.0.node.g.unread();
        let is_whole = self.0.sample_parts(&mut leaf, at, self.costs(parts)).await?;
        Ok(is_whole.then_some(leaf))
    }

    /// READs parts of a leaf until they are whole.
    pub(crate) async fn read_parts(&self, at: GlobalAddr, parts: &[Part]) -> Result<Leaf<'c>> {
        self.0.with_parts(self.0.node.g.unread(), at, self.costs(parts)).await
    }

    /// READs what is missing of a leaf, under its lock.
    pub(crate) async fn complete(&self, leaf: Leaf<'c>, at: GlobalAddr) -> Result<Leaf<'c>> {
        match &leaf.rest()[..] {
            [] => Ok(leaf),
            rest => self.0.with_parts(leaf, at, self.costs(rest)).await,
        }
    }

    /// Where a key is, according to the leaf of a route.
    pub(crate) fn place(&self, leaf: &Leaf<'_>, r: &Route, key: &[u8]) -> Place {
        if self.0.node.g.fences {
            let (low, high) = leaf.fences();
            let ends_before = upper(high).is_some_and(|high| key >= high);
            return match (key < low, ends_before) {
                (false, false) => Place::Here,
                (true, _) => Place::Stale,
                (_, true) if r.cached => Place::Stale,
                (_, true) => Place::Right,
            };
        }
        match leaf.sibling() == r.next {
            true => Place::Here,
            false if r.cached => Place::Stale,
            false => Place::HereOrRight,
        }
    }

    /// The route to the right sibling.
    pub(crate) fn right(&self, leaf: &Leaf<'_>, r: &Route) -> Result<Route> {
        self.0.ep.check_deadline("the end of a walk to the right", r.leaf.bits())?;
        self.0.retried.set(true);
        let sibling = leaf.sibling();
        if sibling.is_null() {
            return Err(Error::corrupt(format!("leaf {} ends early and has no sibling", r.leaf)));
        }
        Ok(Route { leaf: sibling, cached: false, ..*r })
    }

    /// The slot in which a key is according to the hotspot buffer.
    pub(crate) fn hot_slot(&self, leaf: GlobalAddr, key: &[u8]) -> Option<usize> {
        let (g, hotspots) = (&self.0.node.g, self.0.node.hotspots.as_ref()?);
        self.0.ep.stage_cost(Stage::FingerprintScan, 1);
        let home = g.home(key);
        hotspots.find(leaf, (0..g.near).map(|d| g.slot(home, d)), key)
    }

    /// A key was accessed in a slot.
    pub(crate) fn note_slot(&self, leaf: GlobalAddr, slot: usize, key: &[u8]) {
        if let Some(hotspots) = &self.0.node.hotspots {
            hotspots.note(leaf, slot, key);
        }
    }

    /// READs the slot of a hot key; `None` where it is not hot, or not there any more.
    pub(crate) async fn guess(
        &self,
        at: GlobalAddr,
        key: &[u8],
    ) -> Result<Option<(Leaf<'c>, usize)>> {
        let Some(slot) = self.hot_slot(at, key) else { return Ok(None) };
        let leaf = self.sample(at, &[self.0.node.g.single(slot)]).await?;
        Ok(leaf.and_then(|leaf| leaf.find(key).map(|slot| (leaf, slot))))
    }
}
