//! Table cells on the client's side: a small stock per home and size, and the directory as far as this node knows it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dmtree_fabric::wait::Turnstile;
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Fabric, GlobalAddr, NodeId, Result, Role, WaitReason,
};

use crate::homes::{MAX_CELLS, ask_cells, first_home, homeless, homes_of};
use crate::ids::{PARTITIONS, SEGMENTS, TableId, TableSide};
use crate::layout::{DIRECTORY_BYTES, Partition, Shape};
use crate::node::Turn;
use crate::notes::Span;
use crate::pieces::Piece;
use crate::view::{View, may_use};
use crate::wire::locked;

/// Most cells asked for at a time.
const BATCH: u64 = 32;
/// A home that had none is asked again after so many wishes.
const ASK_AGAIN: u16 = 1024;

/// Cells of one size on one home.
#[derive(Debug, Default)]
struct Stock {
    cells: Vec<TableId>,
    /// The home had none: so many wishes go elsewhere before it is asked again.
    full: u16,
}

#[derive(Debug)]
struct Home {
    node: NodeId,
    refill: Turnstile,
    /// By index, and lines - 1: cells go back to the index that had them, whose partitions they are
    /// of.
    stocks: Mutex<BTreeMap<(u32, usize), Stock>>,
}

#[derive(Debug)]
struct Side {
    homes: Vec<Home>,
    /// Turns are kept by size: cells of each size spread by themselves.
    cursors: [AtomicUsize; 4],
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
        let (c, m) = (shape.compute_nodes, shape.memory.len() as u16);
        let side = |role: Role, bytes: u64| {
            let n = homes_of(role, c, m);
            let home = |i: u16| match role {
                Role::Compute => NodeId::compute(i),
                Role::Memory => NodeId::memory(i),
            };
            let home =
                |i: u16| Home { node: home(i), refill: Turnstile::new(), stocks: Mutex::default() };
            // Stocks of all nodes together hold a small part of a home.
            let batch = (bytes / 64 / 256 / u64::from(c)).clamp(1, BATCH);
            Side {
                homes: (0..n).map(home).collect(),
                cursors: std::array::from_fn(|_| AtomicUsize::new(cn.index())),
                batch: batch.min(u64::from(MAX_CELLS)) as u16,
            }
        };
        let smallest = shape.memory.iter().map(|l| l.region_bytes).min().unwrap_or(0);
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
        side: TableSide,
    ) -> Result<TableId> {
        if !(1..=4).contains(&lines) {
            return Err(Error::invalid(format!("a table has 1 to 4 lines, not {lines}")));
        }
        let mut trouble = None;
        if side == TableSide::Compute
            && let Some(t) = self.compute.alloc(ep, view, (index, lines), &mut trouble).await?
        {
            return Ok(t);
        }
        if let Some(t) = self.memory.alloc(ep, view, (index, lines), &mut trouble).await? {
            return Ok(t);
        }
        Err(trouble.unwrap_or_else(|| {
            let names = |s: &Side| {
                let names: Vec<_> = s.homes.iter().take(8).map(|h| h.node.to_string()).collect();
                names.join(", ")
            };
            let compute = match side {
                TableSide::Compute => {
                    format!("the table memory of {} is used up, and ", names(&self.compute))
                }
                TableSide::Memory => String::new(),
            };
            Error::new(
                ErrorKind::Full,
                format!(
                    "{compute}{} cannot hold more tables (no free chunk): delete keys, or create the pool with more memory",
                    names(&self.memory)
                ),
            )
        }))
    }

    fn home(&self, t: TableId) -> Option<&Home> {
        let (partition, ..) = t.place()?;
        // Where the cell is now, if known: what was moved is not stocked under its old home.
        let node = match self.resolve_cached(t) {
            Some(at) => at.node(),
            None => first_home(partition, self.shape.0, self.shape.1),
        };
        let side = if node.role() == Role::Compute { &self.compute } else { &self.memory };
        side.homes.get(node.index())
    }

    /// Takes a cell back; false when no such cell can exist.
    pub(crate) fn put(&self, index: u32, t: TableId) -> bool {
        let Some(home) = self.home(t) else { return false };
        locked(&home.stocks).entry(size_of(index, t)).or_default().cells.push(t);
        true
    }

    pub(crate) fn stocked(&self) -> u64 {
        let homes = self.compute.homes.iter().chain(&self.memory.homes);
        homes.map(|h| locked(&h.stocks).values().map(|s| s.cells.len() as u64).sum::<u64>()).sum()
    }

    /// Takes out one part in `parts` of the cells in stock, rounded up: those of an index and so many lines, or all.
    pub(crate) fn take_free(&self, only: Option<(u32, u8)>, parts: usize, out: &mut Vec<Piece>) {
        let only = only.map(|(index, lines)| (index, usize::from(lines) - 1));
        for h in self.compute.homes.iter().chain(&self.memory.homes) {
            let mut stocks = locked(&h.stocks);
            for (size, stock) in stocks.iter_mut().filter(|(s, _)| only.is_none_or(|o| o == **s)) {
                let count = stock.cells.len().div_ceil(parts);
                out.extend(stock.cells.drain(..count).map(|t| Piece::Cell(size.0, t)));
            }
        }
    }

    /// Whether the next cells of an index, of so many lines, on a side have to be asked for.
    pub(crate) fn is_dry(&self, (index, lines): (u32, u8), side: TableSide) -> bool {
        let size = (index, usize::from(lines) - 1);
        let homes = match side {
            TableSide::Compute => &self.compute.homes,
            TableSide::Memory => &self.memory.homes,
        };
        homes.iter().all(|h| locked(&h.stocks).get(&size).is_none_or(|s| s.cells.is_empty()))
    }

    /// Whether no home of a side gives new cells of an index, of so many lines.
    pub(crate) fn is_used_up(&self, (index, lines): (u32, u8), side: TableSide) -> bool {
        let homes = match side {
            TableSide::Compute => &self.compute.homes,
            TableSide::Memory => &self.memory.homes,
        };
        homes.iter().all(|h| h.is_full((index, usize::from(lines) - 1)))
    }

    /// Cells in stock.
    pub(crate) fn list(&self, out: &mut Vec<Span>) {
        for h in self.compute.homes.iter().chain(&self.memory.homes) {
            let stocks = locked(&h.stocks);
            out.extend(stocks.values().flat_map(|s| &s.cells).map(|t| Span::table(*t)));
        }
    }

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
                    let home = bytes.extract(|b| Partition::remains(b, number)).home;
                    if pause.steps() > 3 && !may_use(&view.state(), number, home) {
                        return Err(homeless(number, home));
                    }
                    // Its home is writing it, or has died doing so.
                    pause.step().await?;
                }
            }
        };
        let p = p.filter(|p| t.first_line() + u64::from(t.lines()) <= p.lines).ok_or_else(none)?;
        // A home that has restarted knows nothing of it: its directory entry is about to change.
        let current = fabric.incarnation(p.home.node) == Some(p.home.incarnation);
        let fits = || p.inside(fabric.region_bytes(p.home.node));
        if current && !fits() {
            return Err(Error::corrupt(format!(
                "the directory places partition {number} outside the region of {}",
                p.home.node
            )));
        }
        let usable = view.with_state(|state| {
            let usable = current && may_use(state, number, p.home);
            let known = &self.directory[usize::from(number) * SEGMENTS..][..SEGMENTS];
            for (known, base) in known.iter().zip(&p.segments) {
                if usable && *base != 0 {
                    known.store(*base, Ordering::Release);
                }
            }
            usable
        });
        if !usable {
            return Err(homeless(number, p.home));
        }
        Ok(GlobalAddr::from_bits(p.segments[segment]).plus(offset))
    }

    /// Homes that had no cell are asked again.
    pub(crate) fn reopen(&self) {
        for h in self.compute.homes.iter().chain(&self.memory.homes) {
            locked(&h.stocks).values_mut().for_each(|s| s.full = 0);
        }
    }

    /// Forgets where the tables are for which `gone` says so, given their partition and home.
    pub(crate) fn forget(&self, gone: impl Fn(u16, NodeId) -> bool) {
        for (number, known) in (0..PARTITIONS).zip(self.directory.chunks_exact(SEGMENTS)) {
            let home = known.iter().map(|k| k.load(Ordering::Relaxed)).find(|b| *b != 0);
            if home.is_some_and(|base| gone(number, GlobalAddr::from_bits(base).node())) {
                known.iter().for_each(|k| k.store(0, Ordering::SeqCst));
            }
        }
    }
}

