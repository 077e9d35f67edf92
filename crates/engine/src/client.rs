//! A client: one slot's view of the index, and the verbs that all operations share.
//!
//! *Operations, pins and locks* are those of `parts::held`: `op` lists the locks that the running
//! operation holds or tries for. What is left of them at its end becomes an abandoned lock of the
//! node (`recovery/locks.rs`).
//!
//! *Lease.* `check_lease` comes before each WRITE of a protocol step under a lock, and before an
//! answer that no memory node has confirmed. `check_lease_untouched` says in its error that nothing
//! has changed, so that the caller may give the lock back.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::verb::{After, Atomic, Single, cas, read};
use dmtree_fabric::{DirectOp, Endpoint, Error, GlobalAddr, OpKind, Result, Sampled};
use dmtree_parts::held::{Pinned, Running};
use dmtree_parts::maintenance::Maintained;
use dmtree_parts::op::Hits;
use dmtree_pool::TableId;

use crate::format::{Child, LockTag, Table, table};
use crate::lock::{HeldLock, Lockable, Tags, UnlockHook};
use crate::point::MAX_ENTRY;
use crate::scan::Collected;
use crate::{Chore, DmNode, KeyHash, Mutant};

/// What every part of the protocol needs: the endpoint, the state of the compute node, and the
/// running operation.
pub(crate) struct Client {
    pub ep: Endpoint,
    pub node: Arc<DmNode>,
    pub op: Running<DmNode>,
    pub leaf_hook: Rc<UnlockHook>,
    pub inner_hook: Rc<UnlockHook>,
    pub tags: Tags,
    /// Memory of the last write, for the next one: the value that it found, and its table.
    pub found: Cell<Vec<u8>>,
    /// Whether the last write has found its key.
    pub had: Cell<bool>,
    /// The running write joins no group: its caller wants to know what it has found.
    pub alone: Cell<bool>,
    table: Cell<Option<Box<Table>>>,
    /// Memory of the last leaf that a scan has read.
    collected: Cell<Option<Box<Collected>>>,
    /// The current operation replaces a value in a full pool: it may use the reserved block.
    pub spare: Cell<bool>,
    pub hits: Hits,
    /// Bytes of an entry, and where the first one is in a leaf: every operation needs both.
    pub entry: usize,
    pub first_entry: usize,
    /// Point operations may execute on memory of this process (`point/direct.rs`).
    pub is_direct: bool,
}

/// A key with its hash.
pub(crate) type HashedKey<'k> = (&'k [u8], KeyHash);

/// A key with its hash, and a value.
pub(crate) type KeyValue<'k> = (&'k [u8], KeyHash, &'k [u8]);

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
    /// The leaf, as its parent names it.
    pub fn child(&self) -> Child {
        let Self { leaf: addr, generation, table, capacity: slots, .. } = *self;
        Child { addr, generation, table, slots }
    }

    /// Whether the table's cell has an image of the leaf, too: then the leaf is read there.
    #[inline]
    pub fn is_imaged(&self) -> bool {
        self.table.lines() > table::lines(self.capacity)
    }

    /// Whether a table belongs to this leaf, in this generation, with this range.
    #[inline]
    pub fn matches(&self, t: &Table) -> bool {
        !t.closed && self.is_of(t) && t.fence == self.fence
    }

    /// Whether a table belongs to this leaf, in this generation.
    #[inline]
    pub fn is_of(&self, t: &Table) -> bool {
        t.leaf == self.leaf && t.ver.generation == self.generation
    }
}

/// Whether an error says that a node is dead or cut off, so that another path, or a later try, may
/// succeed.
pub(crate) fn is_away(e: &Error) -> bool {
    e.kind() == dmtree_fabric::ErrorKind::Unreachable
}

/// The result of a step; `None` when a node that it needs is dead or cut off.
pub(crate) fn reached<T>(step: Result<T>) -> Result<Option<T>> {
    match step {
        Err(e) if is_away(&e) => Ok(None),
        done => done.map(Some),
    }
}

