//! A test cluster: a pool, an index on each of its compute nodes, and blocking clients.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::{
    Core, Endpoint, Error, ErrorKind, InProcess, LeaseParameters, Membership, NodeId, Result,
    Transport,
};
use dmtree_parts::{AnyIndex, AnyNode, AnyOptions, NodeContext, OpSet, Root, naming};
use dmtree_pool::{Cluster, IndexEntry, NewIndex, PoolNode, PoolOptions};

use crate::remote_client::RemoteClient;

pub use crate::client::Client;

/// Bytes of buffers per client.
const SLAB_BYTES: u64 = 16 << 20;

/// An index on every compute node of a fresh pool. Errors are those of the pool, of the fabric and
/// of the index, unless a function says otherwise.
#[derive(Clone)]
pub struct TestCluster {
    /// The pool.
    pub cluster: Cluster,
    cache_bytes: u64,
    /// The options of the index.
    pub options: AnyOptions,
    root: Root,
    /// The index's shared state on each compute node.
    pub nodes: Vec<AnyNode>,
    /// Clients on compute nodes of other processes, which have opened the index, too.
    remote_clients: Vec<RemoteClient>,
}

impl TestCluster {
    /// Makes the pool, formats the index, and opens it on every compute node.
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
    #[cfg(feature = "verbs")]
    pub fn on_verbs(
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        use dmtree_fabric::verbs::{Config, VerbsFabric};
        let fabric = VerbsFabric::new(&Config::default())?;
        nodes(pool).try_for_each(|(node, bytes)| fabric.add_node(node, bytes))?;
        Self::on(Cluster::format(Arc::new(fabric), pool)?, cache_bytes, options)
    }

    /// The same on a fabric of this process without nodes.
    pub fn on_local(
        fabric: LocalFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        nodes(pool).try_for_each(|(node, bytes)| fabric.add_node(node, bytes))?;
        Self::on(Cluster::format(Arc::new(fabric), pool)?, cache_bytes, options)
    }

    /// Formats the index on a pool, and opens it on every compute node.
    pub fn on(cluster: Cluster, cache_bytes: u64, options: impl Into<AnyOptions>) -> Result<Self> {
        Self::entered(cluster, cache_bytes, &options.into(), ("test", "test"), true)
    }

    /// The index of this name and system, with the options of its creation; created if there is
    /// none.
    pub fn open_or_create(
        cluster: Cluster,
        cache_bytes: u64,
        options: &AnyOptions,
        called: (&str, &str),
    ) -> Result<Self> {
        Self::entered(cluster, cache_bytes, options, called, false)
    }

    fn entered(
        cluster: Cluster,
        cache_bytes: u64,
        options: &AnyOptions,
        (name, system): (&str, &str),
        is_new: bool,
    ) -> Result<Self> {
        let cx = NodeContext { pool: cluster.compute_node(0)?, cache_bytes };
        let ep = cx.pool.endpoint(SLAB_BYTES)?;
        let encoded = &serde_json::to_vec(options).expect("options are plain data");
        let new = NewIndex { name, system, options: encoded };
        let entry = ep.core().block_on(ep.slot(), async {
            match is_new {
                true => naming::create(&ep, &cx, new, options).await,
                false => Box::pin(naming::open_or_create(&ep, &cx, new, options)).await,
            }
        })?;
        if entry.system != system {
            return Err(Error::invalid(format!(
                "the index {name:?} of this pool is a {:?}, not a {system:?}: give another name",
                entry.system
            )));
        }
        Self::opened(cluster, cache_bytes, options, &entry)
    }

