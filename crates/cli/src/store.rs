//! What the shell works on: an index of any system, or the library's own index in a pool of several
//! processes, which this process joins again by itself when it has lost its membership.

use std::ops::Bound;
use std::time::Duration;

use dmtree::{Index, Options, Pool};
use dmtree_bench::facade::{DynPool, Session};
use dmtree_bench::opened::FOREGROUND;
use dmtree_bench::{Failure, Result, registry};
use dmtree_fabric::{ErrorKind, Result as FabricResult, Totals};
use dmtree_parts::{CacheStats, Outcome, ScanRequest, Shape, Write};

use crate::args_nodes::ToolArgs;
use crate::output;

/// How long to wait for a pool that is not ready.
const POOL_WITHIN: Duration = Duration::from_secs(10);
/// The system that is the library's.
const LIBRARY: &str = "dmtree";

/// Something that a dump can be made of.
pub trait Source {
    /// Calls `each` for every pair of a range, in order, until it says to stop.
    ///
    /// # Errors
    /// Those of the index.
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()>;
}

/// What `stats` shows.
pub struct Report {
    /// What a walk has found.
    pub shape: Shape,
    /// The cache of the compute node.
    pub cache: CacheStats,
    /// What operations have cost.
    pub total: Totals,
}

/// An index.
pub trait Store: Source {
    /// Reads a key.
    ///
    /// # Errors
    /// Those of the index.
    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>>;
    /// Writes a key.
    ///
    /// # Errors
    /// Those of the index.
    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome>;
    /// Walks the structure.
    ///
    /// # Errors
    /// A violated invariant; those of the index.
    fn report(&mut self) -> FabricResult<Report>;
}

/// The index that the arguments name.
///
/// # Errors
/// Unknown systems; a pool that cannot be joined.
pub fn open(a: &ToolArgs) -> Result<Box<dyn Store>> {
    match &a.connect {
        Some(first) if a.system == LIBRARY => Ok(Box::new(Library(join(a, first)?))),
        connect => {
            let cns = if connect.is_some() { 1 } else { 2 };
            let pool = registry::find(&a.system)?.open(&a.pool(cns, true)?, 24, 24)?;
            let session = pool.client(0)?;
            Ok(Box::new(AnySystem { pool, session }))
        }
    }
}

/// Joins, and opens the index with the options that it has, or makes it.
fn join(a: &ToolArgs, first: &str) -> Result<Index> {
    let connector = Pool::connect(first).nic_config(a.nic.nic_config(&a.access)?).wait(POOL_WITHIN);
    let pool = connector.open().map_err(|e| Failure::missing(&e))?;
    for missing in pool.missing()? {
        output::note(&format!("note: {missing}"));
    }
    match pool.open(&a.index) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let options = registry::find(LIBRARY)?.fitted(24, 24);
            let options: Options = serde_json::from_value(options)
                .map_err(|e| Failure::input(format!("options of {LIBRARY}: {e}")))?;
            Ok(pool.open_or_create(&a.index, options)?)
        }
        opened => Ok(opened?),
    }
}

/// An index of any system.
struct AnySystem {
    pool: Box<dyn DynPool>,
    session: Session,
}

impl Source for Session {
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        (**self).for_each(request, each)
    }
}

impl Source for AnySystem {
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        self.session.for_each(request, each)
    }
}

impl Store for AnySystem {
    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        self.session.get(key)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        self.session.write(key, w)
    }

    fn report(&mut self) -> FabricResult<Report> {
        let shape = self.session.walk()?;
        let total = self.session.counts().total(&FOREGROUND);
        Ok(Report { shape, cache: self.pool.cache_stats(0), total })
    }
}

/// The library's index.
struct Library(Index);

impl Source for Library {
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (request.low, request.high);
        let scan = self.0.scan(range).limit(request.limit as u64);
        let mut pairs = if request.reverse { scan.rev() } else { scan }.pairs();
        while let Some((key, value)) = pairs.next_ref()? {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }
}

impl Store for Library {
    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        self.0.get(key)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        match w {
            Write::Put(value) => self.0.put(key, value),
            Write::Insert(value) => self.0.insert(key, value),
            Write::Update(value) => self.0.update(key, value),
            Write::Delete => self.0.delete(key),
            Write::CompareAndSet { expected, new: Some(new) } => {
                self.0.compare_and_set(key, expected, new)
            }
            Write::CompareAndSet { expected, new: None } => {
                self.0.compare_and_delete(key, expected)
            }
        }
    }

    fn report(&mut self) -> FabricResult<Report> {
        let shape = self.0.shape()?.shape;
        let stats = self.0.stats()?;
        let cache = stats.caches.first().copied().unwrap_or_default();
        Ok(Report { shape, cache, total: stats.costs.total(&FOREGROUND) })
    }
}
