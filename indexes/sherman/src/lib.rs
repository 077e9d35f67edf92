//! Sherman and FG as published, and the steps between them; and a sound Sherman ([`sound`]).
//!
//! A B-link tree on memory nodes: readers READ whole pages and validate them; writers take a remote lock per page, one at a time.
//! The paper ("Sherman: A Write-Optimized Distributed B+Tree Index on Disaggregated Memory", SIGMOD'22) starts from FG (SIGMOD'19) and
//! adds: verbs that go together (command combination), locks in the NIC's own memory, local locks in front of the remote ones
//! with hand-over, and unsorted leaves of which single entries are written under two levels of versions. Each is a switch of
//! [`Options`]. DESIGN.md says what remains wrong as published.
#![forbid(unsafe_code)]

mod client;
pub mod format;
mod get;
mod index;
mod leaf;
mod load;
mod lock;
mod node;
mod options;
mod parent;
mod route;
mod scan;
pub mod sound;
mod split;
mod walk;
mod write;

pub use client::Sherman;
pub use node::ShermanNode;
pub use options::Options;
