//! Stands for `connect.rs` in a build without the feature `tcp`.

use dmtree_fabric::Result;
use dmtree_pool::Cluster;

/// How this process joins its pool again: it has none but in its own memory.
#[derive(Clone, Debug)]
pub(crate) enum Way {}

impl Way {
    pub(crate) fn join_again(&self, _: &Cluster) -> Result<Cluster> {
        match *self {}
    }
}
