//! A pool: memory, and the indexes in it.

use std::collections::BTreeMap;
#[cfg(feature = "json")]
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use dmtree_engine::DmTree;
#[cfg(feature = "tcp")]
use dmtree_fabric::net::NodeStatus;
pub(crate) use dmtree_fabric::sync::locked;
use dmtree_fabric::{DEFAULT_TIMEOUT_NS, Endpoint, Error, NodeId, Result};
use dmtree_journal::IndexJournal;
#[cfg(feature = "json")]
use dmtree_parts::Loaded;
use dmtree_parts::naming::OptionsOf;
use dmtree_parts::{NodeContext, naming};
use dmtree_pool::{Cluster, IndexEntry, IndexState, NewIndex, Opening, PoolNode};

use crate::builder::PoolBuilder;
#[cfg(feature = "tcp")]
use crate::connect::Connector;
use crate::connect::Way;
use crate::durable::DurableIndexes;
#[cfg(feature = "json")]
use crate::export;
use crate::filled::Unpublished;
use crate::incarnation::{Attempts, ClientContext, Incarnation, Incarnations, Next};
use crate::index::Index;
use crate::open::OpenIndex;
use crate::options::Options;
use crate::restart;
use crate::stats::PoolStats;
use crate::status;

/// Which kind of index the catalog says it is.
const SYSTEM: &str = "dmtree";
/// Bytes of buffers of an administrative call.
const ADMIN_SLAB_BYTES: u64 = 16 << 20;

/// Memory in which indexes live. Clone it freely; all clones are the same pool. It stays while a
/// clone, an [`Index`], a [`Session`](crate::Session) or an [`AsyncClient`](crate::AsyncClient) of
/// it is there.
///
/// **An embedded pool lives in memory only**: see [`PoolBuilder::open`].
#[derive(Clone)]
pub struct Pool(Arc<PoolInner>);

pub(crate) struct PoolInner {
    /// How this process joins again; `None` for a pool in its own memory.
    pub(crate) how: Option<Way>,
    pub(crate) cache_bytes: u64,
    /// Indexes that this process has opened, by name.
    pub(crate) opened: Mutex<BTreeMap<String, Arc<OpenIndex>>>,
    /// Taken under the lock of `opened`, if both are.
    pub(crate) incarnations: Mutex<Incarnations>,
    /// The number of the present incarnation.
    pub(crate) number: AtomicU64,
    /// Held while an index is made, opened or dropped.
    naming: Mutex<()>,
    /// Of a pool that lasts.
    pub(crate) durable: Option<DurableIndexes>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = &self.0.incarnation().cluster;
        write!(f, "Pool({} memory nodes, {} compute nodes)", c.memory_nodes(), c.compute_nodes())
    }
}

impl Pool {
    /// A pool in the memory of this process: the builder says how large. It lives in memory only.
    pub fn embedded() -> PoolBuilder {
        PoolBuilder::new()
    }

    /// Joins a pool of several processes as a compute node. `first` is where its first memory node
    /// listens, `HOST:PORT` (`dmtree memnode` starts one).
    #[cfg(feature = "tcp")]
    pub fn connect(first: &str) -> Connector {
        Connector::new(first)
    }

    /// A pool that joins again in this way, if at all.
    pub(crate) fn new(
        cluster: Cluster,
        cache_bytes: u64,
        how: Option<Way>,
        durable: Option<DurableIndexes>,
    ) -> Self {
        Self(PoolInner::new(cluster, cache_bytes, how, durable))
    }

    pub(crate) fn inner(&self) -> &Arc<PoolInner> {
        &self.0
    }

    /// Opens an index that exists, with the options it was created with; one that another process
    /// is creating is waited for. In an embedded pool it is one which this process created: **an
    /// embedded pool lives in memory only**, see [`PoolBuilder::open`].
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub fn open(&self, name: &str) -> Result<Index> {
        let _naming = locked(&self.0.naming);
        self.opened(&self.0.found(name)?)
    }

