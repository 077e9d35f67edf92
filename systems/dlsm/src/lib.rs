//! dLSM made sound, dLSM as published, and its relatives: a log-structured merge tree on
//! disaggregated memory.
//!
//! The paper ("dLSM: An LSM-Based Index for Memory Disaggregation", ICDE'23) keeps MemTables and
//! all metadata on the compute node that owns the keys, sorted tables on memory nodes, and lets the
//! cores there merge them. A write costs no verb, a read of a key in a table one READ of its pair.
//! What is acknowledged is in the memory of its owner alone. The sound system has a log and a
//! manifest on memory nodes, and takes any key on any node. `DESIGN.md` has layouts, invariants,
//! and what is left as published.
#![forbid(unsafe_code)]

mod batch;
mod block;
mod bloom;
mod build;
mod calls;
mod client;
mod collect;
mod cursor;
mod defects;
mod desk;
mod durable;
mod fetch;
mod format;
mod forward;
mod frame;
mod garbage;
#[cfg(test)]
mod guards;
mod handover;
mod host;
mod index;
mod indexes;
mod key;
mod load;
mod log;
mod manifest;
mod memtable;
mod merge;
mod mutants;
mod near;
mod node;
mod opened;
mod options;
mod owner;
mod pages;
mod parts;
mod read;
mod recorder;
mod router;
mod scan;
mod shard;
mod store;
mod systems;
mod table;
mod turns;
mod version;
mod wire;
mod work;
mod write;

pub use format::Format;
pub use index::Dlsm;
pub use mutants::Mutant;
pub use node::{DlsmNode, NodeMemory};
pub use options::{Defects, Merging, Options};
pub use systems::systems;
