//! Operations during a fault that does not touch their leaf: the checker counts them, and finds
//! those that wait for the fault.

use dmtree_bench::checked::{Setting, case, run};
use dmtree_bench::registry::find;
use dmtree_check::{NodeFaultSet, Verdict};
use dmtree_engine::Mutant;
use dmtree_fabric::Capabilities;

/// Seeds that are searched for a finding of the mutant.
const MUTANT_SEEDS: u64 = 200;

fn seed(seed: u64) -> Verdict {
    let setting = Setting { grants: Capabilities::NONE, node_faults: NodeFaultSet::Crash };
    run(&case(&find("dmtree").expect("registered"), seed, setting)).expect("a seed's case runs")
}

#[test]
fn an_index_that_stops_during_a_failover_is_found() {
    let verdicts: Vec<Verdict> = (0..24).map(seed).collect();
    assert_eq!(verdicts.iter().find_map(|v| v.finding.clone()), None);
    let judged = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    let (gets, writes) = (judged(|v| v.available.gets), judged(|v| v.available.writes));
    assert!(gets > 50 && writes > 10, "{gets} gets and {writes} writes are judged");
    Mutant::enable(&[Mutant::StopForDeath]);
    let found = (0..MUTANT_SEEDS).find_map(|n| seed(n).finding.filter(|f| f.kind() == "slow"));
    Mutant::enable(&[]);
    // Few writes are judged, because one beside another write of its leaf is not: of seeds 0..800
    // none shows the mutant with a write.
    let found = found.expect("an operation that waits for a failover is too slow").to_string();
    assert!(found.contains("beside a fault that does not touch its leaf"), "{found}");
}
