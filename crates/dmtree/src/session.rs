//! A session: one thread's way to an index.

use std::pin::pin;
use std::sync::Arc;

use dmtree_engine::{Begun, DmTree};
use dmtree_fabric::{Error, Nanos, Result};
use dmtree_parts::{
    Fill, Loaded, Outcome, Page, RangeIndex, Resume, ScanRequest, Shape, Values, Write,
};

use crate::batch::{Batch, Repeats};
use crate::bounds::KeyRange;
use crate::client::Client;
use crate::counters::SessionCounters;
use crate::incarnation::{Attempts, Next};
use crate::index::LoadOrder;
use crate::latency::ONE_IN;
use crate::open::OpenIndex;
use crate::pool::PoolInner;
use crate::scan::{Cursor, PageSource, Scan};
use crate::stats::Operation;

/// Writes of a batch that go to the index together.
const TOGETHER: usize = 1024;

/// Bytes of buffers of a session.
pub(crate) const SLAB_BYTES: u64 = 16 << 20;
/// After this many operations a session does one piece of maintenance, if any is due, and publishes
/// what it has counted.
pub(crate) const HOUSEKEEPING_OPS: u32 = 512;
/// Share of the slots of a leaf that bulk load fills.
pub(crate) const LOAD_FILL: Fill = Fill::Even(0.8);

/// One thread's way to an index, for hot loops: no look-up per operation, buffers are reused.
/// Reads fail as [`Session::get_into`] does, writes as [`Session::put`].
///
/// Made by [`Index::session`](crate::Index::session); belongs to one compute node of the pool, and
/// cannot leave the thread that made it:
///
/// ```compile_fail
/// fn must_be_send<T: Send>() {}
/// must_be_send::<dmtree::Session>();
/// ```
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// let index = pool.open_or_create("numbers", dmtree::Options::default())?;
/// let mut session = index.session()?;
/// for n in 0..100u64 {
///     session.put(&n.to_be_bytes(), &(n * n).to_le_bytes())?;
/// }
/// let mut value = Vec::new();
/// assert!(session.get_into(&7u64.to_be_bytes(), &mut value)?);
/// assert_eq!(value, 49u64.to_le_bytes());
/// # Ok::<(), dmtree::Error>(())
/// ```
pub struct Session {
    client: Client,
    /// The latest change that this session has seen; [`LOOKS`] while an operation is timed.
    seen: u64,
    compute_node: usize,
    /// Operations until the session looks up from them: to time the next one, or after it.
    quiet_ops: u32,
    timed: Option<Timed>,
    /// Timed operations until the next housekeeping.
    until_housekeeping: u32,
    values: Values,
    /// Memory of the last scan.
    page: Page,
    pool: Arc<PoolInner>,
}

/// No change has this number: the next operation looks for news, and at the clock.
const LOOKS: u64 = u64::MAX;

/// An operation that is timed.
struct Timed {
    /// The latest change that the session has seen.
    seen: u64,
    began: Nanos,
}

dmtree_fabric::debug_line!(
    Session, it => "Session({:?} on cn{})", it.client.open.name, it.compute_node
);

impl Session {
    pub(crate) fn new(
        pool: &Arc<PoolInner>,
        open: &Arc<OpenIndex>,
        compute_node: usize,
    ) -> Result<Self> {
        open.check_open()?;
        Ok(Self {
            client: Client::new(open, compute_node)?,
            // The first operation checks.
            seen: 0,
            compute_node,
            quiet_ops: ONE_IN,
            timed: None,
            until_housekeeping: HOUSEKEEPING_OPS / ONE_IN,
            values: Values::new(),
            page: Page::new(),
            pool: pool.clone(),
        })
    }

    /// Checks after a change: the index was removed, or this process has lost its membership, or
    /// has another one.
    #[inline]
    fn ready(&mut self) -> Result<()> {
        if self.client.open.news() == self.seen { Ok(()) } else { self.catch_up() }
    }

    #[cold]
    fn catch_up(&mut self) -> Result<()> {
        let news = self.client.open.news();
        if self.timed.as_ref().map_or(self.seen, |timed| timed.seen) != news {
            let Self { client, pool, .. } = self;
            let is_superseded = client.ep.block_on(client.is_superseded(pool))?;
            if is_superseded {
                self.renew()?;
            }
        }
        match &mut self.timed {
            Some(timed) => *timed = Timed { seen: news, began: self.client.ep.now() },
            None => self.seen = news,
        }
        Ok(())
    }

    /// Switches to the newest incarnation.
    fn renew(&mut self) -> Result<()> {
        self.client = Client::new(&self.client.open, self.compute_node)?;
        Ok(())
    }

