//! In place of the laboratory's commands, in builds without the feature `lab`.

use clap::Subcommand;
use dmtree_command::{Failure, Result};
use dmtree_fabric::net::DataPath;

use crate::args::ShellArgs;
use crate::store::Store;

/// No command.
#[derive(Debug, Subcommand)]
pub enum Command {}

/// What the binary is.
pub const ABOUT: &str = "An ordered key-value index in disaggregated memory";

/// What its help ends with.
pub const EXAMPLES: &str = "Examples:
  dmtree shell                                 put, get, scan by hand
  dmtree memnode --memory-bytes 4GiB           a pool for processes of this machine
  dmtree shell --connect 127.0.0.1:7000        a compute node of it

This binary was built without the feature lab: it measures, checks and compares nothing.

Exit status: 0 done; 1 something is missing, or a mismatch; 2 bad input; 130 interrupted.";

/// Nothing else than the shell can be a compute node.
pub fn or_measure(_: &str, _: DataPath) -> String {
    String::new()
}

/// No index here has data services.
pub fn provide_services() {}

/// There is none to run.
pub fn run(command: Command) -> Result<()> {
    match command {}
}

/// Refuses a system other than the library's.
///
/// # Errors
/// Always.
pub fn open(a: &ShellArgs) -> Result<Box<dyn Store>> {
    Err(Failure::input(format!(
        "system {:?}: this binary was built without the feature lab, and knows dmtree alone; build it with `cargo build --release -p dmtree-cli`",
        a.tool.system
    )))
}
