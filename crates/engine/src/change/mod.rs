//! Changes of the structure: splits, merges, relocations, and the bulk load.

mod load;
mod merge;
mod relocate;
mod split;

pub(crate) use load::Loads;
pub(crate) use merge::Merges;
pub(crate) use relocate::Relocations;
pub(crate) use split::{Splits, separator};