    /// Creates an index that does not exist yet.
    ///
    /// # Errors
    /// `Exists` when there is one of this name, `InvalidArgument` for
    /// options out of range, `Full` when the memory or the catalog is.
    pub fn create(&self, name: &str, options: Options) -> Result<Index> {
        let _naming = locked(&self.0.naming);
        if self.is_durable()
            && let Some(new) = self.0.begin(name, &options, false)?
        {
            return new.publish_alone();
        }
        let cache_bytes = self.0.cache_bytes;
        let entry = self.0.admin(false, |a| a.create(name, &options, cache_bytes, false))?;
        self.opened(&entry)
    }

    /// Opens an index, or creates it when it does not exist. Of several processes that do so at
    /// once one creates it, and the others wait for it.
    ///
    /// An index that exists keeps the options it was created with. Those that lay out its memory
    /// must be the same here; the timeout may differ and is ignored.
    ///
    /// # Errors
    /// `Incompatible` when it exists with another layout, naming the option; otherwise
    /// as [`Pool::create`].
    pub fn open_or_create(&self, name: &str, options: Options) -> Result<Index> {
        let _naming = locked(&self.0.naming);
        if self.is_durable() {
            // It is in the journal before others can open it.
            if let Some(new) = self.0.begin(name, &options, true)? {
                return new.publish_alone();
            }
            let entry = self.0.found(name)?;
            return self.opened_like(&entry, &options);
        }
        let cache_bytes = self.0.cache_bytes;
        // Another attempt opens what a first one has left, or waits until it is gone.
        let entry = self.0.admin(true, |a| a.create(name, &options, cache_bytes, true))?;
        self.opened_like(&entry, &options)
    }

    /// An index that exists, when it has the layout of these options.
    fn opened_like(&self, entry: &IndexEntry, options: &Options) -> Result<Index> {
        check_system(entry)?;
        Options::of(&stored_options(entry)?).check_layout(&entry.name, options)?;
        self.opened(entry)
    }

    /// The names of all indexes, in order.
    pub fn list(&self) -> Result<Vec<String>> {
        let all = self.0.entries()?;
        Ok(all.into_iter().filter(|e| e.state == IndexState::Ready).map(|e| e.name).collect())
    }

