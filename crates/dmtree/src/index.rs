//! The handle that threads share.

use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::{Loaded, Outcome, Page, Resume, ScanRequest, Values};

#[cfg(feature = "async")]
use crate::async_client::{AsyncClient, AsyncOptions};
use crate::batch::Batch;
use crate::bounds::KeyRange;
use crate::open::OpenIndex;
use crate::options::Options;
use crate::pool::PoolInner;
use crate::scan::{Cursor, PageSource, Scan};
use crate::session::Session;
use crate::size::ByteSize;
use crate::stats::{ShapeStats, Stats};
use crate::thread_sessions;

/// Whether the pairs of a bulk load ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadOrder {
    /// Keys ascend strictly; it is an error if they do not.
    Sorted,
    /// Any order, equal keys too: the last one wins. They are sorted first.
    Unsorted,
}

/// An ordered index: keys and values are bytes. Clone it and share it between threads freely.
///
/// Every thread that calls it gets a [`Session`] of its own at its first call; calls block. The
/// session of a thread stays until the thread ends, or until it makes its next call to any index
/// after all handles of this one are gone. Hot loops make a session explicitly
/// ([`Index::session`]); async code takes an [`AsyncClient`] ([`Index::async_client`]).
///
/// Point operations are linearizable across threads, sessions, clients and compute nodes. Keys have
/// 1 byte to 1 KiB, values up to 1 MiB, any content; the empty value is a value. Methods that
/// [`Session`] has too fail as they do there.
#[derive(Clone)]
pub struct Index(Arc<Handle>);

/// The state that the clones of one handle share; sessions of threads know it by its address and
/// end with it.
pub(crate) struct Handle {
    pub(crate) pool: Arc<PoolInner>,
    pub(crate) open: Arc<OpenIndex>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        thread_sessions::purge();
    }
}

dmtree_fabric::debug_line!(Index, it => "Index({:?})", it.0.open.name);

impl Index {
    pub(crate) fn new(pool: Arc<PoolInner>, open: Arc<OpenIndex>) -> Self {
        Self(Arc::new(Handle { pool, open }))
    }

    /// Its name in the pool.
    pub fn name(&self) -> &str {
        &self.0.open.name
    }

    /// The options it was created with.
    pub fn options(&self) -> Options {
        Options::of(&self.0.open.options)
    }

    /// Gives the cache that this process has for the index another budget, for each of its compute
    /// nodes, while clients work. It returns when the memory is within the budget: images of leaves
    /// ([`Options::images`]) go first, then inner nodes. A process that joins its pool again keeps
    /// the budget; one that opens the index anew has that of its pool.
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// index.set_cache("1MiB")?;
    /// assert!(index.stats()?.caches.iter().all(|cache| cache.budget_bytes == 1 << 20));
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size that is none,
    /// or too small for one inner node;
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when nothing came back for
    /// [`Options::timeout_ms`]: the rest follows with the maintenance of later operations.
    pub fn set_cache(&self, size: impl ByteSize) -> Result<()> {
        let bytes = size.to_bytes().map_err(|e| e.context("cache"))?;
        self.0.open.set_cache_bytes(bytes)?;
        let nodes = self.0.open.nodes().trees.len();
        (0..nodes).try_for_each(|i| self.session_on(i)?.set_cache_bytes(bytes))
    }

    #[cfg(test)]
    pub(crate) fn opened(&self) -> &OpenIndex {
        &self.0.open
    }

    /// A session for the present thread; every new one goes to the next compute node in turn.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) when the index was removed from its pool.
    pub fn session(&self) -> Result<Session> {
        Session::new(&self.0.pool, &self.0.open, self.0.open.next_node())
    }

    /// A session on compute node number `compute_node`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when there are not so many.
    pub fn session_on(&self, compute_node: usize) -> Result<Session> {
        Session::new(&self.0.pool, &self.0.open, compute_node)
    }

    pub(crate) fn here<T>(&self, f: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        thread_sessions::with(&self.0, f)
    }

