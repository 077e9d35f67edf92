//! What published designs have in common: keys and values of fixed lengths, operations that the
//! design lacks, and no recovery.
//!
//! A design is a shared state of a compute node, which begins with a [`Base`], a client, which
//! begins with a [`Client`], and the steps of [`Published`]. This module makes a [`RangeIndex`] of
//! them. Every operation refuses what the design does not take, begins a scope of the counters,
//! clears the flag of a repeated step, and ends the scope with the outcome of the step.
//!
//! The module posts no verb but those of [`Client`], so the crash cases are those of the design.

use std::cell::{Cell, RefCell};
use std::ops::{Bound, Deref};
use std::sync::Arc;

use dmtree_fabric::{
    Buf, Capabilities, Endpoint, Error, GlobalAddr, OpKind, OpOutcome, Result, Stage, Step,
    Verified,
};
use dmtree_pool::{Bump, PoolNode, Ungated};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contract::{
    CacheStats, Loaded, NodeContext, OpSet, Outcome, RangeIndex, Resume, Root, ScanRequest, Shape,
    Write,
};
use crate::fill::Fill;
use crate::lock_words::Attempts;
use crate::op::{self, Hits, Lookups, Written};
use crate::page::Page;
use crate::pairs::Pairs;

pub use crate::options::check_range;

/// What a design fixes when an index is created.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of every key.
    pub key: usize,
    /// Bytes of every value.
    pub value: usize,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
    /// Smallest cache budget, bytes: one inner node.
    pub least_cache: u64,
}

/// The part of the shared state of a compute node that all designs have.
#[derive(Debug)]
pub struct Base {
    /// The compute node's share in the pool.
    pub pool: Arc<PoolNode>,
    /// The root of the index.
    pub root: Root,
    /// Lookups in its cache.
    pub lookups: Arc<Lookups>,
    limits: Limits,
    _open: Ungated,
}

impl Base {
    /// Of an index with options that were checked.
    ///
    /// # Errors
    /// `InvalidArgument` for a cache budget that is too small; `Closed` for a dropped index.
    pub fn new(cx: &NodeContext, root: Root, limits: Limits) -> Result<Self> {
        let least = limits.least_cache;
        if cx.cache_bytes < least {
            return Err(Error::invalid(format!(
                "a cache of {} bytes cannot hold one inner node: give it {least} at least",
                cx.cache_bytes
            )));
        }
        // Operations of these designs are not announced.
        let open = cx.pool.open_ungated(root.index)?;
        Ok(Self { pool: cx.pool.clone(), root, lookups: Arc::default(), limits, _open: open })
    }
}

/// The part of a client that all designs have: one fabric slot.
pub struct Client<N: Deref<Target = Base>> {
    /// Its endpoint.
    pub ep: Endpoint,
    /// The shared state of its compute node.
    pub node: Arc<N>,
    /// The value that it writes into lock words.
    pub tag: u64,
    /// A conflict forced the present operation to repeat a step.
    pub retried: Cell<bool>,
    /// Lookups that the cache served.
    pub hits: Hits,
}

impl<N: Deref<Target = Base>> std::fmt::Debug for Client<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.ep)
    }
}

