//! An index on an embedded pool, open on every compute node.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::{Core, Endpoint, Fifo, OpKind, Snapshot, Worker};
use dmtree_parts::{CacheStats, NodeContext, RangeIndex, Root};
use dmtree_pool::{Cluster, PoolOptions};
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Buffers of a thread's clients together, bytes.
const SLAB_BYTES: u64 = 64 << 20;
/// The index's name in the catalog.
const INDEX_NAME: &str = "bench";

/// What a pool is made of.
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
}

impl PoolSpec {
    /// A pool of one memory node for a tool.
    pub fn small(cns: u16, memory_bytes: u64) -> Self {
        Self { cns, mns: 1, memory_bytes, compute_bytes: 0, cache_bytes: 64 << 20 }
    }
}

/// An index on an embedded pool, open on every compute node.
pub struct Opened<I: RangeIndex> {
    cluster: Cluster,
    nodes: Vec<Arc<I::Node>>,
}

impl<I: RangeIndex> std::fmt::Debug for Opened<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({:?})", self.cluster)
    }
}

/// A client with its place.
pub struct Seat<I> {
    /// Its number among all clients.
    pub number: u32,
    /// Its compute node.
    pub cn: usize,
    /// Whether other clients share its thread.
    pub shares_thread: bool,
    /// The client.
    pub client: I,
    /// Its endpoint.
    pub ep: Endpoint,
}

impl<I> std::fmt::Debug for Seat<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seat({} on cn{})", self.number, self.cn)
    }
}

/// What a client leaves behind.
#[derive(Debug)]
pub struct Left<T> {
    /// Its number.
    pub number: u32,
    /// Its compute node.
    pub cn: usize,
    /// What it came to.
    pub out: T,
    /// What it counted.
    pub counts: Snapshot,
}

/// A client's loop.
pub type Loop<T> = Pin<Box<dyn Future<Output = T>>>;

impl<I: RangeIndex> Opened<I> {
    /// Makes a pool, formats an index on it, and opens it on every compute node.
    ///
    /// # Errors
    /// Options or sizes that cannot be.
    pub fn create(system: &str, options: &Value, spec: &PoolSpec) -> Result<Self> {
        let options: I::Options = serde_json::from_value(options.clone())
            .map_err(|e| Failure::input(format!("options of {system}: {e}")))?;
        let cluster = Cluster::embedded(&PoolOptions {
            memory_nodes: spec.mns,
            compute_nodes: spec.cns,
            memory_bytes_per_node: spec.memory_bytes,
            compute_bytes_per_node: spec.compute_bytes,
            ..PoolOptions::default()
        })?;
        let missing = cluster.fabric().caps().missing(&I::NEEDS);
        if !missing.is_empty() {
            return Err(Failure::input(format!(
                "{system} needs what fabric {} does not grant: {}",
                cluster.fabric().name(),
                missing.join(", ")
            )));
        }
        let encoded = serde_json::to_vec(&options)
            .map_err(|e| Failure::input(format!("options of {system}: {e}")))?;
        let pool = cluster.compute_node(0)?;
        let ep = pool.endpoint(SLAB_BYTES)?;
        let cx = NodeContext { pool: pool.clone(), cache_bytes: spec.cache_bytes };
        I::check_options(&options, &cx)?;
        let root = ep.core().block_on(ep.slot(), async {
            let entry = pool.create_index(&ep, INDEX_NAME, system, &encoded).await?;
            let root = Root { index: entry.id, word: entry.root_word };
            I::format(&ep, &cx, &options, root).await?;
            pool.publish_index(&ep, &entry).await?;
            Ok(root)
        })?;
        let mut nodes = Vec::new();
        for cn in 0..cluster.compute_nodes() {
            let pool = cluster.compute_node(cn)?;
            let cx = NodeContext { pool, cache_bytes: spec.cache_bytes };
            nodes.push(I::node(&cx, &options, root)?);
        }
        Ok(Self { cluster, nodes })
    }

    /// How many compute nodes.
    pub fn compute_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The caches of a compute node.
    pub fn cache_stats(&self, cn: usize) -> CacheStats {
        I::cache_stats(&self.nodes[cn])
    }

