//! Sherman and FG as published, the steps between them, and a sound Sherman ([`sound`]).
//!
//! A B-link tree on memory nodes. Readers READ whole pages and validate them. Writers take a remote
//! lock per page, one at a time. The paper ("Sherman: A Write-Optimized Distributed B+Tree Index on
//! Disaggregated Memory", SIGMOD'22) starts from FG (SIGMOD'19) and adds chains of verbs (command
//! combination); locks in on-chip memory of the NIC; local locks in front of the remote ones, with
//! hand-over; and unsorted leaves with WRITEs of single entries under two levels of versions. Each
//! of these is a switch of [`Options`]. DESIGN.md lists the defects that remain as published.
#![forbid(unsafe_code)]

mod defects;
mod format;
mod index;
mod leaf;
mod load;
mod lock;
mod node;
mod options;
mod scan;
pub mod sound;
mod split;
pub mod systems;
mod walk;
mod write;

pub use index::Sherman;
pub use node::ShermanNode;
pub use options::Options;
pub use systems::systems;
