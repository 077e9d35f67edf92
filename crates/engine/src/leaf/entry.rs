//! Probing one entry: READ a slot, check it, compare its key.
//!
//! A slot is judged by itself. Its checksum covers the leaf's address, the slot's number, state,
//! modes, version and, unless free, both areas; so a slot that is accepted was written as a whole,
//! for this place, in the generation that it carries. The caller's conclusion depends on that
//! version: `point/get.rs` compares it with the route's generation and the table's version, and
//! writers hold the lock.
//!
//! 1. READ the slot. A torn one is READ again, with pauses; after `HELP_AFTER` READs the leaf is
//!    repaired when its writer has died.
//! 2. Compare. An inline key is compared in place. A long key is sorted out by its prefix and hash,
//!    and confirmed by the block.
//! 3. A value in a block is READ and checked against its pointer. A block that is not whole means
//!    that the entry has changed meanwhile: the slot is READ again.
//!
//! `encode` is the inverse: it fills an entry and returns the block that has to be written before
//! it. An entry that is visible before its block would let a reader take garbage for a changed
//! entry and wait for ever.
//!
//! P makes a hit sufficient: in a published generation a live, valid entry holds the key's current
//! value.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, GlobalAddr, Result, Sampled, Stage, Step};
use dmtree_pool::BlockPtr;

use crate::format::{
    Geometry, Mode, Place, Slot, SlotState, Stored, Ver, area, block, slot, u64_at,
};
use crate::journal::{Journaled, effect};
use crate::leaf::{Blocks, HELP_AFTER, Images, Leaves};
use crate::lock::Locked;
use crate::{Client, HashedKey, KeyHash, KeyValue, Mark, Mutant};

/// What a write of an entry consists of: its block, its shadow, itself.
pub(crate) type EntryImages = (Option<(BlockPtr, Buf)>, Option<Buf>, Buf);

/// Result of probing a slot for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The key is there.
    Hit {
        /// The leaf's version.
        ver: Ver,
        /// The block of the entry, if it has one.
        block: BlockPtr,
        /// The high half of its word0: its checksum.
        crc: u32,
    },
    /// The slot holds another key, or nothing.
    Other {
        /// The leaf's version.
        ver: Ver,
    },
}

impl Probe {
    /// Whether the key is there, in a leaf of this generation.
    #[inline]
    pub fn is_hit_of(&self, generation: u16) -> bool {
        matches!(self, Self::Hit { ver, .. } if ver.generation == generation)
    }

    pub fn ver(&self) -> Ver {
        match self {
            Self::Hit { ver, .. } | Self::Other { ver } => *ver,
        }
    }
}

/// A sampled slot against a key.
pub(crate) struct Looked {
    glance: Glance,
    /// The high half of its word0.
    crc: u32,
}

