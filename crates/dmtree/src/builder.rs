//! What an embedded pool is made of.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dmtree_fabric::{Error, Result};
use dmtree_journal::Level;
use dmtree_pool::{Cluster, PoolOptions};

use crate::durable::{Durable, DurableIndexes, OpenProgress};
use crate::pool::Pool;
use crate::restart;
use crate::size::ByteSize;

/// Bytes of memory by default: 256 MiB.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of cache by default: 64 MiB.
pub(crate) const DEFAULT_CACHE_BYTES: u64 = 64 << 20;

/// Says what an embedded pool is made of; made by [`Pool::embedded`], ended by
/// [`PoolBuilder::open`].
///
/// ```
/// let pool = dmtree::Pool::embedded().memory("64MiB").memory_nodes(2).compute_nodes(2).open()?;
/// assert!(pool.list()?.is_empty());
/// # Ok::<(), dmtree::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `open`"]
pub struct PoolBuilder {
    memory: Result<u64>,
    cache: Result<u64>,
    /// 0: chosen.
    table_memory: Result<u64>,
    memory_nodes: u16,
    compute_nodes: u16,
    durable: Option<Durable>,
}

impl PoolBuilder {
    pub(crate) fn new() -> Self {
        Self {
            memory: Ok(DEFAULT_MEMORY_BYTES),
            cache: Ok(DEFAULT_CACHE_BYTES),
            table_memory: Ok(0),
            memory_nodes: 1,
            compute_nodes: 1,
            durable: None,
        }
    }

    /// Memory for data, all memory nodes together: bytes, or a text such as `"256MiB"` (the
    /// default). It is reserved at once and filled as needed; when it is used up, writes end in
    /// [`ErrorKind::Full`](crate::ErrorKind::Full).
    pub fn memory(mut self, size: impl ByteSize) -> Self {
        self.memory = size.to_bytes().map_err(|e| e.context("memory"));
        self
    }

    /// Cache of every index on every compute node: bytes, or a text such as `"64MiB"` (the
    /// default).
    pub fn cache(mut self, size: impl ByteSize) -> Self {
        self.cache = size.to_bytes().map_err(|e| e.context("cache"));
        self
    }

    /// Memory of each compute node for tables, locks and images of leaves; 1/32 of the memory for
    /// data by default, 4 MiB at least. Tables that find no room there go to memory nodes.
    pub fn table_memory(mut self, size: impl ByteSize) -> Self {
        self.table_memory = size.to_bytes().map_err(|e| e.context("table_memory"));
        self
    }

    /// How many memory nodes share the memory; 1 by default.
    pub fn memory_nodes(mut self, nodes: u16) -> Self {
        self.memory_nodes = nodes;
        self
    }

    /// How many compute nodes sessions are spread over; 1 by default. Each has caches and locks of
    /// its own, as if it were a machine of its own.
    pub fn compute_nodes(mut self, nodes: u16) -> Self {
        self.compute_nodes = nodes;
        self
    }

    /// The pool lasts: the effects of writes are in a journal in this directory before they are
    /// visible, and the pool has them again when it is opened again. An empty directory, or one
    /// that is not there, becomes a journal. Data is served from memory, as ever.
    ///
    /// An acknowledged write survives the death of the process. It survives a loss of power when
    /// the device has it: after 100 ms, or what [`PoolBuilder::sync_every`] says, or at once with
    /// [`PoolBuilder::sync`]. A bulk load that a crash cuts off may be there in part.
    ///
    /// Programs need the feature `durable`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let directory = directory.path();
    /// let pool = dmtree::Pool::embedded().memory("8MiB").durable(directory).open()?;
    /// pool.open_or_create("users", dmtree::Options::default())?.put("ada", "1815")?;
    /// drop(pool);
    /// let pool = dmtree::Pool::embedded().memory("8MiB").durable(directory).open()?;
    /// assert_eq!(pool.open("users")?.get("ada")?.as_deref(), Some(&b"1815"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durable(mut self, directory: impl AsRef<Path>) -> Self {
        self.durable = Some(Durable::new(directory.as_ref().to_owned()));
        self
    }

    /// With [`PoolBuilder::durable`]: a write is visible, and acknowledged, when the device has it.
    /// A leaf takes one write, or batch, in the time of one sync of the device; writes of different
    /// leaves share syncs.
    pub fn sync(self) -> Self {
        self.journaled("sync", |durable| durable.level = Level::Sync)
    }

    /// With [`PoolBuilder::durable`]: the device has an acknowledged write after this time, 100 ms
    /// by default. Zero leaves it to the system.
    pub fn sync_every(self, time: Duration) -> Self {
        self.journaled("sync_every", |durable| durable.sync_every(time))
    }

    /// With [`PoolBuilder::durable`]: what is told while the pool is opened.
    pub fn on_progress(self, report: impl Fn(&OpenProgress) + Send + Sync + 'static) -> Self {
        self.journaled("on_progress", |durable| durable.report = Some(Arc::new(report)))
    }

    fn journaled(mut self, what: &str, set: impl FnOnce(&mut Durable)) -> Self {
        match &mut self.durable {
            Some(durable) => set(durable),
            None => {
                let e = format!("{what} is about a pool that lasts: call `durable` before it");
                self.memory = self.memory.and(Err(Error::invalid(e)));
            }
        }
        self
    }

    /// Opens the pool: empty, or with what its journal has.
    ///
    /// **An embedded pool without [`PoolBuilder::durable`] lives in the memory of this process and
    /// nowhere else:** nothing is written to disk, and everything in it is gone when the last of
    /// its handles is dropped or the process ends, however it ends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size that is none,
    /// numbers that do not fit together, or a directory of something else;
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) for a journal that another process has open,
    /// [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) for one of another format,
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) for one with more than the memory holds. They
    /// say what to change.
    pub fn open(self) -> Result<Pool> {
        let (memory, cache_bytes) = (self.memory?, self.cache?);
        let compute_bytes_per_node = self.table_memory?.next_multiple_of(64);
        if self.memory_nodes == 0 {
            return Err(Error::invalid("memory_nodes is 0; a pool has one at least"));
        }
        let options = PoolOptions {
            memory_nodes: self.memory_nodes,
            compute_nodes: self.compute_nodes,
            memory_bytes_per_node: memory / u64::from(self.memory_nodes) / 64 * 64,
            compute_bytes_per_node,
            ..PoolOptions::default()
        };
        let cluster = Cluster::embedded(&options)?;
        let Some(durable) = self.durable else {
            return Ok(Pool::new(cluster, cache_bytes, None, None));
        };
        let indexes = DurableIndexes::new(durable.open()?);
        let pool = Pool::new(cluster, cache_bytes, None, Some(indexes));
        let load = restart::load(pool.inner(), durable.report.as_ref());
        load.map_err(|e| e.context(durable.directory.display().to_string()))?;
        Ok(pool)
    }
}
