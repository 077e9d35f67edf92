//! The state that the clients of one compute node share for one index.
//!
//! - *Cache*: inner nodes and mirrors, within one byte budget. Everything in it is a hint.
//! - *FIFO mutexes* for leaf locks and inner locks: one client of the node at a time competes for a
//!   remote lock. Those of inner locks are ranked by level, which keeps waits free of cycles.
//! - *Groups* of readers and writers of one key (single-flight).
//! - *Chores*: bounded, except for chores that no other client would find again. An operation
//!   pushes; maintenance pops.
//! - *Builds*: unbuilt tables that readers have met.
//! - *Abandoned locks*: locks that failed or dropped operations have left, by tag. The list answers
//!   two questions: whether a lock word's tag may be taken over, and which lock is due for
//!   recovery.
//! - *FairShare*: how often this node has had a lock, against others.
//! - *Mutants*: enabled by a checker only.
//!
//! `is_abandoned` is the premise of every take-over: the tag's node and incarnation are revoked at
//! every host, or the tag is in the list of this node. In both cases no verb of the holder executes
//! any more. A tag that only looks old must not be taken over: its holder could still write.
//!
//! A counter beside the builds (`builds_waiting`) lets an operation see with one load that there is
//! nothing to do; it lags behind by at most the holder of the queue's mutex.
//!
//! None of this state is needed after a crash: survivors derive the node's unfinished work from the
//! memory nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dmtree_fabric::{Error, GlobalAddr, NodeId, Result};
use dmtree_journal::IndexJournal;
use dmtree_parts::cache::{CachedNode, MAX_LEVELS, NodeCache};
use dmtree_parts::combine::Combiner;
use dmtree_parts::fairness::FairShare;
use dmtree_parts::fifo_mutex::{FifoMutexes, Rank};
use dmtree_parts::held::{AbandonedLocks, LockNode};
use dmtree_parts::maintenance::{Keep, Maintained, Maintenance};
use dmtree_parts::op::Lookups;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Arena, ArenaKey, PoolNode};

use crate::format::{Child, Geometry, LockTag, table};
use crate::hop::Places;
use crate::learned::NodeModels;
use crate::lock::{HeldLock, LeafLockWords, Lockable};
use crate::log::WriteLog;
use crate::maintenance::{Admission, CacheBudget, GcRun};
use crate::mutants::Mutants;
use crate::{Mark, Models, Mutant, Options, Route, Tables};

/// Kinds of arenas: the content of a chunk.
const KIND_INNER: u8 = 1;
const KIND_LEAF: u8 = 2;
/// FIFO mutexes for leaf locks.
const LEAF_FIFOS: usize = 4096;
/// FIFO mutexes for the locks of the inner nodes of each level.
const INNER_FIFOS: usize = 256;
/// Slots for groups of readers, and as many for groups of writers. Few enough to stay in a core's
/// cache: two keys that share a slot only miss a chance to share a verb.
const GROUPS: usize = 1024;
/// Operations of one group: any number. Operations that did not fit into a group would queue for
/// the leaf one by one, and with more clients on a hot key than groups have room for, the leaf's
/// lock would serve nothing else.
const GROUP_BOUND: u32 = u32::MAX;
/// Unbuilt tables that wait to be built. The next reader of a leaf that was forgotten queues it
/// again.
const MAX_BUILDS: usize = 1024;

/// With models, one part in so many of the cache's budget is for inner nodes.
const INNER_SHARE: u64 = 8;

