//! The keys of a whole leaf in their order, for a split.

use dmtree_fabric::Result;
use dmtree_parts::keys::common;

use crate::format::{Geometry, Stored, slot};
use crate::key_order::KeyOrder;
use crate::leaf::{LeafCopy, Leaves};

/// The keys of a leaf's live slots, and their order. Their numbers are their slots.
pub(crate) struct SortedKeys<'l> {
    g: Geometry,
    leaf: &'l LeafCopy,
    order: KeyOrder,
    /// The keys that are in blocks, with their slots.
    long: Vec<(usize, Vec<u8>)>,
}

/// The key of an entry, if it is there.
#[inline(always)]
fn inline_key<'e>(g: &Geometry, entry: &'e [u8]) -> Option<&'e [u8]> {
    match slot::key_of(g, entry) {
        Some(Stored::Inline(key)) => Some(key),
        _ => None,
    }
}

impl<'l> SortedKeys<'l> {
    /// Of a locked leaf. Keys that are in blocks are READ.
    pub async fn of(leaves: Leaves<'_>, leaf: &'l LeafCopy) -> Result<Self> {
        let (c, g) = (leaves.0, leaves.0.node.g);
        let header = leaf.header(c);
        let skip = match (header.lo, header.hi) {
            (Stored::Inline(lo), Stored::Inline(hi)) => common(lo, hi),
            _ => 0,
        };
        let mut sorted = Self { g, leaf, order: KeyOrder::new(0, 0), long: Vec::new() };
        let mut order = sorted.inline_keys(skip);
        for (i, long) in &mut sorted.long {
            *long = leaves.whole_key(&leaf.slot(c, *i), leaf.addr).await?.into_owned();
            order.push(long, *i);
        }
        order.sort(|i| sorted.key_in(i));
        sorted.order = order;
        debug_assert!(
            (1..sorted.len()).all(|i| sorted.key(i - 1) <= sorted.key(i)),
            "keys of leaf {} do not share the prefix of its fences",
            leaf.addr
        );
        Ok(sorted)
    }

    /// The keys that are in their slots; the slots of the others are noted.
    fn inline_keys(&mut self, skip: usize) -> KeyOrder {
        let (g, mut order) = (self.g, KeyOrder::new(skip, self.leaf.capacity));
        let slots = &self.leaf.bytes[g.slot_at(0)..g.slot_at(self.leaf.capacity)];
        for (i, entry) in slots.chunks_exact(g.entry()).enumerate() {
            if !slot::is_live(entry) {
                continue;
            }
            match inline_key(&g, entry) {
                Some(key) => order.push(key, i),
                None => self.long.push((i, Vec::new())),
            }
        }
        order
    }

    /// The key in a slot.
    fn key_in(&self, slot: usize) -> &[u8] {
        inline_key(&self.g, self.leaf.entry(&self.g, slot)).unwrap_or_else(|| {
            let long = self.long.iter().find(|(i, _)| *i == slot);
            long.map_or(&[], |(_, key)| key)
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Key number `i` in their order.
    pub fn key(&self, i: usize) -> &[u8] {
        self.key_in(self.order.number(i))
    }

    /// The slots of the keys from number `from` on, in the order of the keys.
    pub fn slots_from(&self, from: usize) -> impl Iterator<Item = usize> {
        self.order.numbers().skip(from)
    }

    /// How many keys are below this one.
    pub fn count_below(&self, key: &[u8]) -> usize {
        self.order.count_below(key, |i| self.key_in(i))
    }

    /// Whether the slots are in the order of their keys.
    pub fn is_in_order(&self) -> bool {
        self.order.numbers().is_sorted()
    }
}
