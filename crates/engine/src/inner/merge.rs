//! Merges of inner nodes.

use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::Client;
use crate::format::inner::{Record, free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_header};
use crate::format::put_u64;
use crate::inner::{InnerChange, InnerLocks, LockedInner, Records};
use crate::invariants;
use crate::leaf::Blocks;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;

/// Merges inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerMerges<'c>(pub &'c Client);

impl InnerMerges<'_> {
    /// Merges the inner node that covers a key with a neighbour under the same parent, if both have
    /// few records: the right one, or else the left one.
    pub(crate) async fn merge(self, key: &[u8], level: u8) -> Result<()> {
        match self.pair(key, level, 0).await? {
            true => Ok(()),
            false => self.pair(key, level, 1).await.map(|_| ()),
        }
    }

    /// The node of a key, or the one `left` of it, with the next one. False: they are too large
    /// together, or there is no neighbour.
    async fn pair(self, key: &[u8], level: u8, left: usize) -> Result<bool> {
        let c = self.0;
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
        let next = crate::format::leaf::check_header(&g, a.addr, &a.node.bytes).map(|h| h.next);
        if !small || next != Some(b.addr) {
            Mark::MergeInnerNot.hit();
            c.unlock(b).await?;
            c.unlock(a).await?;
            return c.unlock(parent).await.map(|()| false);
        }
        self.locked(a, b, parent, ia + 1).await.map(|()| true)
    }

    async fn locked(
        self,
        a: LockedInner,
        b: LockedInner,
        parent: LockedInner,
        at: usize,
    ) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        Mark::MergeInner.hit();
        let (ver_a, ver_b) = (a.ver.bumped(), b.ver.bumped());
        let next =
            crate::format::leaf::check_header(&g, b.addr, &b.node.bytes).expect("accepted").next;
        let mut image_a = c.ep.buf(g.inner_image() as u32).await?;
        image_a.copy_from_slice(&a.node.bytes);
        let mut image_b = c.ep.buf(g.inner_image() as u32).await?;
        image_b.copy_from_slice(&b.node.bytes);
        let parts = |n: &LockedInner, ver, lo, hi, next, forward| HeaderParts {
            ver,
            table: dmtree_pool::TableId::from_bits(0),
            slots: g.fanout,
            level: n.level,
            lo,
            hi,
            next,
            forward,
        };
        let (lo_a, lo_b) =
            (FenceArea::lo_of(&g, &a.node.bytes), FenceArea::lo_of(&g, &b.node.bytes));
        let hi = FenceArea::hi_of(&g, &b.node.bytes);
        put_header(
            &g,
            a.addr,
            &mut image_a,
            &parts(&a, ver_a, &lo_a, &hi, b.addr, GlobalAddr::NULL),
        );
        put_header(&g, b.addr, &mut image_b, &parts(&b, ver_b, &lo_b, &hi, next, a.addr));
        // A's records stay where they are: a WRITE that is cut half way must not lose one.
        let mut all: Vec<Option<Record<'_>>> = vec![None; g.fanout];
        let moves = c.node.has(Mutant::InnerMergeMoves);
        for (i, r) in a.node.records().enumerate() {
            all[if moves { i } else { r.index }] = Some(r);
        }
        let free = all.iter_mut().filter(|r| r.is_none());
        free.zip(b.node.records()).for_each(|(r, b)| *r = Some(b));
        for (i, r) in all.iter().enumerate() {
            let at = g.record_at(i);
            match r {
                Some(r) => {
                    let raw = &mut image_a[at..at + g.record()];
                    put_record(&g, a.addr, ver_a, i, raw, (r.area, r.mode), &r.child);
                }
                None => put_u64(&mut image_a, at, free_word(a.addr, ver_a, i)),
            }
            put_u64(&mut image_b, at, free_word(b.addr, ver_b, i));
        }
        debug_assert!(
            invariants::keeps_records(
                &g,
                &[(a.addr, &a.node.bytes), (b.addr, &b.node.bytes)],
                &[(a.addr, &image_a)]
            ),
            "merge of inner node {} into {} breaks P, R or S",
            b.addr,
            a.addr
        );
        let forward = b.addr.plus(g.forward_at() as u64);
        c.ep.step(Step::Structure);
        c.check_lease()?;
        c.ep.write_word(forward, a.addr.bits()).await?;
        if c.node.has(Mutant::InnerMergeBlankEarly) {
            InnerChange(c).write_around_lock(b.addr, &image_b).await?;
        }
        InnerChange(c).write_around_lock(a.addr, &image_a).await?;
        InnerChange(c).write_around_lock(b.addr, &image_b).await?;
        c.ep.write_word(a.addr.plus(g.next_at() as u64), next.bits()).await?;
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let (low, level) = (parent.node.key(at).to_vec(), parent.level);
        Records(c).remove(parent, index).await?;
        put_u64(&mut image_a, g.next_at(), next.bits());
        c.cache_inner(a.addr, &image_a).await?;
        let tombstone = Grant { addr: b.addr, generation: b.ver.generation };
        let is_bottom = a.level == 1;
        c.unlock(a).await?;
        c.unlock(b).await?;
        c.node.pool.retire(&c.node.inner_arena, tombstone);
        Blocks(c).retire_fence(&lo_b);
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