impl Looked {
    /// Checks a slot, and compares its key. An inline value of a hit replaces `out`.
    #[inline(always)]
    pub fn at(
        g: &Geometry,
        place: Place,
        bytes: &[u8],
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Self {
        if let Some((ver, value)) = slot::full_of(g, place, bytes, key.0) {
            out.clear();
            out.extend_from_slice(value);
            return Self { glance: Glance::Hit(ver), crc: (u64_at(bytes, 0) >> 32) as u32 };
        }
        Self::of_any(g, place, bytes, key, out)
    }

    /// [`Looked::at`] of another key, or of an entry that does not fill its areas.
    #[inline(never)]
    fn of_any(
        g: &Geometry,
        place: Place,
        bytes: &[u8],
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Self {
        Self::of(slot::check(g, place, bytes), bytes, key, out)
    }

    /// Compares the key of a slot, unless it is torn.
    fn of(
        slot: Option<Slot<'_>>,
        bytes: &[u8],
        (key, hash): HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Self {
        let glance = slot.map_or(Glance::Torn, |slot| glance(&slot, key, hash, out));
        Self { glance, crc: (u64_at(bytes, 0) >> 32) as u32 }
    }

    /// The version of a live entry in this generation that has the key for sure.
    pub fn key_is_there(&self, generation: u16) -> Option<Ver> {
        match self.glance {
            Glance::Hit(ver) | Glance::HitValueIn(ver, _) if ver.generation == generation => {
                Some(ver)
            }
            _ => None,
        }
    }

    /// With its mutant only: another key counts as this one.
    #[cold]
    pub fn trust(&mut self) {
        if let Glance::Other(ver) = self.glance {
            self.glance = Glance::Hit(ver);
        }
    }

    /// The result, where the slot alone tells.
    #[inline]
    pub fn probe(&self) -> Option<Probe> {
        let crc = self.crc;
        match self.glance {
            Glance::Other(ver) => Some(Probe::Other { ver }),
            Glance::Hit(ver) => Some(Probe::Hit { ver, block: BlockPtr::from_bits(0), crc }),
            Glance::Torn | Glance::HitValueIn(..) | Glance::MaybeIn(..) => None,
        }
    }
}

/// A slot against a key, as far as the slot alone tells.
enum Glance {
    Torn,
    Other(Ver),
    /// The value was copied out.
    Hit(Ver),
    /// The value is in this block; the key is in the slot.
    HitValueIn(Ver, BlockPtr),
    /// Key and value are in this block, if the key is this one.
    MaybeIn(Ver, BlockPtr),
}

/// Reads, checks and writes single entries.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'c>(pub &'c Client);

impl Entries<'_> {
    /// READs a slot until it is whole, and compares its key, in this generation of its leaf. A
    /// hit's value replaces `out`. The slot may have been READ once already.
    pub(crate) async fn probe(
        self,
        (place, generation): (Place, u16),
        mut looked: Option<Looked>,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Probe> {
        let at = self.at(place);
        let mut backoff = self.0.ep.backoff("entry being written", at);
        loop {
            let now = match looked.take() {
                Some(looked) => looked,
                None => {
                    self.0.ep.step(Step::Entry);
                    let bytes = self.0.ep.read(at, self.0.node.g.entry() as u32).await?;
                    bytes.extract(|bytes| self.look(place, bytes, key, out))
                }
            };
            if let Some(probe) = self.judge_looked((now, generation), key.0, out).await? {
                return Ok(probe);
            }
            Mark::EntryTorn.hit();
            self.0.op.retried.set(true);
            Leaves(self.0).wait_for(&mut backoff, place.leaf, HELP_AFTER).await?;
        }
    }

    /// Where a slot is.
    #[inline]
    pub(crate) fn at(self, place: Place) -> GlobalAddr {
        place.leaf.plus((self.0.first_entry + place.slot * self.0.entry) as u64)
    }

    /// The content of a sampled slot; `None` when it (or its block) was torn.
    pub(crate) async fn judge(
        self,
        (place, generation): (Place, u16),
        bytes: &Sampled,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Probe>> {
        let looked = bytes.extract(|b| self.look(place, b, key, out));
        self.judge_looked((looked, generation), key.0, out).await
    }

    /// Checks a sampled slot and compares its key. An inline value of a hit replaces `out`.
    pub(crate) fn look(
        self,
        place: Place,
        bytes: &[u8],
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Looked {
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let g = &self.0.node.g;
        match self.0.node.has(Mutant::EntryUnchecked) {
            false => Looked::at(g, place, bytes, key, out),
            true => Looked::of(slot::unchecked(g, bytes), bytes, key, out),
        }
    }

    /// READs the block of a slot, if it takes that to tell; `None` when slot or block was torn. The
    /// block of another generation's entry is left alone: that leaf may be behind its image, and
    /// its block gone.
    pub(crate) async fn judge_looked(
        self,
        (looked, generation): (Looked, u16),
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Probe>> {
        let crc = looked.crc;
        Ok(match looked.glance {
            Glance::HitValueIn(ver, _) | Glance::MaybeIn(ver, _)
                if ver.generation != generation =>
            {
                Some(Probe::Other { ver })
            }
            Glance::Torn | Glance::Other(_) | Glance::Hit(_) => looked.probe(),
            Glance::HitValueIn(ver, block) => {
                Mark::ValueBlock.hit();
                let whole = Blocks(self.0).value(block, out).await?;
                whole.then_some(Probe::Hit { ver, block, crc })
            }
            Glance::MaybeIn(ver, block) => {
                Mark::PairBlock.hit();
                let hit = Blocks(self.0).value_of(block, key, out).await?;
                hit.map(
                    |hit| if hit { Probe::Hit { ver, block, crc } } else { Probe::Other { ver } },
                )
            }
        })
    }

    /// Fills `entry` with a pair for a slot; false if a part does not fit.
    #[inline]
    pub(crate) fn encode_inline(
        self,
        place: Place,
        ver: Ver,
        (key, value): (&[u8], &[u8]),
        entry: &mut [u8],
    ) -> bool {
        let g = &self.0.node.g;
        let (key_area, value_area) = entry[8..8 + g.k + g.v].split_at_mut(g.k);
        let (Some(k), Some(v)) =
            (area::put_inline(key_area, key), area::put_inline(value_area, value))
        else {
            return false;
        };
        slot::encode(g, place, entry, SlotState::Live, ver, (k, v));
        true
    }

    /// Fills `entry` with a pair for a slot. A part that does not fit goes to a block, which is
    /// returned to be written first.
    pub(crate) async fn encode(
        self,
        place: Place,
        ver: Ver,
        pair: KeyValue<'_>,
        entry: &mut [u8],
    ) -> Result<Option<(BlockPtr, Buf)>> {
        let g = &self.0.node.g;
        if self.encode_inline(place, ver, (pair.0, pair.2), entry) {
            return Ok(None);
        }
        let (key, hash, value) = pair;
        let (key_area, value_area) = entry[8..8 + g.k + g.v].split_at_mut(g.k);
        let near = Some(place.leaf.node());
        let (modes, block) = match area::put_inline(key_area, key) {
            Some(k) if g.v >= 8 => {
                let block = Box::pin(Blocks(self.0).take(&[], value, near)).await?;
                ((k, area::put_value_block(value_area, block.0)), Some(block))
            }
            // A long key, or a value area without room even for a pointer: both in one block.
            _ => {
                let block = Box::pin(Blocks(self.0).take(key, value, near)).await?;
                value_area.fill(0);
                let k = if key.len() > g.k {
                    area::put_key_block(key_area, key, hash, block.0)
                } else {
                    short_key_block(key_area, block.0)
                };
                ((k, Mode::Full), Some(block))
            }
        };
        slot::encode(g, place, entry, SlotState::Live, ver, modes);
        Ok(block)
    }

    /// Encodes and WRITEs an entry, its block first. Replacing a live entry without `whole_write`
    /// needs the shadow: recovery must be able to restore what a torn WRITE destroyed.
    pub(crate) async fn write(
        self,
        l: &Locked,
        place: Place,
        pair: KeyValue<'_>,
        replaces: Option<u32>,
    ) -> Result<()> {
        let images = self.images(l, place, pair, replaces).await?;
        self.write_images(l, place, pair, (replaces, images)).await.map(|_| ())
    }

    /// WRITEs an entry that was encoded. Returns its buffer.
    pub(crate) async fn write_images(
        self,
        l: &Locked,
        place: Place,
        pair: KeyValue<'_>,
        (replaces, (block, shadow, entry)): (Option<u32>, EntryImages),
    ) -> Result<Buf> {
        let c = self.0;
        let is_live = l.table.fps()[place.slot] != 0;
        debug_assert!(c.op.holds(l.tag), "an entry of {} is written without its lock", place.leaf);
        debug_assert_eq!(is_live, replaces.is_some(), "F: the table has the replaced slots only");
        // Nothing that other clients can reach has been written under the lock.
        c.check_lease_untouched()?;
        if Journaled(c).is_on() {
            Journaled(c).append(&[effect(pair.0, Some(pair.2))]).await?;
        }
        c.ep.step(Step::Entry);
        if block.is_none() && shadow.is_none() && c.node.has(Mutant::AcknowledgeEarly) {
            let copy = Images(c).copy_of(&entry).await?;
            c.ep.detach(write_verb(self.at(place), entry), None);
            return Ok(copy);
        }
        let shadow_at = place.leaf.plus(c.node.g.shadow_at(l.route.capacity) as u64);
        let shadow = shadow.map(|shadow| write_verb(shadow_at, shadow));
        let entry = write_verb(self.at(place), entry);
        let (block, shadow) = match (block, shadow) {
            (None, Some(shadow)) if c.node.has(Mutant::ShadowBehindEntry) => {
                return c.ep.chain((entry, shadow)).await.map(|(entry, _)| entry);
            }
            (Some((b, buf)), _) if c.node.has(Mutant::EntryBesideBlock) => {
                c.ep.detach(write_verb(b.addr(), buf), None);
                return c.ep.chain(entry).await;
            }
            (Some((b, buf)), shadow) if b.addr().node() != place.leaf.node() => {
                c.ep.write(b.addr(), buf).await?;
                (None, shadow)
            }
            (block, shadow) => (block.map(|(b, buf)| write_verb(b.addr(), buf)), shadow),
        };
        match (block, shadow) {
            (None, None) => c.ep.chain(entry).await,
            (None, Some(shadow)) => c.ep.chain((shadow, entry)).await.map(|(_, entry)| entry),
            (Some(block), None) => c.ep.chain((block, entry)).await.map(|(_, entry)| entry),
            (Some(block), Some(shadow)) => {
                c.ep.chain((block, shadow, entry)).await.map(|(.., entry)| entry)
            }
        }
    }

    /// The images of an entry: its block, its shadow if the entry replaces one that a WRITE can
    /// tear, and the entry itself.
    pub(crate) async fn images(
        self,
        l: &Locked,
        place: Place,
        pair: KeyValue<'_>,
        replaces: Option<u32>,
    ) -> Result<EntryImages> {
        let g = &self.0.node.g;
        let mut entry = self.0.ep.buf(g.entry() as u32).await?;
        let block = match self.encode_inline(place, l.table.ver, (pair.0, pair.2), &mut entry) {
            true => None,
            false => Box::pin(self.encode(place, l.table.ver, pair, &mut entry)).await?,
        };
        let whole = || self.0.ep.caps().whole_write_bytes as usize >= g.entry();
        let shadow = match replaces.filter(|_| !whole() && !self.0.node.has(Mutant::NoShadow)) {
            Some(crc) => Some(self.shadow(place, crc, &entry).await?),
            None => None,
        };
        Ok((block, shadow, entry))
    }

    /// The shadow of an entry about to be replaced: its slot and its checksum, then the new image.
    /// A torn slot with the old or the new word0 was torn by this update and by nothing else.
    pub(crate) async fn shadow(self, place: Place, crc: u32, entry: &[u8]) -> Result<Buf> {
        let mut buf = self.0.ep.buf(8 + entry.len() as u32).await?;
        let head = place.slot as u64 | u64::from(crc) << 32;
        buf[..8].copy_from_slice(&head.to_le_bytes());
        buf[8..].copy_from_slice(entry);
        Ok(buf)
    }
}

/// A key that would fit, with a value that has no area of its own: the key is in the block too. The
/// area's first bytes say so.
fn short_key_block(area: &mut [u8], block: BlockPtr) -> Mode {
    area.fill(0);
    let at = area.len() - 8;
    area[at..].copy_from_slice(&block.bits().to_le_bytes());
    Mode::Block
}

fn glance(s: &Slot<'_>, key: &[u8], hash: KeyHash, out: &mut Vec<u8>) -> Glance {
    if s.state != SlotState::Live {
        return Glance::Other(s.ver);
    }
    match area::get_key(s.key, s.key_mode) {
        Some(Stored::Inline(k)) if k == key => match area::get_value(s.value, s.value_mode) {
            Some(Stored::Inline(value)) => {
                out.clear();
                out.extend_from_slice(value);
                Glance::Hit(s.ver)
            }
            Some(Stored::Block(block)) => Glance::HitValueIn(s.ver, block),
            _ => Glance::Torn,
        },
        Some(Stored::Block(block)) => {
            // Without an area for values, short keys are in blocks too, and the area has no hash.
            let short = s.value.is_empty() && key.len() <= s.key.len();
            if short || area::may_be(s.key, key, hash) {
                Glance::MaybeIn(s.ver, block)
            } else {
                Glance::Other(s.ver)
            }
        }
        Some(_) => Glance::Other(s.ver),
        None => Glance::Torn,
    }
}

/// The block of a slot, if it has one.
pub(crate) fn block_of(s: &Slot<'_>) -> Option<BlockPtr> {
    match (area::get_key(s.key, s.key_mode), area::get_value(s.value, s.value_mode)) {
        (Some(Stored::Block(b)), _) | (_, Some(Stored::Block(b))) => Some(b),
        _ => None,
    }
}

/// Key and value of a slot, or the block that has (the rest of) them.
pub(crate) enum Pair<'a> {
    Inline(&'a [u8], &'a [u8]),
    ValueIn(&'a [u8], BlockPtr),
    BothIn(BlockPtr),
}

/// Content of a live slot; `None` for bytes that no writer stores.
#[inline]
pub(crate) fn pair_of<'a>(s: &Slot<'a>) -> Option<Pair<'a>> {
    match (area::get_key(s.key, s.key_mode)?, area::get_value(s.value, s.value_mode)?) {
        (Stored::Block(b), _) => Some(Pair::BothIn(b)),
        (Stored::Inline(k), Stored::Inline(v)) => Some(Pair::Inline(k, v)),
        (Stored::Inline(k), Stored::Block(b)) => Some(Pair::ValueIn(k, b)),
        _ => None,
    }
}

/// Checks a sampled block.
pub(crate) fn block_pair(at: BlockPtr, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    block::check(at, bytes)
}
