//! A client: one slot's view of the index, and the verbs that all operations share.
//!
//! *Operations, pins and locks* are those of `parts::held`: `op` lists the locks that the running
//! operation holds or tries for. What is left of them at its end becomes an abandoned lock of the
//! node (`recover_lock.rs`).
//!
//! *Lease.* `check_lease` comes before each WRITE of a protocol step under a lock, and before an
//! answer that no memory node has confirmed. `check_lease_untouched` says in its error that nothing
//! has changed, so that the caller may give the lock back.
//!
//! *Confirmation.* `[CAS lock 0->0, READ table]`: the CAS proves that the lock was free at that
//! instant, and the READ executes behind it. By F the table is then exact at the CAS, or at a later
//! WRITE within the operation.
//!
//! *Images.* `read_leaf` returns a leaf only when header and slots carry one version (S); a torn
//! image is READ again, with pauses, and repaired after `HELP_AFTER` READs when its writer has
//! died. Blocks carry a checksum over their address, so a reused block is refused.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::verb::{cas, read};
use dmtree_fabric::{Endpoint, Error, GlobalAddr, Result, Stage, Step, Verified};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::held::{Pinned, RemoteLock, Running};
use dmtree_parts::op::Hits;
use dmtree_pool::{BlockPtr, TableId};

use crate::direct::MAX_ENTRY;
use crate::format::area::Stored;
use crate::format::block;
use crate::format::leaf::{FenceArea, Header, check_header, check_slots, unchecked_header};
use crate::format::slot::{self, Place, Slot, SlotState};
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
    pub(crate) op: Running<DmNode>,
    pub(crate) leaf_hook: Rc<UnlockHook>,
    pub(crate) inner_hook: Rc<UnlockHook>,
    tag_base: u64,
    acquisitions: Cell<u16>,
    /// Memory of the last write, for the next one: the value that it found, and its table.
    pub(crate) found: Cell<Vec<u8>>,
    pub(crate) table: Cell<Option<Box<Table>>>,
    /// The current operation replaces a value in a full pool: it may use the reserved block.
    pub(crate) spare: Cell<bool>,
    pub(crate) hits: Hits,
    /// Point operations may execute on memory of this process (`direct.rs`).
    pub(crate) is_direct: bool,
}

impl std::fmt::Debug for DmTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmTree({:?})", self.ep)
    }
}

/// A key with its hash.
pub(crate) type HashedKey<'k> = (&'k [u8], KeyHash);

/// A lock that an operation holds: its tag, and what it locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    pub tag: LockTag,
    pub on: Lockable,
}

/// Objects that a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockable {
    Leaf(Route),
    Inner(GlobalAddr),
    /// A lock word of a memory node: its tag says more.
    Word(GlobalAddr),
}

impl RemoteLock for HeldLock {
    type Tag = LockTag;
    type Key = (u64, u64);

    fn tag(&self) -> LockTag {
        self.tag
    }

    /// The tag, and the word where one tag may be that of many words.
    fn key(&self) -> (u64, u64) {
        match self.on {
            Lockable::Word(at) => (self.tag.0, at.bits()),
            Lockable::Leaf(_) | Lockable::Inner(_) => (self.tag.0, 0),
        }
    }
}

/// Whether the object that a pointer names is protected while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    /// It was reachable, or locked, in this operation.
    Held,
    /// The pointer comes from a node that may be a tombstone for long: the bytes may be reused.
    Unvalidated,
}

/// A leaf, as a route names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub leaf: GlobalAddr,
    pub generation: u16,
    pub table: TableId,
    pub capacity: usize,
    /// Tag of the upper fence that the parent implies.
    pub fence: u32,
}

impl Route {
    /// Whether a table belongs to this leaf, in this generation, with this range.
    pub fn matches(&self, t: &Table) -> bool {
        !t.closed
            && t.leaf == self.leaf
            && t.ver.generation == self.generation
            && t.fence == self.fence
    }
}

