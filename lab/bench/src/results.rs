//! The form of `results.json`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use dmtree_fabric::SideCounts;
use serde::{Deserialize, Serialize};

use crate::client::Ended;
use crate::config::Config;
use crate::fabrics::{TCP, VERBS};
use crate::failure::{Failure, Result};
use crate::gains::Gains;
use crate::matched::Matched;
use crate::offered::OpenFigures;
use crate::phases::DrainFigures;
use crate::place::{DISTRIBUTION, Place, THETA};
use crate::published::{CellName, Reference};
use crate::series::Series;
use crate::simulated::{CpuSource, SimFigures};
use crate::summary::Summary;

/// The version of the form. Readers refuse others.
pub const SCHEMA_VERSION: u32 = 3;

/// The note in every header and file about numbers of the in-process fabric.
pub const LOCAL_NOTE: &str = "fabric local: in-process memory, no statement about a NIC";

static COMMIT: OnceLock<String> = OnceLock::new();

/// The program says which commit it is built from; results have it from then on. The bench does not
/// know it by itself: every commit would be a build of it. The first call counts, and an empty text
/// says nothing.
pub fn built_from(commit: &str) {
    if !commit.is_empty() {
        let _ = COMMIT.set(commit.to_owned());
    }
}

/// What [`built_from`] has said.
pub(crate) fn commit() -> Option<&'static str> {
    COMMIT.get().map(String::as_str)
}

/// The note in every header and file about the numbers of a fabric.
pub fn note(c: &Config) -> String {
    if let Some(p) = &c.profile {
        let what = "fabric sim: the index code itself in virtual time, hardware simulated";
        return format!("{what}; profile {}", p.title());
    }
    match c.fabric.as_str() {
        TCP => {
            "fabric tcp: nodes apart, a frame per doorbell over sockets; no statement about a NIC"
                .to_owned()
        }
        VERBS => {
            let nic = c.nic_config().describe().map_or(String::new(), |nic| format!(": {nic}"));
            format!(
                "fabric verbs: nodes apart, verbs over the RDMA device of this machine; times are that device's{nic}"
            )
        }
        _ => LOCAL_NOTE.to_owned(),
    }
}

/// The key under which cells of two runs are comparable.
pub fn cell_key(name: CellName<'_>, fabric: &str, variant: Option<&str>) -> String {
    format!("{} {fabric} {}", name.join(" "), variant.unwrap_or("")).trim_end().to_owned()
}

/// The results of a run of an experiment, and all that is needed to repeat it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The experiment's name.
    pub experiment: String,
    /// Its purpose.
    pub description: String,
    /// The kind of memory that was measured.
    pub note: String,
    /// Version of the program.
    pub version: String,
    /// The commit that it was built from, with `+` where its sources differed; none where it was
    /// built without git, or does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Time of the run, seconds since 1970.
    pub created_unix: u64,
    /// The machine.
    pub machine: Machine,
    /// The seed of all random choices.
    pub seed: u64,
    /// The settings in effect.
    #[serde(deserialize_with = "Config::echoed")]
    pub config: Config,
    /// XXH3-64 of the settings, hexadecimal.
    pub config_hash: String,
    /// The published table beside the cells: its name and source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedTable>,
    /// Published speedups beside the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gains: Option<Gains>,
    /// Cores of memory nodes that do what systems do without any, where a sweep varies them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matched: Vec<Matched>,
    /// Whether the user stopped the run before all cells were finished.
    pub interrupted: bool,
    /// Why it ended early, if it did for another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The meaning of `saturated` in an open load.
    pub saturated_means: String,
    /// The measured cells.
    pub cells: Vec<Cell>,
}

/// A published table that cells are compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedTable {
    /// Its name.
    pub table: String,
    /// Its source.
    pub source: String,
    /// Its systems without a counterpart here.
    pub without_counterpart: Vec<String>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system.
    pub os: String,
    /// Architecture.
    pub arch: String,
    /// Processor, as the system names it.
    pub cpu: String,
    /// Cores that the program may use.
    pub cores: usize,
    /// Bytes of memory; 0 when unknown.
    pub memory_bytes: u64,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Self {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            cpu: cpu.unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: meminfo("MemTotal:").unwrap_or(0),
        }
    }
}

