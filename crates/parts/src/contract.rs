//! The interface of every range index, and its guarantees.
//!
//! Point operations are linearizable across threads, coroutines and compute nodes. A scan yields
//! keys in order, each at most once; each pair was current at some instant of the scan; a key
//! present during the whole scan is never missed.
//!
//! An index that keeps old versions may have snapshots, and a log of writes may take several at
//! once ([`OpSet`]). A snapshot shows the index as it was at one instant, however it is read. An
//! atomic batch takes effect at one instant: reads at a snapshot see all of it or nothing.

use std::ops::Bound;
use std::sync::Arc;

use dmtree_fabric::{Capabilities, Endpoint, Error, GlobalAddr, NodeId, OpKind, OpOutcome, Result};
use dmtree_pool::PoolNode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::combine::Intent;
use crate::fill::Fill;
use crate::op::Written;
use crate::page::{Page, Values};
use crate::snapshots::{BatchWrite, SnapshotId, check_batch, lacks};
use crate::worker::Pause;

/// Longest key, bytes. The shortest has one.
pub const MAX_KEY_BYTES: usize = 1 << 10;
/// Longest value, bytes. The shortest is empty.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Refuses keys that no index takes.
///
/// # Errors
/// `InvalidArgument` for an empty key and one over [`MAX_KEY_BYTES`].
#[inline]
pub fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::invalid("the empty key is not a key: use at least one byte")),
        1..=MAX_KEY_BYTES => Ok(()),
        n => {
            Err(Error::invalid(format!("a key of {n} bytes is over the limit of {MAX_KEY_BYTES}")))
        }
    }
}

/// Refuses values that no index takes.
///
/// # Errors
/// `InvalidArgument` for one over [`MAX_VALUE_BYTES`].
#[inline]
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::invalid(format!(
            "a value of {} bytes is over the limit of {MAX_VALUE_BYTES}: store it in parts",
            value.len()
        )));
    }
    Ok(())
}

/// A point write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write<'a> {
    /// Sets the value, whether the key exists or not.
    Put(&'a [u8]),
    /// Sets the value of a key that must be absent.
    Insert(&'a [u8]),
    /// Sets the value of a key that must be present.
    Update(&'a [u8]),
    /// Removes the key.
    Delete,
    /// Sets (or, with `None`, removes) the value when the present one equals `expected`.
    CompareAndSet {
        /// The value that must be there.
        expected: &'a [u8],
        /// The value to be there afterwards.
        #[serde(borrow)]
        new: Option<&'a [u8]>,
    },
}

impl<'a> Write<'a> {
    /// How the counters name it.
    pub fn kind(&self) -> OpKind {
        match self {
            Self::Put(_) => OpKind::Put,
            Self::Insert(_) => OpKind::Insert,
            Self::Update(_) => OpKind::Update,
            Self::Delete => OpKind::Delete,
            Self::CompareAndSet { .. } => OpKind::CompareAndSet,
        }
    }

    /// What other writers of the key can join; `None` for a write that depends on the old value.
    pub fn intent(&self) -> Option<Intent<'a>> {
        match *self {
            Self::Put(v) => Some(Intent::Put(v)),
            Self::Update(v) => Some(Intent::Update(v)),
            Self::Insert(_) | Self::Delete | Self::CompareAndSet { .. } => None,
        }
    }

    /// The value to be there afterwards; `None`: no value.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put(v) | Self::Insert(v) | Self::Update(v) => Some(v),
            Self::Delete => None,
            Self::CompareAndSet { new, .. } => new,
        }
    }

    /// Why it changes nothing, if the key's present value is `old`, and how that counts.
    #[inline]
    pub fn refused(&self, old: Option<&[u8]>) -> Option<Written> {
        match (self, old) {
            (Self::Insert(_), Some(_)) => Some((Outcome::Exists, OpOutcome::Hit)),
            (Self::Update(_) | Self::Delete | Self::CompareAndSet { .. }, None) => {
                Some((Outcome::NotFound, OpOutcome::Absent))
            }
            (Self::CompareAndSet { expected, .. }, Some(old)) if *expected != old => {
                Some((Outcome::Mismatch, OpOutcome::Hit))
            }
            _ => None,
        }
    }

    /// Refuses values that are too long.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Put(v) | Self::Insert(v) | Self::Update(v) => check_value(v),
            Self::Delete => Ok(()),
            Self::CompareAndSet { expected, new } => {
                check_value(expected)?;
                new.map_or(Ok(()), check_value)
            }
        }
    }
}

