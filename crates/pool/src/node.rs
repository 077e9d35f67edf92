//! One compute node's share in the pool: what its clients allocate from. All clients of the node
//! share it, from any thread.
//!
//! Allocations take memory in the order that `obtain.rs` states.
//!
//! Invariants. Every grant and every return is logged for garbage collection (`gc_log.rs`), and
//! announced to fabrics that check accesses. A turn is passed on by a guard, so a dropped future
//! passes it on too. Memory on its way between holders belongs to an operation of its own
//! ([`PoolNode::begin_transfer`]), because the barriers of garbage collection wait for operations.
//! What comes back from outside is checked against the layout: implausible items are counted
//! (`refused`) and left alone.
//!
//! Crashes. All of this is volatile. The chunk records on the memory nodes name this node and its
//! incarnation, and garbage collection finds what it held. A future that is dropped between a grant
//! and its arrival loses the grant until then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Fabric, GlobalAddr, Member, MemberPhase, Membership, NodeId,
    Result, Role, ShadowState, golden_hash,
};

use crate::arena::{Arena, ArenaKey, Grant};
use crate::blocks::{BlockRequest, BlockSpace};
use crate::catalog::Catalog;
use crate::creation::Creations;
use crate::creation::Tickets;
use crate::epoch::{EpochHandle, Epochs};
use crate::free_lists::{KnownTables, Tables};
use crate::gates::{Gate, Gates, Ungated};
use crate::gc::GarbageCollection;
use crate::gc_log::{GcLog, Span};
use crate::ids::{BLOCK_MAX_BYTES, BlockPtr, TableId, block_class_of};
use crate::images::ImageCells;
use crate::layout::{WAIT_GROUP_WORDS, WAIT_GROUPS, WAIT_WORDS};
use crate::membership_agent::AgentState;
use crate::membership_agent::Heartbeat;
use crate::membership_agent::PoolMembership;
use crate::mutants::{Mutant, Mutants};
use crate::obtain::Supply;
use crate::owners::OwnerService;
use crate::pieces::Wanted;
use crate::reassign::Partitions;
use crate::reclaim::{LimboList, Reclaimer, Retired};
use crate::refill::JournalNodes;
use crate::reports::IndexReports;
use crate::services::{IndexServices, OpenIndexes};
use crate::shape::Shape;
use crate::transit::Transfer;
use crate::view::View;
use crate::wire::locked;

/// One compute node's share in the pool. All clients of the node share it, from any thread. What
/// asks or reads memory nodes fails as their fabric does, too.
pub struct PoolNode {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) cn: NodeId,
    pub(crate) incarnation: u32,
    pub(crate) shape: Arc<Shape>,
    pub(crate) arenas: Mutex<BTreeMap<ArenaKey, Arc<Arena>>>,
    pub(crate) blocks: Mutex<BTreeMap<u32, Arc<BlockSpace>>>,
    pub(crate) tables: Tables,
    pub(crate) view: View,
    pub(crate) membership: Arc<dyn Membership>,
    pub(crate) agent_state: Mutex<AgentState>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) limbo_list: LimboList,
    pub(crate) gc_log: Arc<GcLog>,
    pub(crate) gates: Arc<Gates>,
    /// Indexes that this incarnation is creating.
    pub(crate) creating: Arc<Tickets>,
    /// Things given back or retired that cannot have been granted: counted, and left alone.
    pub(crate) refused: AtomicUsize,
    /// How often the cell cache was empty.
    cells_asked: AtomicUsize,
    /// By memory node that was found full: how many requests for a chunk near it go elsewhere at
    /// once.
    pub(crate) found_full: Mutex<BTreeMap<usize, usize>>,
    /// Serves the tables that this node owns.
    pub(crate) owners: Arc<OwnerService>,
    mutants: Mutants,
    /// What answers calls for the indexes that are open here.
    pub(crate) indexes: Arc<OpenIndexes>,
    /// For the status of the pool.
    pub(crate) index_reports: Mutex<Option<IndexReports>>,
}

