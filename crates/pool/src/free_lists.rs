//! Table cells on the client's side: for each owner, index and size a free-list cache of cells, and
//! the directory as far as this node knows it.
//!
//! **Alloc**: the owners of the side in turn (each size has its own cursor, so that every size
//! spreads evenly); a cached cell, else a batch of new ones from the owner ([`ask_cells`]), else
//! the next owner, else the memory nodes. An owner that had none is skipped for 1024 requests; a
//! newer state of the membership makes it worth asking again ([`Tables::reopen`]).
//!
//! **Resolve**: the address of a cell follows from its id and the base of its segment.
//! [`Tables::resolve_cached`] is one atomic load; [`Tables::refresh`] READs the partition's
//! directory record and stores its bases.
//!
//! Invariants. A base is stored under the lock of the membership state, and only if the record's
//! owner is living in the recorded incarnation and the partition does not move; the agent forgets
//! bases under the same lock. So a client that finds a base may use it until the drain of its owner
//! ends. An id above the high-water mark of its partition was never granted: an error, as is a
//! record that points outside of the owner's region. A returned cell goes to the cache of its
//! present owner, under the index that had it: its partition belongs to that index.
//!
//! Crashes. The cached cells of a node that dies are found by garbage collection. A torn record is
//! read again, until its owner is known to be dead or moving.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{
    Endpoint, Error, Fabric, GlobalAddr, NodeId, Result, Role, ShadowState, WaitReason,
};

use crate::gc_log::Span;
use crate::ids::{PARTITIONS, SEGMENTS, TABLE_LINES, TableId, segment_bytes};
use crate::layout::{DIRECTORY_BYTES, Partition};
use crate::obtain::Turn;
use crate::owners::{MAX_CELLS, ask_cells, first_owner, owners_of, unowned};
use crate::pieces::Piece;
use crate::shape::Shape;
use crate::view::{View, may_use};
use crate::wire::locked;

/// Records of the directory that are READ together.
const RECORDS_PER_BATCH: usize = 32;

/// Most cells asked for at a time.
const BATCH: u64 = 32;
/// An owner that had none is asked again after so many requests.
const ASK_AGAIN: u16 = 1024;
/// The same for cells with images: an owner has room for none until it has opened the index.
const ASK_FOR_IMAGES_AGAIN: u16 = 64;

/// Free cells of one size at one owner.
#[derive(Debug, Default)]
struct FreeListCache {
    cells: Vec<TableId>,
    /// The owner had none: so many requests go elsewhere before it is asked again.
    full: u16,
}

#[derive(Debug)]
struct Owner {
    node: NodeId,
    refill: FifoMutex,
    /// By index, and lines - 1: cells go back to the index that owns their
    /// partitions.
    free_lists: Mutex<BTreeMap<(u32, usize), FreeListCache>>,
}

#[derive(Debug)]
struct Side {
    owners: Vec<Owner>,
    /// Turns are kept by size: cells of each size spread by themselves, those with images together.
    cursors: [AtomicUsize; TABLE_LINES as usize + 1],
    batch: u16,
}

/// One compute node's tables.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Segment bases by partition; 0 is unknown.
    directory: Box<[AtomicU64]>,
    compute: Side,
    memory: Side,
    shape: (u16, u16),
}

