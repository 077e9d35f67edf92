//! A workload with everything that makes a run of it repeatable.

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

/// All settings of a workload, as they stand in an experiment file. What is left out has the
/// default shown; unknown names are refused.
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
/// assert_eq!(op.key().len(), 24);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkloadSpec {
    /// What is done. Default `search`.
    pub workload: Workload,
    /// Which records it is done to. Default `uniform`. A workload with a law of its own (YCSB D:
    /// `latest`) keeps that one; [`Plan::distribution`] says which is in effect.
    pub distribution: Distribution,
    /// The key count that zipf laws are taken over, at least `records`; ranks that the records do
    /// not reach are spread over all of them. Default: `records`. `uniform` has no use for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal: Option<u64>,
    /// How keys are made. Default `hashed24`.
    pub keys: KeyForm,
    /// How many records are loaded before the run. Default 1 000 000.
    pub records: u64,
    /// Length of values, bytes. Default 8.
    pub value_size: ValueSize,
    /// How many entries a scan asks for. Default `uniform(1..=100)`.
    pub scan_length: ScanLength,
    /// The seed of all that is drawn. Default 42.
    pub seed: Seed,
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
        }
    }
}

impl WorkloadSpec {
    /// Checks the settings and makes them ready; reads the key file if there is one.
    ///
    /// # Errors
    /// Settings that do not fit each other, a key file that cannot be used.
    pub fn build(&self) -> Result<Arc<Plan>> {
        self.build_part(0, 1)
    }

    /// Like [`WorkloadSpec::build`], for process `part` (from 0) of `parts` that run the workload
    /// together: the parts insert and delete different records and draw differently.
    ///
    /// # Errors
    /// As [`WorkloadSpec::build`], and a part that is not below `parts`.
    pub fn build_part(&self, part: u32, parts: u32) -> Result<Arc<Plan>> {
        Plan::new(self.clone(), part, parts).map(Arc::new)
    }
}