    /// Runs an operation, again after an error where that is sound and helps.
    #[inline]
    fn attempt<T>(
        &mut self,
        reads: bool,
        mut attempt: impl FnMut(&mut Client) -> Result<T>,
    ) -> Result<T> {
        match attempt(&mut self.client) {
            Err(e) => self.again(e, reads, attempt),
            done => done,
        }
    }

    /// After an error: tries again where that is sound and helps.
    #[cold]
    fn again<T>(
        &mut self,
        mut e: Error,
        reads: bool,
        mut attempt: impl FnMut(&mut Client) -> Result<T>,
    ) -> Result<T> {
        let mut attempts = Attempts::default();
        loop {
            let Self { client, pool, .. } = self;
            let next = async { Ok(client.after(pool, &mut attempts, e, reads).await) };
            match client.ep.block_on(next)? {
                Next::Give(e) => return Err(e),
                Next::Again => {}
                Next::Newer => self.renew()?,
            }
            self.client.limit(Some(&attempts));
            let tried = attempt(&mut self.client);
            self.client.limit(None);
            match tried {
                Err(other) => e = other,
                done => return done,
            }
        }
    }

    /// The number of the compute node it belongs to.
    pub fn compute_node(&self) -> usize {
        self.compute_node
    }

    // ---- reads ----------------------------------------

