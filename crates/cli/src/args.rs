//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use dmtree_command::access::access;
use dmtree_command::bytes::Bytes;
use dmtree_command::fabrics::{TCP, VERBS, data_path};
use dmtree_command::{Failure, Result};
use dmtree_fabric::net::{Access, DataPath, NicConfig};

use crate::{lab, output};

/// The binary.
#[derive(Debug, Parser)]
#[command(name = "dmtree", version, max_term_width = 100, arg_required_else_help = true)]
#[command(about = lab::ABOUT, after_help = lab::EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measuring, checking and comparing.
    #[command(flatten)]
    Lab(lab::Command),
    /// What this machine has of what a fabric needs, and how to get the rest. Status 1 when
    /// something needed is missing.
    Doctor(DoctorArgs),
    /// Make the keys of a pool: certificates for TLS between its processes.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Be a memory node: serve a region to compute nodes, over TCP or RDMA.
    Memnode(MemnodeArgs),
    /// Be a journal node: keep a part of what a pool has on a device.
    Journalnode(JournalnodeArgs),
    /// Repair the journal of a running pool.
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Be a compute node without a program: keep a share of the tables and locks.
    Node(NodeArgs),
    /// The nodes of a running pool, and what they do.
    Status(StatusArgs),
    /// The same, again and again, with rates.
    Top(TopArgs),
    /// Ask a compute node of a running pool to hand its tables over and to end.
    Drain(DrainArgs),
    /// The operations by hand.
    Shell(ShellArgs),
    /// Write an index of a running pool to a file, for other programs or for `import`.
    Export(ExportArgs),
    /// Store the pairs of files in an index of a running pool.
    Import(ImportArgs),
    /// Write everything that a durable pool has at one instant, as files.
    Checkpoint(CheckpointArgs),
    /// Load a checkpoint into an empty pool.
    Restore(RestoreArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory.
    #[cfg(feature = "man")]
    ManPages {
        /// The directory.
        directory: PathBuf,
    },
}

/// How a process shows that it belongs to a pool.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArgs {
    /// The file with the keys of this process, which its owner alone may read (`dmtree keys` makes
    /// one); or else the file that the environment variable DMTREE_KEY_FILE names. Without keys
    /// nodes listen on the loopback only.
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub key_file: Option<PathBuf>,
    /// Without keys: listen on other addresses than the loopback nevertheless. Every process that
    /// can connect reads and changes all.
    #[arg(long, help_heading = "Access")]
    pub insecure: bool,
}

impl AccessArgs {
    /// The keys, and a warning where there are none and the user has insisted.
    pub fn access(&self) -> Result<Access> {
        let access = access(self.key_file.as_deref(), self.insecure)?;
        if access.insecure {
            output::note(INSECURE);
        }
        Ok(access)
    }
}

/// What every start without keys says that may be reached by strangers.
pub const INSECURE: &str = "INSECURE: this pool has no keys; whatever can connect to its nodes reads and changes all of it (`dmtree keys new pool.keys` makes keys for --key-file)";

/// Keys of a pool.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// The keys of a new pool, in a file that its owner alone may read: its authority, and a
    /// certificate with every role. Whatever has the file can be any process of the pool, and issue
    /// others.
    New(KeysNewArgs),
    /// A certificate of the pool with one role, in a file without the authority's private key.
    Issue(KeysIssueArgs),
}

/// What new keys are.
#[derive(Debug, Args)]
pub struct KeysNewArgs {
    /// The file, which is not there yet.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How long the certificate is valid.
    #[arg(long, value_name = "N", default_value_t = 3650)]
    pub days: u32,
}

/// What is issued.
#[derive(Debug, Args)]
#[command(after_help = "\
compute: to be a compute node, in `dmtree node`, the shell and programs. memory: to be a memory node or a journal node. reader: to read memory. admin: to ask compute nodes to leave (`dmtree drain`). Every role may ask for the status.

Examples:
  dmtree keys new pool.keys                                                     # once; stays with the operator
  dmtree keys issue --keys pool.keys --role memory --out memory.keys            # for the machines of memory nodes
  dmtree keys issue --keys pool.keys --role compute --days 90 --out app.keys")]
pub struct KeysIssueArgs {
    /// The file that `dmtree keys new` made.
    #[arg(long, value_name = "FILE")]
    pub keys: PathBuf,
    /// compute, memory, reader or admin.
    #[arg(long, value_name = "ROLE")]
    pub role: String,
    /// The file, which is not there yet.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// How long the certificate is valid.
    #[arg(long, value_name = "N", default_value_t = 3650)]
    pub days: u32,
}

