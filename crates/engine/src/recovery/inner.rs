//! Recovery of an inner node under its lock: completing or undoing the changes of a dead or failed
//! client.
//!
//! 1. Take the lock over: `[CAS abandoned tag -> own tag, READ node]`. Check the lease.
//! 2. A node of another kind, generation 0 or a tombstone needs nothing but its lock's release. An
//!    old root that forwards to another one may need the root word swung.
//! 3. Keep the records that are valid by themselves. Each record has its own checksum, and a change
//!    of the node's range rewrites word0s alone, so a record that is present is found whichever
//!    WRITE was cut half way.
//! 4. The right neighbour decides about the fence. It forwards to this node: redo the merge, with
//!    its records where this node lacks them. `hi` is not its `lo`: finish the split; records from
//!    `hi` on go. It begins where this node begins: it is the root of a bulk load, which is
//!    finished when the only leaf forwards and undone otherwise.
//! 5. Audit the children. A relocated child's record is replaced by its successor's, and the child
//!    blanked first (B). A merged child's record goes. The parent of a relocation or merge stays
//!    locked until its record has changed, so this lock covers exactly those records.
//! 6. WRITE the image around the lock word under the next range, when anything differs. S holds
//!    again.
//! 7. Unlock, and then add the right sibling's record one level up. Until then the right link keeps
//!    the sibling reachable, so R's exception for a missing record covers the time between.
//!
//! Kept records stay at their places: a WRITE that is cut again loses none of them.
//!
//! Ranges of inner nodes wrap. Two ranges in one image differ by a few, so the later one is found
//! by their difference.
//!
//! A crash during the recovery leaves a node that the next client repairs in the same way. A crash
//! between steps 7's two halves leaves a missing record, which a sweep finds; for a failed client
//! of a live node, a chore adds it.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::{Grant, TableId};

use crate::client::Client;
use crate::format::inner::{Child, UnvalidatedRecord, free_word, put_record, unvalidated_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_header};
use crate::format::table::LockTag;
use crate::format::{Ver, put_u64};
use crate::inner::{InnerChange, InnerLocks, Records};
use crate::leaf::{Blocks, Tombstones, Unvalidated};
use crate::lock::{HeldLock, Lockable};
use crate::maintenance::Sweep;
use crate::marks::Mark;
use crate::node::Chore;

/// A record that stays.
#[derive(Clone)]
struct Kept {
    index: usize,
    key: Vec<u8>,
    area: FenceArea,
    child: Child,
}

/// Repairs inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerRecovery<'c>(pub &'c Client);

