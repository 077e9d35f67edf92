//! Async code's way to an index: requests go to worker threads of ours, so any runtime will do.

mod mailbox;
mod reply;
mod request;
mod scan;
#[cfg(feature = "stream")]
mod stream;
mod worker;

use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::published::check_range;
use dmtree_parts::{Loaded, Outcome};

use crate::batch::Batch;
use crate::bounds::KeyRange;
use crate::index::LoadOrder;
use crate::open::OpenIndex;
use crate::pool::{PoolInner, locked};
use crate::scan::Cursor;
use request::{Exchange, Get, GetMany, LenEstimate, Load, WriteMany, WriteOne};

pub(crate) use mailbox::{Door, Mailbox};
pub use reply::Reply;
pub use scan::AsyncScan;
#[cfg(feature = "stream")]
pub use stream::AsyncPairs;

/// How many threads serve an [`AsyncClient`], and how much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncOptions {
    workers: usize,
    coroutines: usize,
    queue: usize,
}

impl Default for AsyncOptions {
    fn default() -> Self {
        Self { workers: 1, coroutines: 16, queue: 1024 }
    }
}

impl AsyncOptions {
    /// One worker thread, 16 coroutines on it, 1024 requests in the queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Worker threads, 1 to 256.
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// Requests that one worker has under way at a time, 1 to 1024.
    #[must_use]
    pub fn coroutines(self, coroutines: usize) -> Self {
        Self { coroutines, ..self }
    }

    /// Requests that wait for a coroutine, 1 at least; further ones end in
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy).
    #[must_use]
    pub fn queue(self, requests: usize) -> Self {
        Self { queue: requests, ..self }
    }

    fn check(self) -> Result<()> {
        check_range("workers", self.workers as u64, 1, 256)?;
        check_range("coroutines", self.coroutines as u64, 1, 1024)?;
        check_range("queue", self.queue as u64, 1, 1 << 24)
    }
}

/// An index for async code: `Clone + Send + Sync`, on any runtime.
///
/// A request is posted when its future is first polled, and runs on a worker thread of this
/// library; the caller's waker is woken when it has ended. **A future that is dropped before it is
/// ready does not stop its request:** that runs to its end, and whether a write took effect is
/// unknown to the caller, as after [`Effect::Unknown`](crate::Effect::Unknown). A future that is
/// never polled does nothing.
///
/// When too much waits already, a request ends in [`ErrorKind::Busy`](crate::ErrorKind::Busy) at
/// once. The workers end, after what was posted, when the last clone is dropped.
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// # let index = pool.open_or_create("users", dmtree::Options::default())?;
/// let client = index.async_client()?;
/// pollster::block_on(async {
///     client.put("ada", "1815").await?;
///     assert_eq!(client.get("ada").await?.as_deref(), Some(&b"1815"[..]));
///     Ok::<(), dmtree::Error>(())
/// })?;
/// # Ok::<(), dmtree::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    door: Arc<Door>,
}

impl AsyncClient {
    pub(crate) fn shared(pool: &Arc<PoolInner>, open: &Arc<OpenIndex>) -> Result<Self> {
        open.check_open()?;
        let mut known = locked(&open.door);
        if let Some(door) = known.upgrade().filter(|d| d.is_open()) {
            return Ok(Self { door });
        }
        let client = Self::start(pool, open, AsyncOptions::default())?;
        *known = Arc::downgrade(&client.door);
        Ok(client)
    }

    pub(crate) fn start(
        pool: &Arc<PoolInner>,
        open: &Arc<OpenIndex>,
        options: AsyncOptions,
    ) -> Result<Self> {
        options.check()?;
        open.check_open()?;
        let door = Arc::new(Door::new(options.queue));
        open.connect(door.mailbox());
        for n in 0..options.workers {
            worker::start(pool, open, &door, n, options.coroutines)?;
        }
        Ok(Self { door })
    }

