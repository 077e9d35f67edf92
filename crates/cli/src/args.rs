//! The command line.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dmtree_bench::bytes::Bytes;
use dmtree_bench::config::{FillBy, Layer, LoadBy};
use dmtree_bench::offered::LoadShape;
use dmtree_bench::sweep::Sweep;
use dmtree_workload::{Distribution, KeyForm, ScanLength, ValueSize, Workload};

use crate::args_nodes::{AccessArgs, ConformArgs, MemnodeArgs, ToolArgs};

/// An ordered key-value index in disaggregated memory, and a bench for such indexes.
#[derive(Debug, Parser)]
#[command(name = "dmtree", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:
  dmtree demo                                  a short tour
  dmtree bench quick                           the main table, about 100 seconds
  dmtree bench quick --budget 10 --out results
  dmtree shell                                 put, get, scan by hand

Exit status: 0 done; 1 a mismatch or violation; 2 bad input; 130 interrupted.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

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
    /// What this machine has of what a fabric needs, and how to get the rest. Status 1 when something needed is missing.
    Doctor(DoctorArgs),
    /// Settings.
    Config(ConfigArgs),
    /// Make a key for a pool, on standard output: `(umask 077; dmtree key > pool.key)`.
    Key,
    /// Be a memory node: serve a region to compute nodes, over TCP or RDMA.
    Memnode(MemnodeArgs),
    /// The conformance suite of systems on a memory node process and two compute processes.
    Conform(ConformArgs),
    /// A short tour of the index, in this process or on a running pool.
    Demo(ToolArgs),
    /// The operations by hand.
    Shell(ToolArgs),
    /// Work for a test of several processes.
    #[command(hide = true)]
    Drive(crate::drive::DriveArgs),
    /// Write generated keys, or what a trace leaves behind, as a dump.
    Dump(DumpArgs),
    /// Load a dump into a fresh embedded pool, and verify it by scanning back.
    Load(LoadArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Parses with `FromStr`.
pub(crate) fn parsed<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: Display,
{
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn swept(text: &str) -> Result<Sweep, String> {
    Sweep::parse(text).map_err(|e| e.to_string())
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
    /// Settings.
    #[command(flatten)]
    pub settings: Settings,
    /// Where to go.
    #[command(flatten)]
    pub output: Output,
}

/// What `bench` can do besides running experiments.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// List experiments, systems, workloads, distributions and fabrics.
    List,
    /// Replay traces of the YCSB client's basic binding, and verify every read.
    Trace(TraceArgs),
    /// Compare two results cell by cell.
    Compare(CompareArgs),
    /// Render table, CSV and the page again from a results.json.
    Report(ReportArgs),
    /// A compute node of a simulated cluster dies under load: what the others notice.
    Crash(Box<crate::crash::CrashArgs>),
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
    /// Exit with 1 when a cell's ratio to the published figure lies outside of the experiment's bounds.
    #[arg(long)]
    pub check_bounds: bool,
    /// Take over the finished cells of the results.json in this directory, run the others, and write there.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// Run the experiment, reduced, in two processes, and in one that ran another seed first: do the simulations agree?
    #[arg(long, conflicts_with_all = ["out", "resume", "check_bounds"])]
    pub verify_determinism: bool,
    /// Run this seed before, and forget it.
    #[arg(long, hide = true)]
    pub first_seed: Option<u64>,
}

/// Settings of an experiment; each replaces what the experiment says.
#[derive(Debug, Args)]
pub struct Settings {
    /// Systems: names, `families` (one per family), or `all`.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    systems: Option<Vec<String>>,
    /// Workloads: search, insert, update, scan, ycsb-a, ...
    #[arg(long, value_delimiter = ',', value_parser = parsed::<Workload>, value_name = "NAME,...")]
    workloads: Option<Vec<Workload>>,
    /// Distributions: uniform, zipfian, zipfian-exact(0.99), zipfian-ycsb(0.99), latest.
    #[arg(long, value_delimiter = ',', value_parser = parsed::<Distribution>, value_name = "NAME,...")]
    distributions: Option<Vec<Distribution>>,
    /// The fabric: local (memory of this process), sim (simulated hardware, virtual time), tcp (nodes apart, over sockets), or
    /// verbs (nodes apart, over RDMA).
    #[arg(long)]
    fabric: Option<String>,
    /// On fabrics tcp and verbs: where the first memory node of a running pool listens (`dmtree memnode`); without it, memory nodes
    /// are started in this process.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Cluster")]
    nodes: Option<String>,
    /// The key of that pool.
    #[command(flatten)]
    pub access: AccessArgs,
    /// On fabric verbs: the RDMA device; the first with an active port by default.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    device: Option<String>,
    /// On fabric verbs: index into the table of addresses of its port; chosen by kind by default.
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    gid_index: Option<u8>,
    /// Profile of the simulated fabric (see `fabric list`), or a file that ends with .toml.
    #[arg(long, value_name = "NAME|FILE.toml")]
    profile: Option<String>,
    /// Set a field of the profile otherwise; may be given several times.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    profile_set: Vec<String>,
    /// Keys loaded before a cell.
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Operations of a cell.
    #[arg(long, value_name = "N")]
    ops: Option<u64>,
    /// Measure the time of operations step by step, too.
    #[arg(long)]
    steps: bool,
    /// How operations are offered: closed (the next when the last has ended), or open:RATE in operations per second of all
    /// clients (open:1.5M), with latency counted from the time an operation falls due.
    #[arg(long, value_parser = parsed::<LoadShape>, value_name = "SHAPE")]
    load: Option<LoadShape>,
    /// Length of the measured phase of a cell; virtual seconds on fabric sim.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Longest warm-up of a cell.
    #[arg(long, value_name = "SECONDS")]
    warmup: Option<f64>,
    /// Time for all cells together, loading included; 10000 operations each at least.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Threads in all, the cores by default; on fabric sim those of each compute node, 72 by default.
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Clients per thread; by default enough that every compute node has one.
    #[arg(long, value_name = "N")]
    coroutines: Option<u32>,
    /// Compute nodes; clients are spread over them in turn.
    #[arg(long, value_name = "N")]
    cns: Option<u16>,
    /// Memory nodes.
    #[arg(long, value_name = "N")]
    mns: Option<u16>,
    /// How keys are made: hashed24, u64, sequential, random(MIN..=MAX), file(PATH).
    #[arg(long, value_parser = parsed::<KeyForm>, value_name = "FORM")]
    key_form: Option<KeyForm>,
    /// Bytes of values: 8, or 16..=1024.
    #[arg(long, value_parser = parsed::<ValueSize>, value_name = "BYTES")]
    value_size: Option<ValueSize>,
    /// Pairs that a scan asks for: 10, uniform(1..=100), zipfian(1..=100, 0.99).
    #[arg(long, value_parser = parsed::<ScanLength>, value_name = "LENGTH")]
    scan_length: Option<ScanLength>,
    /// The key count that zipf laws are taken over; the keys by default.
    #[arg(long, value_name = "N")]
    nominal: Option<u64>,
    /// Cache budget of a compute node, such as 8MiB.
    #[arg(long, value_parser = parsed::<Bytes>, value_name = "SIZE")]
    cache_bytes: Option<Bytes>,
    /// Size of each memory node; computed by default.
    #[arg(long, value_parser = parsed::<Bytes>, value_name = "SIZE")]
    memory_bytes: Option<Bytes>,
    /// How keys are loaded: bulk (whole leaves) or put.
    #[arg(long, value_parser = parsed::<LoadBy>, value_name = "WAY")]
    load_by: Option<LoadBy>,
    /// Share of a leaf's slots that a bulk load uses, or random: as after insertions in random order.
    #[arg(long, value_parser = parsed::<FillBy>, value_name = "SHARE|random")]
    fill: Option<FillBy>,
    /// Seed of everything drawn.
    #[arg(long)]
    seed: Option<u64>,
    /// How often every cell is measured.
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Vary a setting, over usual values (threads) or given ones (threads=1,8,64).
    #[arg(long, value_name = "SETTING[=V,...]", value_parser = swept)]
    sweep: Option<Sweep>,
}

impl Settings {
    /// As a layer over the experiment's.
    pub fn layer(self) -> Layer {
        Layer {
            systems: self.systems,
            workloads: self.workloads,
            distributions: self.distributions,
            fabric: self.fabric,
            keys: self.keys,
            ops: self.ops,
            duration: self.duration,
            warmup: self.warmup,
            budget: self.budget,
            threads: self.threads,
            coroutines: self.coroutines,
            cns: self.cns,
            mns: self.mns,
            key_form: self.key_form,
            value_size: self.value_size,
            scan_length: self.scan_length,
            nominal: self.nominal,
            cache_bytes: self.cache_bytes,
            memory_bytes: self.memory_bytes,
            load_by: self.load_by,
            fill: self.fill,
            seed: self.seed,
            rounds: self.rounds,
            sweep: self.sweep,
            nodes: self.nodes,
            key_file: self.access.key_file,
            insecure: self.access.insecure.then_some(true),
            device: self.device,
            gid_index: self.gid_index,
            profile: self.profile,
            profile_set: (!self.profile_set.is_empty()).then_some(self.profile_set),
            load: self.load,
            steps: self.steps.then_some(true),
            ..Layer::default()
        }
    }
}

/// `bench trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Trace files, plain or gzipped, replayed in this order as one.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
    /// Threads; the cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Compute nodes.
    #[arg(long, default_value_t = 6, value_name = "N")]
    pub cns: u16,
    /// Memory nodes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub mns: u16,
    /// Size of each memory node; computed from the trace by default.
    #[arg(long, value_parser = parsed::<Bytes>, value_name = "SIZE")]
    pub memory_bytes: Option<Bytes>,
    /// Cache budget of a compute node.
    #[arg(long, value_parser = parsed::<Bytes>, default_value = "64MiB", value_name = "SIZE")]
    pub cache_bytes: Bytes,
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

/// What happens to nodes in a checked run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Faults {
    /// Nothing.
    None,
    /// Compute nodes crash, and some come back.
    Crash,
    /// Crashes, hung and frozen nodes, dropped operations, cut links, lost memory nodes.
    All,
    /// Many lives: nodes end and come back, also all at once; standstills, lost memory nodes, clock jumps.
    Restarts,
}

