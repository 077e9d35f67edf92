//! What the shell works on: the library's own index, embedded or in a pool of several processes
//! (which this process joins again by itself when it has lost its membership), or an index of
//! another system.

use std::io::IsTerminal;
use std::ops::Bound;
use std::path::Path;

use dmtree::{CheckpointSize, Index, OpenProgress, Options, Pool, PoolBuilder};
use dmtree_command::{Failure, Result};
use dmtree_fabric::{Error as FabricError, ErrorKind, OpKind, Result as FabricResult, Totals};
use dmtree_parts::{CacheStats, Outcome, ScanRequest, Shape, Write};

use crate::args::ShellArgs;
use crate::transfer::connect;
use crate::{lab, output};

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
    /// Writes a checkpoint of the whole pool.
    ///
    /// # Errors
    /// `Unsupported` for a pool that is not durable.
    fn checkpoint(&mut self, _: &Path) -> FabricResult<CheckpointSize> {
        Err(FabricError::unsupported("no pool of this system is durable"))
    }
}

/// The index that the arguments name.
///
/// # Errors
/// Unknown systems; a pool that cannot be joined.
pub fn open(a: &ShellArgs) -> Result<Box<dyn Store>> {
    if a.tool.system != LIBRARY {
        if a.durable.is_some() {
            let message = format!("--durable is for {LIBRARY}: {:?} has no journal", a.tool.system);
            return Err(Failure::input(message));
        }
        return lab::open(a);
    }
    let pool = match (&a.tool.connect, &a.durable) {
        (Some(first), _) => join(a, first)?,
        (None, Some(directory)) => durable(a, directory)?,
        (None, None) => embedded(a).open()?,
    };
    let index = open_or_create(&pool, &a.index)?;
    Ok(Box::new(Library { pool, index }))
}

fn embedded(a: &ShellArgs) -> PoolBuilder {
    Pool::embedded().memory(a.tool.memory_bytes.0).compute_nodes(2)
}

/// Opens the pool of a journal.
fn durable(a: &ShellArgs, directory: &Path) -> Result<Pool> {
    let builder = embedded(a).durable(directory);
    let builder = if a.sync { builder.sync() } else { builder };
    let builder = if std::io::stderr().is_terminal() {
        let told = |p: &OpenProgress| output::note(&format!("{}: {} pairs", p.index, p.pairs));
        builder.on_progress(told)
    } else {
        builder
    };
    builder.open().map_err(Failure::refused)
}

/// An index has the options that it was created with.
fn open_or_create(pool: &Pool, name: &str) -> Result<Index> {
    match pool.open(name) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(pool.open_or_create(name, options())?),
        opened => Ok(opened?),
    }
}

/// Joins a running pool.
fn join(a: &ShellArgs, first: &str) -> Result<Pool> {
    // Output of a script stays as it is: it gets the error of a pool that is not there.
    if std::io::stderr().is_terminal() {
        output::note(&format!("connecting to the pool of {first}"));
    }
    connect(first, &a.tool.nic, &a.tool.access)
}

/// What an index is made with: words that are typed stay inside of entries.
fn options() -> Options {
    Options::default().key_inline_bytes(24).value_inline_bytes(24)
}

/// The library's index.
struct Library {
    pool: Pool,
    index: Index,
}

impl Store for Library {
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (request.low, request.high);
        let scan = self.index.scan(range).limit(request.limit as u64);
        let mut pairs = if request.reverse { scan.rev() } else { scan }.pairs();
        while let Some((key, value)) = pairs.next_ref()? {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        self.index.get(key)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        match w {
            Write::Put(value) => self.index.put(key, value),
            Write::Insert(value) => self.index.insert(key, value),
            Write::Update(value) => self.index.update(key, value),
            Write::Delete => self.index.delete(key),
            Write::CompareAndSet { expected, new: Some(new) } => {
                self.index.compare_and_set(key, expected, new)
            }
            Write::CompareAndSet { expected, new: None } => {
                self.index.compare_and_delete(key, expected)
            }
        }
    }

    fn report(&mut self) -> FabricResult<Report> {
        let shape = self.index.shape()?.shape;
        let stats = self.index.stats()?;
        let cache = stats.caches.first().copied().unwrap_or_default();
        Ok(Report { shape, cache, total: stats.costs.total(&OpKind::FOREGROUND) })
    }

    fn checkpoint(&mut self, to: &Path) -> FabricResult<CheckpointSize> {
        self.pool.checkpoint(to)
    }
}
