//! Workloads for range indexes on disaggregated memory: which operation, on which key, with which
//! value.

mod dist;
mod error;
mod inserts;
mod key_file;
mod keys;
mod permute;
mod rng;
mod scan_len;
mod text;
mod values;

pub use dist::{Chooser, Distribution, MAX_NOMINAL, THETA, ZipfExact, ZipfYcsb, zeta};
pub use error::{Error, ErrorKind, Result, TraceError};
pub use inserts::{InsertCounter, Ticket};
pub use key_file::KeyFile;
pub use keys::{KeyForm, KeySpace, MAX_KEY};
pub use permute::Permutation;
pub use rng::{Rng, Seed, fnv1a, mix64};
pub use scan_len::{MAX_SCAN, ScanLength};
pub use values::{MAX_VALUE, Mismatch, ValueMaker, ValueSize};
