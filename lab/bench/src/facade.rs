//! Any system behind one object-safe trait, for the shell and other tools. Measured operations do
//! not use it.

use std::ops::{Deref, DerefMut};

use dmtree_fabric::{Endpoint, Result as FabricResult};
use dmtree_parts::{
    CacheStats, Fill, Loaded, Outcome, Page, RangeIndex, Resume, ScanRequest, Shape, Work, Write,
};
use serde_json::Value;

use crate::failure::Result;
use crate::opened::{Opened, PoolSpec};
use crate::workers::Workers;

/// A client of any index, for callers without futures.
pub trait DynIndex {
    /// The client's endpoint.
    fn endpoint(&self) -> Endpoint;

    /// Reads a key into `out`; false when it is absent.
    ///
    /// # Errors
    /// Those of the index.
    fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> FabricResult<bool>;

    /// Writes a key.
    ///
    /// # Errors
    /// Those of the index.
    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome>;

    /// Fills a page.
    ///
    /// # Errors
    /// Those of the index.
    fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> FabricResult<Option<Resume>>;

    /// Stores many pairs.
    ///
    /// # Errors
    /// Those of the index.
    fn load(&mut self, pairs: Pairs<'_>, sorted: bool, fill: Fill) -> FabricResult<Loaded>;

    /// Walks and checks the structure.
    ///
    /// # Errors
    /// A violated invariant.
    fn walk(&mut self) -> FabricResult<Shape>;

    /// Executes a bounded piece of due maintenance.
    ///
    /// # Errors
    /// Those of the index.
    fn maintain(&mut self) -> FabricResult<Work>;

    /// Reads a key.
    ///
    /// # Errors
    /// Those of the index.
    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.then_some(out))
    }

    /// Calls `each` for every pair of a range, in order, page by page, until `each` returns false.
    ///
    /// # Errors
    /// Those of the index.
    fn for_each(
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

/// The pairs of a load.
type Pairs<'a> = &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>;

/// Waits for an operation of a client.
macro_rules! block {
    ($self:ident, $call:ident($($with:expr),*)) => {{
        let ep = RangeIndex::endpoint($self).clone();
        ep.core().block_on(ep.slot(), RangeIndex::$call($self, $($with),*))
    }};
}

impl<I: RangeIndex> DynIndex for I {
    fn endpoint(&self) -> Endpoint {
        RangeIndex::endpoint(self).clone()
    }
    fn get_into(&mut self, key: &[u8], out: &mut Vec<u8>) -> FabricResult<bool> {
        block!(self, get(key, out))
    }
    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        block!(self, write(key, w))
    }
    fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> FabricResult<Option<Resume>> {
        block!(self, scan(r, page))
    }
    fn load(&mut self, pairs: Pairs<'_>, sorted: bool, fill: Fill) -> FabricResult<Loaded> {
        block!(self, load(pairs, sorted, fill))
    }
    fn walk(&mut self) -> FabricResult<Shape> {
        block!(self, walk())
    }
    fn maintain(&mut self) -> FabricResult<Work> {
        block!(self, maintain())
    }
}

/// A client of any index.
pub struct Session(Box<dyn DynIndex>);

impl Deref for Session {
    type Target = dyn DynIndex;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.endpoint())
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

/// An open index with its workers, which end first.
struct Tool<I: RangeIndex> {
    _workers: Workers,
    opened: Opened<I>,
}

impl<I: RangeIndex> std::fmt::Debug for Tool<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.opened.fmt(f)
    }
}

impl<I: RangeIndex> DynPool for Tool<I> {
    fn client(&self, cn: usize) -> Result<Session> {
        Ok(Session(Box::new(self.opened.client(cn)?)))
    }
    fn cache_stats(&self, cn: usize) -> CacheStats {
        self.opened.cache_stats(cn)
    }
    fn compute_nodes(&self) -> usize {
        self.opened.compute_nodes()
    }
    fn fabric(&self) -> &'static str {
        self.opened.fabric()
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
    let opened = Opened::<I>::create(system, options, spec)?;
    Ok(Box::new(Tool { _workers: opened.start_workers()?, opened }))
}
