//! Workloads for range indexes on disaggregated memory: which operation, on which key, with which
//! value.

mod error;
mod permute;
mod rng;
mod text;

pub use error::{Error, ErrorKind, Result, TraceError};
pub use permute::Permutation;
pub use rng::{Rng, Seed, fnv1a, mix64};
