//! Recovery of what dead or failed clients have left.

mod inner;
mod leaf;
mod locks;
mod stall;
mod tombstone;
mod word;

pub(crate) use inner::InnerRecovery;
pub(crate) use leaf::{Inspected, LeafRecovery, from_shadow};
pub(crate) use locks::LockRecovery;
pub(crate) use stall::StallDiagnosis;
pub(crate) use tombstone::TombstoneRecovery;
pub(crate) use word::WordRecovery;
