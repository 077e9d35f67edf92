//! DMTree: a range index with entries on memory nodes, and fingerprints and locks on compute nodes.
//!
//! The design is that of "DMTree: Towards Efficient Tree Indexing on Disaggregated Memory via
//! Compute-side Collaborative Design" (FAST'26), made correct and general: see DESIGN.md for
//! layouts, invariants and linearization points.
#![forbid(unsafe_code)]

mod batch;
mod client;
mod direct;
mod fair;
pub mod format;
mod gc;
mod get;
mod index;
mod inner_node;
mod invariants;
mod load;
mod lock;
mod lock_word_mode;
mod lock_word_recovery;
mod lock_word_write;
mod maintain;
mod mark;
mod marks;
mod merge;
mod mutants;
mod node;
mod options;
mod parent;
mod probe;
#[cfg(test)]
mod rare;
mod recover_inner;
mod recover_leaf;
mod recover_lock;
mod recover_tombstone;
mod relocate;
mod room;
mod route;
mod scan;
mod scan_leaf;
mod scan_read;
mod split;
mod stall_diagnosis;
mod steps;
mod sweep;
pub mod systems;
mod unlock;
mod unvalidated;
mod walk;
mod write;

pub use client::DmTree;
pub use direct::Begun;
pub use marks::Mark;
pub use mutants::Mutant;
pub use node::DmNode;
pub use options::{Options, Tables, Techniques};
pub use systems::systems;
