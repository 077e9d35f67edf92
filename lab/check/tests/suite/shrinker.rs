//! The shrinker, with a pretended defect.

use dmtree_check::log::{Call, Wrong};
use dmtree_check::shrink::shrink;
use dmtree_check::{Case, Finding, Verdict, plan};
use dmtree_fabric::sim::FabricFaults;
use dmtree_parts::OpSet;

fn case(seed: u64) -> Case {
    Case { scan_one_in: 0, neighbours: 3, ..Case::of_any_system(seed, None) }
}

/// Fails when two clients put to the first key, and atomics are split.
fn pretend(case: &Case) -> Verdict {
    let mut putters = 0;
    for c in 0..case.clients {
        let puts = case.numbers_of(c).into_iter().any(|op| {
            let mut rng = plan::draws(case, c, op);
            let call = plan::operation(case, OpSet::ALL, (c, op), &mut rng, None);
            matches!(call, Call::Put(0, _))
        });
        putters += u32::from(puts);
    }
    let wrong = putters >= 2 && case.fabric_faults.atomic_gap_ns > 0;
    let finding =
        wrong.then(|| Finding::History(Wrong::Answer { record: 0, why: "pretended".to_owned() }));
    Verdict { finding, ..Verdict::default() }
}

#[test]
fn irrelevant_parts_are_removed() {
    let mut shrunk = 0;
    for seed in 0..40 {
        let case = case(seed);
        let verdict = pretend(&case);
        if verdict.finding.is_none() {
            continue;
        }
        shrunk += 1;
        let s = shrink(case, verdict, &mut |c| Some(pretend(c)), &mut || true);
        assert_eq!(s.case.operations(), 2, "{:?}", s.case);
        assert!(s.case.keys == 1 && s.case.neighbours == 0 && !s.case.liveness, "{:?}", s.case);
        let left = FabricFaults {
            atomic_gap_ns: s.case.fabric_faults.atomic_gap_ns,
            ..FabricFaults::NONE
        };
        assert_eq!(s.case.fabric_faults, left);
        assert!(s.verdict.finding.is_some());
    }
    assert!(shrunk > 10, "{shrunk}");
}

#[test]
fn it_ends_when_time_is_over() {
    let seed = (0..100).find(|s| pretend(&case(*s)).finding.is_some()).unwrap();
    let mut left = 5;
    let mut more = || {
        left -= 1;
        left > 0
    };
    let s = shrink(case(seed), pretend(&case(seed)), &mut |c| Some(pretend(c)), &mut more);
    assert!(s.runs <= 5 && s.verdict.finding.is_some(), "{}", s.runs);
}
