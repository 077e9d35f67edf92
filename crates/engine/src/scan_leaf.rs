//! A leaf as a scan sees it: the accepted image, and the order of its pairs.
//!
//! One pass checks each slot and collects the live ones. Nothing is copied out of the image: a pair
//! is its place there and the head of its key, the 8 bytes behind the prefix that both fences
//! share. All keys of the leaf have that prefix, so most heads differ, and the sort compares words.
//! Pairs of long keys are READ from their blocks and held beside the image.

use std::ops::Range;

use dmtree_fabric::{GlobalAddr, Verified};
use dmtree_parts::ScanRequest;
use dmtree_parts::keys::{common, head};
use dmtree_pool::BlockPtr;

use crate::format::area::Stored;
use crate::format::leaf::{Header, check_words};
use crate::format::slot::{self, SlotState};
use crate::format::{Geometry, u64_at};
use crate::probe::{Pair, pair_of};

/// The pairs that one pass over an image finds.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pairs: Vec<PairAt>,
    /// Blocks of the pairs with long keys.
    pub blocks: Vec<BlockPtr>,
    /// Bytes of the prefix that all keys share.
    shared: usize,
}

/// An accepted leaf.
pub(crate) struct ScanLeaf {
    pub lo: Vec<u8>,
    pub hi: Option<Vec<u8>>,
    pub next: GlobalAddr,
    image: Verified,
    /// From the beginning of a key area to that of the value area.
    key_area: usize,
    /// Live pairs in key order.
    pairs: Vec<PairAt>,
    /// The pairs that are not in slots.
    long: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where a pair is.
#[derive(Clone, Copy, Debug)]
struct PairAt {
    /// Head of the key.
    head: u64,
    place: PairPlace,
}

#[derive(Clone, Copy, Debug)]
enum PairPlace {
    /// Both in a slot: offset of the key area, lengths.
    Slot { at: u32, key: u16, value: u16 },
    /// The key in a slot; the value in the block that the value area names.
    Value { at: u32, key: u16 },
    /// Pair number `.0` of the long ones.
    Long(u32),
}

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
        of: (GlobalAddr, &Header<'_>),
        bytes: &[u8],
        (slots, mixed): (usize, bool),
    ) -> Option<Self> {
        let shared = shared_prefix(of.1);
        let mut found = Self { pairs: Vec::with_capacity(slots), blocks: Vec::new(), shared };
        let is_whole = check_words(g, of, bytes, (slots, mixed), |i, low, bytes| {
            let at = (g.slot_at(i) + 8) as u32;
            if slot::is_full(low) {
                let place = PairPlace::Slot { at, key: g.k as u16, value: g.v as u16 };
                let head = head(&bytes[8..8 + g.k], shared);
                return found.pairs.push(PairAt { head, place });
            }
            let live = slot::unchecked(g, bytes).filter(|s| s.state == SlotState::Live);
            let (key, place) = match live.as_ref().and_then(pair_of) {
                Some(Pair::Inline(k, v)) => {
                    (k, PairPlace::Slot { at, key: k.len() as u16, value: v.len() as u16 })
                }
                Some(Pair::ValueIn(k, _)) => (k, PairPlace::Value { at, key: k.len() as u16 }),
                Some(Pair::BothIn(at)) => return found.blocks.push(at),
                None => return,
            };
            found.pairs.push(PairAt { head: head(key, shared), place });
        });
        is_whole.then_some(found)
    }
}

impl ScanLeaf {
    /// The leaf of an image and what was collected from it; `long` are the pairs of its blocks.
    pub fn new(
        g: &Geometry,
        (lo, hi, next): (Vec<u8>, Option<Vec<u8>>, GlobalAddr),
        image: Verified,
        found: Collected,
        long: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let Collected { mut pairs, shared, .. } = found;
        let of_block = |(i, (key, _)): (usize, &(Vec<u8>, _))| PairAt {
            head: head(key, shared),
            place: PairPlace::Long(i as u32),
        };
        pairs.extend(long.iter().enumerate().map(of_block));
        let mut leaf = Self { lo, hi, next, image, key_area: g.k, pairs: Vec::new(), long };
        pairs.sort_unstable_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| leaf.key(a).cmp(leaf.key(b)))
        });
        // A key deleted from one slot and inserted into another while the image was sampled shows
        // twice; either was current.
        pairs.dedup_by(|a, b| a.head == b.head && leaf.key(a) == leaf.key(b));
        leaf.pairs = pairs;
        leaf
    }

    /// Whether the leaf covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.lo.as_slice() <= key && self.hi.as_deref().is_none_or(|hi| key < hi)
    }

    /// The pairs of a scan that goes up from `cursor`, which the leaf covers.
    pub fn pairs_above(&self, cursor: &[u8], r: &ScanRequest<'_>) -> Range<usize> {
        // A leaf that has taken over its left neighbour's range holds keys from before the cursor.
        let from = match self.lo.as_slice() < cursor || r.is_under(&self.lo) {
            true => self.count_before(|key| key < cursor || r.is_under(key)),
            false => 0,
        };
        let to = match self.hi.as_deref() {
            Some(hi) if !r.is_over(hi) => self.len(),
            _ => self.count_before(|key| !r.is_over(key)),
        };
        from..to
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// How many pairs, in key order, have keys for which `before` holds; it holds for the first
    /// ones.
    pub fn count_before(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        self.pairs.partition_point(|pair| before(self.key(pair)))
    }

    /// Pair number `i` in key order, if key and value lie side by side: both, and the length of the
    /// key.
    #[inline]
    pub fn joined(&self, i: usize) -> Option<(&[u8], usize)> {
        match self.pairs[i].place {
            PairPlace::Slot { at, key, value } if usize::from(key) == self.key_area => {
                let at = at as usize;
                Some((&self.image[at..at + self.key_area + usize::from(value)], self.key_area))
            }
            _ => None,
        }
    }

    /// Pair number `i` in key order.
    pub fn get(&self, i: usize) -> (&[u8], ItemValue<'_>) {
        let pair = &self.pairs[i];
        let value = match pair.place {
            PairPlace::Slot { at, value, .. } => {
                let at = at as usize + self.key_area;
                ItemValue::Here(&self.image[at..at + usize::from(value)])
            }
            PairPlace::Value { at, .. } => {
                ItemValue::In(BlockPtr::from_bits(u64_at(&self.image, at as usize + self.key_area)))
            }
            PairPlace::Long(i) => ItemValue::Here(&self.long[i as usize].1),
        };
        (self.key(pair), value)
    }

    fn key(&self, pair: &PairAt) -> &[u8] {
        match pair.place {
            PairPlace::Slot { at, key, .. } | PairPlace::Value { at, key } => {
                &self.image[at as usize..at as usize + usize::from(key)]
            }
            PairPlace::Long(i) => &self.long[i as usize].0,
        }
    }
}