/// Work that no operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// The leaf of this key has become small: merge it with a neighbour.
    Merge(Vec<u8>),
    /// The parent level lacks the record of the leaf that covers this key.
    Publish(Vec<u8>),
    /// The left sibling still links this tombstone; its lower fence finds that sibling.
    Unlink { lo: Vec<u8>, route: Route },
    /// This inner node (by a key it covers, and its level) has few records left.
    MergeInner(Vec<u8>, u8),
    /// The level above lacks the record of this inner node, which begins at this key on this level.
    PublishInner(Vec<u8>, u8, Child),
    /// An operation has failed while it held this lock: what it covers needs recovery.
    RecoverLock(HeldLock),
    /// A sweep could not tell whether this leaf has a table.
    Inspect(Route),
    /// Lost memory of dead nodes needs a garbage collection, once the sweep of one node for all has
    /// ended.
    Gc,
    /// The sweep after a death continues at this key.
    Sweep(Vec<u8>),
    /// Searches for keys like this one took longer than their models promise, or had none.
    Train(Vec<u8>),
}

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct DmNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    /// Where keys are in their leaves.
    pub(crate) places: Places,
    pub(crate) root: Root,
    pub(crate) cache: NodeCache,
    pub(crate) leaf_fifo: Arc<FifoMutexes>,
    /// How far this node is ahead of others at the locks of leaves.
    pub(crate) contenders: FairShare,
    pub(crate) inner_fifo: Arc<FifoMutexes>,
    pub(crate) readers: Arc<Combiner>,
    pub(crate) writers: Arc<Combiner>,
    pub(crate) inner_arena: Arc<Arena>,
    leaf_arenas: Vec<(usize, Arc<Arena>)>,
    /// Models in the place of cached inner nodes.
    pub(crate) models: Option<NodeModels>,
    /// Lock-word mode: the locks of leaves, once their place is known.
    pub(crate) lock_words: OnceLock<LeafLockWords>,
    /// Counts the tags of changes of whole leaves.
    pub(crate) changes: AtomicU32,
    pub(crate) abandoned_locks: AbandonedLocks<HeldLock>,
    mutants: Mutants,
    /// Of a durable index.
    pub(crate) journal: OnceLock<IndexJournal>,
    /// Where writes to leaves with images are durable before their leaves.
    pub(crate) log: Option<WriteLog>,
    pub(crate) maintenance: Maintenance<Chore, GcRun>,
    /// Where leaves have images at this node, and mirrors: which ones.
    pub(crate) admission: Option<Admission>,
    pub(crate) budget: CacheBudget,
    /// Leaves with tables that readers have found unbuilt, by table.
    builds: Mutex<BTreeMap<u64, Route>>,
    /// A client of this node runs a garbage collection because it needs room.
    pub(crate) counting: AtomicBool,
    /// The number of counted deaths at this node's last search for room.
    pub(crate) counted: AtomicU64,
    /// A leaf has no record in its parent, for want of memory for inner nodes.
    pub(crate) starved: AtomicBool,
    builds_waiting: AtomicU32,
    clients: AtomicU32,
    pub(crate) lookups: Arc<Lookups>,
}