    /// A client for the present thread alone.
    ///
    /// # Errors
    /// No such compute node.
    pub fn client(&self, cn: usize) -> Result<I> {
        let pool = self.cluster.compute_node(cn)?;
        Ok(I::client(pool.endpoint(SLAB_BYTES)?, self.nodes[cn].clone()))
    }

    /// Runs `threads` times `coroutines` clients to their ends, spread over the compute nodes in turn, and gives back what they
    /// left, by number. `ready` is called on this thread once all clients exist, none has begun before;
    /// `tick` now and then while they run.
    ///
    /// # Errors
    /// A client thread that cannot be started or stalls.
    pub fn run<T: Send + 'static>(
        &self,
        threads: u32,
        coroutines: u32,
        body: &(impl Fn(Seat<I>) -> Loop<T> + Sync),
        ready: impl FnOnce(),
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<Left<T>>> {
        let barrier = std::sync::Barrier::new(threads as usize + 1);
        let failed = AtomicBool::new(false);
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for thread in 0..threads {
                let (barrier, failed) = (&barrier, &failed);
                running.push(scope.spawn(move || {
                    let seats = self.seats(thread * coroutines, coroutines);
                    failed.fetch_or(seats.is_err(), Ordering::SeqCst);
                    barrier.wait();
                    barrier.wait();
                    let seats = seats?;
                    if failed.load(Ordering::SeqCst) {
                        return Ok(Vec::new());
                    }
                    run_thread(seats, body)
                }));
            }
            barrier.wait();
            ready();
            barrier.wait();
            let mut pause = std::time::Duration::from_millis(1);
            while running.iter().any(|handle| !handle.is_finished()) {
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(std::time::Duration::from_millis(50));
                tick();
            }
            for handle in running {
                match handle.join() {
                    Ok(Ok(mut left)) => all.append(&mut left),
                    Ok(Err(e)) => return Err(e),
                    Err(_) => {
                        return Err(Failure::violation(
                            "a client thread panicked: this is a defect of the system measured",
                        ));
                    }
                }
            }
            Ok(())
        })?;
        all.sort_by_key(|l| l.number);
        Ok(all)
    }

    fn seats(&self, first: u32, count: u32) -> Result<Vec<Seat<I>>> {
        let mut core: Option<Rc<Core>> = None;
        let mut seats = Vec::new();
        for number in first..first + count {
            let cn = number as usize % self.nodes.len();
            let pool = self.cluster.compute_node(cn)?;
            let transport = pool.fabric().attach(pool.cn())?;
            let core = core.get_or_insert_with(|| Core::new(transport.clone(), SLAB_BYTES));
            let slot = core.add_slot();
            let ep = Endpoint::new(core.clone(), transport, slot);
            let client = I::client(ep.clone(), self.nodes[cn].clone());
            seats.push(Seat { number, cn, shares_thread: count > 1, client, ep });
        }
        Ok(seats)
    }
}

fn run_thread<I: RangeIndex, T: 'static>(
    seats: Vec<Seat<I>>,
    body: &(impl Fn(Seat<I>) -> Loop<T> + Sync),
) -> Result<Vec<Left<T>>> {
    let Some(first) = seats.first() else { return Ok(Vec::new()) };
    let mut worker = Worker::new(first.ep.core().clone());
    let left: Rc<RefCell<Vec<Left<T>>>> = Rc::default();
    for seat in seats {
        let (number, cn, ep) = (seat.number, seat.cn, seat.ep.clone());
        let left = left.clone();
        let task = body(seat);
        worker.spawn(ep.slot(), async move {
            let out = task.await;
            let counts = ep.snapshot();
            left.borrow_mut().push(Left { number, cn, out, counts });
        });
    }
    worker.run(&mut Fifo).map_err(|stalled| Failure::violation(stalled.to_string()))?;
    let out = left.take();
    Ok(out)
}

/// Kinds of operations that clients wait for.
pub const FOREGROUND: [OpKind; 9] = [
    OpKind::Get,
    OpKind::Put,
    OpKind::Insert,
    OpKind::Update,
    OpKind::Delete,
    OpKind::CompareAndSet,
    OpKind::Scan,
    OpKind::GetMany,
    OpKind::WriteMany,
];
