//! Inner nodes: their images, their locks, and the changes of their records.

mod image;
mod lock;
mod merge;
mod node;
mod records;
mod split;

pub(crate) use image::{InnerNodes, fill, record_of};
pub(crate) use lock::{InnerLocks, LockedInner};
pub(crate) use merge::InnerMerge;
pub(crate) use node::InnerNode;
pub(crate) use records::Records;
pub(crate) use split::InnerSplit;
