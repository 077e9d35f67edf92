//! Splitting a full inner node N into N and a new right sibling N'.
//!
//! 1. Take memory. WRITE N', awaited.
//! 2. One chain: `N.next = N'` (the commit), N's image around the lock word, CAS unlock.
//! 3. Add the record of N' one level up, without N's lock. Until it is there the right link keeps
//!    N' reachable, and a chore adds the record if this client does not.

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, Result, Step};
use dmtree_pool::Grant;

use crate::format::{FenceArea, Ver, check_header, put_u64};
use crate::inner::{InnerNodes, LockedInner, Records, fill};
use crate::invariants::keeps_records;
use crate::leaf::{Blocks, NodeHeader};
use crate::router::Router;
use crate::{Chore, Client, Mark, Mutant, Unlock};

/// A split in progress, under the lock of its node.
pub(crate) struct InnerSplit<'c> {
    c: &'c Client,
    n: LockedInner,
    /// The records that stay.
    half: usize,
    separator: Vec<u8>,
    fence: FenceArea,
    new: Grant,
}

impl<'c> InnerSplit<'c> {
    /// Splits a locked, full node; on return it is unlocked, and the new node's record is one level
    /// up.
    pub(crate) async fn run(c: &'c Client, n: LockedInner) -> Result<()> {
        Mark::InnerSplit.hit();
        let half = n.node.len() / 2;
        let separator = n.node.key(half).to_vec();
        let mut blocks = Vec::new();
        let taken = async {
            let fence = Blocks(c).area(&separator, &mut blocks).await?;
            Ok::<_, Error>((fence, InnerNodes(c).take().await?))
        };
        let (fence, new) = match taken.await {
            Ok(taken) => taken,
            Err(e) => {
                Blocks(c).give_back(blocks);
                c.unlock(n).await?;
                return Err(e);
            }
        };
        Blocks(c).write(&mut blocks).await?;
        Self { c, n, half, separator, fence, new }.commit().await
    }

    async fn commit(self) -> Result<()> {
        let (c, n, new) = (self.c, &self.n, self.new);
        let (lower, upper, header) = self.images().await?;
        let (lower_bytes, upper_bytes) = (lower.to_vec(), upper.to_vec());
        let before = [(n.addr, &*n.node.bytes)];
        let after = [(n.addr, &lower_bytes[..]), (new.addr, &upper_bytes)];
        debug_assert!(
            keeps_records(&c.node.g, &before, &after),
            "split of inner node {} breaks P, R or S",
            n.addr
        );
        c.ep.step(Step::Structure);
        c.check_lease()?;
        match c.node.has(Mutant::InnerBeforeSibling) {
            false => _ = c.ep.write(new.addr, upper).await?,
            true => c.ep.detach(write_verb(new.addr, upper), None),
        }
        // The node is unlocked before the new one's record is there: an operation that is dropped
        // in between leaves the record to maintenance.
        let child = header.child(new.addr);
        let publish = c.begun(Chore::PublishInner(self.separator.clone(), n.level, child));
        self.write(lower).await?;
        let LockedInner { addr, tag, level, fifo_guard, .. } = self.n;
        c.op.let_go(tag);
        drop(fifo_guard);
        Router(c).cache_inner(addr, &lower_bytes).await?;
        Router(c).cache_inner(new.addr, &upper_bytes).await?;
        match Box::pin(Records(c).insert(level + 1, &self.separator, &child)).await {
            // The right link (B-link) keeps the new node reachable; a missing parent record only
            // costs hops.
            Err(e) if e.kind() == ErrorKind::Full => Mark::PublishLater.hit(),
            other => other.map(|()| publish.done())?,
        }
        Ok(())
    }

    /// The images of N and of N', and the header of N'.
    async fn images(&self) -> Result<(Buf, Buf, NodeHeader)> {
        let (c, n, half) = (self.c, &self.n, self.half);
        let g = c.node.g;
        let old = NodeHeader::of(&g, n.addr, &n.node.bytes);
        let ver = Ver { generation: self.new.generation, range: 0 };
        let header = NodeHeader { ver, lo: self.fence.clone(), ..old.clone() };
        let moved = n.node.records().skip(half).map(|r| ((r.area, r.mode), r.child));
        let upper = InnerNodes(c).image(self.new.addr, &header, moved).await?;
        let mut lower = c.ep.buf(g.inner_image() as u32).await?;
        lower.copy_from_slice(&n.node.bytes);
        let shrunk =
            NodeHeader { ver: n.ver.bumped(), hi: self.fence.clone(), next: self.new.addr, ..old };
        let mut stay = vec![None; g.fanout];
        n.node.records().take(half).for_each(|r| stay[r.index] = Some(r));
        fill(&g, n.addr, &mut lower, &shrunk, |i| stay[i].map(|r| ((r.area, r.mode), r.child)));
        Ok((lower, upper, header))
    }

    /// `[WRITE next, WRITE image around the lock word, CAS unlock]`.
    async fn write(&self, image: Buf) -> Result<()> {
        let (c, n, g) = (self.c, &self.n, &self.c.node.g);
        let next_at = n.addr.plus(g.next_at() as u64);
        let lock_at = n.addr.plus(g.inner_lock_at() as u64);
        let (mut head, tail) = InnerNodes(c).around_lock(&image).await?;
        if c.node.has(Mutant::InnerImageBeforeNext) {
            // Acts as a late WRITE with the old word: the image first, and then the word.
            let was = check_header(g, n.addr, &n.node.bytes).map_or(GlobalAddr::NULL, |h| h.next);
            put_u64(&mut head, g.next_at(), was.bits());
            let list = (
                write_verb(n.addr, head),
                write_verb(lock_at.plus(8), tail),
                write_word(next_at, self.new.addr.bits()),
                cas(lock_at, n.tag.0, 0),
            );
            return c.ep.chain(list).await.map(|_| ());
        }
        let list = (
            write_word(next_at, self.new.addr.bits()),
            write_verb(n.addr, head),
            write_verb(lock_at.plus(8), tail),
            cas(lock_at, n.tag.0, 0),
        );
        c.ep.step(Step::Structure);
        c.ep.chain(list).await.map(|_| ())
    }
}
