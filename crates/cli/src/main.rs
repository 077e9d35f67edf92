//! The binary `dmtree`: measuring, checking, a tour, a shell, dumps.
#![forbid(unsafe_code)]

mod args;
mod args_nodes;
mod bench;
mod check;
mod conform;
mod crash;
mod demo;
mod doctor;
mod drive;
mod dumps;
mod exhaustive;
mod fabric;
mod memnode;
mod network;
mod output;
mod progress;
mod shell;
mod store;
mod verify;
mod words;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser};
use dmtree_bench::failure::{EXIT_INTERRUPTED, EXIT_OK};
use dmtree_bench::{Failure, Result};
use dmtree_fabric::net::Key;

use args::{BenchCommand, Cli, Command, ConfigCommand, FabricCommand};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(e) => {
            output::error(&e.to_string());
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
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
        Command::Doctor(args) => doctor::run(&args),
        Command::Config(args) => match args.command {
            ConfigCommand::Show { experiment, json, settings } => {
                bench::show_config(&experiment, &settings, json)
            }
        },
        Command::Check(args) => check::run(&args),
        Command::Key => {
            output::line(&Key::draw().map_err(|e| Failure::missing(&e))?);
            Ok(())
        }
        Command::Memnode(args) => memnode::run(&args),
        Command::Conform(args) => conform::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Drive(args) => drive::run(&args),
        Command::Shell(args) => shell::run(&args),
        Command::Dump(args) => dumps::dump(&args),
        Command::Load(args) => dumps::load(&args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "dmtree", &mut text);
            output::out_bytes(&text);
            Ok(())
        }
    }
}

/// A flag that Ctrl-C sets. The second time the process ends at once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
        output::note("stopping; once more to end at once");
    })
    .map_err(|e| Failure::input(format!("cannot listen for Ctrl-C: {e}")))?;
    Ok(stop)
}