fn size_of(index: u32, t: TableId) -> (u32, usize) {
    (index, usize::from(t.lines()) - 1)
}

impl Side {
    /// A cell of the next home in turn that has one. `None`: all are full, or `trouble` says why they cannot be asked.
    async fn alloc(
        &self,
        ep: &Endpoint,
        view: &View,
        (index, lines): (u32, u8),
        trouble: &mut Option<Error>,
    ) -> Result<Option<TableId>> {
        let size = (index, usize::from(lines) - 1);
        let n = self.homes.len();
        let first = self.cursors[size.1].fetch_add(1, Ordering::Relaxed);
        for home in (0..n).map(|k| &self.homes[(first.wrapping_add(k)) % n]) {
            if let Err(e) = view.check_presence(home.node) {
                trouble.get_or_insert(e);
                continue;
            }
            if let Some(t) = home.pop(size) {
                return Ok(Some(t));
            }
            if !view.is_worth_asking(home.node) || home.is_full(size) {
                continue;
            }
            let why = WaitReason { what: "table cells", at: u64::from(home.node.bits()) };
            let _turn = Turn::acquire(&home.refill, ep, why).await?;
            if let Some(t) = home.pop(size) {
                return Ok(Some(t));
            }
            if home.is_full(size) {
                continue;
            }
            match ask_cells(ep, home.node, index, lines, self.batch).await {
                Ok(cells) => {
                    let mut stocks = locked(&home.stocks);
                    let none = cells.is_empty() && home.node.role() == Role::Compute;
                    stocks.entry(size).or_default().full = if none { ASK_AGAIN } else { 0 };
                    for t in cells.into_iter().rev() {
                        stocks.entry(size_of(index, t)).or_default().cells.push(t);
                    }
                    let taken = stocks.get_mut(&size).and_then(|s| s.cells.pop());
                    if taken.is_some() {
                        return Ok(taken);
                    }
                }
                Err(e) => _ = trouble.get_or_insert(e),
            }
        }
        Ok(None)
    }
}

impl Home {
    fn pop(&self, size: (u32, usize)) -> Option<TableId> {
        locked(&self.stocks).get_mut(&size)?.cells.pop()
    }

    fn is_full(&self, size: (u32, usize)) -> bool {
        let mut stocks = locked(&self.stocks);
        let Some(stock) = stocks.get_mut(&size) else { return false };
        stock.full = stock.full.saturating_sub(1);
        stock.full > 0
    }
}
