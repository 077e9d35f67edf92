//! A leaf as a core of its node sees it: an image that it has loaded under the latch.

use std::borrow::Cow;

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::tree::area::{self, Mode, Stored};
use dmtree_parts::tree::leaf::{self, FenceArea, HeaderParts};
use dmtree_parts::tree::slot::{self, Place, Slot, SlotState};
use dmtree_parts::tree::{Geometry, Ver, block, u64_at};
use dmtree_pool::{BlockPtr, TableId};

use super::tree::Visit;

/// The areas of an entry.
#[derive(Clone)]
pub(crate) struct Entry {
    pub key: (Vec<u8>, Mode),
    pub value: (Vec<u8>, Mode),
}

/// A loaded image.
pub(crate) struct Image {
    pub at: GlobalAddr,
    pub bytes: Vec<u8>,
    g: Geometry,
}

impl Image {
    /// Loads a leaf.
    pub(crate) fn load(v: &Visit<'_>, g: Geometry, at: GlobalAddr) -> Result<Self> {
        let mut bytes = vec![0; g.leaf_image(g.fanout)];
        v.memory.read(at.offset(), &mut bytes)?;
        Ok(Self { at, bytes, g })
    }

    /// A new leaf without keys.
    pub(crate) fn new(g: Geometry, at: GlobalAddr) -> Self {
        let mut image = Self { at, bytes: vec![0; g.leaf_image(g.fanout)], g };
        let ver = Ver { generation: 1, range: 0 };
        image.set_header(ver, (&[], None), GlobalAddr::NULL);
        (0..g.fanout).for_each(|i| image.set_free(i));
        image
    }

    pub(crate) fn ver(&self) -> Ver {
        Ver::from_bits(u64_at(&self.bytes, 0) as u32 >> 8)
    }

    pub(crate) fn next(&self) -> GlobalAddr {
        GlobalAddr::from_bits(u64_at(&self.bytes, self.g.next_at()))
    }

    /// The version after this one. It comes again after 16 million splits of one leaf: no READ
    /// lasts that long.
    pub(crate) fn next_ver(&self) -> Ver {
        Ver::from_bits((self.ver().bits() + 1) & 0xff_ffff)
    }

    /// Writes the header. A fence that does not fit its area is marked as one in a block: no READ
    /// of another node can use this leaf.
    pub(crate) fn set_header(
        &mut self,
        ver: Ver,
        (lo, hi): (&[u8], Option<&[u8]>),
        next: GlobalAddr,
    ) {
        let g = &self.g;
        let too_long = || FenceArea { bytes: vec![0; g.k], mode: Mode::Block };
        let of = |key| FenceArea::inline(g, key).unwrap_or_else(too_long);
        let (lo, hi) = (of(lo), hi.map_or_else(|| FenceArea::infinite(g), of));
        let parts = HeaderParts {
            ver,
            table: TableId::NONE,
            slots: g.fanout,
            level: 0,
            lo: &lo,
            hi: &hi,
            next,
            forward: GlobalAddr::NULL,
        };
        leaf::put_header(g, self.at, &mut self.bytes, &parts);
    }

    pub(crate) fn set_free(&mut self, i: usize) {
        let ver = self.ver();
        leaf::put_free(&self.g, self.at, &mut self.bytes, i, ver);
    }

    pub(crate) fn set(&mut self, i: usize, entry: &Entry) {
        let ver = self.ver();
        let slot = Slot {
            state: SlotState::Live,
            ver,
            key_mode: entry.key.1,
            value_mode: entry.value.1,
            key: &entry.key.0,
            value: &entry.value.0,
        };
        leaf::put_slot(&self.g, self.at, &mut self.bytes, i, &slot, SlotState::Live, ver);
    }

    /// Stores a slot in the region.
    pub(crate) fn store_slot(&self, v: &Visit<'_>, i: usize) -> Result<()> {
        let at = self.g.slot_at(i);
        let bytes = &self.bytes[at..at + self.g.entry()];
        v.memory.write(self.at.offset() + at as u64, bytes)
    }

    /// Stores all of it in the region.
    pub(crate) fn store(&self, v: &Visit<'_>) -> Result<()> {
        v.memory.write(self.at.offset(), &self.bytes)
    }

