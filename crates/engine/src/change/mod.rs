//! Changes of the structure: splits, merges, relocations, and the bulk load.

mod load;
mod merge;
mod relocate;
mod split;
mod unlink;

pub(crate) use load::{Load, format};
pub(crate) use merge::Merge;
pub(crate) use relocate::Relocation;
pub(crate) use split::{Split, must_relocate};
pub(crate) use unlink::Unlinking;