/// Result of confirming a route at its table's owner.
pub(crate) enum Confirmed {
    /// The lock was free: the table is exact.
    Exact(Table),
    /// The lock was free, and the table was never written since its cell was zeroed: its owner is
    /// new.
    Unbuilt,
    /// No table can be read: its owner is away, or the cell holds no (whole) table.
    Odd,
    /// Another client holds the lock.
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
        ep.set_attached_only(!node.o.techniques.round_trip_combining);
        let op = Running::new(&ep, &node);
        let leaf_hook = UnlockHook::of(&node, &node.leaf_fifo);
        op.epoch().used_by(&ep);
        ep.prefetch(&*leaf_hook);
        Self {
            op,
            leaf_hook,
            inner_hook: UnlockHook::of(&node, &node.inner_fifo),
            tag_base: u64::from(ep.node().bits()) << 48
                | u64::from(incarnation) << 32
                | u64::from(client) << 16,
            acquisitions: Cell::new(0),
            found: Cell::default(),
            table: Cell::default(),
            spare: Cell::new(false),
            hits: Hits::new(&node.lookups),
            is_direct: ep.is_direct() && node.has_tables() && node.g.entry() <= MAX_ENTRY,
            ep,
            node,
        }
    }

    /// An operation begins.
    pub(crate) fn pin(&self) -> Pinned<'_, DmNode> {
        match self.node.has(Mutant::NoEpoch) {
            false => self.op.pin(),
            true => self.op.unannounced(),
        }
    }

    /// The operation holds this lock from now on.
    pub(crate) fn hold(&self, tag: LockTag, on: Lockable) {
        self.op.hold(HeldLock { tag, on });
        if self.node.has(Mutant::MoveWhileLocked) {
            self.op.epoch().quiescent_point();
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

    /// Memory for a table, reused.
    pub(crate) fn spare_table(&self) -> Box<Table> {
        self.table.take().unwrap_or_default()
    }

    /// The memory of [`DmTree::spare_table`] is not used any more.
    pub(crate) fn keep_table(&self, table: Box<Table>) {
        self.table.set(Some(table));
    }

    /// A tag that this client never used before, except by wrap-around of its counter; never 0.
    pub(crate) fn next_tag(&self) -> LockTag {
        let n = self.acquisitions.get().wrapping_add(1);
        self.acquisitions.set(n);
        LockTag(self.tag_base | u64::from(n))
    }

    /// Takes a lock and reads what it covers: one round trip, or two where round-trip combining is
    /// off.
    pub(crate) async fn cas_and_read(
        &self,
        lock: GlobalAddr,
        tags: (u64, u64),
        body: GlobalAddr,
        len: usize,
    ) -> Result<(u64, dmtree_fabric::Sampled)> {
        if self.node.o.techniques.round_trip_combining {
            return self.ep.chain((cas(lock, tags.0, tags.1), read(body, len as u32))).await;
        }
        let was = self.ep.cas(lock, tags.0, tags.1).await?;
        Ok((was, self.ep.read(body, len as u32).await?))
    }

    /// [`DmTree::cas_and_read`] for a lock that is to become this operation's.
    pub(crate) async fn try_for(
        &self,
        h: HeldLock,
        word: (GlobalAddr, u64),
        body: GlobalAddr,
        len: usize,
    ) -> Result<(u64, dmtree_fabric::Sampled)> {
        let (at, was, tag) = (word.0, word.1, h.tag.0);
        let verbs = async {
            match self.node.has(Mutant::LockBesideRead) {
                false => self.cas_and_read(at, (was, tag), body, len).await,
                true => self.ep.batch((cas(at, was, tag), read(body, len as u32))).await,
            }
        };
        self.op.try_for(&[h], verbs).await
    }

    /// `[CAS lock 0->0, READ table]`: when the lock was free at the CAS, the table is exact at that
    /// instant or at a later one of this operation.
    pub(crate) async fn confirm(&self, table: TableId, capacity: usize) -> Result<Confirmed> {
        // The owner is dead or cannot be reached: the leaf answers instead.
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
                // A writer locked and wrote between the two verbs, or the cell has another capacity
                // or owner now.
                View::Torn if backoff.steps() >= 3 => return Ok(Confirmed::Odd),
                View::Torn => backoff.step().await?,
            }
            self.op.retried.set(true);
        }
    }

    /// READs a leaf until its image is whole. A leaf of another capacity than expected is read
    /// again in full.
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
            self.op.retried.set(true);
            self.wait_for_leaf(&mut backoff, addr, HELP_AFTER).await?;
        }
    }

    /// Pauses between two READs of a leaf that another client is changing. After `patience` READs
    /// the writer may be dead, and the reader repairs the leaf. After many more the repair may need
    /// memory that is lost. The pause is a quiescent point for moving tables, because the repair
    /// itself may have to wait for one.
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
        self.op.quiescent_point();
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

    /// READs a block and calls `f` with its key and value; false when the bytes are no block (any
    /// more).
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

    /// A fence area for a key. A key that does not fit gets a block, pushed to `later`: it must be
    /// written before the fence.
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

    /// Writes blocks that nothing points to yet.
    pub(crate) async fn write_blocks(
        &self,
        blocks: &mut Vec<(BlockPtr, dmtree_fabric::Buf)>,
    ) -> Result<()> {
        for (at, buf) in blocks.drain(..) {
            self.ep.write(at.addr(), buf).await?;
        }
        Ok(())
    }

    /// Gives back blocks that nothing points to.
    pub(crate) fn forget_blocks(&self, blocks: Vec<(BlockPtr, dmtree_fabric::Buf)>) {
        for (at, _) in blocks {
            self.node.pool.give_back_block(self.node.root.index, at);
        }
    }
}

/// After this many READs of a torn image its writer may be dead.
pub(crate) const HELP_AFTER: u32 = 6;

/// Whether an error says that a node is dead or cut off, so that another path, or a later try, may
/// succeed.
pub(crate) fn is_away(e: &Error) -> bool {
    e.kind() == dmtree_fabric::ErrorKind::Unreachable
}

impl LeafCopy {
    /// The header of an accepted leaf.
    pub fn header(&self, c: &DmTree) -> Header<'_> {
        debug_assert!(check_header(&c.node.g, self.addr, &self.bytes).is_some());
        unchecked_header(&c.node.g, &self.bytes).expect("accepted")
    }

    /// Slot `i` of an accepted leaf.
    pub fn slot(&self, c: &DmTree, i: usize) -> Slot<'_> {
        let g = &c.node.g;
        let at = g.slot_at(i);
        let bytes = &self.bytes[at..at + g.entry()];
        debug_assert!(slot::check(g, Place { leaf: self.addr, slot: i }, bytes).is_some());
        slot::unchecked(g, bytes).expect("accepted")
    }

    /// The live slots.
    pub fn live<'a>(&'a self, c: &'a DmTree) -> impl Iterator<Item = (usize, Slot<'a>)> {
        (0..self.capacity).map(|i| (i, self.slot(c, i))).filter(|(_, s)| s.state == SlotState::Live)
    }
}
