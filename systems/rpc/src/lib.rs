//! A range index that the cores of memory nodes own: what such cores could do in place of
//! one-sided verbs.
//!
//! Every memory node has the tree of a range of keys (`host/`): leaves in its region, as DMTree and
//! the sound Sherman have them, and above them a map in its process. Every write is a remote call,
//! and the cores of the node agree by latches in its process: there is no remote lock. Reads are
//! calls or READs of leaves, as the options say ([`Reads`]). `DESIGN.md` has the invariants.
#![forbid(unsafe_code)]

mod cell;
mod client;
mod get;
mod host;
mod index;
mod load;
mod node;
mod options;
mod routes;
mod scan;
mod systems;
mod wire;
mod write;

pub use client::Rpc;
pub use node::RpcNode;
pub use options::{Options, Reads};
pub use systems::systems;

dmtree_parts::mutants! {
    /// A core changes a leaf without its latch.
    NoLatch,
    /// A core answers a batch of writes when half of it is done.
    HalfBatch,
    /// A READ of a leaf may mix slots from before a split with slots from after it.
    MixedVersions,
    /// A READ of a leaf counts although the key lies in another one by now.
    UncheckedRange,
    /// A tree with keys is cut into ranges.
    CutWithKeys,
}
