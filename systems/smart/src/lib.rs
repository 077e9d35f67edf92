//! SMART as published, the radix tree that it starts from, the steps between them, and a sound
//! variant of SMART ([`sound`]).
//!
//! An adaptive radix tree on memory nodes. A leaf holds one pair, so a search READs a pair and no
//! page. Inner nodes change by compare-and-swap of single words, and never move. The paper ("SMART:
//! A High-Performance Adaptive Radix Tree for Disaggregated Memory", OSDI'23) starts from ART and
//! adds homogeneous nodes without locks; leaves that are updated in place under a checksum, with
//! the lock in their last word; read delegation and write combining on compute nodes. Each of these
//! is a switch of [`Options`]. DESIGN.md lists the defects that remain as published.
#![forbid(unsafe_code)]

mod cache;
mod cursor;
mod defects;
mod format;
mod get;
mod index;
mod insert;
mod load;
mod lock;
mod node;
mod options;
mod scan;
pub mod sound;
mod split;
pub mod systems;
mod update;
mod walk;
mod write;

pub use index::Smart;
pub use node::SmartNode;
pub use options::Options;
pub use systems::systems;
