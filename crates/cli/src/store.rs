//! What the shell works on: the library's own index, embedded or in a pool of several processes
//! (which this process joins again by itself when it has lost its membership), or an index of
//! another system.

use std::io::IsTerminal;
use std::ops::Bound;
use std::time::Duration;

use dmtree::{Index, Options, Pool};
use dmtree_command::{Failure, Result};
use dmtree_fabric::{ErrorKind, OpKind, Result as FabricResult, Totals};
use dmtree_parts::{CacheStats, Outcome, ScanRequest, Shape, Write};

use crate::args::ToolArgs;
use crate::{lab, output};

/// How long to wait for a pool that is not ready.
const POOL_WITHIN: Duration = Duration::from_secs(10);
/// The system that is the library's.
const LIBRARY: &str = "dmtree";

/// What `stats` shows.
pub struct Report {
    /// What a walk has found.
    pub shape: Shape,
    /// The cache of the compute node.
    pub cache: CacheStats,
    /// What operations have cost.
    pub total: Totals,
}

/// An index; errors are its own.
pub trait Store {
    /// Calls `each` for every pair of a range, in order, until it says to stop.
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()>;
    /// Reads a key.
    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>>;
    /// Writes a key.
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
    if a.system != LIBRARY {
        return lab::open(a);
    }
    let index = match &a.connect {
        None => embedded(a)?,
        Some(first) => join(a, first)?,
    };
    Ok(Box::new(Library(index)))
}

fn embedded(a: &ToolArgs) -> Result<Index> {
    let pool = Pool::embedded().memory(a.memory_bytes.0).compute_nodes(2).open()?;
    Ok(pool.create(&a.index, options())?)
}

/// Joins, and opens the index with the options that it has, or makes it.
fn join(a: &ToolArgs, first: &str) -> Result<Index> {
    // Output of a script stays as it is: it gets the error of a pool that is not there.
    if std::io::stderr().is_terminal() {
        output::note(&format!("connecting to the pool of {first}"));
    }
    let connector = Pool::connect(first).nic_config(a.nic.nic_config(&a.access)?).wait(POOL_WITHIN);
    let pool = connector.open().map_err(Failure::refused)?;
    for missing in pool.missing()? {
        output::note(&format!("note: {missing}"));
    }
    match pool.open(&a.index) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(pool.open_or_create(&a.index, options())?),
        opened => Ok(opened?),
    }
}

/// What an index is made with: words that are typed stay inside of entries.
fn options() -> Options {
    Options { key_inline_bytes: 24, value_inline_bytes: 24, ..Options::default() }
}

/// The library's index.
struct Library(Index);

impl Store for Library {
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
        Ok(Report { shape, cache, total: stats.costs.total(&OpKind::FOREGROUND) })
    }
}
