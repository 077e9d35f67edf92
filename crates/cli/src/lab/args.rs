//! The command line of what measures, checks and compares.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use dmtree_bench::clock;
use dmtree_bench::config::{Flags, LoadBy, cores};
use dmtree_bench::replay::ReplayOptions;
use dmtree_check::NodeFaultSet;
use dmtree_command::{Failure, Result};
use dmtree_pool::parse_count;
use dmtree_workload::{KeyForm, ValueSize};

use crate::args::{AccessArgs, NicArgs, ToolArgs};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure systems under workloads, with every result checked.
    Bench(Box<BenchArgs>),
    /// Compare two results cell by cell: ratios, and whether the counters agree.
    Compare(CompareArgs),
    /// Render table, CSV and the page again from a results.json.
    Report(ReportArgs),
    /// Check systems on a simulated fabric that does everything it may, seed by seed.
    Check(Box<CheckArgs>),
    /// Hardware that the simulated fabric knows, and measuring real hardware.
    Fabric(FabricArgs),
    /// Settings.
    Config(ConfigArgs),
    /// The conformance suite of systems on a memory node process and two compute processes.
    Conform(ConformArgs),
    /// A short tour of the index, in this process or on a running pool.
    Demo(ToolArgs),
    /// Work for a test of several processes.
    #[command(hide = true)]
    Drive(super::drive::DriveArgs),
    /// Write generated keys, or what a trace leaves behind, as a dump.
    Dump(DumpArgs),
    /// Load a dump into a fresh embedded pool, and verify it by scanning back.
    Load(LoadArgs),
}

/// `bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  dmtree bench quick --systems all --budget 300
  dmtree bench ycsb --workloads ycsb-a,ycsb-e --keys 200000 --duration 3
  dmtree bench mine.toml --out results --rounds 5
  dmtree bench list
  dmtree bench trace load.txt.gz run.txt

Fabric local is memory of this process: counts of verbs, bytes and round trips hold anywhere, times say nothing about a NIC.")]
pub struct BenchArgs {
    /// Other things than running an experiment.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// A built-in experiment (see `bench list`) or a file that ends with .toml.
    #[arg(required = true, value_name = "NAME|FILE.toml")]
    pub experiment: Option<String>,
    /// Settings of the experiment; each replaces what the experiment says.
    #[command(flatten)]
    pub settings: Flags,
    /// Where to go.
    #[command(flatten)]
    pub output: Output,
}

/// What `bench` can do besides running experiments.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// List experiments, systems, workloads, distributions and fabrics.
    List {
        /// Print one JSON document instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Replay traces of the YCSB client's basic binding, and verify every read.
    Trace(Box<TraceArgs>),
    /// Compare two results cell by cell.
    Compare(CompareArgs),
    /// Render table, CSV and the page again from a results.json.
    Report(ReportArgs),
    /// A compute node of a simulated cluster dies under load: what the others notice.
    Crash(Box<super::crash::CrashArgs>),
}

/// Where output goes.
#[derive(Debug, Args)]
pub struct Output {
    /// Write results.json, CSV tables and report.html, a page with the charts, here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print results as JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Exit with 1 when a cell's ratio to the published figure lies outside of the experiment's
    /// bounds.
    #[arg(long)]
    pub check_bounds: bool,
    /// Take over the finished cells of the results.json in this directory, run the others, and
    /// write there.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// Run the experiment, reduced, in two processes, and in one that ran another seed first: do
    /// the simulations agree?
    #[arg(long, conflicts_with_all = ["out", "resume", "check_bounds"])]
    pub verify_determinism: bool,
    /// Run this seed before, and forget it.
    #[arg(long, hide = true)]
    pub first_seed: Option<u64>,
}

/// `bench trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The replay.
    #[command(flatten)]
    pub replay: ReplayOptions,
    /// Write trace.json here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `compare`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when round trips, verbs and bytes of all common cells agree within the tolerance, 1 when not, 2 when the files cannot be compared. Times are shown and never judged."
)]
pub struct CompareArgs {
    /// A results.json, or the directory of one.
    pub a: PathBuf,
    /// Another.
    pub b: PathBuf,
    /// Tolerated difference of counters, percent.
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    pub tolerance: f64,
}

/// `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The directory of a results.json.
    pub dir: PathBuf,
    /// No text, only files.
    #[arg(long, short)]
    pub quiet: bool,
}

/// What happens to nodes in a checked run, by its name.
fn node_faults() -> impl TypedValueParser<Value = NodeFaultSet> {
    use NodeFaultSet::{All, Crash, None, Restarts};
    let what = |set| match set {
        None => "Nothing",
        Crash => "Compute nodes crash, and some come back",
        All => "Crashes, hung and frozen nodes, dropped operations, cut links, lost memory nodes",
        Restarts => {
            "Restarts: nodes end and come back, also all at once; standstills, lost memory nodes, clock jumps"
        }
    };
    let all = [None, Crash, All, Restarts];
    let named = PossibleValuesParser::new(all.map(|s| PossibleValue::new(s.name()).help(what(s))));
    named.map(move |name| all.into_iter().find(|s| s.name() == name).unwrap_or_default())
}

