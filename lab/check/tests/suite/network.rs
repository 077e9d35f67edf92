//! Seeds of the simulated network.

use std::collections::{BTreeMap, BTreeSet};

use dmtree_check::network::{JobEnd::*, Mutants, Outcome, run, run_with};
use dmtree_fabric::net::virt::{self, Sight, Sight::*};

/// What the seeds must come to.
const ALL: [Sight; 9] =
    [Reset, HalfOpen, BlackHole, Refused, Doubled, AbandonedLock, Late, Partial, Paused];

#[test]
fn seeds_pass_and_repeat_themselves() {
    let seeds: u64 = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let (mut operations, mut seen, mut job_ends) = (0, BTreeMap::new(), BTreeSet::new());
    for seed in 0..seeds {
        let outcome = run(seed);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        operations += outcome.operations;
        if seed == 0 {
            let again = run(seed);
            let of = |o: &Outcome| (o.operations, o.failed, o.restarts);
            assert_eq!(of(&again), of(&outcome), "the same seed is the same run");
        }
        seen.extend(outcome.seen);
        job_ends.extend(outcome.job_ends);
    }
    assert!(operations > 20 * seeds, "{operations} operations");
    assert!(ALL.iter().all(|s| seen.contains_key(s)), "only {seen:?}");
    assert_eq!(job_ends, [Result, Cancelled, Revoked, Unheard].into());
}

/// The first seed that finds a mutant, and all that it finds.
fn first(mutants: Mutants, within: std::ops::Range<u64>) -> (u64, String) {
    let mut found = within.map(|seed| (seed, run_with(seed, mutants).violations.join("; ")));
    found.find(|(_, what)| !what.is_empty()).expect("some seed finds it")
}

/// Limits are ten times the mean distance of seeds that find a mutant: 59, 217, 29, 3 and 292 of
/// 300 find them.
#[test]
fn seeds_find_mutants() {
    use dmtree_fabric::Mutant::{AwayOwe, NewcomersOwe, NumbersStay};
    for (mutants, seeds, words) in [
        // Every joining process fails because of a recovery that began when no compute node was up.
        ((Some(NewcomersOwe), None), 0..64, "does not work"),
        // Only the work of a live node frees the number of a crashed one.
        ((Some(NumbersStay), None), 0..16, "does not work"),
        // A recovery waits for a memory node that has ended.
        ((Some(AwayOwe), None), 0..104, "does not work"),
        // A client blocks in connecting for as long as the system does.
        ((None, Some(virt::Mutant::DialWaits)), 0..1000, "took"),
        // A job is answered for, and no worker runs it.
        ((None, Some(virt::Mutant::JobsLost)), 0..32, "was answered and never executed"),
    ] {
        let (seed, what) = first(mutants, seeds);
        assert!(what.contains(words), "seed {seed}: {what}");
    }
}