/// Cells without an owner that a request puts aside before it fails.
const MAX_UNOWNED: usize = 1 << 16;
/// One time in so many that the cell cache is empty, the node asks for deposited cells.
const ASK_FOR_CELLS: usize = 16;

dmtree_fabric::debug_line!(PoolNode, it => "PoolNode({})", it.cn);

impl PoolNode {
    /// The indexes of a pool: their names, and what is left of those that were dropped.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog(self)
    }

    /// Indexes that come into being.
    pub fn creations(self: &Arc<Self>) -> Creations<'_> {
        Creations(self)
    }

    /// Garbage collections, and the lists that they ask for.
    pub fn collection(&self) -> GarbageCollection<'_> {
        GarbageCollection(self)
    }

    /// Memory that a node takes from memory nodes and from other nodes, and hands in.
    pub fn supply(&self) -> Supply<'_> {
        Supply(self)
    }

    /// The cells with images that it grants.
    pub fn images(&self) -> ImageCells<'_> {
        ImageCells(self)
    }

    /// Reclamation of what was retired.
    pub fn reclaimer(&self) -> Reclaimer<'_> {
        Reclaimer(self)
    }

    /// A node as a member of its pool.
    pub fn membership(&self) -> PoolMembership<'_> {
        PoolMembership(self)
    }

    /// Owners of fingerprint tables, and new owners when one dies or leaves.
    pub fn partitions(&self) -> Partitions<'_> {
        Partitions(self)
    }

    /// The journal nodes of a pool.
    pub fn journal(&self) -> JournalNodes<'_> {
        JournalNodes(self)
    }

    /// Calls between compute nodes for an index.
    pub fn services(&self) -> IndexServices<'_> {
        IndexServices(self)
    }

    /// Registers a worker thread: it calls [`Heartbeat::beat`] all the time.
    pub fn heartbeat(self: &Arc<Self>) -> Heartbeat {
        Heartbeat::of(self)
    }

    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        cn: NodeId,
        shape: Arc<Shape>,
        (epochs, owners): (Arc<Epochs>, Arc<OwnerService>),
        membership: Arc<dyn Membership>,
    ) -> Self {
        let incarnation = fabric.incarnation(cn).unwrap_or(0);
        let tables = Tables::new(cn, &shape);
        Self {
            fabric,
            cn,
            incarnation,
            shape,
            arenas: Mutex::default(),
            blocks: Mutex::default(),
            tables,
            view: View::new(Member { node: cn, incarnation }),
            membership,
            agent_state: Mutex::default(),
            epochs,
            limbo_list: LimboList::default(),
            gc_log: owners.images().gc_log().clone(),
            gates: Arc::default(),
            creating: Arc::default(),
            refused: AtomicUsize::new(0),
            cells_asked: AtomicUsize::new(0),
            found_full: Mutex::default(),
            owners,
            mutants: Mutants::default(),
            indexes: Arc::default(),
            index_reports: Mutex::default(),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// How many memory nodes the pool was founded with: what an index places by their number stays
    /// where it is when the pool grows.
    pub fn memory_nodes(&self) -> usize {
        self.shape.founded.len()
    }

    /// Which compute node this is.
    pub fn cn(&self) -> NodeId {
        self.cn
    }

    /// An endpoint of this node for the present thread, with an executor of its own.
    ///
    /// # Errors
    /// `Revoked` when the node has lost its membership.
    pub fn endpoint(&self, slab_bytes: u64) -> Result<Endpoint> {
        Ok(Endpoint::alone(self.fabric.attach(self.cn)?, slab_bytes))
    }

    /// The member that this is: node and incarnation.
    pub fn member(&self) -> Member {
        self.view.me
    }

    /// Fails when this node's lease has ended by its own clock: it must not write under a lock
    /// then, nor believe its own tables. No verb; a load while there is no membership.
    ///
    /// # Errors
    /// `Revoked`.
    #[inline]
    pub fn check_lease(&self, ep: &Endpoint) -> Result<()> {
        self.view.check_lease(ep)
    }

    /// The same for an operation that has changed nothing yet: its error says that there is no
    /// effect.
    ///
    /// # Errors
    /// `Revoked`.
    #[inline]
    pub fn check_lease_untouched(&self, ep: &Endpoint) -> Result<()> {
        self.view.check_lease_untouched(ep)
    }

    /// Whether a node, in the incarnation with a number that ends in these 16 bits, is dead and no
    /// verb of it executes at any node any more: its locks may be taken over.
    pub fn is_revoked(&self, node: NodeId, incarnation: u16) -> bool {
        let latest = self.view.state().incarnation_of(node, incarnation);
        latest.is_some_and(|m| self.view.is_revoked(m))
    }

    /// Whether a node, in the incarnation with a number that ends in these 16 bits, has lost its
    /// lease. Its verbs in flight may still execute: for checkers only.
    #[doc(hidden)]
    pub fn is_suspected(&self, node: NodeId, incarnation: u16) -> bool {
        let state = self.view.state();
        let latest = state.incarnation_of(node, incarnation);
        latest.is_some_and(|m| state.phase(m) != Some(MemberPhase::Living))
    }

    /// A client's announcement of its operations; one per client.
    pub fn register(&self) -> EpochHandle {
        self.epochs.register()
    }

    /// The gate of an index on this node: every operation looks at it behind its announcement.
    pub fn gate(&self, index: u32) -> Arc<Gate> {
        self.gates.of(index)
    }

    /// Opens an index in a design that does not announce its operations: while it is open, its
    /// memory stays its own when it is dropped.
    ///
    /// # Errors
    /// `Closed` when it was dropped.
    pub fn open_ungated(&self, index: u32) -> Result<Ungated> {
        self.gates.open_ungated(index)
    }

    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        self.mutants.has(mutant)
    }

    // ---- objects ----------------------------------------

    /// An arena, made when it is first asked for.
    pub fn arena(&self, key: ArenaKey) -> Arc<Arena> {
        let object_bytes = key.object_bytes.clamp(1, 1 << 30).next_multiple_of(64);
        let key = ArenaKey { object_bytes, ..key };
        let mut arenas = locked(&self.arenas);
        let arena = arenas.entry(key).or_insert_with(|| {
            let (chunk, max_generation) = (self.shape.chunk_bytes, self.shape.max_generation);
            let start = self.cn.index() + usize::from(key.kind);
            Arc::new(Arena::new(key, self.shape.founded.len(), chunk, max_generation, start))
        });
        arena.clone()
    }

    /// A new object, near a memory node if it has room, elsewhere if not. Memory that no object of
    /// the arena used yet is zero and has generation 1.
    ///
    /// # Errors
    /// `Full` when no memory node has room, `InvalidArgument` for objects larger than a chunk;
    /// those of the fabric.
    pub async fn alloc(&self, ep: &Endpoint, arena: &Arena, near: Option<NodeId>) -> Result<Grant> {
        self.grant(ep, arena, self.supply().obtain(ep, arena, near)).await
    }

    /// A grant of an arena, obtained in some way.
    async fn grant(
        &self,
        ep: &Endpoint,
        arena: &Arena,
        obtained: impl Future<Output = Result<Grant>>,
    ) -> Result<Grant> {
        let bytes = u64::from(arena.key().object_bytes);
        self.check_fits("an object", bytes)?;
        ep.check_memory()?;
        let g = obtained.await?;
        self.gc_log.add(|| Span::object(g.addr, bytes));
        self.allocation_event(g.addr, bytes, ShadowState::Plain);
        Ok(g)
    }

    /// As [`PoolNode::alloc`], of what is here or what this memory node has now: it waits for no
    /// other client and for no other node.
    ///
    /// # Errors
    /// `Full` when there is none now; those of the fabric.
    pub async fn alloc_at_once(&self, ep: &Endpoint, arena: &Arena, of: NodeId) -> Result<Grant> {
        self.grant(ep, arena, self.supply().obtain_at_once(ep, arena, of)).await
    }

    /// Refuses what is larger than a chunk.
    pub(crate) fn check_fits(&self, what: &str, bytes: u64) -> Result<()> {
        let chunk = self.shape.chunk_bytes;
        if bytes <= chunk {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what} of {bytes} bytes does not fit a chunk of {chunk}: create the pool with larger chunks"
        )))
    }

    /// Returns an object that no other client can ever have reached: reusable at once, in its next
    /// generation.
    pub fn give_back(&self, arena: &Arena, g: Grant) {
        if g.generation == 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.take_back(arena, g);
    }

    /// The same for an object that was not written since it was granted: its generation stands
    /// nowhere, and is granted again.
    pub fn give_back_unwritten(&self, arena: &Arena, g: Grant) {
        match g.generation.checked_sub(1) {
            Some(generation) => self.take_back(arena, Grant { generation, ..g }),
            None => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// As [`PoolNode::give_back`]; generation 0 is that of an object that was never written.
    pub(crate) fn take_back(&self, arena: &Arena, g: Grant) {
        let bytes = u64::from(arena.key().object_bytes);
        if self.shape.holds(g.addr, bytes).is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.gc_log.add(|| Span::object(g.addr, bytes));
        self.allocation_event(g.addr, bytes, ShadowState::FreedTyped);
        arena.put(g);
    }

    /// Returns an object that no operation can reach from now on: reusable in its next generation
    /// when every operation that runs now has ended. The caller has awaited the verb that unlinked
    /// it. Any node may retire any node's objects.
    pub fn retire(&self, arena: &Arena, g: Grant) {
        let bytes = u64::from(arena.key().object_bytes);
        self.gc_log.add(|| Span::object(g.addr, bytes));
        self.limbo_list.push(Retired::Object(arena.key(), g), bytes);
    }

    // ---- blocks ----------------------------------------

    pub(crate) fn space(&self, index: u32) -> Arc<BlockSpace> {
        let mut blocks = locked(&self.blocks);
        let space = blocks.entry(index).or_insert_with(|| {
            let (nodes, chunk) = (self.shape.founded.len(), self.shape.chunk_bytes);
            Arc::new(BlockSpace::new(index, nodes, chunk, self.cn.index() % nodes))
        });
        space.clone()
    }

    /// A new block of at least `bytes`, contents undefined.
    ///
    /// # Errors
    /// `Full` when no memory node has room, `InvalidArgument` for 0 bytes or more than
    /// [`BLOCK_MAX_BYTES`]; those of the fabric.
    pub async fn alloc_block(
        &self,
        ep: &Endpoint,
        index: u32,
        bytes: u32,
        near: Option<NodeId>,
    ) -> Result<BlockPtr> {
        self.alloc_block_of(ep, (index, bytes), near, false).await
    }

    /// The same. With `spare`, for a value that takes the place of another, the last block that
    /// fits may be used, which other requests do not get: so a full pool can still be written to.
    pub async fn alloc_block_of(
        &self,
        ep: &Endpoint,
        (index, bytes): (u32, u32),
        near: Option<NodeId>,
        spare: bool,
    ) -> Result<BlockPtr> {
        let class = block_class_of(bytes).filter(|_| bytes > 0).ok_or_else(|| {
            Error::invalid(format!("a block has 1 to {BLOCK_MAX_BYTES} bytes, not {bytes}"))
        })?;
        ep.check_memory()?;
        let space = self.space(index);
        let request = BlockRequest { space: &space, class, shape: &self.shape, spare };
        let b = self.supply().obtain(ep, &request, near).await?;
        self.gc_log.add(|| Span::block(b));
        self.allocation_event(b.addr(), u64::from(b.capacity()), ShadowState::Undefined);
        Ok(b)
    }

    /// Returns a block that no other client can ever have reached: reusable at once.
    pub fn give_back_block(&self, index: u32, b: BlockPtr) {
        self.gc_log.add(|| Span::block(b));
        let layout = b
            .plausible()
            .and_then(|b| self.shape.holds(b.addr(), u64::from(b.capacity())))
            .filter(|layout| self.space(index).put(b, layout));
        match layout {
            Some(_) => self.allocation_event(b.addr(), u64::from(b.capacity()), ShadowState::Freed),
            None => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns a block that no operation can reach from now on: reusable when every operation that
    /// runs now has ended.
    pub fn retire_block(&self, index: u32, b: BlockPtr) {
        self.gc_log.add(|| Span::block(b));
        self.limbo_list.push(Retired::Block(index, b), u64::from(b.capacity()));
    }

    /// Takes space for blocks that was on no list.
    pub(crate) fn take_space(&self, index: u32, at: GlobalAddr, bytes: u64) {
        self.gc_log.add(|| Span::Bytes(at.bits(), bytes));
        let layout = self.shape.holds(at, bytes);
        match layout.is_some_and(|l| self.space(index).adopt(&l, at.offset(), bytes)) {
            true => self.allocation_event(at, bytes, ShadowState::Freed),
            false => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Tells fabrics that check accesses what a range of memory is from now on.
    pub(crate) fn allocation_event(&self, at: GlobalAddr, bytes: u64, now: ShadowState) {
        self.fabric.allocation_event(self.view.me, at, bytes, now);
    }

    /// An operation of its own for memory on its way from one holder to another: garbage collection
    /// waits for it.
    pub(crate) fn begin_transfer(&self) -> Transfer {
        let handle = self.epochs.register();
        handle.enter();
        Transfer(handle)
    }

    // ---- tables ----------------------------------------

    /// A new table cell of so many lines for an index. A fresh one is all zero; a reused one is as
    /// it was left. Cells with images (above [`TABLE_LINES`](crate::TABLE_LINES)) come from compute
    /// nodes that have room for images ([`ImageCells::give`]).
    ///
    /// # Errors
    /// `Full` when no node of the side (compute nodes: nor any memory node) has room,
    /// `InvalidArgument` for other sizes; those of the fabric.
    pub async fn alloc_table(
        &self,
        ep: &Endpoint,
        index: u32,
        lines: u8,
        side: Role,
    ) -> Result<TableId> {
        self.alloc_table_beside(ep, index, (lines, side), &[]).await
    }

    /// The same, at none of some owners: those that have not answered this client and are not known
    /// to be dead yet.
    pub async fn alloc_table_beside(
        &self,
        ep: &Endpoint,
        index: u32,
        (lines, side): (u8, Role),
        silent: &[NodeId],
    ) -> Result<TableId> {
        ep.check_memory()?;
        if lines > 0
            && self.tables.is_cache_empty((index, lines), side)
            && self.cells_asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(ASK_FOR_CELLS)
        {
            // Without them, owners give new ones.
            let _ = Box::pin(self.supply().take_left_cells(ep, index, lines)).await;
            if self.tables.is_cache_empty((index, lines), side)
                && self.tables.is_exhausted((index, lines), side)
            {
                // Before memory nodes give chunks for tables.
                Box::pin(self.supply().borrow(ep, Wanted::Cells(index, lines))).await;
            }
        }
        // The directory is READ once for each partition: one that is between owners stays so for
        // the rest of this request, however many of its cells are cached here.
        let (mut unowned, mut partitions) = (Vec::new(), BTreeSet::new());
        let found = loop {
            let t = match self.tables.alloc(ep, &self.view, (index, lines), (side, silent)).await {
                Ok(t) => t,
                Err(e) => break Err(e),
            };
            let partition = t.place().map(|(number, ..)| number);
            let known = partition.is_some_and(|number| partitions.contains(&number));
            if known && unowned.len() < MAX_UNOWNED {
                unowned.push(t);
                continue;
            }
            let away = match self.resolve(ep, t).await {
                Ok(at) if !silent.contains(&at.node()) => break Ok(t),
                Ok(at) => Error::unreachable(format!(
                    "{}, which owns the free tables, does not answer",
                    at.node()
                )),
                Err(e) => e,
            };
            unowned.push(t);
            if away.kind() != ErrorKind::Unreachable || unowned.len() > MAX_UNOWNED {
                break Err(away);
            }
            // Another cell will do.
            partitions.extend(partition);
        };
        unowned.into_iter().for_each(|t| self.give_back_table(index, t));
        if let Ok(t) = &found {
            self.gc_log.add(|| Span::table(*t));
        }
        found
    }

    /// A cell in this node's own region; `None` when there is none.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn alloc_own_table(
        &self,
        ep: &Endpoint,
        index: u32,
        lines: u8,
    ) -> Result<Option<TableId>> {
        ep.check_memory()?;
        let found = self.tables.alloc_at(ep, &self.view, (index, lines), self.cn()).await?;
        let Some(t) = found else { return Ok(None) };
        match self.resolve(ep, t).await {
            Ok(at) if at.node() == self.cn() => {
                self.gc_log.add(|| Span::table(t));
                return Ok(Some(t));
            }
            Err(e) if e.kind() != ErrorKind::Unreachable => return Err(e),
            // The cell has moved.
            _ => self.give_back_table(index, t),
        }
        Ok(None)
    }

    /// Returns a cell that no other client can ever have reached. Its lock word is 0.
    pub fn give_back_table(&self, index: u32, t: TableId) {
        self.gc_log.add(|| Span::table(t));
        if !self.images().put_table(index, t) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a cell that no operation can reach from now on: reusable, for cells of as many
    /// lines, when every operation that runs now has ended. Its lock word is 0 by then.
    pub fn retire_table(&self, index: u32, t: TableId) {
        self.gc_log.add(|| Span::table(t));
        self.limbo_list.push(Retired::Table(index, t), u64::from(t.lines()) * 64);
    }

    /// Wait words at the owner of a cell, which is at `at`, in which waiters for its lock announce
    /// themselves: the first of four. Many cells share them, and any member may write there, so a
    /// reader takes every stamp as a hint. Only compute nodes have such words.
    pub fn wait_words(&self, t: TableId, at: GlobalAddr) -> Option<GlobalAddr> {
        let owner = Some(at.node()).filter(|n| n.role() == Role::Compute)?;
        let group = (golden_hash(t.bits()) >> 32) % WAIT_GROUPS;
        Some(GlobalAddr::new(owner, WAIT_WORDS + group * WAIT_GROUP_WORDS * 8))
    }

    /// Where all cells are, as far as this node knows now.
    pub fn known_tables(&self) -> KnownTables {
        self.tables.known()
    }

    /// Learns where all cells are that have an owner.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn learn_tables(&self, ep: &Endpoint) -> Result<()> {
        self.tables.refresh_all(ep, &*self.fabric, &self.view).await
    }

    /// Where a cell is, if this node knows. Atomic loads only.
    #[inline]
    pub fn resolve_cached(&self, t: TableId) -> Option<dmtree_fabric::GlobalAddr> {
        self.tables.resolve_cached(t)
    }

    /// Where a cell is; one READ of the directory when this node does not know.
    ///
    /// # Errors
    /// `Unreachable` while its owner is dead and it has no new one; `Corrupt` when no such cell can
    /// exist; those of the fabric.
    pub async fn resolve(&self, ep: &Endpoint, t: TableId) -> Result<dmtree_fabric::GlobalAddr> {
        match self.tables.resolve_cached(t) {
            Some(at) => Ok(at),
            // Boxed, being rare and large.
            None => Box::pin(self.tables.refresh(ep, &*self.fabric, &self.view, t)).await,
        }
    }
}
