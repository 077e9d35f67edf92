//! A pool: memory, and the indexes in it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

pub(crate) use dmtree_fabric::sync::locked;
use dmtree_fabric::{DEFAULT_TIMEOUT_NS, Endpoint, Error, Result};
use dmtree_parts::{NodeContext, naming};
use dmtree_pool::{Cluster, IndexEntry, IndexState, NewIndex, PoolNode};

use crate::builder::{Connector, PoolBuilder, Way};
use crate::incarnation::{Attempts, ClientContext, Incarnation, Incarnations, Next};
use crate::index::Index;
use crate::open::OpenIndex;
use crate::options::Options;
use crate::stats::PoolStats;

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
    pub fn connect(first: &str) -> Connector {
        Connector::new(first)
    }

    pub(crate) fn embedded_in(cluster: Cluster, cache_bytes: u64) -> Self {
        Self(PoolInner::new(cluster, cache_bytes, None))
    }

    pub(crate) fn connected(cluster: Cluster, cache_bytes: u64, how: Way) -> Result<Self> {
        let pool = PoolInner::new(cluster, cache_bytes, Some(how));
        pool.watch(&pool.incarnation())?;
        Ok(Self(pool))
    }

    /// Opens an index that exists, with the options it was created with; one that another process
    /// is creating is waited for. In an embedded pool it is one which this process created: **an
    /// embedded pool lives in memory only**, see [`PoolBuilder::open`].
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub fn open(&self, name: &str) -> Result<Index> {
        let _naming = locked(&self.0.naming);
        let found = self
            .0
            .admin(true, |a| a.run(a.node.find_ready_index(&a.ep, name)))?
            .ok_or_else(|| {
                Error::not_found(format!(
                    "there is no index {name:?} in this pool: create it, or see `Pool::list`"
                ))
            })?;
        self.opened(&found)
    }

    /// Creates an index that does not exist yet.
    ///
    /// # Errors
    /// `Exists` when there is one of this name, `InvalidArgument` for
    /// options out of range, `Full` when the memory or the catalog is.
    pub fn create(&self, name: &str, options: Options) -> Result<Index> {
        let _naming = locked(&self.0.naming);
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
        let cache_bytes = self.0.cache_bytes;
        // Another attempt opens what a first one has left, or waits until it is gone.
        let entry = self.0.admin(true, |a| a.create(name, &options, cache_bytes, true))?;
        check_system(&entry)?;
        Options::of(&stored_options(&entry)?).check_layout(name, &options)?;
        self.opened(&entry)
    }

    /// The names of all indexes, in order.
    pub fn list(&self) -> Result<Vec<String>> {
        let all = self.0.admin(true, |a| a.run(a.node.list_indexes(&a.ep)))?;
        Ok(all.into_iter().filter(|e| e.state == IndexState::Ready).map(|e| e.name).collect())
    }

    /// Removes an index. Operations on handles that are still there end in `Closed`.
    /// Its memory is *not* given back to the pool yet.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub fn drop_index(&self, name: &str) -> Result<()> {
        let _naming = locked(&self.0.naming);
        self.0.admin(false, |a| a.run(a.node.drop_index(&a.ep, name)))?;
        let gone = locked(&self.0.opened).remove(name);
        if let Some(open) = gone {
            open.close();
        }
        Ok(())
    }

    /// How full the memory is.
    pub fn stats(&self) -> Result<PoolStats> {
        self.0.stats()
    }

    /// The memory nodes that cannot be used, as far as this process knows, a line each; without a
    /// round trip.
    pub fn missing(&self) -> Result<Vec<String>> {
        let away = self.0.incarnation().cluster.compute_node(0)?.away();
        Ok(away.into_iter().map(|(node, presence)| presence.refusal(node).to_string()).collect())
    }

    /// The number of the compute node that this process is in the pool, and the number of its
    /// incarnation: it grows when the process has lost its membership and joined again. Of an
    /// embedded pool, its first compute node.
    pub fn incarnation(&self) -> Result<(usize, u32)> {
        let member = self.0.incarnation().cluster.compute_node(0)?.member();
        Ok((member.node.index(), member.incarnation))
    }

    fn opened(&self, entry: &IndexEntry) -> Result<Index> {
        let mut opened = locked(&self.0.opened);
        let known = opened.get(&entry.name).filter(|o| o.id == entry.id).cloned();
        let open = match known {
            Some(open) => open,
            None => {
                let open = Arc::new(self.0.open_entry(entry)?);
                opened.insert(entry.name.clone(), open.clone());
                open
            }
        };
        drop(opened);
        Ok(Index::new(self.0.clone(), open))
    }
}

impl PoolInner {
    fn new(cluster: Cluster, cache_bytes: u64, how: Option<Way>) -> Arc<Self> {
        Arc::new(Self {
            how,
            cache_bytes,
            opened: Mutex::default(),
            incarnations: Mutex::new(Incarnations::new(cluster)),
            number: AtomicU64::new(1),
            naming: Mutex::default(),
        })
    }

    fn open_entry(&self, entry: &IndexEntry) -> Result<OpenIndex> {
        check_system(entry)?;
        OpenIndex::new(entry, stored_options(entry)?, &self.incarnation(), self.cache_bytes)
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
        let cx = NodeContext { pool: self.node.clone(), cache_bytes };
        let options = &options.creation();
        let (encoded, options) = (&encoded(options)?, &options.into());
        let new = NewIndex { name, system: SYSTEM, options: encoded };
        self.run(async {
            match may_exist {
                true => naming::open_or_create(&self.ep, &cx, new, options).await,
                false => naming::create(&self.ep, &cx, new, options).await,
            }
        })
    }
}

fn encoded(options: &dmtree_engine::Options) -> Result<Vec<u8>> {
    serde_json::to_vec(options)
        .map_err(|e| Error::invalid(format!("the options cannot be stored: {e}")))
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
    serde_json::from_slice(&entry.options).map_err(|e| {
        Error::incompatible(format!(
            "the options of index {:?} were stored by another version: {e}",
            entry.name
        ))
    })
}