/// Seeds from the first to before the second.
fn seed_range(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..");
    let parsed = ends.and_then(|(a, b)| Some((parse_count(a).ok()?, parse_count(b).ok()?)));
    match parsed {
        Some((a, b)) if a < b => Ok((a, b)),
        _ => Err("give a range such as 0..200, the end not included".to_owned()),
    }
}

/// Refuses a former name with the present one.
fn former_faults(_: &str) -> Result<String, String> {
    Err("this flag is --node-faults now, and its value lives is restarts".to_owned())
}

/// `check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree check                                         200 seeds of dmtree
  dmtree check --system all --minutes 5
  dmtree check --system dmtree-published --seeds 0..200 --grant line_atomic,write_ascending
  dmtree check --system dmtree --replay 17             one seed
  dmtree check --replay 17 --history run.jsonl         and what its clients saw
  dmtree check --check-history run.jsonl
  dmtree check --replay case.json                      a case that --save wrote

Ends in one line: seeds N operations M violations V. Exit status: 0 no violation; 1 violations; 2 bad input.")]
pub struct CheckArgs {
    /// Systems: names, `families` (one per family), or `all`; dmtree by default.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub system: Option<Vec<String>>,
    /// Seeds, the end not included; 0..200 by default, or as many as --minutes allows.
    #[arg(long, value_parser = seed_range, value_name = "A..B")]
    pub seeds: Option<(u64, u64)>,
    /// Begin no seed after this time.
    #[arg(long, value_name = "M")]
    pub minutes: Option<f64>,
    /// What happens to nodes.
    #[arg(long, value_parser = node_faults(), default_value = "none")]
    pub node_faults: NodeFaultSet,
    /// The former name of --node-faults.
    #[arg(long = "faults", hide = true, value_parser = former_faults)]
    pub former_faults: Option<String>,
    /// What the fabric promises beyond its contract: line_atomic, write_ascending,
    /// cas_fail_is_readonly, whole_write.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub grant: Vec<String>,
    /// Run one seed (SEED, or SEED:CASE as printed with a violation), or the case in a file.
    #[arg(long, value_name = "SEED|FILE", conflicts_with_all = ["seeds", "minutes"])]
    pub replay: Option<String>,
    /// Try every order of the verbs of small cases, one case per seed.
    #[arg(long, conflicts_with_all = ["replay", "check_history"])]
    pub exhaustive: bool,
    /// With --exhaustive: choices other than to go on with the same client, at most, per order.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "exhaustive")]
    pub switches: u32,
    /// With --exhaustive: orders per case, at most.
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "exhaustive")]
    pub orders: u64,
    /// Run the network code of every process on a simulated network.
    #[arg(long, conflicts_with_all = ["system", "node_faults", "grant", "replay", "exhaustive", "check_history"])]
    pub network: bool,
    /// Run each seed twice, and report a difference between the two runs as a violation.
    #[arg(long, conflicts_with_all = ["replay", "exhaustive", "network", "check_history"])]
    pub verify_determinism: bool,
    /// Threads, each with a seed of its own; the cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Time to make the first violation small; 30 by default, and 0 for a file.
    #[arg(long, value_name = "SECONDS")]
    pub shrink_seconds: Option<f64>,
    /// Write the smallest case of the first violation here, for --replay.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write the history of the replayed run here: JSON, a line per call and return.
    #[arg(long, value_name = "FILE", requires = "replay")]
    pub history: Option<PathBuf>,
    /// Run nothing; check the history in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "seeds", "minutes", "system"])]
    pub check_history: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

impl CheckArgs {
    /// The systems given, or the usual one.
    pub fn systems(&self) -> Vec<String> {
        self.system.clone().unwrap_or_else(|| vec!["dmtree".to_owned()])
    }

    /// The seeds given, or all that there is time for, or so many.
    pub fn seeds(&self, usual: u64) -> Range<u64> {
        match (self.seeds, self.minutes) {
            (Some((from, to)), _) => from..to,
            (None, Some(_)) => 0..u64::MAX,
            (None, None) => 0..usual,
        }
    }

    /// The time after which no seed begins.
    pub fn until(&self) -> Result<Option<Instant>> {
        let end = |m: f64| {
            if m.is_finite() && m > 0.0 {
                return Ok(clock::now() + Duration::from_secs_f64(m * 60.0));
            }
            Err(Failure::input(format!("--minutes {m}: give a time above 0")))
        };
        self.minutes.map(end).transpose()
    }

