//! An open index for the shell and other tools. Measured operations do not use it.

use dmtree_check::client::Client;
use dmtree_parts::AnyOptions;

use crate::failure::Result;
use crate::opened::{Opened, PoolSpec};
use crate::workers::Workers;

/// An index, open on every compute node of a pool, with its workers, which end first.
#[derive(Debug)]
pub struct Tool {
    _workers: Workers,
    /// The index.
    pub opened: Opened,
}

impl Tool {
    /// Opens an empty index on a fresh embedded pool.
    ///
    /// # Errors
    /// Impossible options or sizes.
    pub fn open(system: &str, options: &AnyOptions, spec: &PoolSpec) -> Result<Self> {
        let opened = Opened::create(system, options, spec)?;
        Ok(Self { _workers: opened.start_workers()?, opened })
    }

    /// A client for the present thread.
    ///
    /// # Errors
    /// No such compute node.
    pub fn client(&self, cn: usize) -> Result<Client> {
        Ok(self.opened.client(cn)?.into())
    }
}
