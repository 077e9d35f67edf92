//! Any system behind one object-safe trait, for the shell and other tools. Measured operations do
//! not use it.

use dmtree_check::blocking::Blocking;
use dmtree_parts::{AnyOptions, CacheStats};

use crate::failure::Result;
use crate::opened::{Opened, PoolSpec};
use crate::workers::Workers;

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

/// An open index with its workers, which end first.
struct Tool {
    _workers: Workers,
    opened: Opened,
}

impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.opened.fmt(f)
    }
}

impl DynPool for Tool {
    fn client(&self, cn: usize) -> Result<Session> {
        Ok(Box::new(self.opened.client(cn)?))
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
pub fn open_pool(system: &str, options: &AnyOptions, spec: &PoolSpec) -> Result<Box<dyn DynPool>> {
    let opened = Opened::create(system, options, spec)?;
    Ok(Box::new(Tool { _workers: opened.start_workers()?, opened }))
}