/// Which NIC, in a pool over RDMA.
#[derive(Clone, Debug, Args)]
pub struct NicArgs {
    /// The RDMA device, in a pool on fabric verbs; the first with an active port by default.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Index into the table of addresses of its port (`dmtree doctor --fabric verbs` lists them);
    /// chosen by kind by default.
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
}

impl NicArgs {
    /// As the fabric wants it.
    pub fn nic_config(&self, access: &AccessArgs) -> Result<NicConfig> {
        let mut nic_config = NicConfig::of(self.device.clone(), self.gid_index);
        nic_config.access = access.access()?;
        Ok(nic_config)
    }
}

/// What a fabric's name says of what carries verbs between processes.
pub fn carried(fabric: &str) -> Result<DataPath> {
    data_path(fabric).ok_or_else(|| {
        Failure::input(format!("processes are not on fabric {fabric:?}: give {TCP} or {VERBS}"))
    })
}

/// `demo` and `shell`.
#[derive(Debug, Args)]
#[command(
    after_help = "The pool is embedded, in the memory of this process, and ends with it, unless --connect names another."
)]
pub struct ToolArgs {
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
    /// Size of the memory node.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub memory_bytes: Bytes,
    /// Join the running pool with its first memory node at this address, instead of an embedded
    /// one.
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "memory_bytes")]
    pub connect: Option<String>,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `shell`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("lasting").args(["connect", "durable"])))]
#[command(after_help = "Examples:
  dmtree shell                                           # an index that is gone afterwards
  dmtree shell --durable DIR                             # one that lasts, in this directory
  dmtree shell --connect 10.0.0.1:7000 --index users     # one of a running pool")]
pub struct ShellArgs {
    /// What it works on.
    #[command(flatten)]
    pub tool: ToolArgs,
    /// With --connect or --durable: the index; it is made if there is none of this name, and stays.
    #[arg(long, value_name = "NAME", default_value = "shell", requires = "lasting")]
    pub index: String,
    /// An embedded pool that lasts: a journal in this directory, which is made when there is none.
    /// `done` means that a write survives the death of the process, and a loss of power after
    /// 100 ms; in a binary with the feature durable.
    #[arg(long, value_name = "DIR")]
    pub durable: Option<PathBuf>,
    /// With --durable: `done` means that a write is on the device.
    #[arg(long, requires = "durable")]
    pub sync: bool,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// An index of a running pool.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// The pool's first memory node.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: String,
    /// The index.
    #[arg(long, value_name = "NAME")]
    pub index: String,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `export`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dmtree export --connect 10.0.0.1:7000 --index users --out users.parquet

An export is a scan: every pair was current at some instant while it ran, and a key that is there throughout is not missed. It is no snapshot. The file appears when it is complete.")]
pub struct ExportArgs {
    /// Which.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The file, which must not be there: JSON lines with base64 when its name ends with .jsonl;
    /// Parquet (columns key and value, in key order) when it ends with .parquet, in a binary with
    /// the feature parquet.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree import --connect 10.0.0.1:7000 --index users --into-new users.parquet
  dmtree import --connect 10.0.0.1:7000 --index users more.jsonl others.parquet

An empty index gets whole leaves; into any other the pairs are put. Several files are merged by key; of equal keys that of the last file stays. Nothing is stored when a file has anything wrong.")]
pub struct ImportArgs {
    /// Which.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Create the index, with the options of the one that was exported.
    #[arg(long, conflicts_with = "unsorted")]
    pub into_new: bool,
    /// The keys of the files are in any order.
    #[arg(long)]
    pub unsorted: bool,
    /// What `export` or another program has written: .parquet or .jsonl.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// The address of a pool: HOST:PORT of its first memory node, `etcd://HOST:PORT,.../POOL`, or
/// `file:PATH`, a TOML file that has one.
fn address(text: &str) -> Result<String, String> {
    /// A fixed cluster.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cluster {
        /// Where memory nodes listen; the first one keeps the membership.
        #[serde(default)]
        memory: Vec<String>,
        /// An address in etcd, where that keeps the membership.
        membership: Option<String>,
    }
    let Some(path) = text.strip_prefix("file:") else { return Ok(text.to_owned()) };
    let read = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let cluster: Cluster = toml::from_str(&read).map_err(|e| format!("{path}: {e}"))?;
    let known = cluster.membership.or(cluster.memory.into_iter().next());
    known.ok_or_else(|| {
        format!("{path} names no node: it has `memory = [\"HOST:PORT\", ...]`, or `membership = \"etcd://...\"`")
    })
}

/// A time between two checkpoints.
fn period(text: &str) -> std::result::Result<Duration, String> {
    let period = humantime::parse_duration(text)
        .map_err(|e| format!("{e}; a time is a number and a unit, such as 30s, 10m or 1h"))?;
    match period < Duration::from_secs(1) || period > Duration::from_secs(366 * 86_400) {
        true => Err("it is between 1s and 366days".to_owned()),
        false => Ok(period),
    }
}

/// `checkpoint`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").args(["connect", "durable"]).required(true)))]
#[command(after_help = "Example:
  dmtree checkpoint --durable DIR --to /backups/monday
  dmtree checkpoint --connect 10.0.0.1:7000 --to /backups/monday    # of a pool with journal nodes
  dmtree checkpoint --connect 10.0.0.1:7000 --to /backups --every 10m --keep 6

The pool in DIR must not be open; a program that has it open calls Pool::checkpoint, and its shell has the command `checkpoint TO`. What is written is one instant's, over all indexes: Parquet files that other programs read, and MANIFEST.json, which comes last. A directory without it is no checkpoint. In a binary with the features durable and parquet.")]
pub struct CheckpointArgs {
    /// The running pool with its first memory node at this address, which has journal nodes.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: Option<String>,
    /// The directory of an embedded pool.
    #[arg(long, value_name = "DIR")]
    pub durable: Option<PathBuf>,
    /// The directory of the checkpoint: a new one, or an empty one; in a binary with the feature
    /// cloud s3://BUCKET/PATH, with credentials, region and endpoint in the environment
    /// (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT). With --keep the place
    /// of a series: each checkpoint gets the next number below it, such as DIR/000017.
    #[arg(long, value_name = "DIR|URL")]
    pub to: PathBuf,
    /// A checkpoint of a series: older ones are removed, but for so many.
    #[arg(long, value_name = "N", conflicts_with = "durable")]
    pub keep: Option<NonZeroUsize>,
    /// Again and again, such as 10m or 1h, until Ctrl-C or SIGTERM. What fails is said, and tried
    /// again the next time.
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = period)]
    pub every: Option<Duration>,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `restore`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("into").args(["connect", "durable"]).required(true)))]
