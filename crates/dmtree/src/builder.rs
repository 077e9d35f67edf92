//! What an embedded pool is made of, and how to join one of several processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dmtree_fabric::net::{Access, Key, NicConfig};
use dmtree_fabric::{Error, Result};
use dmtree_journal::Level;
use dmtree_pool::{Cluster, Place, PoolOptions};

use crate::durable::{Durable, DurableIndexes, OpenProgress};
use crate::pool::Pool;
use crate::restart;
use crate::size::ByteSize;

/// Bytes of memory by default: 256 MiB.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of cache by default: 64 MiB.
const DEFAULT_CACHE_BYTES: u64 = 64 << 20;
/// How long to wait for a pool by default.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// How long one attempt to join again may wait for the pool.
const ONE_ATTEMPT: Duration = Duration::from_secs(2);

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
    memory_nodes: u16,
    compute_nodes: u16,
    durable: Option<Durable>,
}

impl PoolBuilder {
    pub(crate) fn new() -> Self {
        Self {
            memory: Ok(DEFAULT_MEMORY_BYTES),
            cache: Ok(DEFAULT_CACHE_BYTES),
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
        if self.memory_nodes == 0 {
            return Err(Error::invalid("memory_nodes is 0; a pool has one at least"));
        }
        let options = PoolOptions {
            memory_nodes: self.memory_nodes,
            compute_nodes: self.compute_nodes,
            memory_bytes_per_node: memory / u64::from(self.memory_nodes) / 64 * 64,
            ..PoolOptions::default()
        };
        let cluster = Cluster::embedded(&options)?;
        let Some(durable) = self.durable else {
            return Ok(Pool::embedded_in(cluster, cache_bytes, None));
        };
        let indexes = DurableIndexes::new(durable.open()?);
        let pool = Pool::embedded_in(cluster, cache_bytes, Some(indexes));
        let load = restart::load(pool.inner(), durable.report.as_ref());
        load.map_err(|e| e.context(durable.directory.display().to_string()))?;
        Ok(pool)
    }
}

/// Says how to join a pool of several processes; made by [`Pool::connect`], ended by
/// [`Connector::open`].
///
/// ```no_run
/// let pool = dmtree::Pool::connect("10.0.0.1:7000").key_file("pool.key").cache("1GiB").open()?;
/// pool.open_or_create("users", dmtree::Options::default())?.put("ada", "1815")?;
/// # Ok::<(), dmtree::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a connector does nothing before `open`"]
pub struct Connector {
    listen: Option<String>,
    access: Result<Access>,
    cache: Result<u64>,
    /// All but where it listens, and its access.
    way: Way,
}

impl Connector {
    pub(crate) fn new(first: &str) -> Self {
        let (listen, within, nic_config) = (String::new(), DEFAULT_WAIT, NicConfig::default());
        let way = Way { first: first.to_string(), listen, wanted: None, within, nic_config };
        let (access, cache) = (Ok(Access::default()), Ok(DEFAULT_CACHE_BYTES));
        Self { listen: None, access, cache, way }
    }

    /// Cache of every index: bytes, or a text such as `"64MiB"` (the default).
    pub fn cache(mut self, size: impl ByteSize) -> Self {
        self.cache = size.to_bytes().map_err(|e| e.context("cache"));
        self
    }

    /// Where this process listens for the other compute nodes, which reach tables and locks in its
    /// memory: `HOST:PORT`; by default any free port, of all its addresses with a key, and of the
    /// loopback without one.
    pub fn listen(mut self, at: &str) -> Self {
        self.listen = Some(at.to_string());
        self
    }

    /// The key of the pool, a text of 32 bytes or more that all its processes have: without it a
    /// process is refused. Without a key the pool and this process must be on one machine.
    pub fn key(mut self, text: &str) -> Self {
        self.access = Key::of(text).map(Access::with);
        self
    }

    /// The key of the pool, in a file that its owner alone may read.
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Self {
        self.access = Key::read(path.as_ref()).map(Access::with);
        self
    }

    /// Joins a pool without a key on another machine: whatever can connect to its nodes, or to this
    /// process, reads and changes all of it.
    pub fn insecure(mut self) -> Self {
        self.access = self.access.map(|access| Access { insecure: true, ..access });
        self
    }

    /// Which compute node it is to be; any that is free by default.
    pub fn node(mut self, number: u16) -> Self {
        self.way.wanted = Some(number);
        self
    }

    /// The RDMA device, which is needed when the pool's verbs go over RDMA (`dmtree memnode
    /// --fabric verbs`); the first one with an active port by default. The program must be built
    /// with the feature `verbs` then.
    pub fn device(mut self, name: &str) -> Self {
        self.way.nic_config.device = Some(name.to_string());
        self
    }

    /// Index into the table of addresses of the device's port; chosen by kind by default.
    pub fn gid_index(mut self, index: u8) -> Self {
        self.way.nic_config.gid_index = Some(index);
        self
    }

    /// The NIC and the key together, as programs have them that also use the layers below.
    #[doc(hidden)]
    pub fn nic_config(mut self, nic_config: NicConfig) -> Self {
        self.access = Ok(nic_config.access.clone());
        self.way.nic_config = nic_config;
        self
    }

    /// How long it waits for a pool that is not ready; 30 s by default.
    pub fn wait(mut self, within: Duration) -> Self {
        self.way.within = within;
        self
    }

    /// Joins the pool as a compute node. A process that loses its membership, because it hung or
    /// was cut off for longer than its lease, joins again by itself: the pool and its handles stay
    /// valid. When the last handle of the pool is dropped the node leaves in good order; when the
    /// process dies, the other compute nodes repair what it had begun.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the pool is not ready in time,
    /// [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) for another release,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when it is a pool over RDMA and
    /// this machine or program has none; they say what is missing.
    pub fn open(self) -> Result<Pool> {
        let (cache_bytes, access, mut way) = (self.cache?, self.access?, self.way);
        way.listen = self.listen.unwrap_or_else(|| access.any_port().to_owned());
        way.nic_config.access = access;
        Pool::connected(Cluster::join_with_journal(&way.place(way.within))?, cache_bytes, way)
    }
}

/// How this process joins its pool, the first time and whenever it has lost its membership.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    first: String,
    listen: String,
    wanted: Option<u16>,
    within: Duration,
    nic_config: NicConfig,
}

impl Way {
    fn place(&self, within: Duration) -> Place<'_> {
        Place {
            first: &self.first,
            listen: &self.listen,
            wanted: self.wanted,
            within,
            data_path: None,
            nic_config: &self.nic_config,
        }
    }

    /// How long it waits for a pool that is not ready.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// For one attempt of many to join again.
    pub(crate) fn again(&self) -> Place<'_> {
        self.place(self.within.min(ONE_ATTEMPT))
    }
}
