//! Stands for `cloud.rs` in a build without the feature `cloud`.

use std::path::Path;

use dmtree_fabric::{Error, Result};

/// Whether this names a place in an object store.
pub(super) fn is_place(text: &Path) -> bool {
    text.to_str().is_some_and(|text| text.starts_with("s3://"))
}

/// A place in a store: there are none.
pub(super) enum Place {}

impl Place {
    pub(super) fn open(_: &Path) -> Result<Self> {
        Err(Error::unsupported(
            "this program was built without the feature `cloud`: build it with, or name a directory",
        ))
    }

    pub(super) fn spool(&self) -> &Path {
        match *self {}
    }

    pub(super) fn put(&self, _: &[&str]) -> Result<()> {
        match *self {}
    }

    pub(super) fn get(&self, _: &str) -> Result<()> {
        match *self {}
    }
}