impl<N: Deref<Target = Base>> Client<N> {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<N>) -> Self {
        ep.set_timeout(node.limits.timeout_ms.saturating_mul(1_000_000));
        let tag = u64::from(ep.node().bits()) << 32 | (u64::from(ep.slot()) + 1);
        let hits = Hits::new(&node.lookups);
        Self { ep, node, tag, retried: Cell::new(false), hits }
    }

    /// The outcome of a read that this client has executed by itself.
    pub fn read_by_itself(&self, found: bool) -> (bool, OpOutcome) {
        (found, if found { OpOutcome::Hit } else { OpOutcome::Absent })
    }

    /// A buffer, all zero.
    pub async fn blank(&self, bytes: usize) -> Result<Buf> {
        let mut image = self.ep.buf(bytes as u32).await?;
        image.fill(0);
        Ok(image)
    }

    /// Memory for a node of `bytes` bytes: spare, or from `memory`.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub async fn take(&self, spare: &Spare, memory: &Bump, bytes: usize) -> Result<GlobalAddr> {
        if let Some(at) = spare.0.borrow_mut().pop() {
            return Ok(at);
        }
        self.node.pool.supply().alloc_bump(&self.ep, memory, bytes as u32).await
    }

    /// Allocates until there is spare memory for `count` nodes.
    pub async fn fill(
        &self,
        spare: &Spare,
        count: usize,
        memory: &Bump,
        bytes: usize,
    ) -> Result<()> {
        while spare.0.borrow().len() < count {
            spare.give_back(
                self.node.pool.supply().alloc_bump(&self.ep, memory, bytes as u32).await?,
            );
        }
        Ok(())
    }

    /// READs a node until `accept` takes its bytes: another client is writing it. Each READ counts
    /// as a `step`, and costs an inspection of `slots` slots.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation; those of the fabric.
    pub async fn read_whole<T>(
        &self,
        (what, at): (&'static str, GlobalAddr),
        (bytes, slots): (usize, usize),
        step: Step,
        accept: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<(T, Verified)> {
        let mut backoff = self.ep.backoff(what, at);
        loop {
            self.ep.step(step);
            let sampled = self.ep.read(at, bytes as u32).await?;
            self.ep.stage_cost(Stage::NodeImage, slots as u32);
            if let Ok(whole) = sampled.check(|b| accept(b).ok_or(())) {
                return Ok(whole);
            }
            self.retried.set(true);
            backoff.step().await?;
        }
    }

    /// Takes a remote lock, which is free when its word is 0.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation; those of the fabric.
    pub async fn take_lock(&self, word: GlobalAddr) -> Result<()> {
        let mut attempts = Attempts::new(&self.ep, "remote lock", word);
        self.ep.step(Step::Lock);
        while self.ep.cas(word, 0, self.tag).await? != 0 {
            self.retried.set(true);
            attempts.again().await?;
            self.ep.step(Step::Lock);
        }
        Ok(())
    }

    /// READs the root pointer.
    ///
    /// # Errors
    /// `Corrupt` for an index without a root; those of the fabric.
    pub async fn root_pointer(&self) -> Result<GlobalAddr> {
        self.ep.step(Step::Route);
        let word = self.ep.read(self.node.root.word, 8).await?.word(0);
        if word == 0 {
            return Err(Error::corrupt(
                "the index has no root: it was never formatted, or was dropped",
            ));
        }
        Ok(GlobalAddr::from_bits(word))
    }

    /// Sets the root pointer of a new index.
    ///
    /// # Errors
    /// `Exists` when it is set; those of the fabric.
    pub async fn set_first_root(&self, root: GlobalAddr) -> Result<()> {
        if self.ep.cas(self.node.root.word, 0, root.bits()).await? != 0 {
            return Err(Error::exists("the index has a root already"));
        }
        Ok(())
    }

    /// A bound of any length as a key: filled with zeros, or cut.
    pub fn bound_key(&self, bound: Bound<&[u8]>) -> Vec<u8> {
        let mut out = match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        out.resize(self.node.limits.key, 0);
        out
    }

    fn check_pair(&self, key: &[u8], value: &[u8]) -> Result<()> {
        of_length("key", key, self.node.limits.key)?;
        of_length("value", value, self.node.limits.value)
    }

    /// Refuses writes that the design does not have, and values of another length.
    fn check_write(&self, ops: OpSet, w: &Write<'_>) -> Result<()> {
        match *w {
            Write::Delete if !ops.delete => Err(unsupported("delete")),
            Write::CompareAndSet { .. } if !ops.compare_and_set => {
                Err(unsupported("compare-and-set"))
            }
            Write::Delete | Write::CompareAndSet { new: None, .. } => Ok(()),
            Write::Put(v)
            | Write::Insert(v)
            | Write::Update(v)
            | Write::CompareAndSet { new: Some(v), .. } => {
                of_length("value", v, self.node.limits.value)
            }
        }
    }
}

fn of_length(what: &str, bytes: &[u8], wanted: usize) -> Result<()> {
    if bytes.len() == wanted {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a {what} of {} bytes in an index with {what}s of exactly {wanted}",
        bytes.len()
    )))
}

