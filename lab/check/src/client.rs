//! A client of an index with blocking calls, in this process or in another one: for tests, and for
//! the tools of the command line. Measured operations do not use it.

use std::ops::Bound;

use dmtree_fabric::{Error, ErrorKind, Result, Snapshot};
use dmtree_parts::{
    AnyIndex, Fill, Found, Loaded, Outcome, Page, Resume, ScanRequest, Shape, Values, Work, Write,
};

use crate::remote_client::RemoteClient;

/// A client of any index, for callers without futures. The errors are those of the index.
pub struct Client(Place);

enum Place {
    Here(AnyIndex),
    There(RemoteClient),
}

/// Waits for an operation of a client, wherever it is.
macro_rules! wait {
    ($self:ident, $call:ident($($with:expr),*)) => {
        match &mut $self.0 {
            Place::Here(index) => {
                let ep = index.endpoint().clone();
                ep.core().block_on(ep.slot(), index.$call($($with),*))
            }
            Place::There(remote) => remote.$call($($with),*),
        }
    };
}

impl From<AnyIndex> for Client {
    fn from(index: AnyIndex) -> Self {
        Self(Place::Here(index))
    }
}

impl From<RemoteClient> for Client {
    fn from(remote: RemoteClient) -> Self {
        Self(Place::There(remote))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

#[allow(clippy::missing_errors_doc, reason = "they are the index's")]
impl Client {
    /// Reads a key into `out`; false when it is absent.
    pub fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        wait!(self, get(key, out))
    }

    /// Reads a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.then_some(out))
    }

    /// Writes a key.
    pub fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        wait!(self, write(key, w))
    }

    /// Fills a page.
    pub fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        wait!(self, scan(r, page))
    }

    /// Calls `each` for every pair of a range, in order, page by page, until `each` returns false.
    pub fn for_each(
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

    /// Reads several keys.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Values> {
        let mut out = Values::new();
        wait!(self, get_many(keys, &mut out)).map(|()| out)
    }

    /// Applies several writes.
    pub fn write_many(&mut self, writes: &[(&[u8], Write<'_>)]) -> Result<Vec<Result<Outcome>>> {
        let mut out = Vec::new();
        wait!(self, write_many(writes, &mut out)).map(|()| out)
    }

    /// Bulk load.
    pub fn load(
        &mut self,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: impl Into<Fill>,
    ) -> Result<Loaded> {
        wait!(self, load(&mut pairs.into_iter(), sorted, fill.into()))
    }

    /// Does all maintenance and all work of workers that is due.
    pub fn maintain(&mut self) -> Result<()> {
        for _ in 0..100_000 {
            if wait!(self, maintain())? == Work::None && wait!(self, work())?.is_rest() {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Busy, "maintenance does not come to an end"))
    }

    /// Runs GC.
    pub fn gc(&mut self) -> Result<Found> {
        wait!(self, gc())
    }

    /// Walks and checks the structure; `Corrupt` for a broken invariant.
    pub fn walk(&mut self) -> Result<Shape> {
        wait!(self, walk())
    }

    /// Its counters; zero for a client of another process, which counts for itself.
    pub fn counts(&self) -> Snapshot {
        match &self.0 {
            Place::Here(index) => index.endpoint().snapshot(),
            Place::There(_) => Snapshot::default(),
        }
    }

    /// The counters since the last call.
    pub fn take_counts(&mut self) -> Snapshot {
        let counts = self.counts();
        if let Place::Here(index) = &self.0 {
            index.endpoint().reset_counters();
        }
        counts
    }
}