impl Tables {
    pub(crate) fn new(cn: NodeId, shape: &Shape) -> Self {
        let (c, m) = (shape.compute_nodes, shape.founded.len() as u16);
        let side = |role: Role, bytes: u64| {
            let n = owners_of(role, c, m);
            let owner = |i: u16| Owner {
                node: match role {
                    Role::Compute => NodeId::compute(i),
                    Role::Memory | Role::Journal => NodeId::memory(i),
                },
                refill: FifoMutex::new(),
                free_lists: Mutex::default(),
            };
            // The caches of all nodes together hold a small part of an owner's cells.
            let batch = (bytes / 64 / 256 / u64::from(c)).clamp(1, BATCH);
            Side {
                owners: (0..n).map(owner).collect(),
                cursors: std::array::from_fn(|_| AtomicUsize::new(cn.index())),
                batch: batch.min(u64::from(MAX_CELLS)) as u16,
            }
        };
        let smallest = shape.founded.iter().map(|l| l.region_bytes).min().unwrap_or(0);
        Self {
            directory: (0..usize::from(PARTITIONS) * SEGMENTS).map(|_| AtomicU64::new(0)).collect(),
            compute: side(Role::Compute, shape.compute_bytes),
            memory: side(Role::Memory, smallest / 8),
            shape: (c, m),
        }
    }

    pub(crate) async fn alloc(
        &self,
        ep: &Endpoint,
        view: &View,
        (index, lines): (u32, u8),
        (side, silent): (Role, &[NodeId]),
    ) -> Result<TableId> {
        if lines == 0 {
            return Err(Error::invalid("a cell has 1 line at least"));
        }
        let mut trouble = None;
        if side == Role::Compute
            && let Some(t) =
                self.compute.alloc(ep, view, (index, lines), silent, &mut trouble).await?
        {
            return Ok(t);
        }
        if lines > TABLE_LINES {
            return Err(Error::full("no compute node has room for another image"));
        }
        if let Some(t) = self.memory.alloc(ep, view, (index, lines), silent, &mut trouble).await? {
            return Ok(t);
        }
        Err(trouble.unwrap_or_else(|| {
            let names = |s: &Side| {
                let names: Vec<_> = s.owners.iter().take(8).map(|h| h.node.to_string()).collect();
                names.join(", ")
            };
            let compute = match side {
                Role::Compute => {
                    format!("the table memory of {} is used up, and ", names(&self.compute))
                }
                Role::Memory | Role::Journal => String::new(),
            };
            Error::full(format!(
                    "{compute}{} cannot hold more tables (no free chunk): delete keys, or create the pool with more memory",
                    names(&self.memory)
                ))
        }))
    }

    /// A cell of one compute node; `None` when it has none, or cannot be asked.
    pub(crate) async fn alloc_at(
        &self,
        ep: &Endpoint,
        view: &View,
        size: (u32, u8),
        node: NodeId,
    ) -> Result<Option<TableId>> {
        let Some(owner) = self.compute.owners.get(node.index()) else { return Ok(None) };
        self.compute.alloc_at(owner, ep, view, (size, &[]), &mut None).await
    }

    fn owner(&self, t: TableId) -> Option<&Owner> {
        let (partition, ..) = t.place()?;
        // The present owner, if known: a moved cell is not cached under its old owner.
        let node = match self.resolve_cached(t) {
            Some(at) => at.node(),
            None => first_owner(partition, self.shape.0, self.shape.1),
        };
        self.side(node.role()).owners.get(node.index())
    }

    fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.compute.owners.iter().chain(&self.memory.owners)
    }

    fn side(&self, side: Role) -> &Side {
        match side {
            Role::Compute => &self.compute,
            Role::Memory | Role::Journal => &self.memory,
        }
    }

    /// Takes a cell back; false when no such cell can exist.
    pub(crate) fn put(&self, index: u32, t: TableId) -> bool {
        let Some(owner) = self.owner(t) else { return false };
        locked(&owner.free_lists).entry(size_of(index, t)).or_default().cells.push(t);
        true
    }

    /// Takes out one part in `parts` of the cached cells, rounded up: those of an index and so many
    /// lines, or all.
    pub(crate) fn take_free(&self, only: Option<(u32, u8)>, parts: usize, out: &mut Vec<Piece>) {
        let only = only.map(|(index, lines)| (index, usize::from(lines) - 1));
        for h in self.owners() {
            let mut free_lists = locked(&h.free_lists);
            for (size, cache) in
                free_lists.iter_mut().filter(|(s, _)| only.is_none_or(|o| o == **s))
            {
                let count = cache.cells.len().div_ceil(parts);
                out.extend(cache.cells.drain(..count).map(|t| Piece::Cell(size.0, t)));
            }
        }
    }

    /// Takes out the cached cells with images of an index at one compute node.
    pub(crate) fn take_images(&self, node: NodeId, index: u32, out: &mut Vec<TableId>) {
        let Some(owner) = self.compute.owners.get(node.index()) else { return };
        let mut free_lists = locked(&owner.free_lists);
        let sizes = (index, usize::from(TABLE_LINES))..=(index, usize::MAX);
        free_lists.range_mut(sizes).for_each(|(_, cache)| out.append(&mut cache.cells));
    }

    /// Whether the next cells of an index, of so many lines, on a side have to be asked for.
    pub(crate) fn is_cache_empty(&self, (index, lines): (u32, u8), side: Role) -> bool {
        let size = (index, usize::from(lines) - 1);
        self.side(side)
            .owners
            .iter()
            .all(|h| locked(&h.free_lists).get(&size).is_none_or(|s| s.cells.is_empty()))
    }

    /// Whether no owner of a side gives new cells of an index, of so many lines.
    pub(crate) fn is_exhausted(&self, (index, lines): (u32, u8), side: Role) -> bool {
        self.side(side).owners.iter().all(|h| h.is_full((index, usize::from(lines) - 1)))
    }

    /// The cached cells.
    pub(crate) fn list(&self, out: &mut Vec<Span>) {
        for h in self.owners() {
            let free_lists = locked(&h.free_lists);
            out.extend(free_lists.values().flat_map(|s| &s.cells).map(|t| Span::table(*t)));
        }
    }

    /// Where tables are, as far as this node knows now.
    pub(crate) fn known(&self) -> KnownTables {
        KnownTables(self.directory.iter().map(|base| base.load(Ordering::Acquire)).collect())
    }

    #[inline]
    pub(crate) fn resolve_cached(&self, t: TableId) -> Option<GlobalAddr> {
        let (partition, segment, offset) = t.place()?;
        let base = &self.directory[usize::from(partition) * SEGMENTS + segment];
        match base.load(Ordering::Acquire) {
            0 => None,
            base => Some(GlobalAddr::from_bits(base).plus(offset)),
        }
    }

    /// Reads the partition's record and remembers its segments, if they may be used.
    pub(crate) async fn refresh(
        &self,
        ep: &Endpoint,
        fabric: &dyn Fabric,
        view: &View,
        t: TableId,
    ) -> Result<GlobalAddr> {
        let none = || Error::corrupt(format!("{t:?} cannot exist: no such cell was ever granted"));
        let (number, segment, offset) = t.place().ok_or_else(none)?;
        let record = Partition::record(number);
        let mut pause = ep.backoff("the directory of tables", record);
        let p = loop {
            let bytes = ep.read(record, DIRECTORY_BYTES as u32).await?;
            match bytes.extract(|b| Partition::decode(b, number)) {
                Ok(p) => break p,
                Err(()) => {
                    let owner = bytes.extract(|b| Partition::remains(b, number)).owner;
                    if pause.steps() > 3 && !may_use(&view.state(), number, owner) {
                        return Err(unowned(number, owner));
                    }
                    // Its owner is writing it, or has died doing so.
                    pause.step().await?;
                }
            }
        };
        let p = p.filter(|p| t.first_line() + u64::from(t.lines()) <= p.lines).ok_or_else(none)?;
        match self.learn(fabric, view, number, &p)? {
            true => Ok(GlobalAddr::from_bits(p.segments[segment]).plus(offset)),
            false => Err(unowned(number, p.owner)),
        }
    }

    /// Remembers the segments of a partition; false when they may not be used.
    fn learn(&self, fabric: &dyn Fabric, view: &View, number: u16, p: &Partition) -> Result<bool> {
        // A restarted owner does not serve the partition: its record is about to change.
        let current = fabric.incarnation(p.owner.node) == Some(p.owner.incarnation);
        let fits = || p.inside(fabric.region_bytes(p.owner.node));
        if current && !fits() {
            return Err(Error::corrupt(format!(
                "the directory places partition {number} outside the region of {}",
                p.owner.node
            )));
        }
        let usable = view.with_state(|state| {
            let usable = current && may_use(state, number, p.owner);
            let known = &self.directory[usize::from(number) * SEGMENTS..][..SEGMENTS];
            for (known, base) in known.iter().zip(&p.segments) {
                if usable && *base != 0 {
                    known.store(*base, Ordering::Release);
                }
            }
            usable
        });
        if !usable {
            return Ok(false);
        }
        // A memory node takes chunks for its tables that blocks may have been freed in. Its service
        // has no access to the fabric, so each node that learns of a segment reports it.
        for (j, base) in p.segments.iter().enumerate().filter(|(_, base)| **base != 0) {
            let (at, bytes) = (GlobalAddr::from_bits(*base), segment_bytes(j));
            fabric.allocation_event(view.me, at, bytes, ShadowState::Plain);
        }
        Ok(true)
    }

    /// Reads the records of the partitions with cells that this node does not know, and remembers
    /// the segments of those with an owner.
    pub(crate) async fn refresh_all(
        &self,
        ep: &Endpoint,
        fabric: &dyn Fabric,
        view: &View,
    ) -> Result<()> {
        let is_known = |number: &u16| {
            let bases = &self.directory[usize::from(*number) * SEGMENTS..][..SEGMENTS];
            bases.iter().any(|base| base.load(Ordering::Acquire) != 0)
        };
        let unknown: Vec<_> = (0..PARTITIONS).filter(|number| !is_known(number)).collect();
        for some in unknown.chunks(RECORDS_PER_BATCH) {
            let mut batch = VerbVec::new();
            for number in some {
                batch.read(Partition::record(*number), DIRECTORY_BYTES as u32);
            }
            let mut records = ep.batch(batch).await?;
            for (i, number) in some.iter().enumerate() {
                let record = records.take_sampled(i);
                // One that its owner is writing, or that is wrong, is read again when it is needed.
                if let Ok(Some(p)) = record.extract(|b| Partition::decode(b, *number)) {
                    _ = self.learn(fabric, view, *number, &p);
                }
            }
        }
        Ok(())
    }

    /// Drops the free cells of an index.
    pub(crate) fn forget_index(&self, index: u32) {
        for h in self.owners() {
            locked(&h.free_lists).retain(|(of, _), _| *of != index);
        }
    }

    /// Owners that had no cell are asked again.
    pub(crate) fn reopen(&self) {
        for h in self.owners() {
            locked(&h.free_lists).values_mut().for_each(|s| s.full = 0);
        }
    }

    /// Forgets the bases of partitions for which `gone` says so, given number and owner.
    pub(crate) fn forget(&self, gone: impl Fn(u16, NodeId) -> bool) {
        for (number, known) in (0..PARTITIONS).zip(self.directory.chunks_exact(SEGMENTS)) {
            let owner = known.iter().map(|k| k.load(Ordering::Relaxed)).find(|b| *b != 0);
            if owner.is_some_and(|base| gone(number, GlobalAddr::from_bits(base).node())) {
                known.iter().for_each(|k| k.store(0, Ordering::SeqCst));
            }
        }
    }
}

