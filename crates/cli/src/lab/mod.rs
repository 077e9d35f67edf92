//! The laboratory's commands: measuring, checking and comparing systems. A build without the
//! feature `lab` has `no_lab.rs` in place of this module.

mod any_system;
mod args;
mod bench;
mod check;
mod conform;
mod crash;
mod demo;
mod demo_crash;
mod drive;
mod dumps;
mod exhaustive;
mod fabric;
mod network;
mod progress;
mod verify;

use dmtree_command::Result;
use dmtree_fabric::net::DataPath;

use args::{BenchCommand, ConfigCommand, FabricCommand};

pub use any_system::open;
pub use args::Command;

/// What the binary is.
pub const ABOUT: &str =
    "An ordered key-value index in disaggregated memory, and a bench for such indexes";

/// What its help ends with.
pub const EXAMPLES: &str = "Examples:
  dmtree demo                                  a short tour
  dmtree bench quick                           the main table, about 100 seconds
  dmtree bench quick --budget 10 --out results
  dmtree shell                                 put, get, scan by hand

Exit status: 0 done; 1 a mismatch or violation; 2 bad input; 130 interrupted.";

/// What else than the shell can be a compute node of the pool of this memory node.
pub fn or_measure(at: &str, data_path: DataPath) -> String {
    format!(", or dmtree bench quick --fabric {data_path} --nodes {at}")
}

/// Memory nodes of this process have the data services of all systems.
pub fn provide_services() {
    drop(dmtree_bench::registry::systems());
}

/// Runs a command.
pub fn run(command: Command) -> Result<()> {
    dmtree_bench::results::built_from(dmtree_commit::COMMIT);
    match command {
        Command::Bench(args) => match args.command {
            None => {
                let name = args.experiment.unwrap_or_else(|| "quick".to_owned());
                bench::experiment(&name, &args.settings, &args.output)
            }
            Some(BenchCommand::List { json }) => bench::list(json),
            Some(BenchCommand::Trace(args)) => bench::trace(&args),
            Some(BenchCommand::Compare(args)) => bench::compare(&args),
            Some(BenchCommand::Report(args)) => bench::report(&args),
            Some(BenchCommand::Crash(args)) => crash::run(&args),
        },
        Command::Compare(args) => bench::compare(&args),
        Command::Report(args) => bench::report(&args),
        Command::Fabric(args) => match args.command {
            FabricCommand::List => fabric::list(),
            FabricCommand::Show { name, toml } => fabric::show(&name, toml),
            FabricCommand::Probe(args) => fabric::probe(&args),
        },
        Command::Config(args) => match args.command {
            ConfigCommand::Show { experiment, json, settings } => {
                bench::show_config(&experiment, &settings, json)
            }
        },
        Command::Check(args) => check::run(&args),
        Command::Conform(args) => conform::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Drive(args) => drive::run(&args),
        Command::Dump(args) => dumps::dump(&args),
        Command::Load(args) => dumps::load(&args),
    }
}