    /// Reads a key. Atomic.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.here(|s| s.get(key.as_ref()))
    }

    /// Whether a key is there. Atomic.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.here(|s| s.contains(key.as_ref()))
    }

    /// Reads several keys with fewer round trips than one by one; not a snapshot.
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// index.put("ada", "1815")?;
    /// assert_eq!(index.get_many(&["ada", "bob"])?, [Some(b"1815".to_vec()), None]);
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.here(|s| s.get_many(keys))
    }

    /// The values of several keys, into memory of the caller; not a snapshot. See
    /// [`Session::get_many_into`].
    pub fn get_many_into<K: AsRef<[u8]>>(&self, keys: &[K], out: &mut Values) -> Result<()> {
        self.here(|s| s.get_many_into(keys, out))
    }

    /// Sets the value of a key, whether it is there or not. Atomic.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.here(|s| s.put(key.as_ref(), value.as_ref()))
    }

    /// Sets the value of a key that is absent; otherwise [`Outcome::Exists`]. Atomic.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.here(|s| s.insert(key.as_ref(), value.as_ref()))
    }

    /// Sets the value of a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.here(|s| s.update(key.as_ref(), value.as_ref()))
    }

    /// Removes a key that is there; otherwise [`Outcome::NotFound`]. Atomic.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Outcome> {
        self.here(|s| s.delete(key.as_ref()))
    }

    /// Sets the value of a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<Outcome> {
        self.here(|s| s.compare_and_set(key.as_ref(), expected.as_ref(), new.as_ref()))
    }

    /// Removes a key that has the value `expected`; otherwise [`Outcome::Mismatch`] or
    /// [`Outcome::NotFound`]. Atomic.
    pub fn compare_and_delete(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
    ) -> Result<Outcome> {
        self.here(|s| s.compare_and_delete(key.as_ref(), expected.as_ref()))
    }

    /// Sets a value and returns the former one. Atomic. See [`Session::replace`].
    pub fn replace(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        self.here(|s| s.replace(key.as_ref(), value.as_ref()))
    }

    /// Removes a key and returns its value. Atomic. See [`Session::take`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.here(|s| s.take(key.as_ref()))
    }

    /// Sets a value in the place of another, and returns what the key had. Atomic. See
    /// [`Session::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        self.here(|s| s.compare_and_swap(key.as_ref(), expected.as_ref(), new.as_ref()))
    }

    /// Applies several writes with fewer round trips than one by one. **Not atomic.** See
    /// [`Session::write_batch`].
    pub fn write_batch(&self, batch: &Batch) -> Result<Vec<Result<Outcome>>> {
        self.here(|s| s.write_batch(batch))
    }

    /// Stores many pairs. **Not atomic.** See [`Session::load`].
    pub fn load(
        &self,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        order: LoadOrder,
    ) -> Result<Loaded> {
        self.here(|s| s.load(pairs, order))
    }

    /// The pairs of a range in key order, fetched page by page while it is iterated over; the index
    /// may be used meanwhile. Not a snapshot: see [`Scan`].
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// for name in ["ada", "alan", "barbara"] {
    ///     index.put(name, "")?;
    /// }
    /// let mut scan = index.scan("a".."b").rev().limit(10).pairs();
    /// assert_eq!(scan.next().transpose()?.expect("there are two").0, b"alan");
    /// let cursor = scan.cursor();
    /// let rest: Vec<_> = index.resume(&cursor)?.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!(rest, [(b"ada".to_vec(), b"".to_vec())]);
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    pub fn scan(&self, range: impl KeyRange) -> Scan<Self> {
        Scan::new(self.clone(), range)
    }

    /// The pairs with keys that begin with `prefix`, in key order; as [`Index::scan`].
    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<Self> {
        self.scan(..).prefix(prefix)
    }

    /// Goes on where a scan was left, by the bytes of its [`Pairs::cursor`](crate::Pairs::cursor).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for bytes that are no
    /// cursor.
    pub fn resume(&self, cursor: impl AsRef<[u8]>) -> Result<Scan<Self>> {
        Ok(Scan::from_cursor(self.clone(), Cursor::decode(cursor.as_ref())?))
    }

    /// A client for async code on any runtime. All clients made by this call share their worker
    /// threads.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) when the index was removed;
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) when the system gives no thread.
    #[cfg(feature = "async")]
    pub fn async_client(&self) -> Result<AsyncClient> {
        AsyncClient::shared(&self.0.pool, &self.0.open)
    }

    /// A client for async code with worker threads of its own.
    ///
    /// # Errors
    /// As [`Index::async_client`];
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for options out of range.
    #[cfg(feature = "async")]
    pub fn async_client_with(&self, options: AsyncOptions) -> Result<AsyncClient> {
        AsyncClient::start(&self.0.pool, &self.0.open, options)
    }

    /// What the index and its pool report about themselves, without reading the index.
    pub fn stats(&self) -> Result<Stats> {
        thread_sessions::publish(&self.0);
        Ok(Stats::of(&self.0.open, self.0.pool.stats()?))
    }

    /// Walks the whole structure: counts keys, measures bytes per key, and checks what must hold.
    /// Reads every leaf, and may report a broken invariant that is none while others write: call it
    /// while there are no writes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt), naming the invariant and the place.
    pub fn shape(&self) -> Result<ShapeStats> {
        let shape = self.here(Session::walk)?;
        Ok(ShapeStats::of(&self.0.open, shape))
    }
}

impl PageSource for Index {
    fn page(&mut self, request: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        self.here(|mut s| PageSource::page(&mut s, request, page))
    }
}
