//! Ranges that go from one living node to another, and nodes that die on the way.

use dmtree_check::conformance::{Keys, everything, scan_all};
use dmtree_check::scenario::sweeps::everywhere;
use dmtree_check::scenario::{Op, Script, deletes, inserts, updates, value};
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_dlsm::{Merging, Mutant, Options};
use dmtree_fabric::{LeaseParameters, OpKind};
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

use crate::plays::{dies_twice, of_two, options, shown};

fn some(from: u64) -> impl Iterator<Item = Op> {
    inserts((from..100).step_by(9)).chain(updates([0, 90])).chain(deletes([from + 9]))
}

/// A node gives its range away, asks for it again, and may die at any verb.
fn gives_and_takes() -> Script {
    of_two(
        "gives and takes",
        some(1).chain([Op::HandOver]).chain(some(2)).chain([Op::Maintain]).chain(some(3)),
    )
}

/// A node has the range of another one's slice, which asks for it; it may die at any verb.
fn is_asked() -> Script {
    let beside = [Op::HandOver].into_iter().chain(updates([10, 80])).chain([Op::Maintain]);
    Script { beside: beside.chain(updates([20, 70])).collect(), ..of_two("is asked", some(1)) }
}

#[test]
fn a_crash_of_a_node_that_gives_or_takes() {
    everywhere(&gives_and_takes(), 1);
}

#[test]
fn a_crash_of_a_node_that_is_asked_for_a_range() {
    everywhere(&is_asked(), 1);
}

/// The survivor that takes over dies, too.
#[test]
fn two_crashes_around_a_hand_over() {
    dies_twice(gives_and_takes(), (3, 1));
}

/// Calls of a read at a node; then the range is elsewhere or not.
fn calls(c: &mut Client, n: u64) -> u64 {
    c.take_counts();
    assert!(c.get(&Keys::Ascending.key(n)).expect("get").is_some());
    let counts = c.take_counts();
    let (.., totals) = counts.ops.iter().find(|(kind, ..)| *kind == OpKind::Get).expect("it");
    totals.counts.cn.rpc
}

/// A node that leaves gives its ranges to the nodes that stay; one that stays asks for its slice.
#[test]
fn a_range_goes_to_another_node_and_back() {
    let o = Options { owners: 2, ..options(Merging::Near) };
    let pool = PoolOptions { memory_nodes: 2, compute_nodes: 2, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, &o).expect("an index");
    let lease_ns = 3_600_000_000_000;
    cluster
        .membership()
        .set_lease_parameters(LeaseParameters { lease_ns, ..LeaseParameters::default() });
    for cn in [0, 1, 0] {
        let node = cluster.cluster.compute_node(cn).expect("it");
        let ep = node.endpoint(0).expect("it");
        ep.core().block_on(ep.slot(), node.membership().membership_step(&ep)).expect("joined");
    }
    let [mut first, mut second] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    let pair = |n: u64| (Keys::Ascending.key(n), n.to_be_bytes().to_vec());
    first.load((0..100).map(pair).collect(), true, 0.7).expect("load");
    for n in 0..300 {
        first.write(&pair(n % 100).0, Write::Put(&pair(n).1)).expect("put");
    }
    assert_eq!([(0, 1), (99, 0)].map(|(n, there)| (calls(&mut first, n), there)), [(0, 1), (1, 0)]);
    assert_eq!((calls(&mut second, 0), calls(&mut second, 99)), (1, 0));
    let leaving = cluster.cluster.compute_node(0).expect("it");
    let ep = leaving.endpoint(8 << 20).expect("it");
    assert!(ep.core().block_on(ep.slot(), leaving.partitions().hand_over(&ep)).expect("given"));
    assert_eq!((calls(&mut first, 0), calls(&mut first, 99)), (1, 1));
    assert_eq!((calls(&mut second, 0), calls(&mut second, 99)), (0, 0));
    second.write(&pair(1).0, Write::Put(&pair(901).1)).expect("put");
    first.maintain().expect("its slice");
    assert_eq!((calls(&mut first, 0), calls(&mut first, 99)), (0, 1));
    assert_eq!((calls(&mut second, 0), calls(&mut second, 99)), (1, 0));
    let all = scan_all(&mut second, &everything(64));
    let newest = |n: u64| if n == 1 { 901 } else { 200 + n };
    assert!(all.into_iter().eq((0..100).map(|n| (pair(n).0, pair(newest(n)).1))));
    assert_eq!(second.walk().expect("walk").keys, 100);
}

/// A node has the range of another one's slice again and again while it uses it.
fn is_asked_often() -> Script {
    let round = |n: u64| [Op::HandOver, Op::Update(10, value(7_000 + n)), Op::Maintain];
    let ops = (0..120).map(|n| Op::Update(n % 5 * 10, value(8_000 + n)));
    let mut often = of_two("is asked often", ops);
    // Writers do not merge: their writes are short, and ranges go in the midst of them.
    often.options = often.options.changed(|o: Options| Options { level0_stop: 32, ..o });
    Script { beside: (0..10).flat_map(round).collect(), ..often }
}

#[test]
fn mutants_that_few_seeds_find() {
    for mutant in [Mutant::GivenInUse, Mutant::GivenFreed] {
        let found = shown(mutant, is_asked_often(), 1, 300);
        assert!(found.is_some(), "{} is not found", mutant.name());
    }
}