/// A line of the system's memory statistics, in bytes.
pub fn meminfo(field: &str) -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, field)
}

/// A line of kibibytes in a statistic of the system, in bytes.
pub(crate) fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Verbs and payload bytes per operation towards one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// READs.
    pub read: f64,
    /// WRITEs.
    pub write: f64,
    /// Compare-and-swaps and fetch-and-adds.
    pub atomic: f64,
    /// Remote calls.
    pub rpc: f64,
    /// Bytes fetched.
    pub bytes_read: f64,
    /// Bytes sent.
    pub bytes_written: f64,
}

/// Whether a count is left out of the file.
fn is_none(n: &u64) -> bool {
    *n == 0
}

/// So many for each operation.
pub(crate) fn per(n: u64, ops: u64) -> f64 {
    if ops == 0 { 0.0 } else { n as f64 / ops as f64 }
}

impl Side {
    /// Counts of `ops` operations, per operation.
    pub fn per(c: &SideCounts, ops: u64) -> Self {
        let per = |n| per(n, ops);
        Self {
            read: per(c.read),
            write: per(c.write),
            atomic: per(c.atomic),
            rpc: per(c.rpc),
            bytes_read: per(c.bytes_read),
            bytes_written: per(c.bytes_written),
        }
    }

    /// One-sided verbs.
    pub fn verbs(&self) -> f64 {
        self.read + self.write + self.atomic
    }

    /// Bytes in both directions.
    pub fn bytes(&self) -> f64 {
        self.bytes_read + self.bytes_written
    }
}

/// The cost per operation of operations with one outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutcomeCost {
    /// Number of operations.
    pub ops: u64,
    /// Dependent round trips up to the acknowledgement.
    pub round_trips: f64,
    /// Their 99th percentile.
    pub round_trips_p99: u64,
    /// Lists that were posted and not awaited.
    pub detached: f64,
    /// Towards memory nodes.
    pub mn: Side,
    /// Towards compute nodes.
    pub cn: Side,
}

/// Percentiles of latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median, ns.
    pub p50_ns: u64,
    /// 90th percentile, ns.
    #[serde(default)]
    pub p90_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
}

/// Latency and number of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindFigures {
    /// Number of operations.
    pub ops: u64,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Percentiles,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeFigures {
    /// Its name: `mn0`, `cn0`.
    pub node: String,
    /// Million operations per second of its own clients; compute nodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mops: Option<f64>,
    /// Its clients; compute nodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Millions of verbs per second that it served.
    pub mverbs: f64,
    /// Verbs that it served, per operation of all clients.
    pub served: Side,
}

/// Leaves that inserts divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitFigures {
    /// How many, for each key that was inserted.
    pub per_insert: f64,
    /// Keys in them by slots, before they were divided; 0 where the index does not tell.
    pub load_factor: f64,
}

/// Memory per key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Keys present at the end.
    pub keys: u64,
    /// Bytes on memory nodes per key: leaves, inner nodes, blocks, and tables if they are there.
    pub mn_bytes_per_key: f64,
    /// Bytes of tables per key, on any nodes.
    pub table_bytes_per_key: f64,
    /// Share of the inner nodes in the cache of the average compute node.
    pub cached_share: f64,
    /// Bytes of cache per key below the cached nodes, on the average compute node with clients.
    pub cn_bytes_per_cached_key: f64,
    /// Cache in use on the average compute node with clients.
    pub cache_used_bytes: u64,
    /// What that is, by name, where an index has several kinds of memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_parts: Vec<(String, u64)>,
    /// Cache budget of one compute node.
    pub cache_budget_bytes: u64,
    /// Share of lookups in the measured phase (the last round) with a cached bottom node.
    pub cache_hit_rate: f64,
    /// Leaves by capacity.
    pub leaves: Vec<(u32, u64)>,
    /// Bytes of the average leaf besides the keys and values of all its slots, where leaves have
    /// those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf_metadata: Option<f64>,
    /// Inner nodes.
    pub inner_nodes: u64,
    /// Inner levels.
    pub levels: u32,
    /// All bytes of the index: structure, blocks, tables, and the caches of all compute nodes.
    #[serde(default)]
    pub held_bytes: u64,
    /// Most bytes that were resident in this process since it began to load the keys, if the nodes
    /// are in it and the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

