//! What an embedded pool is made of.

use dmtree_fabric::{Error, Result};
use dmtree_pool::{Cluster, PoolOptions};

use crate::pool::Pool;
use crate::size::ByteSize;

/// Bytes of memory when nobody says otherwise: 256 MiB.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of cache when nobody says otherwise: 64 MiB.
const DEFAULT_CACHE_BYTES: u64 = 64 << 20;

/// Says what an embedded pool is made of; made by [`Pool::embedded`], ended by [`PoolBuilder::open`].
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
    memory_nodes: u16,
    compute_nodes: u16,
}

impl PoolBuilder {
    pub(crate) fn new() -> Self {
        Self {
            memory: Ok(DEFAULT_MEMORY_BYTES),
            cache: Ok(DEFAULT_CACHE_BYTES),
            memory_nodes: 1,
            compute_nodes: 1,
        }
    }

    /// Memory for data, all memory nodes together: bytes, or a text such as `"256MiB"` (the default). It is reserved at once
    /// and filled as needed; when it is used up, writes end in [`ErrorKind::Full`](crate::ErrorKind::Full).
    pub fn memory(mut self, size: impl ByteSize) -> Self {
        self.memory = size.to_bytes().map_err(|e| e.context("memory"));
        self
    }

    /// Cache of every index on every compute node: bytes, or a text such as `"64MiB"` (the default).
    pub fn cache(mut self, size: impl ByteSize) -> Self {
        self.cache = size.to_bytes().map_err(|e| e.context("cache"));
        self
    }

    /// How many memory nodes share the memory; 1 by default.
    pub fn memory_nodes(mut self, nodes: u16) -> Self {
        self.memory_nodes = nodes;
        self
    }

    /// How many compute nodes sessions are spread over; 1 by default. Each has caches and locks of its own, as if it were a
    /// machine of its own.
    pub fn compute_nodes(mut self, nodes: u16) -> Self {
        self.compute_nodes = nodes;
        self
    }

    /// Opens the pool, empty.
    ///
    /// **An embedded pool lives in the memory of this process and nowhere else:** nothing is written to disk, and everything in
    /// it is gone when the last of its handles is dropped or the process ends, however it ends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size that is none, or numbers that do not fit
    /// together; it says what to change.
    pub fn open(self) -> Result<Pool> {
        let (memory, cache_bytes) = (self.memory?, self.cache?);
        if self.memory_nodes == 0 {
            return Err(Error::invalid("memory_nodes is 0; a pool has one at least"));
        }
        let options = PoolOptions {
            memory_nodes: self.memory_nodes,
            compute_nodes: self.compute_nodes,
            memory_bytes_per_node: memory / u64::from(self.memory_nodes) / 64 * 64,
            ..PoolOptions::default()
        };
        Ok(Pool::new(Cluster::embedded(&options)?, cache_bytes))
    }
}
