//! Operations during a fault that does not touch their leaf: the checker counts them, and finds
//! those that wait for the fault.

use dmtree_bench::checked::{Setting, case, run};
use dmtree_bench::registry::find;
use dmtree_check::{FaultSet, Verdict};
use dmtree_engine::Defect;
use dmtree_fabric::Capabilities;

fn seed(seed: u64) -> Verdict {
    let setting = Setting { grants: Capabilities::NONE, faults: FaultSet::Crash };
    run(&case(&find("dmtree").expect("registered"), seed, setting)).expect("a seed's case runs")
}

#[test]
fn an_index_that_stops_for_a_death_is_found() {
    let verdicts: Vec<Verdict> = (0..24).map(seed).collect();
    assert_eq!(verdicts.iter().find_map(|v| v.finding.clone()), None);
    let judged = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    let (gets, writes) = (judged(|v| v.available.gets), judged(|v| v.available.writes));
    assert!(gets > 50 && writes > 10, "{gets} gets and {writes} writes are judged");
    Defect::plant(&[Defect::StopForDeath]);
    // Of seeds 0..400 these are the first that show the mutant, one with a get and one with an
    // update.
    let slow = |n| seed(n).finding.filter(|f| f.kind() == "slow").map(|f| f.to_string());
    let (get, update) = (slow(3), slow(210));
    Defect::plant(&[]);
    for found in [get, update] {
        let found = found.expect("who waits for a death is too slow");
        assert!(found.contains("beside a fault that does not touch its leaf"), "{found}");
    }
}
