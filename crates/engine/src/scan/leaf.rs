//! A leaf as a scan sees it: the accepted image, and the order of its pairs.
//!
//! One pass checks each slot and collects the live ones. Nothing is copied out of the image: a pair
//! is its slot's number and the head of its key, behind the prefix that both fences share, in one
//! word. All keys of the leaf have that prefix, so most heads differ, and the sort compares words.
//! A leaf with slots in key order, as a load leaves it, is not sorted at all: its slots are the
//! order. Pairs of long keys are READ from their blocks and held beside the image.

use std::ops::Range;

use dmtree_fabric::{GlobalAddr, Verified};
use dmtree_parts::keys::{common, head};
use dmtree_parts::{Page, ScanRequest};
use dmtree_pool::BlockPtr;

use crate::format::{
    Geometry, Header, MAX_SLOTS, SlotState, Stored, Whole, bound, check_words, slot, u64_at,
};
use crate::key_order::KeyOrder;
use crate::leaf::{Pair, pair_of};

/// What one pass over an image finds. Its memory is used again for another image.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// The fences, as far as they are in the image.
    pub lo: Option<Fence>,
    pub hi: Option<Fence>,
    next: GlobalAddr,
    /// Each of the first slots holds a pair that fills its areas, in key order: so many. Otherwise
    /// 0.
    in_order: usize,
    /// The pairs otherwise, by their slots; from [`FIRST_LONG`] on by their numbers among the long
    /// ones.
    order: KeyOrder,
    /// Blocks of the pairs with long keys.
    pub blocks: Vec<BlockPtr>,
    /// Those pairs, as soon as they are READ.
    pub long: Vec<(Vec<u8>, Vec<u8>)>,
    /// Key and value of each pair fill their areas.
    is_full: bool,
    /// No block has to be READ.
    pub is_alone: bool,
}

/// An accepted leaf.
pub(crate) struct ScanLeaf {
    pub image: Verified,
    /// Its fences and, in key order, its live pairs.
    pub found: Box<Collected>,
}

/// An accepted leaf, to be read.
#[derive(Clone, Copy)]
pub(crate) struct LeafView<'l> {
    g: &'l Geometry,
    image: &'l [u8],
    found: &'l Collected,
}

/// A fence of an accepted leaf.
#[derive(Debug)]
pub(crate) enum Fence {
    /// Bytes of the image.
    Inline(Range<usize>),
    /// Bytes of a block.
    Block(Vec<u8>),
}

impl Fence {
    /// An inline fence with its area at this offset.
    pub fn inline(stored: Stored<'_>, at: usize) -> Option<Self> {
        match stored {
            Stored::Inline(key) => Some(Self::Inline(at..at + key.len())),
            Stored::Block(_) | Stored::Infinite => None,
        }
    }
}

/// The number of the first pair that is not in a slot.
const FIRST_LONG: usize = MAX_SLOTS;

/// A value of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ItemValue<'l> {
    Here(&'l [u8]),
    In(BlockPtr),
}

/// Bytes of the prefix that all keys between two fences share.
fn shared_prefix(header: &Header<'_>) -> usize {
    match (header.lo, header.hi) {
        (Stored::Inline(lo), Stored::Inline(hi)) => common(lo, hi),
        _ => 0,
    }
}

