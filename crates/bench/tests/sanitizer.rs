//! The sanitizer in checked runs of DMTree.

use dmtree_bench::checked::{Setting, case, run};
use dmtree_bench::registry::find;
use dmtree_check::{NodeFaultSet, Verdict};
use dmtree_engine::Mutant;
use dmtree_fabric::Capabilities;

fn seed(seed: u64) -> Verdict {
    let setting = Setting { grants: Capabilities::NONE, node_faults: NodeFaultSet::None };
    run(&case(&find("dmtree").expect("registered"), seed, setting)).expect("a seed's case runs")
}

/// A merged leaf that is retired before readers have left it: the merge then writes memory that has
/// another owner or none.
#[test]
fn a_write_to_memory_that_was_given_back_is_found() {
    assert_eq!((0..3).find_map(|s| seed(s).finding), None);
    Mutant::enable(&[Mutant::RetireMergedEarly]);
    let found = (0..3).find_map(|s| seed(s).finding);
    Mutant::enable(&[]);
    let found = found.expect("a leaf was retired too early");
    assert_eq!(found.kind(), "access", "{found}");
}
