//! Seeds find the mutants of the engine, of the membership and of the pool that are enabled for the
//! whole process: one test at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dmtree_bench::checked::{Setting, case, first_wrong};
use dmtree_bench::registry::find;
use dmtree_check::{Case, Finding, NodeFaultSet, Verdict};
use dmtree_engine::Mutant;
use dmtree_fabric::Mutant as MembershipMutant;
use dmtree_pool::PoolMutant;

/// Until the guard is dropped no other test runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first finding in seeds of DMTree.
fn found(node_faults: NodeFaultSet, seeds: std::ops::Range<u64>) -> Option<Finding> {
    let setting = Setting { node_faults, ..Setting::default() };
    first_wrong(&find("dmtree").expect("registered"), seeds, setting).map(|(_, finding)| finding)
}

/// A merged leaf that is retired before readers have left it: the merge then writes memory that has
/// another owner or none.
#[test]
fn a_write_to_memory_that_was_given_back_is_found() {
    let _alone = alone();
    assert_eq!(found(NodeFaultSet::None, 0..3), None);
    Mutant::enable(&[Mutant::RetireMergedEarly]);
    let found = found(NodeFaultSet::None, 0..3);
    Mutant::enable(&[]);
    let found = found.expect("a leaf was retired too early");
    assert_eq!(found.kind(), "access", "{found}");
}

/// Operations during a fault that does not touch their leaf: the checker counts them, and finds
/// those that wait for the fault.
#[test]
fn an_index_that_stops_during_a_failover_is_found() {
    let _alone = alone();
    let system = find("dmtree").expect("registered");
    let setting = Setting { node_faults: NodeFaultSet::Crash, ..Setting::default() };
    let run = |seed| system.check(&case(&system, seed, setting)).expect("a seed's case runs");
    let verdicts: Vec<Verdict> = (0..24).map(run).collect();
    assert_eq!(verdicts.iter().find_map(|v| v.finding.clone()), None);
    let judged = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    let (gets, writes) = (judged(|v| v.available.gets), judged(|v| v.available.writes));
    assert!(gets > 50 && writes > 10, "{gets} gets and {writes} writes are judged");
    Mutant::enable(&[Mutant::StopForDeath]);
    let found = (0..200).find_map(|seed| run(seed).finding.filter(|f| f.kind() == "slow"));
    Mutant::enable(&[]);
    // Few writes are judged, because one beside another write of its leaf is not: of seeds 0..800
    // none shows the mutant with a write.
    let found = found.expect("an operation that waits for a failover is too slow").to_string();
    assert!(found.contains("beside a fault that does not touch its leaf"), "{found}");
}

/// [`MembershipMutant::NumbersStay`] is not among them: here a number is drawn for an incarnation
/// only when it is free, and seeds of the network find it.
#[test]
fn restarts_find_the_mutants_of_membership_and_pool() {
    let _alone = alone();
    let system = find("dmtree").expect("registered");
    let setting = Setting { node_faults: NodeFaultSet::Restarts, ..Setting::default() };
    for mutant in [MembershipMutant::NewcomersOwe, MembershipMutant::AwayOwe] {
        let with_mutant = |seed| Case { mutant: Some(mutant), ..case(&system, seed, setting) };
        let mut runs = (0..100).map(|seed| system.check(&with_mutant(seed)).expect("it runs"));
        assert!(runs.any(|verdict| verdict.finding.is_some()), "{mutant:?} is not found");
    }
    PoolMutant::enable(&[PoolMutant::NothingComesBack]);
    let found = found(NodeFaultSet::Restarts, 0..100);
    PoolMutant::enable(&[]);
    assert!(found.is_some(), "{} is not found", PoolMutant::NothingComesBack.name());
}
