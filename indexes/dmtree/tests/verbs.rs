//! Operations cost on a real RDMA device what they cost in memory of this process: the same verbs,
//! bytes and round trips.
#![cfg(feature = "verbs")]

use std::ops::Bound;

use dmtree_check::conformance::Keys;
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_engine::{DmTree, Options, Tables};
use dmtree_fabric::Snapshot;
use dmtree_parts::{Page, ScanRequest, Write};
use dmtree_pool::{Cluster, PoolOptions};

fn pool() -> PoolOptions {
    PoolOptions { compute_nodes: 3, memory_bytes_per_node: 64 << 20, ..PoolOptions::default() }
}

/// Loads, then reads, updates, inserts, deletes and scans with one client.
fn counts_of(mut c: Client<DmTree>) -> Snapshot {
    let key = |n| Keys::Hashed24.key(n);
    let loaded = 3_000;
    let pairs = (0..loaded).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    c.load(pairs, false, 0.7).expect("load");
    let mut rng = Rng::new(11);
    for i in 0..3_000u64 {
        let (some, value) = (key(rng.below(loaded * 2)), i.to_le_bytes());
        let low = Bound::Included(&some[..]);
        match rng.below(10) {
            0..=3 => _ = c.get(&some).expect("get"),
            4..=5 => _ = c.write(&some, Write::Update(&value)).expect("update"),
            6 => _ = c.write(&some, Write::Put(&value)).expect("put"),
            7 => _ = c.write(&some, Write::Insert(&[3; 200])).expect("insert"),
            8 => _ = c.write(&some, Write::Delete).expect("delete"),
            _ => {
                let request =
                    ScanRequest { low, high: Bound::Unbounded, reverse: false, limit: 20 };
                c.scan(&request, &mut Page::new()).expect("scan");
            }
        }
    }
    c.maintain().expect("maintain");
    c.take_counts()
}

#[test]
fn one_clients_counts_equal_those_on_local() {
    if dmtree_fabric::verbs::Nic::open(&dmtree_fabric::verbs::Config::default()).is_err()
        && std::env::var_os("DMTREE_NEED_RDMA").is_none()
    {
        #[expect(clippy::disallowed_macros, reason = "a skip is loud")]
        {
            println!("SKIPPED: this machine has no RDMA device");
        }
        return;
    }
    for tables in [Tables::Compute, Tables::Memory] {
        let o = Options { tables, ..Options::default() };
        let local = Cluster::embedded(&pool()).expect("a pool");
        let local = TestCluster::<DmTree>::on(local, 16 << 20, &o).expect("an index");
        let verbs = TestCluster::<DmTree>::on_verbs(&pool(), 16 << 20, &o).expect("an index");
        let here = counts_of(local.client(0).expect("attach"));
        let there = counts_of(verbs.client(0).expect("attach"));
        for (a, b) in here.ops.iter().zip(&there.ops) {
            assert_eq!(a, b, "{tables:?}");
        }
        assert_eq!(here.ops.len(), there.ops.len());
        assert_eq!((here.nodes, here.loose), (there.nodes, there.loose));
    }
}
