//! Seeds find the mutants of the systems, of the membership and of the pool that are enabled for
//! the whole process: one test at a time.

use std::sync::Mutex;

use dmtree_bench::registry::systems;
use dmtree_check::checked::System;
use dmtree_check::peer::{mutants, passes};
use dmtree_check::{Case, NodeFaultSet, Verdict};
use dmtree_fabric::Mutant as MembershipMutant;
use dmtree_fabric::sync::locked;
use dmtree_parts::peer::Setting;
use dmtree_pool::PoolMutant;

/// One test at a time runs.
static ALONE: Mutex<()> = Mutex::new(());

/// The first system that recovers from crashes, and a setting with faults.
fn faulty(node_faults: NodeFaultSet) -> (System, Setting) {
    let system = systems().into_iter().find(|s| s.recovers).expect("a system that recovers");
    (system, Setting { node_faults, ..Setting::default() })
}

#[test]
fn few_seeds_find_the_mutants_of_every_system() {
    let _alone = locked(&ALONE);
    let mut tried = 0;
    for system in systems() {
        passes(&mutants::found(&system).expect("cases that run"));
        tried += mutants::soon_found(&system).count();
    }
    assert!(tried >= 6, "{tried} mutants");
}

/// Operations during a fault that does not touch their leaf: the checker counts them.
#[test]
fn operations_beside_a_fault_are_judged() {
    let _alone = locked(&ALONE);
    let (system, setting) = faulty(NodeFaultSet::Crash);
    let run = |seed| system.check(&system.case(seed, &setting)).expect("a seed's case runs");
    let verdicts: Vec<Verdict> = (0..24).map(run).collect();
    assert_eq!(verdicts.iter().find_map(|v| v.finding.clone()), None);
    let judged = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    let (gets, writes) = (judged(|v| v.available.gets), judged(|v| v.available.writes));
    assert!(gets > 50 && writes > 10, "{gets} gets and {writes} writes are judged");
}

/// [`MembershipMutant::NumbersStay`] is not among them: here a number is drawn for an incarnation
/// only when it is free, and seeds of the network find it.
#[test]
fn restarts_find_the_mutants_of_membership_and_pool() {
    let _alone = locked(&ALONE);
    let (system, setting) = faulty(NodeFaultSet::Restarts);
    let is_found = |mutant| {
        let case = |seed| Case { mutant, ..system.case(seed, &setting) };
        mutants::any(100, &|seed| Ok(system.check(&case(seed))?.finding.is_some()))
            .expect("it runs")
    };
    for mutant in [MembershipMutant::NewcomersOwe, MembershipMutant::AwayOwe] {
        assert!(is_found(Some(mutant)), "{mutant:?} is not found");
    }
    PoolMutant::enable(&[PoolMutant::NothingComesBack]);
    let found = is_found(None);
    PoolMutant::enable(&[]);
    assert!(found, "{} is not found", PoolMutant::NothingComesBack.name());
}
