//! ROLEX, as published and made sound: a range index with linear models on compute nodes in the
//! place of inner nodes.
//!
//! A search READs every leaf in the error window of a model, in one round trip. The paper ("ROLEX:
//! A Scalable RDMA-oriented Learned Key-Value Store for Disaggregated Memory Systems", FAST'23)
//! trains models again as keys come. What is published and benchmarked is a re-implementation by
//! the authors of CHIME, in the variant of the artifact of the FAST'26 paper "DMTree": without
//! training again, without deletes, with one synonym for a leaf, and with models that are trained
//! on the keys that will be inserted. This crate has that one, and one that is sound
//! ([`sound`]). DESIGN.md lists the defects that remain as published.
#![forbid(unsafe_code)]

mod defects;
mod directory;
mod form;
mod format;
mod hop;
mod index;
mod leaf;
mod load;
mod node;
mod options;
mod read;
mod scan;
pub mod sound;
pub mod systems;
mod walk;
mod write;

pub use index::Rolex;
pub use node::RolexNode;
pub use options::Options;
pub use systems::systems;
