//! Locks of inner nodes: the word inside the image, taken by `[CAS lock 0->tag, READ node]` behind
//! a FIFO guard.
//!
//! A client that waits for an inner lock while it holds another waits for one of a higher level,
//! and FIFO guards are ranked by level; so inner locks form no cycle.

use std::borrow::Cow;
use std::sync::Arc;

use dmtree_fabric::verb::{cas, read};
use dmtree_fabric::{Buf, Effect, Error, GlobalAddr, Result, Sampled, Stage, Step};
use dmtree_parts::cache::CachedNode;
use dmtree_parts::fifo_mutex::{FifoGuard, Rank};

use crate::format::{Geometry, LockTag, Ver, check_header, inner, unchecked_header};
use crate::inner::{InnerNode, InnerSplit};
use crate::leaf::Blocks;
use crate::lock::{HeldLock, LONG_WAIT, Lockable};
use crate::recovery::{InnerRecovery, diagnose_inner, recover_locks_while_waiting};
use crate::router::Router;
use crate::{Client, Mark, Unlock};

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

impl LockedInner {
    /// Its lock word.
    pub fn word(&self, g: &Geometry) -> GlobalAddr {
        self.addr.plus(g.inner_lock_at() as u64)
    }

    /// The place of a record.
    pub fn place(&self, g: &Geometry, index: usize) -> GlobalAddr {
        self.addr.plus(g.record_at(index) as u64)
    }
}

/// The locks of inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerLocks<'c>(pub &'c Client);