impl Client {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<DmNode>) -> Self {
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        ep.set_attached_only(!node.o.techniques.round_trip_combining);
        let op = Running::new(&ep, &node);
        let leaf_hook = UnlockHook::of(&node, &node.leaf_fifo);
        op.epoch().used_by(&ep);
        ep.prefetch(&*leaf_hook);
        let hits = Hits::new(&node.lookups);
        if let Some(admission) = &node.admission {
            hits.set_period(admission.period(node.cache.nodes()));
        }
        Self {
            op,
            leaf_hook,
            inner_hook: UnlockHook::of(&node, &node.inner_fifo),
            tags: Tags::new(&ep, &node),
            found: Cell::default(),
            had: Cell::default(),
            alone: Cell::default(),
            table: Cell::default(),
            collected: Cell::default(),
            spare: Cell::new(false),
            hits,
            entry: node.g.entry(),
            first_entry: node.g.slot_at(0),
            is_direct: ep.is_direct()
                && node.has_tables()
                && !node.has_images()
                && node.g.entry() <= MAX_ENTRY,
            ep,
            node,
        }
    }

    /// An operation begins.
    ///
    /// # Errors
    /// `Closed` when the index was dropped.
    pub(crate) fn pin(&self) -> Result<Pinned<'_, DmNode>> {
        match self.node.has(Mutant::NoEpoch) {
            false => self.op.pin(),
            true => Ok(self.op.unannounced()),
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

    /// The cell of a table; `None` while its owner is dead or cut off.
    pub(crate) async fn cell(&self, table: TableId) -> Result<Option<GlobalAddr>> {
        match self.node.pool.resolve_cached(table) {
            None => reached(self.node.pool.resolve(&self.ep, table).await),
            known => Ok(known),
        }
    }

    /// Memory for a table, reused.
    #[inline]
    pub(crate) fn spare_table(&self) -> Box<Table> {
        self.table.take().unwrap_or_default()
    }

    /// The memory of [`Client::spare_table`] is not used any more.
    #[inline]
    pub(crate) fn keep_table(&self, table: Box<Table>) {
        self.table.set(Some(table));
    }

    /// Memory for what is found in a leaf; that of the last one if there is one.
    #[inline]
    pub(crate) fn spare_collected(&self) -> Box<Collected> {
        self.collected.take().unwrap_or_default()
    }

    /// The memory of [`Client::spare_collected`] is not used any more.
    #[inline]
    pub(crate) fn keep_collected(&self, found: Box<Collected>) {
        self.collected.set(Some(found));
    }

    /// Takes a lock and reads what it covers: one round trip, or two where round-trip combining is
    /// off.
    pub(crate) async fn cas_and_read(
        &self,
        lock: GlobalAddr,
        tags: (u64, u64),
        body: GlobalAddr,
        len: usize,
    ) -> Result<(u64, Sampled)> {
        if self.node.o.techniques.round_trip_combining {
            return self.ep.chain((cas(lock, tags.0, tags.1), read(body, len as u32))).await;
        }
        let was = self.ep.cas(lock, tags.0, tags.1).await?;
        Ok((was, self.ep.read(body, len as u32).await?))
    }

    /// Takes a lock that is to become this operation's, as [`Client::cas_and_read`]. Several READs
    /// have no order between them: no other client may change what they cover while the lock is
    /// held.
    pub(crate) async fn try_for<R: Single + After<Atomic>>(
        &self,
        h: HeldLock,
        (at, was): (GlobalAddr, u64),
        reads: R,
    ) -> Result<(u64, R::Out)> {
        let (op, ep, take) = (&self.op, &self.ep, cas(at, was, h.tag.0));
        if self.node.has(Mutant::LockBesideRead) {
            return op.try_for(&[h], ep.batch((take, reads))).await;
        }
        if self.node.o.techniques.round_trip_combining {
            return op.try_for(&[h], ep.chain((take, reads))).await;
        }
        let apart = async { Ok((ep.batch(take).await?, ep.batch(reads).await?)) };
        op.try_for(&[h], apart).await
    }

    /// An operation that runs here if all goes well.
    #[inline]
    pub(crate) fn begin_direct(&self, kind: OpKind) -> Option<DirectOp<'_>> {
        let may = self.is_direct && self.node.is_sound() && !self.node.abandoned_locks.any();
        if may { self.ep.begin_direct(kind) } else { None }
    }

    /// With its mutant only.
    pub(crate) async fn stop_for_death(&self) {
        while self.node.has(Mutant::StopForDeath)
            && !self.node.pool.membership().has_settled_membership()
        {
            self.ep.sleep(100_000).await;
        }
    }

    /// An unlock is in flight, or has ended: its hook records the abandoned lock, if any.
    pub(crate) fn released(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        self.op.let_go(tag);
        match done {
            Err(e) if is_away(&e) => Ok(()),
            done => done,
        }
    }

    /// An awaited unlock that has failed leaves an abandoned lock, and does not undo what the
    /// operation has achieved. Either the owner is dead (then its lock is moot), or another client
    /// finds the lock and repairs the table. The operation does not hold the lock any more: when it
    /// continues and waits, tables may move.
    pub(crate) fn unlocked(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        match done {
            Err(e) if is_away(&e) => {
                self.op.give_up(tag);
                Ok(())
            }
            Err(e) => Err(e),
            Ok(()) => {
                self.op.let_go(tag);
                Ok(())
            }
        }
    }

    /// Work that maintenance finds when it does not end; `None` for work that is found anyway.
    pub(crate) fn begun(
        &self,
        chore: impl Into<Option<Chore>>,
    ) -> dmtree_parts::maintenance::Begun<'_, DmNode> {
        self.node.begun(chore)
    }
}
