//! DMTree on a fabric that does everything the contract allows, drawn from seeds: every history is
//! linearizable, everything ends when the fabric behaves again, and afterwards every invariant
//! holds.

use dmtree_check::case::{Case, Draw, Drawn};
use dmtree_check::concurrent::seeds;
use dmtree_check::fault::NodeFaultSet;
use dmtree_engine::{DmNode, DmTree, Options};
use dmtree_fabric::Capabilities;

/// The case of a seed: that of `dmtree check --system dmtree`.
fn case(seed: u64) -> Case {
    case_with(seed, NodeFaultSet::None)
}

fn case_with(seed: u64, faults: NodeFaultSet) -> Case {
    let index = |d: &mut Draw| {
        let o = Options::default().drawn(true, &mut |n| d.below(n));
        Drawn {
            least_cache_bytes: DmNode::least_cache_bytes(&o.geometry()),
            options: serde_json::to_value(&o).unwrap(),
            value_bytes: None,
        }
    };
    Case::of_seed("dmtree", seed, (Capabilities::NONE, faults), &index)
}

fn run(seed: u64) {
    let case = case(seed);
    let verdict = dmtree_check::run::<DmTree>(&case).unwrap();
    if let Some(finding) = verdict.finding {
        panic!("seed {seed}: {finding}\n{}", case.to_json());
    }
    assert!(verdict.operations >= 200, "seed {seed}: {} operations", verdict.operations);
}

#[test]
fn adversarial_seeds() {
    seeds(0, 200).for_each(run);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let [a, b] = [0, 1].map(|_| dmtree_check::run::<DmTree>(&case(seed)).unwrap());
        assert_eq!((a.trace_hash, a.log), (b.trace_hash, b.log), "seed {seed}");
        let other = Case { order: 1 << 40, ..case(seed) };
        assert_ne!(a.trace_hash, dmtree_check::run::<DmTree>(&other).unwrap().trace_hash);
    }
}

/// The same while compute nodes crash and come back.
#[test]
fn adversarial_seeds_with_crashes() {
    let mut wrong = Vec::new();
    for seed in seeds(1_000_060, 48) {
        let case = case_with(seed, NodeFaultSet::Crash);
        let verdict = dmtree_check::run::<DmTree>(&case).unwrap();
        if let Some(finding) = verdict.finding {
            wrong.push(format!("seed {seed}: {finding}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