impl MemoryFigures {
    /// The peak in MiB, and its ratio to the bytes of the index.
    pub fn peak(&self) -> Option<(f64, f64)> {
        let peak = self.peak_bytes? as f64;
        Some((peak / f64::from(1 << 20), peak / self.held_bytes.max(1) as f64))
    }
}

/// One round of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Million operations per second.
    pub mops: f64,
    /// Operations acknowledged.
    pub ops: u64,
    /// Length of the measured phase, s.
    pub seconds: f64,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// Round trips per operation.
    pub round_trips: f64,
    /// Why it ended.
    pub ended: Ended,
}

/// One cell: a system under a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The system.
    pub system: String,
    /// Its family.
    pub family: String,
    /// Whether it is "as published": layouts, verbs and unsoundness included.
    pub published: bool,
    /// The workload.
    pub workload: String,
    /// The workload's name in the published tables.
    pub csv_name: String,
    /// The distribution that was asked for.
    pub distribution: String,
    /// The law in effect: the workload's own, if it has one.
    pub law: String,
    /// The fabric.
    pub fabric: String,
    /// The point of a sweep, if this is one: `cache-bytes=1MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Its place in the charts of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Keys loaded before it.
    pub loaded_keys: u64,
    /// Clients of all compute nodes.
    pub clients: u32,
    /// The published figure for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_figure: Option<Reference>,
    /// The result of an open load, in the last round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenFigures>,
    /// Figures of a simulated cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sim: Option<SimFigures>,
    /// What was due when the clock of a phase stopped, in the last round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainFigures>,
    /// Time of an average operation by kind and step, ns, if steps are timed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps_ns: BTreeMap<String, BTreeMap<String, f64>>,
    /// Millions of acknowledged operations per second, including combined ones; the average over
    /// rounds.
    pub mops: f64,
    /// The same over rounds.
    pub mops_summary: Summary,
    /// Operations acknowledged in the measured phases.
    pub ops: u64,
    /// Number of these that another client's verb served.
    pub combined: u64,
    /// Wrong results and failed operations.
    pub errors: u64,
    /// The first few of them, as text.
    pub error_samples: Vec<String>,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// The distribution of latencies: a latency, ns, and the share of the operations that took no
    /// longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdf: Vec<(u64, f64)>,
    /// Round trips up to the acknowledgement, per operation.
    pub round_trips: f64,
    /// 99th percentile of the same (64 stands for more).
    pub round_trips_p99: u64,
    /// Lists that were posted and not awaited, per operation. They are not in the round trips;
    /// their verbs are in `mn` and `cn`.
    pub detached: f64,
    /// Doorbells per operation.
    pub doorbells: f64,
    /// Towards memory nodes, per operation.
    pub mn: Side,
    /// Towards compute nodes, per operation.
    pub cn: Side,
    /// Verbs of maintenance and of no operation, per operation; they are not in `mn` and `cn`.
    pub background: Side,
    /// Costs of background work by kind and outcome: of a training that was published (`train
    /// other`) and of one that another client has done (`train shared`), of maintenance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_background: BTreeMap<String, OutcomeCost>,
    /// The cell over time, of the last round, where the experiment asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// Costs by outcome.
    pub by_outcome: BTreeMap<String, OutcomeCost>,
    /// Divisions of leaves, if keys were inserted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits: Option<SplitFigures>,
    /// Latency by kind of operation.
    pub by_kind: BTreeMap<String, KindFigures>,
    /// Pairs returned per scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries_per_scan: Option<f64>,
    /// How scans were checked: `complete`, or `order and values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_check: Option<String>,
    /// Every node.
    pub nodes: Vec<NodeFigures>,
    /// Memory, after the structure was walked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFigures>,
    /// Keys that warmed the average cache before the measured phase.
    pub warmup_reads_per_node: f64,
    /// Keys of inserts that the index was told of before it was loaded, and listened to.
    #[serde(default, skip_serializing_if = "is_none")]
    pub foretold_keys: u64,
    /// Where the CPU time of the index has come from, in a simulated cell.
    #[serde(default, skip_serializing_if = "CpuSource::is_charged")]
    pub cpu: CpuSource,
    /// Every round.
    pub rounds: Vec<Round>,
}