    /// Opens an index that is in the catalog of a pool, of the type of these options, on every
    /// compute node of this process; `NotFound`.
    pub fn find(
        cluster: Cluster,
        cache_bytes: u64,
        options: &AnyOptions,
        name: &str,
    ) -> Result<Self> {
        let first = cluster.compute_node(0)?;
        let ep = first.endpoint(SLAB_BYTES)?;
        let found = ep.core().block_on(ep.slot(), first.catalog().find_index(&ep, name))?;
        let entry = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("the pool has no index {name:?}"))
        })?;
        Self::opened(cluster, cache_bytes, options, &entry)
    }

    fn opened(
        cluster: Cluster,
        cache_bytes: u64,
        options: &AnyOptions,
        entry: &IndexEntry,
    ) -> Result<Self> {
        let wrong = |e| {
            let what = "the laboratory opens what it has created, not what the library has";
            Error::invalid(format!("options of the index {:?}: {e}; {what}", entry.name))
        };
        let options = options.with(serde_json::from_slice(&entry.options).map_err(wrong)?);
        options.check().map_err(wrong)?;
        let root = Root { index: entry.id, word: entry.root_word };
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

    /// Gives these compute nodes leases of this length, and the news of each other.
    pub fn grant(&self, nodes: impl Iterator<Item = usize> + Clone, lease_ns: u64) -> Result<()> {
        self.prolong(nodes.clone(), lease_ns)?;
        // Twice: the first nodes hear of the others that have joined.
        for cn in nodes.clone().chain(nodes) {
            let node = self.cluster.compute_node(cn)?;
            let ep = node.endpoint(0)?;
            ep.block_on(node.membership().membership_step(&ep))?;
        }
        Ok(())
    }

    /// Gives these compute nodes leases of this length. None has ended before, though time may have
    /// passed since the agents ended: for verbs that were in flight.
    pub fn prolong(&self, nodes: impl Iterator<Item = usize> + Clone, lease_ns: u64) -> Result<()> {
        let (membership, acknowledge_ns) = (self.membership(), 10 * lease_ns);
        let Some(first) = nodes.clone().next() else { return Ok(()) };
        membership.excuse(self.cluster.compute_node(first)?.endpoint(0)?.now());
        let parameters = LeaseParameters { lease_ns, acknowledge_ns, ..LeaseParameters::default() };
        membership.set_lease_parameters(parameters);
        for cn in nodes {
            let node = self.cluster.compute_node(cn)?;
            let ep = node.endpoint(0)?;
            node.membership().renew_soon();
            ep.block_on(node.membership().renew(&ep))?;
        }
        Ok(())
    }

    /// The same with one more compute node, of another process that has opened the index.
    #[must_use]
    pub fn with(mut self, client: RemoteClient) -> Self {
        self.remote_clients.push(client);
        self
    }

    /// How many compute nodes can have clients of any key: the first one alone, if it owns all
    /// keys.
    pub fn places(&self) -> usize {
        match self.options.any_node() {
            Ok(false) => 1,
            _ => self.nodes.len() + self.remote_clients.len(),
        }
    }

    /// Those of them in this process: the first ones.
    pub fn local_places(&self) -> usize {
        self.places().min(self.nodes.len())
    }

    /// Starts a compute node that has come back, and opens the index on it.
    pub fn revive(&self, cn: usize) -> Result<AnyNode> {
        self.open(self.cluster.revive(cn)?)
    }

    fn open(&self, pool: Arc<PoolNode>) -> Result<AnyNode> {
        let cx = NodeContext { pool, cache_bytes: self.cache_bytes };
        self.options.node(&cx, self.root)
    }

    /// The same on a simulated fabric without nodes; its time stands until `set_timed` starts the
    /// fabric's clock.
    pub fn simulated(
        fabric: &SimFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
    ) -> Result<Self> {
        let judge = Arc::new(InProcess::new(LeaseParameters::default()));
        Self::served(fabric, pool, cache_bytes, options, (judge.clone(), judge))
    }

    /// The same with a membership judge and the path on which nodes reach it.
    pub(crate) fn served(
        fabric: &SimFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: impl Into<AnyOptions>,
        (judge, path): (Arc<InProcess>, Arc<dyn Membership>),
    ) -> Result<Self> {
        nodes(pool).try_for_each(|(node, bytes)| fabric.add_node(node, bytes))?;
        let cluster = Cluster::format_before(Arc::new(fabric.clone()), pool, judge, path)?;
        Self::on(cluster, cache_bytes, options)
    }

    /// A blocking client on compute node `cn`; stays on the thread that makes it.
    pub fn client(&self, cn: usize) -> Result<Client> {
        if let Some(client) =
            cn.checked_sub(self.nodes.len()).and_then(|n| self.remote_clients.get(n))
        {
            return Ok(client.clone().into());
        }
        self.client_of(cn, self.nodes[cn].clone())
    }

    /// A blocking client of the index as it is opened on the present incarnation of a node.
    pub fn client_of(&self, cn: usize, node: AnyNode) -> Result<Client> {
        let ep = self.cluster.compute_node(cn)?.endpoint(SLAB_BYTES)?;
        Ok(node.client(ep).into())
    }

    /// Clients on one executor, one on each of these compute nodes; those of one node share its
    /// transport.
    pub fn coroutines(&self, cns: impl IntoIterator<Item = usize>) -> Result<Coroutines> {
        let mut transports: BTreeMap<usize, Rc<dyn Transport>> = BTreeMap::new();
        let (mut core, mut clients) = (None, Vec::new());
        for cn in cns {
            let transport = match transports.entry(cn) {
                Entry::Occupied(there) => there.get().clone(),
                Entry::Vacant(place) => place.insert(self.attach(cn)?).clone(),
            };
            let core = core.get_or_insert_with(|| Core::new(transport.clone(), 4 * SLAB_BYTES));
            clients.push(self.placed(core, (cn, transport), None));
        }
        let core = core.ok_or_else(|| Error::invalid("no client"))?;
        Ok((core, clients))
    }

    /// A transport of compute node `cn`.
    pub fn attach(&self, cn: usize) -> Result<Rc<dyn Transport>> {
        let pool = self.cluster.compute_node(cn)?;
        pool.fabric().attach(pool.cn())
    }

    /// A client on compute node `cn`, by its transport; its verbs count in the sums of the endpoint
    /// `first`, if there is one.
    pub fn placed(
        &self,
        core: &Rc<Core>,
        (cn, transport): (usize, Rc<dyn Transport>),
        first: Option<&Endpoint>,
    ) -> AnyIndex {
        let (core, slot) = (core.clone(), core.add_slot());
        self.nodes[cn].client(match first {
            None => Endpoint::new(core, transport, slot),
            Some(first) => Endpoint::counting_with(core, transport, slot, first),
        })
    }
}

/// The nodes of a pool, and the bytes of their regions.
pub fn nodes(pool: &PoolOptions) -> impl Iterator<Item = (NodeId, u64)> {
    let memory = (0..pool.memory_nodes).map(|m| (NodeId::memory(m), pool.memory_bytes_per_node));
    let compute_bytes = pool.chosen_compute_bytes();
    memory.chain((0..pool.compute_nodes).map(move |c| (NodeId::compute(c), compute_bytes)))
}

/// An executor, and its clients.
pub type Coroutines = (Rc<Core>, Vec<AnyIndex>);
