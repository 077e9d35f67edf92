//! A pool: memory, and the indexes in it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmtree_engine::{DmTree, Options};
use dmtree_fabric::{Endpoint, Error, ErrorKind, Result};
use dmtree_parts::naming::{self, Wish};
use dmtree_parts::{NodeContext, RangeIndex, Root};
use dmtree_pool::{Cluster, IndexEntry, IndexState, PoolNode};

use crate::builder::{Connector, PoolBuilder};
use crate::index::Index;
use crate::open::OpenIndex;
use crate::stats::PoolStats;

/// Which kind of index the catalog says it is.
const SYSTEM: &str = "dmtree";
/// Bytes of buffers of an administrative call.
const ADMIN_SLAB_BYTES: u64 = 16 << 20;

/// A lock whose holder panicked is taken all the same: what it guards is changed in single steps.
pub(crate) fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory in which indexes live. Clone it freely; all clones are the same pool. It stays while a clone, an [`Index`], a
/// [`Session`](crate::Session) or an [`AsyncClient`](crate::AsyncClient) of it is there.
///
/// **An embedded pool lives in memory only**: see [`PoolBuilder::open`].
#[derive(Clone)]
pub struct Pool(Arc<PoolInner>);

pub(crate) struct PoolInner {
    pub(crate) cluster: Cluster,
    cache_bytes: u64,
    /// Indexes that this process has opened, by name. Held while one is made, opened or dropped.
    opened: Mutex<BTreeMap<String, Arc<OpenIndex>>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = &self.0.cluster;
        write!(f, "Pool({} memory nodes, {} compute nodes)", c.memory_nodes(), c.compute_nodes())
    }
}

impl Pool {
    /// A pool in the memory of this process: the builder says how large. It lives in memory only.
    pub fn embedded() -> PoolBuilder {
        PoolBuilder::new()
    }

    /// Joins a pool of several processes as a compute node. `first` is where its first memory node listens, `HOST:PORT`
    /// (`dmtree memnode` starts one).
    pub fn connect(first: &str) -> Connector {
        Connector::new(first)
    }

    pub(crate) fn new(cluster: Cluster, cache_bytes: u64) -> Self {
        Self(Arc::new(PoolInner { cluster, cache_bytes, opened: Mutex::default() }))
    }

    /// Opens an index that exists, with the options it was created with. In an embedded pool that is one which this process
    /// created: **an embedded pool lives in memory only**, see [`PoolBuilder::open`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none of this name.
    pub fn open(&self, name: &str) -> Result<Index> {
        let mut opened = locked(&self.0.opened);
        let admin = Admin::new(&self.0)?;
        match admin.run(admin.node.find_ready_index(&admin.ep, name))? {
            Some(entry) => self.opened(&mut opened, &entry),
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no index {name:?} in this pool: create it, or see `Pool::list`"),
            )),
        }
    }

    /// Creates an index that does not exist yet.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] when there is one of this name, [`ErrorKind::InvalidArgument`] for options out of range,
    /// [`ErrorKind::Full`] when the memory or the catalog is.
    pub fn create(&self, name: &str, options: Options) -> Result<Index> {
        let mut opened = locked(&self.0.opened);
        let entry = Admin::new(&self.0)?.create(name, &options, self.0.cache_bytes)?;
        self.opened(&mut opened, &entry)
    }

    /// Opens an index, or creates it when it does not exist.
    ///
    /// An index that exists keeps the options it was created with. Those that lay out its memory must be the same here; the
    /// switches may differ and are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] when it exists with another layout, naming the option; otherwise as [`Pool::create`].
    pub fn open_or_create(&self, name: &str, options: Options) -> Result<Index> {
        let mut opened = locked(&self.0.opened);
        let admin = Admin::new(&self.0)?;
        let entry = admin.open_or_create(name, &options, self.0.cache_bytes)?;
        check_system(&entry)?;
        same_layout(name, &stored_options(&entry)?, &options)?;
        self.opened(&mut opened, &entry)
    }

    /// The names of all indexes, in order.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn list(&self) -> Result<Vec<String>> {
        let admin = Admin::new(&self.0)?;
        let all = admin.run(admin.node.list_indexes(&admin.ep))?;
        Ok(all.into_iter().filter(|e| e.state == IndexState::Ready).map(|e| e.name).collect())
    }

    /// Removes an index. Operations on handles that are still there end in [`ErrorKind::Closed`]. Its memory is *not* given
    /// back to the pool yet.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none of this name.
    pub fn drop_index(&self, name: &str) -> Result<()> {
        let mut opened = locked(&self.0.opened);
        let admin = Admin::new(&self.0)?;
        admin.run(admin.node.drop_index(&admin.ep, name))?;
        if let Some(open) = opened.remove(name) {
            open.dropped.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// How full the memory is.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn stats(&self) -> Result<PoolStats> {
        self.0.stats()
    }

    fn opened(
        &self,
        opened: &mut BTreeMap<String, Arc<OpenIndex>>,
        entry: &IndexEntry,
    ) -> Result<Index> {
        let known = opened.get(&entry.name).filter(|o| o.id == entry.id).cloned();
        let open = match known {
            Some(open) => open,
            None => {
                let open = Arc::new(self.0.open_entry(entry)?);
                opened.insert(entry.name.clone(), open.clone());
                open
            }
        };
        Ok(Index::new(self.0.clone(), open))
    }
}

