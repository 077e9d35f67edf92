//! A test cluster: a pool, an index on each of its compute nodes, and blocking clients.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::sim::{FabricFaults, Profile, SimFabric};
use dmtree_fabric::{
    Capabilities, Core, Endpoint, Error, ErrorKind, InProcess, LeaseParameters, Membership, NodeId,
    Result,
};
use dmtree_parts::naming::{self, IndexRequest};
use dmtree_parts::{AnyIndex, AnyNode, AnyOptions, NodeContext, OpSet, Root};
use dmtree_pool::{Cluster, PoolNode, PoolOptions};

use crate::remote_client::RemoteClient;

pub use crate::client::Client;

/// Bytes of buffers per client.
const SLAB_BYTES: u64 = 16 << 20;

/// An index on every compute node of a fresh pool.
#[derive(Clone)]
pub struct TestCluster {
    /// The pool.
    pub cluster: Cluster,
    cache_bytes: u64,
    pub(crate) options: AnyOptions,
    root: Root,
    /// The index's shared state on each compute node.
    pub nodes: Vec<AnyNode>,
    /// Clients on compute nodes of other processes, which have opened the index, too.
    remote_clients: Vec<RemoteClient>,
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestCluster({} compute nodes)", self.nodes.len())
    }
}

impl TestCluster {
    /// Makes the pool, formats the index, and opens it on every compute node.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn new(
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        #[cfg(feature = "verbs")]
        if std::env::var("DMTREE_TEST_FABRIC").is_ok_and(|f| f == "verbs") {
            return Self::on_verbs(pool, cache_bytes, options);
        }
        Self::on(Cluster::embedded(pool)?, cache_bytes, options)
    }

    /// The same on the machine's RDMA device.
    ///
    /// # Errors
    /// Those of the device, of the pool and of the index.
    #[cfg(feature = "verbs")]
    pub fn on_verbs(
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        use dmtree_fabric::verbs::{Config, VerbsFabric};
        let fabric = VerbsFabric::new(&Config::default())?;
        for (node, bytes) in nodes(pool) {
            fabric.add_node(node, bytes)?;
        }
        Self::on(Cluster::format(Arc::new(fabric), pool)?, cache_bytes, options)
    }

    /// The same on a fabric of this process without nodes.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn on_local(
        fabric: LocalFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        for (node, bytes) in nodes(pool) {
            fabric.add_node(node, bytes)?;
        }
        Self::on(Cluster::format(Arc::new(fabric), pool)?, cache_bytes, options)
    }

    /// Formats the index on a pool, and opens it on every compute node.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn on(cluster: Cluster, cache_bytes: u64, options: impl Into<AnyOptions>) -> Result<Self> {
        Self::named(cluster, cache_bytes, options, ("test", "test"))
    }

    /// The same, with the index entered in the catalog under a name, as one of a system.
    ///
    /// # Errors
    /// Those of the pool and of the index; `Exists` when the name is taken.
    pub fn named(
        cluster: Cluster,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
        (name, system): (&str, &str),
    ) -> Result<Self> {
        let options = options.into();
        let cx = NodeContext { pool: cluster.compute_node(0)?, cache_bytes };
        let ep = cx.pool.endpoint(SLAB_BYTES)?;
        let encoded = &serde_json::to_vec(&options).expect("options are plain data");
        let request = IndexRequest { name, system, options: &options, encoded };
        let entry = ep.core().block_on(ep.slot(), naming::create(&ep, &cx, request))?;
        let root = Root { index: entry.id, word: entry.root_word };
        Self::opened(cluster, cache_bytes, options, root)
    }

    /// Opens an index that is in the catalog of a pool, of the type of these options, on every
    /// compute node of this process.
    ///
    /// # Errors
    /// Those of the pool and of the index; `NotFound`.
    pub fn find(
        cluster: Cluster,
        cache_bytes: u64,
        options: &AnyOptions,
        name: &str,
    ) -> Result<Self> {
        let first = cluster.compute_node(0)?;
        let ep = first.endpoint(SLAB_BYTES)?;
        let found = ep.core().block_on(ep.slot(), first.find_index(&ep, name))?;
        let entry = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("the pool has no index {name:?}"))
        })?;
        let corrupt = |e| Error::corrupt(format!("options of the index {name:?}: {e}"));
        let options = options.with(serde_json::from_slice(&entry.options).map_err(corrupt)?);
        options.check().map_err(corrupt)?;
        let root = Root { index: entry.id, word: entry.root_word };
        Self::opened(cluster, cache_bytes, options, root)
    }

    fn opened(cluster: Cluster, cache_bytes: u64, options: AnyOptions, root: Root) -> Result<Self> {
        let (nodes, remote_clients) = Default::default();
        let mut new = Self { cluster, cache_bytes, options, root, nodes, remote_clients };
        for cn in 0..new.cluster.compute_nodes() {
            let node = new.open(new.cluster.compute_node(cn)?)?;
            new.nodes.push(node);
        }
        Ok(new)
    }

    /// The operations of the index.
    pub fn ops(&self) -> OpSet {
        self.options.ops()
    }

    /// The membership of the pool, which is in this process.
    ///
    /// # Panics
    /// When it is not.
    pub fn membership(&self) -> &InProcess {
        self.cluster.in_process_membership().expect("in this process")
    }

    /// The same with one more compute node, of another process that has opened the index.
    #[must_use]
    pub fn with(mut self, client: RemoteClient) -> Self {
        self.remote_clients.push(client);
        self
    }

    /// How many compute nodes can have clients.
    pub fn places(&self) -> usize {
        self.nodes.len() + self.remote_clients.len()
    }

    /// Starts a compute node that has come back, and opens the index on it.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn revive(&self, cn: usize) -> Result<AnyNode> {
        self.open(self.cluster.revive(cn)?)
    }

    fn open(&self, pool: Arc<PoolNode>) -> Result<AnyNode> {
        let cx = NodeContext { pool, cache_bytes: self.cache_bytes };
        self.options.node(&cx, self.root)
    }

    /// The same in a simulated cluster; its time stands until `set_timed` starts the fabric's
    /// clock.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn simulated(
        profile: &Profile,
        seed: u64,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<(Self, SimFabric)> {
        Self::in_fabric(SimFabric::new(profile, seed), pool, cache_bytes, options)
    }

    /// The same on the adversarial face.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn adversarial(
        fabric_faults: FabricFaults,
        grants: Capabilities,
        seed: u64,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<(Self, SimFabric)> {
        let fabric = SimFabric::adversarial(fabric_faults, grants, seed)?;
        Self::in_fabric(fabric, pool, cache_bytes, options)
    }

    fn in_fabric(
        fabric: SimFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<(Self, SimFabric)> {
        let judge = Arc::new(InProcess::new(LeaseParameters::default()));
        let test_cluster =
            Self::served(&fabric, pool, cache_bytes, options, (judge.clone(), judge))?;
        Ok((test_cluster, fabric))
    }

    /// The same on a fabric without nodes, with a membership judge and the path on which nodes
    /// reach it.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub(crate) fn served(
        fabric: &SimFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
        (judge, path): (Arc<InProcess>, Arc<dyn Membership>),
    ) -> Result<Self> {
        for (node, bytes) in nodes(pool) {
            fabric.add_node(node, bytes)?;
        }
        let cluster = Cluster::format_before(Arc::new(fabric.clone()), pool, judge, path)?;
        Self::on(cluster, cache_bytes, options)
    }

    /// A blocking client on compute node `cn`; stays on the thread that makes it.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn client(&self, cn: usize) -> Result<Client> {
        if let Some(client) =
            cn.checked_sub(self.nodes.len()).and_then(|n| self.remote_clients.get(n))
        {
            return Ok(client.clone().into());
        }
        self.client_of(cn, self.nodes[cn].clone())
    }

    /// A blocking client of the index as it is opened on the present incarnation of a node.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn client_of(&self, cn: usize, node: AnyNode) -> Result<Client> {
        let ep = self.cluster.compute_node(cn)?.endpoint(SLAB_BYTES)?;
        Ok(node.client(ep).into())
    }

    /// Clients for the coroutines of one thread, on one executor.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn coroutines(&self, cn: usize, n: usize) -> Result<Coroutines> {
        let pool = self.cluster.compute_node(cn)?;
        let transport = pool.fabric().attach(pool.cn())?;
        let core = Core::new(transport.clone(), SLAB_BYTES);
        let clients = (0..n).map(|_| {
            let slot = core.add_slot();
            let ep = Endpoint::new(core.clone(), transport.clone(), slot);
            (slot, self.nodes[cn].client(ep))
        });
        let clients = clients.collect();
        Ok((core, clients))
    }
}

/// The nodes of a pool, and the bytes of their regions.
fn nodes(pool: &PoolOptions) -> impl Iterator<Item = (NodeId, u64)> {
    let memory = (0..pool.memory_nodes).map(|m| (NodeId::memory(m), pool.memory_bytes_per_node));
    let compute_bytes = pool.chosen_compute_bytes();
    memory.chain((0..pool.compute_nodes).map(move |c| (NodeId::compute(c), compute_bytes)))
}

/// An executor, and the clients of its slots.
pub type Coroutines = (Rc<Core>, Vec<(u32, AnyIndex)>);