impl Collected {
    /// Checks the first `slots` slots against the header and collects the live ones; `mixed` as for
    /// [`check_words`]. False when anything is torn.
    pub fn fill(
        &mut self,
        g: &Geometry,
        (leaf, header): (GlobalAddr, &Header<'_>),
        bytes: &[u8],
        (slots, mixed): (usize, bool),
    ) -> bool {
        let shared = shared_prefix(header);
        self.order.restart(shared);
        self.blocks.clear();
        self.long.clear();
        (self.in_order, self.is_full) = (0, true);
        // Keys that fill their areas have 8 bytes behind the prefix.
        let (head_at, has_head) = (8 + shared, shared + 8 <= g.k);
        let (first, entry, k) = (g.slot_at(0), g.entry(), g.k);
        let head_in = move |slot: &[u8]| {
            let head = slot.get(head_at..).and_then(<[u8]>::first_chunk);
            u64::from_be_bytes(*head.expect("a head is in the entry"))
        };
        let short_head = move |slot: &[u8]| head(&slot[8..][..k], shared);
        let is_whole = check_words(g, (leaf, header), bytes, (slots, mixed), |some| match some {
            Whole::Full(some) => {
                let from = first + some.start * entry;
                let run = bytes[from..first + some.end * entry].chunks_exact(entry);
                let is_all = has_head && some == (0..slots);
                if is_all && run.clone().map(head_in).is_sorted_by(|a, b| a < b) {
                    self.in_order = slots;
                    return;
                }
                match has_head {
                    true => self.order.extend(run.map(head_in), some.start),
                    false => self.order.extend(run.map(short_head), some.start),
                }
            }
            Whole::Any(i, _, bytes) => {
                let live = slot::unchecked(g, bytes).filter(|s| s.state == SlotState::Live);
                match live.as_ref().and_then(pair_of) {
                    Some(Pair::Inline(k, v)) => {
                        self.is_full &= (k.len(), v.len()) == (g.k, g.v);
                        self.order.push(k, i);
                    }
                    Some(Pair::ValueIn(k, _)) => {
                        self.is_full = false;
                        self.order.push(k, i);
                    }
                    Some(Pair::BothIn(at)) => self.blocks.push(at),
                    None => {}
                }
            }
        });
        self.lo = Fence::inline(header.lo, g.lo_at());
        self.hi = Fence::inline(header.hi, g.hi_at());
        let has_fences = self.lo.is_some() && (self.hi.is_some() || header.hi == Stored::Infinite);
        self.is_alone = self.blocks.is_empty() && has_fences;
        self.is_full &= self.blocks.is_empty();
        self.next = header.next;
        is_whole
    }

    /// Brings the pairs of an image into the order of their keys.
    #[inline]
    pub fn sort(&mut self, g: &Geometry, image: &[u8]) {
        if self.in_order == 0 {
            self.sort_pairs(g, image);
        }
    }

    fn sort_pairs(&mut self, g: &Geometry, image: &[u8]) {
        let mut order = std::mem::take(&mut self.order);
        for (i, (key, _)) in self.long.iter().enumerate() {
            order.push(key, FIRST_LONG + i);
        }
        let leaf = LeafView { g, image, found: self };
        if order.sort(|number| leaf.key(number)) {
            // A key deleted from one slot and inserted into another while the image was sampled
            // shows twice; either was current.
            order.dedup(|number| leaf.key(number));
        }
        self.order = order;
    }
}

impl ScanLeaf {
    /// No block has to be READ for it.
    pub fn is_alone(&self) -> bool {
        self.found.is_alone
    }

    /// The leaf, to be read.
    #[inline]
    pub fn view<'l>(&'l self, g: &'l Geometry) -> LeafView<'l> {
        LeafView { g, image: &self.image, found: &self.found }
    }
}

impl<'l> LeafView<'l> {
    fn bytes_of(self, fence: &'l Fence) -> &'l [u8] {
        match fence {
            Fence::Inline(at) => &self.image[at.clone()],
            Fence::Block(key) => key,
        }
    }

    /// How many of its slots may be in use, if it is the image of a leaf of `capacity`.
    pub fn bound(self, capacity: usize) -> usize {
        bound(u64_at(self.image, 0), capacity)
    }

    /// Right sibling.
    pub fn next(self) -> GlobalAddr {
        self.found.next
    }

    /// Lower fence, inclusive.
    pub fn lo(self) -> &'l [u8] {
        self.bytes_of(self.found.lo.as_ref().expect("a lower fence is finite"))
    }

    /// Upper fence, exclusive; `None` for the last leaf.
    pub fn hi(self) -> Option<&'l [u8]> {
        self.found.hi.as_ref().map(|hi| self.bytes_of(hi))
    }

