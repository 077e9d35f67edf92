//! A test bed: a pool, an index on each of its compute nodes, and blocking clients.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::sim::{Hazards, Profile, SimFabric};
use dmtree_fabric::{Capabilities, Core, Endpoint, NodeId, Result, Snapshot};
use dmtree_parts::{
    Fill, Found, Loaded, NodeContext, Outcome, Page, RangeIndex, Resume, Root, ScanRequest, Shape,
    Values, Work, Write,
};
use dmtree_pool::{Cluster, PoolNode, PoolOptions};

/// Bytes of buffers per client.
const SLAB_BYTES: u64 = 16 << 20;

/// An index on every compute node of a fresh pool.
pub struct Bed<I: RangeIndex> {
    /// The pool.
    pub cluster: Cluster,
    cache_bytes: u64,
    options: I::Options,
    root: Root,
    /// The index's shared state on each compute node.
    pub nodes: Vec<Arc<I::Node>>,
}

impl<I: RangeIndex> Clone for Bed<I> {
    fn clone(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            cache_bytes: self.cache_bytes,
            options: self.options.clone(),
            root: self.root,
            nodes: self.nodes.clone(),
        }
    }
}

impl<I: RangeIndex> std::fmt::Debug for Bed<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bed({} compute nodes)", self.nodes.len())
    }
}

impl<I: RangeIndex> Bed<I> {
    /// Makes the pool, formats the index, and opens it on every compute node.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn new(pool: &PoolOptions, cache_bytes: u64, options: &I::Options) -> Result<Self> {
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
    pub fn on_verbs(pool: &PoolOptions, cache_bytes: u64, options: &I::Options) -> Result<Self> {
        use dmtree_fabric::verbs::{Config, VerbsFabric};
        let fabric = VerbsFabric::new(&Config::default())?;
        for (node, bytes) in nodes(pool) {
            fabric.add_node(node, bytes)?;
        }
        Self::on(Cluster::format(Arc::new(fabric), pool)?, cache_bytes, options)
    }

    /// Formats the index on a pool, and opens it on every compute node.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn on(cluster: Cluster, cache_bytes: u64, options: &I::Options) -> Result<Self> {
        let first = cluster.compute_node(0)?;
        let ep = first.endpoint(SLAB_BYTES)?;
        let core = ep.core().clone();
        let text = serde_json::to_vec(options).expect("options are plain data");
        let entry = core.block_on(ep.slot(), first.create_index(&ep, "test", "test", &text))?;
        let root = Root { index: entry.id, word: entry.root_word };
        let cx = NodeContext { pool: first.clone(), cache_bytes };
        I::check_options(options, &cx)?;
        core.block_on(ep.slot(), I::format(&ep, &cx, options, root))?;
        core.block_on(ep.slot(), first.publish_index(&ep, &entry))?;
        let nodes = (0..cluster.compute_nodes())
            .map(|i| {
                let cx = NodeContext { pool: cluster.compute_node(i)?, cache_bytes };
                I::node(&cx, options, root)
            })
            .collect::<Result<_>>()?;
        Ok(Self { cluster, cache_bytes, options: options.clone(), root, nodes })
    }

    /// Starts a compute node that has come back, and opens the index on it.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn revive(&self, cn: usize) -> Result<Arc<I::Node>> {
        self.open(self.cluster.revive(cn)?)
    }

    fn open(&self, pool: Arc<PoolNode>) -> Result<Arc<I::Node>> {
        I::node(&NodeContext { pool, cache_bytes: self.cache_bytes }, &self.options, self.root)
    }

    /// The same in a simulated cluster, whose time stands still until the fabric's is let go.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn simulated(
        profile: &Profile,
        seed: u64,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: &I::Options,
    ) -> Result<(Self, SimFabric)> {
        Self::in_fabric(SimFabric::new(profile, seed), pool, cache_bytes, options)
    }

    /// The same on the adversarial face.
    ///
    /// # Errors
    /// Those of the pool and of the index.
    pub fn adversarial(
        hazards: Hazards,
        grants: Capabilities,
        seed: u64,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: &I::Options,
    ) -> Result<(Self, SimFabric)> {
        let fabric = SimFabric::adversarial(hazards, grants, seed)?;
        Self::in_fabric(fabric, pool, cache_bytes, options)
    }

    fn in_fabric(
        fabric: SimFabric,
        pool: &PoolOptions,
        cache_bytes: u64,
        options: &I::Options,
    ) -> Result<(Self, SimFabric)> {
        for (node, bytes) in nodes(pool) {
            fabric.add_node(node, bytes)?;
        }
        let cluster = Cluster::format(Arc::new(fabric.clone()), pool)?;
        Ok((Self::on(cluster, cache_bytes, options)?, fabric))
    }

    /// A blocking client on compute node `cn`; stays on the thread that makes it.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn client(&self, cn: usize) -> Result<Client<I>> {
        self.client_of(cn, self.nodes[cn].clone())
    }

    /// A blocking client of the index as it is opened on the present incarnation of a node.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn client_of(&self, cn: usize, node: Arc<I::Node>) -> Result<Client<I>> {
        let ep = self.cluster.compute_node(cn)?.endpoint(SLAB_BYTES)?;
        let core = ep.core().clone();
        Ok(Client { core, slot: ep.slot(), index: I::client(ep, node) })
    }

    /// Clients for the coroutines of one thread, on one executor.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn coroutines(&self, cn: usize, n: usize) -> Result<Coroutines<I>> {
        let pool = self.cluster.compute_node(cn)?;
        let transport = pool.fabric().attach(pool.cn())?;
        let core = Core::new(transport.clone(), SLAB_BYTES);
        let clients = (0..n).map(|_| {
            let slot = core.add_slot();
            let ep = Endpoint::new(core.clone(), transport.clone(), slot);
            (slot, I::client(ep, self.nodes[cn].clone()))
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
pub type Coroutines<I> = (Rc<Core>, Vec<(u32, I)>);

/// A client whose calls block.
pub struct Client<I: RangeIndex> {
    core: Rc<Core>,
    slot: u32,
    /// The client itself.
    pub index: I,
}

impl<I: RangeIndex> std::fmt::Debug for Client<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client(slot {})", self.slot)
    }
}

