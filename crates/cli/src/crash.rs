//! `bench crash`: a compute node dies under load.

use std::path::PathBuf;

use clap::Args;
use dmtree_bench::crash::{self, Setup};
use dmtree_bench::{Failure, Result, files, report};

use crate::output;

/// `bench crash`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree bench crash
  dmtree bench crash --hung --lease-us 5000 --out crash

The cluster is simulated; times are virtual. Exit status 1 when something acknowledged was lost, or a survivor's operation failed.")]
pub struct CrashArgs {
    /// Hardware (see `fabric list`).
    #[arg(long, default_value_t = Setup::default().profile)]
    pub profile: String,
    /// Keys loaded.
    #[arg(long, default_value_t = Setup::default().keys)]
    pub keys: u64,
    /// Compute nodes; the last one dies.
    #[arg(long, default_value_t = Setup::default().cns)]
    pub cns: u16,
    /// Threads of each compute node.
    #[arg(long, default_value_t = Setup::default().threads)]
    pub threads: u32,
    /// Clients of each thread.
    #[arg(long, default_value_t = Setup::default().coroutines)]
    pub coroutines: u32,
    /// Updates among the operations, percent; the others are reads.
    #[arg(long, default_value_t = Setup::default().update_percent)]
    pub update_percent: u32,
    /// How long a lease lasts, us.
    #[arg(long, default_value_t = Setup::default().lease_us)]
    pub lease_us: u64,
    /// When the node dies, us.
    #[arg(long, default_value_t = Setup::default().crash_us)]
    pub crash_us: u64,
    /// When the clients end, us.
    #[arg(long, default_value_t = Setup::default().until_us)]
    pub until_us: u64,
    /// Width of a bucket of the curve, us.
    #[arg(long, default_value_t = Setup::default().bucket_us)]
    pub bucket_us: u64,
    /// The node hangs, with a NIC that goes on serving, instead of going away.
    #[arg(long)]
    pub hung: bool,
    /// Seed of everything.
    #[arg(long, default_value_t = Setup::default().seed)]
    pub seed: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write crash.json and crash.html, a page with the curve, here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs it.
pub fn run(a: &CrashArgs) -> Result<()> {
    let setup = Setup {
        profile: a.profile.clone(),
        keys: a.keys,
        cns: a.cns,
        threads: a.threads,
        coroutines: a.coroutines,
        update_percent: a.update_percent,
        lease_us: a.lease_us,
        crash_us: a.crash_us,
        until_us: a.until_us,
        bucket_us: a.bucket_us,
        hung: a.hung,
        seed: a.seed,
    };
    setup.check()?;
    if let Some(dir) = &a.out {
        files::prepare(dir)?;
    }
    let o = crash::dmtree(&setup)?;
    let json = serde_json::to_string_pretty(&o).map_err(|e| Failure::input(e.to_string()))?;
    if let Some(dir) = &a.out {
        files::write_atomically(&dir.join("crash.json"), json.as_bytes())?;
        files::write_atomically(&dir.join("crash.html"), report::page(&json).as_bytes())?;
    }
    output::out(&if a.json { json + "\n" } else { o.text() });
    if o.is_fine() {
        return Ok(());
    }
    Err(Failure::violation(format!(
        "{} keys lost or wrong, {} operations of survivors failed",
        o.keys_wrong, o.errors
    )))
}
