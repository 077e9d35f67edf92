//! Journal nodes in programs without an engine for journals.

use std::path::Path;

use dmtree_fabric::net::NetFabric;
use dmtree_fabric::{Error, Result};
use dmtree_pool::Place;

/// A journal node. None in this program.
#[derive(Debug)]
pub enum JournalNode {}

impl JournalNode {
    /// Refuses.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn join(_: &Place<'_>, directory: &Path, _: Option<bool>) -> Result<Self> {
        Err(Error::unsupported(format!(
            "{}: this program was built without the feature `durable`: build it with",
            directory.display()
        )))
    }

    /// Refuses.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn replace(place: &Place<'_>, directory: &Path, syncs: Option<bool>) -> Result<Self> {
        Self::join(place, directory, syncs)
    }

    /// Its fabric.
    #[doc(hidden)]
    pub fn fabric(&self) -> &NetFabric {
        match *self {}
    }

    /// Whether a write that the pool acknowledges is on the device.
    pub fn syncs(&self) -> bool {
        match *self {}
    }
}
