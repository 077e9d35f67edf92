//! The invariants of DESIGN section 3, as checks of what a client is about to commit.
//!
//! `debug_assert!` calls them just before the commit of each structure change, so that a seed, a
//! crash schedule or a mutant that breaks one stops at the step that breaks it, not at the wrong
//! answer that follows. Release builds have none of it.
//!
//! - **P**: no pair is lost or doubled by a split, a merge or a relocation.
//! - **F**: a table has a fingerprint where its leaf has a live slot, and nowhere else.
//! - **B**: an image is complete, and holds no staged slot, before a pointer leads to it.
//! - **R**: `hi` of a node is `lo` of its right sibling, before and after.
//! - **S**: every slot of a leaf, and every record of an inner node, carries the node's version.
//! - **L** is checked where generations are granted (`dmtree_pool`, `arena.rs`).

use dmtree_fabric::GlobalAddr;

use crate::format::{FenceArea, Geometry, SlotState, Table, check_leaf, inner};

/// A leaf about to be written: its place, its image and its table.
pub(crate) struct LeafState<'a> {
    pub addr: GlobalAddr,
    pub image: &'a [u8],
    pub table: &'a Table,
}

impl LeafState<'_> {
    /// F, B, S: the number of live slots of a sound leaf.
    fn live(&self, g: &Geometry) -> Option<usize> {
        let (mut live, mut agrees) = (0, true);
        let fps = self.table.fps();
        let header = check_leaf(g, self.addr, self.image, fps.len(), |i, slot| {
            live += usize::from(slot.state == SlotState::Live);
            agrees &= slot.state != SlotState::Staged;
            agrees &= (slot.state == SlotState::Live) == (fps[i] != 0);
        })?;
        let is_whole = agrees
            && header.slots == fps.len()
            && header.ver == self.table.ver
            && self.table.leaf == self.addr;
        is_whole.then_some(live)
    }

    fn next(&self, g: &Geometry) -> GlobalAddr {
        next_of(g, self.image)
    }
}

fn next_of(g: &Geometry, image: &[u8]) -> GlobalAddr {
    GlobalAddr::from_bits(crate::format::u64_at(image, g.next_at()))
}

/// R between two images of one level: `left` ends where `right` begins.
fn are_adjacent(g: &Geometry, left: &[u8], right: &[u8]) -> bool {
    FenceArea::hi_of(g, left).bytes == FenceArea::lo_of(g, right).bytes
}

/// R when an image replaces others: it begins where the first began and ends where the last ended.
fn has_range_of(g: &Geometry, image: &[u8], first: &[u8], last: &[u8]) -> bool {
    FenceArea::lo_of(g, image) == FenceArea::lo_of(g, first)
        && FenceArea::hi_of(g, image) == FenceArea::hi_of(g, last)
}

/// A split of `old` into `left` and `right`, with so many pairs afterwards.
pub(crate) fn is_split(
    g: &Geometry,
    (old, pairs): (&[u8], usize),
    left: &LeafState<'_>,
    right: &LeafState<'_>,
) -> bool {
    let live = left.live(g).zip(right.live(g)).map(|(l, r)| l + r);
    live == Some(pairs)
        && are_adjacent(g, left.image, right.image)
        && FenceArea::lo_of(g, left.image) == FenceArea::lo_of(g, old)
        && FenceArea::hi_of(g, right.image) == FenceArea::hi_of(g, old)
        && left.next(g) == right.addr
        && right.next(g) == next_of(g, old)
}

/// A merge of the neighbours `a` and `b`, with `live` pairs together, into one leaf. Its `next`
/// still names `b`: that link moves on last.
pub(crate) fn is_merge(
    g: &Geometry,
    (a, b): (&[u8], &[u8]),
    live: usize,
    merged: &LeafState<'_>,
) -> bool {
    merged.live(g) == Some(live) && are_adjacent(g, a, b) && has_range_of(g, merged.image, a, b)
}

/// A copy of `old`, which has `live` pairs, at another place.
pub(crate) fn is_relocation(
    g: &Geometry,
    (old, live): (&[u8], usize),
    moved: &LeafState<'_>,
) -> bool {
    moved.live(g) == Some(live)
        && has_range_of(g, moved.image, old, old)
        && moved.next(g) == next_of(g, old)
}

/// Inner nodes, as the images before and after a change. P and S: every record is there once, and
/// carries the range of its node. `before` and `after` are in the order of their keys.
pub(crate) fn keeps_records(
    g: &Geometry,
    before: &[(GlobalAddr, &[u8])],
    after: &[(GlobalAddr, &[u8])],
) -> bool {
    let children = |nodes: &[(GlobalAddr, &[u8])]| {
        let mut all = Vec::new();
        for (addr, image) in nodes {
            inner::check(g, *addr, image)?;
            all.extend(inner::records(g, image).map(|r| (r.child.addr, r.child.generation)));
        }
        all.sort_unstable();
        Some(all)
    };
    let ends = before.first().zip(before.last()).zip(after.first().zip(after.last()));
    let has_range = ends.is_some_and(|((b0, b1), (a0, a1))| {
        FenceArea::lo_of(g, b0.1) == FenceArea::lo_of(g, a0.1)
            && FenceArea::hi_of(g, b1.1) == FenceArea::hi_of(g, a1.1)
    });
    has_range
        && after.windows(2).all(|w| are_adjacent(g, w[0].1, w[1].1))
        && children(before).is_some_and(|c| children(after) == Some(c))
}