/// How a write ended. These are not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// Nothing was changed: the key exists (insert).
    Exists,
    /// Nothing was changed: the key is absent (update, delete, compare-and-set).
    NotFound,
    /// Nothing was changed: the value differs (compare-and-set).
    Mismatch,
}

/// The smallest bytes behind all keys with a prefix; `None` when there are none.
pub fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The range of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRequest<'a> {
    /// Lower end.
    #[serde(borrow)]
    pub low: Bound<&'a [u8]>,
    /// Upper end.
    #[serde(borrow)]
    pub high: Bound<&'a [u8]>,
    /// From the upper end downwards.
    pub reverse: bool,
    /// At most this many pairs in this page.
    pub limit: usize,
}

impl<'a> ScanRequest<'a> {
    /// Refuses bounds that no key can be (the empty one can), and a page without room.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(&self) -> Result<()> {
        for key in [self.low, self.high].into_iter().filter_map(bytes_of) {
            if !key.is_empty() {
                check_key(key)?;
            }
        }
        self.check_limit()
    }

    /// Refuses a page without room.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of 0.
    pub fn check_limit(&self) -> Result<()> {
        match self.limit {
            0 => Err(Error::invalid("a scan needs a limit of at least one pair")),
            _ => Ok(()),
        }
    }

    /// The bounds in the direction of the scan: where it begins, and where it ends.
    pub fn ends(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        let (low, high) = (bytes_of(self.low), bytes_of(self.high));
        if self.reverse { (high, low) } else { (low, high) }
    }

    /// Whether a key lies below the range.
    pub fn is_under(&self, key: &[u8]) -> bool {
        match self.low {
            Bound::Included(low) => key < low,
            Bound::Excluded(low) => key <= low,
            Bound::Unbounded => false,
        }
    }

    /// Whether a key lies above the range.
    pub fn is_over(&self, key: &[u8]) -> bool {
        match self.high {
            Bound::Included(high) => key > high,
            Bound::Excluded(high) => key >= high,
            Bound::Unbounded => false,
        }
    }

    /// The rest of the scan, from where a page of it has ended.
    #[must_use]
    pub fn after(self, page_end: Option<&'a Resume>) -> Self {
        match page_end.map(|Resume(at)| at.as_ref().map(Vec::as_slice)) {
            None => self,
            Some(high) if self.reverse => Self { high, ..self },
            Some(low) => Self { low, ..self },
        }
    }

    /// Whether a key lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        !self.is_under(key) && !self.is_over(key)
    }

    /// Whether a key lies behind the range, in the direction of the scan.
    pub fn is_behind(&self, key: &[u8]) -> bool {
        if self.reverse { self.is_under(key) } else { self.is_over(key) }
    }

    /// After the pairs below `fence` were added to an ascending page: where the next page begins,
    /// if this one is full, or `None` at the end of the range. The outer `None`: the page goes on.
    pub fn ended_at(&self, page: &Page, fence: Option<&[u8]>) -> Option<Option<Resume>> {
        if page.len() == self.limit {
            let last = page.get(page.len() - 1).map(|(key, _)| key.to_vec());
            return Some(last.map(|key| Resume(Bound::Excluded(key))));
        }
        let Some(fence) = fence else { return Some(None) };
        if self.is_over(fence) {
            return Some(None);
        }
        let full = page.bytes() >= PAGE_BYTES;
        full.then(|| Some(Resume(Bound::Included(fence.to_vec()))))
    }
}

fn bytes_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Where the next page of a scan begins: the lower end of an ascending one, the upper end of a
/// descending one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume(pub Bound<Vec<u8>>);

/// A page of a scan ends at about this many bytes even when its limit is not reached.
pub const PAGE_BYTES: usize = 4 << 20;

/// The operations an index has. A published design may lack some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OpSet {
    /// Removal.
    pub delete: bool,
    /// Conditional write.
    pub compare_and_set: bool,
    /// Descending scans.
    pub reverse_scan: bool,
    /// Keys and values of any length the contract allows.
    pub any_length: bool,
    /// Reads at a snapshot.
    pub snapshots: bool,
    /// The most writes of an atomic batch; 0: it has none.
    pub batch_writes: u32,
}

