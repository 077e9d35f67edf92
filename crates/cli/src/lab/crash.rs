//! `bench crash`: a compute node dies under load.

use std::path::PathBuf;

use clap::Args;
use dmtree_bench::crash::{self, Setup};
use dmtree_bench::{files, report};
use dmtree_command::{Failure, Result};

use crate::output;

/// `bench crash`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dmtree bench crash
  dmtree bench crash --hung --lease-us 5000 --out crash
  dmtree bench crash --system dmtree-log

The cluster is simulated; times are virtual. Exit status 1 when something acknowledged was lost, or a survivor's operation failed.")]
pub struct CrashArgs {
    /// The simulation.
    #[command(flatten)]
    pub setup: Setup,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write crash.json and crash.html, a page with the curve, here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs it.
pub fn run(a: &CrashArgs) -> Result<()> {
    a.setup.check()?;
    if let Some(dir) = &a.out {
        files::prepare(dir)?;
    }
    let o = crash::run(&a.setup)?;
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