/// Seeds from the first to before the second.
fn seed_range(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parsed {
        Some((a, b)) if a < b => Ok((a, b)),
        _ => Err("give a range such as 0..200, the end not included".to_owned()),
    }
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
    #[arg(long, value_enum, default_value = "none")]
    pub node_faults: Faults,
    /// What the fabric promises beyond its contract: line_atomic, write_ascending, cas_fail_is_readonly,
    /// whole_write.
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
    /// Measure round trips, rates and bandwidth by verb and size, atomics on one word, and what doorbells cost.
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
    /// Write a profile for the simulated fabric: what was measured, and the rest from the profile --base.
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

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The fabric that shall work: local, sim, tcp or verbs.
    #[arg(long, default_value = "local")]
    pub fabric: String,
    /// Bytes of the largest region that a node here shall have.
    #[arg(long, value_parser = parsed::<Bytes>, default_value = "1GiB", value_name = "SIZE")]
    pub region: Bytes,
    /// The key of the pool that nodes here shall belong to.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Look for /proc, /sys, /dev and /usr below this directory.
    #[arg(long, default_value = "/", hide = true)]
    pub root: PathBuf,
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
        settings: Box<Settings>,
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
        required_unless_present = "from_trace",
        conflicts_with = "from_trace"
    )]
    pub keys: Option<u64>,
    /// What the operations of this trace leave behind; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub from_trace: Vec<PathBuf>,
    /// How generated keys are made.
    #[arg(long, value_parser = parsed::<KeyForm>, default_value = "hashed24", value_name = "FORM")]
    pub key_form: KeyForm,
    /// Bytes of generated values.
    #[arg(long, value_parser = parsed::<ValueSize>, default_value = "8", value_name = "BYTES")]
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
    #[arg(long, value_parser = parsed::<LoadBy>, default_value = "bulk", value_name = "WAY")]
    pub load_by: LoadBy,
}