fn unsupported(what: &str) -> Error {
    let text = format!("the published design has no {what}; use the index dmtree");
    Error::unsupported(text)
}

/// Makes a shared state deref to its [`Base`], or a client to its [`Client`]: the field that
/// `Type => Part, field` names.
#[macro_export]
macro_rules! begins_with {
    ($type:ty => $part:ty, $field:tt) => {
        impl ::std::ops::Deref for $type {
            type Target = $part;

            fn deref(&self) -> &$part {
                &self.$field
            }
        }
    };
}

/// The check of an invariant by a walk: `Corrupt` when it does not hold.
///
/// # Errors
/// `Corrupt`, naming the invariant and the address.
pub fn must(holds: bool, what: &str, at: GlobalAddr) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::corrupt(format!("{at}: {what}"))) }
}

/// Memory for nodes of one size that a client has in reserve: allocated before a change begins, so
/// that a full pool does not stop it half way, or left over from one that was not needed.
#[derive(Debug, Default)]
pub struct Spare(RefCell<Vec<GlobalAddr>>);

impl Spare {
    /// Keeps memory that no node names.
    pub fn give_back(&self, at: GlobalAddr) {
        self.0.borrow_mut().push(at);
    }
}

/// The operations of a design that has gets, puts, inserts, updates and ascending scans, of keys
/// and values of one length.
pub const PLAIN: OpSet = OpSet {
    delete: false,
    compare_and_set: false,
    reverse_scan: false,
    any_length: false,
    ..OpSet::ALL
};

/// The steps of a published design; [`RangeIndex`] follows from them.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Published: Deref<Target = Client<Self::Shared>> + Sized + 'static {
    /// The operations it has, whatever its options.
    const HAS: OpSet;
    /// As [`RangeIndex::PAIRS_PER_LEAF`].
    const LEAF_PAIRS: u64 = 8;
    /// Creation options and ablation switches.
    type Settings: Serialize + DeserializeOwned + Clone + Send + Sync + std::fmt::Debug + 'static;
    /// The shared state of a compute node.
    type Shared: Deref<Target = Base> + Send + Sync + 'static;

    /// Whether it has deletes with these options.
    fn deletes(_: &Self::Settings) -> bool {
        Self::HAS.delete
    }
    /// The same of an open index.
    fn has_deletes(&self) -> bool {
        Self::HAS.delete
    }
    /// The smallest cache budget, bytes; by default a design has no cache.
    fn least_cache(_: &Self::Settings) -> u64 {
        0
    }
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, and for a cache budget that is too small.
    fn open(cx: &NodeContext, o: &Self::Settings, root: Root) -> Result<Self::Shared>;
    /// The client of one slot.
    fn connect(ep: Endpoint, node: Arc<Self::Shared>) -> Self;
    /// The cache of a compute node, without hits and misses; by default there is none.
    fn cache_use(_: &Self::Shared) -> CacheStats {
        CacheStats::default()
    }

    /// Writes an empty index; the root word is set last.
    async fn format_empty(&self) -> Result<()>;
    /// Reads a key into an empty `out`. Returns whether it is present, and how the read counts.
    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)>;
    /// Writes a key. Returns the outcome, and how the write counts.
    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written>;
    /// Fills an empty page in ascending order.
    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>>;
    /// As [`RangeIndex::foretell`]; a key of another length is an error in its place.
    async fn hear(&self, _keys: &mut dyn Iterator<Item = Result<Vec<u8>>>) -> Result<bool> {
        Ok(false)
    }
    /// Writes pairs as whole leaves into an index without keys. Returns the number of leaves;
    /// `None`, and nothing is written, for any other index.
    async fn load_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>>;
    /// Checks the whole structure, and counts its parts.
    async fn walk_all(&self, shape: &mut Shape) -> Result<()>;
}

