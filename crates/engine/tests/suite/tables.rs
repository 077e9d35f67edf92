//! Reassigned tables are unbuilt at their new owner: readers alone bring their cost back to normal,
//! without a single write.

use dmtree_check::conformance::{Keys, everything};
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_engine::Options;
use dmtree_fabric::{Endpoint, LeaseParameters, MemberPhase, OpKind, Result, Totals};
use dmtree_parts::{Outcome, Write};
use dmtree_pool::PoolOptions;

const N: u64 = 3_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

/// Two compute nodes with leases that hold as long as the test runs.
fn test_cluster() -> TestCluster {
    let pool =
        PoolOptions { compute_nodes: 2, memory_bytes_per_node: 32 << 20, ..PoolOptions::default() };
    let test_cluster: TestCluster =
        TestCluster::new(&pool, 16 << 20, Options::default()).expect("a pool");
    let lease_parameters = LeaseParameters {
        lease_ns: 600_000_000_000,
        acknowledge_ns: 600_000_000_000,
        ..LeaseParameters::default()
    };
    test_cluster
        .cluster
        .in_process_membership()
        .expect("in this process")
        .set_lease_parameters(lease_parameters);
    let mut c = test_cluster.client(0).expect("attach");
    c.load((0..N).map(|n| (key(n), n.to_le_bytes().to_vec())).collect(), false, 0.7).expect("load");
    test_cluster
}

fn run<T>(ep: &Endpoint, f: impl Future<Output = Result<T>>) -> T {
    ep.core().block_on(ep.slot(), f).expect("works")
}

/// The first node hands its tables over to the second one, and leaves.
fn first_leaves(test_cluster: &TestCluster) {
    let nodes = [0, 1].map(|i| test_cluster.cluster.compute_node(i).expect("exists"));
    let eps = [0, 1].map(|i: usize| nodes[i].endpoint(0).expect("a member"));
    let keep = |i: usize| run(&eps[i], nodes[i].membership().membership_step(&eps[i]));
    (0..2).for_each(keep);
    while !run(&eps[0], nodes[0].partitions().hand_over(&eps[0])) {
        (0..4).for_each(|i| keep(i % 2));
    }
    run(&eps[0], nodes[0].membership().leave(&eps[0]));
    while nodes[1].membership().phase(nodes[0].cn(), nodes[0].member().incarnation)
        != Some(MemberPhase::Gone)
    {
        keep(1);
    }
}

fn gets(c: &mut Client, keys: std::ops::Range<u64>, present: bool) -> Totals {
    c.take_counts();
    keys.for_each(|n| assert_eq!(c.get(&key(n)).expect("get").is_some(), present, "key {n}"));
    c.take_counts().total(&[OpKind::Get])
}

/// Round trips and bytes from memory nodes of one operation.
fn costs(t: &Totals) -> (f64, f64) {
    let per = |n: u64| n as f64 / t.ops as f64;
    (per(t.counts.round_trips), per(t.counts.mn.bytes_read))
}

#[test]
fn readers_whose_writers_have_left_cost_one_round_trip() {
    let test_cluster = test_cluster();
    first_leaves(&test_cluster);
    let mut c = test_cluster.client(1).expect("attach");
    let before = c.walk().expect("unbuilt tables break nothing").unbuilt_tables;
    assert!(before > 30, "{before} tables have moved");
    let first = costs(&gets(&mut c, 0..N, true));
    let (rtt, bytes) = costs(&gets(&mut c, 0..N, true));
    assert!(rtt <= 1.05 && bytes <= 42.0, "{rtt} round trips, {bytes} bytes, {first:?} before");
    c.maintain().expect("maintain");
    assert_eq!(c.walk().expect("a sound tree").unbuilt_tables, 0, "what was met is built");
    let absent = gets(&mut c, N..2 * N, false);
    let (rtt, _) = costs(&absent);
    assert!(rtt <= 1.2, "{rtt} round trips for keys that are absent");
    let written = c.write(&key(N), Write::Insert(b"12345678")).expect("insert");
    assert_eq!(written, Outcome::Done);
}

/// Scans and absent keys bring tables back, too, and many readers build each once.
#[test]
fn any_reader_has_tables_built() {
    for scans in [false, true] {
        let test_cluster = test_cluster();
        first_leaves(&test_cluster);
        let mut readers: Vec<_> = (0..4).map(|_| test_cluster.client(1).expect("attach")).collect();
        for c in &mut readers {
            if scans {
                c.scan(&everything(N as usize), &mut dmtree_parts::Page::new()).expect("scan");
            } else {
                gets(c, N..2 * N, false);
            }
        }
        readers.iter_mut().for_each(|c| c.maintain().expect("maintain"));
        let shape = readers[0].walk().expect("a sound tree");
        assert_eq!((shape.keys, shape.unbuilt_tables), (N, 0), "scans: {scans}");
    }
}