#[command(after_help = "Examples:
  dmtree restore --connect 10.0.0.1:7000 --from /backups/monday
  dmtree restore --durable DIR --memory-bytes 4GiB --from /backups/monday

The pool must be empty. Sizes and hashes of all files are checked before it changes. Its indexes appear together, when all of them are whole. A command that was killed can be repeated. In a binary with the feature parquet.")]
pub struct RestoreArgs {
    /// The running pool with its first memory node at this address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: Option<String>,
    /// The durable embedded pool in this directory, which is made when there is none.
    #[arg(long, value_name = "DIR")]
    pub durable: Option<PathBuf>,
    /// With --durable: memory that holds everything meanwhile.
    #[arg(long, default_value = "256MiB", value_name = "SIZE", conflicts_with = "connect")]
    pub memory_bytes: Bytes,
    /// The directory of the checkpoint, or s3://BUCKET/PATH as for `checkpoint`.
    #[arg(long, value_name = "DIR|URL")]
    pub from: PathBuf,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// A running pool, which is asked and not joined.
#[derive(Debug, Args)]
pub struct AskedArgs {
    /// The pool's first memory node.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: String,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `status`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dmtree status --connect 10.0.0.1:7000

Every node is asked for at most two seconds. The process needs keys of the pool and no place in it. Status 1 when a memory node is not present.")]
pub struct StatusArgs {
    /// Which.
    #[command(flatten)]
    pub pool: AskedArgs,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Which.
    #[command(flatten)]
    pub pool: AskedArgs,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// Ends after so many looks; otherwise on Ctrl-C.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// `drain`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dmtree drain cn3 --connect 10.0.0.1:7000

A `dmtree node` ends; an application sees it in Pool::is_asked_to_leave. Nothing is recovered, and no operation waits for a lease. The last compute node cannot be drained. Status 1 when the node has not left in time.")]
pub struct DrainArgs {
    /// The compute node, such as cn3 (`dmtree status` lists them).
    #[arg(value_name = "NODE")]
    pub node: String,
    /// The pool.
    #[command(flatten)]
    pub pool: AskedArgs,
    /// Seconds to wait until it has left.
    #[arg(long, default_value_t = 60, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub wait: u64,
}

/// The form of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// Lines for people.
    Text,
    /// An object of JSON in each line.
    Json,
}

/// A log.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Write rare events to standard error: joins, each step of a death, tables that move, repairs,
    /// refused peers, slow operations.
    #[arg(long, value_name = "FORM", value_enum)]
    pub log: Option<LogForm>,
    /// Operations and waits of so many milliseconds are slow.
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "log",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub slow_ms: u64,
}

/// What a service shows of itself over HTTP.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Serve /metrics (Prometheus text), /health and /status.json here; in a binary with the
    /// feature metrics. It tells counts and names of nodes and indexes to whatever connects, and
    /// nothing can be changed there.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
}

