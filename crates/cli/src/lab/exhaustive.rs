//! `check --exhaustive`: every order of the verbs of small cases.

use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_bench::clock;
use dmtree_bench::registry::select;
use dmtree_check::checked::{System, granted, grants};
use dmtree_check::exhaustive::{Depth, Explored};
use dmtree_check::trace::trace;
use dmtree_command::{Failure, Result};

use super::args::CheckArgs;
use super::check::ended;
use crate::output;

/// Seeds when none are given.
const USUAL_SEEDS: u64 = 20;

#[derive(Default)]
struct Sum {
    cases: u64,
    complete: u64,
    orders: u64,
    operations: u64,
    violations: u64,
}

impl Sum {
    fn add(&mut self, e: &Explored) {
        self.cases += 1;
        self.complete += u64::from(e.complete);
        self.orders += e.paths;
        self.operations += e.operations;
        self.violations += u64::from(e.wrong.is_some());
    }

    fn line(&self) -> String {
        format!(
            "cases {} complete {} orders {} operations {} violations {}",
            self.cases, self.complete, self.orders, self.operations, self.violations
        )
    }
}

/// Runs it.
pub fn run(args: &CheckArgs, stop: &AtomicBool) -> Result<()> {
    let (seeds, until) = (args.seeds(USUAL_SEEDS), args.until()?);
    let go_on = || !stop.load(Ordering::Relaxed) && until.is_none_or(|until| clock::now() < until);
    let depth = Depth { switches: args.switches, paths: args.orders };
    let mut sum = Sum::default();
    for system in select(&args.systems())? {
        for seed in seeds.clone() {
            if !go_on() || sum.violations > 0 {
                break;
            }
            let found = one(args, &system, seed, depth, &go_on)?;
            sum.add(&found);
        }
    }
    output::line(&sum.line());
    ended(sum.violations as usize, stop)
}

fn one(
    args: &CheckArgs,
    system: &System,
    seed: u64,
    depth: Depth,
    go_on: &dyn Fn() -> bool,
) -> Result<Explored> {
    let case = system.tiny(seed, grants(&args.grant)?);
    let e = system.explore(&case, depth, go_on)?;
    if !args.quiet {
        output::note(&format!(
            "{} seed {seed}: {} clients, {} operations each: {} orders of up to {} choices{}",
            system.name,
            case.clients,
            case.ops,
            e.paths,
            e.longest,
            if e.complete { ", all there are" } else { "" }
        ));
    }
    if let Some((case, verdict)) = &e.wrong {
        let what = verdict.finding.as_ref().map(ToString::to_string).unwrap_or_default();
        let grants = granted(&case.grants).join(",");
        output::line(&format!(
            "violation: {} seed {seed}, granted {}: {what}\n{}\n\nas a file of lab/bench/tests/suite/regressions:\n\n{}",
            system.name,
            if grants.is_empty() { "nothing" } else { &grants },
            trace(case, verdict),
            case.to_json()
        ));
        if let Some(path) = &args.save {
            std::fs::write(path, case.to_json() + "\n")
                .map_err(|e| Failure::file("write", path, &e))?;
        }
    }
    Ok(e)
}
