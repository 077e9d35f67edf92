//! The state that the clients of one compute node share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::combine::Combiner;
use dmtree_parts::fifo_mutex::FifoMutexes;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Arena, ArenaKey, Grant, PoolNode};

use super::cache::NodeCache;
use super::format::head::NodeType;
use super::format::leaf::{Holder, LeafShape, MOST_NODES, Word};
use super::format::slot::{LINE, MOST_LINES};
use super::gc::GcRun;
use super::mutants::{Mutant, Mutants};
use super::options::Options;

const KIND_NODE: u8 = 1;
const KIND_LEAF: u8 = 2;
const TURNS: usize = 4096;
const GROUPS: usize = 1024;
/// Operations of one batch: no bound.
const GROUP_BOUND: u32 = u32::MAX;
/// Most maintenance tasks in the queue. Further prunes are dropped; an operation that meets the
/// same place adds them again.
const MOST_CHORES: usize = 1024;

/// A maintenance task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Remove the node with this prefix; it seems to have no children.
    Prune(Vec<u8>),
    /// Unlink the tombstone of this key; a slot still names it.
    Close(Vec<u8>),
    /// Run garbage collection for memory that a dead node held.
    Gc,
}

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct SmartNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) o: Options,
    pub(crate) shape: LeafShape,
    pub(crate) root: Root,
    /// The root node, once it has been read; it never moves.
    pub(crate) top: OnceLock<Grant>,
    pub(crate) cache: NodeCache,
    pub(crate) turns: Arc<FifoMutexes>,
    pub(crate) readers: Arc<Combiner>,
    pub(crate) writers: Arc<Combiner>,
    pub(crate) nodes: Arc<Arena>,
    /// By number of lines.
    leaves: Vec<Arc<Arena>>,
    /// Abandoned locks of this compute node: the leaf's address, and the word that it may have.
    abandoned_locks: Mutex<BTreeMap<u64, u64>>,
    abandoned_locks_waiting: AtomicU32,
    chores: Mutex<VecDeque<Chore>>,
    pub(crate) chores_waiting: AtomicU32,
    gc: Mutex<Option<Box<GcRun>>>,
    /// The number of deaths for which this node has started garbage collection.
    swept: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    mutants: Mutants,
}

impl SmartNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for options or a pool that cannot be.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        if cx.pool.cn().index() >= MOST_NODES {
            return Err(Error::invalid(format!(
                "{} cannot lock leaves: this index serves compute nodes 0 to {}",
                cx.pool.cn(),
                MOST_NODES - 1
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
            top: OnceLock::new(),
            cache: NodeCache::new(cx.cache_bytes, None),
            turns: FifoMutexes::new(TURNS),
            readers: Combiner::new(GROUPS, GROUP_BOUND),
            writers: Combiner::new(GROUPS, GROUP_BOUND),
            nodes: arena(KIND_NODE, NodeType::LARGEST.bytes().div_ceil(LINE as usize)),
            leaves: (1..=MOST_LINES).map(|lines| arena(KIND_LEAF, lines)).collect(),
            abandoned_locks: Mutex::default(),
            abandoned_locks_waiting: AtomicU32::new(0),
            chores: Mutex::default(),
            chores_waiting: AtomicU32::new(0),
            gc: Mutex::default(),
            swept: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            mutants: Mutants::default(),
        })
    }

    /// The arena for leaves of this many lines.
    pub(crate) fn leaves(&self, lines: usize) -> &Arc<Arena> {
        &self.leaves[lines.clamp(1, MOST_LINES) - 1]
    }

    /// Whether the lock holder is fenced everywhere, so that its verbs have no effect any more.
    pub(crate) fn is_gone(&self, holder: Holder) -> bool {
        !self.has(Mutant::NoTakeOver) && self.pool.is_revoked(holder.id(), holder.incarnation)
    }

    /// For mutation tests: makes every client of this node wrong from now on.
    #[doc(hidden)]
    pub fn set_mutants(&self, on: &[Mutant]) {
        self.mutants.set(on);
    }

    /// Whether a mutant is enabled: a load and a branch.
    #[inline]
    pub(crate) fn has(&self, d: Mutant) -> bool {
        self.mutants.has(d)
    }

    // ---- abandoned locks ----

    fn abandoned_locks(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.abandoned_locks.lock().expect("no panic under this lock")
    }

    /// Records a lock that an ended operation of this node may have left on a leaf.
    pub(crate) fn abandoned_lock(&self, at: GlobalAddr, held: Word) {
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

    /// The abandoned lock is released.
    pub(crate) fn settled(&self, at: GlobalAddr) {
        let mut abandoned_locks = self.abandoned_locks();
        abandoned_locks.remove(&at.bits());
        self.abandoned_locks_waiting.store(abandoned_locks.len() as u32, Ordering::Relaxed);
    }

    /// One of the abandoned locks; `turn` selects a different one each time.
    pub(crate) fn some_abandoned_lock(&self, turn: u64) -> Option<GlobalAddr> {
        if self.abandoned_locks_waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let abandoned_locks = self.abandoned_locks();
        let n = (turn % abandoned_locks.len().max(1) as u64) as usize;
        abandoned_locks.keys().nth(n).map(|bits| GlobalAddr::from_bits(*bits))
    }

    // ---- maintenance tasks ----

    pub(crate) fn push_chore(&self, chore: Chore) {
        let mut chores = self.chores.lock().expect("no panic under this lock");
        let wanted = matches!(chore, Chore::Close(_) | Chore::Gc) || chores.len() < MOST_CHORES;
        if wanted && !chores.contains(&chore) {
            chores.push_back(chore);
            self.chores_waiting.store(chores.len() as u32, Ordering::Relaxed);
        }
    }

    pub(crate) fn pop_chore(&self) -> Option<Chore> {
        if self.chores_waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut chores = self.chores.lock().expect("no panic under this lock");
        let chore = chores.pop_front();
        self.chores_waiting.store(chores.len() as u32, Ordering::Relaxed);
        chore
    }

    /// Whether deaths were completed since the last call.
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