impl<I: RangeIndex> Client<I> {
    /// Reads a key.
    ///
    /// # Errors
    /// The index's.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let found = self.core.block_on(self.slot, self.index.get(key, &mut out))?;
        Ok(found.then_some(out))
    }

    /// Writes a key.
    ///
    /// # Errors
    /// The index's.
    pub fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        self.core.block_on(self.slot, self.index.write(key, w))
    }

    /// Fills a page.
    ///
    /// # Errors
    /// The index's.
    pub fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        self.core.block_on(self.slot, self.index.scan(r, page))
    }

    /// Reads several keys.
    ///
    /// # Errors
    /// The index's.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Values> {
        let mut out = Values::new();
        self.core.block_on(self.slot, self.index.get_many(keys, &mut out))?;
        Ok(out)
    }

    /// Applies several writes.
    ///
    /// # Errors
    /// The index's.
    pub fn write_many(&mut self, writes: &[(&[u8], Write<'_>)]) -> Result<Vec<Result<Outcome>>> {
        let mut out = Vec::new();
        self.core.block_on(self.slot, self.index.write_many(writes, &mut out))?;
        Ok(out)
    }

    /// Bulk load.
    ///
    /// # Errors
    /// The index's.
    pub fn load(
        &mut self,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: impl Into<Fill>,
    ) -> Result<Loaded> {
        let mut pairs = pairs.into_iter();
        self.core.block_on(self.slot, self.index.load(&mut pairs, sorted, fill.into()))
    }

    /// Does all maintenance that is due.
    ///
    /// # Errors
    /// The index's.
    pub fn maintain(&mut self) -> Result<()> {
        for _ in 0..100_000 {
            if self.core.block_on(self.slot, self.index.maintain())? == Work::None {
                return Ok(());
            }
        }
        Err(dmtree_fabric::Error::new(
            dmtree_fabric::ErrorKind::Busy,
            "maintenance does not come to an end",
        ))
    }

    /// Counts who holds what.
    ///
    /// # Errors
    /// The index's.
    pub fn census(&mut self) -> Result<Found> {
        self.core.block_on(self.slot, self.index.census())
    }

    /// Walks the structure.
    ///
    /// # Errors
    /// `Corrupt` for a broken invariant.
    pub fn walk(&mut self) -> Result<Shape> {
        self.core.block_on(self.slot, self.index.walk())
    }

    /// What it has counted since the last call.
    pub fn take_counts(&mut self) -> Snapshot {
        let snapshot = self.index.endpoint().snapshot();
        self.index.endpoint().reset_counters();
        snapshot
    }
}
