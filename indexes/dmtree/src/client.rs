//! A client: one slot's view of the index.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::verb::{cas, read};
use dmtree_fabric::{Endpoint, Error, GlobalAddr, OpOutcome, Result, Stage, Step, Verified};
use dmtree_pool::{BlockPtr, EpochHandle, TableId};

use crate::format::area::Stored;
use crate::format::block;
use crate::format::leaf::{FenceArea, Header, check_header, check_slots};
use crate::format::slot::{self, Place, Slot, State};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::lock::LONG_WAIT;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::DmNode;
use crate::unlock::UnlockHook;

/// A DMTree client: one slot. See [`dmtree_parts::RangeIndex`] for what it does.
pub struct DmTree {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<DmNode>,
    pub(crate) epoch: RefCell<Rc<EpochHandle>>,
    pub(crate) leaf_hook: Rc<UnlockHook>,
    pub(crate) inner_hook: Rc<UnlockHook>,
    tag_base: u64,
    acquisitions: Cell<u16>,
    /// Locks that the present operation holds.
    pub(crate) held: RefCell<Vec<HeldLock>>,
    /// Locks that it tries for, or has tried for without hearing the outcome.
    pub(crate) tries: RefCell<Vec<HeldLock>>,
    /// Something forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    /// The present operation replaces a value in a full pool: it may use the last block.
    pub(crate) spare: Cell<bool>,
    /// Cache hits not yet added to the node's, so that clients do not share a counter per operation.
    hits: Cell<u64>,
}

impl Drop for DmTree {
    fn drop(&mut self) {
        self.node.hits.fetch_add(self.hits.get(), std::sync::atomic::Ordering::Relaxed);
    }
}

impl std::fmt::Debug for DmTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmTree({:?})", self.ep)
    }
}

/// A lock that an operation holds: its tag, and what it locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub tag: LockTag,
    pub on: Lockable,
}

/// What a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lockable {
    Leaf(Route),
    Inner(GlobalAddr),
    /// A lock word of a memory node: its tag says more.
    Word(GlobalAddr),
}

impl HeldLock {
    /// What tells it from every other lock of its node.
    pub fn key(&self) -> (u64, u64) {
        match self.on {
            Lockable::Word(at) => (self.tag.0, at.bits()),
            Lockable::Leaf(_) | Lockable::Inner(_) => (self.tag.0, 0),
        }
    }
}

/// Locks of an operation at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Locks {
    held: usize,
    tries: usize,
}

/// Whether what a pointer names is held for whoever reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    /// It was reachable, or locked, in this operation.
    Held,
    /// What names it may be dead for long: the bytes may be anybody's.
    Unvalidated,
}

/// An operation runs: what it may reach is not reused before it ends, and the locks that it has then are orphans.
///
/// A caller may drop its future at any await. Verbs in flight execute all the same, so the operation has not ended before they have:
/// its announcement and its locks wait for that, and the client goes on with another announcement.
pub(crate) struct Pinned<'c>(&'c DmTree);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let c = self.0;
        if c.ep.is_quiet() {
            c.leave_abandoned_locks();
            c.epoch.borrow().leave();
            return;
        }
        Mark::DroppedInFlight.hit();
        let mut locks = c.held.take();
        locks.append(&mut c.tries.borrow_mut());
        let epoch = c.epoch.replace(Rc::new(c.node.pool.register()));
        let node = c.node.clone();
        c.ep.when_quiet(move || {
            locks.into_iter().for_each(|h| node.abandoned_lock(h));
            epoch.leave();
        });
    }
}

/// A leaf as a route names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub leaf: GlobalAddr,
    pub generation: u16,
    pub table: TableId,
    pub capacity: usize,
    /// Tag of the upper fence that the parent implies.
    pub fence: u32,
}

impl Route {
    /// Whether a table is that of this leaf, in this life, with this range.
    pub fn matches(&self, t: &Table) -> bool {
        !t.dead
            && t.leaf == self.leaf
            && t.ver.generation == self.generation
            && t.fence == self.fence
    }
}

/// What a confirmation at a table's home shows.
pub(crate) enum Confirmed {
    /// The lock was free: the table is exact.
    Exact(Table),
    /// The lock was free, and the table was never written since its cell was zeroed: its home is new.
    Unbuilt,
    /// No table can be read: its home is away, or this is no (whole) table.
    Odd,
    /// Somebody holds the lock.
    Locked,
}

