//! DMTree: a range index whose entries live on memory nodes while fingerprints and locks live on compute nodes.
//!
//! The design is that of "DMTree: Towards Efficient Tree Indexing on Disaggregated Memory via Compute-side Collaborative
//! Design" (FAST'26), made correct and general: see DESIGN.md for layouts, invariants and linearization points.
#![forbid(unsafe_code)]

mod batch;
mod census;
mod client;
mod defects;
mod fair;
pub mod format;
mod get;
mod index;
mod load;
mod lock;
mod lookaround;
mod maintain;
mod mark_live;
mod marks;
mod mend;
mod mend_dead;
mod mend_inner;
mod merge;
mod node;
mod options;
mod parent;
mod probe;
#[cfg(test)]
mod rare;
mod relocate;
mod room;
mod rough;
mod route;
mod scan;
mod settle;
mod split;
mod sweep;
mod unlock;
mod walk;
mod words;
mod words_mend;
mod words_write;
mod write;

pub use client::DmTree;
pub use defects::Defect;
pub use marks::Mark;
pub use node::DmNode;
pub use options::{Options, Tables};