/// `node`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dmtree node --connect 10.0.0.1:7000 --listen 0.0.0.0:7100 --key-file pool.keys

It serves tables and locks to the others, renews its lease and takes part in recovery. SIGTERM hands its share over and ends it. A node that hung for longer than its lease joins again by itself.")]
pub struct NodeArgs {
    /// The pool's first memory node.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: String,
    /// Where it listens for the others; by default any free port, of all addresses when there is a
    /// key, and of the loopback when there are none.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Which compute node it is; any that is free by default.
    #[arg(long, value_name = "N")]
    pub index: Option<u16>,
    /// Seconds to wait for a pool that is not ready.
    #[arg(long, default_value_t = 60, value_name = "S")]
    pub wait: u64,
    /// Metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `memnode`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree memnode --memory-bytes 4GiB                         # for processes of this machine
  dmtree keys new pool.keys                                  # once; copy it to every machine
  dmtree memnode --key-file pool.keys --memory-bytes 4GiB     # for processes with keys of that pool
  export DMTREE_KEY_FILE=$PWD/pool.keys                      # instead of --key-file
  dmtree memnode --memory-bytes 4GiB --memory-nodes 2        # founds a pool of two
  dmtree memnode --memory-bytes 4GiB --join 10.0.0.1:7000    # the second
  dmtree memnode --memory-bytes 4GiB --listen 10.0.0.1:7000 --membership etcd://10.0.0.9:2379/users
  dmtree memnode --fabric verbs --device mlx5_0              # verbs over RDMA
  dmtree shell --connect 10.0.0.1:7000                       # a compute node

The first memory node says what carries verbs, and the others follow. Processes may start in any order. What a memory node holds is lost with its process.")]
pub struct MemnodeArgs {
    /// Where to listen; by default port 7000, of all addresses when there are keys, and of the
    /// loopback when there is none.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Size of the region.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub memory_bytes: Bytes,
    /// What carries verbs: tcp (frames, which this process executes) or verbs (RDMA, which the NIC
    /// executes). With --join: what the pool must say, if it matters.
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
    /// On fabric verbs: ordinary pages for the region, even where the system has huge ones.
    #[arg(long)]
    pub ordinary_pages: bool,
    /// On fabric verbs: on-chip memory to expose for locks; as much as the device has by default.
    #[arg(long, value_name = "SIZE")]
    pub on_chip_bytes: Option<Bytes>,
    /// Cores that run data services, for indexes that have any: a thread each, 1 to 1024.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cores: u32,
    /// Metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Join the pool with its first memory node at this address, or with its membership at this
    /// address in etcd, instead of founding one.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub join: Option<String>,
    /// Keep the membership of the pool in etcd, under a name: it outlives every process of it.
    /// Without it the first memory node keeps it.
    #[arg(long, value_name = "etcd://HOST:PORT,.../POOL", conflicts_with = "join")]
    pub membership: Option<String>,
    /// With --membership: take the place of a pool of this name, all processes of which have ended.
    #[arg(long, requires = "membership")]
    pub anew: bool,
    /// With --join: which memory node this is.
    #[arg(long, value_name = "N", requires = "join")]
    pub index: Option<u16>,
    /// How many memory nodes the pool has; compute nodes are let in when all are there.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "join")]
    pub memory_nodes: u16,
    /// How many journal nodes the pool has (`dmtree journalnode`): the effects of writes are there
    /// before they are visible, and a pool over their directories has them again. Compute nodes are
    /// let in when all are there and everything is loaded.
    #[arg(long, value_name = "N", conflicts_with = "join")]
    pub journal: Option<u16>,
    /// With --journal: when a write is acknowledged.
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = JournalLevel::Process, requires = "journal")]
    pub level: JournalLevel,
    /// With --journal: what writes do while a journal node is away.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = JournalLoss::Wait, requires = "journal")]
    pub on_journal_loss: JournalLoss,
    /// With --journal: load what the directories have although acknowledged writes are missing in
    /// some of them.
    #[arg(long, requires = "journal")]
    pub accept_gaps: bool,
    /// How many compute nodes the pool can have at a time.
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "join")]
    pub compute_nodes: u16,
    /// Table memory of each compute node; 0 chooses 1/32 of all memory.
    #[arg(long, default_value = "0B", value_name = "SIZE", conflicts_with = "join")]
    pub compute_bytes: Bytes,
    /// Bytes of a chunk, a power of two; chosen from the size of the region by default.
    #[arg(long, value_name = "SIZE", conflicts_with = "join")]
    pub chunk_bytes: Option<Bytes>,
    /// Length of a lease, ms: a compute node that does not renew it is declared dead.
    #[arg(long, value_name = "MS", default_value_t = 1000, conflicts_with = "join", value_parser = clap::value_parser!(u64).range(20..=600_000))]
    pub lease_ms: u64,
    /// With --join: how long to wait for the pool, s.
    #[arg(long, value_name = "S", default_value_t = 60, requires = "join")]
    pub wait: u64,
}

