//! The state that the clients of one compute node share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::combine::Combiner;
use dmtree_parts::fifo_mutex::FifoMutexes;
use dmtree_parts::op::Lookups;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Arena, ArenaKey, Grant, PoolNode};

use super::cache::NodeCache;
use super::format::head::NodeType;
use super::format::leaf::{Holder, LeafShape, MAX_NODES, Word};
use super::format::slot::{LINE, MAX_LINES};
use super::gc::GcRun;
use super::mutants::{Mutant, Mutants};
use super::options::Options;

const KIND_NODE: u8 = 1;
const KIND_LEAF: u8 = 2;
const FIFO_MUTEXES: usize = 4096;
const GROUPS: usize = 1024;
/// Operations of one batch: no bound.
const GROUP_BOUND: u32 = u32::MAX;
/// Most maintenance tasks in the queue. Further prunes are dropped; an operation that meets the
/// same node adds them again.
const MAX_TASKS: usize = 1024;

/// A maintenance task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Remove the node with this prefix; it seems to have no children.
    Prune(Vec<u8>),
    /// Unlink the tombstone of this key; a slot still names it.
    Unlink(Vec<u8>),
    /// Run garbage collection for memory that a failed compute node held.
    Gc,
}

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct SmartNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) o: Options,
    pub(crate) shape: LeafShape,
    pub(crate) root: Root,
    /// The root node, after the first READ; the node never moves.
    pub(crate) root_grant: OnceLock<Grant>,
    pub(crate) cache: NodeCache,
    pub(crate) fifo: Arc<FifoMutexes>,
    pub(crate) readers: Arc<Combiner>,
    pub(crate) writers: Arc<Combiner>,
    pub(crate) nodes: Arc<Arena>,
    /// By number of lines.
    leaves: Vec<Arc<Arena>>,
    /// Abandoned locks of this compute node: the address of the leaf, and the lock word that an
    /// ended operation may have left there.
    abandoned_locks: Mutex<BTreeMap<u64, u64>>,
    abandoned_locks_waiting: AtomicU32,
    tasks: Mutex<VecDeque<Task>>,
    pub(crate) tasks_waiting: AtomicU32,
    gc: Mutex<Option<Box<GcRun>>>,
    /// The number of node failures for which this node has started garbage collection.
    swept: AtomicU64,
    pub(crate) lookups: Lookups,
    mutants: Mutants,
}

impl SmartNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for options or a pool that cannot be.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        if cx.pool.cn().index() >= MAX_NODES {
            return Err(Error::invalid(format!(
                "{} cannot lock leaves: this index serves compute nodes 0 to {}",
                cx.pool.cn(),
                MAX_NODES - 1
            )));
        }
        let arena = |kind, lines: usize| {
            let object_bytes = (lines * LINE as usize) as u32;
            cx.pool.arena(ArenaKey { index: root.index, kind, object_bytes })
        };
        Ok(Self {
            pool: cx.pool.clone(),
            o: o.clone(),
            shape: o.leaf_shape(),
            root,
            root_grant: OnceLock::new(),
            cache: NodeCache::new(cx.cache_bytes, None),
            fifo: FifoMutexes::new(FIFO_MUTEXES),
            readers: Combiner::new(GROUPS, GROUP_BOUND),
            writers: Combiner::new(GROUPS, GROUP_BOUND),
            nodes: arena(KIND_NODE, NodeType::LARGEST.bytes().div_ceil(LINE as usize)),
            leaves: (1..=MAX_LINES).map(|lines| arena(KIND_LEAF, lines)).collect(),
            abandoned_locks: Mutex::default(),
            abandoned_locks_waiting: AtomicU32::new(0),
            tasks: Mutex::default(),
            tasks_waiting: AtomicU32::new(0),
            gc: Mutex::default(),
            swept: AtomicU64::new(0),
            lookups: Lookups::default(),
            mutants: Mutants::default(),
        })
    }

    /// The arena for leaves of this many lines.
    pub(crate) fn leaves(&self, lines: usize) -> &Arc<Arena> {
        &self.leaves[lines.clamp(1, MAX_LINES) - 1]
    }

    /// Whether the access of the lock holder is revoked everywhere, so that its verbs have no
    /// effect any more.
    pub(crate) fn is_revoked(&self, holder: Holder) -> bool {
        !self.has(Mutant::NoTakeOver) && self.pool.is_revoked(holder.id(), holder.incarnation)
    }

    /// For mutation tests: enables mutants for every client of this node from now on.
    #[doc(hidden)]
    pub fn set_mutants(&self, on: &[Mutant]) {
        self.mutants.set(on);
    }

    /// Whether a mutant is enabled: one load and one branch.
    #[inline]
    pub(crate) fn has(&self, d: Mutant) -> bool {
        self.mutants.has(d)
    }

    // ---- abandoned locks ----

    fn abandoned_locks(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.abandoned_locks.lock().expect("no panic under this lock")
    }

    /// Records a lock that an ended operation of this node may have left on a leaf.
    pub(crate) fn add_abandoned_lock(&self, at: GlobalAddr, held: Word) {
        let mut abandoned_locks = self.abandoned_locks();
        abandoned_locks.insert(at.bits(), held.bits());
        self.abandoned_locks_waiting.store(abandoned_locks.len() as u32, Ordering::Relaxed);
    }

    /// The word that an abandoned lock of this node may have left in a leaf.
    pub(crate) fn abandoned_lock_at(&self, at: GlobalAddr) -> Option<u64> {
        if self.abandoned_locks_waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.abandoned_locks().get(&at.bits()).copied()
    }

    /// Removes a released lock from the list.
    pub(crate) fn remove_abandoned_lock(&self, at: GlobalAddr) {
        let mut abandoned_locks = self.abandoned_locks();
        abandoned_locks.remove(&at.bits());
        self.abandoned_locks_waiting.store(abandoned_locks.len() as u32, Ordering::Relaxed);
    }

    /// Number `n` of the abandoned locks, modulo their number.
    pub(crate) fn nth_abandoned_lock(&self, n: u64) -> Option<GlobalAddr> {
        if self.abandoned_locks_waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let abandoned_locks = self.abandoned_locks();
        let n = (n % abandoned_locks.len().max(1) as u64) as usize;
        abandoned_locks.keys().nth(n).map(|bits| GlobalAddr::from_bits(*bits))
    }

    // ---- maintenance tasks ----

    pub(crate) fn push_task(&self, task: Task) {
        let mut tasks = self.tasks.lock().expect("no panic under this lock");
        let wanted = matches!(task, Task::Unlink(_) | Task::Gc) || tasks.len() < MAX_TASKS;
        if wanted && !tasks.contains(&task) {
            tasks.push_back(task);
            self.tasks_waiting.store(tasks.len() as u32, Ordering::Relaxed);
        }
    }

    pub(crate) fn pop_task(&self) -> Option<Task> {
        if self.tasks_waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut tasks = self.tasks.lock().expect("no panic under this lock");
        let task = tasks.pop_front();
        self.tasks_waiting.store(tasks.len() as u32, Ordering::Relaxed);
        task
    }

    /// Whether node failures were completed since the last call.
    pub(crate) fn is_sweep_due(&self) -> bool {
        let deaths = self.pool.deaths();
        self.swept.fetch_max(deaths, Ordering::Relaxed) < deaths
    }

    pub(crate) fn take_gc(&self) -> Option<Box<GcRun>> {
        self.gc.lock().expect("no panic under this lock").take()
    }

    pub(crate) fn keep_gc(&self, gc_run: Box<GcRun>) {
        *self.gc.lock().expect("no panic under this lock") = Some(gc_run);
    }
}
