//! Recovery of what dead or failed clients have left.
//!
//! A lock is taken over only when its holder does nothing any more: its node is revoked at every
//! host, or its operation has ended. So what the lock covers is stable, and the repair derives
//! everything from the memory nodes. Each step of it may be repeated: a client that dies during a
//! repair leaves damage of the same kind, or less.
//!
//! - `leaf.rs`: leaves under an abandoned lock, or without a table; `tombstone.rs`: leaves that
//!   forward to another one; `inner.rs`: inner nodes.
//! - `locks.rs`: abandoned locks of this node; `word.rs`: lock words, and the slots that they hide.
//! - `stall.rs`: why a lock is not given back, when its repair needs memory that is lost.
//!
//! A client that meets an abandoned lock repairs what it needs; the sweep (`maintenance/sweep.rs`)
//! finds the rest.

mod inner;
mod leaf;
mod locks;
mod stall;
mod tombstone;
mod word;

pub(crate) use inner::InnerRecovery;
pub(crate) use leaf::{Inspected, LeafRecovery, from_shadow};
pub(crate) use locks::{
    has_abandoned_locks, recover_lock, recover_locks_due, recover_locks_while_waiting,
};
pub(crate) use stall::{diagnose_inner, diagnose_leaf};
pub(crate) use word::WordRecovery;
