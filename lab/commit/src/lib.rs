//! The commit that a program is built from.
//!
//! It is a crate of its own, used by programs alone: another commit is a build of this crate and of
//! what stands above it, and not of the bench.
#![forbid(unsafe_code)]

/// The commit, with `+` behind it where sources differ from it; empty where it is unknown.
pub const COMMIT: &str = env!("DMTREE_COMMIT");
