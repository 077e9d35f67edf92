//! Workloads for range indexes on disaggregated memory: the operations, their keys and their
//! values.
//!
//! * [`WorkloadSpec`] has the settings of a run (serde, with text forms for all), [`Plan`] is the
//!   prepared form, and each client draws its operations from an [`OpStream`].
//! * [`trace`] replays the output of the real YCSB client with its `basic` binding.
//!
//! All random choices come from one [`Seed`]. The generator and all that depends on it are frozen,
//! so that a published seed replays.
//!
//! ```
//! use dmtree_workload::{OpKind, Workload, WorkloadSpec};
//!
//! let spec = WorkloadSpec {
//!     workload: Workload::named("ycsb-a")?,
//!     distribution: "zipfian-exact(0.99)".parse()?,
//!     nominal: Some(1_000_000_000),
//!     records: 10_000,
//!     ..Default::default()
//! };
//! let plan = spec.build()?;
//! let mut stream = plan.stream(0);
//! for _ in 0..100 {
//!     let op = stream.next().expect("reads and updates never run out");
//!     match op.kind {
//!         OpKind::Read => assert_eq!(op.key.len(), 24),
//!         OpKind::Update => plan.check_value(op.key, op.value).unwrap(),
//!         other => panic!("not in this mix: {other:?}"),
//!     }
//! }
//! # Ok::<(), dmtree_workload::Error>(())
//! ```
#![forbid(unsafe_code)]

mod dist;
mod error;
mod inserts;
mod key_file;
mod keys;
mod mix;
mod permute;
mod plan;
mod rng;
mod scan_len;
mod shifting;
mod slices;
mod spec;
mod stream;
mod text;
pub mod trace;
mod values;

pub use dist::{Distribution, MAX_NOMINAL, THETA};
pub use error::{Error, Result, TraceError};
pub use key_file::{KeyFile, KeyFileForm};
pub use keys::{KeyForm, MAX_KEY};
pub use mix::{Mix, OpKind, Phase, Workload};
pub use plan::{LOADED, Load, LoadOrder, Plan};
pub use rng::{Rng, Seed, fnv1a, mix64};
pub use scan_len::{MAX_SCAN, ScanLength};
pub use shifting::Shifts;
pub use spec::WorkloadSpec;
pub use stream::{Exhausted, Op, OpStream};
pub use values::{MAX_VALUE, Mismatch, ValueSize};

/// Property tests use a fixed seed, so that a failure repeats.
#[cfg(test)]
fn property_config() -> proptest::test_runner::Config {
    use proptest::test_runner::{Config, RngSeed};
    Config { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() }
}
