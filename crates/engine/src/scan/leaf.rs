//! A leaf as a scan sees it: the accepted image, and the order of its pairs.
//!
//! One pass checks each slot and collects the live ones. Nothing is copied out of the image: a pair
//! is its slot's place there and the head of its key, the 8 bytes behind the prefix that both
//! fences share. All keys of the leaf have that prefix, so most heads differ, and the sort compares
//! words. A leaf with slots in key order, as a load leaves it, is not sorted at all: its slots are
//! the order. Pairs of long keys are READ from their blocks and held beside the image.

use std::ops::Range;

use dmtree_fabric::{GlobalAddr, Verified};
use dmtree_parts::keys::{common, head};
use dmtree_parts::{Page, ScanRequest};
use dmtree_pool::BlockPtr;

use crate::format::{Geometry, Header, SlotState, Stored, Whole, bound, check_words, slot, u64_at};
use crate::leaf::{Pair, pair_of};

/// What one pass over an image finds.
#[derive(Debug)]
pub(crate) struct Collected {
    /// The fences, as far as they are in the image.
    pub lo: Option<Fence>,
    pub hi: Option<Fence>,
    next: GlobalAddr,
    /// Each of the first slots holds a pair that fills its areas, in key order: so many. Otherwise
    /// 0.
    in_order: usize,
    /// The pairs otherwise.
    pairs: Vec<PairAt>,
    /// Blocks of the pairs with long keys.
    pub blocks: Vec<BlockPtr>,
    /// Those pairs, as soon as they are READ.
    pub long: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of the prefix that all keys share.
    shared: usize,
    /// Key and value of each pair fill their areas.
    is_full: bool,
    /// No block has to be READ.
    pub is_alone: bool,
}

/// An accepted leaf.
pub(crate) struct ScanLeaf {
    g: Geometry,
    image: Verified,
    /// Its fences and, in key order, its live pairs.
    found: Collected,
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

/// Where a pair is.
#[derive(Clone, Copy, Debug)]
struct PairAt {
    /// Head of the key.
    head: u64,
    /// Offset of its slot in the image; or [`LONG`] with its number among the long pairs.
    at: u32,
}

/// The pair is not in a slot. An image is shorter than that.
const LONG: u32 = 1 << 31;

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
    /// [`check_words`]. `None` when anything is torn.
    pub fn of(
        g: &Geometry,
        (leaf, header): (GlobalAddr, &Header<'_>),
        bytes: &[u8],
        (slots, mixed): (usize, bool),
    ) -> Option<Self> {
        let shared = shared_prefix(header);
        // Keys that fill their areas have 8 bytes behind the prefix.
        let (head_at, has_head) = (8 + shared, shared + 8 <= g.k);
        let (first, entry, k) = (g.slot_at(0), g.entry(), g.k);
        let head_in = move |slot: &[u8]| {
            let head = slot.get(head_at..).and_then(<[u8]>::first_chunk);
            u64::from_be_bytes(*head.expect("a head is in the entry"))
        };
        let short_head = move |slot: &[u8]| head(&slot[8..][..k], shared);
        let (mut pairs, mut in_order) = (Vec::new(), 0);
        let (mut blocks, mut is_full) = (Vec::new(), true);
        let is_whole = check_words(g, (leaf, header), bytes, (slots, mixed), |some| match some {
            Whole::Full(some) => {
                let from = first + some.start * entry;
                let run = bytes[from..first + some.end * entry].chunks_exact(entry);
                let is_all = has_head && some == (0..slots);
                if is_all && run.clone().map(head_in).is_sorted_by(|a, b| a < b) {
                    in_order = slots;
                    return;
                }
                pairs.reserve(slots - pairs.len());
                let place =
                    move |(i, head): (usize, u64)| PairAt { head, at: (from + i * entry) as u32 };
                match has_head {
                    true => pairs.extend(run.map(head_in).enumerate().map(place)),
                    false => pairs.extend(run.map(short_head).enumerate().map(place)),
                }
            }
            Whole::Any(i, _, bytes) => {
                let at = (first + i * entry) as u32;
                let live = slot::unchecked(g, bytes).filter(|s| s.state == SlotState::Live);
                match live.as_ref().and_then(pair_of) {
                    Some(Pair::Inline(k, v)) => {
                        is_full &= (k.len(), v.len()) == (g.k, g.v);
                        pairs.push(PairAt { head: head(k, shared), at });
                    }
                    Some(Pair::ValueIn(k, _)) => {
                        is_full = false;
                        pairs.push(PairAt { head: head(k, shared), at });
                    }
                    Some(Pair::BothIn(at)) => blocks.push(at),
                    None => {}
                }
            }
        });
        if !is_whole {
            return None;
        }
        let lo = Fence::inline(header.lo, g.lo_at());
        let hi = Fence::inline(header.hi, g.hi_at());
        let is_alone =
            blocks.is_empty() && lo.is_some() && (hi.is_some() || header.hi == Stored::Infinite);
        let is_full = is_full && blocks.is_empty();
        let (next, long) = (header.next, Vec::new());
        Some(Self { lo, hi, next, in_order, pairs, blocks, long, shared, is_full, is_alone })
    }
}

impl ScanLeaf {
    /// The leaf of an image and what was collected from it, the blocks READ.
    #[inline]
    pub fn new(g: Geometry, image: Verified, found: Collected) -> Self {
        let mut leaf = Self { g, image, found };
        if leaf.found.in_order == 0 {
            leaf.sort();
        }
        leaf
    }

