//! Settings: their sources, and the values in effect.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use dmtree_pool::parse_count;
use dmtree_workload::{Distribution, KeyForm, ScanLength, Seed, ValueSize, Workload, WorkloadSpec};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::fabrics::{LOCAL, SIM};
use crate::offered::LoadShape;
use crate::profile::ProfileText;
use crate::published::Bound;
use crate::simulated::CpuSource;
use crate::sizing;
use crate::sweep::Sweep;
use crate::sweeps::Sweeps;

pub use crate::layers::{Flags, Origin, Origins, Resolved, cores, resolve};
pub use crate::settings::{Affinity, CellSettings, FillBy, GivenOption, LoadBy, Measure};

/// Minimum number of operations of a cell under a time budget.
pub const MIN_OPS: u64 = 10_000;

/// Operations of a client between two calls of maintenance.
const MAINTAIN_EVERY: u32 = 1024;

fn is_usual(every: &u32) -> bool {
    *every == MAINTAIN_EVERY
}

/// A struct of settings, each with its default.
macro_rules! settings {
    ($(#[$on:meta])* pub struct $name:ident {
        $($(#[$about:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$on])*
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

settings! {
    /// The settings of an experiment: the keys of its file, and the flags of the command line.
    /// `results.json` has the values in effect.
    #[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
    pub struct Config {
        /// The purpose of the experiment.
        #[arg(skip)]
        #[serde(skip_serializing)]
        description: String = String::new(),
        /// Systems: names, `families` (one per family), or `all`.
        #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
        systems: Vec<String> = vec!["families".to_owned()],
        /// Workloads: search, insert, update, scan, ycsb-a, ...; those of db_bench (fillrandom,
        /// readrandom, readrandomwriterandom(R), readseq, readrandomrange) over an index that
        /// begins empty, one after the other.
        #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
        workloads: Vec<Workload> = each(&["search", "insert", "update", "scan"]),
        /// Distributions: uniform, zipfian, zipfian-exact(0.99), zipfian-ycsb(0.99), latest.
        #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
        distributions: Vec<Distribution> = each(&["uniform", "zipfian"]),
        /// The fabric: local (memory of this process), sim (simulated hardware, virtual time), tcp
        /// (nodes apart, over sockets), or verbs (nodes apart, over RDMA).
        #[arg(long)]
        fabric: String = LOCAL.to_owned(),
        /// On fabrics tcp and verbs: where the first memory node of a running pool listens (`dmtree
        /// memnode`); without it, memory nodes are started in this process.
        #[arg(long, value_name = "HOST:PORT", help_heading = "Cluster")]
        #[serde(skip_serializing_if = "Option::is_none")]
        nodes: Option<String> = None,
        /// The file with the keys of this process, which its owner alone may read (`dmtree keys`
        /// makes one); or else the file that the environment variable DMTREE_KEY_FILE names.
        /// Without keys nodes listen on the loopback only.
        #[arg(long, value_name = "FILE", help_heading = "Access")]
        #[serde(skip_serializing)]
        key_file: Option<PathBuf> = None,
        /// Without keys: listen on other addresses than the loopback nevertheless. Every process
        /// that can connect reads and changes all.
        #[arg(long, help_heading = "Access")]
        #[serde(skip_serializing)]
        insecure: bool = false,
        /// On fabric verbs: the RDMA device; the first with an active port by default.
        #[arg(long, value_name = "NAME", help_heading = "Cluster")]
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<String> = None,
        /// On fabric verbs: index into the table of addresses of its port; chosen by kind by
        /// default.
        #[arg(long, value_name = "N", help_heading = "Cluster")]
        #[serde(skip_serializing_if = "Option::is_none")]
        gid_index: Option<u8> = None,
        /// Profile of the simulated fabric (see `fabric list`), or a file that ends with .toml.
        #[arg(id = "profile", long = "profile", value_name = "NAME|FILE.toml")]
        #[serde(rename(deserialize = "profile"), skip_serializing)]
        profile_name: Option<String> = None,
        /// Set a field of the profile otherwise; may be given several times.
        #[arg(long = "set", value_name = "FIELD=VALUE")]
        #[serde(skip_serializing)]
        profile_set: Vec<String> = Vec::new(),
        /// The whole profile of the simulated fabric.
        #[arg(skip)]
        #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
        profile: Option<ProfileText> = None,
        /// Keys loaded before a cell.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        keys: u64 = 1_000_000,
        /// Operations of a cell.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        ops: Option<u64> = None,
        /// Which operations of a cell the figures cover; simulated fabric only.
        #[arg(skip)]
        measure: Measure = Measure::default(),
        /// Measure the time of operations step by step, too.
        #[arg(long)]
        steps: bool = false,
        /// Operations of a client between two calls of maintenance, where the workload changes the
        /// set of keys, or reads alone give maintenance something to do.
        #[arg(skip)]
        #[serde(skip_serializing_if = "is_usual")]
        maintain_every: u32 = MAINTAIN_EVERY,
        /// Figures of every so many microseconds of virtual time, too; simulated fabric only.
        #[arg(long, value_name = "US")]
        #[serde(skip_serializing_if = "Option::is_none")]
        series_us: Option<u64> = None,
        /// How operations are offered: closed (the next when the last has ended), or open:RATE in
        /// operations per second of all clients (open:1.5M), with latency counted from the time an
        /// operation falls due.
        #[arg(long, value_name = "SHAPE")]
        load: LoadShape = LoadShape::default(),
        /// Length of the measured phase of a cell; virtual seconds on fabric sim.
        #[arg(long, value_name = "SECONDS")]
        duration: Option<f64> = None,
        /// Longest warm-up of a cell.
        #[arg(long, value_name = "SECONDS")]
        warmup: f64 = 5.0,
        /// Time for all cells together, loading included; 10000 operations each at least.
        #[arg(long, value_name = "SECONDS")]
        budget: Option<f64> = None,
        /// Threads in all, the cores by default; on fabric sim those of each compute node, 72 by
        /// default.
        #[arg(long, value_name = "N")]
        threads: u32 = 0,
        /// Clients per thread; by default enough that every compute node has one.
        #[arg(long, value_name = "N")]
        coroutines: u32 = 0,
        /// Compute nodes; clients are spread over them in turn.
        #[arg(long, value_name = "N")]
        cns: u16 = 6,
        /// Memory nodes.
        #[arg(long, value_name = "N")]
        mns: u16 = 1,
        /// Cores of a memory node that run data services, on fabric sim; those of the profile by
        /// default.
        #[arg(long, value_name = "N")]
        #[serde(skip_serializing_if = "Option::is_none")]
        mn_cores: Option<u32> = None,
        /// Where the CPU time of an index comes from, on fabric sim: charged (the steps that it
        /// names), measured (the time of its code on this machine; figures vary), or counted (its
        /// instructions of docs/instructions.md, which has those of dmtree, dmtree-images and
        /// dmtree-log). By default measured for a system that another program has added and that
        /// does not say that it charges.
        #[arg(long, value_name = "SOURCE", hide_possible_values = true)]
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuSource> = None,
        /// How keys are made: hashed24, u64, sequential, sequential24, db-bench, random(MIN..=MAX),
        /// shifting(RECORDS:SHARE, ..., SHARE|ascending), file(PATH) of lines, sosd(PATH) of
        /// integers (the number of keys in 8 bytes, then keys of 4 or 8 bytes, little endian).
        #[arg(long, value_name = "FORM")]
        key_form: KeyForm = KeyForm::Hashed24,
        /// Keys that a client draws: any, or own: those in its compute node's slice of the key
        /// space.
        #[arg(long, value_name = "KEYS", hide_possible_values = true)]
        #[serde(skip_serializing_if = "Affinity::is_any")]
        affinity: Affinity = Affinity::Any,
        /// Bytes of values, 0 to 1MiB: a number such as 8 or 64KiB, or a range such as 16..=1024.
        #[arg(long, value_name = "BYTES")]
        value_size: ValueSize = ValueSize::Fixed(8),
        /// Pairs that a scan asks for: 10, uniform(1..=100), zipfian(1..=100, 0.99).
        #[arg(long, value_name = "LENGTH")]
        scan_length: ScanLength = ScanLength::default(),
        /// The key count that zipf laws are taken over; the keys by default.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        nominal: Option<u64> = None,
        /// Cache budget of a compute node, such as 8MiB.
        #[arg(long, value_name = "SIZE")]
        cache_bytes: Bytes = Bytes(0),
        /// Cache budget of a compute node for 1e9 keys, scaled to the number of keys.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_at_billion: Option<Bytes> = None,
        /// Table memory that a client node takes from one compute node before it continues with
        /// the next, for 1e9 keys, scaled to the number of keys; for systems with such chunks.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Option::is_none")]
        table_chunk_at_billion: Option<Bytes> = None,
        /// Bytes of a page, for systems with pages that have as many slots as fit.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Option::is_none")]
        page_bytes: Option<Bytes> = None,
        /// Size of each memory node; computed by default.
        #[arg(long, value_name = "SIZE")]
        memory_bytes: Option<Bytes> = None,
        /// How keys are loaded: bulk (whole leaves) or put.
        #[arg(long, value_name = "WAY", hide_possible_values = true)]
        load_by: LoadBy = LoadBy::default(),
        /// Share of a leaf's slots that a bulk load uses, or random: as after insertions in random
        /// order.
        #[arg(long, value_name = "SHARE|random")]
        fill: FillBy = FillBy::Share(0.7),
        /// Seed of everything drawn.
        #[arg(long)]
        seed: u64 = 42,
        /// Simulated cells at a time, the cores by default; figures do not depend on it.
        #[arg(long, value_name = "N")]
        #[serde(skip)]
        jobs: Option<usize> = None,
        /// How often every cell is measured.
        #[arg(long, value_name = "N")]
        rounds: u32 = 1,
        /// What varies.
        #[arg(skip)]
        sweep: Sweeps = Sweeps::default(),
        /// Vary a setting, over usual values (threads) or given ones (threads=1,8,64); an option of
        /// a system (dmtree.fanout=16,32); or a field of the profile
        /// (profile.responder_ns.read=20,40). If given several times, every combination.
        #[arg(id = "sweep", long = "sweep", value_name = "SETTING[=V,...]")]
        #[serde(skip)]
        given_sweeps: Vec<Sweep> = Vec::new(),
        /// Settings of single cells; where several cover one, the last that gives a setting counts.
        #[arg(skip)]
        #[serde(rename = "where", skip_serializing_if = "Vec::is_empty")]
        cells: Vec<CellSettings> = Vec::new(),
        /// Creation options of systems, by system and field.
        #[arg(skip)]
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        options: BTreeMap<String, serde_json::Map<String, Value>> = BTreeMap::new(),
        /// Set a creation option of a system; may be given several times.
        #[arg(long = "option", value_name = "NAME.FIELD=VALUE")]
        #[serde(skip)]
        given_options: Vec<GivenOption> = Vec::new(),
        /// The published table to compare with.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Option::is_none")]
        published: Option<String> = None,
        /// Rows of the published table by system, for systems that have another name there.
        #[arg(skip)]
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        published_rows: BTreeMap<String, String> = BTreeMap::new(),
        /// The table of reference speedups to compare with.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Option::is_none")]
        published_gains: Option<String> = None,
        /// Bounds of the ratio to the published figures.
        #[arg(skip)]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        bounds: Vec<Bound> = Vec::new(),
        /// An experiment that runs before this one.
        #[arg(skip)]
        #[serde(skip_serializing)]
        led_by: Option<String> = None,
        /// Which cells share a loaded pool.
        #[arg(skip)]
        #[serde(skip_deserializing)]
        reuse: String = String::new(),
        /// How caches are warmed.
        #[arg(skip)]
        #[serde(skip_deserializing)]
        warmup_method: String = String::new(),
        /// The rule for the size of memory nodes without a given size.
        #[arg(skip)]
        #[serde(skip_deserializing)]
        memory_rule: String = String::new(),
    }
}

/// The values with these names; a name that is none shows in the tests.
fn each<T: std::str::FromStr>(names: &[&str]) -> Vec<T> {
    names.iter().filter_map(|n| n.parse().ok()).collect()
}

impl Config {
    /// Whether the fabric is the simulated one.
    pub fn simulated(&self) -> bool {
        self.fabric == SIM
    }

    /// Cells at a time: one where real time counts.
    pub fn jobs_at_a_time(&self) -> usize {
        match self.simulated() && self.budget.is_none() {
            true => self.jobs.unwrap_or(cores() as usize),
            false => 1,
        }
    }

    /// The settings of one cell, with the overrides of its system and workload applied.
    #[must_use]
    pub fn for_cell(&self, system: &str, w: &Workload) -> Self {
        let mut c = self.clone();
        for own in self.cells.iter().filter(|own| own.covers(system, w.name())) {
            own.apply(&mut c);
        }
        if let Some(at_billion) = c.cache_at_billion {
            c.cache_bytes = Bytes(sizing::scaled(at_billion, c.keys, sizing::LEAST_CACHE));
        }
        c
    }

    /// A setting is given from outside of the experiment: what the experiment says of it for single
    /// cells, or in another form, does not count any more.
    pub(crate) fn overrule(&mut self, setting: &str) {
        self.cells.iter_mut().for_each(|own| own.forget(setting));
        self.sweep.forget(setting);
        if setting == "cache-bytes" {
            self.cache_at_billion = None;
        }
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
            slices: if self.affinity.is_any() { 1 } else { self.cns.into() },
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

    /// Reads the settings of a `results.json`, which also has what an experiment cannot say.
    pub(crate) fn echoed<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        fn take<T: DeserializeOwned + Default>(
            map: &mut serde_json::Map<String, serde_json::Value>,
            key: &str,
        ) -> serde_json::Result<T> {
            map.remove(key).map_or_else(|| Ok(T::default()), serde_json::from_value)
        }
        let mut map = serde_json::Map::deserialize(d)?;
        let mut read = || {
            Ok(Self {
                profile: take(&mut map, "profile")?,
                reuse: take(&mut map, "reuse")?,
                warmup_method: take(&mut map, "warmup-method")?,
                memory_rule: take(&mut map, "memory-rule")?,
                ..serde_json::from_value(std::mem::take(&mut map).into())?
            })
        };
        read().map_err(|e: serde_json::Error| D::Error::custom(e))
    }
}