    /// Reads a key. Atomic.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Reply<Option<Vec<u8>>> {
        Reply::new(&self.door, Get(key.as_ref().to_vec()))
    }

    /// Reads several keys with fewer round trips than one by one; not a snapshot.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Reply<Vec<Option<Vec<u8>>>> {
        let keys = keys.iter().map(|k| k.as_ref().to_vec()).collect();
        Reply::new(&self.door, GetMany(keys))
    }

    /// Sets the value of a key, whether it is there or not. Atomic.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Reply<Outcome> {
        self.write(|one| one.put(key, value))
    }

    /// Sets the value of a key that is absent; otherwise [`Outcome::Exists`]. Atomic.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Reply<Outcome> {
        self.write(|one| one.insert(key, value))
    }

    /// Sets the value of a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Reply<Outcome> {
        self.write(|one| one.update(key, value))
    }

    /// Removes a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Reply<Outcome> {
        self.write(|one| one.delete(key))
    }

    /// Sets the value of a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Reply<Outcome> {
        self.write(|one| one.compare_and_set(key, expected, new))
    }

    /// Removes a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_delete(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
    ) -> Reply<Outcome> {
        self.write(|one| one.compare_and_delete(key, expected))
    }

    fn write(&self, add: impl FnOnce(&mut Batch) -> &mut Batch) -> Reply<Outcome> {
        let mut one = Batch::new();
        add(&mut one);
        Reply::new(&self.door, WriteOne(one))
    }

    /// Sets a value and returns the former one, in the round trips of a put. Atomic. See
    /// [`Session::replace`](crate::Session::replace).
    pub fn replace(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Reply<Option<Vec<u8>>> {
        self.exchange(|one| one.put(key, value))
    }

    /// Removes a key and returns its value. Atomic. See [`Session::take`](crate::Session::take).
    pub fn take(&self, key: impl AsRef<[u8]>) -> Reply<Option<Vec<u8>>> {
        self.exchange(|one| one.delete(key))
    }

    /// Sets a value in the place of another, and returns what the key had. Atomic. See
    /// [`Session::compare_and_swap`](crate::Session::compare_and_swap).
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Reply<Option<Vec<u8>>> {
        self.exchange(|one| one.compare_and_set(key, expected, new))
    }

    fn exchange(&self, add: impl FnOnce(&mut Batch) -> &mut Batch) -> Reply<Option<Vec<u8>>> {
        let mut one = Batch::new();
        add(&mut one);
        Reply::new(&self.door, Exchange(one, Outcome::Done))
    }

    /// About how many keys there are. See [`Index::len_estimate`](crate::Index::len_estimate).
    pub fn len_estimate(&self) -> Reply<u64> {
        Reply::new(&self.door, LenEstimate)
    }

    /// Applies several writes with fewer round trips than one by one. **Not atomic.** See
    /// [`Session::write_batch`](crate::Session::write_batch).
    pub fn write_batch(&self, batch: Batch) -> Reply<Vec<Result<Outcome>>> {
        Reply::new(&self.door, WriteMany::new(batch))
    }

    /// Stores many pairs. **Not atomic.** See [`Session::load`](crate::Session::load). Keeps one
    /// worker busy until it has ended.
    pub fn load(&self, pairs: Vec<(Vec<u8>, Vec<u8>)>, order: LoadOrder) -> Reply<Loaded> {
        Reply::new(&self.door, Load(pairs, order))
    }

    /// Pairs in key order, a page at a time; not a snapshot. See [`AsyncScan`].
    pub fn scan(&self, range: impl KeyRange) -> AsyncScan {
        AsyncScan::asked_of(self.door.clone(), Cursor::new(&range))
    }

    /// Goes on where a scan (of this client, or of an [`Index`](crate::Index)) was left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for bytes that are no
    /// cursor.
    pub fn resume(&self, cursor: impl AsRef<[u8]>) -> Result<AsyncScan> {
        Ok(AsyncScan::asked_of(self.door.clone(), Cursor::decode(cursor.as_ref())?))
    }
}
