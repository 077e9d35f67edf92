//! An index that this process has opened: the state that all its handles share.

#[cfg(feature = "async")]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_engine::{DmNode, DmTree, Options};
use dmtree_fabric::{Error, Result};
use dmtree_journal::{IndexJournal, IndexNumber};
use dmtree_parts::worker::Workers;
use dmtree_parts::{AnyIndex, NodeContext, RangeIndex, Root};
use dmtree_pool::IndexEntry;

#[cfg(feature = "async")]
use crate::async_client::{Door, Mailbox};
use crate::counters::{CounterSum, SessionCounters};
use crate::durable::DurableIndexes;
use crate::idle_maintenance::IdleMaintenance;
use crate::incarnation::Incarnation;
use crate::pool::locked;

pub(crate) struct OpenIndex {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) options: Options,
    root: Root,
    /// Of a pool that lasts.
    number: Option<IndexNumber>,
    /// Budget of the cache of each compute node.
    cache_bytes: AtomicU64,
    /// Other processes use it, too.
    is_shared: bool,
    nodes: Mutex<Arc<Nodes>>,
    /// The number of changes: the incarnation is over, there is a new one, or the index was
    /// removed.
    news: AtomicU64,
    /// The index was removed from the pool.
    dropped: AtomicBool,
    next_node: AtomicUsize,
    all_counters: Mutex<AllCounters>,
    /// The workers that default async clients share.
    #[cfg(feature = "async")]
    pub(crate) door: Mutex<Weak<Door>>,
    /// The mailboxes of all async clients: idle coroutines are woken by a change.
    #[cfg(feature = "async")]
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
}

/// The compute nodes of one incarnation, as the index uses them.
pub(crate) struct Nodes {
    /// They end first.
    _maintenance: Vec<IdleMaintenance>,
    _workers: Workers,
    pub(crate) incarnation: Arc<Incarnation>,
    /// One for every compute node.
    pub(crate) trees: Vec<Arc<DmNode>>,
}

impl Nodes {
    fn new(
        incarnation: &Arc<Incarnation>,
        options: &Options,
        root: Root,
        (cache_bytes, is_shared): (u64, bool),
        journal: Option<&IndexJournal>,
    ) -> Result<Self> {
        let cluster = &incarnation.cluster;
        let tree = |i| {
            let cx = NodeContext { pool: cluster.compute_node(i)?, cache_bytes };
            let tree = DmTree::node(&cx, options, root)?;
            journal.map_or(Ok(()), |journal| tree.attach_journal(journal.clone()))?;
            Ok(tree)
        };
        let trees = (0..cluster.compute_nodes()).map(tree).collect::<Result<Vec<_>>>()?;
        let mut workers = Workers::default();
        for (i, tree) in trees.iter().enumerate() {
            let (pool, tree) = (cluster.compute_node(i)?, tree.clone());
            let client = move |ep| -> AnyIndex { Box::new(DmTree::client(ep, tree.clone())) };
            workers.start(&pool, DmTree::workers(options), client)?;
        }
        let start = |(i, tree): (usize, &Arc<DmNode>)| {
            IdleMaintenance::start(cluster.compute_node(i)?, tree.clone())
        };
        let shared = trees.iter().enumerate().filter(|_| is_shared);
        let maintenance = shared.map(start).collect::<Result<Vec<_>>>()?;
        let incarnation = incarnation.clone();
        Ok(Self { _maintenance: maintenance, _workers: workers, incarnation, trees })
    }
}

#[derive(Default)]
struct AllCounters {
    /// Of sessions that have ended.
    ended: CounterSum,
    live: Vec<Arc<SessionCounters>>,
}

