//! Workloads for range indexes on disaggregated memory: which operation, on which key, with which
//! value.

mod error;
mod key_file;
mod keys;
mod permute;
mod rng;
mod text;
mod values;

pub use error::{Error, ErrorKind, Result, TraceError};
pub use key_file::KeyFile;
pub use keys::{KeyForm, KeySpace, MAX_KEY};
pub use permute::Permutation;
pub use rng::{Rng, Seed, fnv1a, mix64};
pub use values::{MAX_VALUE, Mismatch, ValueMaker, ValueSize};
