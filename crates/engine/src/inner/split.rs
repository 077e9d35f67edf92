//! Splits of inner nodes.

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{Buf, Error, GlobalAddr, NodeId, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::Client;
use crate::format::area::Mode;
use crate::format::inner::{Child, free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, check_header, put_header};
use crate::format::{Ver, put_u64};
use crate::inner::{LockedInner, Records};
use crate::invariants::keeps_records;
use crate::leaf::Blocks;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;

/// Splits inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerChange<'c>(pub &'c Client);

impl InnerChange<'_> {
    /// Memory for an inner node: on the first memory node while it has room. Without that node
    /// there is no pool, so the loss of another memory node does not cut off leaves that lie
    /// elsewhere.
    pub(crate) async fn alloc(self) -> Result<Grant> {
        let c = self.0;
        let first = (c.node.pool.memory_nodes() > 1).then_some(NodeId::memory(0));
        c.node.pool.alloc(&c.ep, &c.node.inner_arena, first).await
    }

    /// Splits a locked, full node; on return it is unlocked, and the new node's record is one level
    /// up.
    pub(crate) async fn split(self, n: LockedInner) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        Mark::InnerSplit.hit();
        let half = n.node.len() / 2;
        let separator = n.node.key(half).to_vec();
        let mut blocks = Vec::new();
        let taken = async {
            let fence = Blocks(c).area(&separator, &mut blocks).await?;
            let grant = self.alloc().await?;
            Ok::<_, Error>((fence, grant))
        }
        .await;
        let (fence, grant) = match taken {
            Ok(taken) => taken,
            Err(e) => {
                Blocks(c).give_back(blocks);
                c.unlock(n).await?;
                return Err(e);
            }
        };
        Blocks(c).write(&mut blocks).await?;
        let header = check_header(&g, n.addr, &n.node.bytes).expect("accepted");
        let upper = self
            .image(
                &grant,
                n.level,
                (&fence, &FenceArea::hi_of(&g, &n.node.bytes)),
                header.next,
                n.node.records().skip(half).map(|r| ((r.area, r.mode), r.child)),
            )
            .await?;
        let ver = n.ver.bumped();
        let lo = FenceArea::lo_of(&g, &n.node.bytes);
        let mut lower = c.ep.buf(g.inner_image() as u32).await?;
        lower.copy_from_slice(&n.node.bytes);
        let parts = HeaderParts {
            ver,
            table: header.table,
            slots: g.fanout,
            level: n.level,
            lo: &lo,
            hi: &fence,
            next: grant.addr,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, n.addr, &mut lower, &parts);
        for i in 0..g.fanout {
            put_u64(&mut lower, g.record_at(i), free_word(n.addr, ver, i));
        }
        for r in n.node.records().take(half) {
            let at = g.record_at(r.index);
            let raw = &mut lower[at..at + g.record()];
            put_record(&g, n.addr, ver, r.index, raw, (r.area, r.mode), &r.child);
        }
        let upper_bytes = upper.to_vec();
        let lower_bytes = lower.to_vec();
        debug_assert!(
            keeps_records(
                &g,
                &[(n.addr, &n.node.bytes)],
                &[(n.addr, &lower_bytes), (grant.addr, &upper_bytes)]
            ),
            "split of inner node {} breaks P, R or S",
            n.addr
        );
        c.ep.step(Step::Structure);
        c.check_lease()?;
        match c.node.has(Mutant::InnerBeforeSibling) {
            false => _ = c.ep.write(grant.addr, upper).await?,
            true => c.ep.detach(write_verb(grant.addr, upper), None),
        }
        let Grant { addr, generation } = grant;
        let table = dmtree_pool::TableId::from_bits(0);
        let child = Child { addr, generation, table, slots: g.fanout };
        // The node is unlocked before the new one's record is there: an operation that is dropped
        // in between leaves the record to maintenance.
        let publish = c.begun(Chore::PublishInner(separator.clone(), n.level, child));
        self.write_inner(&n, lower, grant.addr).await?;
        c.op.let_go(n.tag);
        drop(n.fifo_guard);
        c.cache_inner(n.addr, &lower_bytes).await?;
        c.cache_inner(grant.addr, &upper_bytes).await?;
        let published = Box::pin(Records(c).insert(n.level + 1, &separator, &child)).await;
        match published {
            // The right link (B-link) keeps the new node reachable; a missing parent record only
            // costs hops.
            Err(e) if e.kind() == dmtree_fabric::ErrorKind::Full => {
                Mark::PublishLater.hit();
                Ok(())
            }
            other => {
                if other.is_ok() {
                    publish.done();
                }
                other
            }
        }
    }

    /// `[WRITE next, WRITE image around the lock word, CAS unlock]`: the lock word is touched by
    /// atomics only.
    async fn write_inner(self, n: &LockedInner, image: Buf, next: GlobalAddr) -> Result<()> {
        let c = self.0;
        let g = &c.node.g;
        let (lock_at, tail_at) = (g.inner_lock_at(), g.inner_lock_at() + 8);
        let (mut head, tail) = self.around_lock(&image).await?;
        if c.node.has(Mutant::InnerImageBeforeNext) {
            // Acts as a late WRITE with the old word: the image first, and then the word.
            let was = check_header(g, n.addr, &n.node.bytes).map_or(GlobalAddr::NULL, |h| h.next);
            put_u64(&mut head, g.next_at(), was.bits());
            let list = (
                write_verb(n.addr, head),
                write_verb(n.addr.plus(tail_at as u64), tail),
                write_word(n.addr.plus(g.next_at() as u64), next.bits()),
                cas(n.addr.plus(lock_at as u64), n.tag.0, 0),
            );
            return c.ep.chain(list).await.map(|_| ());
        }
        let list = (
            write_word(n.addr.plus(g.next_at() as u64), next.bits()),
            write_verb(n.addr, head),
            write_verb(n.addr.plus(tail_at as u64), tail),
            cas(n.addr.plus(lock_at as u64), n.tag.0, 0),
        );
        c.ep.step(Step::Structure);
        c.ep.chain(list).await.map(|_| ())
    }

    /// The image of a new inner node; its lock word is free.
    pub(crate) async fn image(
        self,
        grant: &Grant,
        level: u8,
        fences: (&FenceArea, &FenceArea),
        next: GlobalAddr,
        records: impl Iterator<Item = ((&[u8], Mode), Child)>,
    ) -> Result<Buf> {
        let g = self.0.node.g;
        let ver = Ver { generation: grant.generation, range: 0 };
        let mut image = self.0.ep.buf(g.inner_image() as u32).await?;
        image.fill(0);
        let parts = HeaderParts {
            ver,
            table: dmtree_pool::TableId::from_bits(0),
            slots: g.fanout,
            level,
            lo: fences.0,
            hi: fences.1,
            next,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, grant.addr, &mut image, &parts);
        let mut records = records.fuse();
        for i in 0..g.fanout {
            let at = g.record_at(i);
            match records.next() {
                Some((key, child)) => {
                    let raw = &mut image[at..at + g.record()];
                    put_record(&g, grant.addr, ver, i, raw, key, &child);
                }
                None => put_u64(&mut image, at, free_word(grant.addr, ver, i)),
            }
        }
        Ok(image)
    }

    /// Writes an image around the lock word, which is touched by atomics only.
    pub(crate) async fn write_around_lock(self, addr: GlobalAddr, image: &[u8]) -> Result<()> {
        let c = self.0;
        let tail_at = addr.plus(c.node.g.inner_lock_at() as u64 + 8);
        let (head, tail) = self.around_lock(image).await?;
        c.ep.step(Step::Structure);
        c.ep.chain((write_verb(addr, head), write_verb(tail_at, tail))).await.map(|_| ())
    }

    /// The parts of an image in front of the lock word and behind it.
    async fn around_lock(self, image: &[u8]) -> Result<(Buf, Buf)> {
        let c = self.0;
        let (head, rest) = image.split_at(c.node.g.inner_lock_at());
        let tail = &rest[8..];
        let mut bufs = (c.ep.buf(head.len() as u32).await?, c.ep.buf(tail.len() as u32).await?);
        bufs.0.copy_from_slice(head);
        bufs.1.copy_from_slice(tail);
        Ok(bufs)
    }
}
