//! The sound CHIME: hopscotch leaves, of which a search READs the neighbourhood of its key alone;
//! replicas between the slots, with which that one READ validates itself; no vacancy word, since
//! what a writer must know comes with its lock. It has every operation of the contract, and
//! survivors take abandoned locks over.
//!
//! Inner nodes, structure changes, blocks, cache and recovery are those of DMTree without
//! fingerprint tables. DESIGN.md, section 11.

use dmtree_engine::Options;

pub use dmtree_engine::{DmNode as Node, DmTree as Chime};

/// Slots of a leaf in which a neighbourhood may begin, as in the geometry of the artifact.
const SPAN: u32 = 32;
/// Slots of a neighbourhood, as published.
const NEIGHBOURHOOD: u32 = 8;

/// The options of `chime`.
pub fn options() -> Options {
    Options {
        leaf_capacity: SPAN,
        neighbourhood: NEIGHBOURHOOD,
        ..Options::default().without_tables()
    }
}