impl DmNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid options or too small a budget.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        check_cache(cx.cache_bytes, o)?;
        let g = o.geometry();
        let least = Self::least_cache_bytes(&g);
        let image_bytes = o.image_bytes(cx.cache_bytes);
        if image_bytes > 0 {
            cx.pool.images().give(root.index, image_bytes);
        }
        // Models have the largest part of the budget, and the inner nodes of descents the rest.
        let inner_bytes = match o.techniques.models {
            Models::None => cx.cache_bytes - image_bytes,
            _ => least.max(cx.cache_bytes / INNER_SHARE),
        };
        let models =
            NodeModels::of(&o.techniques, o.leaf_capacity as usize, cx.cache_bytes - inner_bytes);
        let mirrored = o.techniques.mirrors && o.techniques.tables != Tables::None;
        let arena = |kind, bytes: usize| {
            let object_bytes = bytes as u32;
            cx.pool.arena(ArenaKey { index: root.index, kind, object_bytes })
        };
        let leaf_arena = |capacity| (capacity, arena(KIND_LEAF, o.leaf_bytes(capacity)));
        let new = Self {
            pool: cx.pool.clone(),
            o: o.clone(),
            g,
            places: Places::of(o),
            root,
            cache: NodeCache::new(inner_bytes, mirrored.then_some(1)),
            models,
            leaf_fifo: FifoMutexes::new(LEAF_FIFOS),
            contenders: FairShare::new(cx.pool.cn().bits(), LEAF_FIFOS),
            inner_fifo: FifoMutexes::ranked(Rank(MAX_LEVELS as u8), INNER_FIFOS),
            readers: Combiner::new(GROUPS, GROUP_BOUND),
            writers: Combiner::new(GROUPS, GROUP_BOUND),
            inner_arena: arena(KIND_INNER, g.inner_bytes()),
            leaf_arenas: o.capacities().into_iter().map(leaf_arena).collect(),
            lock_words: OnceLock::new(),
            changes: AtomicU32::new(0),
            abandoned_locks: AbandonedLocks::default(),
            mutants: Mutants::default(),
            journal: OnceLock::new(),
            log: WriteLog::of(o),
            maintenance: Maintenance::default(),
            budget: CacheBudget::new(cx.cache_bytes, inner_bytes),
            admission: (mirrored && image_bytes > 0).then(Admission::default),
            builds: Mutex::default(),
            builds_waiting: AtomicU32::new(0),
            counting: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            clients: AtomicU32::new(0),
            lookups: Arc::default(),
        };
        // More may be granted than there is room, since the index was open here before.
        new.budget.check(&new);
        Ok(new)
    }

    /// Gives the cache another budget, of so many bytes. What is beyond it is given back by
    /// maintenance, images first; `RangeIndex::set_cache_bytes` waits for that.
    ///
    /// # Errors
    /// `InvalidArgument` for a budget below one inner node; `Unsupported` with models.
    pub fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        let least = Self::least_cache_bytes(&self.g);
        if self.models.is_some() {
            return Err(Error::unsupported("the budget of an index with models stays as it is"));
        }
        if bytes < least {
            let text = format!("a cache of {bytes} bytes cannot hold one inner node of {least}");
            return Err(Error::invalid(text));
        }
        self.budget.set(self, bytes);
        Ok(())
    }

    /// The smallest budget that holds one inner node with the mirrors of small leaves.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        CachedNode::most_bytes(g.fanout, g.k)
    }

    /// The arena of leaves of a capacity; the largest for a capacity that no leaf has.
    pub(crate) fn leaf_arena(&self, capacity: usize) -> &Arc<Arena> {
        let arenas = &self.leaf_arenas;
        let found = arenas.iter().find(|(c, _)| *c == capacity).or(arenas.last());
        &found.expect("some capacity").1
    }

    /// Bytes of a leaf's object.
    pub(crate) fn leaf_bytes(&self, capacity: usize) -> u64 {
        u64::from(self.leaf_arena(capacity).key().object_bytes)
    }

    /// Slots of a new leaf.
    pub(crate) fn capacity(&self) -> usize {
        self.places.capacity(self.o.leaf_capacity as usize)
    }

    /// Whether leaves have so many slots.
    pub(crate) fn is_capacity(&self, slots: usize) -> bool {
        self.leaf_arenas.iter().any(|(c, _)| *c == slots)
    }

    /// Whether leaves have tables, and their locks there.
    pub(crate) fn has_tables(&self) -> bool {
        self.o.techniques.tables != Tables::None
    }

    /// Whether leaves may have images at their owners.
    pub(crate) fn has_images(&self) -> bool {
        self.o.images > 0.0
    }

    /// Lines of a cell with an image of a leaf of this capacity, where there are any.
    pub(crate) fn imaged_lines(&self, capacity: usize) -> Option<u8> {
        let lines = table::imaged_lines(capacity, self.g.leaf_image(capacity));
        lines.filter(|_| self.has_images())
    }

    /// A number for a new client: 16 bits of a lock tag.
    pub(crate) fn next_client(&self) -> u16 {
        self.clients.fetch_add(1, Ordering::Relaxed) as u16
    }

    /// Whether a lock's holder does nothing any more: its node is dead and revoked everywhere, or
    /// its operation has failed.
    pub(crate) fn is_abandoned(&self, tag: u64) -> bool {
        self.is_abandoned_at(tag, GlobalAddr::NULL)
    }

    /// The same for a lock word of a memory node.
    pub(crate) fn is_abandoned_at(&self, tag: u64, word: GlobalAddr) -> bool {
        tag != 0 && (self.abandoned_locks.get(&(tag, word.bits())).is_some() || self.is_gone(tag))
    }

    /// Whether a lock's holder is dead, and revoked everywhere.
    pub(crate) fn is_gone(&self, tag: u64) -> bool {
        if self.has(Mutant::NoTakeOver) {
            return false;
        }
        let node = NodeId::from_bits((tag >> 48) as u16);
        let incarnation = (tag >> 32) as u16;
        self.pool.is_revoked(node, incarnation)
            || (self.has(Mutant::TakeOverEarly) && self.pool.is_suspected(node, incarnation))
    }

    /// The index is durable from now on: effects of writes go to this journal before they are
    /// visible. It has the pairs that the index has.
    ///
    /// # Errors
    /// `Unsupported` for leaves without tables: their writes commit under a lock word. `Exists` for
    /// an index with a journal.
    pub fn attach_journal(&self, journal: IndexJournal) -> Result<()> {
        if !self.has_tables() {
            return Err(Error::unsupported("only an index with tables can have a journal"));
        }
        self.journal.set(journal).map_err(|_| Error::exists("the index has a journal"))
    }

    /// For checkers of checkers: enables a mutant in every client of this node.
    #[doc(hidden)]
    pub fn set_mutants(&self, on: &[Mutant]) {
        self.mutants.set(on);
    }

    /// Whether no mutant is enabled.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        !self.mutants.any()
    }

    /// Whether a mutant is enabled: a load and a branch.
    #[inline]
    pub(crate) fn has(&self, d: Mutant) -> bool {
        self.mutants.has(d)
    }

    /// The lock of a leaf could not be given back.
    #[cold]
    pub(crate) fn abandon_leaf(&self, tag: LockTag, route: Route) {
        self.abandon(HeldLock { tag, on: Lockable::Leaf(route) });
    }

    /// A client has taken an abandoned lock over, or the lock is gone.
    pub(crate) fn adopted(&self, tag: LockTag) {
        self.adopted_at(tag, GlobalAddr::NULL);
    }

    /// The same for a lock word of a memory node.
    pub(crate) fn adopted_at(&self, tag: LockTag, word: GlobalAddr) {
        self.abandoned_locks.remove(&(tag.0, word.bits()));
    }

    pub(crate) fn push_chore(&self, chore: Chore) {
        if let Chore::Unlink { route, .. } = &chore {
            // No other client knows of it until it is retired.
            let bytes = self.leaf_bytes(route.capacity);
            let table = self.has_tables().then_some(route.table);
            self.pool.collection().log_pending(self.root.index, (route.leaf, bytes), table);
        }
        self.maintenance.push(chore);
    }

    /// Pieces of maintenance and recovery that are due, by what they do.
    pub fn due(&self) -> BTreeMap<&'static str, u64> {
        let mut due = self.maintenance.waiting(Chore::name);
        let builds = self.builds_waiting.load(Ordering::Relaxed);
        if builds > 0 {
            due.insert("build_table", u64::from(builds));
        }
        due
    }

    /// A reader has found this leaf's table unbuilt.
    pub(crate) fn push_build(&self, route: Route) {
        let mut builds = self.builds.lock().expect("no panic under this lock");
        if builds.len() < MAX_BUILDS {
            builds.insert(route.table.bits(), route);
            self.builds_waiting.store(builds.len() as u32, Ordering::Relaxed);
        }
    }

    /// Whether maintenance has work: some loads.
    pub fn is_maintenance_due(&self) -> bool {
        self.maintenance.any()
            || self.maintenance.is_sweep_due(&self.pool)
            || self.is_build_due()
            || self.are_images_due()
            || self.is_cut_due()
            || self.pool.reclaimer().reclaim_due()
    }

    /// Whether leaves wait for an image, or images have to go: two loads.
    pub(crate) fn are_images_due(&self) -> bool {
        self.budget.is_due() || self.is_admission_due()
    }

    /// Whether leaves have to be written back: a load.
    pub(crate) fn is_cut_due(&self) -> bool {
        self.log.as_ref().is_some_and(WriteLog::is_cut_due)
    }

    /// Whether leaves wait for an image: a load.
    pub(crate) fn is_admission_due(&self) -> bool {
        self.admission.as_ref().is_some_and(Admission::is_due)
    }

    /// Whether tables wait to be built: a load.
    pub(crate) fn is_build_due(&self) -> bool {
        self.builds_waiting.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn pop_build(&self) -> Option<Route> {
        if !self.is_build_due() {
            return None;
        }
        let mut builds = self.builds.lock().expect("no panic under this lock");
        let route = builds.pop_first().map(|(_, route)| route);
        self.builds_waiting.store(builds.len() as u32, Ordering::Relaxed);
        route
    }
}

