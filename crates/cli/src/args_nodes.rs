//! The command line of processes that are nodes.

use std::path::PathBuf;

use clap::Args;
use dmtree_bench::access::access;
use dmtree_bench::bytes::Bytes;
use dmtree_bench::opened::PoolSpec;
use dmtree_bench::registry::{TCP, VERBS, data_path};
use dmtree_bench::simulated::FabricSpec;
use dmtree_bench::{Failure, Result};
use dmtree_fabric::net::{Access, DataPath, NicConfig};

use crate::output;

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

    /// The same for a process that this one starts.
    pub fn words(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(path) = &self.key_file {
            all.extend(["--key-file".to_owned(), path.display().to_string()]);
        }
        all.extend(self.insecure.then(|| "--insecure".to_owned()));
        all
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

impl ToolArgs {
    /// The pool that is meant, of so many compute nodes of this process; with the index that stays,
    /// or one of its own.
    pub fn pool(&self, cns: u16, stays: bool) -> Result<PoolSpec> {
        let small = PoolSpec::small(cns, self.memory_bytes.0);
        Ok(match &self.connect {
            None => small,
            Some(first) => PoolSpec {
                fabric: FabricSpec::Joined {
                    first: first.clone(),
                    data_path: None,
                    nic_config: self.nic.nic_config(&self.access)?,
                },
                index: stays.then(|| self.index.clone()),
                ..small
            },
        })
    }
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
