//! Snapshots of an index that keeps old versions, and atomic batches: their names, checks and
//! errors. The operations are those of [`RangeIndex`](crate::RangeIndex).

use std::collections::BTreeMap;
use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, Member, Result};
use serde::{Deserialize, Serialize};

use crate::contract::{check_key, check_value};

/// The most snapshots of a compute node that are open at a time: each keeps old versions.
pub const MAX_SNAPSHOTS: usize = 4096;

/// The name of an open snapshot: plain data, for the clients of the compute node that has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SnapshotId {
    /// The index.
    pub index: u32,
    /// The compute node that has taken it.
    pub taken_by: Member,
    /// Its number there.
    pub number: u64,
}

/// The open snapshots of a compute node, each with what the index notes of it.
#[derive(Debug)]
pub struct SnapshotTable<T> {
    index: u32,
    member: Member,
    open: Mutex<Open<T>>,
}

#[derive(Debug)]
struct Open<T> {
    next: u64,
    notes: BTreeMap<u64, T>,
}

impl<T: Clone> SnapshotTable<T> {
    /// Without open snapshots.
    pub fn new(index: u32, member: Member) -> Self {
        Self { index, member, open: Mutex::new(Open { next: 1, notes: BTreeMap::new() }) }
    }

    /// Opens a snapshot. What it notes is read when no other thread looks at the table: whatever
    /// drops old versions by [`Self::notes`] sees it, or has looked before it was read.
    ///
    /// # Errors
    /// `InvalidArgument` when [`MAX_SNAPSHOTS`] are open.
    pub fn take(&self, note: impl FnOnce() -> T) -> Result<SnapshotId> {
        let mut open = locked(&self.open);
        if open.notes.len() >= MAX_SNAPSHOTS {
            return Err(Error::invalid(format!(
                "{MAX_SNAPSHOTS} snapshots are open on {}: release one",
                self.member.node
            )));
        }
        let number = open.next;
        open.next += 1;
        open.notes.insert(number, note());
        Ok(SnapshotId { index: self.index, taken_by: self.member, number })
    }

    /// What an open snapshot has noted.
    ///
    /// # Errors
    /// `InvalidArgument` for a snapshot of another index or node, and for one that was released.
    pub fn note(&self, s: SnapshotId) -> Result<T> {
        self.check(s)?;
        locked(&self.open).notes.get(&s.number).cloned().ok_or_else(|| released(s))
    }

    /// Closes a snapshot.
    ///
    /// # Errors
    /// As [`Self::note`].
    pub fn release(&self, s: SnapshotId) -> Result<T> {
        self.check(s)?;
        locked(&self.open).notes.remove(&s.number).ok_or_else(|| released(s))
    }

    /// What the open snapshots have noted, the oldest first. `now` is called under the same lock.
    pub fn notes<N>(&self, now: impl FnOnce() -> N) -> (Vec<T>, N) {
        let open = locked(&self.open);
        let notes = open.notes.values().cloned().collect();
        (notes, now())
    }

    fn check(&self, s: SnapshotId) -> Result<()> {
        if s.index != self.index {
            return Err(Error::invalid(format!(
                "snapshot {} is of index {}, not of index {}: take one of this index",
                s.number, s.index, self.index
            )));
        }
        if s.taken_by != self.member {
            return Err(Error::invalid(format!(
                "snapshot {} was taken by {}, not by {}: use it at the node that has taken it",
                s.number, s.taken_by, self.member
            )));
        }
        Ok(())
    }
}

fn released(s: SnapshotId) -> Error {
    Error::invalid(format!("snapshot {} is not open: it was released", s.number))
}

/// A write of an atomic batch: the key, and its value, or `None` to remove it.
pub type BatchWrite<'a> = (&'a [u8], Option<&'a [u8]>);

/// Refuses a batch that an index with room for so many writes in one does not take.
///
/// # Errors
/// `InvalidArgument` for too many writes, and for a key or a value that no index takes, with its
/// place in the batch; `Unsupported` for an index without batches.
pub fn check_batch(batch: &[BatchWrite<'_>], most: u32) -> Result<()> {
    if most == 0 {
        return Err(lacks("atomic batches"));
    }
    if batch.len() > most as usize {
        return Err(Error::invalid(format!(
            "a batch of {} writes is over the limit of {most}: divide it",
            batch.len()
        )));
    }
    for (i, (key, value)) in batch.iter().enumerate() {
        let checked = check_key(key).and_then(|()| value.map_or(Ok(()), check_value));
        checked.map_err(|e| e.context(format!("write {i} of the batch")))?;
    }
    Ok(())
}

/// The error of an operation that an index does not have.
pub(crate) fn lacks(what: &str) -> Error {
    Error::unsupported(format!("this index has no {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;

    fn member(n: u16) -> Member {
        Member { node: NodeId::compute(n), incarnation: 1 }
    }

    #[test]
    fn a_snapshot_is_open_until_it_is_released() {
        let table = SnapshotTable::new(7, member(0));
        let (a, b) = (table.take(|| 10).unwrap(), table.take(|| 11).unwrap());
        assert_eq!((table.note(a).unwrap(), table.note(b).unwrap()), (10, 11));
        assert_eq!(table.notes(|| 12), (vec![10, 11], 12));
        assert_eq!(table.release(a).unwrap(), 10);
        for e in [table.release(a).unwrap_err(), table.note(a).unwrap_err()] {
            assert_eq!(e.to_string(), "snapshot 1 is not open: it was released");
        }
        assert_eq!(table.notes(|| ()).0, [11]);
    }

    #[test]
    fn foreign_snapshots_are_refused() {
        let table = SnapshotTable::new(7, member(0));
        let s = table.take(|| ()).unwrap();
        let of = |s| table.note(s).unwrap_err().to_string();
        let e = of(SnapshotId { index: 8, ..s });
        assert_eq!(e, "snapshot 1 is of index 8, not of index 7: take one of this index");
        assert!(of(SnapshotId { taken_by: member(1), ..s }).contains("not by cn0"));
        (1..MAX_SNAPSHOTS).for_each(|_| _ = table.take(|| ()).unwrap());
        let e = table.take(|| ()).unwrap_err().to_string();
        assert_eq!(e, "4096 snapshots are open on cn0: release one");
    }

    #[test]
    fn batches_over_a_limit_are_refused() {
        let w: BatchWrite<'_> = (b"k", Some(b"v"));
        assert!(check_batch(&[w, (b"k", None)], 2).is_ok() && check_batch(&[], 2).is_ok());
        let of = |batch: &[BatchWrite<'_>], most| check_batch(batch, most).unwrap_err().to_string();
        assert_eq!(of(&[w; 3], 2), "a batch of 3 writes is over the limit of 2: divide it");
        assert_eq!(of(&[w], 0), "this index has no atomic batches");
        let e = of(&[w, (b"", None)], 2);
        assert!(e.contains("write 1 of the batch") && e.contains("the empty key"), "{e}");
    }
}
