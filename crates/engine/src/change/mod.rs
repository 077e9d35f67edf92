//! Changes of the structure: splits, merges, relocations, and the bulk load.
//!
//! Each is a struct that holds its locks and its images while it runs, and has this shape:
//!
//! 1. *Locks.* The caller holds the leaf's. A neighbour is locked by try only, and the parent last.
//! 2. *Memory.* All of it is taken, and new nodes are written, awaited, before the commit. A
//!    failure so far gives memory and locks back: nothing has changed.
//! 3. *Commit.* One word of 8 bytes: `next` of a split, `forward` of the others.
//! 4. *Images.* Older copies of moved pairs go before the new place is published (B).
//! 5. *Record* in the parent, *tables*, *unlock*; what no pointer leads to any more is retired.
//!
//! From the commit on an error leaves the locks held. They become abandoned locks, and `recovery/`
//! finishes the change from the memory nodes, as it does after a crash.

mod load;
mod load_pairs;
mod merge;
mod relocate;
mod split;

pub(crate) use load::{Load, format};
pub(crate) use merge::Merge;
pub(crate) use relocate::{Relocation, unlink};
pub(crate) use split::{Split, must_relocate};