    /// Whether the leaf covers a key.
    pub fn covers(self, key: &[u8]) -> bool {
        self.lo() <= key && self.hi().is_none_or(|hi| key < hi)
    }

    /// Whether the leaf ends at or before a key.
    pub fn is_left_of(self, key: &[u8]) -> bool {
        self.hi().is_some_and(|hi| hi <= key)
    }

    /// The pairs of a scan that goes up from `cursor`, which the leaf covers.
    pub fn pairs_above(self, cursor: &[u8], r: &ScanRequest<'_>) -> Range<usize> {
        // A leaf that has taken over its left neighbour's range holds keys from before the cursor.
        let mut from = match self.lo() < cursor {
            true => self.count_before(|key| key < cursor),
            false => 0,
        };
        // At most one key from the cursor on is not in the range: its lower end.
        from += usize::from(from < self.len() && r.is_under(self.key(self.number(from))));
        let to = match self.hi() {
            Some(hi) if !r.is_over(hi) => self.len(),
            _ => self.count_before(|key| !r.is_over(key)),
        };
        from..to
    }

    /// How many pairs.
    pub fn len(self) -> usize {
        self.found.in_order + self.found.order.len()
    }

    /// The number of pair `i` in key order.
    #[inline]
    fn number(self, i: usize) -> usize {
        match self.found.in_order {
            0 => self.found.order.number(i),
            _ => i,
        }
    }

    /// How many pairs, in key order, have keys for which `before` holds; it holds for the first
    /// ones.
    pub fn count_before(self, before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match before(self.key(self.number(middle))) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Copies these pairs into a page, the last one first for a scan that goes down; false, and
    /// nothing is copied, unless keys and values fill their areas.
    pub fn copy_to(self, page: &mut Page, pairs: Range<usize>, is_down: bool) -> bool {
        if !self.found.is_full {
            return false;
        }
        let Geometry { k, v, .. } = *self.g;
        let (len, entry, image) = (k + v, self.g.entry(), self.image);
        if self.found.in_order > 0 {
            // The slots are the order: they are gone through as they lie.
            let slots = &image[self.g.slot_at(pairs.start)..self.g.slot_at(pairs.end)];
            let pairs = slots.chunks_exact(entry).map(|slot| &slot[8..][..len]);
            match is_down {
                true => page.extend_joined(pairs.rev(), (k, v)),
                false => page.extend_joined(pairs, (k, v)),
            }
        } else {
            let first = self.g.slot_at(0) + 8;
            let slots = self.found.order.numbers_in(pairs);
            let pairs = slots.map(|slot| &image[first + slot * entry..][..len]);
            match is_down {
                true => page.extend_joined(pairs.rev(), (k, v)),
                false => page.extend_joined(pairs, (k, v)),
            }
        }
        true
    }

    /// Pair number `i` in key order.
    pub fn get(self, i: usize) -> (&'l [u8], ItemValue<'l>) {
        self.pair(self.number(i))
    }

    /// The pair with a number.
    fn pair(self, number: usize) -> (&'l [u8], ItemValue<'l>) {
        if let Some(long) = number.checked_sub(FIRST_LONG) {
            let (key, value) = &self.found.long[long];
            return (key, ItemValue::Here(value));
        }
        let slot = slot::unchecked(self.g, &self.image[self.g.slot_at(number)..]);
        match slot.as_ref().and_then(pair_of) {
            Some(Pair::Inline(key, value)) => (key, ItemValue::Here(value)),
            Some(Pair::ValueIn(key, at)) => (key, ItemValue::In(at)),
            Some(Pair::BothIn(_)) | None => unreachable!("collected as a pair with an inline key"),
        }
    }

    fn key(self, number: usize) -> &'l [u8] {
        match self.found.is_full {
            true => &self.image[self.g.slot_at(number) + 8..][..self.g.k],
            false => self.pair(number).0,
        }
    }
}