impl<D: Published> RangeIndex for D {
    const OPS: OpSet = D::HAS;
    // Layouts of published designs rely on more than the contract of the fabric (see the DESIGN.md
    // of each). They also run where this is not granted.
    const NEEDS: Capabilities = Capabilities::NONE;
    const PAIRS_PER_LEAF: u64 = D::LEAF_PAIRS;
    type Options = D::Settings;
    type Node = D::Shared;

    fn ops(o: &D::Settings) -> OpSet {
        OpSet { delete: D::deletes(o), ..D::HAS }
    }

    fn check_options(o: &D::Settings, cx: &NodeContext) -> Result<()> {
        D::open(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &D::Settings, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(D::least_cache(o));
        let client = D::connect(ep.clone(), Arc::new(D::open(&cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        client.format_empty().await?;
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &D::Settings, root: Root) -> Result<Arc<D::Shared>> {
        D::open(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<D::Shared>) -> Self {
        D::connect(ep, node)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        of_length("key", key, self.node.limits.key)?;
        let scope = self.ep.begin(OpKind::Get);
        self.retried.set(false);
        out.clear();
        let (found, counted) = self.read_key(key, out).await?;
        scope.end(op::counted(counted, &self.retried));
        Ok(found)
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        of_length("key", key, self.node.limits.key)?;
        let has = OpSet { delete: self.has_deletes(), ..D::HAS };
        self.check_write(has, &w)?;
        let scope = self.ep.begin(w.kind());
        self.retried.set(false);
        let (outcome, counted) = self.write_key(key, w).await?;
        scope.end(op::counted(counted, &self.retried));
        Ok(outcome)
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        page.clear();
        if r.reverse && !D::HAS.reverse_scan {
            return Err(unsupported("descending scan"));
        }
        r.check_limit()?;
        let scope = self.ep.begin(OpKind::Scan);
        self.retried.set(false);
        let resume = self.scan_page(r, page).await?;
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    async fn foretell(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<bool> {
        let length = self.node.limits.key;
        let mut checked = keys.map(|key| of_length("key", &key, length).map(|()| key));
        let scope = self.ep.begin(OpKind::Load);
        let heard = self.hear(&mut checked).await?;
        scope.end(OpOutcome::Other);
        Ok(heard)
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        fill.check()?;
        let mut all = Pairs::collect(pairs, sorted, |key, value| self.check_pair(key, value))?;
        let pairs = all.len() as u64;
        if all.is_empty() {
            return Ok(Loaded::default());
        }
        let scope = self.ep.begin(OpKind::Load);
        let leaves = self.load_empty(&mut all, fill).await?;
        scope.end(OpOutcome::Other);
        if let Some(leaves) = leaves {
            return Ok(Loaded { pairs, leaves });
        }
        for (key, value) in (0..all.len()).map(|i| all.get(i)) {
            let outcome = self.write(key, Write::Put(value)).await?;
            debug_assert_eq!(outcome, Outcome::Done);
        }
        Ok(Loaded { pairs, leaves: 0 })
    }

    async fn walk(&mut self) -> Result<Shape> {
        let scope = self.ep.begin(OpKind::Admin);
        self.ep.drain().await?;
        let mut shape = Shape::default();
        self.walk_all(&mut shape).await?;
        scope.end(OpOutcome::Other);
        Ok(shape)
    }

    fn cache_stats(node: &D::Shared) -> CacheStats {
        node.lookups.added_to(D::cache_use(node))
    }
}
