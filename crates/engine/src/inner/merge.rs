//! Merging two small inner nodes of one parent, A <- B.
//!
//! The parent is locked first, then A and B by try: `B.forward = A`, A's image, B's image,
//! `A.next`, the record. Records that A has already stay at their places, so that a torn WRITE of A
//! loses none.

use dmtree_fabric::{Buf, Result, Step};

use crate::format::{FenceArea, Record, check_header, put_u64};
use crate::inner::{InnerLocks, InnerNodes, LockedInner, Records, fill};
use crate::leaf::{Blocks, NodeHeader, Tombstones};
use crate::router::Router;
use crate::{Chore, Client, Mark, Mutant, Unlock, invariants};

/// A merge in progress, under the locks of both nodes and of their parent.
pub(crate) struct InnerMerge<'c> {
    c: &'c Client,
    a: LockedInner,
    b: LockedInner,
    parent: LockedInner,
    /// The number of B's record.
    at: usize,
}

impl<'c> InnerMerge<'c> {
    /// Merges the inner node that covers a key with a neighbour under the same parent, if both have
    /// few records: the right one, or else the left one.
    pub(crate) async fn of_key(c: &'c Client, key: &[u8], level: u8) -> Result<()> {
        match Self::pair(c, key, level, 0).await? {
            true => Ok(()),
            false => Self::pair(c, key, level, 1).await.map(|_| ()),
        }
    }

    /// The node of a key, or the one `left` of it, with the next one. False: they are too large
    /// together, or there is no neighbour.
    async fn pair(c: &'c Client, key: &[u8], level: u8, left: usize) -> Result<bool> {
        let g = c.node.g;
        let Some(parent) = InnerLocks(c).lock(level + 1, key).await? else { return Ok(true) };
        let i = parent.node.floor(key);
        let Some(ia) = i.checked_sub(left).filter(|ia| ia + 1 < parent.node.len()) else {
            return c.unlock(parent).await.map(|()| false);
        };
        let (ca, cb) = (parent.node.record(ia).child, parent.node.record(ia + 1).child);
        let Some(a) = InnerLocks(c).try_lock_at(ca.addr, ca.generation, level).await? else {
            return c.unlock(parent).await.map(|()| true);
        };
        let b = match InnerLocks(c).try_lock_at(cb.addr, cb.generation, level).await? {
            Some(b) => b,
            None => {
                c.unlock(a).await?;
                return c.unlock(parent).await.map(|()| true);
            }
        };
        let small = (a.node.len() + b.node.len()) * 2 <= g.fanout;
        let next = check_header(&g, a.addr, &a.node.bytes).map(|h| h.next);
        if !small || next != Some(b.addr) {
            Mark::MergeInnerNot.hit();
            c.unlock(b).await?;
            c.unlock(a).await?;
            return c.unlock(parent).await.map(|()| false);
        }
        Self { c, a, b, parent, at: ia + 1 }.run().await.map(|()| true)
    }

    async fn run(self) -> Result<()> {
        let Self { c, ref a, ref b, .. } = self;
        let g = c.node.g;
        Mark::MergeInner.hit();
        let (mut image_a, image_b) = self.images().await?;
        c.ep.step(Step::Structure);
        Tombstones(c).forward_inner(b.addr, a.addr).await?;
        if c.node.has(Mutant::InnerMergeBlankEarly) {
            InnerNodes(c).write(b.addr, &image_b).await?;
        }
        InnerNodes(c).write(a.addr, &image_a).await?;
        InnerNodes(c).write(b.addr, &image_b).await?;
        let next = NodeHeader::of(&g, b.addr, &b.node.bytes).next;
        c.ep.write_word(a.addr.plus(g.next_at() as u64), next.bits()).await?;
        put_u64(&mut image_a, g.next_at(), next.bits());
        self.finish(&image_a).await
    }

    /// The images of both nodes; A's `next` still names B.
    async fn images(&self) -> Result<(Buf, Buf)> {
        let Self { c, a, b, .. } = self;
        let g = c.node.g;
        let old = |n: &LockedInner| NodeHeader::of(&g, n.addr, &n.node.bytes);
        let (old_a, old_b) = (old(a), old(b));
        let mut image_a = c.ep.buf(g.inner_image() as u32).await?;
        image_a.copy_from_slice(&a.node.bytes);
        let mut image_b = c.ep.buf(g.inner_image() as u32).await?;
        image_b.copy_from_slice(&b.node.bytes);
        // A's records stay where they are: a WRITE that is cut half way must not lose one.
        let mut all: Vec<Option<Record<'_>>> = vec![None; g.fanout];
        let moves = c.node.has(Mutant::InnerMergeMoves);
        for (i, r) in a.node.records().enumerate() {
            all[if moves { i } else { r.index }] = Some(r);
        }
        let free = all.iter_mut().filter(|r| r.is_none());
        free.zip(b.node.records()).for_each(|(r, b)| *r = Some(b));
        let header = NodeHeader { ver: a.ver.bumped(), hi: old_b.hi.clone(), ..old_a };
        fill(&g, a.addr, &mut image_a, &header, |i| all[i].map(|r| ((r.area, r.mode), r.child)));
        let header = NodeHeader { ver: b.ver.bumped(), forward: a.addr, ..old_b };
        fill(&g, b.addr, &mut image_b, &header, |_| None);
        let before = [(a.addr, &*a.node.bytes), (b.addr, &*b.node.bytes)];
        debug_assert!(
            invariants::keeps_records(&g, &before, &[(a.addr, &image_a)]),
            "merge of inner node {} into {} breaks P, R or S",
            b.addr,
            a.addr
        );
        Ok((image_a, image_b))
    }

    /// From B's record on.
    async fn finish(self, image_a: &[u8]) -> Result<()> {
        let Self { c, a, b, parent, at } = self;
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= c.node.g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let (low, level) = (parent.node.key(at).to_vec(), parent.level);
        Records(c).remove(parent, index).await?;
        Router(c).cache_inner(a.addr, image_a).await?;
        let (is_bottom, tombstone) = (a.level == 1, (b.addr, b.ver.generation));
        let low_b = FenceArea::lo_of(&c.node.g, &b.node.bytes);
        c.unlock(a).await?;
        c.unlock(b).await?;
        InnerNodes(c).retire(tombstone.0, tombstone.1);
        Blocks(c).retire_fence(&low_b);
        Blocks(c).retire_fence(&record_key);
        if is_bottom {
            // Leaves that could not merge, as they were children of two nodes.
            c.node.push_chore(Chore::Merge(low.clone()));
        }
        if few {
            c.node.push_chore(Chore::MergeInner(low, level));
        }
        Ok(())
    }
}
