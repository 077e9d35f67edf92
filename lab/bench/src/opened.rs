//! An index on an embedded pool, open on every compute node, and its workers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::Write as _;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_check::test_cluster::{TestCluster, nodes};
use dmtree_check::verdict::{caught, on_threads};
use dmtree_fabric::{Core, Endpoint, Fifo, Result as FabricResult, Snapshot, Worker};
use dmtree_parts::worker::{self, Workers};
use dmtree_parts::{AnyIndex, AnyNode, AnyOptions, CacheStats};
use dmtree_pool::{Cluster, Place, PoolOptions};

use crate::failure::{Failure, Result};
use crate::latency::ByKind;
use crate::simulated::{CpuSource, FabricSpec, SimFabric};

/// Bytes of buffers of one simulated client.
const SIM_SLAB_BYTES: u64 = 256 << 10;
/// Bytes of buffers of all clients of a thread.
pub(crate) const SLAB_BYTES: u64 = 64 << 20;
/// The name of the index in the catalog by default.
const INDEX_NAME: &str = "bench";
/// Longest wait for a pool that is not ready.
const POOL_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// The parameters of a pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Compute nodes.
    pub cns: u16,
    /// Memory nodes.
    pub mns: u16,
    /// Bytes of each memory node.
    pub memory_bytes: u64,
    /// Bytes of each compute node's region; 0 chooses.
    pub compute_bytes: u64,
    /// Cache budget of each compute node.
    pub cache_bytes: u64,
    /// The fabric of the pool.
    pub fabric: FabricSpec,
    /// A persistent index: opened if it exists, created otherwise. Without a name, an index is
    /// created, and removed at the end.
    pub index: Option<String>,
}

impl PoolSpec {
    /// A pool with one memory node, for a tool.
    pub fn small(cns: u16, memory_bytes: u64) -> Self {
        Self {
            cns,
            mns: 1,
            memory_bytes,
            compute_bytes: 0,
            cache_bytes: 64 << 20,
            fabric: FabricSpec::Local,
            index: None,
        }
    }
}

/// An index on an embedded pool, open on every compute node.
pub struct Opened {
    index: TestCluster,
    sim: Option<(SimFabric, u64)>,
    /// The index, if it must be removed from a pool that stays.
    fleeting: Option<String>,
}

/// A client and its placement.
pub struct PlacedClient {
    /// Its number among all clients.
    pub number: u32,
    /// Its compute node.
    pub cn: usize,
    /// Whether other clients share its thread.
    pub shares_thread: bool,
    /// The client.
    pub client: AnyIndex,
    /// Its endpoint.
    pub ep: Endpoint,
    /// Latencies of all clients of the executor. One histogram per client would take more memory
    /// than an index.
    pub latency: Rc<RefCell<ByKind>>,
}

/// The result of a client.
#[derive(Debug)]
pub struct Left<T> {
    /// Its number.
    pub number: u32,
    /// Its compute node.
    pub cn: usize,
    /// Its output.
    pub out: T,
    /// Its verb counts. Simulated clients count together: one of them has all counts.
    pub counts: Snapshot,
}

/// A formatted pool, and the simulated fabric under it with its seed, if there is one. The
/// simulated fabric executes verbs at once until it is timed.
fn cluster(spec: &PoolSpec) -> Result<(Cluster, Option<(SimFabric, u64)>)> {
    let options = PoolOptions {
        memory_nodes: spec.mns,
        compute_nodes: spec.cns,
        memory_bytes_per_node: spec.memory_bytes,
        compute_bytes_per_node: spec.compute_bytes,
        ..PoolOptions::default()
    };
    let (profile, seed, cpu) = match &spec.fabric {
        FabricSpec::Local => return Ok((Cluster::embedded(&options)?, None)),
        FabricSpec::Apart { data_path, nic_config } => {
            return Ok((Cluster::over(&options, *data_path, nic_config)?, None));
        }
        FabricSpec::Joined { first, data_path, nic_config } => {
            let (listen, wanted, within) = (nic_config.access.any_port(), None, POOL_WITHIN);
            let place = Place { first, listen, wanted, within, data_path: *data_path, nic_config };
            let joined = Cluster::join_as(&place, spec.cns).map_err(Failure::refused)?;
            for (node, presence) in joined.compute_node(0)?.membership().away() {
                let _ = writeln!(std::io::stderr(), "note: {}", presence.refusal(node));
            }
            return Ok((joined, None));
        }
        FabricSpec::Sim { profile, seed, cpu } => (profile, seed, cpu),
    };
    options.validate()?;
    let sim = SimFabric::new(profile, *seed);
    if *cpu == CpuSource::Measured {
        sim.measure_cpu();
    }
    nodes(&options).try_for_each(|(node, bytes)| sim.add_node(node, bytes))?;
    Ok((Cluster::format(Arc::new(sim.clone()), &options)?, Some((sim, *seed))))
}