impl OpenIndex {
    pub(crate) fn new(
        entry: &IndexEntry,
        options: Options,
        incarnation: &Arc<Incarnation>,
        (cache_bytes, is_shared): (u64, bool),
        journal: Option<IndexJournal>,
    ) -> Result<Self> {
        let root = Root { index: entry.id, word: entry.root_word };
        let of = (cache_bytes, is_shared);
        let nodes = Nodes::new(incarnation, &options, root, of, journal.as_ref())?;
        Ok(Self {
            id: entry.id,
            name: entry.name.clone(),
            options,
            root,
            number: journal.map(|journal| journal.number()),
            cache_bytes: AtomicU64::new(cache_bytes),
            is_shared,
            nodes: Mutex::new(Arc::new(nodes)),
            news: AtomicU64::new(1),
            dropped: AtomicBool::new(false),
            next_node: AtomicUsize::new(0),
            all_counters: Mutex::default(),
            #[cfg(feature = "async")]
            door: Mutex::default(),
            #[cfg(feature = "async")]
            mailboxes: Mutex::default(),
        })
    }

    /// The nodes that new sessions use.
    pub(crate) fn nodes(&self) -> Arc<Nodes> {
        locked(&self.nodes).clone()
    }

    /// The nodes that sessions will use in another incarnation.
    pub(crate) fn prepare(
        &self,
        incarnation: &Arc<Incarnation>,
        durable: Option<&DurableIndexes>,
    ) -> Result<Nodes> {
        let of = (self.cache_bytes.load(Ordering::Relaxed), self.is_shared);
        let journal = durable.zip(self.number).map(|(durable, number)| durable.part(number));
        Nodes::new(incarnation, &self.options, self.root, of, journal.as_ref())
    }

    /// Gives the cache of each compute node another budget, which later incarnations have, too.
    /// Maintenance gives back what is beyond it.
    pub(crate) fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        // All nodes have one geometry: the first one refuses, or none.
        self.nodes().trees.iter().try_for_each(|tree| tree.set_cache_bytes(bytes))?;
        self.cache_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// New sessions use these nodes from now on. The former ones wait for their threads when they
    /// are dropped: the caller does that without a lock.
    pub(crate) fn enter(&self, nodes: Nodes) -> Arc<Nodes> {
        std::mem::replace(&mut *locked(&self.nodes), Arc::new(nodes))
    }

    /// The compute node of the next session, round robin.
    pub(crate) fn next_node(&self) -> usize {
        self.next_node.fetch_add(1, Ordering::Relaxed) % self.nodes().trees.len()
    }

    /// The number of the latest change. Never 0.
    #[inline]
    pub(crate) fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// Announces a change: every client checks its incarnation before its next operation.
    pub(crate) fn notify(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        #[cfg(feature = "async")]
        self.wake_mailboxes();
    }

    #[cfg(feature = "async")]
    fn wake_mailboxes(&self) {
        let mut mailboxes = locked(&self.mailboxes);
        mailboxes.retain(|m| m.strong_count() > 0);
        let there: Vec<_> = mailboxes.iter().filter_map(Weak::upgrade).collect();
        drop(mailboxes);
        there.iter().for_each(|m| m.wake_all());
    }

    /// Coroutines that wait at this mailbox are woken by changes.
    #[cfg(feature = "async")]
    pub(crate) fn connect(&self, mailbox: &Arc<Mailbox>) {
        locked(&self.mailboxes).push(Arc::downgrade(mailbox));
    }

    /// The index was removed.
    pub(crate) fn close(&self) {
        self.dropped.store(true, Ordering::SeqCst);
        self.notify();
    }

    /// Refuses operations on an index that was removed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(self.closed());
        }
        Ok(())
    }

    #[cold]
    fn closed(&self) -> Error {
        Error::closed(format!("the index {:?} was removed from its pool", self.name))
    }

    /// A session begins.
    pub(crate) fn register_counters(&self) -> Arc<SessionCounters> {
        let counters = Arc::new(SessionCounters::default());
        locked(&self.all_counters).live.push(counters.clone());
        counters
    }

    /// A session ends: its counts stay.
    pub(crate) fn retire(&self, counters: &Arc<SessionCounters>) {
        let mut all_counters = locked(&self.all_counters);
        all_counters.live.retain(|t| !Arc::ptr_eq(t, counters));
        all_counters.ended.add(counters);
    }

    /// The counts of all sessions, and how many sessions there are now.
    pub(crate) fn counted(&self) -> (CounterSum, usize) {
        let all_counters = locked(&self.all_counters);
        let mut sum = all_counters.ended.clone();
        all_counters.live.iter().for_each(|t| sum.add(t));
        (sum, all_counters.live.len())
    }
}
