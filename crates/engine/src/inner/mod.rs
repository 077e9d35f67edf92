//! Inner nodes: their images, their locks, and the changes of their records.
//!
//! An inner node is locked by a word of its own, taken by `[CAS lock 0->tag, READ node]` behind a
//! FIFO guard. A client that waits for an inner lock while it holds another waits for one of a
//! higher level, and FIFO guards of inner locks are ranked by level; so inner locks form no cycle.
//! The lock word lies inside the image, and images are written around it: the word is touched by
//! atomics only.
//!
//! - *Add a record*: WRITE the record into a free place, unlock behind it in the same chain.
//!   Records are unsorted and each is valid alone, so one WRITE changes one record.
//! - *Remove a record*: WRITE word0 = free, unlock behind it.
//! - *Split N*: WRITE N', awaited; then one chain: `N.next = N'` (the commit), N's image around the
//!   lock word, CAS unlock; then the record of N' one level up, without N's lock.
//! - *New root*: WRITE the root with two records, then change the root word by compare-and-swap. A
//!   client that loses the race gives its node back and inserts into the level that it finds.
//!
//! R holds for inner nodes as for leaves: in an unlocked node `hi` is `next`'s `lo`, and the
//! sibling's record is one level up unless memory was short. Until the record is there the right
//! link keeps N' reachable, and a chore adds the record. S: all records of a node carry its range;
//! a change of the node's range rewrites every word0, so an image that mixes two versions is
//! refused.
//!
//! The parent's lock decides between clients that publish the same child: under it, a record with
//! the child's key means that the child was published already, and a child that is a tombstone by
//! now gets no record.
//!
//! A crash under the lock leaves a torn record, a half split or a node that misses a sibling's
//! record. The next client that meets the abandoned lock, or a sweep, repairs it
//! (`recovery/inner.rs`).

mod image;
mod lock;
mod merge;
mod node;
mod records;
mod split;

pub(crate) use image::{InnerNodes, fill, record_of};
pub(crate) use lock::{InnerLocks, LockedInner};
pub(crate) use merge::InnerMerge;
pub(crate) use node::InnerNode;
pub(crate) use records::Records;
pub(crate) use split::InnerSplit;
