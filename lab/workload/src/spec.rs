//! The settings of a workload; they make a run repeatable.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dist::Distribution;
use crate::error::Result;
use crate::keys::KeyForm;
use crate::mix::Workload;
use crate::plan::Plan;
use crate::rng::Seed;
use crate::scan_len::ScanLength;
use crate::values::ValueSize;

/// All settings of a workload, as in an experiment file. A missing setting has the default shown;
/// unknown names are refused.
///
/// ```
/// let spec: dmtree_workload::WorkloadSpec = toml::from_str(
///     r#"
///     workload     = "ycsb-a"
///     distribution = "zipfian-exact(0.99)"
///     nominal      = 1_000_000_000
///     keys         = "hashed24"
///     records      = 100_000
///     value-size   = 8
///     scan-length  = "uniform(1..=100)"
///     seed         = 42
///     "#,
/// )?;
/// let plan = spec.build()?;
/// let mut stream = plan.stream(0);
/// let op = stream.next().expect("reads and updates never run out");
/// assert_eq!(op.key.len(), 24);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkloadSpec {
    /// The workload. Default `search`.
    pub workload: Workload,
    /// The distribution of records. Default `uniform`. A workload with a distribution of its own
    /// (YCSB D: `latest`) keeps it; [`Plan::spec`] has the one in effect.
    pub distribution: Distribution,
    /// The key count over which zipf laws are taken, at least `records`. Ranks beyond the records
    /// are spread over all of them. Default: `records`. `uniform` does not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal: Option<u64>,
    /// The form of keys. Default `hashed24`.
    pub keys: KeyForm,
    /// Number of records that are loaded before the run. Default 1 000 000.
    pub records: u64,
    /// Length of values, bytes. Default 8.
    pub value_size: ValueSize,
    /// Number of entries of a scan. Default `uniform(1..=100)`.
    pub scan_length: ScanLength,
    /// The seed of all random choices. Default 42.
    pub seed: Seed,
    /// The key space is cut into so many slices; a client draws in one ([`Plan::stream_of`]).
    /// Default 1.
    #[serde(skip_serializing_if = "is_one")]
    pub slices: u32,
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Default for WorkloadSpec {
    fn default() -> Self {
        WorkloadSpec {
            workload: Workload::named("search").expect("a built-in name"),
            distribution: Distribution::Uniform,
            nominal: None,
            keys: KeyForm::Hashed24,
            records: 1_000_000,
            value_size: ValueSize::Fixed(8),
            scan_length: ScanLength::default(),
            seed: Seed(42),
            slices: 1,
        }
    }
}

impl WorkloadSpec {
    /// Checks and prepares the settings; reads the key file if there is one.
    ///
    /// # Errors
    /// Contradictory settings, or a key file that cannot be used.
    pub fn build(&self) -> Result<Arc<Plan>> {
        Plan::new(self.clone()).map(Arc::new)
    }
}
