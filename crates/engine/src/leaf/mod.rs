//! Leaves: whole images, single entries, blocks, and the memory that they take.
//!
//! A leaf is READ as a whole (here), by a part (`scan/read.rs`) or by an entry (`entry.rs`).
//! Nothing that was READ counts before its checksum holds for its place, generation and version:
//!
//! - An *image* is accepted when header and slots carry one version (S).
//! - An *entry* is judged by itself, since its checksum covers leaf, slot, state and version.
//! - A *block* (`blocks.rs`) carries a checksum over its address, so a reused one is refused.
//! - A *header* (`header.rs`) may count in part, for a repair.
//!
//! Whatever is torn is READ again, with pauses. After `HELP_AFTER` READs its writer may be dead,
//! and the reader repairs the leaf.

mod blocks;
mod entry;
mod header;
mod images;
mod memory;
#[cfg(test)]
mod memory_tests;
mod sorted;
mod tombstone;

pub(crate) use blocks::{Blocks, Unwritten, Validation, replace};
pub(crate) use entry::{Entries, EntryImages, Looked, Pair, Probe, block_of, block_pair, pair_of};
pub(crate) use header::{LeafImage, NodeHeader};
pub(crate) use images::{Images, TableChange, image_at};
pub(crate) use memory::{CellKind, LeafMemory, NewLeaf};
pub(crate) use sorted::SortedKeys;
pub(crate) use tombstone::Tombstones;

use std::borrow::Cow;
use std::ops::Range;

use dmtree_fabric::{Backoff, Error, GlobalAddr, Result, Stage, Step, Verified};
use dmtree_parts::MAX_KEY_BYTES;
use dmtree_pool::BlockPtr;

use crate::format::{
    Geometry, Header, Place, Slot, SlotState, check_header, check_whole, may_be, slot, u64_at,
    unchecked_header,
};
use crate::lock::{LONG_WAIT, Locked};
use crate::log::Replay;
use crate::point::Present;
use crate::recovery::{LeafRecovery, diagnose_leaf};
use crate::{Client, HashedKey, Mark, Mutant, Route};

/// A whole leaf, or a part of one, accepted.
pub(crate) struct LeafCopy {
    pub addr: GlobalAddr,
    pub capacity: usize,
    pub bytes: Verified,
    /// Its slots, and where they begin in the bytes.
    slots: Range<usize>,
    slots_at: usize,
}

/// Reads whole leaves.
#[derive(Clone, Copy)]
pub(crate) struct Leaves<'c>(pub &'c Client);

