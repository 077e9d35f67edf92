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

use dmtree_fabric::verb::{VerbVec, read};
use dmtree_fabric::{Error, GlobalAddr, Result, Step};

use crate::format::{Child, FenceArea, LockTag, UnvalidatedRecord, Ver, unvalidated_record};
use crate::inner::{InnerLocks, InnerNodes, Records, fill, record_of};
use crate::leaf::{Blocks, NodeHeader, Tombstones};
use crate::lock::{HeldLock, Lockable};
use crate::maintenance::Sweep;
use crate::{Chore, Client, Mark, Unlock};

/// Repairs inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerRecovery<'c>(pub &'c Client);

impl InnerRecovery<'_> {
    /// A reader has met a torn inner node for long: when the writer is dead, the reader repairs it.
    pub(crate) async fn help(self, addr: GlobalAddr) -> Result<()> {
        let was = self.0.ep.cas(InnerLocks(self.0).word(addr), 0, 0).await?;
        if !self.0.node.is_abandoned(was) {
            return Ok(());
        }
        Mark::HelpInner.hit();
        self.0.op.part(self.recover(addr, was)).await
    }

    /// Takes an abandoned inner lock over, repairs the node, and unlocks it. Does nothing when the
    /// lock word is not `was` any more.
    pub(crate) async fn recover(self, addr: GlobalAddr, was: u64) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let lock = InnerLocks(c).word(addr);
        let tag = c.tags.next();
        c.ep.step(Step::Structure);
        let own = HeldLock { tag, on: Lockable::Inner(addr) };
        let taken = c.try_for(own, (lock, was), read(addr, g.inner_image() as u32)).await;
        let (now, bytes) = taken.inspect_err(|_| c.op.leave_try(own))?;
        if now != was {
            return Ok(());
        }
        Mark::InnerTaken.hit();
        c.node.adopted(LockTag(was));
        c.hold(tag, Lockable::Inner(addr));
        c.check_lease()?;
        let image = bytes.extract(<[u8]>::to_vec);
        let h = NodeHeader::of(&g, addr, &image);
        if !h.forward.is_null() {
            // Perhaps the root of an empty index, after a bulk load that committed and did not
            // swing the root word.
            Sweep(c).root().await?;
        }
        // A node that was freed or never published needs no repair.
        let needs =
            h.level > 0 && h.slots == g.fanout && h.forward.is_null() && h.ver.generation > 0;
        let level = h.level;
        let right = if needs { restore(c, addr, h, image).await? } else { None };
        let publish = right
            .as_ref()
            .map(|(low, child)| c.begun(Chore::PublishInner(low.clone(), level, *child)));
        c.ep.cas(lock, tag.0, 0).await?;
        c.op.let_go(tag);
        if let Some((low, child)) = right {
            // Right links keep the node reachable until then.
            Records(c).publish_inner(level, low, child).await?;
        }
        publish.into_iter().for_each(|chore| chore.done());
        Ok(())
    }
}

/// Under the lock. Returns a right sibling that may lack its record.
async fn restore(
    c: &Client,
    addr: GlobalAddr,
    h: NodeHeader,
    image: Vec<u8>,
) -> Result<Option<(Vec<u8>, Child)>> {
    let next = match h.next.is_null() {
        true => None,
        false => Some(NodeHeader::read(c, h.next).await?),
    };
    let is_load = next.as_ref().is_some_and(|n| n.lo == h.lo);
    let mut node = DamagedNode::of(c, addr, h, &image).await?;
    if is_load {
        return node.finish_load().await.map(|()| None);
    }
    let merged = next.as_ref().is_some_and(|n| n.forward == addr);
    let hi = match &next {
        Some(b) if merged => b.hi.clone(),
        Some(n) => n.lo.clone(),
        None => FenceArea::infinite(&c.node.g),
    };
    let moved = !node.h.whole || node.h.hi != hi;
    if merged {
        Mark::RecoverInnerMerge.hit();
        node.absorb().await?;
    } else if moved {
        Mark::RecoverInnerSplit.hit();
    }
    let high = Blocks(c).fence_key(&hi).await?;
    node.kept.retain(|r| high.as_ref().is_none_or(|high| r.key < *high));
    node.audit().await?;
    if node.is_damaged || merged || moved {
        node.write(image, hi).await?;
    }
    match next {
        Some(b) if merged => node.finish_merge(b).await.map(|()| None),
        Some(n) => {
            let low = Blocks(c).fence_key(&n.lo).await?.unwrap_or_default();
            Ok(Some((low, n.child(node.h.next))))
        }
        None => Ok(None),
    }
}

/// A record that stays.
#[derive(Clone)]
struct Kept {
    index: usize,
    key: Vec<u8>,
    area: FenceArea,
    child: Child,
}

/// What is left of a node.
struct DamagedNode<'c> {
    c: &'c Client,
    addr: GlobalAddr,
    h: NodeHeader,
    /// Its valid records.
    kept: Vec<Kept>,
    /// The largest range among the records of its generation.
    range: u8,
    /// The image differs from memory and has to be written.
    is_damaged: bool,
}

