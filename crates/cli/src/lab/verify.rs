//! `bench --verify-determinism`: the same simulation in several processes.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_bench::compare::{Traces, differing, traces};
use dmtree_bench::config::{Flags, Resolved};
use dmtree_bench::group::CellPlan;
use dmtree_bench::results::Results;
use dmtree_bench::run::cells;
use dmtree_bench::simulated::CpuSource;
use dmtree_command::{Failure, Result};

use crate::output;

/// Keys and operations of the reduced experiment.
const KEYS: u64 = 20_000;
const OPS: u64 = 5_000;

/// Runs the experiment, reduced, in two processes, and in a third that ran another seed before.
pub fn determinism(name: &str, flags: &Flags, r: &Resolved, stop: &Arc<AtomicBool>) -> Result<()> {
    if !r.config.simulated() {
        return Err(Failure::input("only simulations repeat event by event: give --fabric sim"));
    }
    let measured = |(_, cell): &(_, CellPlan)| cell.config.cpu == Some(CpuSource::Measured);
    if let Some((system, _)) = cells(r)?.iter().find(|cell| measured(cell)) {
        let system = system.name;
        return Err(Failure::input(format!(
            "the CPU time of {system} is measured on this machine, so that no run repeats: give --cpu charged"
        )));
    }
    let keys = r.config.keys.min(KEYS).to_string();
    let other = r.config.seed.wrapping_add(1).to_string();
    let mut runs: Vec<(&str, Traces)> = Vec::new();
    for (what, first) in [("the first", None), ("the second", None), ("the third", Some(&other))] {
        output::note(&match first {
            None => format!("running {what} process"),
            Some(seed) => format!("running {what} process, which runs seed {seed} before"),
        });
        let exe = std::env::current_exe()
            .map_err(|e| Failure::input(format!("cannot find this program: {e}")))?;
        let mut command = Command::new(exe);
        command.args(["bench", name]).stdin(Stdio::null());
        command.args(flags.words(|flag| !["keys", "ops"].contains(&flag)));
        command.args(["--keys", &keys, "--ops", &OPS.to_string(), "--json", "--quiet"]);
        if let Some(seed) = first {
            command.args(["--first-seed", seed]);
        }
        let out =
            command.output().map_err(|e| Failure::input(format!("cannot start a process: {e}")))?;
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            return Err(Failure::violation(format!("{what} process failed: {why}")));
        }
        let results = Results::parse(what, &String::from_utf8_lossy(&out.stdout))?;
        runs.push((what, traces(&results)));
    }
    let (_, base) = &runs[0];
    for (what, other) in &runs[1..] {
        let cells = differing(base, other);
        if let Some(cell) = cells.first() {
            return Err(Failure::violation(format!(
                "the first and {what} process differ in {} of {} cells; the first of them: {cell}",
                cells.len(),
                base.len()
            )));
        }
    }
    output::line(&format!(
        "{} cells: the same trace in three processes, one of which ran another seed before",
        base.len()
    ));
    for (cell, hash) in base {
        output::line(&format!("  {hash}  {cell}"));
    }
    Ok(())
}