/// Where a node knew the tables of all partitions to be, at some time.
#[derive(Debug)]
pub struct KnownTables(Box<[u64]>);

impl KnownTables {
    /// Whether a cell was known to be at this address.
    pub fn has(&self, t: TableId, at: GlobalAddr) -> bool {
        let Some((partition, segment, offset)) = t.place() else { return false };
        let base = self.0[usize::from(partition) * SEGMENTS + segment];
        base != 0 && GlobalAddr::from_bits(base).plus(offset) == at
    }
}

fn size_of(index: u32, t: TableId) -> (u32, usize) {
    (index, usize::from(t.lines()) - 1)
}

impl Side {
    /// A cell of the next owner in turn that has one. `None`: all are full, or `trouble` says why
    /// they cannot be asked.
    async fn alloc(
        &self,
        ep: &Endpoint,
        view: &View,
        (index, lines): (u32, u8),
        silent: &[NodeId],
        trouble: &mut Option<Error>,
    ) -> Result<Option<TableId>> {
        let n = self.owners.len();
        let turn = (usize::from(lines) - 1).min(usize::from(TABLE_LINES));
        let first = self.cursors[turn].fetch_add(1, Ordering::Relaxed);
        for owner in (0..n).map(|k| &self.owners[(first.wrapping_add(k)) % n]) {
            let of = ((index, lines), silent);
            if let Some(t) = self.alloc_at(owner, ep, view, of, trouble).await? {
                return Ok(Some(t));
            }
        }
        Ok(None)
    }

