//! Inner nodes: adding and removing records, splitting, growing a new root.
//!
//! An inner node is locked by a word of its own, taken by `[CAS lock 0->tag, READ node]` behind a
//! FIFO guard. A client that waits for an inner lock while it holds another waits for one of a
//! higher level, and FIFO guards of inner locks are ranked by level; so inner locks form no cycle.
//! The lock word lies inside the image, and images are written around it: the word is touched by
//! atomics only.
//!
//! - *Add a record*: WRITE the record into a free place, unlock behind it in the same chain.
//!   Records are unsorted and each is valid alone, so one WRITE changes one record.
//! - *Remove a record*: WRITE word0 = free, unlock behind it.
//! - *Split N*: WRITE N', awaited; then one chain: `N.next = N'` (the commit), N's image around the
//!   lock word, CAS unlock; then the record of N' one level up, without N's lock.
//! - *New root*: WRITE the root with two records, then change the root word by compare-and-swap. A
//!   client that loses the race gives its node back and inserts into the level that it finds.
//!
//! R holds for inner nodes as for leaves: in an unlocked node `hi` is `next`'s `lo`, and the
//! sibling's record is one level up unless memory was short. Until the record is there the right
//! link keeps N' reachable, and a chore adds the record. S: all records of a node carry its range;
//! a change of the node's range rewrites every word0, so an image that mixes two versions is
//! refused.
//!
//! The parent's lock decides between clients that publish the same child: under it, a record with
//! the child's key means that the child was published already, and a child that is a tombstone by
//! now gets no record.
//!
//! A crash under the lock leaves a torn record, a half split or a node that misses a sibling's
//! record. The next client that meets the abandoned lock, or a sweep, repairs it
//! (`recover_inner.rs`).

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{Buf, Effect, Error, GlobalAddr, NodeId, Result, Stage, Step};
use dmtree_parts::fifo_mutex::{FifoGuard, Rank};
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::{DmTree, HeldLock, Lockable};
use crate::format::area::Mode;
use crate::format::inner::{self, Child, free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, check_header, put_header, unchecked_header};
use crate::format::table::LockTag;
use crate::format::{Ver, put_u64};
use crate::inner_node::InnerNode;
use crate::invariants::keeps_records;
use crate::lock::LONG_WAIT;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;

/// A locked inner node, as read under the lock.
pub(crate) struct LockedInner {
    pub addr: GlobalAddr,
    pub tag: LockTag,
    pub fifo_guard: FifoGuard,
    pub ver: Ver,
    pub level: u8,
    pub hi: Option<Vec<u8>>,
    pub node: InnerNode<Buf>,
}

impl Unlock<LockedInner> for DmTree {
    async fn unlock(&self, n: LockedInner) -> Result<()> {
        self.release_inner(n.addr, n.tag, n.fifo_guard).await
    }
}