impl OpSet {
    /// Everything but what only some kinds of indexes can have: snapshots and atomic batches.
    pub const ALL: Self = Self {
        delete: true,
        compare_and_set: true,
        reverse_scan: true,
        any_length: true,
        snapshots: false,
        batch_writes: 0,
    };
}

/// The resources that a compute node gives to an index.
#[derive(Clone, Debug)]
pub struct NodeContext {
    /// Its share in the pool.
    pub pool: Arc<PoolNode>,
    /// Bytes for caches (inner nodes and mirrors together) on this node.
    pub cache_bytes: u64,
}

/// The root of an index, from its format or from the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The index's number in the pool.
    pub index: u32,
    /// A word on a memory node that names the root. How it may change is the index's business.
    pub word: GlobalAddr,
}

impl Root {
    /// The word behind it, which is 0 at first: the index's, too.
    pub fn aux(&self) -> GlobalAddr {
        self.word.plus(8)
    }

    /// A word that names what clients may learn of the index, which is 0 at first.
    pub fn directory(&self) -> GlobalAddr {
        self.word.plus(24)
    }

    /// A lock word behind it: of the client that is about to change it.
    pub fn claim(&self) -> GlobalAddr {
        self.word.plus(32)
    }
}

/// The result of a maintenance step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No work was due.
    None,
    /// Some work was done, and more may be waiting.
    Some,
}

/// The result of a bulk load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Pairs stored.
    pub pairs: u64,
    /// Whole leaves written (0 when the index was not empty and every pair was put).
    pub leaves: u64,
}

/// The leaked memory that a GC of an index has found and freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Nodes without a holder.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes for keys and values out of line.
    pub space_bytes: u64,
    /// Table cells.
    pub cells: u64,
    /// Pieces of memory with two holders. Meaningful only without concurrent operations.
    pub doubly: u64,
}

impl Found {
    /// Whether no memory was lost, and none had two holders.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Numbers about an index's structure, for stats and for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Keys present.
    pub keys: u64,
    /// Leaves by capacity: (slots, how many).
    pub leaves: Vec<(u32, u64)>,
    /// Inner nodes.
    pub inner_nodes: u64,
    /// Inner levels.
    pub levels: u32,
    /// Bytes of leaves and inner nodes on memory nodes.
    pub structure_bytes: u64,
    /// Bytes of the leaves among them, where leaves are counted one by one.
    pub leaf_bytes: u64,
    /// Bytes of blocks (long keys and values, logs, manifests) on memory nodes.
    pub block_bytes: u64,
    /// Bytes of tables, wherever they are.
    pub table_bytes: u64,
    /// Leaves without a table at their present owner yet: the first operation that needs it builds
    /// it.
    pub unbuilt_tables: u64,
    /// Leaf fill: `fill[n]` leaves have `n` live slots.
    pub fill: Vec<u64>,
}

impl Shape {
    /// Counts a leaf of `slots` slots with `live` keys, in so many bytes.
    pub fn add_leaf(&mut self, slots: usize, live: usize, bytes: u64) {
        self.keys += live as u64;
        self.structure_bytes += bytes;
        self.leaf_bytes += bytes;
        let slots = slots as u32;
        match self.leaves.iter_mut().find(|(s, _)| *s == slots) {
            Some((_, n)) => *n += 1,
            None => self.leaves.push((slots, 1)),
        }
        self.fill.resize(self.fill.len().max(live + 1), 0);
        self.fill[live] += 1;
    }
}

/// The memory of an index on a compute node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// Budget, bytes, images included.
    pub budget_bytes: u64,
    /// Bytes in use: cached inner nodes and mirrors.
    pub used_bytes: u64,
    /// Bytes of images of leaves that this node has granted, beside `used_bytes`.
    pub image_bytes: u64,
    /// Cached inner nodes.
    pub nodes: u64,
    /// Bytes of mirrors (part of `used_bytes`).
    pub mirror_bytes: u64,
    /// Cached nodes dropped for room.
    pub evictions: u64,
    /// Lookups that found their bottom node.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// What `used_bytes` is, by name, where an index has several kinds of memory.
    pub parts: [(&'static str, u64); 4],
}

/// The resources that an operation on a key needs beside its own node and the way down to the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The leaf.
    pub leaf: GlobalAddr,
    /// The compute node with the leaf's lock in its memory, if one has it.
    pub owner: Option<NodeId>,
    /// The lock of the leaf, where other leaves share it.
    pub shared_lock: Option<GlobalAddr>,
}

