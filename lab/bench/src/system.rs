//! A system of the registry, and what this crate does with its index type.

use std::ops::Deref;

use dmtree_check::checked::Subject;
use dmtree_check::remote_client::{Pipe, RemoteClient};
use dmtree_parts::AnyOptions;
use dmtree_parts::peer::{Fit, SystemSpec, leaf_bytes_per_key};
use dmtree_pool::Cluster;
use dmtree_workload::{KeyForm, ValueSize, Workload};

use crate::config::Config;
use crate::conform::Extent;
use crate::facade::Tool;
use crate::failure::{Failure, Result};
use crate::group::{Group, Host};
use crate::opened::PoolSpec;
use crate::sizing;

/// A system that is measured.
#[derive(Clone, Debug)]
pub struct System(pub Subject);

impl Deref for System {
    type Target = Subject;

    fn deref(&self) -> &Subject {
        &self.0
    }
}

impl System {
    /// A system with this description.
    pub fn of(spec: SystemSpec) -> Self {
        Self(Subject(spec))
    }

    /// Measures the cells of a group, which share one loaded pool.
    ///
    /// # Errors
    /// Those of [`crate::group::run_group`].
    pub fn run(&self, group: &Group, host: &mut Host<'_>) -> Result<()> {
        crate::group::run_group(group, host)
    }

    /// Runs the conformance suite on compute nodes of two processes: this one's, and the one behind
    /// the pipe. A system as published executes one operation at a time.
    ///
    /// # Errors
    /// A result that does not conform.
    pub fn conform(&self, cluster: &Cluster, other: &RemoteClient, extent: Extent) -> Result<()> {
        let extent = Extent { together: extent.together && !self.published, ..extent };
        let options = self.options.with((self.conforming)(&self.options));
        crate::conform::conform(self.name, &options, (cluster, other), extent)
    }

    /// Runs the second of these processes, for one index.
    ///
    /// # Errors
    /// The first process has ended in the middle of a request.
    pub fn second(&self, cluster: &Cluster, index: &str, pipe: &mut Pipe) -> Result<()> {
        crate::conform::serve_index(cluster, &self.options, index, pipe)
    }

    /// Its options for keys and values of these lengths.
    pub fn fitted(&self, key: u64, value: u64) -> AnyOptions {
        self.options.with((self.fit)(&self.options, &fit(key, value)))
    }

    /// Its options for the settings of a cell: what the settings give counts more than what fits
    /// the data.
    pub fn options_for(&self, c: &Config) -> AnyOptions {
        let mut options = (self.fit)(&self.options, &fit_of(c));
        for (field, value) in c.options.get(self.name).into_iter().flatten() {
            options[field] = value.clone();
        }
        self.options.with(options)
    }

    /// The same, if they are options of this index.
    ///
    /// # Errors
    /// An unknown field, or a value of another type.
    pub fn checked_options(&self, c: &Config) -> Result<AnyOptions> {
        let options = self.options_for(c);
        let wrong = |e| Failure::Input(format!("options.{}: {e}", self.name));
        options.check().map_err(wrong).map(|()| options)
    }

    /// Bytes of each memory node for a cell: as given, or computed.
    pub fn memory(&self, c: &Config, w: &Workload) -> u64 {
        sizing::memory(c, w, self.bytes_per_key(c))
    }

    /// Bytes of memory nodes that one key may take under these settings.
    pub fn bytes_per_key(&self, c: &Config) -> u64 {
        let fit = fit_of(c);
        let bytes = (self.0.0.bytes_per_key)(&self.options_for(c), &fit);
        bytes.max(leaf_bytes_per_key(&fit))
    }

    /// The feature that it lacks for a workload over these keys and values, as text.
    pub fn lacks(&self, c: &Config, w: &Workload) -> Option<String> {
        let one_key = match &c.key_form {
            KeyForm::Hashed24 | KeyForm::U64 | KeyForm::Sequential => true,
            KeyForm::Random { min, max } => min == max,
            _ => false,
        };
        let what = if !self.options.ops().delete && w.mix().delete > 0 {
            "delete"
        } else if !self.options.ops().any_length && !one_key {
            "keys of different lengths"
        } else if !self.options.ops().any_length && !matches!(c.value_size, ValueSize::Fixed(_)) {
            "values of different lengths"
        } else {
            return None;
        };
        Some(format!("{} has no {what}: leave it out, or the workload {w}", self.name))
    }

    /// An empty index with the options of a cell.
    ///
    /// # Errors
    /// Options that the system refuses.
    pub fn open_for(&self, c: &Config, spec: &PoolSpec) -> Result<Tool> {
        Tool::open(self.name, &self.checked_options(c)?, spec)
    }

    /// An empty index on an embedded pool, for tools. `key` and `value` are typical lengths.
    ///
    /// # Errors
    /// Impossible sizes.
    pub fn open(&self, spec: &PoolSpec, key: u64, value: u64) -> Result<Tool> {
        Tool::open(self.name, &self.fitted(key, value), spec)
    }
}

pub(crate) fn fit(key: u64, value: u64) -> Fit {
    let bytes = |n| u32::try_from(n).unwrap_or(u32::MAX);
    Fit { key_bytes: bytes(key), value_bytes: bytes(value), ..Fit::default() }
}

/// What the settings of a cell ask of options.
pub fn fit_of(c: &Config) -> Fit {
    let scaled = |at_billion| {
        sizing::scaled(at_billion, c.keys, sizing::LEAST_TABLE_CHUNK).next_multiple_of(64)
    };
    Fit {
        // There are ten decimal digits.
        ten_symbols: c.key_form == KeyForm::Hashed24,
        page_bytes: c.page_bytes.map(|page| u32::try_from(page.0).unwrap_or(u32::MAX)),
        table_chunk_bytes: c.table_chunk_at_billion.map(scaled),
        ..fit(sizing::longest_key(&c.key_form), u64::from(c.value_size.max()))
    }
}