    /// Reads a key into a buffer and replaces its contents; false when the key is absent (the
    /// buffer is empty then). Atomic.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key and one over 1 KiB; `TimedOut`, `Closed`.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.ready()?;
        let get = |s: &mut Client| match s.tree.begin_get(key, out) {
            Begun::Ended(found) => found,
            Begun::Waits(rest) => s.ep.block_on(pin!(rest)),
        };
        let result = self.attempt(true, get);
        self.count(Operation::Get, found(&result));
        result
    }

    /// Reads a key. Atomic.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.then_some(out))
    }

    /// Whether a key is there. Atomic.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool> {
        self.get_into(key, &mut Vec::new())
    }

    /// Reads several keys with fewer round trips than one by one; number `i` of the answer belongs
    /// to key `i`. Each read is linearizable by itself; they are not a snapshot.
    ///
    /// # Errors
    /// As [`Session::get_into`]; an error is about all of them.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = std::mem::take(&mut self.values);
        let result = self.get_many_into(keys, &mut values);
        let out = result.map(|()| (0..keys.len()).map(|i| values.get(i).map(<[u8]>::to_vec)));
        let out = out.map(Iterator::collect);
        self.values = values;
        out
    }

    /// As [`Session::get_many`], into memory that is reused.
    pub fn get_many_into<K: AsRef<[u8]>>(&mut self, keys: &[K], out: &mut Values) -> Result<()> {
        self.ready()?;
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let get = |s: &mut Client| s.ep.block_on(pin!(s.tree.get_many(&keys, out)));
        let result = self.attempt(true, get);
        self.count(Operation::GetMany, done(&result));
        result
    }

    // ---- writes ----------------------------------------

    /// Sets the value of a key, whether it is there or not. Atomic.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key, one over 1 KiB, a value over 1 MiB; `Full`; `TimedOut`,
    /// `Contended`, `Closed`. See [`Error::effect`](crate::Error::effect).
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome> {
        self.write(key, Write::Put(value))
    }

    /// Sets the value of a key that is absent; otherwise [`Outcome::Exists`]. Atomic.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome> {
        self.write(key, Write::Insert(value))
    }

    /// Sets the value of a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome> {
        self.write(key, Write::Update(value))
    }

    /// Removes a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn delete(&mut self, key: &[u8]) -> Result<Outcome> {
        self.write(key, Write::Delete)
    }

    /// Sets the value of a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Outcome> {
        self.write(key, Write::CompareAndSet { expected, new: Some(new) })
    }

    /// Removes a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_delete(&mut self, key: &[u8], expected: &[u8]) -> Result<Outcome> {
        self.write(key, Write::CompareAndSet { expected, new: None })
    }

    /// Sets a value and returns the former one, in the round trips of [`Session::put`]; `None` when
    /// the key was absent. Atomic.
    ///
    /// # Errors
    /// As [`Session::put`].
    pub fn replace(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        self.exchange(key, Write::Put(value))
    }

    /// Removes a key and returns its value, in the round trips of [`Session::delete`]; `None` when
    /// it was absent. Atomic.
    ///
    /// # Errors
    /// As [`Session::put`].
    pub fn take(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.exchange(key, Write::Delete)
    }

    /// As [`Session::compare_and_set`], and returns the value that the key had: the new one is set
    /// when that is `expected`. Atomic.
    ///
    /// # Errors
    /// As [`Session::put`].
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        self.exchange(key, Write::CompareAndSet { expected, new: Some(new) })
    }

    /// A write that returns the value that the key had.
    fn exchange(&mut self, key: &[u8], w: Write<'_>) -> Result<Option<Vec<u8>>> {
        self.ready()?;
        let exchange = |s: &mut Client| {
            let outcome = match s.tree.begin_exchange(key, w) {
                Begun::Ended(outcome) => outcome?,
                Begun::Waits(rest) => s.ep.block_on(pin!(rest))?,
            };
            let former = s.tree.former();
            if s.tree.maintenance_due() {
                maintain_now(s);
            }
            Ok((outcome, former))
        };
        let result = self.attempt(false, exchange);
        self.count(Operation::of(w), result.as_ref().map(|(outcome, _)| *outcome).map_err(drop));
        result.map(|(_, former)| former)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        self.ready()?;
        let write = |s: &mut Client| {
            let outcome = match s.tree.begin_write(key, w) {
                Begun::Ended(outcome) => outcome?,
                Begun::Waits(rest) => s.ep.block_on(pin!(rest))?,
            };
            if s.tree.maintenance_due() {
                maintain_now(s);
            }
            Ok(outcome)
        };
        let result = self.attempt(false, write);
        self.count(Operation::of(w), result.as_ref().copied().map_err(drop));
        result
    }

    /// Applies the writes of a batch with fewer round trips than one by one, in order per key;
    /// number `i` of the answer belongs to write `i`. **Not atomic**: others see some of them
    /// before the rest, and some may fail while others take effect. A write that fails without an
    /// effect is repeated like a single one, unless a later write of its key may have happened.
    ///
    /// # Errors
    /// A key or value out of range refuses the whole batch before anything is written:
    /// `InvalidArgument`. The inner results are as in [`Session::put`].
    pub fn write_batch(&mut self, batch: &Batch) -> Result<Vec<Result<Outcome>>> {
        self.ready()?;
        batch.check()?;
        let outcomes = self.write_parts(batch);
        self.count(Operation::WriteBatch, done(&outcomes));
        outcomes
    }

    /// Part by part: what all writes of a long batch take of memory costs more than what they
    /// share.
    fn write_parts(&mut self, batch: &Batch) -> Result<Vec<Result<Outcome>>> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let (mut writes, mut left) =
            (Vec::with_capacity(TOGETHER.min(batch.len())), batch.writes());
        while outcomes.len() < batch.len() {
            writes.clear();
            writes.extend(left.by_ref().take(TOGETHER));
            match self.write_part(&writes) {
                Ok(part) => outcomes.extend(part),
                Err(e) if outcomes.is_empty() => return Err(e),
                Err(e) => outcomes.resize_with(batch.len(), || Err(e.clone())),
            }
        }
        Ok(outcomes)
    }

    fn write_part(&mut self, writes: &[(&[u8], Write<'_>)]) -> Result<Vec<Result<Outcome>>> {
        let mut repeats = Repeats::default();
        let write = |s: &mut Client| {
            let (tree, counters) = (&mut s.tree, &s.counters);
            s.ep.block_on(async {
                repeats.attempt(writes, tree).await?;
                maintain(tree, counters).await;
                Ok(())
            })
        };
        let result = self.attempt(false, write);
        repeats.end(result)
    }

    /// Stores many pairs; of equal keys the last one wins. **Not atomic.** An empty index gets
    /// whole leaves, which is much faster than single writes and fills leaves to four fifths; into
    /// any other the pairs are put. An empty index takes sorted pairs as leaves are written, and
    /// must not be written to by their iterator; all others are held in memory meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument`, numbering the pair, when a key or value is out of range, or when keys
    /// said to be sorted do not ascend strictly; nothing is stored then. `Full`.
    pub fn load(
        &mut self,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        order: LoadOrder,
    ) -> Result<Loaded> {
        self.ready()?;
        let mut pairs = pairs.into_iter();
        let sorted = order == LoadOrder::Sorted;
        let client = &mut self.client;
        let load = Box::pin(client.tree.load(&mut pairs, sorted, LOAD_FILL));
        let result = client.ep.block_on(load);
        self.client.counters.count(Operation::Load, done(&result));
        self.housekeep();
        result
    }

    // ---- scans ----------------------------------------

    /// Pairs in key order. See [`Index::scan`](crate::Index::scan).
    pub fn scan(&mut self, range: impl KeyRange) -> Scan<&mut Self> {
        Scan::new(self, range)
    }

    /// Goes on where a scan was left. See [`Index::resume`](crate::Index::resume).
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are no cursor.
    pub fn resume(&mut self, cursor: impl AsRef<[u8]>) -> Result<Scan<&mut Self>> {
        Ok(Scan::from_cursor(self, Cursor::decode(cursor.as_ref())?))
    }

    // ---- the rest ----------------------------------------

    /// Does maintenance (merging small leaves, reclaiming memory) until none is due or `pieces` are
    /// done; sessions do it by themselves as they write, so this is for callers that want it done
    /// now.
    ///
    /// # Errors
    /// Those of the fabric; nothing of the index's contents depends on it.
    pub fn maintain(&mut self, pieces: usize) -> Result<usize> {
        self.ready()?;
        let client = &mut self.client;
        for n in 0..pieces {
            let work = client.ep.block_on(Box::pin(client.tree.maintain()))?;
            if work == dmtree_parts::Work::None {
                return Ok(n);
            }
        }
        Ok(pieces)
    }

    /// Returns when the cache of the session's compute node is within so many bytes.
    pub(crate) fn set_cache_bytes(&mut self, bytes: u64) -> Result<()> {
        self.ready()?;
        self.attempt(true, |s| s.ep.block_on(pin!(s.tree.set_cache_bytes(bytes))))
    }

    pub(crate) fn len_estimate(&mut self) -> Result<u64> {
        self.ready()?;
        self.attempt(true, |s| s.ep.block_on(Box::pin(s.tree.len_estimate())))
    }

    pub(crate) fn walk(&mut self) -> Result<Shape> {
        self.ready()?;
        self.attempt(true, |s| s.ep.block_on(Box::pin(s.tree.walk())))
    }

    /// Counts an operation that has ended.
    #[inline]
    fn count(&mut self, what: Operation, result: Result<Outcome, ()>) {
        self.client.counters.count(what, result);
        self.quiet_ops -= 1;
        if self.quiet_ops == 0 {
            self.look_up(what);
        }
    }

    /// Before an operation that is timed, or after it. An operation that is not counted restarts
    /// the clock for the next one.
    #[cold]
    fn look_up(&mut self, what: Operation) {
        let Some(Timed { seen, began }) = self.timed.take() else {
            self.timed = Some(Timed { seen: self.seen, began: 0 });
            (self.seen, self.quiet_ops) = (LOOKS, 1);
            return;
        };
        let ns = self.client.ep.now().saturating_sub(began);
        self.client.counters.sample(what, ns);
        (self.seen, self.quiet_ops) = (seen, ONE_IN - 1);
        self.until_housekeeping -= 1;
        if self.until_housekeeping == 0 {
            self.housekeep();
        }
    }

    #[cold]
    fn housekeep(&mut self) {
        self.until_housekeeping = HOUSEKEEPING_OPS / ONE_IN;
        maintain_now(&mut self.client);
        self.publish();
    }

    /// Publishes the costs counted up to now to `stats`.
    pub(crate) fn publish(&self) {
        self.client.publish();
    }
}

impl PageSource for &mut Session {
    fn page(&mut self, request: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        self.ready()?;
        let result = self.attempt(true, |s| {
            page.clear();
            s.ep.block_on(pin!(s.tree.scan(request, page)))
        });
        self.count(Operation::Scan, done(&result));
        result
    }

    fn spare_page(&mut self) -> Page {
        std::mem::take(&mut self.page)
    }

    fn keep_page(&mut self, mut page: Page) {
        page.clear();
        self.page = page;
    }
}

/// [`maintain`], by a client of a session.
#[cold]
fn maintain_now(client: &mut Client) {
    let Client { ep, tree, counters, .. } = client;
    // Its only error would be that of the executor, and that one shows up in the next operation.
    let _ = ep.block_on(async {
        maintain(tree, counters).await;
        Ok(())
    });
}

/// One piece of maintenance, if any is due. Failures are counted and retried, not returned.
pub(crate) async fn maintain(tree: &mut DmTree, counters: &SessionCounters) {
    if tree.maintenance_due() && Box::pin(tree.maintain()).await.is_err() {
        counters.maintenance_failed();
    }
}

/// How a read is counted.
pub(crate) fn found(result: &Result<bool>) -> Result<Outcome, ()> {
    match result {
        Ok(true) => Ok(Outcome::Done),
        Ok(false) => Ok(Outcome::NotFound),
        Err(_) => Err(()),
    }
}

/// How anything else is counted.
pub(crate) fn done<T>(result: &Result<T, Error>) -> Result<Outcome, ()> {
    result.as_ref().map(|_| Outcome::Done).map_err(drop)
}