    fn sort(&mut self) {
        let Collected { long, shared, .. } = &self.found;
        let of_block = |(i, (key, _)): (usize, &(Vec<u8>, _))| PairAt {
            head: head(key, *shared),
            at: LONG | i as u32,
        };
        let long: Vec<PairAt> = long.iter().enumerate().map(of_block).collect();
        let mut pairs = std::mem::take(&mut self.found.pairs);
        pairs.extend(long);
        if !pairs.is_sorted_by(|a, b| a.head < b.head) {
            pairs.sort_unstable_by(|a, b| {
                a.head.cmp(&b.head).then_with(|| self.key(a.at).cmp(self.key(b.at)))
            });
            // A key deleted from one slot and inserted into another while the image was sampled
            // shows twice; either was current.
            pairs.dedup_by(|a, b| a.head == b.head && self.key(a.at) == self.key(b.at));
        }
        self.found.pairs = pairs;
    }

    fn bytes_of<'l>(&'l self, fence: &'l Fence) -> &'l [u8] {
        match fence {
            Fence::Inline(at) => &self.image[at.clone()],
            Fence::Block(key) => key,
        }
    }

    /// How many of its slots may be in use, if it is the image of a leaf of `capacity`.
    pub fn bound(&self, capacity: usize) -> usize {
        bound(u64_at(&self.image, 0), capacity)
    }

    /// Right sibling.
    pub fn next(&self) -> GlobalAddr {
        self.found.next
    }

    /// Lower fence, inclusive.
    pub fn lo(&self) -> &[u8] {
        self.bytes_of(self.found.lo.as_ref().expect("a lower fence is finite"))
    }

    /// Upper fence, exclusive; `None` for the last leaf.
    pub fn hi(&self) -> Option<&[u8]> {
        self.found.hi.as_ref().map(|hi| self.bytes_of(hi))
    }

    /// Whether the leaf covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.lo() <= key && self.hi().is_none_or(|hi| key < hi)
    }

    /// Whether the leaf ends at or before a key.
    pub fn is_left_of(&self, key: &[u8]) -> bool {
        self.hi().is_some_and(|hi| hi <= key)
    }

    /// The pairs of a scan that goes up from `cursor`, which the leaf covers.
    pub fn pairs_above(&self, cursor: &[u8], r: &ScanRequest<'_>) -> Range<usize> {
        // A leaf that has taken over its left neighbour's range holds keys from before the cursor.
        let from = match self.lo() < cursor || r.is_under(self.lo()) {
            true => self.count_before(|key| key < cursor || r.is_under(key)),
            false => 0,
        };
        let to = match self.hi() {
            Some(hi) if !r.is_over(hi) => self.len(),
            _ => self.count_before(|key| !r.is_over(key)),
        };
        from..to
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        self.found.in_order + self.found.pairs.len()
    }

    /// Where pair number `i` in key order is.
    #[inline]
    fn at(&self, i: usize) -> u32 {
        match self.found.in_order {
            0 => self.found.pairs[i].at,
            _ => self.g.slot_at(i) as u32,
        }
    }

    /// How many pairs, in key order, have keys for which `before` holds; it holds for the first
    /// ones.
    pub fn count_before(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match before(self.key(self.at(middle))) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Copies these pairs into a page, the last one first for a scan that goes down; false, and
    /// nothing is copied, unless keys and values fill their areas.
    pub fn copy_to(&self, page: &mut Page, pairs: Range<usize>, is_down: bool) -> bool {
        if !self.found.is_full {
            return false;
        }
        let Geometry { k, v, .. } = self.g;
        let (len, entry, image) = (k + v, self.g.entry(), &self.image[..]);
        if self.found.in_order > 0 {
            // The slots are the order: they are gone through as they lie.
            let slots = &image[self.g.slot_at(pairs.start)..self.g.slot_at(pairs.end)];
            let pairs = slots.chunks_exact(entry).map(|slot| &slot[8..][..len]);
            match is_down {
                true => page.extend_joined(pairs.rev(), (k, v)),
                false => page.extend_joined(pairs, (k, v)),
            }
        } else {
            let pairs = self.found.pairs[pairs].iter();
            let pairs = pairs.map(|pair| &image[pair.at as usize + 8..][..len]);
            match is_down {
                true => page.extend_joined(pairs.rev(), (k, v)),
                false => page.extend_joined(pairs, (k, v)),
            }
        }
        true
    }

    /// Pair number `i` in key order.
    pub fn get(&self, i: usize) -> (&[u8], ItemValue<'_>) {
        self.pair(self.at(i))
    }

    /// The pair at a place.
    fn pair(&self, at: u32) -> (&[u8], ItemValue<'_>) {
        if at & LONG != 0 {
            let (key, value) = &self.found.long[(at ^ LONG) as usize];
            return (key, ItemValue::Here(value));
        }
        let slot = slot::unchecked(&self.g, &self.image[at as usize..]);
        match slot.as_ref().and_then(pair_of) {
            Some(Pair::Inline(key, value)) => (key, ItemValue::Here(value)),
            Some(Pair::ValueIn(key, at)) => (key, ItemValue::In(at)),
            Some(Pair::BothIn(_)) | None => unreachable!("collected as a pair with an inline key"),
        }
    }

    fn key(&self, at: u32) -> &[u8] {
        match self.found.is_full {
            true => &self.image[at as usize + 8..][..self.g.k],
            false => self.pair(at).0,
        }
    }
}
