//! DMTree: a range index with entries on memory nodes, and fingerprints and locks on compute nodes.
//!
//! The design is that of "DMTree: Towards Efficient Tree Indexing on Disaggregated Memory via
//! Compute-side Collaborative Design" (FAST'26), made correct and general: see DESIGN.md for
//! layouts, invariants and linearization points.
//!
//! [`DmTree`] is the front. Behind it, each part of the protocol has its folder, with an essay at
//! its head: what it owns, its rules, and what a crash leaves.
#![forbid(unsafe_code)]

mod change;
mod client;
pub mod estimate;
mod format;
mod hop;
mod inner;
mod invariants;
mod journal;
mod key_order;
mod leaf;
mod learned;
mod lock;
mod log;
mod maintenance;
mod marks;
mod mutants;
mod node;
mod options;
mod point;
#[cfg(test)]
mod rare;
mod recovery;
mod router;
mod scan;
#[cfg(feature = "lab")]
pub mod systems;
#[cfg(test)]
mod testing;
mod tree;
mod walk;

pub use marks::Mark;
pub use mutants::Mutant;
pub use node::DmNode;
pub use options::{Models, Options, Tables, Techniques};
pub use point::Begun;
#[cfg(feature = "lab")]
pub use systems::systems;
pub use tree::DmTree;

// What most modules need.
pub(crate) use client::{Client, HashedKey, KeyValue, Route, is_away, reached};
pub(crate) use dmtree_parts::hash::{KeyHash, fence_tag};
pub(crate) use dmtree_parts::held::Unlock;
pub(crate) use node::Chore;
