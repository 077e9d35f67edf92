//! Stands for `cloud.rs` in a build without the feature `cloud`.

use std::path::Path;

use dmtree_fabric::{Error, Result};

/// Whether this names a place in an object store.
pub(super) fn is_place(text: &Path) -> bool {
    text.to_str().is_some_and(|text| text.starts_with("s3://"))
}

fn unsupported<T>() -> Result<T> {
    Err(Error::unsupported(
        "this program was built without the feature `cloud`: build it with, or name a directory",
    ))
}

/// A place in a store: there are none.
pub(super) enum Store {}

impl Store {
    pub(super) fn open(_: &Path) -> Result<Self> {
        unsupported()
    }

    pub(super) fn folders(&self) -> Result<Vec<String>> {
        match *self {}
    }

    pub(super) fn manifest(&self, _: &str) -> String {
        match *self {}
    }

    pub(super) fn has(&self, _: &str) -> Result<bool> {
        match *self {}
    }

    pub(super) fn claim(&self, _: &str) -> Result<()> {
        match *self {}
    }

    pub(super) fn remove(&self, _: &str) -> Result<()> {
        match *self {}
    }
}

/// A checkpoint in a store: there are none.
pub(super) enum Place {}

impl Place {
    pub(super) fn open(_: &Path) -> Result<Self> {
        unsupported()
    }

    pub(super) fn claim(&self) -> Result<()> {
        match *self {}
    }

    pub(super) fn spool(&self) -> &Path {
        match *self {}
    }

    pub(super) fn give_up(&self) {
        match *self {}
    }

    pub(super) fn put(&self, _: &[&str]) -> Result<()> {
        match *self {}
    }

    pub(super) fn get(&self, _: &str) -> Result<()> {
        match *self {}
    }
}
