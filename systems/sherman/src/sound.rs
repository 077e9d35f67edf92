//! The sound Sherman: command combination, the hierarchical lock with hand-over, and unsorted
//! leaves with WRITEs of single entries. Entries and nodes validate themselves, instead of
//! two-level versions. It has every operation of the contract, and survivors take abandoned locks
//! over.
//!
//! Leaves, inner nodes, structure changes, cache and recovery are those of DMTree without
//! fingerprint tables: clients READ whole leaves, and the locks are words of the memory nodes.
//! DESIGN.md, section 10.

use dmtree_engine::Options;

pub use dmtree_engine::{DmNode as Node, DmTree as Sherman};

/// Slots of a leaf with keys of 24 bytes and values of 8, so that the leaf is as large as the
/// published page of 32 slots, 1166 bytes.
const SLOTS: u32 = 27;

/// The options of `sherman`.
pub fn options() -> Options {
    Options { leaf_capacity: SLOTS, ..Options::default().without_tables() }
}