impl InnerLocks<'_> {
    /// Locks the node of `level` that covers `key`; `None` when the tree does not reach up to
    /// `level`.
    pub(crate) async fn lock(self, level: u8, key: &[u8]) -> Result<Option<LockedInner>> {
        let c = self.0;
        let mut backoff = c.ep.backoff("inner node", c.node.root.word);
        'again: loop {
            let start = match c.node.cache.lookup(level, key) {
                Some((n, _)) => n,
                None => match Box::pin(Router(c).descend_to(key, level)).await? {
                    Some(n) => n,
                    None => return Ok(None),
                },
            };
            let (mut addr, mut cached) = (start.addr, Some(&start));
            loop {
                let Some(locked) = self.lock_at(addr, cached, level).await? else {
                    c.node.cache.invalidate(level, &start);
                    backoff.step().await?;
                    continue 'again;
                };
                let is_below = locked.node.keys().next().is_none_or(|first| key < first);
                if is_below {
                    c.unlock(locked).await?;
                    c.node.cache.invalidate(level, &start);
                    backoff.step().await?;
                    continue 'again;
                }
                if locked.hi.as_deref().is_none_or(|hi| key < hi) {
                    return Ok(Some(locked));
                }
                Mark::InnerLockRight.hit();
                let header = check_header(&c.node.g, addr, &locked.node.bytes).expect("accepted");
                (addr, cached) = (header.next, None);
                c.unlock(locked).await?;
                if addr.is_null() {
                    c.node.cache.invalidate(level, &start);
                    continue 'again;
                }
            }
        }
    }

    /// Locks the node at an address; `None` when it has another generation than its cached copy, or
    /// another level, or is a tombstone.
    async fn lock_at(
        self,
        addr: GlobalAddr,
        cached: Option<&Arc<CachedNode>>,
        level: u8,
    ) -> Result<Option<LockedInner>> {
        let c = self.0;
        let mut fifo_guard = self.fifo_guard(addr, level).await?;
        let mut backoff = c.ep.backoff("inner lock", self.word(addr));
        let (tag, bytes) = loop {
            let (tag, was, bytes) = self.try_once(addr).await?;
            if was == 0 {
                break (tag, bytes);
            }
            Mark::InnerLockHeld.hit();
            c.op.retried.set(true);
            if c.node.is_abandoned(was) {
                Box::pin(InnerRecovery(c).recover(addr, was)).await?;
            }
            if c.node.abandoned_locks.is_due(c.ep.now()) {
                // The repair may need this very FIFO guard.
                drop(fifo_guard);
                recover_locks_while_waiting(c).await;
                fifo_guard = self.fifo_guard(addr, level).await?;
            }
            c.op.quiescent_point();
            if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
                Box::pin(diagnose_inner(c, addr)).await?;
            }
            backoff.step().await?;
        };
        c.hold(tag, Lockable::Inner(addr));
        let generation = cached.map(|cached| cached.generation);
        self.open(addr, (generation, cached), level, tag, fifo_guard, bytes).await
    }

    async fn fifo_guard(self, addr: GlobalAddr, level: u8) -> Result<FifoGuard> {
        let _quiescent = self.0.op.quiescent_section();
        self.0.node.inner_fifo.lock_ranked(&self.0.ep, Rank(level), addr.bits()).await
    }

    /// One try: its tag, the content of the lock word, and the node. A failed try may have taken
    /// the lock: it leaves an abandoned lock.
    async fn try_once(self, addr: GlobalAddr) -> Result<(LockTag, u64, Sampled)> {
        let c = self.0;
        let tag = c.tags.next();
        c.ep.step(Step::Structure);
        let own = HeldLock { tag, on: Lockable::Inner(addr) };
        let tried =
            c.try_for(own, (self.word(addr), 0), read(addr, c.node.g.inner_image() as u32)).await;
        if tried.as_ref().is_err_and(|e| e.effect() == Effect::Unknown) {
            c.op.leave_try(own);
        }
        tried.map(|(was, bytes)| (tag, was, bytes))
    }

    /// Accepts a node just locked, or gives its lock back.
    async fn open(
        self,
        addr: GlobalAddr,
        (generation, cached): (Option<u16>, Option<&Arc<CachedNode>>),
        level: u8,
        tag: LockTag,
        fifo_guard: FifoGuard,
        bytes: Sampled,
    ) -> Result<Option<LockedInner>> {
        let g = &self.0.node.g;
        self.0.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
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
            self.release(addr, tag, fifo_guard).await?;
            return Ok(None);
        };
        let node = InnerNode::of(self.0, bytes.into_buf(), cached).await?;
        let header = unchecked_header(g, &node.bytes).expect("accepted");
        let hi = Blocks(self.0).fence(header.hi).await?.map(Cow::into_owned);
        Ok(Some(LockedInner { addr, tag, fifo_guard, ver, level, hi, node }))
    }

    pub(crate) async fn release(
        self,
        addr: GlobalAddr,
        tag: LockTag,
        fifo_guard: FifoGuard,
    ) -> Result<()> {
        let lock = HeldLock { tag, on: Lockable::Inner(addr) };
        let hook = self.0.inner_hook.watch(lock, Some(fifo_guard));
        let done = self.0.ep.release(cas(self.word(addr), tag.0, 0), hook).await;
        self.0.released(tag, done)
    }

    /// A chain has written a node and unlocked it.
    pub(crate) async fn written(self, n: LockedInner) -> Result<()> {
        let addr = n.addr;
        let node = self.unlocked(n);
        Router(self.0).cache_node(addr, &node).await.map(|_| ())
    }

    /// The node, which a chain has unlocked.
    pub(crate) fn unlocked(self, n: LockedInner) -> InnerNode<Buf> {
        self.0.op.let_go(n.tag);
        n.node
    }

    /// Locks the node at an address as [`InnerLocks::lock`] does, but gives up at once when another
    /// client has the lock, or waits for it on this node.
    pub(crate) async fn try_lock_at(
        self,
        addr: GlobalAddr,
        generation: u16,
        level: u8,
    ) -> Result<Option<LockedInner>> {
        let c = self.0;
        let Some(fifo_guard) = c.node.inner_fifo.try_lock_ranked(Rank(level), addr.bits()) else {
            return Ok(None);
        };
        let (tag, was, bytes) = self.try_once(addr).await?;
        if was != 0 {
            return Ok(None);
        }
        c.hold(tag, Lockable::Inner(addr));
        self.open(addr, (Some(generation), None), level, tag, fifo_guard, bytes).await
    }

    pub(crate) fn word(self, addr: GlobalAddr) -> GlobalAddr {
        addr.plus(self.0.node.g.inner_lock_at() as u64)
    }

    /// The locked bottom node of a key, with a free record.
    pub(crate) async fn lock_with_room(self, low: &[u8]) -> Result<LockedInner> {
        loop {
            let Some(n) = self.lock(1, low).await? else {
                return Err(Error::corrupt("the tree has no bottom level"));
            };
            if n.node.len() < self.0.node.g.fanout {
                return Ok(n);
            }
            InnerSplit::run(self.0, n).await?;
        }
    }
}
