//! Settings: their sources, and the values in effect.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use dmtree_workload::{Distribution, KeyForm, ScanLength, Seed, ValueSize, Workload, WorkloadSpec};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::failure::{Failure, Result};
use crate::offered::LoadShape;
use crate::profile::ProfileText;
use crate::published::Bound;
use crate::registry::{self, LOCAL, SIM};
use crate::sizing;
use crate::sweep::Sweep;

pub use crate::settings::{FillBy, LoadBy, Measure, SystemSettings, WorkloadSettings};

/// Minimum number of operations of a cell under a time budget.
pub const MIN_OPS: u64 = 10_000;
/// Operations of a simulated cell by default.
pub const SIM_OPS: u64 = 50_000;

const REUSE: &str = "cells of one system that load the same keys and do not change which keys exist share one loaded pool, reads before updates; others get a fresh one";
const LOCAL_WARMUP: &str = "every compute node reads every 8th key in key order (every key, where a leaf holds one), once, within the warm-up time";
const SIM_WARMUP: &str = "a direct fill, equal in content to every compute node reading every key: every compute node reads every 8th key in key order (every key, where a leaf holds one), untimed";
const MEMORY_RULE: &str = "computed from the keys, the longest inserts and their lengths; reserved, used only as far as it is filled";

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// No source gives the value.
    Default,
    /// Derived from other values.
    Derived,
    /// The experiment of this name.
    Experiment(String),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived => f.write_str("derived"),
            Self::Experiment(name) => write!(f, "experiment {name}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

macro_rules! layer {
    ($($(#[$doc:meta])* $field:ident: $ty:ty,)*) => {
        /// Settings that one source gives. The keys of an experiment file.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Layer {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$ty>,)*
        }

        impl Layer {
            /// Takes the values of `over`, and records their origin.
            fn overlay(&mut self, over: &Self, from: &Origin, origins: &mut Origins) {
                $(if over.$field.is_some() {
                    self.$field.clone_from(&over.$field);
                    origins.insert(stringify!($field).replace('_', "-"), from.clone());
                })*
            }
        }
    };
}

/// Origins by the name of the setting.
pub type Origins = BTreeMap<String, Origin>;

layer! {
    /// The purpose of the experiment.
    description: String,
    /// Names of systems; `families` is one per family, `all` all.
    systems: Vec<String>,
    /// Workloads.
    workloads: Vec<Workload>,
    /// Distributions.
    distributions: Vec<Distribution>,
    /// The fabric.
    fabric: String,
    /// Address of the first memory node of a running pool, on fabrics tcp and verbs. Without it
    /// this process starts memory nodes.
    nodes: String,
    /// The file with the key of that pool; the environment variable DMTREE_KEY by default.
    key_file: PathBuf,
    /// That pool has no key, and nodes listen on all addresses nevertheless.
    insecure: bool,
    /// The RDMA device, on fabric verbs; the first with an active port by default.
    device: String,
    /// Index into the address table of its port; selected by kind by default.
    gid_index: u8,
    /// The profile of the simulated fabric: a name, or a file that ends with .toml.
    profile: String,
    /// Fields of the profile with other values: `resp_ns.read=22`.
    profile_set: Vec<String>,
    /// Keys loaded before a cell.
    keys: u64,
    /// Operations of a cell.
    ops: u64,
    /// Which operations of a cell the figures cover; simulated fabric only.
    measure: Measure,
    /// Whether the time of operations is measured step by step.
    steps: bool,
    /// How operations are offered.
    load: LoadShape,
    /// Length of the measured phase of a cell, s; virtual seconds on the simulated fabric.
    duration: f64,
    /// Longest warm-up of a cell, s.
    warmup: f64,
    /// Time for the whole run, s, divided over the cells.
    budget: f64,
    /// Number of threads; on the simulated fabric, threads of each compute node.
    threads: u32,
    /// Number of clients of each thread.
    coroutines: u32,
    /// Compute nodes.
    cns: u16,
    /// Memory nodes.
    mns: u16,
    /// The form of keys.
    key_form: KeyForm,
    /// Length of values.
    value_size: ValueSize,
    /// Length of scans.
    scan_length: ScanLength,
    /// Number of keys over which zipf laws are taken.
    nominal: u64,
    /// Cache budget of a compute node.
    cache_bytes: Bytes,
    /// Cache budget of a compute node for 1e9 keys, scaled to the number of keys.
    cache_at_billion: Bytes,
    /// Table memory that a client node takes from one compute node before it continues with the
    /// next, for 1e9 keys, scaled to the number of keys; for systems with such chunks.
    table_chunk_at_billion: Bytes,
    /// Bytes of a page, for systems with pages that have as many slots as fit.
    page_bytes: Bytes,
    /// Bytes of each memory node.
    memory_bytes: Bytes,
    /// How the index is filled.
    load_by: LoadBy,
    /// Share of a leaf's slots that a bulk load uses, or `random`: as after insertions in random
    /// order.
    fill: FillBy,
    /// Seed of all random choices.
    seed: u64,
    /// Number of times that every cell is measured.
    rounds: u32,
    /// The settings that a sweep varies.
    sweep: Sweep,
    /// Settings of single workloads.
    per_workload: BTreeMap<String, WorkloadSettings>,
    /// Settings of single systems.
    per_system: BTreeMap<String, SystemSettings>,
    /// The published table to compare with.
    published: String,
    /// Rows of the published table by system, for systems that have another name there.
    published_rows: BTreeMap<String, String>,
    /// The table of reference speedups to compare with.
    published_gains: String,
    /// Bounds of the ratio to the published figures.
    bounds: Vec<Bound>,
    /// An experiment that runs after this one.
    followed_by: String,
}

/// The settings in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are those of `Layer`")]
pub struct Config {
    pub systems: Vec<String>,
    /// Requested systems that are not built yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_built: Vec<String>,
    pub workloads: Vec<Workload>,
    pub distributions: Vec<Distribution>,
    pub fabric: String,
    /// A running pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Where the key of that pool is: of no interest to others.
    #[serde(default, skip_serializing)]
    pub key_file: Option<PathBuf>,
    #[serde(default, skip_serializing)]
    pub insecure: bool,
    /// The RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Index into the table of addresses of its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// The whole profile of the simulated fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileText>,
    pub keys: u64,
    pub ops: Option<u64>,
    pub measure: Measure,
    pub steps: bool,
    pub load: LoadShape,
    pub duration: Option<f64>,
    pub warmup: f64,
    pub budget: Option<f64>,
    pub threads: u32,
    pub coroutines: u32,
    pub cns: u16,
    pub mns: u16,
    pub key_form: KeyForm,
    pub value_size: ValueSize,
    pub scan_length: ScanLength,
    pub nominal: Option<u64>,
    pub cache_bytes: Bytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_at_billion: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_chunk_at_billion: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<Bytes>,
    pub memory_bytes: Option<Bytes>,
    pub load_by: LoadBy,
    pub fill: FillBy,
    pub seed: u64,
    pub rounds: u32,
    pub sweep: Sweep,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub per_workload: BTreeMap<String, WorkloadSettings>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub per_system: BTreeMap<String, SystemSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub published_rows: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_gains: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bound>,
    /// Which cells share a loaded pool.
    pub reuse: String,
    /// How caches are warmed.
    pub warmup_method: String,
    /// The rule for the size of memory nodes without a given size.
    pub memory_rule: String,
}

/// Settings with their origins.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The experiment's name.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// The settings in effect.
    pub config: Config,
    /// The origin of each setting.
    pub origins: Origins,
    /// An experiment that runs after this one.
    pub followed_by: Option<String>,
}

/// The number of cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Applies the settings of the experiment, and then those of the command line, over the defaults.
///
/// # Errors
/// Contradictory settings, and unknown names.
pub fn resolve(name: &str, experiment: &Layer, command_line: &Layer) -> Result<Resolved> {
    let mut origins = Origins::new();
    let mut l = Layer::default();
    l.overlay(experiment, &Origin::Experiment(name.to_owned()), &mut origins);
    l.overlay(command_line, &Origin::CommandLine, &mut origins);
    limits(&mut l, &mut origins)?;
    let simulated = l.fabric.as_deref() == Some(SIM);
    let cns = l.cns.unwrap_or(6);
    let threads = l.threads.unwrap_or_else(|| if simulated { 72 } else { cores() });
    let coroutines = l.coroutines.unwrap_or_else(|| {
        if simulated { 4 } else { u32::from(cns).div_ceil(threads.max(1)).clamp(1, 64) }
    });
    let keys = l.keys.unwrap_or(1_000_000);
    let key_form = l.key_form.unwrap_or(KeyForm::Hashed24);
    let value_size = l.value_size.unwrap_or(ValueSize::Fixed(8));
    let named = l.systems.unwrap_or_else(|| vec!["families".to_owned()]);
    let (systems, not_built) = registry::split_built(&named, mine(&origins, "systems"))?;
    let given = l.ops.is_some() || l.budget.is_some() || l.duration.is_some();
    let profile = if simulated {
        Some(ProfileText::find(l.profile.as_deref(), l.profile_set.as_deref().unwrap_or(&[]))?)
    } else if l.profile.is_some() || l.profile_set.is_some() {
        return Err(Failure::input(
            "a profile says how the simulated fabric behaves: give --fabric sim too",
        ));
    } else {
        None
    };
    let config = Config {
        systems: systems.iter().map(|s| s.name.to_owned()).collect(),
        not_built,
        workloads: l.workloads.unwrap_or_else(quick_workloads),
        distributions: l.distributions.unwrap_or_else(quick_distributions),
        fabric: l.fabric.unwrap_or_else(|| LOCAL.to_owned()),
        nodes: l.nodes,
        key_file: l.key_file,
        insecure: l.insecure.unwrap_or(false),
        device: l.device,
        gid_index: l.gid_index,
        profile,
        keys,
        ops: l.ops.or((simulated && !given).then_some(SIM_OPS)),
        measure: l.measure.unwrap_or_default(),
        steps: l.steps.unwrap_or(false),
        load: l.load.unwrap_or_default(),
        duration: l.duration.or((!simulated && !given).then_some(10.0)),
        warmup: l.warmup.unwrap_or(5.0),
        budget: l.budget,
        threads,
        coroutines,
        cns,
        mns: l.mns.unwrap_or(1),
        cache_bytes: l.cache_bytes.unwrap_or_else(|| sizing::default_cache(keys, &key_form)),
        cache_at_billion: l.cache_at_billion,
        table_chunk_at_billion: l.table_chunk_at_billion,
        page_bytes: l.page_bytes,
        key_form,
        value_size,
        scan_length: l.scan_length.unwrap_or_default(),
        nominal: l.nominal,
        memory_bytes: l.memory_bytes,
        load_by: l.load_by.unwrap_or_default(),
        fill: l.fill.unwrap_or(FillBy::Share(0.7)),
        seed: l.seed.unwrap_or(42),
        rounds: l.rounds.unwrap_or(1),
        sweep: l.sweep.unwrap_or_default(),
        per_workload: l.per_workload.unwrap_or_default(),
        per_system: l.per_system.unwrap_or_default(),
        published: l.published,
        published_rows: l.published_rows.unwrap_or_default(),
        published_gains: l.published_gains,
        bounds: l.bounds.unwrap_or_default(),
        reuse: REUSE.to_owned(),
        warmup_method: if simulated { SIM_WARMUP } else { LOCAL_WARMUP }.to_owned(),
        memory_rule: MEMORY_RULE.to_owned(),
    };
    for key in ["threads", "coroutines", "cache-bytes", "memory-bytes", "duration"] {
        origins.entry(key.to_owned()).or_insert(Origin::Derived);
    }
    config.check()?;
    Ok(Resolved {
        name: name.to_owned(),
        description: l.description.unwrap_or_default(),
        config,
        origins,
        followed_by: l.followed_by,
    })
}

/// Whether the command line gives a setting.
fn mine(origins: &Origins, key: &str) -> bool {
    origins.get(key) == Some(&Origin::CommandLine)
}

/// Settings of the command line replace settings of the experiment that say the same in another
/// form: the length of cells, and single settings.
fn limits(l: &mut Layer, origins: &mut Origins) -> Result<()> {
    let mine = |key: &str, o: &Origins| mine(o, key);
    let has = |key: &str| mine(key, origins);
    let (has_ops, has_duration, has_budget) = (has("ops"), has("duration"), has("budget"));
    let (has_keys, has_fabric) = (has("keys"), has("fabric"));
    let has_cache = has("cache-bytes") || has("cache-at-billion");
    let only_ratio = has("cache-at-billion") && !has("cache-bytes");
    let simulated = l.fabric.as_deref() == Some(SIM);
    if simulated && has_budget {
        return Err(Failure::input(
            "--budget limits real time, which the simulated fabric does not go by: give --ops or --duration",
        ));
    }
    // Seconds that an experiment gives for another fabric have another meaning on this one.
    if has_fabric && simulated && !has_duration {
        l.duration = None;
        origins.remove("duration");
    }
    if ((has_ops || has_duration) && !has_budget || simulated) && l.budget.take().is_some() {
        origins.remove("budget");
    }
    if has_budget {
        l.ops = l.ops.filter(|_| has_ops);
        l.duration = l.duration.filter(|_| has_duration);
        for (given, key) in [(has_ops, "ops"), (has_duration, "duration")] {
            if !given {
                origins.remove(key);
            }
        }
    }
    for w in l.per_workload.iter_mut().flat_map(BTreeMap::values_mut) {
        if has_keys {
            w.keys = None;
        }
        if has_ops || has_duration {
            (w.ops, w.ops_of_keys) = (None, None);
        }
    }
    if has_cache {
        l.per_system = None;
        if !only_ratio {
            l.cache_at_billion = None;
        }
    }
    Ok(())
}

fn quick_workloads() -> Vec<Workload> {
    ["search", "insert", "update", "scan"].iter().filter_map(|n| Workload::named(n).ok()).collect()
}

fn quick_distributions() -> Vec<Distribution> {
    ["uniform", "zipfian"].iter().filter_map(|n| n.parse().ok()).collect()
}

impl Config {
    /// Whether the fabric is the simulated one.
    pub fn simulated(&self) -> bool {
        self.fabric == SIM
    }

    /// The settings of one cell, with the overrides of its system and workload applied.
    #[must_use]
    pub fn for_cell(&self, system: &str, w: &Workload) -> Self {
        let mut c = self.clone();
        if let Some(own) = self.per_workload.get(w.name()) {
            c.keys = own.keys.unwrap_or(c.keys);
            c.ops = own.ops_of_keys.map(|s| (c.keys as f64 * s) as u64).or(own.ops).or(c.ops);
            c.measure = own.measure.unwrap_or(c.measure);
        }
        let own = self.per_system.get(system).and_then(|s| s.cache_at_billion);
        if let Some(at_billion) = own.or(self.cache_at_billion) {
            c.cache_bytes = Bytes(sizing::scaled(at_billion, c.keys, sizing::LEAST_CACHE));
        }
        c
    }

    /// The specification of a workload under these settings.
    pub fn workload(&self, w: &Workload, d: Distribution) -> WorkloadSpec {
        WorkloadSpec {
            workload: w.clone(),
            distribution: d,
            nominal: self.nominal,
            keys: self.key_form.clone(),
            records: self.keys,
            value_size: self.value_size,
            scan_length: self.scan_length,
            seed: Seed(self.seed),
        }
    }

    /// Number of clients of all threads.
    pub fn clients(&self) -> u32 {
        let nodes = if self.simulated() { u32::from(self.cns) } else { 1 };
        self.threads.saturating_mul(self.coroutines).saturating_mul(nodes)
    }

    /// XXH3-64 of the settings as JSON, hexadecimal.
    pub fn hash(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(json.as_bytes()))
    }
}

impl Resolved {
    /// Every setting: name, value, origin.
    pub fn rows(&self) -> Vec<(String, String, Origin)> {
        let value = serde_json::to_value(&self.config).unwrap_or_default();
        let Some(map) = value.as_object() else { return Vec::new() };
        let mut rows = Vec::new();
        for (key, v) in map {
            let text = match v {
                serde_json::Value::String(s) => s.clone(),
                serde_json::Value::Null => "(not limited by this)".to_owned(),
                serde_json::Value::Array(a) => a
                    .iter()
                    .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(", "),
                other => other.to_string(),
            };
            let text = match key.as_str() {
                "cache-bytes" => self.config.cache_bytes.to_string(),
                "profile" => {
                    self.config.profile.as_ref().map_or_else(String::new, ProfileText::title)
                }
                "memory-bytes" if self.config.memory_bytes.is_none() => {
                    format!("{} (largest cell)", Bytes(sizing::largest(&self.config)))
                }
                "nominal" if v.is_null() => self.config.keys.to_string(),
                _ => text,
            };
            rows.push((
                key.clone(),
                text,
                self.origins.get(key).cloned().unwrap_or(Origin::Default),
            ));
        }
        rows
    }
}
