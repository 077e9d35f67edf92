//! Any system behind one object-safe trait, for the shell and other tools. Measured operations do
//! not use it.

use dmtree_check::blocking::Blocking;
use dmtree_parts::{CacheStats, RangeIndex};
use serde_json::Value;

use crate::failure::Result;
use crate::opened::{Opened, PoolSpec};

/// A client of any index.
pub type Session = Box<dyn Blocking>;

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
        Ok(Box::new(Opened::client(self, cn)?))
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
