//! CHIME as published, the steps to it, and a sound CHIME ([`sound`]).
//!
//! A B-link tree on memory nodes with hopscotch tables for leaves: a search READs the slots in
//! which its key can be, not the leaf. The paper ("CHIME: A Cache-Efficient and High-Performance
//! Hybrid Index on Disaggregated Memory", SOSP'24) starts from Sherman with versions in every line
//! and adds hopscotch leaves; a map of free slots beside the lock; replicas of a leaf's metadata
//! between its slots; validation of a leaf by its sibling instead of fence keys; a buffer of hot
//! slots, which are READ by themselves. Each of these is a switch of [`Options`]. DESIGN.md lists
//! the defects that remain as published.
#![forbid(unsafe_code)]

mod defects;
mod format;
mod get;
mod hotspot;
mod index;
#[cfg(test)]
mod late;
mod load;
mod lock;
mod node;
mod options;
mod read;
#[cfg(test)]
mod reuse;
mod scan;
mod scan_dense;
pub mod sound;
mod split;
pub mod systems;
mod walk;
mod write;

pub use index::Chime;
pub use node::ChimeNode;
pub use options::{Options, Scan, Vacancy};
pub use systems::systems;