    fn slot(&self, i: usize) -> Result<Slot<'_>> {
        slot::unchecked(&self.g, &self.bytes[self.g.slot_at(i)..]).ok_or_else(|| self.corrupt(i))
    }

    fn corrupt(&self, i: usize) -> Error {
        Error::corrupt(format!("{}: slot {i} holds no entry", self.at))
    }

    /// Whether a slot is whole, with this leaf's version: always, unless other nodes write here.
    pub(crate) fn check(&self, i: usize) -> Result<()> {
        let place = Place { leaf: self.at, slot: i };
        match slot::check(&self.g, place, &self.bytes[self.g.slot_at(i)..]) {
            Some(s) if s.ver == self.ver() => Ok(()),
            _ => Err(self.corrupt(i)),
        }
    }

    /// The first free slot.
    pub(crate) fn free(&self) -> Option<usize> {
        (0..self.g.fanout).find(|i| matches!(self.slot(*i), Ok(s) if s.state == SlotState::Free))
    }

    /// The slots with pairs, in no order.
    pub(crate) fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.g.fanout).filter(|i| matches!(self.slot(*i), Ok(s) if s.state == SlotState::Live))
    }

    /// The slot of a key.
    pub(crate) fn find(&self, v: &Visit<'_>, key: &[u8]) -> Result<Option<usize>> {
        let hash = KeyHash::of(key);
        for i in self.live() {
            let s = self.slot(i)?;
            let is_it = match area::get_key(s.key, s.key_mode) {
                Some(Stored::Inline(stored)) => stored == key,
                Some(Stored::Block(b)) if area::may_be(s.key, key, hash) => v.block(b)?.0 == key,
                _ => false,
            };
            if is_it {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    pub(crate) fn key(&self, v: &Visit<'_>, i: usize) -> Result<Cow<'_, [u8]>> {
        let s = self.slot(i)?;
        match area::get_key(s.key, s.key_mode) {
            Some(Stored::Inline(key)) => Ok(Cow::Borrowed(key)),
            Some(Stored::Block(b)) => Ok(Cow::Owned(v.block(b)?.0)),
            _ => Err(self.corrupt(i)),
        }
    }

    pub(crate) fn value(&self, v: &Visit<'_>, i: usize) -> Result<Cow<'_, [u8]>> {
        let s = self.slot(i)?;
        match area::get_value(s.value, s.value_mode) {
            Some(Stored::Inline(value)) => Ok(Cow::Borrowed(value)),
            Some(Stored::Block(b)) => Ok(Cow::Owned(v.block(b)?.1)),
            _ => Err(self.corrupt(i)),
        }
    }

    /// Live slots with their keys, in key order.
    pub(crate) fn sorted(&self, v: &Visit<'_>) -> Result<Vec<(Cow<'_, [u8]>, usize)>> {
        let keys: Result<Vec<_>> = self.live().map(|i| Ok((self.key(v, i)?, i))).collect();
        let mut keys = keys?;
        keys.sort_unstable();
        Ok(keys)
    }

    /// The areas of a slot.
    pub(crate) fn entry(&self, i: usize) -> Result<Entry> {
        let s = self.slot(i)?;
        Ok(Entry { key: (s.key.to_vec(), s.key_mode), value: (s.value.to_vec(), s.value_mode) })
    }
}

impl Entry {
    /// The block of the key, if it has one.
    pub(crate) fn key_block(&self) -> Option<BlockPtr> {
        match area::get_key(&self.key.0, self.key.1) {
            Some(Stored::Block(b)) => Some(b),
            _ => None,
        }
    }

    /// The block of the value, if it has one.
    pub(crate) fn value_block(&self) -> Option<BlockPtr> {
        match area::get_value(&self.value.0, self.value.1) {
            Some(Stored::Block(b)) => Some(b),
            _ => None,
        }
    }
}

impl Visit<'_> {
    /// Key and value of a block.
    pub(crate) fn block(&self, at: BlockPtr) -> Result<(Vec<u8>, Vec<u8>)> {
        let mut head = [0; block::HEADER];
        self.memory.read(at.addr().offset(), &mut head)?;
        let lengths = u64_at(&head, 0);
        let len = block::bytes((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        let mut bytes = vec![0; len.min(at.capacity()) as usize];
        self.memory.read(at.addr().offset(), &mut bytes)?;
        self.copied(bytes.len());
        let found = block::check(at, &bytes).map(|(k, v)| (k.to_vec(), v.to_vec()));
        found.ok_or_else(|| Error::corrupt(format!("{at:?} holds no block")))
    }
}
