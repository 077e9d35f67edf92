//! `check --network`: seeds of the real network code on a simulated network.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dmtree_bench::{Failure, Result, clock};
use dmtree_check::network::{self, Outcome};

use crate::args::CheckArgs;
use crate::output;

/// Seeds when none are given.
const USUAL_SEEDS: u64 = 200;
/// Violations that are named one by one.
const MOST_NAMED: usize = 10;

/// What came of all seeds.
#[derive(Default)]
struct Sum {
    seeds: u64,
    operations: u64,
    failed: u64,
    restarts: u64,
    /// Seeds and what was wrong there.
    wrong: Vec<(u64, Vec<String>)>,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.operations += outcome.operations;
        self.failed += outcome.failed;
        self.restarts += outcome.restarts;
        if !outcome.violations.is_empty() {
            self.wrong.push((seed, outcome.violations));
        }
    }
}

/// Runs it.
pub fn run(args: &CheckArgs, stop: &AtomicBool) -> Result<()> {
    let (from, to) = match (args.seeds, args.minutes) {
        (Some(seeds), _) => seeds,
        (None, Some(_)) => (0, u64::MAX),
        (None, None) => (0, USUAL_SEEDS),
    };
    let until = args.minutes.map(|m| clock::now() + Duration::from_secs_f64(m.max(0.0) * 60.0));
    let go_on = || !stop.load(Ordering::Relaxed) && until.is_none_or(|until| clock::now() < until);
    let (next, sum) = (AtomicU64::new(from), Mutex::new(Sum::default()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..args.threads.unwrap_or(cores) {
            scope.spawn(|| {
                while go_on() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        return;
                    }
                    let outcome = network::run(seed);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).add(seed, outcome);
                }
            });
        }
    });
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.wrong.sort();
    for (seed, what) in sum.wrong.iter().take(MOST_NAMED) {
        output::line(&format!(
            "seed {seed}: {}; again: dmtree check --network --seeds {seed}..{}",
            what.join("; "),
            seed + 1
        ));
    }
    output::line(&format!("incarnations {} failed operations {}", sum.restarts, sum.failed));
    let violations = sum.wrong.len();
    output::line(&format!(
        "seeds {} operations {} violations {violations}",
        sum.seeds, sum.operations
    ));
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    match violations {
        0 => Ok(()),
        1 => Err(Failure::violation("1 violation")),
        n => Err(Failure::violation(format!("{n} violations"))),
    }
}
