//! Which shards an index has, and which of them are this node's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, GlobalAddr, NodeId, Result};
use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::shard::Shard;
use crate::table::Meta;

/// The body of a directory.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// The first key of every shard but the first.
    pub(crate) borders: Vec<Vec<u8>>,
    /// The level and the tables of a load, of each shard.
    pub(crate) loaded: Vec<(u8, Vec<Meta>)>,
}

/// A shard of this node, as long as there is one.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Shard>>>);

impl Slot {
    pub(crate) fn get(&self) -> Option<Arc<Shard>> {
        locked(&self.0).clone()
    }

    pub(crate) fn set(&self, shard: impl Into<Arc<Shard>>) {
        *locked(&self.0) = Some(shard.into());
    }

    pub(crate) fn take(&self) -> Option<Arc<Shard>> {
        locked(&self.0).take()
    }
}

/// Which shards there are, and those of this node.
#[derive(Debug)]
pub(crate) struct Router {
    borders: Vec<Vec<u8>>,
    first: usize,
    /// Those of this node, or all ranges where any node takes any key: then with what this node
    /// owns.
    pub(crate) shards: Vec<Slot>,
    /// The words of the ranges.
    pub(crate) heads: GlobalAddr,
    /// The owners of ranges as far as this node knows, and those that are not to be asked to
    /// become one.
    pub(crate) owners: Vec<AtomicU64>,
    passed_over: Vec<AtomicBool>,
    pub(crate) loaded: Vec<(u8, Vec<Meta>)>,
}

/// A key of another compute node.
#[cold]
pub(crate) fn foreign(what: &str, owner: usize, me: NodeId) -> Error {
    Error::invalid(format!(
        "{what} belongs to compute node {owner}, not to {me}: every compute node has a slice of the \
         keys, and takes no other (affinity own, and as many owners as compute nodes)"
    ))
}

impl Router {
    /// Of all ranges of a directory, none of which has an owner that is known.
    pub(crate) fn of_all(directory: Directory, heads: GlobalAddr) -> Self {
        let Directory { borders, loaded } = directory;
        let ranges = 0..=borders.len();
        Self {
            first: 0,
            shards: ranges.clone().map(|_| Slot::default()).collect(),
            heads,
            owners: ranges.clone().map(|_| AtomicU64::new(0)).collect(),
            passed_over: ranges.map(|_| AtomicBool::new(false)).collect(),
            borders,
            loaded,
        }
    }

    /// Of the shards of one node, from the first on.
    pub(crate) fn of_own(
        borders: Vec<Vec<u8>>,
        (first, shards): (usize, Vec<Slot>),
        heads: GlobalAddr,
    ) -> Self {
        Self { borders, first, shards, ..Self::of_all(Directory::default(), heads) }
    }

    /// The shards that this node owns.
    pub(crate) fn own(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.iter().filter_map(Slot::get)
    }

    /// The node of a range's slice is not there: the range is any other node's.
    pub(crate) fn pass_over(&self, range: usize) {
        self.passed_over[range].store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_passed_over(&self, range: usize) -> bool {
        self.passed_over[range].load(Ordering::Relaxed)
    }

    /// The number of a key's range, where any node takes any key.
    pub(crate) fn range(&self, user: &[u8]) -> usize {
        self.borders.partition_point(|border| &border[..] <= user)
    }

    /// The number of the shard of a key, among this node's.
    ///
    /// # Errors
    /// `InvalidArgument` for a key of another node.
    pub(crate) fn shard(&self, user: &[u8], o: &Options, me: NodeId) -> Result<usize> {
        let number = self.borders.partition_point(|border| &border[..] <= user);
        match number.checked_sub(self.first).filter(|own| *own < self.shards.len()) {
            Some(own) => Ok(own),
            None => Err(foreign("a key", number / o.shards as usize, me)),
        }
    }

    /// The first key of a shard of this node, and the first behind it; `None` at the ends of the
    /// key space.
    pub(crate) fn ends(&self, own: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let number = self.first + own;
        let low = number.checked_sub(1).and_then(|i| self.borders.get(i));
        (low.map(Vec::as_slice), self.borders.get(number).map(Vec::as_slice))
    }
}
