//! Settings: where they come from, and which are in effect.

use std::collections::BTreeMap;
use std::fmt;

use dmtree_workload::{Distribution, KeyForm, ScanLength, Seed, ValueSize, Workload, WorkloadSpec};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::failure::{Failure, Result};
use crate::registry;
use crate::sizing;

/// Operations of a cell, at least, under a time budget.
pub const MIN_OPS: u64 = 10_000;

/// How the index is filled before a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadBy {
    /// Whole leaves at once, keys ascending.
    #[default]
    Bulk,
    /// One put per key, in random order, by all clients.
    Put,
}

impl std::str::FromStr for LoadBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bulk" => Ok(Self::Bulk),
            "put" => Ok(Self::Put),
            _ => Err(format!("unknown way to load {text:?}: give one of bulk, put")),
        }
    }
}

impl fmt::Display for LoadBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bulk => "bulk",
            Self::Put => "put",
        })
    }
}

/// One setting varied over several values; exactly one list may be given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sweep {
    /// Cache budgets of a compute node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cache_bytes: Vec<Bytes>,
    /// Lengths of scans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scan_length: Vec<ScanLength>,
    /// Lengths of values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub value_size: Vec<ValueSize>,
    /// Numbers of threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// Numbers of coroutines per thread.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coroutines: Vec<u32>,
}

