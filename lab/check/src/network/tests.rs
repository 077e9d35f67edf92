use super::*;

#[test]
fn seeds_pass_and_repeat_themselves() {
    let seeds: u64 = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let (mut operations, mut seen) = (0, BTreeMap::new());
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
    }
    assert!(operations > 20 * seeds, "{operations} operations");
    let all = [
        Sight::Reset,
        Sight::HalfOpen,
        Sight::BlackHole,
        Sight::Refused,
        Sight::Doubled,
        Sight::AbandonedLock,
        Sight::Late,
        Sight::Partial,
        Sight::Paused,
    ];
    assert!(all.iter().all(|s| seen.contains_key(s)), "only {seen:?}");
}

/// The first seed that finds a mutant, and what it finds.
fn first(mutant: Mutant, mut within: std::ops::Range<u64>) -> (u64, String) {
    let found = |seed| run_with(seed, Some(mutant)).violations.first().map(|v| (seed, v.clone()));
    within.find_map(found).expect("some seed finds it")
}

/// A mutant makes every joining process fail because of a recovery that began when no compute node
/// was up.
#[test]
fn seeds_find_newcomers_that_owe_former_recoveries() {
    let (seed, what) = first(Mutant::Membership(dmtree_fabric::Mutant::NewcomersOwe), 11..32);
    assert!(what.contains("does not work"), "seed {seed}: {what}");
}

/// A mutant frees the number of a crashed node only by the work of a live one.
#[test]
fn seeds_find_numbers_that_stay_taken() {
    let (seed, what) = first(Mutant::Membership(dmtree_fabric::Mutant::NumbersStay), 0..16);
    assert!(what.contains("does not work"), "seed {seed}: {what}");
}

/// A mutant lets a recovery wait for a memory node that has ended.
#[test]
fn seeds_find_recoveries_that_wait_for_lost_memory_nodes() {
    let (seed, what) = first(Mutant::Membership(dmtree_fabric::Mutant::AwayOwe), 0..32);
    assert!(what.contains("does not work"), "seed {seed}: {what}");
}

/// A mutant lets a client block in connecting for as long as the system does.
#[test]
fn seeds_find_clients_that_wait_inside_of_dialling() {
    let (seed, what) = first(Mutant::Network(virt::Mutant::DialWaits), 0..300);
    assert!(what.contains("took"), "seed {seed}: {what}");
}