    /// Removes an index. Operations on handles that are still there end in `Closed`, in other
    /// processes, too. Its memory goes back to the pool when the operations that run in it have
    /// ended in all processes; while one of them does not answer, a later call, or a write that
    /// finds the pool full, gives it back.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub fn drop_index(&self, name: &str) -> Result<()> {
        let _naming = locked(&self.0.naming);
        let durable = self.0.durable.as_ref();
        let number = durable.map_or(Ok(None), |durable| durable.number(name))?;
        self.0.remove_entry(name)?;
        let gone = locked(&self.0.opened).remove(name);
        if let Some(open) = gone {
            open.close();
        }
        match (durable, number) {
            (Some(durable), Some(number)) => durable.remove(number),
            _ => Ok(()),
        }
    }

    /// How full the memory is.
    pub fn stats(&self) -> Result<PoolStats> {
        self.0.stats()
    }

    /// The memory nodes that cannot be used, as far as this process knows, a line each; without a
    /// round trip.
    pub fn missing(&self) -> Result<Vec<String>> {
        let away = self.0.incarnation().cluster.compute_node(0)?.membership().away();
        Ok(away.into_iter().map(|(node, presence)| presence.refusal(node).to_string()).collect())
    }

    /// The number of the compute node that this process is in the pool, and the number of its
    /// incarnation: it grows when the process has lost its membership and joined again. Of an
    /// embedded pool, its first compute node.
    pub fn incarnation(&self) -> Result<(usize, u32)> {
        let member = self.0.incarnation().cluster.compute_node(0)?.member();
        Ok((member.node.index(), member.incarnation))
    }

    /// Whether an operator has asked this process to leave the pool (`dmtree drain`). A program
    /// looks now and then, ends its work, and drops its handles: its tables move to other compute
    /// nodes, and the process may end. Never so for an embedded pool.
    #[cfg(feature = "tcp")]
    pub fn is_asked_to_leave(&self) -> bool {
        self.0.incarnation().cluster.is_asked_to_leave()
    }

    /// Whether the pool lasts: what is acknowledged is in a journal.
    pub fn is_durable(&self) -> bool {
        self.0.durable.is_some()
    }

    /// What this process says of itself in a pool of several.
    #[cfg(feature = "tcp")]
    #[doc(hidden)]
    pub fn status(&self) -> Option<NodeStatus> {
        self.0.incarnation().cluster.status()
    }

    /// What this process does in the pool, as Prometheus text: operations by kind and outcome,
    /// caches, verbs and bytes by side, memory. Cheap; nothing is counted for it.
    ///
    /// # Errors
    /// Those of [`Pool::stats`]; `Unsupported` without the feature `metrics`.
    pub fn metrics(&self) -> Result<String> {
        status::metrics(self)
    }

    /// Creates an index with the options that the first of these files was exported with, and
    /// stores their pairs as [`Index::import`] does. Others can open it when it has all of them;
    /// when that fails there is no index.
    ///
    /// # Errors
    /// As [`Pool::create`] and [`Index::import`];
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a file that does not
    /// say its index's options.
    #[cfg(feature = "json")]
    pub fn import_into_new(
        &self,
        name: &str,
        files: &[impl AsRef<Path>],
    ) -> Result<(Index, Loaded)> {
        export::import_into_new(self, name, files)
    }

    fn opened(&self, entry: &IndexEntry) -> Result<Index> {
        let mut opened = locked(&self.0.opened);
        let known = opened.get(&entry.name).filter(|o| o.id == entry.id).cloned();
        if let Some(open) = known {
            return Ok(Index::new(self.0.clone(), open));
        }
        let open = Arc::new(self.0.open_entry(entry)?);
        opened.insert(entry.name.clone(), open.clone());
        drop(opened);
        // The entry may be older than this incarnation, and the index dropped and purged before it.
        let listed =
            self.0.admin(true, |a| a.run(a.node.catalog().find_index(&a.ep, &entry.name)))?;
        if listed.is_none_or(|listed| listed.id != entry.id) {
            open.close();
            return Err(Error::not_found(format!("the index {:?} was removed", entry.name)));
        }
        Ok(Index::new(self.0.clone(), open))
    }
}

impl PoolInner {
    fn new(
        cluster: Cluster,
        cache_bytes: u64,
        how: Option<Way>,
        durable: Option<DurableIndexes>,
    ) -> Arc<Self> {
        Arc::new(Self {
            how,
            cache_bytes,
            opened: Mutex::default(),
            incarnations: Mutex::new(Incarnations::new(cluster)),
            number: AtomicU64::new(1),
            naming: Mutex::default(),
            durable,
        })
    }

    /// Begins an index, which its creator fills and publishes; `None` for one that `may_exist`, and
    /// does.
    pub(crate) fn begin(
        self: &Arc<Self>,
        name: &str,
        options: &Options,
        may_exist: bool,
    ) -> Result<Option<Unpublished>> {
        let begin =
            |a: &Admin| Ok((a.begin(name, options, self.cache_bytes, may_exist)?, a.ep.clone()));
        match self.admin(may_exist, begin)? {
            (Opening::Ready(_), _) => Ok(None),
            (Opening::Begun(creation), ep) => {
                Unpublished::new(self, creation, ep, options).map(Some)
            }
        }
    }

    /// An index that can be opened.
    fn found(self: &Arc<Self>, name: &str) -> Result<IndexEntry> {
        let found =
            self.admin(true, |a| a.run(a.node.creations().find_ready_index(&a.ep, name)))?;
        found.ok_or_else(|| {
            Error::not_found(format!(
                "there is no index {name:?} in this pool: create it, or see `Pool::list`"
            ))
        })
    }

    /// As [`PoolInner::begin`] for an index of the journal, which its pairs come from.
    pub(crate) fn begin_reloaded(
        self: &Arc<Self>,
        name: &str,
        options: &Options,
    ) -> Result<Option<Unpublished>> {
        let begin = |a: &Admin| Ok((a.begin(name, options, self.cache_bytes, true)?, a.ep.clone()));
        match self.admin(true, begin)? {
            (Opening::Ready(_), _) => Ok(None),
            (Opening::Begun(creation), ep) => {
                Unpublished::reloaded(self, creation, ep, options).map(Some)
            }
        }
    }