    /// The threads given, or as many as there are cores.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or(cores() as usize)
    }
}

/// `fabric`.
#[derive(Debug, Args)]
pub struct FabricArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// What `fabric` can do.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// List the profiles.
    List,
    /// Show every field of a profile: value, unit, meaning, source, confidence.
    Show {
        /// A profile (see `fabric list`), or a file that ends with .toml.
        #[arg(value_name = "NAME|FILE.toml")]
        name: String,
        /// Print the file to start an own profile from.
        #[arg(long)]
        toml: bool,
    },
    /// Measure round trips, rates and bandwidth by verb and size, atomics on one word, what
    /// doorbells cost, and what the steps of data services take this machine's cores.
    Probe(ProbeArgs),
}

/// `fabric probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree fabric probe                          memory of this process
  dmtree fabric probe --fabric verbs --out my-nic.toml
  dmtree bench quick-sim --profile my-nic.toml
  dmtree fabric probe --fabric verbs --verb read --bytes 64 --clients 8

Between two nodes of this process; on fabric verbs the NIC carries every byte.")]
pub struct ProbeArgs {
    /// The fabric: local or verbs.
    #[arg(long, default_value = "local")]
    pub fabric: String,
    /// The RDMA device; the first with an active port by default.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Length of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    pub seconds: f64,
    /// Write a profile for the simulated fabric: what was measured, and the rest from the profile
    /// --base.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// The profile that the rest is taken from.
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "cx6-100g")]
    pub base: String,
    /// One measurement only: read, write, cas or same-word.
    #[arg(long, value_name = "VERB", conflicts_with = "out")]
    pub verb: Option<String>,
    /// Payload of its verbs, 1 byte to 64 KiB.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "verb", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub bytes: u32,
    /// Its clients: lists on their way.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "verb", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Verbs of a list: one doorbell.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "verb", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub list: u32,
}

/// `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What `config` can do.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting in effect, with where it comes from.
    Show {
        /// The experiment.
        #[arg(long, default_value = "quick", value_name = "NAME|FILE.toml")]
        experiment: String,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
        /// Settings.
        #[command(flatten)]
        settings: Box<Flags>,
    },
}

/// `dump`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree dump --keys 1000 keys.dump
  dmtree dump --from-trace load.txt.gz --from-trace run.txt - | head

An embedded pool lives in the memory of one process, so there is none to dump from outside: this fills one first. In the shell, `dump FILE` writes what you have put.")]
pub struct DumpArgs {
    /// The file; - for standard output.
    pub to: PathBuf,
    /// Generate this many keys.
    #[arg(
        long,
        value_name = "N",
        value_parser = parse_count,
        required_unless_present = "from_trace",
        conflicts_with = "from_trace"
    )]
    pub keys: Option<u64>,
    /// What the operations of this trace leave behind; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub from_trace: Vec<PathBuf>,
    /// How generated keys are made.
    #[arg(long, default_value = "hashed24", value_name = "FORM")]
    pub key_form: KeyForm,
    /// Bytes of generated values, 0 to 1MiB: a number, or a range such as 16..=1024.
    #[arg(long, default_value = "8", value_name = "BYTES")]
    pub value_size: ValueSize,
    /// Seed of generated keys and values.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
}

/// `load`.
#[derive(Debug, Args)]
#[command(
    after_help = "An embedded pool lives in the memory of this process and ends with it: use --then-dump, or `load` in the shell."
)]
pub struct LoadArgs {
    /// The dump.
    pub file: PathBuf,
    /// Write the loaded index as a dump again; - for standard output.
    #[arg(long, value_name = "OUT")]
    pub then_dump: Option<PathBuf>,
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
    /// How pairs are loaded: bulk (whole leaves) or put.
    #[arg(long, default_value = "bulk", value_name = "WAY", hide_possible_values = true)]
    pub load_by: LoadBy,
}

/// `conform`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree conform                                          every system, over TCP
  dmtree conform --fabric verbs --system dmtree,fptree
  dmtree conform --nodes 10.0.0.1:7000                    on a running pool

Starts a memory node and a second compute node as processes of their own, unless --nodes names a pool, and gives operations to
both compute nodes in turn, against a model. Exit status: 0 all conform; 1 not; 2 bad input.")]
pub struct ConformArgs {
    /// Systems: names, `families` (one per family), or `all`.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "all")]
    pub system: Vec<String>,
    /// What carries verbs: tcp or verbs; with --nodes what the pool says by default.
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Where the first memory node of a running pool listens.
    #[arg(long, value_name = "HOST:PORT")]
    pub nodes: Option<String>,
    /// Operations of the model run of each system.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub steps: u64,
    /// Seed of everything drawn.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Be the second compute node: requests come on standard input.
    #[arg(long, hide = true, requires = "nodes")]
    pub second: bool,
}