/// When a write of a pool with journal nodes is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JournalLevel {
    /// The operating system of the journal node has it: it survives the death of all processes. The
    /// device has it 100 ms later.
    Process,
    /// The device has it: it survives a loss of power.
    Sync,
}

/// What writes do while a journal node is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JournalLoss {
    /// They wait for it, and fail at their deadlines with its name. Reads go on.
    Wait,
    /// They go on, and its part of the journal has a gap: `dmtree status` says so until `dmtree
    /// journal refill` has written the part anew.
    GoOn,
}

/// `journal`.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Write a part of the journal that lacks acknowledged writes anew, from the memory of the
    /// pool, which stays in use.
    Refill(RefillArgs),
}

/// `journal refill`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree journal refill 1 --connect 10.0.0.1:7000
  dmtree journalnode --dir NEW --join 10.0.0.1:7000 --index 1 --replace    # its directory is lost

A part lacks writes when its journal node was away in a pool with `--on-journal-loss go-on`, or has begun a lost directory anew.")]
pub struct RefillArgs {
    /// Which part: the number of its journal node.
    #[arg(value_name = "N")]
    pub part: u16,
    /// The running pool with its first memory node at this address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub connect: String,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `journalnode`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dmtree memnode --listen 10.0.0.1:7000 --key-file pool.keys --journal 2
  dmtree journalnode --dir /var/lib/dmtree --join 10.0.0.1:7000 --key-file pool.keys    # twice, on two machines
  dmtree journalnode --dir DIR --join 10.0.0.1:7000 --checkpoint-to /backups --every 10m --keep 6

A journal node that ends comes back with its directory. A pool that is founded over the directories of a former one has what they have.")]
pub struct JournalnodeArgs {
    /// The directory, which is made when there is none.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Join the pool with its first memory node at this address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub join: String,
    /// Where to listen; by default any port, of all addresses when there are keys, and of the
    /// loopback when there is none.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Which journal node a new directory is; any that is missing by default.
    #[arg(long, value_name = "N")]
    pub index: Option<u16>,
    /// The directory of this part is lost: begin it anew, and write it with `dmtree journal
    /// refill`.
    #[arg(long, requires = "index")]
    pub replace: bool,
    /// What the pool must say, if it matters: the level is the pool's.
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub level: Option<JournalLevel>,
    /// Write checkpoints of the whole pool, as `dmtree checkpoint` does: a series in this
    /// directory, or at s3://BUCKET/PATH. One journal node of a pool is enough.
    #[arg(long, value_name = "DIR|URL", requires = "every")]
    pub checkpoint_to: Option<PathBuf>,
    /// With --checkpoint-to: how often, such as 10m or 1h.
    #[arg(long, value_name = "TIME", requires_all = ["checkpoint_to", "keep"], value_parser = period)]
    pub every: Option<Duration>,
    /// With --every: how many checkpoints stay.
    #[arg(long, value_name = "N", requires = "every")]
    pub keep: Option<NonZeroUsize>,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,
    /// The key.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// How long to wait for the pool, s.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub wait: u64,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The fabric that shall work: local, sim, tcp or verbs.
    #[arg(long, default_value = "local")]
    pub fabric: String,
    /// Bytes of the largest region that a node here shall have.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub region: Bytes,
    /// The key of the pool that nodes here shall belong to.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Look for /proc, /sys, /dev and /usr below this directory.
    #[arg(long, default_value = "/", hide = true)]
    pub root: PathBuf,
}