    /// Begins an entry of something that is no index, unless it is there.
    #[cfg(feature = "tcp")]
    pub(crate) fn begin_entry(
        self: &Arc<Self>,
        name: &str,
        system: &str,
    ) -> Result<Option<BegunEntry>> {
        let new = NewIndex { name, system, options: &[] };
        let begin = |a: &Admin| {
            Ok((a.run(a.node.creations().open_or_begin_index(&a.ep, new))?, a.ep.clone()))
        };
        match self.admin(true, begin)? {
            (Opening::Ready(_), _) => Ok(None),
            (Opening::Begun(creation), ep) => Ok(Some(BegunEntry { creation, ep })),
        }
    }

    /// Every entry of the catalog, by name, but for the mark of the journal.
    pub(crate) fn entries(self: &Arc<Self>) -> Result<Vec<IndexEntry>> {
        let mut all = self.admin(true, |a| a.run(a.node.catalog().list_indexes(&a.ep)))?;
        all.retain(|entry| entry.system != restart::MARK_SYSTEM);
        Ok(all)
    }

    /// Adds an entry of something that is no index.
    #[cfg(feature = "json")]
    pub(crate) fn add_entry(
        self: &Arc<Self>,
        name: &str,
        system: &str,
        options: &[u8],
    ) -> Result<()> {
        let new = NewIndex { name, system, options };
        self.admin(false, |a| {
            a.run(async {
                a.node.creations().begin_index(&a.ep, new).await?.publish().await.map(drop)
            })
        })
    }

    /// Removes an entry.
    pub(crate) fn remove_entry(self: &Arc<Self>, name: &str) -> Result<()> {
        self.admin(false, |a| a.run(a.node.catalog().drop_index(&a.ep, name)))
    }

    /// As [`dmtree_pool::JournalNodes::journal_nodes`].
    #[cfg(feature = "json")]
    pub(crate) fn journal_nodes(self: &Arc<Self>) -> Result<Vec<dmtree_fabric::MemoryState>> {
        self.admin(true, |a| a.run(a.node.journal().journal_nodes(&a.ep)))
    }

    /// As [`dmtree_pool::JournalNodes::begin_refill`].
    pub(crate) fn begin_refill(self: &Arc<Self>, of: NodeId, waits_ns: u64) -> Result<()> {
        self.admin(false, |a| a.run(a.node.journal().begin_refill(&a.ep, of, waits_ns)))
    }

    /// As [`dmtree_pool::JournalNodes::end_refill`].
    pub(crate) fn end_refill(self: &Arc<Self>, of: NodeId) -> Result<()> {
        self.admin(false, |a| a.run(a.node.journal().end_refill(&a.ep, of)))
    }

    fn open_entry(&self, entry: &IndexEntry) -> Result<OpenIndex> {
        let journal = match &self.durable {
            None => None,
            Some(durable) => {
                let number = durable.number(&entry.name)?.ok_or_else(|| {
                    let what = "the journal of the pool does not have the index: drop it";
                    Error::incompatible(format!("{what} ({:?})", entry.name))
                })?;
                Some(durable.part(number))
            }
        };
        self.open_with(entry, journal)
    }

    /// Opens an index with this journal for its effects.
    pub(crate) fn open_with(
        &self,
        entry: &IndexEntry,
        journal: Option<IndexJournal>,
    ) -> Result<OpenIndex> {
        check_system(entry)?;
        let options = stored_options(entry)?;
        let of = (self.cache_bytes, self.how.is_some());
        OpenIndex::new(entry, options, &self.incarnation(), of, journal)
    }

    pub(crate) fn stats(self: &Arc<Self>) -> Result<PoolStats> {
        let usage = self.admin(true, |a| a.run(a.node.usage_all(&a.ep)))?;
        Ok(PoolStats::of(&usage))
    }