impl DmTree {
    /// Locks the node of `level` that covers `key`; `None` when the tree does not reach up to
    /// `level`.
    pub(crate) async fn lock_inner(&self, level: u8, key: &[u8]) -> Result<Option<LockedInner>> {
        let mut backoff = self.ep.backoff("inner node", self.node.root.word);
        'again: loop {
            let start = match self.node.cache.lookup(level, key) {
                Some((n, _)) => n,
                None => match self.descend_to(key, level).await? {
                    Some(n) => n,
                    None => return Ok(None),
                },
            };
            let (mut addr, mut generation) = (start.addr, Some(start.generation));
            loop {
                let Some(locked) = self.lock_inner_at(addr, generation, level).await? else {
                    self.node.cache.invalidate(level, &start);
                    backoff.step().await?;
                    continue 'again;
                };
                let is_below = locked.node.keys().next().is_none_or(|first| key < first);
                if is_below {
                    self.unlock(locked).await?;
                    self.node.cache.invalidate(level, &start);
                    backoff.step().await?;
                    continue 'again;
                }
                if locked.hi.as_deref().is_none_or(|hi| key < hi) {
                    return Ok(Some(locked));
                }
                Mark::InnerLockRight.hit();
                let header =
                    check_header(&self.node.g, addr, &locked.node.bytes).expect("accepted");
                (addr, generation) = (header.next, None);
                self.unlock(locked).await?;
                if addr.is_null() {
                    self.node.cache.invalidate(level, &start);
                    continue 'again;
                }
            }
        }
    }

    /// Locks the node at an address; `None` when it has another generation or level, or is a
    /// tombstone.
    pub(crate) async fn lock_inner_at(
        &self,
        addr: GlobalAddr,
        generation: Option<u16>,
        level: u8,
    ) -> Result<Option<LockedInner>> {
        let g = &self.node.g;
        let mut fifo_guard = self.inner_fifo_guard(addr, level).await?;
        let lock = addr.plus(g.inner_lock_at() as u64);
        let mut backoff = self.ep.backoff("inner lock", lock);
        let (tag, bytes) = loop {
            let tag = self.next_tag();
            self.ep.step(Step::Structure);
            let own = HeldLock { tag, on: Lockable::Inner(addr) };
            let tried = self.try_for(own, (lock, 0), addr, g.inner_image()).await;
            let (was, bytes) = self.sure_of(own, tried)?;
            if was == 0 {
                break (tag, bytes);
            }
            Mark::InnerLockHeld.hit();
            self.op.retried.set(true);
            if self.node.is_abandoned(was) {
                Box::pin(self.recover_inner(addr, was)).await?;
            }
            if self.node.abandoned_locks.is_due(self.ep.now()) {
                // The repair may need this very FIFO guard.
                drop(fifo_guard);
                self.recover_locks_while_waiting().await;
                fifo_guard = self.inner_fifo_guard(addr, level).await?;
            }
            self.op.quiescent_point();
            if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
                Box::pin(self.diagnose_stall_inner(addr)).await?;
            }
            backoff.step().await?;
        };
        self.hold(tag, Lockable::Inner(addr));
        self.open_inner(addr, generation, level, tag, fifo_guard, bytes).await
    }

    async fn inner_fifo_guard(&self, addr: GlobalAddr, level: u8) -> Result<FifoGuard> {
        let _quiescent = self.op.quiescent_section();
        self.node.inner_fifo.lock_ranked(&self.ep, Rank(level), addr.bits()).await
    }

    /// A failed try may have taken the lock: it leaves an abandoned lock.
    fn sure_of<T>(&self, own: HeldLock, tried: Result<T>) -> Result<T> {
        if tried.as_ref().is_err_and(|e| e.effect() == Effect::Unknown) {
            self.op.leave_try(own);
        }
        tried
    }

    /// Accepts a node just locked, or gives its lock back.
    async fn open_inner(
        &self,
        addr: GlobalAddr,
        generation: Option<u16>,
        level: u8,
        tag: LockTag,
        fifo_guard: FifoGuard,
        bytes: dmtree_fabric::Sampled,
    ) -> Result<Option<LockedInner>> {
        let g = &self.node.g;
        self.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
        let checked = bytes.check(|b| {
            let h = inner::check(g, addr, b).ok_or(())?;
            let right = h.level == level
                && generation.is_none_or(|l| l == h.ver.generation)
                && h.forward.is_null();
            if right { Ok(h.ver) } else { Err(()) }
        });
        let Ok((ver, bytes)) = checked else {
            // Stale, or freed and reused: give the lock back.
            Mark::InnerLockStale.hit();
            self.release_inner(addr, tag, fifo_guard).await?;
            return Ok(None);
        };
        let node = InnerNode::of(self, bytes.into_buf()).await?;
        let header = unchecked_header(g, &node.bytes).expect("accepted");
        let hi = self.fence_bytes(header.hi).await?;
        Ok(Some(LockedInner { addr, tag, fifo_guard, ver, level, hi, node }))
    }

    async fn release_inner(
        &self,
        addr: GlobalAddr,
        tag: LockTag,
        fifo_guard: FifoGuard,
    ) -> Result<()> {
        let lock = addr.plus(self.node.g.inner_lock_at() as u64);
        let hook =
            self.inner_hook.watch(HeldLock { tag, on: Lockable::Inner(addr) }, Some(fifo_guard));
        let done = self.ep.release(cas(lock, tag.0, 0), hook).await;
        self.released(tag, done)
    }

    /// Adds the record of a child to the level above it (`level`), unless it is there. Splits full
    /// nodes, up to a new root.
    ///
    /// The caller may have read of the child long ago. Under the parent's lock the parent's records
    /// name live children. So a record of this key means that another client has published the
    /// child before (and that it was moved since, if the record names another address). An inner
    /// child that another client has published may have been merged away since. A leaf cannot be,
    /// because the publishing client holds the lock of the leaf or of its left sibling.
    ///
    /// # Errors
    /// `Full` when a node must be split and there is no memory: nothing was changed on this level.
    pub(crate) async fn insert_record(&self, level: u8, low: &[u8], child: &Child) -> Result<()> {
        let mut backoff = self.ep.backoff("room in a parent", child.addr);
        loop {
            let Some(n) = self.lock_inner(level, low).await? else {
                if self.grow_root(level, low, child).await? {
                    return Ok(());
                }
                backoff.step().await?;
                continue;
            };
            if n.node.keys().any(|key| key == low) {
                return self.unlock(n).await;
            }
            if level > 1 {
                let h = self.unvalidated_header(child.addr).await?;
                if h.ver.generation != child.generation || !h.forward.is_null() {
                    Mark::PublishTombstone.hit();
                    return self.unlock(n).await;
                }
            }
            match n.node.free_place() {
                Some(index) => return self.add_record(n, index, low, child).await,
                None => self.split_inner(n).await?,
            }
        }
    }

    /// WRITEs one record and unlocks behind it.
    async fn add_record(
        &self,
        n: LockedInner,
        index: usize,
        low: &[u8],
        child: &Child,
    ) -> Result<()> {
        let g = self.node.g;
        let mut blocks = Vec::new();
        let area = match self.fence_area(low, &mut blocks).await {
            Ok(area) => area,
            Err(e) => {
                self.unlock(n).await?;
                return Err(e);
            }
        };
        self.write_blocks(&mut blocks).await?;
        let mut n = n;
        let at = g.record_at(index);
        let mut record = self.ep.buf(g.record() as u32).await?;
        put_record(&g, n.addr, n.ver, index, &mut record, (&area.bytes, area.mode), child);
        n.node.add(index, &record, low);
        let lock = n.addr.plus(g.inner_lock_at() as u64);
        let unlock = cas(lock, n.tag.0, 0);
        self.ep.step(Step::Structure);
        self.check_lease()?;
        if self.node.has(Mutant::RecordBesideUnlock) {
            self.ep.detach(write_verb(n.addr.plus(at as u64), record), None);
            self.ep.cas(lock, n.tag.0, 0).await?;
        } else {
            self.ep.chain((write_verb(n.addr.plus(at as u64), record), unlock)).await?;
        }
        self.written_inner(n).await
    }

    /// A chain has written a node and unlocked it.
    pub(crate) async fn written_inner(&self, n: LockedInner) -> Result<()> {
        self.op.let_go(n.tag);
        drop(n.fifo_guard);
        self.cache_node(n.addr, &n.node).await.map(|_| ())
    }

    /// Removes the record of a child (it is gone) from a locked node, and unlocks. The caller
    /// retires the block that the record owned.
    pub(crate) async fn remove_record(&self, n: LockedInner, index: usize) -> Result<()> {
        let g = self.node.g;
        let mut n = n;
        let word = free_word(n.addr, n.ver, index);
        let at = g.record_at(index);
        n.node.remove(index, word);
        let lock = n.addr.plus(g.inner_lock_at() as u64);
        let list = (write_word(n.addr.plus(at as u64), word), cas(lock, n.tag.0, 0));
        self.ep.step(Step::Structure);
        self.check_lease()?;
        self.ep.chain(list).await?;
        self.written_inner(n).await
    }

    /// Memory for an inner node: on the first memory node while it has room. Without that node
    /// there is no pool, so the loss of another memory node does not cut off leaves that lie
    /// elsewhere.
    pub(crate) async fn alloc_inner(&self) -> Result<Grant> {
        let first = (self.node.pool.memory_nodes() > 1).then_some(NodeId::memory(0));
        self.node.pool.alloc(&self.ep, &self.node.inner_arena, first).await
    }

    /// Splits a locked, full node; on return it is unlocked, and the new node's record is one level
    /// up.
    pub(crate) async fn split_inner(&self, n: LockedInner) -> Result<()> {
        let g = self.node.g;
        Mark::InnerSplit.hit();
        let half = n.node.len() / 2;
        let separator = n.node.key(half).to_vec();
        let mut blocks = Vec::new();
        let taken = async {
            let fence = self.fence_area(&separator, &mut blocks).await?;
            let grant = self.alloc_inner().await?;
            Ok::<_, Error>((fence, grant))
        }
        .await;
        let (fence, grant) = match taken {
            Ok(taken) => taken,
            Err(e) => {
                self.forget_blocks(blocks);
                self.unlock(n).await?;
                return Err(e);
            }
        };
        self.write_blocks(&mut blocks).await?;
        let header = check_header(&g, n.addr, &n.node.bytes).expect("accepted");
        let upper = self
            .inner_image(
                &grant,
                n.level,
                (&fence, &FenceArea::hi_of(&g, &n.node.bytes)),
                header.next,
                n.node.records().skip(half).map(|r| ((r.area, r.mode), r.child)),
            )
            .await?;
        let ver = n.ver.bumped();
        let lo = FenceArea::lo_of(&g, &n.node.bytes);
        let mut lower = self.ep.buf(g.inner_image() as u32).await?;
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
        self.ep.step(Step::Structure);
        self.check_lease()?;
        match self.node.has(Mutant::InnerBeforeSibling) {
            false => _ = self.ep.write(grant.addr, upper).await?,
            true => self.ep.detach(write_verb(grant.addr, upper), None),
        }
        let Grant { addr, generation } = grant;
        let table = dmtree_pool::TableId::from_bits(0);
        let child = Child { addr, generation, table, slots: g.fanout };
        // The node is unlocked before the new one's record is there: an operation that is dropped
        // in between leaves the record to maintenance.
        let publish = self.begun(Chore::PublishInner(separator.clone(), n.level, child));
        self.write_inner(&n, lower, grant.addr).await?;
        self.op.let_go(n.tag);
        drop(n.fifo_guard);
        self.cache_inner(n.addr, &lower_bytes).await?;
        self.cache_inner(grant.addr, &upper_bytes).await?;
        let published = Box::pin(self.insert_record(n.level + 1, &separator, &child)).await;
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
    async fn write_inner(&self, n: &LockedInner, image: Buf, next: GlobalAddr) -> Result<()> {
        let g = &self.node.g;
        let (lock_at, tail_at) = (g.inner_lock_at(), g.inner_lock_at() + 8);
        let (mut head, tail) = self.around_lock(&image).await?;
        if self.node.has(Mutant::InnerImageBeforeNext) {
            // Acts as a late WRITE with the old word: the image first, and then the word.
            let was = check_header(g, n.addr, &n.node.bytes).map_or(GlobalAddr::NULL, |h| h.next);
            put_u64(&mut head, g.next_at(), was.bits());
            let list = (
                write_verb(n.addr, head),
                write_verb(n.addr.plus(tail_at as u64), tail),
                write_word(n.addr.plus(g.next_at() as u64), next.bits()),
                cas(n.addr.plus(lock_at as u64), n.tag.0, 0),
            );
            return self.ep.chain(list).await.map(|_| ());
        }
        let list = (
            write_word(n.addr.plus(g.next_at() as u64), next.bits()),
            write_verb(n.addr, head),
            write_verb(n.addr.plus(tail_at as u64), tail),
            cas(n.addr.plus(lock_at as u64), n.tag.0, 0),
        );
        self.ep.step(Step::Structure);
        self.ep.chain(list).await.map(|_| ())
    }

    /// The image of a new inner node; its lock word is free.
    async fn inner_image(
        &self,
        grant: &Grant,
        level: u8,
        fences: (&FenceArea, &FenceArea),
        next: GlobalAddr,
        records: impl Iterator<Item = ((&[u8], Mode), Child)>,
    ) -> Result<Buf> {
        let g = self.node.g;
        let ver = Ver { generation: grant.generation, range: 0 };
        let mut image = self.ep.buf(g.inner_image() as u32).await?;
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

    /// Puts a new root of `level` over the present one and a new child; false when another client
    /// was faster.
    async fn grow_root(&self, level: u8, low: &[u8], child: &Child) -> Result<bool> {
        let g = self.node.g;
        let old = self.read_root().await?;
        let crate::route::InnerRead::Whole(copy) = self.read_inner(old, None, None).await? else {
            return Ok(false);
        };
        if copy.level + 1 != level {
            return Ok(false);
        }
        let mut blocks = Vec::new();
        let area = self.fence_area(low, &mut blocks).await?;
        let grant = match self.alloc_inner().await {
            Ok(grant) => grant,
            Err(e) => {
                self.forget_blocks(blocks);
                return Err(e);
            }
        };
        let kept: Vec<_> = blocks.iter().map(|(at, _)| *at).collect();
        self.write_blocks(&mut blocks).await?;
        let bottom = FenceArea::inline(&g, &[]).expect("nothing fits anywhere");
        let table = dmtree_pool::TableId::from_bits(0);
        let left = Child { addr: old, generation: copy.node.generation, table, slots: g.fanout };
        let records = [(&bottom, left), (&area, *child)];
        let records = records.into_iter().map(|(key, child)| ((&key.bytes[..], key.mode), child));
        let fences = (&bottom, &FenceArea::infinite(&g));
        let image = self.inner_image(&grant, level, fences, GlobalAddr::NULL, records).await?;
        let bytes = image.to_vec();
        self.ep.step(Step::Structure);
        match self.node.has(Mutant::RootBeside) {
            false => _ = self.ep.write(grant.addr, image).await?,
            true => self.ep.detach(write_verb(grant.addr, image), None),
        }
        let mut was = self.ep.cas(self.node.root.word, old.bits(), grant.addr.bits()).await?;
        if was != old.bits() && self.node.has(Mutant::RootOverwritten) {
            was = self
                .ep
                .cas(self.node.root.word, was, grant.addr.bits())
                .await
                .map(|_| old.bits())?;
        }
        if was != old.bits() {
            Mark::RootLost.hit();
            self.node.pool.give_back(&self.node.inner_arena, grant);
            for at in kept {
                self.node.pool.give_back_block(self.node.root.index, at);
            }
            return Ok(false);
        }
        Mark::RootGrown.hit();
        self.cache_inner(grant.addr, &bytes).await?;
        Ok(true)
    }
}

impl DmTree {
    /// As [`DmTree::lock_inner_at`], but gives up at once when another client has the lock, or
    /// waits for it on this node.
    pub(crate) async fn try_lock_inner(
        &self,
        addr: GlobalAddr,
        generation: u16,
        level: u8,
    ) -> Result<Option<LockedInner>> {
        let Some(fifo_guard) = self.node.inner_fifo.try_lock_ranked(Rank(level), addr.bits())
        else {
            return Ok(None);
        };
        let lock = addr.plus(self.node.g.inner_lock_at() as u64);
        let tag = self.next_tag();
        let len = self.node.g.inner_image();
        self.ep.step(Step::Structure);
        let own = HeldLock { tag, on: Lockable::Inner(addr) };
        let tried = self.try_for(own, (lock, 0), addr, len).await;
        let (was, bytes) = self.sure_of(own, tried)?;
        if was != 0 {
            return Ok(None);
        }
        self.hold(tag, Lockable::Inner(addr));
        self.open_inner(addr, Some(generation), level, tag, fifo_guard, bytes).await
    }

    /// Writes an image around the lock word, which is touched by atomics only.
    pub(crate) async fn write_around_lock(&self, addr: GlobalAddr, image: &[u8]) -> Result<()> {
        let tail_at = addr.plus(self.node.g.inner_lock_at() as u64 + 8);
        let (head, tail) = self.around_lock(image).await?;
        self.ep.step(Step::Structure);
        self.ep.chain((write_verb(addr, head), write_verb(tail_at, tail))).await.map(|_| ())
    }

    /// The parts of an image in front of the lock word and behind it.
    async fn around_lock(&self, image: &[u8]) -> Result<(Buf, Buf)> {
        let (head, rest) = image.split_at(self.node.g.inner_lock_at());
        let tail = &rest[8..];
        let mut bufs =
            (self.ep.buf(head.len() as u32).await?, self.ep.buf(tail.len() as u32).await?);
        bufs.0.copy_from_slice(head);
        bufs.1.copy_from_slice(tail);
        Ok(bufs)
    }
}