impl PoolInner {
    fn open_entry(&self, entry: &IndexEntry) -> Result<OpenIndex> {
        check_system(entry)?;
        let options = stored_options(entry)?;
        let root = Root { index: entry.id, word: entry.root_word };
        let nodes = (0..self.cluster.compute_nodes())
            .map(|i| {
                let pool = self.cluster.compute_node(i)?;
                let cx = NodeContext { pool, cache_bytes: self.cache_bytes };
                DmTree::node(&cx, &options, root)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(OpenIndex::new(entry, options, nodes))
    }

    pub(crate) fn stats(&self) -> Result<PoolStats> {
        let admin = Admin::new(self)?;
        let usage = admin.run(admin.node.usage_all(&admin.ep))?;
        Ok(PoolStats::of(&usage))
    }
}

/// An administrative call: an endpoint of the first compute node.
struct Admin {
    node: Arc<PoolNode>,
    ep: Endpoint,
}

impl Admin {
    fn new(pool: &PoolInner) -> Result<Self> {
        let node = pool.cluster.compute_node(0)?;
        let ep = node.endpoint(ADMIN_SLAB_BYTES)?;
        Ok(Self { node, ep })
    }

    fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.ep.core().block_on(self.ep.slot(), future)
    }

    fn create(&self, name: &str, options: &Options, cache_bytes: u64) -> Result<IndexEntry> {
        let cx = NodeContext { pool: self.node.clone(), cache_bytes };
        let encoded = &encoded(options)?;
        let wish = Wish { name, system: SYSTEM, options, encoded };
        self.run(naming::create::<DmTree>(&self.ep, &cx, wish))
    }

    fn open_or_create(
        &self,
        name: &str,
        options: &Options,
        cache_bytes: u64,
    ) -> Result<IndexEntry> {
        let cx = NodeContext { pool: self.node.clone(), cache_bytes };
        let encoded = &encoded(options)?;
        let wish = Wish { name, system: SYSTEM, options, encoded };
        self.run(naming::open_or_create::<DmTree>(&self.ep, &cx, wish))
    }
}

fn encoded(options: &Options) -> Result<Vec<u8>> {
    serde_json::to_vec(options)
        .map_err(|e| Error::invalid(format!("the options cannot be stored: {e}")))
}

fn check_system(entry: &IndexEntry) -> Result<()> {
    if entry.system == SYSTEM {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!(
            "the index {:?} is a {:?}; this library opens {SYSTEM:?} indexes",
            entry.name, entry.system
        ),
    ))
}

fn stored_options(entry: &IndexEntry) -> Result<Options> {
    serde_json::from_slice(&entry.options).map_err(|e| {
        Error::new(
            ErrorKind::Incompatible,
            format!("the options of index {:?} were stored by another version: {e}", entry.name),
        )
    })
}

fn same_layout(name: &str, stored: &Options, asked: &Options) -> Result<()> {
    let pairs = [
        ("key_inline_bytes", stored.key_inline_bytes, asked.key_inline_bytes),
        ("value_inline_bytes", stored.value_inline_bytes, asked.value_inline_bytes),
        ("leaf_capacity", stored.leaf_capacity, asked.leaf_capacity),
        ("fanout", stored.fanout, asked.fanout),
    ];
    let refuse = |option: &str, has: String, wants: String| {
        Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "index {name:?} exists with {option} {has}, not {wants}: open it with that, or use another name"
            ),
        ))
    };
    if let Some((option, has, wants)) = pairs.into_iter().find(|(_, has, wants)| has != wants) {
        return refuse(option, has.to_string(), wants.to_string());
    }
    if stored.tables != asked.tables {
        return refuse("tables", format!("{:?}", stored.tables), format!("{:?}", asked.tables));
    }
    Ok(())
}