impl KeyPlace {
    /// Whether a write of one excludes a write of the other.
    pub fn excludes(&self, other: &Self) -> bool {
        let is_shared = self.shared_lock.is_some() && self.shared_lock == other.shared_lock;
        self.leaf == other.leaf || is_shared
    }
}

/// A range index: `Self` is the client of one slot, made by [`RangeIndex::client`].
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait RangeIndex: Sized + 'static {
    /// The operations it has, whatever its options.
    const OPS: OpSet;
    /// The capabilities that it needs beyond the contract of the fabric.
    const NEEDS: Capabilities;
    /// Pairs that every leaf of a bulk-loaded index has at least (but for the last): a reader of
    /// one key of so many, in order, passes every inner node.
    const PAIRS_PER_LEAF: u64 = 8;
    /// Creation options and ablation switches; stored in the catalog.
    type Options: Serialize + DeserializeOwned + Clone + Send + Sync + std::fmt::Debug + 'static;
    /// The state that the clients of one compute node share.
    type Node: Send + Sync + 'static;

    /// The operations it has with these options.
    fn ops(_: &Self::Options) -> OpSet {
        Self::OPS
    }

    /// Whether a client may execute operations of other clients of its compute node: a fault that
    /// it meets then fails theirs, too.
    fn carries(_: &Self::Options) -> bool {
        true
    }

    /// Whether a client of any compute node takes any key. A design with an owner of each key
    /// refuses the keys of other compute nodes.
    fn any_node(_: &Self::Options) -> bool {
        true
    }

    /// Refuses options that contradict each other or the pool.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and the allowed range.
    fn check_options(o: &Self::Options, cx: &NodeContext) -> Result<()>;
    /// Writes an empty index; the root word is set last.
    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Self::Options, root: Root) -> Result<()>;
    /// The shared state of one compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for a cache budget below one node, `Incompatible` for options of another
    /// version.
    fn node(cx: &NodeContext, o: &Self::Options, root: Root) -> Result<Arc<Self::Node>>;
    /// The client of one slot.
    fn client(ep: Endpoint, node: Arc<Self::Node>) -> Self;
    /// Its endpoint.
    fn endpoint(&self) -> &Endpoint;
    /// The resources that an operation on a key needs, as far as the client knows without verbs;
    /// `None` when it does not know.
    fn place_of(&self, _key: &[u8]) -> Option<KeyPlace> {
        None
    }

    /// Reads a key; the value replaces the contents of `out`. False when the key is absent (`out`
    /// is then empty).
    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;
    /// Writes a key.
    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome>;
    /// Fills a page; `None` when the range is exhausted.
    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>>;

    /// Reads several keys with fewer round trips than one by one. Each read is linearizable by
    /// itself.
    async fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        out.reset(keys.len());
        let mut value = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if self.get(key, &mut value).await? {
                out.set(i, &value);
            }
        }
        Ok(())
    }

    /// Applies several writes, in order per key, not atomically: outcome `i` belongs to write `i`.
    async fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        outcomes.clear();
        for (key, w) in writes {
            outcomes.push(self.write(key, *w).await);
        }
        Ok(())
    }

    /// Takes a snapshot. It shows the index as it is at one instant between call and return, to the
    /// clients of this compute node, until it is released.
    ///
    /// # Errors
    /// `Unsupported` without [`OpSet::snapshots`]; `InvalidArgument` when
    /// [`MAX_SNAPSHOTS`](crate::MAX_SNAPSHOTS) are open on this node.
    async fn take_snapshot(&mut self) -> Result<SnapshotId> {
        Err(lacks("snapshots"))
    }
    /// As [`Self::get`], at a snapshot.
    ///
    /// # Errors
    /// `InvalidArgument` for a snapshot of another index or node, or one that was released.
    async fn get_at(&mut self, _s: SnapshotId, _key: &[u8], _out: &mut Vec<u8>) -> Result<bool> {
        Err(lacks("snapshots"))
    }
    /// As [`Self::scan`], at a snapshot: all pages of it show the same instant.
    ///
    /// # Errors
    /// As [`Self::get_at`].
    async fn scan_at(
        &mut self,
        _s: SnapshotId,
        _r: &ScanRequest<'_>,
        _page: &mut Page,
    ) -> Result<Option<Resume>> {
        Err(lacks("snapshots"))
    }
    /// Releases a snapshot: old versions that it alone kept may go.
    ///
    /// # Errors
    /// As [`Self::get_at`]: a snapshot is released once.
    async fn release_snapshot(&mut self, _s: SnapshotId) -> Result<()> {
        Err(lacks("snapshots"))
    }

    /// Applies several writes at one instant; of writes of one key the last one counts. When it
    /// fails, all of them took effect or none.
    ///
    /// # Errors
    /// Nothing is written: `Unsupported` without [`OpSet::batch_writes`], `InvalidArgument` for
    /// more writes than that, for a key or value that the index does not take, and for more bytes
    /// than it has room for at once.
    async fn write_batch(&mut self, batch: &[BatchWrite<'_>]) -> Result<()> {
        check_batch(batch, 0)
    }

    /// Hears of keys, ascending, that inserts will use: an index that learns where keys lie trains
    /// on them. Called before the first pair is stored. Returns whether the index listens.
    ///
    /// # Errors
    /// `InvalidArgument` for keys that do not ascend strictly, and for an index with keys; those of
    /// the fabric.
    async fn foretell(&mut self, _keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<bool> {
        Ok(false)
    }

    /// Stores many pairs; the last of equal keys wins. Into an empty index whole leaves are
    /// written, as full as `fill` says; otherwise the pairs are put. `sorted` says that keys ascend
    /// strictly; if they do not, that is an error.
    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded>;

    /// Performs one bounded step of merging or reclamation, if any is due.
    async fn maintain(&mut self) -> Result<Work> {
        Ok(Work::None)
    }

    /// Whether reads have found work for [`Self::maintain`]: then it is called beside reads, too.
    fn has_read_work(&self) -> bool {
        false
    }

    /// Number of workers of each compute node (see [`crate::worker`]).
    fn workers(_: &Self::Options) -> u32 {
        0
    }

    /// Executes one bounded piece of background work, on a client that does nothing else; says when
    /// the next piece is due.
    ///
    /// # Errors
    /// Those of the fabric; the work stays due.
    async fn work(&mut self) -> Result<Pause> {
        Ok(Pause::For(u64::MAX))
    }

    /// Whether no background work is due or under way for this compute node, at a worker or at a
    /// memory node: what a run waits for that measures until all is done. It may answer `false`
    /// until its workers have looked once more.
    fn is_settled(&self) -> bool {
        true
    }

    /// Gives the cache of this compute node another budget, in bytes. When it returns, the node's
    /// memory ([`CacheStats`]) is within the budget and stays there. Other operations may run
    /// meanwhile.
    ///
    /// # Errors
    /// `Unsupported` for an index with a fixed budget; `InvalidArgument` for a budget that
    /// is too small; `TimedOut` when memory cannot be given back now: maintenance goes on.
    async fn set_cache_bytes(&mut self, _bytes: u64) -> Result<()> {
        Err(lacks("another cache budget"))
    }

    /// Recovers at once all locks and changes that crashed nodes have left unfinished and no
    /// operation has met since.
    async fn sweep(&mut self) -> Result<()> {
        Ok(())
    }

    /// Finds and frees memory without a holder: the holder crashed, or a caller dropped the
    /// operation that had allocated it. Other operations may run meanwhile.
    ///
    /// # Errors
    /// `Busy` when a node joins or crashes meanwhile: begin again.
    async fn gc(&mut self) -> Result<Found> {
        Ok(Found::default())
    }

    /// Walks the whole structure and checks the invariants that hold without concurrent writes.
    ///
    /// # Errors
    /// `Corrupt`, naming the invariant and the address.
    async fn walk(&mut self) -> Result<Shape>;

    /// The caches of this compute node.
    fn cache_stats(node: &Self::Node) -> CacheStats;
}

#[cfg(test)]
mod tests {
    use super::behind_prefix;

    #[test]
    fn behind_a_prefix() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"ab", Some(b"ac")),
            (b"a\xff\xff", Some(b"b")),
            (b"\xff", None),
            (b"\xff\xff", None),
            (b"", None),
        ];
        for (prefix, end) in cases {
            assert_eq!(behind_prefix(prefix).as_deref(), end);
        }
    }
}
