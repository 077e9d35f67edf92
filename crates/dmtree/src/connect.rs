//! How a process joins a pool of several.

use std::path::Path;
use std::time::Duration;

use dmtree_fabric::Result;
use dmtree_fabric::net::{Access, Keys, NicConfig};
use dmtree_pool::{Cluster, Place};

use crate::builder::DEFAULT_CACHE_BYTES;
use crate::durable::DurableIndexes;
use crate::pool::Pool;
use crate::restart;
use crate::size::ByteSize;

/// How long to wait for a pool by default.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// How long one attempt to join again may wait for the pool.
const ONE_ATTEMPT: Duration = Duration::from_secs(2);

/// Says how to join a pool of several processes; made by [`Pool::connect`], ended by
/// [`Connector::open`].
///
/// ```no_run
/// let pool = dmtree::Pool::connect("10.0.0.1:7000").key_file("pool.keys").cache("1GiB").open()?;
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
    /// memory: `HOST:PORT`; by default any free port, of all its addresses with keys, and of the
    /// loopback without.
    pub fn listen(mut self, at: &str) -> Self {
        self.listen = Some(at.to_string());
        self
    }

    /// The keys of this process as a text, which `dmtree keys` makes: a certificate of the pool
    /// with the role compute, and its private key. A pool with keys refuses a process without.
    /// Without keys the pool and this process must be on one machine. Keys need the feature `tls`.
    pub fn keys(mut self, text: &str) -> Self {
        self.access = Keys::of(text).map(Access::with);
        self
    }

    /// The keys of this process, in a file that its owner alone may read.
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Self {
        self.access = Keys::read(path.as_ref()).map(Access::with);
        self
    }

    /// Joins a pool without keys on another machine: whatever can connect to its nodes, or to this
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

    /// The NIC and the keys together, as programs have them that also use the layers below.
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
        let (cluster, within) = (Cluster::join_with_journal(&way.place(way.within))?, way.within);
        let durable = DurableIndexes::of_cluster(&cluster)?;
        let pool = Pool::new(cluster, cache_bytes, Some(way), durable);
        if pool.is_durable() {
            restart::let_in(pool.inner(), within)?;
        }
        pool.inner().watch(&pool.inner().incarnation())?;
        Ok(pool)
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

    /// Makes one attempt of many to join again.
    ///
    /// # Errors
    /// As [`Cluster::join_again`].
    pub(crate) fn join_again(&self, former: &Cluster) -> Result<Cluster> {
        former.join_again(&self.place(self.within.min(ONE_ATTEMPT)))
    }
}
