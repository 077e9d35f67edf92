//! The state that the clients of one compute node share.

use std::sync::{Arc, OnceLock};

use dmtree_fabric::{Error, Result};
use dmtree_parts::combine::Combiner;
use dmtree_parts::fifo_mutex::FifoMutexes;
use dmtree_parts::held::{AbandonedLocks, LockNode};
use dmtree_parts::maintenance::{Chore, Keep, Maintained, Maintenance};
use dmtree_parts::op::Lookups;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Arena, ArenaKey, Grant, PoolNode};

use super::cache::NodeCache;
use super::client::LeafLock;
use super::format::head::NodeType;
use super::format::leaf::{Holder, LeafShape, MAX_NODES};
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
/// A maintenance task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
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
    pub(crate) abandoned_locks: AbandonedLocks<LeafLock>,
    pub(crate) maintenance: Maintenance<Task, GcRun>,
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
            abandoned_locks: AbandonedLocks::default(),
            maintenance: Maintenance::default(),
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
}

impl LockNode for SmartNode {
    type Lock = LeafLock;

    fn pool(&self) -> &PoolNode {
        &self.pool
    }

    fn index(&self) -> u32 {
        self.root.index
    }

    fn abandon(&self, lock: LeafLock) {
        self.abandoned_locks.add(lock);
    }
}

impl Maintained for SmartNode {
    type Chore = Task;

    fn push_chore(&self, task: Task) {
        self.maintenance.push(task);
    }
}

impl Chore for Task {
    fn keep(&self) -> Keep {
        match self {
            Self::Unlink(_) | Self::Gc => Keep::Once,
            Self::Prune(_) => Keep::IfRoom,
        }
    }
}
