//! Any system behind one object-safe trait, for the shell and other tools. Measured operations do
//! not use it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use dmtree_fabric::{Endpoint, Result as FabricResult};
use dmtree_parts::{
    CacheStats, Fill, Loaded, Outcome, Page, RangeIndex, Resume, ScanRequest, Shape, Work, Write,
};
use serde_json::Value;

use crate::failure::Result;
use crate::opened::{Opened, PoolSpec};

/// A boxed future of one operation.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = FabricResult<T>> + 'a>>;

/// A client of any index.
pub trait DynIndex {
    /// Its endpoint.
    fn endpoint(&self) -> Endpoint;
    /// As [`RangeIndex::get`].
    fn get<'a>(&'a mut self, key: &'a [u8], out: &'a mut Vec<u8>) -> Boxed<'a, bool>;
    /// As [`RangeIndex::write`].
    fn write<'a>(&'a mut self, key: &'a [u8], w: Write<'a>) -> Boxed<'a, Outcome>;
    /// As [`RangeIndex::scan`].
    fn scan<'a>(
        &'a mut self,
        r: &'a ScanRequest<'a>,
        page: &'a mut Page,
    ) -> Boxed<'a, Option<Resume>>;
    /// As [`RangeIndex::load`].
    fn load<'a>(
        &'a mut self,
        pairs: &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Boxed<'a, Loaded>;
    /// As [`RangeIndex::maintain`].
    fn maintain(&mut self) -> Boxed<'_, Work>;
    /// As [`RangeIndex::walk`].
    fn walk(&mut self) -> Boxed<'_, Shape>;
}

impl<I: RangeIndex> DynIndex for I {
    fn endpoint(&self) -> Endpoint {
        RangeIndex::endpoint(self).clone()
    }
    fn get<'a>(&'a mut self, key: &'a [u8], out: &'a mut Vec<u8>) -> Boxed<'a, bool> {
        Box::pin(RangeIndex::get(self, key, out))
    }
    fn write<'a>(&'a mut self, key: &'a [u8], w: Write<'a>) -> Boxed<'a, Outcome> {
        Box::pin(RangeIndex::write(self, key, w))
    }
    fn scan<'a>(
        &'a mut self,
        r: &'a ScanRequest<'a>,
        page: &'a mut Page,
    ) -> Boxed<'a, Option<Resume>> {
        Box::pin(RangeIndex::scan(self, r, page))
    }
    fn load<'a>(
        &'a mut self,
        pairs: &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Boxed<'a, Loaded> {
        Box::pin(RangeIndex::load(self, pairs, sorted, fill))
    }
    fn maintain(&mut self) -> Boxed<'_, Work> {
        Box::pin(RangeIndex::maintain(self))
    }
    fn walk(&mut self) -> Boxed<'_, Shape> {
        Box::pin(RangeIndex::walk(self))
    }
}

/// An index of any kind, open on every compute node of an embedded pool.
pub trait DynPool: Send + Sync + std::fmt::Debug {
    /// A client for the present thread.
    ///
    /// # Errors
    /// No such compute node.
    fn client(&self, cn: usize) -> Result<Session>;
    /// The caches of a compute node.
    fn cache_stats(&self, cn: usize) -> CacheStats;
    /// Number of compute nodes.
    fn compute_nodes(&self) -> usize;
    /// The name of the fabric.
    fn fabric(&self) -> &'static str;
}

impl<I: RangeIndex> DynPool for Opened<I> {
    fn client(&self, cn: usize) -> Result<Session> {
        Ok(Session { index: Box::new(Opened::client(self, cn)?) })
    }
    fn cache_stats(&self, cn: usize) -> CacheStats {
        Opened::cache_stats(self, cn)
    }
    fn compute_nodes(&self) -> usize {
        Opened::compute_nodes(self)
    }
    fn fabric(&self) -> &'static str {
        Opened::fabric(self)
    }
}

/// Opens an empty index of type `I` on a fresh embedded pool.
///
/// # Errors
/// Impossible options or sizes.
pub fn open_pool<I: RangeIndex>(
    system: &str,
    options: &Value,
    spec: &PoolSpec,
) -> Result<Box<dyn DynPool>> {
    Ok(Box::new(Opened::<I>::create(system, options, spec)?))
}

/// A pool that several owners share.
pub type SharedPool = Arc<dyn DynPool>;

/// A client of any index, for callers without futures.
pub struct Session {
    index: Box<dyn DynIndex>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.index.endpoint())
    }
}

macro_rules! block {
    ($self:ident, $call:expr) => {{
        let ep = $self.index.endpoint();
        ep.core().block_on(ep.slot(), $call)
    }};
}

impl Session {
    /// The client's endpoint.
    pub fn endpoint(&self) -> Endpoint {
        self.index.endpoint()
    }

    /// Reads a key.
    ///
    /// # Errors
    /// Those of the index.
    pub fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.then_some(out))
    }

    /// Reads a key into `out`; false when it is absent.
    ///
    /// # Errors
    /// Those of the index.
    pub fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> FabricResult<bool> {
        block!(self, self.index.get(key, out))
    }

    /// Writes a key.
    ///
    /// # Errors
    /// Those of the index.
    pub fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        block!(self, self.index.write(key, w))
    }

    /// Fills a page.
    ///
    /// # Errors
    /// Those of the index.
    pub fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> FabricResult<Option<Resume>> {
        block!(self, self.index.scan(r, page))
    }

    /// Stores many pairs.
    ///
    /// # Errors
    /// Those of the index.
    pub fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> FabricResult<Loaded> {
        block!(self, self.index.load(pairs, sorted, fill))
    }

    /// Walks and checks the structure.
    ///
    /// # Errors
    /// A violated invariant.
    pub fn walk(&mut self) -> FabricResult<Shape> {
        block!(self, self.index.walk())
    }

    /// Executes a bounded piece of due maintenance.
    ///
    /// # Errors
    /// Those of the index.
    pub fn maintain(&mut self) -> FabricResult<Work> {
        block!(self, self.index.maintain())
    }

    /// Calls `each` for every pair of a range, in order, page by page, until `each` returns false.
    ///
    /// # Errors
    /// Those of the index.
    pub fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        let (mut page, mut resume): (Page, Option<Resume>) = (Page::new(), None);
        let mut left = request.limit;
        while left > 0 {
            let at = resume.as_ref().map(|r| match &r.0 {
                std::ops::Bound::Included(k) => std::ops::Bound::Included(k.as_slice()),
                std::ops::Bound::Excluded(k) => std::ops::Bound::Excluded(k.as_slice()),
                std::ops::Bound::Unbounded => std::ops::Bound::Unbounded,
            });
            let mut r = ScanRequest { limit: left.min(4096), ..request };
            match at {
                Some(at) if r.reverse => r.high = at,
                Some(at) => r.low = at,
                None => {}
            }
            page.clear();
            let next = self.scan(&r, &mut page)?;
            for (k, v) in page.iter() {
                if !each(k, v) {
                    return Ok(());
                }
            }
            left = left.saturating_sub(page.len());
            match next {
                Some(n) => resume = Some(n),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}