fn check_cache(bytes: u64, o: &Options) -> Result<()> {
    let least = o.least_cache_bytes();
    if bytes >= least {
        return Ok(());
    }
    let what = if o.images > 0.0 { "one inner node and one image" } else { "one inner node" };
    let text = format!("a cache of {bytes} bytes cannot hold {what}: give it {least} at least");
    Err(Error::invalid(text))
}

impl LockNode for DmNode {
    type Lock = HeldLock;

    fn pool(&self) -> &PoolNode {
        &self.pool
    }

    fn index(&self) -> u32 {
        self.root.index
    }

    fn abandon(&self, lock: HeldLock) {
        if self.has(Mutant::NoAbandonedLocks) {
            return;
        }
        self.abandoned_locks.add(lock);
        self.push_chore(Chore::RecoverLock(lock));
    }

    fn dropped_in_flight(&self) {
        Mark::DroppedInFlight.hit();
    }
}

impl Maintained for DmNode {
    type Chore = Chore;

    fn push_chore(&self, chore: Chore) {
        self.push_chore(chore);
    }
}

impl Chore {
    /// What it does, for reports.
    fn name(&self) -> &'static str {
        match self {
            Self::Merge(_) => "merge",
            Self::Publish(_) => "add_record",
            Self::Unlink { .. } => "unlink",
            Self::MergeInner(..) => "merge_inner",
            Self::PublishInner(..) => "add_inner_record",
            Self::RecoverLock(_) => "recover_lock",
            Self::Inspect(_) => "inspect",
            Self::Gc => "collect_garbage",
            Self::Sweep(_) => "sweep",
            Self::Train(_) => "train",
        }
    }
}

impl dmtree_parts::maintenance::Chore for Chore {
    fn keep(&self) -> Keep {
        match self {
            Self::Unlink { .. } | Self::RecoverLock(_) | Self::Inspect(_) | Self::Sweep(_) => {
                Keep::Always
            }
            _ => Keep::IfRoom,
        }
    }
}
