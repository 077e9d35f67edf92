//! FPTree and DMTree as published, and the steps between them.
//!
//! A B-link tree with unsorted leaves, a fingerprint table per leaf, and inner nodes that compute
//! nodes cache. The paper ("DMTree: Towards Efficient Tree Indexing on Disaggregated Memory via
//! Compute-side Collaborative Design", FAST'26) builds DMTree from FPTree in three steps: it
//! combines round trips, it moves the tables to compute nodes with mirrors on all of them, and it
//! moves the leaf locks along. Each step is a switch of [`Options`]. Layouts, verbs and bytes are
//! those of the published artifact; so are the defects that cannot be repaired without changing
//! them. DESIGN.md lists these.
#![forbid(unsafe_code)]

mod client;
mod entry;
pub mod format;
mod get;
mod index;
mod load;
mod lock;
mod node;
mod options;
mod parent;
mod route;
mod scan;
mod split;
pub mod systems;
mod walk;
mod write;

pub use client::FpTree;
pub use node::FpNode;
pub use options::{Locks, Options, Tables};
pub use systems::systems;