    /// A cell of one owner. `None`: it is full, or `trouble` says why it cannot be asked.
    async fn alloc_at(
        &self,
        owner: &Owner,
        ep: &Endpoint,
        view: &View,
        ((index, lines), silent): ((u32, u8), &[NodeId]),
        trouble: &mut Option<Error>,
    ) -> Result<Option<TableId>> {
        let size = (index, usize::from(lines) - 1);
        if let Err(e) = view.check_presence(owner.node) {
            trouble.get_or_insert(e);
            return Ok(None);
        }
        if let Some(t) = owner.pop(size) {
            return Ok(Some(t));
        }
        if silent.contains(&owner.node) || !view.is_worth_asking(owner.node) || owner.is_full(size)
        {
            return Ok(None);
        }
        // Boxed, being rare and large.
        Box::pin(self.ask(owner, ep, (index, lines), trouble)).await
    }

    /// The same of cells that the owner is asked for.
    async fn ask(
        &self,
        owner: &Owner,
        ep: &Endpoint,
        (index, lines): (u32, u8),
        trouble: &mut Option<Error>,
    ) -> Result<Option<TableId>> {
        let size = (index, usize::from(lines) - 1);
        let again = if lines > TABLE_LINES { ASK_FOR_IMAGES_AGAIN } else { ASK_AGAIN };
        let why = WaitReason { what: "table cells", at: u64::from(owner.node.bits()) };
        let _turn = Turn::acquire(&owner.refill, ep, why).await?;
        if let Some(t) = owner.pop(size) {
            return Ok(Some(t));
        }
        if owner.is_full(size) {
            return Ok(None);
        }
        match ask_cells(ep, owner.node, (index, lines), self.batch).await {
            Ok(cells) => {
                let mut free_lists = locked(&owner.free_lists);
                let none = cells.is_empty() && owner.node.role() == Role::Compute;
                free_lists.entry(size).or_default().full = if none { again } else { 0 };
                for t in cells.into_iter().rev() {
                    free_lists.entry(size_of(index, t)).or_default().cells.push(t);
                }
                return Ok(free_lists.get_mut(&size).and_then(|s| s.cells.pop()));
            }
            Err(e) => _ = trouble.get_or_insert(e),
        }
        Ok(None)
    }
}

impl Owner {
    fn pop(&self, size: (u32, usize)) -> Option<TableId> {
        locked(&self.free_lists).get_mut(&size)?.cells.pop()
    }

    fn is_full(&self, size: (u32, usize)) -> bool {
        let mut free_lists = locked(&self.free_lists);
        let Some(cache) = free_lists.get_mut(&size) else { return false };
        cache.full = cache.full.saturating_sub(1);
        cache.full > 0
    }
}