impl<'c> DamagedNode<'c> {
    async fn of(c: &'c Client, addr: GlobalAddr, h: NodeHeader, image: &[u8]) -> Result<Self> {
        let g = c.node.g;
        let (range, is_damaged) = (h.ver.range, !h.whole);
        let mut node = Self { c, addr, h, kept: Vec::new(), range, is_damaged };
        for index in 0..g.fanout {
            let at = g.record_at(index);
            let raw = &image[at..at + g.record()];
            let ver = node.h.ver;
            let r = match unvalidated_record(&g, addr, ver.generation, index, raw) {
                UnvalidatedRecord::Torn => {
                    Mark::RecoverInnerTorn.hit();
                    node.is_damaged = true;
                    continue;
                }
                UnvalidatedRecord::Free(r) => r,
                UnvalidatedRecord::Live(record, r) => {
                    let key = Blocks(c).fence(record.key).await?.unwrap_or_default().into_owned();
                    let (area, child) = (FenceArea::of_record(&record), record.child);
                    node.kept.push(Kept { index, key, area, child });
                    r
                }
            };
            node.is_damaged |= r != ver.range;
            node.range = newer(node.range, r);
        }
        Ok(node)
    }

    fn free_index(&self) -> Option<usize> {
        (0..self.c.node.g.fanout).find(|i| self.kept.iter().all(|r| r.index != *i))
    }

    /// The records of a neighbour that was being merged in, as far as they are not here yet.
    async fn absorb(&mut self) -> Result<()> {
        let (c, g, b) = (self.c, self.c.node.g, self.h.next);
        let bytes = c.ep.read(b, g.inner_image() as u32).await?;
        let image = bytes.extract(<[u8]>::to_vec);
        let theirs = DamagedNode::of(c, b, NodeHeader::of(&g, b, &image), &image).await?;
        for r in theirs.kept {
            if self.kept.iter().any(|k| k.child.addr == r.child.addr) {
                continue;
            }
            let Some(index) = self.free_index() else {
                return Err(Error::corrupt(format!("no room for what {b} holds")));
            };
            self.kept.push(Kept { index, ..r });
        }
        Ok(())
    }

    /// Children that are tombstones: the record of a relocated one names its successor, that of a
    /// merged one goes.
    async fn audit(&mut self) -> Result<()> {
        let (c, g) = (self.c, self.c.node.g);
        let mut batch = VerbVec::new();
        for r in &self.kept {
            batch.read(r.child.addr, g.header() as u32);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut headers = c.ep.batch(batch).await?;
        for (i, r) in self.kept.clone().into_iter().enumerate() {
            let bytes = headers.take_sampled(i);
            let child = bytes.extract(|b| NodeHeader::of(&g, r.child.addr, b));
            if child.forward.is_null() || child.ver.generation != r.child.generation {
                continue;
            }
            Mark::RecoverRecord.hit();
            self.is_damaged = true;
            let mut at = child.forward;
            let mut successor = NodeHeader::read(c, at).await?;
            while !successor.forward.is_null() {
                at = successor.forward;
                successor = NodeHeader::read(c, at).await?;
                c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
            }
            if successor.lo == child.lo && child.level == 0 {
                // Invariant B: older copies of the successor's keys are blank before it is
                // published.
                Mark::RecoverRelocation.hit();
                Tombstones(c).blank_unvalidated(r.child.addr, &child).await?;
            }
            let named = self.kept.iter().any(|k| k.child.addr == at);
            self.kept.retain(|k| k.index != r.index);
            if successor.lo == child.lo && !named {
                let index = self.free_index().filter(|i| *i != r.index).unwrap_or(r.index);
                self.kept.push(Kept { index, child: successor.child(at), ..r });
            }
        }
        Ok(())
    }

    /// WRITEs the image under the next range: the records that stay where they are, everything else
    /// free.
    async fn write(&self, mut image: Vec<u8>, hi: FenceArea) -> Result<()> {
        let ver = Ver { generation: self.h.ver.generation, range: self.range.wrapping_add(1) };
        let header = NodeHeader { ver, hi, ..self.h.clone() };
        fill(&self.c.node.g, self.addr, &mut image, &header, |i| {
            let kept = self.kept.iter().find(|r| r.index == i)?;
            Some(record_of(&kept.area, kept.child))
        });
        InnerNodes(self.c).write(self.addr, &image).await
    }

    /// Blanks the neighbour's records, bypasses it by `next`, and removes its record in the parent.
    async fn finish_merge(self, b: NodeHeader) -> Result<()> {
        let Self { c, addr: a, h, .. } = self;
        let (g, addr) = (c.node.g, h.next);
        let bytes = c.ep.read(addr, g.inner_image() as u32).await?;
        let mut image = bytes.extract(<[u8]>::to_vec);
        let ver = Ver { range: b.ver.range.wrapping_add(1), ..b.ver };
        fill(&g, addr, &mut image, &NodeHeader { ver, ..b.clone() }, |_| None);
        InnerNodes(c).write(addr, &image).await?;
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
        let lock = InnerLocks(c).word(addr);
        let was = c.ep.cas(lock, 0, 0).await?;
        if c.node.is_abandoned(was) && c.ep.cas(lock, was, 0).await? == was {
            c.node.adopted(LockTag(was));
            InnerNodes(c).retire(addr, b.ver.generation);
        }
        Ok(())
    }

    /// The only node of an empty index, with the root of a bulk load as its `next`. When the only
    /// leaf forwards to the first leaf of the load, the load has committed and the root is swung;
    /// else the load is undone.
    async fn finish_load(self) -> Result<()> {
        let Self { c, addr, h, kept, .. } = self;
        let g = c.node.g;
        let gone = match kept.first() {
            Some(r) => !NodeHeader::read(c, r.child.addr).await?.forward.is_null(),
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
