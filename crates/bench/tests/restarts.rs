//! Mutants of membership, enabled one at a time: seeds of the restart faults find each.

use dmtree_bench::checked::{Setting, case, run};
use dmtree_bench::registry::find;
use dmtree_check::{Case, NodeFaultSet};
use dmtree_fabric::{Capabilities, Mutant};
use dmtree_pool::PoolMutant;

/// The first seed that goes wrong, and how.
fn first(mutant: Option<Mutant>, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    let system = find("dmtree").expect("it is registered");
    seeds.into_iter().find_map(|seed| {
        let setting = Setting { grants: Capabilities::NONE, node_faults: NodeFaultSet::Restarts };
        let case = Case { mutant, ..case(&system, seed, setting) };
        let verdict = run(&case).expect("a seed's case runs");
        verdict.finding.map(|f| (seed, f.to_string()))
    })
}

/// One test, because an enabled mutant is on in the whole process. [`Mutant::NumbersStay`] is not
/// among them: here a number is drawn for an incarnation only when it is free, and seeds of the
/// network find it.
#[test]
fn seeds_find_the_mutants_of_membership() {
    let membership = [Mutant::NewcomersOwe, Mutant::AwayOwe];
    let mut all: Vec<_> =
        membership.iter().map(|m| (format!("{m:?}"), first(Some(*m), 0..100))).collect();
    PoolMutant::enable(&[PoolMutant::NothingComesBack]);
    all.push((PoolMutant::NothingComesBack.name().to_owned(), first(None, 0..100)));
    PoolMutant::enable(&[]);
    assert!(all.iter().all(|(_, found)| found.is_some()), "not found: {all:#?}");
}