impl Sweep {
    /// The points: a label and the settings there. One without label when nothing varies.
    pub fn points(&self, base: &Config) -> Result<Vec<(Option<String>, Config)>> {
        let mut lists = 0;
        let mut out = Vec::new();
        macro_rules! vary {
            ($field:ident, $name:literal, $set:expr) => {
                if !self.$field.is_empty() {
                    lists += 1;
                    for v in &self.$field {
                        let mut c = base.clone();
                        #[allow(clippy::redundant_closure_call)]
                        ($set)(&mut c, *v);
                        out.push((Some(format!(concat!($name, "={}"), v)), c));
                    }
                }
            };
        }
        vary!(cache_bytes, "cache-bytes", |c: &mut Config, v| c.cache_bytes = v);
        vary!(scan_length, "scan-length", |c: &mut Config, v| c.scan_length = v);
        vary!(value_size, "value-size", |c: &mut Config, v| c.value_size = v);
        vary!(threads, "threads", |c: &mut Config, v| c.threads = v);
        vary!(coroutines, "coroutines", |c: &mut Config, v| c.coroutines = v);
        match lists {
            0 => Ok(vec![(None, base.clone())]),
            1 => Ok(out),
            _ => Err(Failure::input("a sweep varies one setting: give one list only")),
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// Follows from other values.
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
            /// Takes over what `over` gives, and notes where it comes from.
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
    /// What the experiment is for.
    description: String,
    /// Names of systems; `families` is one per family, `all` all.
    systems: Vec<String>,
    /// Workloads.
    workloads: Vec<Workload>,
    /// Distributions.
    distributions: Vec<Distribution>,
    /// The fabric.
    fabric: String,
    /// Keys loaded before a cell.
    keys: u64,
    /// Operations of a cell.
    ops: u64,
    /// Length of the measured phase of a cell, s.
    duration: f64,
    /// Longest warm-up of a cell, s.
    warmup: f64,
    /// Time for everything, s: divided over the cells.
    budget: f64,
    /// Threads in all.
    threads: u32,
    /// Clients of a thread.
    coroutines: u32,
    /// Compute nodes.
    cns: u16,
    /// Memory nodes.
    mns: u16,
    /// How keys are made.
    key_form: KeyForm,
    /// Length of values.
    value_size: ValueSize,
    /// Length of scans.
    scan_length: ScanLength,
    /// The key count that zipf laws are taken over.
    nominal: u64,
    /// Cache budget of a compute node.
    cache_bytes: Bytes,
    /// Bytes of each memory node.
    memory_bytes: Bytes,
    /// How the index is filled.
    load_by: LoadBy,
    /// Share of a leaf's slots that a bulk load uses.
    fill: f64,
    /// Seed of everything drawn.
    seed: u64,
    /// How often every cell is measured.
    rounds: u32,
    /// One setting varied.
    sweep: Sweep,
}

/// The settings in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are those of `Layer`")]
pub struct Config {
    pub systems: Vec<String>,
    pub workloads: Vec<Workload>,
    pub distributions: Vec<Distribution>,
    pub fabric: String,
    pub keys: u64,
    pub ops: Option<u64>,
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
    pub memory_bytes: Option<Bytes>,
    pub load_by: LoadBy,
    pub fill: f64,
    pub seed: u64,
    pub rounds: u32,
    pub sweep: Sweep,
    /// Which cells share a loaded pool.
    pub reuse: String,
    /// How caches are warmed.
    pub warmup_method: String,
    /// How memory nodes that are not given a size get one.
    pub memory_rule: String,
}

/// Settings with their origins.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The experiment's name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What is in effect.
    pub config: Config,
    /// Where it comes from.
    pub origins: Origins,
}

/// The cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Puts the experiment's settings and those of the command line over the defaults.
///
/// # Errors
/// Settings that contradict each other, unknown names.
pub fn resolve(name: &str, experiment: &Layer, command_line: &Layer) -> Result<Resolved> {
    let mut origins = Origins::new();
    let mut l = Layer::default();
    l.overlay(experiment, &Origin::Experiment(name.to_owned()), &mut origins);
    l.overlay(command_line, &Origin::CommandLine, &mut origins);
    // A length on the command line replaces the experiment's way of limiting cells.
    let mine = |key: &str| origins.get(key) == Some(&Origin::CommandLine);
    let (has_ops, has_duration, has_budget) = (mine("ops"), mine("duration"), mine("budget"));
    if (has_ops || has_duration) && !has_budget && l.budget.take().is_some() {
        origins.remove("budget");
    }
    if has_budget {
        for (given, key) in [(has_ops, "ops"), (has_duration, "duration")] {
            if !given {
                origins.remove(key);
            }
        }
        l.ops = l.ops.filter(|_| has_ops);
        l.duration = l.duration.filter(|_| has_duration);
    }
    let defaulted = |key: &str, origin: Origin, origins: &mut Origins| {
        origins.entry(key.to_owned()).or_insert(origin);
    };
    let cns = l.cns.unwrap_or(6);
    let threads = l.threads.unwrap_or_else(cores);
    let coroutines =
        l.coroutines.unwrap_or_else(|| u32::from(cns).div_ceil(threads.max(1)).clamp(1, 64));
    let keys = l.keys.unwrap_or(1_000_000);
    let key_form = l.key_form.unwrap_or(KeyForm::Hashed24);
    let value_size = l.value_size.unwrap_or(ValueSize::Fixed(8));
    let named = l.systems.unwrap_or_else(|| vec!["families".to_owned()]);
    let duration = l.duration.or((l.ops.is_none() && l.budget.is_none()).then_some(10.0));
    let seed = l.seed.unwrap_or(42);
    let config = Config {
        systems: registry::select(&named)?.iter().map(|s| s.name.to_owned()).collect(),
        workloads: l.workloads.unwrap_or_else(quick_workloads),
        distributions: l.distributions.unwrap_or_else(quick_distributions),
        fabric: l.fabric.unwrap_or_else(|| "local".to_owned()),
        keys,
        ops: l.ops,
        duration,
        warmup: l.warmup.unwrap_or(5.0),
        budget: l.budget,
        threads,
        coroutines,
        cns,
        mns: l.mns.unwrap_or(1),
        cache_bytes: l.cache_bytes.unwrap_or_else(|| sizing::default_cache(keys, &key_form)),
        key_form,
        value_size,
        scan_length: l.scan_length.unwrap_or_default(),
        nominal: l.nominal,
        memory_bytes: l.memory_bytes,
        load_by: l.load_by.unwrap_or_default(),
        fill: l.fill.unwrap_or(0.7),
        seed,
        rounds: l.rounds.unwrap_or(1),
        sweep: l.sweep.unwrap_or_default(),
        reuse: "cells that do not change which keys exist share one loaded pool per system and distribution; others get a fresh one".to_owned(),
        warmup_method: "every compute node reads every 8th key in key order, once, within the warm-up time".to_owned(),
        memory_rule: "computed from the keys, the longest inserts and their lengths; reserved, used only as far as it is filled".to_owned(),
    };
    for key in ["threads", "coroutines", "cache-bytes", "memory-bytes", "duration"] {
        defaulted(key, Origin::Derived, &mut origins);
    }
    config.check()?;
    Ok(Resolved {
        name: name.to_owned(),
        description: l.description.unwrap_or_default(),
        config,
        origins,
    })
}

fn quick_workloads() -> Vec<Workload> {
    ["search", "insert", "update", "scan"].iter().filter_map(|n| Workload::named(n).ok()).collect()
}

fn quick_distributions() -> Vec<Distribution> {
    ["uniform", "zipfian"].iter().filter_map(|n| n.parse().ok()).collect()
}

impl Config {
    /// Refuses contradictions.
    ///
    /// # Errors
    /// Names the setting and what it may be.
    pub fn check(&self) -> Result<()> {
        let refuse = |m: String| Err(Failure::Input(m));
        for (name, n) in [
            ("--keys", self.keys),
            ("--threads", self.threads.into()),
            ("--coroutines", self.coroutines.into()),
            ("--cns", self.cns.into()),
            ("--mns", self.mns.into()),
            ("--rounds", self.rounds.into()),
        ] {
            if n == 0 {
                return refuse(format!("{name} is 0: give 1 at least"));
            }
        }
        if self.ops == Some(0) {
            return refuse("--ops is 0: give 1 at least".to_owned());
        }
        for (name, high, n) in [
            ("--cns", 1024, u64::from(self.cns)),
            ("--threads", 1024, self.threads.into()),
            ("--coroutines", 1024, self.coroutines.into()),
            ("--rounds", 1000, self.rounds.into()),
        ] {
            if n > high {
                return refuse(format!("{name} is {n}: give {high} at most"));
            }
        }
        for (name, least, s) in [
            ("--duration", 1e-3, self.duration),
            ("--budget", 1e-3, self.budget),
            ("--warmup", 0.0, Some(self.warmup)),
        ] {
            if let Some(s) = s
                && !(s.is_finite() && s >= least && s <= 1e6)
            {
                return refuse(format!("{name} is {s} seconds: give {least} to 1000000"));
            }
        }
        if !(self.fill > 0.0 && self.fill <= 1.0) {
            return refuse(format!("--fill is {}: give a share above 0, 1 at most", self.fill));
        }
        if self.fabric != "local" {
            return refuse(format!(
                "unknown fabric {:?}: give one of {}",
                self.fabric,
                registry::FABRICS.join(", ")
            ));
        }
        if self.workloads.is_empty() || self.distributions.is_empty() || self.systems.is_empty() {
            return refuse(
                "nothing to run: name a system, a workload and a distribution".to_owned(),
            );
        }
        for (_, point) in self.sweep.points(self)? {
            if point.threads == 0 || point.coroutines == 0 {
                return refuse("a sweep over 0 threads or coroutines: give 1 at least".to_owned());
            }
            for w in &point.workloads {
                for d in &point.distributions {
                    let spec = point.workload(w, *d);
                    // Whether it can be built; zipf tables are left for later.
                    WorkloadSpec {
                        distribution: Distribution::Uniform,
                        nominal: None,
                        ..spec.clone()
                    }
                    .build()?;
                    if let (Some(n), false) = (spec.nominal, *d == Distribution::Uniform)
                        && n < spec.records
                    {
                        return refuse(format!(
                            "--nominal is {n}, below the {} keys: give at least as many",
                            spec.records
                        ));
                    }
                }
            }
            sizing::check(&point)?;
        }
        Ok(())
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

    /// Clients in all.
    pub fn clients(&self) -> u32 {
        self.threads.saturating_mul(self.coroutines)
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
