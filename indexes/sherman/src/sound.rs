//! Sherman made sound: command combination, the hierarchical lock with hand-over, unsorted leaves of which single entries are written; with
//! entries and nodes that certify themselves instead of two-level versions, every operation of the contract, and locks that survivors take over.
//!
//! Leaves, inner nodes, structure changes, cache and recovery are those that DMTree has, without fingerprint tables: whole leaves are READ,
//! and their locks are words of the memory nodes. DESIGN.md, section 10.

use dmtree_engine::Options;

pub use dmtree_engine::{DmNode as Node, DmTree as Sherman};

/// Slots of a leaf with keys of 24 bytes and values of 8: as many as the published page of 32 slots, 1166 bytes, has room for.
const SLOTS: u32 = 27;

/// The options of `sherman`.
pub fn options() -> Options {
    Options { leaf_capacity: SLOTS, ..Options::default().without_tables() }
}
