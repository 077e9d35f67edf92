//! Any index behind one object-safe trait with blocking calls: for tests, which also have clients
//! in other processes, and for the tools of the command line. Measured operations do not use it.

use std::ops::{Bound, Deref, DerefMut};

use dmtree_fabric::{Error, ErrorKind, Result, Snapshot};
use dmtree_parts::{
    AnyIndex, Fill, Found, Loaded, Outcome, Page, Resume, ScanRequest, Shape, Values, Work, Write,
};

/// The pairs of a load.
pub type Pairs<'a> = &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>;

/// A client of any index, for callers without futures. The errors are those of the index.
#[allow(clippy::missing_errors_doc, reason = "they are the index's")]
pub trait Blocking {
    /// Reads a key into `out`; false when it is absent.
    fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;
    /// Writes a key.
    fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome>;
    /// Fills a page.
    fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>>;
    /// Reads several keys.
    fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()>;
    /// Applies several writes.
    fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        out: &mut Vec<Result<Outcome>>,
    ) -> Result<()>;
    /// Stores many pairs.
    fn load(&mut self, pairs: Pairs<'_>, sorted: bool, fill: Fill) -> Result<Loaded>;
    /// Executes a bounded piece of due maintenance.
    fn maintain(&mut self) -> Result<Work>;
    /// Executes a piece of a worker's work; whether the worker rests then.
    fn work(&mut self) -> Result<bool>;
    /// Runs GC.
    fn gc(&mut self) -> Result<Found>;
    /// Walks and checks the structure; `Corrupt` for a broken invariant.
    fn walk(&mut self) -> Result<Shape>;
    /// Its counters; zero for a client of another process, which counts for itself.
    fn counts(&self) -> Snapshot;
    /// Sets them to zero.
    fn reset_counts(&mut self);

    /// Reads a key.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.then_some(out))
    }

    /// Calls `each` for every pair of a range, in order, page by page, until `each` returns false.
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (mut page, mut resume): (Page, Option<Bound<Vec<u8>>>) = (Page::new(), None);
        let mut left = request.limit;
        while left > 0 {
            let mut r = ScanRequest { limit: left.min(4096), ..request };
            match resume.as_ref().map(|at| at.as_ref().map(Vec::as_slice)) {
                Some(at) if r.reverse => r.high = at,
                Some(at) => r.low = at,
                None => {}
            }
            page.clear();
            let next = self.scan(&r, &mut page)?;
            if page.iter().any(|(k, v)| !each(k, v)) {
                return Ok(());
            }
            left = left.saturating_sub(page.len());
            match next {
                Some(Resume(at)) => resume = Some(at),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Waits for an operation of a client.
macro_rules! block {
    ($self:ident, $call:ident($($with:expr),*)) => {{
        let ep = $self.endpoint().clone();
        ep.core().block_on(ep.slot(), $self.as_mut().$call($($with),*))
    }};
}

impl Blocking for AnyIndex {
    fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        block!(self, get(key, out))
    }
    fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        block!(self, write(key, w))
    }
    fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        block!(self, scan(r, page))
    }
    fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        block!(self, get_many(keys, out))
    }
    fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        out: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        block!(self, write_many(writes, out))
    }
    fn load(&mut self, pairs: Pairs<'_>, sorted: bool, fill: Fill) -> Result<Loaded> {
        block!(self, load(pairs, sorted, fill))
    }
    fn maintain(&mut self) -> Result<Work> {
        block!(self, maintain())
    }
    fn work(&mut self) -> Result<bool> {
        block!(self, work()).map(|pause| pause.is_rest())
    }
    fn gc(&mut self) -> Result<Found> {
        block!(self, gc())
    }
    fn walk(&mut self) -> Result<Shape> {
        block!(self, walk())
    }
    fn counts(&self) -> Snapshot {
        self.endpoint().snapshot()
    }
    fn reset_counts(&mut self) {
        self.endpoint().reset_counters();
    }
}

/// A client of an index of type `I`, here or in another process, for tests. The errors are those of
/// the index.
pub struct Client {
    it: Box<dyn Blocking>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Deref for Client {
    type Target = dyn Blocking;

    fn deref(&self) -> &Self::Target {
        &*self.it
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.it
    }
}

#[allow(clippy::missing_errors_doc, reason = "they are the index's")]
impl Client {
    pub(crate) fn of(it: impl Blocking + 'static) -> Self {
        Self { it: Box::new(it) }
    }

    /// Reads several keys.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Values> {
        let mut out = Values::new();
        self.it.get_many(keys, &mut out).map(|()| out)
    }

    /// Applies several writes.
    pub fn write_many(&mut self, writes: &[(&[u8], Write<'_>)]) -> Result<Vec<Result<Outcome>>> {
        let mut out = Vec::new();
        self.it.write_many(writes, &mut out).map(|()| out)
    }

    /// Bulk load.
    pub fn load(
        &mut self,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: impl Into<Fill>,
    ) -> Result<Loaded> {
        self.it.load(&mut pairs.into_iter(), sorted, fill.into())
    }

    /// Does all maintenance and all work of workers that is due.
    pub fn maintain(&mut self) -> Result<()> {
        for _ in 0..100_000 {
            if self.it.maintain()? == Work::None && self.it.work()? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Busy, "maintenance does not come to an end"))
    }

    /// The counters since the last call.
    pub fn take_counts(&mut self) -> Snapshot {
        let counts = self.it.counts();
        self.it.reset_counts();
        counts
    }
}
