//! Test programs beyond those of `cargo test`: of the compared systems, and in more depth.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::built::{Executable, executables};
use crate::execute;

/// The distance of crash points, and the divisor of the conformance suites' steps, unless all are
/// asked for: those of systems alone take half an hour.
const SOME: (&str, &str) = ("12", "4");
const WHOLE: (&str, &str) = ("full", "1");

/// The test programs of the workspace that `cargo test` leaves out, but those of [`seeds`].
pub fn peers() -> Result<()> {
    let usual: BTreeSet<PathBuf> = programs(&[])?.into_iter().map(|usual| usual.path).collect();
    let all = programs(&["--workspace"])?;
    let left_out = all.iter().filter(|program| !usual.contains(&program.path));
    for program in left_out.filter(|program| !is_peer_suite(program) && !is_mutants(program)) {
        execute(&mut program.command())?;
    }
    Ok(())
}

fn is_peer_suite(program: &Executable) -> bool {
    program.name == "suite" && program.folder.starts_with("systems")
}

fn is_engine_suite(program: &Executable) -> bool {
    program.name == "suite" && program.folder.starts_with("crates/engine")
}

fn is_mutants(program: &Executable) -> bool {
    program.name == "mutants"
}

/// The suites of the engine, and of every crate of systems: every twelfth crash point and a quarter
/// of the steps of conformance, or all; then so many seeds of the interleaved suites, and of the
/// adversarial ones of the engine.
pub fn seeds(args: &[String]) -> Result<()> {
    let (flags, numbers): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with('-'));
    ensure!(flags.iter().all(|flag| *flag == "--whole"), "unknown: {flags:?}; --whole, or none");
    let n: u32 = numbers.first().map_or(Ok(300), |n| n.parse()).context("a number of seeds")?;
    let all = programs(&["--workspace"])?;
    let of = |is: fn(&Executable) -> bool| -> Vec<&Executable> {
        all.iter().filter(|program| is(program)).collect()
    };
    let (engine, systems) = (of(is_engine_suite), of(is_peer_suite));
    ensure!(engine.len() == 1 && !systems.is_empty(), "cargo made {} programs", all.len());
    let (step, divisor) = if flags.is_empty() { SOME } else { WHOLE };
    for suite in engine.iter().chain(&systems) {
        let tested = [("DMTREE_CRASH_STEP", step), ("DMTREE_STEPS_DIVISOR", divisor)];
        execute(suite.command().envs(tested))?;
    }
    let n = n.to_string();
    for suite in engine.iter().chain(&systems) {
        execute(suite.command().env("DMTREE_SEEDS", &n).arg("interleaved"))?;
    }
    for mutants in of(is_mutants) {
        execute(mutants.command().env("DMTREE_STEPS_DIVISOR", divisor))?;
    }
    execute(engine[0].command().env("DMTREE_SEEDS", &n).arg("adversarial"))
}

/// The test programs of the workspace, or of what `cargo test` tests. Packages have the same
/// features in both, so that nothing is built again. Cargo also builds examples, which may have the
/// name of a test program.
fn programs(of: &[&str]) -> Result<Vec<Executable>> {
    let mut build = Command::new("cargo");
    let mut made = executables(build.args(["test", "--no-run", "--quiet"]).args(of))?;
    made.retain(|executable| executable.is_test);
    Ok(made)
}