/// Removes an index from a pool, if it is there.
pub(crate) fn remove_index(cluster: &Cluster, name: &str) -> Result<()> {
    let pool = cluster.compute_node(0)?;
    let ep = pool.endpoint(SLAB_BYTES)?;
    if ep.core().block_on(ep.slot(), pool.catalog().find_index(&ep, name))?.is_some() {
        ep.core().block_on(ep.slot(), pool.catalog().drop_index(&ep, name))?;
    }
    Ok(())
}

/// The name of an index that is removed at the end; no other living process uses it. An index that
/// a killed process of this number has left is removed first.
fn fleeting(cluster: &Cluster) -> Result<String> {
    let name = format!("{INDEX_NAME} of {}", cluster.compute_node(0)?.cn());
    remove_index(cluster, &name).map(|()| name)
}

/// The loop of a client.
pub type Loop<T> = Pin<Box<dyn Future<Output = T>>>;

impl Opened {
    /// Creates a pool, formats an index on it, and opens it on every compute node.
    ///
    /// # Errors
    /// Impossible options or sizes.
    pub fn create(system: &str, options: &AnyOptions, spec: &PoolSpec) -> Result<Self> {
        let (cluster, sim) = cluster(spec)?;
        let missing = cluster.fabric().caps().missing(&options.needs());
        if !missing.is_empty() {
            return Err(Failure::input(format!(
                "{system} needs what fabric {} does not grant: {}",
                cluster.fabric().name(),
                missing.join(", ")
            )));
        }
        let fleeting = match (&spec.fabric, &spec.index) {
            (FabricSpec::Joined { .. }, None) => Some(fleeting(&cluster)?),
            _ => None,
        };
        let name = fleeting.as_deref().or(spec.index.as_deref()).unwrap_or(INDEX_NAME);
        let called = (name, system);
        let index = TestCluster::open_or_create(cluster, spec.cache_bytes, options, called)?;
        Ok(Self { index, sim, fleeting })
    }

    /// Number of compute nodes.
    pub fn compute_nodes(&self) -> usize {
        self.index.nodes.len()
    }

    /// The name of the fabric.
    pub fn fabric(&self) -> &'static str {
        self.index.cluster.fabric().name()
    }

    /// The index on every compute node.
    pub fn nodes(&self) -> Vec<AnyNode> {
        self.index.nodes.clone()
    }

    /// The caches of a compute node.
    pub fn cache_stats(&self, cn: usize) -> CacheStats {
        self.index.nodes[cn].cache_stats()
    }

    /// A client for exclusive use by the present thread.
    pub fn client(&self, cn: usize) -> Result<AnyIndex> {
        let pool = self.index.cluster.compute_node(cn)?;
        Ok(self.index.nodes[cn].client(pool.endpoint(SLAB_BYTES)?))
    }

    /// The simulated fabric, if it is one.
    pub fn sim(&self) -> Option<&SimFabric> {
        self.sim.as_ref().map(|(sim, _)| sim)
    }

    /// Whether verbs take time from now on; only a simulated fabric can change this.
    pub fn set_timed(&self, on: bool) {
        if let Some(sim) = self.sim() {
            sim.set_timed(on);
        }
    }

    /// Starts the workers of an index on a fabric of real threads. [`Opened::run`] has its own.
    pub fn start_workers(&self) -> Result<Workers> {
        let mut all = Workers::default();
        let workers = if self.sim.is_some() { 0 } else { self.index.options.workers()? };
        for (cn, node) in self.index.nodes.iter().enumerate() {
            let (pool, node) = (self.index.cluster.compute_node(cn)?, node.clone());
            all.start(&pool, workers, move |ep| node.client(ep))?;
        }
        Ok(all)
    }

    /// Runs so many threads (on the simulated fabric so many of each compute node) with so many
    /// clients each until they end, spread over the compute nodes in turn, and returns their
    /// results by number. No client begins before all exist. The workers of the index run beside
    /// them, and their verbs count. `tick` is called at intervals. Simulated clients share one real
    /// thread.
    pub fn run<T: Send + 'static>(
        &self,
        (threads, coroutines): (u32, u32),
        body: &(impl Fn(PlacedClient) -> Loop<T> + Sync),
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<Left<T>>> {
        let real_threads = if self.sim.is_some() { 1 } else { threads };
        let barrier = std::sync::Barrier::new(real_threads as usize);
        let failed = AtomicBool::new(false);
        let work = |thread: usize| {
            let placed_clients = || match &self.sim {
                Some((_, seed)) => self.simulated_clients((threads, coroutines), *seed),
                None => {
                    let numbers = thread as u32 * coroutines..(thread as u32 + 1) * coroutines;
                    Ok((self.placed_clients(numbers)?, Vec::new()))
                }
            };
            // The others wait for this thread at the barrier.
            let placed_clients = caught(placed_clients).unwrap_or_else(|_| Err(panicked()));
            failed.fetch_or(placed_clients.is_err(), Ordering::SeqCst);
            barrier.wait();
            let (placed_clients, workers) = placed_clients?;
            if failed.load(Ordering::SeqCst) {
                return Ok(Vec::new());
            }
            run_thread((placed_clients, workers), self.sim.is_some(), body)
        };
        let workers = self.start_workers()?;
        let mut all: Vec<Left<T>> = Vec::new();
        for left in on_threads(real_threads as usize, work, tick) {
            all.append(&mut left.unwrap_or_else(|_| Err(panicked()))?);
        }
        all.sort_by_key(|l| l.number);
        let counts = workers.stop().map_err(|e| Failure::violation(e.to_string()))?;
        if let Some(first) = all.first_mut() {
            first.counts.add(&counts);
        }
        Ok(all)
    }

    /// These clients of one real thread.
    fn placed_clients(&self, numbers: Range<u32>) -> Result<Vec<PlacedClient>> {
        let shares_thread = numbers.len() > 1;
        let cn_of = |number: u32| number as usize % self.index.nodes.len();
        let (_, clients) = self.index.coroutines(numbers.clone().map(cn_of))?;
        Ok(placed(numbers.zip(clients), shares_thread, cn_of))
    }

    /// All clients of a simulation, on one executor: `threads` client threads on every
    /// compute node, and the workers, each on a thread of its own. All count into the sums of the
    /// first one.
    fn simulated_clients(
        &self,
        (threads, coroutines): (u32, u32),
        seed: u64,
    ) -> Result<(Vec<PlacedClient>, Vec<AnyIndex>)> {
        let cns = self.index.nodes.len();
        let threads = (0..cns * threads as usize).map(|thread| self.index.attach(thread % cns));
        let threads = threads.collect::<FabricResult<Vec<_>>>()?;
        let Some(first) = threads.first() else { return Ok((Vec::new(), Vec::new())) };
        let count = threads.len() * coroutines as usize;
        let core = Core::new(first.clone(), SIM_SLAB_BYTES * count as u64);
        core.seed(seed);
        let mut clients: Vec<AnyIndex> = Vec::new();
        for (number, transport) in threads.iter().cycle().take(count).enumerate() {
            let place = (number % cns, transport.clone());
            let sums = clients.first().map(|first| first.endpoint());
            clients.push(self.index.placed(&core, place, sums));
        }
        let (mut workers, sums) = (Vec::new(), clients.first().map(|first| first.endpoint()));
        let each = self.index.options.workers()? as usize;
        for cn in (0..cns).flat_map(|cn| std::iter::repeat_n(cn, each)) {
            let place = (cn, self.index.attach(cn)?);
            workers.push(self.index.placed(&core, place, sums));
        }
        Ok((placed((0..).zip(clients), true, |number| number as usize % cns), workers))
    }
}

