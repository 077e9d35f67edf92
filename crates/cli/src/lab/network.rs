//! `check --network`: seeds of the real network code on a simulated network.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dmtree_bench::clock;
use dmtree_check::network::{self, Outcome};
use dmtree_command::Result;

use super::args::CheckArgs;
use super::check::ended;
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
    let (seeds, until) = (args.seeds(USUAL_SEEDS), args.until()?);
    let go_on = || !stop.load(Ordering::Relaxed) && until.is_none_or(|until| clock::now() < until);
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..args.threads() {
            scope.spawn(|| {
                while go_on() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
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
    ended(violations, stop)
}
