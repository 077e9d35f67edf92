//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
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
    /// Make a key for a pool, on standard output: `(umask 077; dmtree key > pool.key)`.
    Key,
    /// Be a memory node: serve a region to compute nodes, over TCP or RDMA.
    Memnode(MemnodeArgs),
    /// The operations by hand.
    Shell(ToolArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How a process shows that it belongs to a pool.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArgs {
    /// The file with the key of the pool, which its owner alone may read (`dmtree key` makes one);
    /// or else the key is what the environment variable DMTREE_KEY says. Without a key nodes listen
    /// on the loopback only.
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub key_file: Option<PathBuf>,
    /// Without a key: listen on other addresses than the loopback nevertheless. Every process that
    /// can connect reads and changes all.
    #[arg(long, help_heading = "Access")]
    pub insecure: bool,
}

impl AccessArgs {
    /// The key, and a warning where there is none and the user has insisted.
    pub fn access(&self) -> Result<Access> {
        let access = access(self.key_file.as_deref(), self.insecure)?;
        if access.insecure {
            output::note(INSECURE);
        }
        Ok(access)
    }
}

/// What every start without a key says that may be reached by strangers.
pub const INSECURE: &str = "INSECURE: this pool has no key; whatever can connect to its nodes reads and changes all of it (`dmtree key > pool.key` makes a key for --key-file)";

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
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "memory_bytes")]
    pub connect: Option<String>,
    /// With --connect, for the shell: the index; it is made if there is none of this name, and
    /// stays.
    #[arg(long, value_name = "NAME", default_value = "shell", requires = "connect")]
    pub index: String,
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
  (umask 077; dmtree key > pool.key)                         # once; copy it to every machine
  dmtree memnode --key-file pool.key --memory-bytes 4GiB     # for processes with that key
  export DMTREE_KEY=$(cat pool.key)                          # instead of --key-file
  dmtree memnode --memory-bytes 4GiB --memory-nodes 2        # founds a pool of two
  dmtree memnode --memory-bytes 4GiB --join 10.0.0.1:7000    # the second
  dmtree memnode --fabric verbs --device mlx5_0              # verbs over RDMA
  dmtree shell --connect 10.0.0.1:7000                       # a compute node

The first memory node says what carries verbs, and the others follow. Processes may start in any order. What a memory node holds is lost with its process.")]
pub struct MemnodeArgs {
    /// Where to listen; by default port 7000, of all addresses when there is a key, and of the
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
    /// Join the pool with its first memory node at this address, instead of founding one.
    #[arg(long, value_name = "HOST:PORT")]
    pub join: Option<String>,
    /// With --join: which memory node this is.
    #[arg(long, value_name = "N", requires = "join")]
    pub index: Option<u16>,
    /// How many memory nodes the pool has; compute nodes are let in when all are there.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "join")]
    pub memory_nodes: u16,
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