/// Clients of one executor, with their numbers.
fn placed(
    clients: impl Iterator<Item = (u32, AnyIndex)>,
    shares_thread: bool,
    cn_of: impl Fn(u32) -> usize,
) -> Vec<PlacedClient> {
    let latency = Rc::<RefCell<ByKind>>::default();
    let one = |(number, client): (u32, AnyIndex)| {
        let (ep, latency) = (client.endpoint().clone(), latency.clone());
        PlacedClient { number, cn: cn_of(number), shares_thread, client, ep, latency }
    };
    clients.map(one).collect()
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(name) = self.fleeting.take() else { return };
        // A pool that has ended meanwhile has no index.
        let _ = remove_index(&self.index.cluster, &name);
    }
}

fn panicked() -> Failure {
    Failure::violation("a client thread panicked: this is a defect of the system measured")
}

fn run_thread<T: 'static>(
    (placed_clients, workers): (Vec<PlacedClient>, Vec<AnyIndex>),
    shared_sums: bool,
    body: &(impl Fn(PlacedClient) -> Loop<T> + Sync),
) -> Result<Vec<Left<T>>> {
    let Some(first) = placed_clients.first().map(|s| s.ep.clone()) else { return Ok(Vec::new()) };
    let mut executor = Worker::new(first.core().clone());
    let left: Rc<RefCell<Vec<Left<T>>>> = Rc::default();
    let clients = Rc::new(Cell::new(placed_clients.len()));
    let broken: Rc<RefCell<Option<Failure>>> = Rc::default();
    for mut index in workers {
        let (clients, broken) = (clients.clone(), broken.clone());
        let slot = index.endpoint().slot();
        executor.spawn(slot, async move {
            let done = worker::run(&mut index, || clients.get() == 0).await;
            if let Err(e) = done {
                broken.replace(Some(Failure::violation(format!("a worker: {e}"))));
            }
        });
    }
    for placed in placed_clients {
        let (number, cn, ep) = (placed.number, placed.cn, placed.ep.clone());
        let (left, clients) = (left.clone(), clients.clone());
        let task = body(placed);
        ep.prefetch(&*task);
        executor.spawn(ep.slot(), async move {
            let out = task.await;
            let counts = if shared_sums { Snapshot::default() } else { ep.snapshot() };
            left.borrow_mut().push(Left { number, cn, out, counts });
            clients.set(clients.get() - 1);
        });
    }
    executor.run(&mut Fifo).map_err(|stalled| Failure::violation(stalled.to_string()))?;
    if let Some(e) = broken.take() {
        return Err(e);
    }
    let mut out = left.take();
    if let (true, Some(one)) = (shared_sums, out.first_mut()) {
        one.counts = first.snapshot();
    }
    Ok(out)
}
