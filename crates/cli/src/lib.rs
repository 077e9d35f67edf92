//! The command line of `dmtree`: memory nodes, a shell, and, with the feature `lab`, what measures,
//! checks and compares systems.
//!
//! The binary `dmtree` is [`main`]. A crate with an index of its own has the same command line,
//! with its systems among the others, in a binary with this `main`:
//! `dmtree_cli::main_with(its_crate::systems())` (`docs/write-an-index.md`).
#![forbid(unsafe_code)]

mod args;
mod checkpoint;
mod clock;
mod doctor;
mod drain;
mod dumps;
mod journalnode;
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
#[path = "no_lab.rs"]
mod lab;
mod log;
#[cfg(feature = "man")]
mod manual;
mod memnode;
mod metrics;
mod node;
mod output;
mod shell;
mod status;
mod store;
mod transfer;
mod words;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser};
use dmtree_command::failure::EXIT_INTERRUPTED;
use dmtree_command::{Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use args::{Cli, Command, JournalCommand, KeysCommand};

/// Executes the command line of this process; its exit status.
pub fn main() -> ExitCode {
    exit_code(run(Cli::parse()))
}

/// As [`main`], with these systems among those of the laboratory: every command and experiment
/// takes their names. Refused with status 2 where a name is taken.
#[cfg(feature = "lab")]
pub fn main_with(systems: Vec<dmtree_parts::peer::SystemSpec>) -> ExitCode {
    exit_code(dmtree_bench::registry::add(systems).and_then(|()| run(Cli::parse())))
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&e.to_string());
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Lab(command) => lab::run(command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Keys(KeysCommand::New(args)) => keys::new(&args),
        Command::Keys(KeysCommand::Issue(args)) => keys::issue(&args),
        Command::Memnode(args) => memnode::run(&args),
        Command::Journalnode(args) => journalnode::run(&args),
        Command::Journal(JournalCommand::Refill(args)) => journalnode::refill(&args),
        Command::Node(args) => node::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => status::top(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Shell(args) => shell::run(&args),
        Command::Export(args) => transfer::export(&args),
        Command::Import(args) => transfer::import(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Restore(args) => transfer::restore(&args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "dmtree", &mut text);
            output::out_bytes(&text);
            Ok(())
        }
        #[cfg(feature = "man")]
        Command::ManPages { directory } => manual::write(&directory),
    }
}

/// Whether the end of its terminal ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hangup {
    Ends,
    /// It is a service.
    GoesOn,
}

/// A flag that Ctrl-C and SIGTERM set. The second time the process ends at once.
#[allow(clippy::disallowed_methods, reason = "the thread waits for signals")]
pub(crate) fn stop_flag(hangup: Hangup) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|e| Failure::input(format!("cannot listen for Ctrl-C: {e}")))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGHUP && hangup == Hangup::GoesOn {
                output::note("SIGHUP: the terminal is gone, the service goes on");
                continue;
            }
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
            output::note("stopping; once more to end at once");
        }
    });
    Ok(stop)
}
