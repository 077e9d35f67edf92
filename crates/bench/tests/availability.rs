//! Operations during a fault that does not touch their leaf: the checker counts them, and finds
//! those that wait for the fault.

use dmtree_bench::checked::{Setting, case, run};
use dmtree_bench::registry::find;
use dmtree_check::{FaultSet, Verdict};
use dmtree_engine::Defect;
use dmtree_fabric::Capabilities;

/// Seeds that are searched for a finding of the mutant; 1 in 100 shows it with a get.
const MUTANT_SEEDS: u64 = 800;

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
    // The first seeds that show the mutant with a get, and with a write.
    let slow = |n| seed(n).finding.filter(|f| f.kind() == "slow").map(|f| f.to_string());
    let (mut get, mut write) = (None, None);
    for found in (0..MUTANT_SEEDS).filter_map(slow) {
        let of = if found.contains("get k") { &mut get } else { &mut write };
        of.get_or_insert(found);
        if get.is_some() && write.is_some() {
            break;
        }
    }
    Defect::plant(&[]);
    for found in [get, write] {
        let found = found.expect("an operation that waits for a death is too slow");
        assert!(found.contains("beside a fault that does not touch its leaf"), "{found}");
    }
}