impl Cell {
    /// The key under which cells of two runs are comparable.
    pub fn key(&self) -> String {
        let name: CellName<'_> = [&self.system, &self.workload, &self.distribution];
        cell_key(name, &self.fabric, self.variant.as_deref())
    }

    /// The name for rows and legends: the system, whether it is as published, whether it knew the
    /// keys of its inserts, whether its CPU was not charged, and the point of the sweep.
    pub fn label(&self) -> String {
        let marks = [
            self.published.then_some("as published"),
            (self.foretold_keys > 0).then_some("keys foretold"),
            self.cpu.mark(),
        ];
        let marks: Vec<&str> = marks.into_iter().flatten().collect();
        let mark =
            if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(", ")) };
        match &self.variant {
            Some(v) => format!("{}{mark} [{v}]", self.system),
            None => format!("{}{mark}", self.system),
        }
    }

    /// The table that it stands in: its distribution, unless a sweep varies that.
    pub fn group(&self) -> &str {
        match &self.place {
            Some(place) if [DISTRIBUTION, THETA].contains(&place.setting.as_str()) => DISTRIBUTION,
            _ => &self.distribution,
        }
    }

    /// Whether the system did not keep up with an open load; percentiles then have no meaning.
    pub fn saturated(&self) -> bool {
        self.open.is_some_and(|o| o.saturated)
    }
}

impl Results {
    /// Parses the form; `from` names the text in messages.
    ///
    /// # Errors
    /// Text of another form or version.
    pub fn parse(from: &str, text: &str) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|e| Failure::input(format!("{from} is not JSON: {e}")))?;
        match value.get("schema_version").and_then(serde_json::Value::as_u64) {
            Some(v) if v == u64::from(SCHEMA_VERSION) => {}
            Some(v) => {
                return Err(Failure::input(format!(
                    "{from} is of another version: it has schema_version {v}, this program reads {SCHEMA_VERSION}; run the experiment again, or use the release that wrote it"
                )));
            }
            None => {
                return Err(Failure::input(format!(
                    "{from} has no schema_version: it is not a results.json of dmtree"
                )));
            }
        }
        serde_json::from_value(value)
            .map_err(|e| Failure::input(format!("{from} is not a results.json of dmtree: {e}")))
    }

    /// As pretty JSON with a newline.
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Cells with a ratio to the published figure outside of the experiment's bounds.
    pub fn outside(&self) -> Vec<&Cell> {
        let out = |c: &&Cell| c.published_figure.as_ref().is_some_and(|r| r.outside);
        self.cells.iter().filter(out).collect()
    }

    /// Wrong results and failed operations of all cells.
    pub fn errors(&self) -> u64 {
        self.cells.iter().map(|c| c.errors).sum()
    }

    /// The tables that cells stand in, in the order of their first cells.
    pub fn groups(&self) -> Vec<&str> {
        distinct(self.cells.iter().map(Cell::group))
    }
}

/// Each of these once, in their order.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    all.for_each(|one| {
        if !out.contains(&one) {
            out.push(one);
        }
    });
    out
}

/// The name of a table in file names: that of a distribution is `uniform`, `zipfian`, or its name
/// with plain characters only. `all` are the tables of the same results, so that two zipf laws do
/// not share a name.
pub fn file_stem(distribution: &str, all: &[&str]) -> String {
    let zipfs = all.iter().filter(|d| d.starts_with("zipfian")).count();
    if distribution.starts_with("zipfian") && zipfs <= 1 {
        return "zipfian".to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    distribution.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}