impl InnerRecovery<'_> {
    /// A reader has met a torn inner node for long: when the writer is dead, the reader repairs it.
    pub(crate) async fn help(self, addr: GlobalAddr) -> Result<()> {
        let c = self.0;
        let lock = addr.plus(c.node.g.inner_lock_at() as u64);
        let was = c.ep.cas(lock, 0, 0).await?;
        if !c.node.is_abandoned(was) {
            return Ok(());
        }
        Mark::HelpInner.hit();
        c.op.part(self.recover(addr, was)).await
    }

    /// Takes an abandoned inner lock over, repairs the node, and unlocks it. Does nothing when the
    /// lock word is not `was` any more.
    pub(crate) async fn recover(self, addr: GlobalAddr, was: u64) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let lock = addr.plus(g.inner_lock_at() as u64);
        let tag = c.next_tag();
        c.ep.step(Step::Structure);
        let own = HeldLock { tag, on: Lockable::Inner(addr) };
        let taken = c.try_for(own, (lock, was), addr, g.inner_image()).await;
        let (now, bytes) = taken.inspect_err(|_| c.op.leave_try(own))?;
        if now != was {
            return Ok(());
        }
        Mark::InnerTaken.hit();
        c.node.adopted(LockTag(was));
        c.hold(tag, Lockable::Inner(addr));
        c.check_lease()?;
        let image = bytes.extract(<[u8]>::to_vec);
        let h = Unvalidated::of(&g, addr, &image);
        let mut right = None;
        if !h.forward.is_null() {
            // Perhaps the root of an empty index, after a bulk load that committed and did not
            // swing the root word.
            Sweep(c).root().await?;
        }
        // A node that was freed or never published needs no repair.
        if h.level > 0 && h.slots == g.fanout && h.forward.is_null() && h.ver.generation > 0 {
            right = self.restore(addr, &h, &image).await?;
        }
        let publish = right
            .as_ref()
            .map(|(low, child)| c.begun(Chore::PublishInner(low.clone(), h.level, *child)));
        c.ep.cas(lock, tag.0, 0).await?;
        c.op.let_go(tag);
        if let Some((low, child)) = right {
            // Right links keep the node reachable until then.
            match Box::pin(Records(c).insert(h.level + 1, &low, &child)).await {
                Err(e) if e.kind() == dmtree_fabric::ErrorKind::Full => {
                    c.node.push_chore(Chore::PublishInner(low, h.level, child));
                }
                other => other?,
            }
        }
        publish.into_iter().for_each(|chore| chore.done());
        Ok(())
    }

    /// Under the lock. Returns a right sibling that may lack its record.
    async fn restore(
        self,
        addr: GlobalAddr,
        h: &Unvalidated,
        image: &[u8],
    ) -> Result<Option<(Vec<u8>, Child)>> {
        let c = self.0;
        let g = c.node.g;
        let next = match h.next.is_null() {
            true => None,
            false => Some(Unvalidated::read(c, h.next).await?),
        };
        if let Some(n) = &next
            && n.lo == h.lo
        {
            self.finish_load(addr, h, image).await?;
            return Ok(None);
        }
        let (mut kept, mut range, mut damaged) = self.records_of(addr, h, image).await?;
        let merged = next.as_ref().is_some_and(|n| n.forward == addr);
        let hi = match &next {
            Some(b) if merged => b.hi.clone(),
            Some(n) => n.lo.clone(),
            None => FenceArea::infinite(&g),
        };
        if merged {
            Mark::RecoverInnerMerge.hit();
            self.absorb(h.next, &mut kept).await?;
        } else if !h.whole || h.hi != hi {
            Mark::RecoverInnerSplit.hit();
        }
        let high = Blocks(c).fence_key(&hi).await?;
        kept.retain(|r| high.as_ref().is_none_or(|high| r.key < *high));
        self.audit(&mut kept, &mut damaged).await?;
        if damaged || merged || !h.whole || h.hi != hi {
            range = range.wrapping_add(1);
            let ver = Ver { generation: h.ver.generation, range };
            let mut new = image.to_vec();
            self.fill(addr, &mut new, h, ver, &hi, &kept);
            InnerChange(c).write_around_lock(addr, &new).await?;
        }
        match next {
            Some(b) if merged => {
                self.finish_merge(addr, h, &b).await?;
                Ok(None)
            }
            Some(n) => {
                let low = Blocks(c).fence_key(&n.lo).await?.unwrap_or_default();
                let (generation, table) = (n.ver.generation, TableId::from_bits(0));
                Ok(Some((low, Child { addr: h.next, generation, table, slots: g.fanout })))
            }
            None => Ok(None),
        }
    }

    /// The valid records of an image, the largest range among the records of its generation, and
    /// whether anything is torn.
    async fn records_of(
        self,
        addr: GlobalAddr,
        h: &Unvalidated,
        image: &[u8],
    ) -> Result<(Vec<Kept>, u8, bool)> {
        let g = self.0.node.g;
        let (mut kept, mut range, mut damaged) = (Vec::new(), h.ver.range, !h.whole);
        for index in 0..g.fanout {
            let at = g.record_at(index);
            let raw = &image[at..at + g.record()];
            match unvalidated_record(&g, addr, h.ver.generation, index, raw) {
                UnvalidatedRecord::Torn => {
                    Mark::RecoverInnerTorn.hit();
                    damaged = true;
                }
                UnvalidatedRecord::Free(r) => {
                    damaged |= r != h.ver.range;
                    range = newer(range, r);
                }
                UnvalidatedRecord::Live(record, r) => {
                    damaged |= r != h.ver.range;
                    range = newer(range, r);
                    let area = FenceArea { bytes: record.area.to_vec(), mode: record.mode };
                    let key = Blocks(self.0).fence(record.key).await?.unwrap_or_default();
                    kept.push(Kept { index, key, area, child: record.child });
                }
            }
        }
        Ok((kept, range, damaged))
    }

    /// The records of a neighbour that was being merged in, as far as they are not here yet.
    async fn absorb(self, b: GlobalAddr, kept: &mut Vec<Kept>) -> Result<()> {
        let g = self.0.node.g;
        let bytes = self.0.ep.read(b, g.inner_image() as u32).await?;
        let image = bytes.extract(<[u8]>::to_vec);
        let h = Unvalidated::of(&g, b, &image);
        let (theirs, ..) = self.records_of(b, &h, &image).await?;
        for r in theirs {
            let here = kept.iter().any(|k| k.child.addr == r.child.addr);
            if here {
                continue;
            }
            let Some(index) = free_index(kept, g.fanout) else {
                return Err(dmtree_fabric::Error::corrupt(format!("no room for what {b} holds")));
            };
            kept.push(Kept { index, ..r });
        }
        Ok(())
    }

    /// Children that are tombstones: the record of a relocated one names its successor, that of a
    /// merged one goes.
    async fn audit(self, kept: &mut Vec<Kept>, damaged: &mut bool) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let mut batch = VerbVec::new();
        for r in kept.iter() {
            batch.read(r.child.addr, g.header() as u32);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut headers = c.ep.batch(batch).await?;
        let children: Vec<Unvalidated> = (0..kept.len())
            .map(|i| {
                headers.take_sampled(i).extract(|b| Unvalidated::of(&g, kept[i].child.addr, b))
            })
            .collect();
        for (r, child) in kept.clone().into_iter().zip(children) {
            if child.forward.is_null() || child.ver.generation != r.child.generation {
                continue;
            }
            Mark::RecoverRecord.hit();
            *damaged = true;
            let (mut at, mut successor) =
                (child.forward, Unvalidated::read(c, child.forward).await?);
            while !successor.forward.is_null() {
                at = successor.forward;
                successor = Unvalidated::read(c, at).await?;
                c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
            }
            if successor.lo == child.lo && child.level == 0 {
                // Invariant B: older copies of the successor's keys are blank before it is
                // published.
                Mark::RecoverRelocation.hit();
                Tombstones(c).blank_unvalidated(r.child.addr, &child).await?;
            }
            let named = kept.iter().any(|k| k.child.addr == at);
            kept.retain(|k| k.index != r.index);
            if successor.lo == child.lo && !named {
                let index = free_index(kept, g.fanout).filter(|i| *i != r.index);
                let index = index.unwrap_or(r.index);
                let (generation, table, slots) =
                    (successor.ver.generation, successor.table, successor.slots);
                kept.push(Kept { index, child: Child { addr: at, generation, table, slots }, ..r });
            }
        }
        Ok(())
    }

    /// Fills an image: the records that stay where they are, everything else free.
    fn fill(
        self,
        addr: GlobalAddr,
        image: &mut [u8],
        h: &Unvalidated,
        ver: Ver,
        hi: &FenceArea,
        kept: &[Kept],
    ) {
        let g = self.0.node.g;
        let parts = HeaderParts {
            ver,
            table: h.table,
            slots: h.slots,
            level: h.level,
            lo: &h.lo,
            hi,
            next: h.next,
            forward: h.forward,
        };
        put_header(&g, addr, image, &parts);
        for i in 0..g.fanout {
            let at = g.record_at(i);
            match kept.iter().find(|r| r.index == i) {
                Some(r) => {
                    let raw = &mut image[at..at + g.record()];
                    put_record(&g, addr, ver, i, raw, (&r.area.bytes, r.area.mode), &r.child);
                }
                None => put_u64(image, at, free_word(addr, ver, i)),
            }
        }
    }

    /// Blanks the neighbour's records, bypasses it by `next`, and removes its record in the parent.
    async fn finish_merge(self, a: GlobalAddr, h: &Unvalidated, b: &Unvalidated) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let addr = h.next;
        let bytes = c.ep.read(addr, g.inner_image() as u32).await?;
        let mut image = bytes.extract(<[u8]>::to_vec);
        let range = b.ver.range.wrapping_add(1);
        let ver = Ver { generation: b.ver.generation, range };
        self.fill(addr, &mut image, b, ver, &b.hi, &[]);
        InnerChange(c).write_around_lock(addr, &image).await?;
        c.ep.write_word(a.plus(g.next_at() as u64), b.next.bits()).await?;
        let low = Blocks(c).fence_key(&b.lo).await?.unwrap_or_default();
        if let Some(parent) = Box::pin(InnerLocks(c).lock(h.level + 1, &low)).await? {
            match parent.node.position_of(addr, &low) {
                Some(i) => {
                    let index = parent.node.record(i).index;
                    Records(c).remove(parent, index).await?;
                }
                None => c.unlock(parent).await?,
            }
        }
        let lock = addr.plus(g.inner_lock_at() as u64);
        let was = c.ep.cas(lock, 0, 0).await?;
        if c.node.is_abandoned(was) && c.ep.cas(lock, was, 0).await? == was {
            c.node.adopted(LockTag(was));
            let tombstone = Grant { addr, generation: b.ver.generation };
            c.node.pool.retire(&c.node.inner_arena, tombstone);
        }
        Ok(())
    }

    /// The only node of an empty index, with the root of a bulk load as its `next`. When the only
    /// leaf forwards to the first leaf of the load, the load has committed and the root is swung;
    /// else the load is undone.
    async fn finish_load(self, addr: GlobalAddr, h: &Unvalidated, image: &[u8]) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let (kept, ..) = self.records_of(addr, h, image).await?;
        let gone = match kept.first() {
            Some(r) => !Unvalidated::read(c, r.child.addr).await?.forward.is_null(),
            None => false,
        };
        if gone {
            Mark::RecoverRoot.hit();
            c.ep.write_word(addr.plus(g.forward_at() as u64), h.next.bits()).await?;
            c.ep.cas(c.node.root.word, addr.bits(), h.next.bits()).await?;
            c.node.cache.clear();
        } else {
            Mark::RecoverLoad.hit();
            c.ep.write_word(addr.plus(g.next_at() as u64), 0).await?;
        }
        Ok(())
    }
}

/// The later of two ranges, which wrap: they differ by a few.
fn newer(a: u8, b: u8) -> u8 {
    if b.wrapping_sub(a) < 128 { b } else { a }
}

fn free_index(kept: &[Kept], fanout: usize) -> Option<usize> {
    (0..fanout).find(|i| kept.iter().all(|r| r.index != *i))
}