impl Leaves<'_> {
    /// READs a leaf until its image is whole. A leaf of another capacity than expected is read
    /// again in full.
    pub(crate) async fn read(self, addr: GlobalAddr, capacity: usize) -> Result<LeafCopy> {
        let c = self.0;
        let g = &c.node.g;
        let mut capacity = capacity;
        let mut backoff = c.ep.backoff("leaf being written", addr);
        loop {
            c.ep.step(Step::Structure);
            let bytes = c.ep.read(addr, g.leaf_image(capacity) as u32).await?;
            c.ep.stage_cost(Stage::NodeImage, capacity as u32);
            let known = bytes.extract(|b| check_header(g, addr, b).map(|h| (h.slots, h.level)));
            if let Some((slots, 0)) = known
                && slots != capacity
                && c.node.is_capacity(slots)
            {
                Mark::LeafCapacity.hit();
                capacity = slots;
                continue;
            }
            let whole = bytes.check(|b| {
                let mixed = c.node.has(Mutant::LeafMixed);
                let header = check_whole(g, addr, b, (capacity, mixed));
                header.filter(|h| h.slots == capacity).map(|_| ()).ok_or(())
            });
            if let Ok(((), bytes)) = whole {
                return Ok(LeafCopy::whole(g, addr, capacity, bytes));
            }
            Mark::LeafTorn.hit();
            c.op.retried.set(true);
            self.wait_for(&mut backoff, addr, HELP_AFTER).await?;
        }
    }

    /// The leaf of a route, as clients without its lock may see it: from its image, if it has one.
    pub(crate) async fn current(self, route: &Route) -> Result<LeafCopy> {
        match route.is_imaged() {
            true => Box::pin(Images(self.0).read(route)).await,
            false => self.read(route.leaf, route.capacity).await,
        }
    }

    /// The same for a leaf that another one names.
    pub(crate) async fn current_at(self, addr: GlobalAddr, capacity: usize) -> Result<LeafCopy> {
        loop {
            let leaf = self.read(addr, capacity).await?;
            let route = NodeHeader::of(&self.0.node.g, addr, &leaf.bytes).route(addr);
            if !self.0.node.has_images() || !route.is_imaged() {
                return Ok(leaf);
            }
            let leaf = self.current(&route).await?;
            if leaf.header(self.0).ver.generation == route.generation {
                return Ok(leaf);
            }
            self.0.ep.check_deadline("a leaf that keeps its generation", addr.bits())?;
        }
    }

    /// Pauses between two READs of a leaf that another client is changing. After `patience` READs
    /// the writer may be dead, and the reader repairs the leaf. After many more the repair may need
    /// memory that is lost. The pause is a quiescent point for moving tables, because the repair
    /// itself may have to wait for one.
    pub(crate) async fn wait_for(
        self,
        backoff: &mut Backoff<'_>,
        leaf: GlobalAddr,
        patience: u32,
    ) -> Result<()> {
        if backoff.steps() >= patience {
            Box::pin(LeafRecovery(self.0).help(leaf)).await?;
        }
        if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
            Box::pin(diagnose_leaf(self.0, leaf)).await?;
        }
        self.0.op.quiescent_point();
        backoff.step().await
    }

    /// The entry of a key in an accepted leaf; its value replaces `out`.
    pub(crate) async fn find(
        self,
        leaf: &LeafCopy,
        (key, hash): HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Found> {
        let at = |i: usize, block| {
            let word = u64_at(&leaf.bytes, leaf.offset(&self.0.node.g, i));
            Found::At(Present { slot: i, block, crc: (word >> 32) as u32 })
        };
        for (i, slot) in leaf.live(self.0) {
            match pair_of(&slot) {
                Some(Pair::Inline(k, v)) if k == key => {
                    replace(out, v);
                    return Ok(at(i, BlockPtr::from_bits(0)));
                }
                Some(Pair::ValueIn(k, block)) if k == key => {
                    let whole = Blocks(self.0).value(block, out).await?;
                    return Ok(if whole { at(i, block) } else { Found::Torn });
                }
                Some(Pair::BothIn(block)) => {
                    let short = slot.value.is_empty() && key.len() <= slot.key.len();
                    if !short && !may_be(slot.key, key, hash) {
                        continue;
                    }
                    match Blocks(self.0).value_of(block, key, out).await? {
                        None => return Ok(Found::Torn),
                        Some(true) => return Ok(at(i, block)),
                        Some(false) => {}
                    }
                }
                _ => {}
            }
        }
        Ok(Found::Nowhere)
    }

    /// The key of a slot of a locked leaf: it cannot change now.
    pub(crate) async fn whole_key<'l>(
        self,
        slot: &Slot<'l>,
        leaf: GlobalAddr,
    ) -> Result<Cow<'l, [u8]>> {
        match pair_of(slot) {
            Some(Pair::Inline(k, _) | Pair::ValueIn(k, _)) => Ok(Cow::Borrowed(k)),
            Some(Pair::BothIn(at)) => {
                let bytes = self.0.ep.read(at.addr(), at.capacity()).await?;
                let key = bytes.extract(|b| block_pair(at, b).map(|(k, _)| k.to_vec()));
                let key = key.filter(|k| !k.is_empty() && k.len() <= MAX_KEY_BYTES);
                key.map(Cow::Owned).ok_or_else(|| {
                    Error::corrupt(format!(
                        "a live entry of locked leaf {leaf} points to garbage at {}",
                        at.addr()
                    ))
                })
            }
            None => Err(Error::corrupt(format!("leaf {leaf} holds no valid key"))),
        }
    }

    /// The image of a locked leaf.
    pub(crate) async fn image_of(self, l: &mut Locked) -> Result<LeafCopy> {
        if l.route.is_imaged()
            && let Some(image) = Images(self.0).whole_in(l.at, &l.route).await?
        {
            return Ok(image);
        }
        if l.route.is_imaged() && self.0.node.log.is_some() {
            return Replay(self.0).leaf(&l.route).await;
        }
        match l.image.take() {
            Some(image) if image.is_whole() => Ok(image),
            _ => self.read(l.route.leaf, l.route.capacity).await,
        }
    }

    pub(crate) async fn low_of(self, leaf: &LeafCopy) -> Result<Vec<u8>> {
        Ok(Blocks(self.0).fence(leaf.header(self.0).lo).await?.unwrap_or_default().into_owned())
    }
}

/// After this many READs of a torn image its writer may be dead.
pub(crate) const HELP_AFTER: u32 = 6;

impl LeafCopy {
    /// The accepted bytes of a whole leaf.
    pub fn whole(g: &Geometry, addr: GlobalAddr, capacity: usize, bytes: Verified) -> Self {
        Self { addr, capacity, bytes, slots: 0..capacity, slots_at: g.slot_at(0) }
    }

    /// The accepted bytes of some slots.
    pub fn part(route: &Route, slots: Range<usize>, bytes: Verified) -> Self {
        let (addr, capacity) = (route.leaf, route.capacity);
        Self { addr, capacity, bytes, slots, slots_at: 0 }
    }

    /// Whether header and all slots are there.
    pub fn is_whole(&self) -> bool {
        self.slots.len() == self.capacity
    }

    fn offset(&self, g: &Geometry, i: usize) -> usize {
        self.slots_at + (i - self.slots.start) * g.entry()
    }

    /// The header of an accepted leaf.
    pub fn header(&self, c: &Client) -> Header<'_> {
        debug_assert!(self.is_whole());
        debug_assert!(check_header(&c.node.g, self.addr, &self.bytes).is_some());
        unchecked_header(&c.node.g, &self.bytes).expect("accepted")
    }

    /// Slot `i` of an accepted leaf.
    pub fn slot(&self, c: &Client, i: usize) -> Slot<'_> {
        let g = &c.node.g;
        let bytes = self.entry(g, i);
        debug_assert!(slot::check(g, Place { leaf: self.addr, slot: i }, bytes).is_some());
        slot::unchecked(g, bytes).expect("accepted")
    }

    /// The bytes of slot `i`.
    #[inline]
    pub fn entry(&self, g: &Geometry, i: usize) -> &[u8] {
        &self.bytes[self.offset(g, i)..][..g.entry()]
    }

    /// The live slots.
    pub fn live<'a>(&'a self, c: &'a Client) -> impl Iterator<Item = (usize, Slot<'a>)> {
        let slots = self.slots.clone().map(|i| (i, self.slot(c, i)));
        slots.filter(|(_, s)| s.state == SlotState::Live)
    }
}

/// Position of a key in a leaf.
pub(crate) enum Found {
    At(Present),
    Nowhere,
    /// The block that an entry points to is gone.
    Torn,
}
