//! Pools that last: their journal, and its indexes. An embedded pool has a journal of its own. The
//! journal nodes of a pool of several processes are the journal of each of its compute nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dmtree_fabric::{Error, Result};
use dmtree_journal::{Cut, IndexJournal, IndexNumber, Journal, KnownIndex, Level, ShardedJournal};
use dmtree_pool::Cluster;

use crate::Options;
use crate::pool::{PoolInner, locked};

/// How far the opening of a durable pool has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenProgress {
    /// The index that is loaded.
    pub index: String,
    /// Its pairs so far.
    pub pairs: u64,
}

/// What is told of it.
pub(crate) type Report = Arc<dyn Fn(&OpenProgress) + Send + Sync>;

/// What a builder says of a pool that lasts.
#[derive(Clone)]
pub(crate) struct Durable {
    pub directory: PathBuf,
    pub level: Level,
    pub report: Option<Report>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.directory, self.level)
    }
}

impl Durable {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, level: Level::default(), report: None }
    }

    /// The time until the device has what was acknowledged; zero for never.
    pub(crate) fn sync_every(&mut self, time: Duration) {
        self.level = Level::Process { sync_every: (!time.is_zero()).then_some(time) };
    }

    /// Opens the journal.
    #[cfg(feature = "durable")]
    pub(crate) fn open(&self) -> Result<Arc<dyn Journal>> {
        Ok(Arc::new(dmtree_journal::DirectoryJournal::open(&self.directory, self.level)?))
    }

    /// Refuses: no engine is there.
    #[cfg(not(feature = "durable"))]
    pub(crate) fn open(&self) -> Result<Arc<dyn Journal>> {
        Err(Error::unsupported(format!(
            "{}: this program was built without the feature `durable`: build it with",
            self.directory.display()
        )))
    }
}

/// The journal of an open pool.
pub(crate) struct DurableIndexes {
    /// Of the present incarnation.
    journal: Mutex<Arc<dyn Journal>>,
    /// Whether other processes create and remove indexes, too.
    is_shared: bool,
    numbers: Mutex<BTreeMap<String, IndexNumber>>,
}

impl DurableIndexes {
    /// Of an embedded pool.
    pub(crate) fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal: Mutex::new(journal), is_shared: false, numbers: Mutex::default() }
    }

    /// Of a pool of several processes, if it has journal nodes.
    ///
    /// # Errors
    /// `Full` when there is no thread.
    #[cfg(feature = "tcp")]
    pub(crate) fn of_cluster(cluster: &Cluster) -> Result<Option<Self>> {
        let journal = journal_of(cluster)?;
        Ok(journal.map(|journal| Self { is_shared: true, ..Self::new(journal) }))
    }

    /// This process has joined again as a new incarnation. What the former one has not appended is
    /// refused from then on.
    pub(crate) fn enter(&self, cluster: &Cluster) -> Result<()> {
        if let Some(journal) = journal_of(cluster)? {
            let former = std::mem::replace(&mut *locked(&self.journal), journal);
            drop(former);
        }
        Ok(())
    }

    /// The journal of the present incarnation.
    pub(crate) fn journal(&self) -> Arc<dyn Journal> {
        locked(&self.journal).clone()
    }

    pub(crate) fn knows(&self, name: &str, number: IndexNumber) {
        locked(&self.numbers).insert(name.to_owned(), number);
    }

    /// Adds an index that has no name yet.
    pub(crate) fn begin(&self) -> Result<(IndexNumber, IndexJournal)> {
        let number = self.journal().create()?;
        Ok((number, self.part(number)))
    }

    /// Names indexes, all or none.
    pub(crate) fn name(&self, indexes: &[KnownIndex]) -> Result<()> {
        self.journal().name(indexes)?;
        indexes.iter().for_each(|index| self.knows(&index.name, index.number));
        Ok(())
    }

    /// An index was removed from the pool.
    pub(crate) fn remove(&self, number: IndexNumber) -> Result<()> {
        locked(&self.numbers).retain(|_, of| *of != number);
        self.journal().remove(number)
    }

    /// What the journal has now.
    pub(crate) fn cut(&self) -> Result<Box<dyn Cut>> {
        self.journal().cut()
    }

    /// The number of an index, if it has one. Another process may have created the index since.
    pub(crate) fn number(&self, name: &str) -> Result<Option<IndexNumber>> {
        if self.is_shared {
            let indexes = self.journal().indexes()?;
            let known = indexes.into_iter().map(|known| (known.name, known.number));
            *locked(&self.numbers) = known.collect();
        }
        Ok(locked(&self.numbers).get(name).copied())
    }

    /// The part of an index.
    pub(crate) fn part(&self, number: IndexNumber) -> IndexJournal {
        IndexJournal::new(self.journal(), number)
    }
}

fn journal_of(cluster: &Cluster) -> Result<Option<Arc<dyn Journal>>> {
    let Some(journal) = cluster.journal() else { return Ok(None) };
    let me = cluster.compute_node(0)?.member();
    let (node, goes_on) = (cluster.compute_node(0)?, journal.goes_on);
    let is_skipped = move |of| goes_on && node.journal().skips_journal_node(of);
    Ok(Some(Arc::new(ShardedJournal::open(cluster.fabric(), me, journal.nodes, is_skipped)?)))
}

/// An index as the journal knows it.
pub(crate) fn known(number: IndexNumber, name: &str, options: &Options) -> KnownIndex {
    KnownIndex { number, name: name.to_owned(), options: options.creation().stored() }
}

/// The options of an index of a journal.
///
/// # Errors
/// `Incompatible` for those of another release.
pub(crate) fn options_of(known: &KnownIndex) -> Result<Options> {
    Ok(Options::of(&dmtree_engine::Options::from_stored(&known.options)?))
}

/// What a pair takes of a pool's memory, for the estimate of what many take.
pub(crate) fn pair_bytes(key: &[u8], value: &[u8]) -> u64 {
    load_bytes(1, (key.len() + value.len()) as u64)
}

/// As [`pair_bytes`], of many pairs with so many bytes of keys and values.
pub(crate) fn load_bytes(pairs: u64, bytes: u64) -> u64 {
    // What a slot takes beside them.
    bytes + 16 * pairs
}

/// The memory was full after so many bytes of pairs: how much all of them need.
pub(crate) fn too_small(pool: &Arc<PoolInner>, loaded_bytes: u64, all_bytes: u64) -> Error {
    let had = match pool.stats() {
        Ok(stats) => stats.total_bytes(),
        Err(e) => return e,
    };
    let needed = (had as f64 * all_bytes as f64 / loaded_bytes.max(1) as f64 * 1.1) as u64;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Error::full(format!(
        "it has more than the pool's memory of {} MiB holds: give it about {} MiB",
        mib(had),
        mib(needed)
    ))
}
