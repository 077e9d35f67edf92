//! The sound SMART: the radix tree with in-place leaves and lock-free inner nodes, in layouts that
//! need only the fabric's contract (DESIGN.md, section 10).

mod cache;
mod client;
mod find;
mod format;
mod gc;
mod get;
mod index;
mod insert;
mod load;
mod mutants;
mod node;
mod options;
mod remove;
mod scan;
mod update;
mod walk;
mod write;

pub use client::Smart;
pub use mutants::Mutant;
pub use node::SmartNode;
pub use options::Options;