/// A whole leaf, accepted.
pub(crate) struct LeafCopy {
    pub addr: GlobalAddr,
    pub capacity: usize,
    pub bytes: Verified,
}

impl DmTree {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<DmNode>) -> Self {
        let incarnation = node.pool.fabric().incarnation(ep.node()).unwrap_or(0) as u16;
        // The upper half of a lock word's tags is for changes of whole leaves.
        let client = node.next_client() & if node.has_tables() { u16::MAX } else { 0x7fff };
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        ep.set_attached_only(!node.o.round_trip_combining);
        let epoch = Rc::new(node.pool.register());
        let leaf_hook = UnlockHook::of(&node, &node.leaf_turns);
        epoch.used_by(&ep);
        ep.prefetch(&*leaf_hook);
        Self {
            epoch: RefCell::new(epoch),
            leaf_hook,
            inner_hook: UnlockHook::of(&node, &node.inner_turns),
            tag_base: u64::from(ep.node().bits()) << 48
                | u64::from(incarnation) << 32
                | u64::from(client) << 16,
            acquisitions: Cell::new(0),
            held: RefCell::default(),
            tries: RefCell::default(),
            retried: Cell::new(false),
            spare: Cell::new(false),
            hits: Cell::new(0),
            ep,
            node,
        }
    }

    pub(crate) fn pin(&self) -> Pinned<'_> {
        match self.node.has(Mutant::NoEpoch) {
            false => self.epoch.borrow().enter(),
            true => self.epoch.borrow().leave(),
        }
        self.retried.set(false);
        Pinned(self)
    }

    /// The operation holds this lock from now on.
    pub(crate) fn hold(&self, tag: LockTag, on: Lockable) {
        self.held.borrow_mut().push(HeldLock { tag, on });
        if self.node.has(Mutant::MoveWhileLocked) {
            self.epoch.borrow().pass();
        }
    }

    /// It has given the lock back, or is about to, in a way that does not fail.
    pub(crate) fn let_go(&self, tag: LockTag) {
        let mut held = self.held.borrow_mut();
        if let Some(i) = held.iter().rposition(|h| h.tag == tag) {
            held.swap_remove(i);
        }
    }

    /// It could not give this lock back, and does nothing under it any more.
    pub(crate) fn leave_abandoned_lock(&self, tag: LockTag) {
        let mut held = self.held.borrow_mut();
        if let Some(i) = held.iter().rposition(|h| h.tag == tag) {
            let h = held.swap_remove(i);
            self.node.abandoned_lock(h);
        }
    }

    /// An operation that waits while it holds no lock does not stand in the way of tables that move.
    pub(crate) fn pass(&self) {
        if self.held.borrow().is_empty() {
            self.epoch.borrow().pass();
        }
    }

    /// Fails when this node's lease has ended by its own clock.
    #[inline]
    pub(crate) fn check_lease(&self) -> Result<()> {
        match self.node.pool.check_lease(&self.ep) {
            Err(_) if self.node.has(Mutant::NoLease) => Ok(()),
            checked => checked,
        }
    }

    /// The same where the operation has changed nothing yet: the error says so.
    #[inline]
    pub(crate) fn check_lease_untouched(&self) -> Result<()> {
        match self.node.pool.check_lease_untouched(&self.ep) {
            Err(_) if self.node.has(Mutant::NoLease) => Ok(()),
            checked => checked,
        }
    }

    /// While it waits for another operation of its node, an operation that holds no lock does not stand in the way of tables that
    /// move: the other may wait for just that.
    pub(crate) fn rest(&self) -> Option<dmtree_pool::Rest> {
        self.held.borrow().is_empty().then(|| self.epoch.borrow().rest())
    }

    /// An operation has come to its end. Locks that it could not give back, because a verb under them failed, are orphans now: no
    /// verb of theirs executes any more, and whoever meets one repairs what it covers.
    pub(crate) fn leave_abandoned_locks(&self) {
        self.leave_since(&Locks::default());
    }

    /// A part of an operation has failed, and the operation goes on: the same for the locks of that part.
    pub(crate) fn leave_since(&self, before: &Locks) {
        if self.held.borrow().len() > before.held {
            let left = self.held.borrow_mut().split_off(before.held);
            left.into_iter().for_each(|h| self.node.abandoned_lock(h));
        }
        if self.tries.borrow().len() > before.tries {
            let left = self.tries.borrow_mut().split_off(before.tries);
            left.into_iter().for_each(|h| self.node.abandoned_lock(h));
        }
    }

    /// How many locks the present operation has, and how many it has tried for.
    pub(crate) fn locks(&self) -> Locks {
        Locks { held: self.held.borrow().len(), tries: self.tries.borrow().len() }
    }

    /// Counts a lookup that found its bottom node.
    pub(crate) fn count_hit(&self) {
        self.hits.set(self.hits.get() + 1);
        if self.hits.get() == 256 {
            self.node.hits.fetch_add(self.hits.replace(0), std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// A tag never used before (in the lifetime of a lock word's memory of it): 0 is not among them.
    pub(crate) fn next_tag(&self) -> LockTag {
        let n = self.acquisitions.get().wrapping_add(1);
        self.acquisitions.set(n);
        LockTag(self.tag_base | u64::from(n))
    }

    /// The outcome to count for an operation that went this way.
    pub(crate) fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        match plain {
            OpOutcome::InsertSplit => plain,
            _ if self.retried.get() => OpOutcome::Retried,
            _ => plain,
        }
    }

    /// Takes a lock and reads what it covers: one round trip, or two where round-trip combining is off.
    pub(crate) async fn cas_and_read(
        &self,
        lock: GlobalAddr,
        tags: (u64, u64),
        body: GlobalAddr,
        len: usize,
    ) -> Result<(u64, dmtree_fabric::Sampled)> {
        if self.node.o.round_trip_combining {
            return self.ep.chain((cas(lock, tags.0, tags.1), read(body, len as u32))).await;
        }
        let was = self.ep.cas(lock, tags.0, tags.1).await?;
        Ok((was, self.ep.read(body, len as u32).await?))
    }

    /// [`DmTree::cas_and_read`] for a lock that is to become this operation's. Until the outcome is known it counts as tried for: also
    /// when the future is dropped meanwhile, and when the try fails.
    pub(crate) async fn try_for(
        &self,
        h: HeldLock,
        word: (GlobalAddr, u64),
        body: GlobalAddr,
        len: usize,
    ) -> Result<(u64, dmtree_fabric::Sampled)> {
        let (at, was, tag) = (word.0, word.1, h.tag.0);
        self.try_with(h, async {
            match self.node.has(Mutant::LockBesideRead) {
                false => self.cas_and_read(at, (was, tag), body, len).await,
                true => self.ep.batch((cas(at, was, tag), read(body, len as u32))).await,
            }
        })
        .await
    }

    /// The same for verbs that are posted when the future is polled.
    pub(crate) async fn try_with<T>(
        &self,
        h: HeldLock,
        verbs: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let in_doubt = self.tries.borrow().iter().any(|t| t.tag == h.tag);
        if !in_doubt {
            self.tries.borrow_mut().push(h);
        }
        let tried = verbs.await;
        let untouched = |e: &Error| !in_doubt && e.effect() == dmtree_fabric::Effect::None;
        if tried.as_ref().map_or_else(untouched, |_| true) {
            self.forget_try(h.tag);
        }
        tried
    }

    /// The outcome of a try is known, or is somebody else's business.
    pub(crate) fn forget_try(&self, tag: LockTag) {
        self.tries.borrow_mut().retain(|t| t.tag != tag);
    }

    /// A try has failed in a way that leaves it open whether the lock was taken, and the operation goes on without it.
    pub(crate) fn leave_try(&self, h: HeldLock) {
        self.forget_try(h.tag);
        self.node.abandoned_lock(h);
    }

    /// `[CAS lock 0->0, READ table]`: when the lock was free at the CAS, the table is exact at that instant or at a later one
    /// of this operation.
    pub(crate) async fn confirm(&self, table: TableId, capacity: usize) -> Result<Confirmed> {
        // A home that is dead, or cannot be reached: the leaf will answer.
        let at = match self.node.pool.resolve(&self.ep, table).await {
            Ok(at) => at,
            Err(e) if is_away(&e) => return Ok(Confirmed::Odd),
            Err(e) => return Err(e),
        };
        let mut backoff = self.ep.backoff("table being written", at);
        loop {
            let len = Table::body_len(capacity);
            self.ep.step(Step::Table);
            let got = match self.node.has(Mutant::ConfirmWithoutCas) {
                false => self.cas_and_read(at, (0, 0), at.plus(BODY_AT as u64), len).await,
                true => self
                    .ep
                    .batch((read(at, 8), read(at.plus(BODY_AT as u64), len as u32)))
                    .await
                    .map(|(lock, bytes)| (lock.word(0), bytes)),
            };
            let (was, bytes) = match got {
                Ok(got) => got,
                Err(e) if is_away(&e) && !self.node.has(Mutant::OwnerIsNeeded) => {
                    Mark::OwnerAway.hit();
                    return Ok(Confirmed::Odd);
                }
                Err(e) => return Err(e),
            };
            if was != 0 && !self.node.has(Mutant::ConfirmWhileLocked) {
                return Ok(Confirmed::Locked);
            }
            match bytes.extract(|b| Table::view(table, capacity, b)) {
                View::Whole(t) => return Ok(Confirmed::Exact(t)),
                View::Unbuilt => return Ok(Confirmed::Unbuilt),
                // A writer locked and wrote between the two; or the cell has other capacity or another owner now.
                View::Torn if backoff.steps() >= 3 => return Ok(Confirmed::Odd),
                View::Torn => backoff.step().await?,
            }
            self.retried.set(true);
        }
    }

    /// READs a leaf until its image is whole. A leaf of another capacity than expected is read again in full.
    pub(crate) async fn read_leaf(&self, addr: GlobalAddr, capacity: usize) -> Result<LeafCopy> {
        let g = &self.node.g;
        let mut capacity = capacity;
        let mut backoff = self.ep.backoff("leaf being written", addr);
        loop {
            self.ep.step(Step::Structure);
            let bytes = self.ep.read(addr, g.leaf_image(capacity) as u32).await?;
            self.ep.stage_cost(Stage::NodeImage, capacity as u32);
            let known = bytes.extract(|b| check_header(g, addr, b).map(|h| (h.slots, h.level)));
            if let Some((slots, 0)) = known
                && slots != capacity
                && self.node.is_capacity(slots)
            {
                Mark::LeafCapacity.hit();
                capacity = slots;
                continue;
            }
            let whole = bytes.check(|b| {
                let mixed = self.node.has(Mutant::LeafMixed);
                let header = check_slots(g, addr, b, (capacity, mixed), |_, _| ());
                header.filter(|h| h.slots == capacity).map(|_| ()).ok_or(())
            });
            if let Ok(((), bytes)) = whole {
                return Ok(LeafCopy { addr, capacity, bytes });
            }
            Mark::LeafTorn.hit();
            self.retried.set(true);
            self.wait_for_leaf(&mut backoff, addr, HELP_AFTER).await?;
        }
    }

    /// Between two looks at a leaf that somebody is changing. After `patience` looks he may be dead, and who looks repairs what he left;
    /// after many the repair may need memory that is lost. Meanwhile tables may move: the repair itself may have to wait for that.
    pub(crate) async fn wait_for_leaf(
        &self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        leaf: GlobalAddr,
        patience: u32,
    ) -> Result<()> {
        if backoff.steps() >= patience {
            Box::pin(self.help_leaf(leaf)).await?;
        }
        if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
            Box::pin(self.diagnose_stall(leaf)).await?;
        }
        self.pass();
        backoff.step().await
    }

    /// The bytes of a fence; `None` is the right end.
    pub(crate) async fn fence_bytes(&self, stored: Stored<'_>) -> Result<Option<Vec<u8>>> {
        self.fence_in(stored, Validation::Held).await
    }

    pub(crate) async fn fence_in(
        &self,
        stored: Stored<'_>,
        trust: Validation,
    ) -> Result<Option<Vec<u8>>> {
        match stored {
            Stored::Inline(bytes) => Ok(Some(bytes.to_vec())),
            Stored::Infinite => Ok(None),
            Stored::Block(at) => {
                Mark::FenceBlock.hit();
                let mut key = Vec::new();
                match self.block_in(at, trust, |k, _| key.extend_from_slice(k)).await? {
                    true => Ok(Some(key)),
                    false => Err(Error::corrupt(format!(
                        "the block of a fence at {} is garbage",
                        at.addr()
                    ))),
                }
            }
        }
    }

    /// READs a block and calls `f` with its key and value; false when the bytes are no block (any more).
    pub(crate) async fn read_block(
        &self,
        at: BlockPtr,
        f: impl FnOnce(&[u8], &[u8]),
    ) -> Result<bool> {
        self.block_in(at, Validation::Held, f).await
    }

    async fn block_in(
        &self,
        at: BlockPtr,
        trust: Validation,
        f: impl FnOnce(&[u8], &[u8]),
    ) -> Result<bool> {
        if at.is_null() {
            return Ok(false);
        }
        self.ep.step(Step::Entry);
        let bytes = match trust {
            Validation::Held => self.ep.read(at.addr(), at.capacity()).await?,
            Validation::Unvalidated => self.ep.read_unvalidated(at.addr(), at.capacity()).await?,
        };
        let whole = bytes.extract(|b| block::check(at, b).map(|(k, v)| f(k, v)).is_some());
        if !whole {
            Mark::BlockGone.hit();
        }
        Ok(whole)
    }

    /// A fence area for a key; a key that does not fit gets a block, filled in `later` to be written before the fence is.
    pub(crate) async fn fence_area(
        &self,
        key: &[u8],
        later: &mut Vec<(BlockPtr, dmtree_fabric::Buf)>,
    ) -> Result<FenceArea> {
        let g = &self.node.g;
        if let Some(area) = FenceArea::inline(g, key) {
            return Ok(area);
        }
        let (at, buf) = self.new_block(key, &[], None).await?;
        later.push((at, buf));
        let mut bytes = vec![0; g.k];
        let hash = dmtree_parts::hash::KeyHash::of(key);
        let mode = crate::format::area::put_key_block(&mut bytes, key, hash, at);
        Ok(FenceArea { bytes, mode })
    }

    /// A filled, unwritten block.
    pub(crate) async fn new_block(
        &self,
        key: &[u8],
        value: &[u8],
        near: Option<dmtree_fabric::NodeId>,
    ) -> Result<(BlockPtr, dmtree_fabric::Buf)> {
        let len = block::bytes(key.len(), value.len());
        let (index, spare) = (self.node.root.index, self.spare.get());
        let at = self.node.pool.alloc_block_of(&self.ep, (index, len), near, spare).await?;
        let mut buf = match self.ep.buf(len).await {
            Ok(buf) => buf,
            Err(e) => {
                self.node.pool.give_back_block(self.node.root.index, at);
                return Err(e);
            }
        };
        block::fill(at, &mut buf, key, value);
        Ok((at, buf))
    }

    /// Writes blocks that nobody points to yet.
    pub(crate) async fn write_blocks(
        &self,
        blocks: &mut Vec<(BlockPtr, dmtree_fabric::Buf)>,
    ) -> Result<()> {
        for (at, buf) in blocks.drain(..) {
            self.ep.write(at.addr(), buf).await?;
        }
        Ok(())
    }

    /// Gives back blocks that nobody points to.
    pub(crate) fn forget_blocks(&self, blocks: Vec<(BlockPtr, dmtree_fabric::Buf)>) {
        for (at, _) in blocks {
            self.node.pool.give_back_block(self.node.root.index, at);
        }
    }
}

/// So many looks at a torn image, and its writer may be dead.
pub(crate) const HELP_AFTER: u32 = 6;

/// Whether an error says that a node is dead or cut off, so that another way, or another time, may do.
pub(crate) fn is_away(e: &Error) -> bool {
    e.kind() == dmtree_fabric::ErrorKind::Unreachable
}

impl LeafCopy {
    /// The header of an accepted leaf.
    pub fn header(&self, c: &DmTree) -> Header<'_> {
        check_header(&c.node.g, self.addr, &self.bytes).expect("accepted")
    }

    /// Slot `i` of an accepted leaf.
    pub fn slot(&self, c: &DmTree, i: usize) -> Slot<'_> {
        let g = &c.node.g;
        let at = g.slot_at(i);
        let bytes = &self.bytes[at..at + g.entry()];
        slot::check(g, Place { leaf: self.addr, slot: i }, bytes).expect("accepted")
    }

    /// The live slots.
    pub fn live<'a>(&'a self, c: &'a DmTree) -> impl Iterator<Item = (usize, Slot<'a>)> {
        (0..self.capacity).map(|i| (i, self.slot(c, i))).filter(|(_, s)| s.state == State::Live)
    }
}