    /// An administrative call. It is made again after a loss of the membership where it `repeats`,
    /// or has had no effect.
    fn admin<T>(
        self: &Arc<Self>,
        repeats: bool,
        mut call: impl FnMut(&Admin) -> Result<T>,
    ) -> Result<T> {
        let mut admin = Admin::new(self.incarnation())?;
        if admin.is_superseded(self)? {
            admin = Admin::new(self.incarnation())?;
        }
        let mut attempts = Attempts::default();
        loop {
            let e = match call(&admin) {
                Err(e) => e,
                done => return done,
            };
            match admin.after(self, &mut attempts, e, repeats)? {
                Next::Give(e) => return Err(e),
                Next::Again => {}
                Next::Newer => admin = Admin::new(self.incarnation())?,
            }
            attempts.limit(&admin.ep);
            admin.ep.renew_deadline();
        }
    }
}

/// An entry that its creator alone sees as long as it has this.
#[cfg(feature = "tcp")]
pub(crate) struct BegunEntry {
    creation: dmtree_pool::Creation,
    ep: Endpoint,
}

#[cfg(feature = "tcp")]
impl BegunEntry {
    /// Makes it ready for all.
    pub(crate) fn publish(self) -> Result<()> {
        // Much has been done meanwhile.
        self.ep.renew_deadline();
        self.ep.block_on(self.creation.publish()).map(drop)
    }
}

/// An administrative call: an endpoint of the first compute node.
struct Admin {
    incarnation: Arc<Incarnation>,
    node: Arc<PoolNode>,
    ep: Endpoint,
}

impl Admin {
    fn new(incarnation: Arc<Incarnation>) -> Result<Self> {
        let node = incarnation.cluster.compute_node(0)?;
        let ep = node.endpoint(ADMIN_SLAB_BYTES)?;
        Ok(Self { incarnation, node, ep })
    }

    fn context<'a>(&'a self, pool: &'a Arc<PoolInner>) -> ClientContext<'a> {
        ClientContext { pool, incarnation: &self.incarnation, node: &self.node, ep: &self.ep }
    }

    fn is_superseded(&self, pool: &Arc<PoolInner>) -> Result<bool> {
        self.run(self.context(pool).is_superseded(DEFAULT_TIMEOUT_NS))
    }

    fn after(
        &self,
        pool: &Arc<PoolInner>,
        attempts: &mut Attempts,
        e: Error,
        repeats: bool,
    ) -> Result<Next> {
        self.run(async { Ok(attempts.after(self.context(pool), e, repeats).await) })
    }

    fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.ep.block_on(future)
    }

    /// Creates an index, or opens the one that `may_exist`.
    fn create(
        &self,
        name: &str,
        options: &Options,
        cache_bytes: u64,
        may_exist: bool,
    ) -> Result<IndexEntry> {
        match self.begin(name, options, cache_bytes, may_exist)? {
            Opening::Ready(entry) => Ok(entry),
            Opening::Begun(creation) => self.run(creation.publish()),
        }
    }

    /// Begins the creation of an index, or opens the one that `may_exist`.
    fn begin(
        &self,
        name: &str,
        options: &Options,
        cache_bytes: u64,
        may_exist: bool,
    ) -> Result<Opening> {
        let cx = NodeContext { pool: self.node.clone(), cache_bytes };
        let options = &options.creation();
        let (encoded, options) = (&options.stored(), &OptionsOf::<DmTree>(options));
        let new = NewIndex { name, system: SYSTEM, options: encoded };
        self.run(async {
            match may_exist {
                true => naming::open_or_begin(&self.ep, &cx, new, options).await,
                false => naming::begin(&self.ep, &cx, new, options).await.map(Opening::Begun),
            }
        })
    }
}

fn check_system(entry: &IndexEntry) -> Result<()> {
    if entry.system == SYSTEM {
        return Ok(());
    }
    Err(Error::incompatible(format!(
        "the index {:?} is a {:?}; this library opens {SYSTEM:?} indexes",
        entry.name, entry.system
    )))
}

fn stored_options(entry: &IndexEntry) -> Result<dmtree_engine::Options> {
    let options = dmtree_engine::Options::from_stored(&entry.options);
    options.map_err(|e| e.context(format!("index {:?}", entry.name)))
}
