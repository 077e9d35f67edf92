//! Slices of compute nodes, and what is refused in one line.

use dmtree_check::conformance::{Keys, everything, scan_all};
use dmtree_check::test_cluster::TestCluster;
use dmtree_dlsm::Options;
use dmtree_fabric::{ErrorKind, Result};
use dmtree_parts::{RangeIndex, Write};
use dmtree_pool::PoolOptions;

fn pool(compute_nodes: u16) -> PoolOptions {
    PoolOptions { memory_nodes: 2, compute_nodes, ..PoolOptions::default() }
}

fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    let e = result.expect_err("refused").to_string();
    assert!(e.contains(words) && !e.contains('\n'), "{e}");
}

/// Every owner has its part of a load, and takes no other key.
#[test]
fn a_load_is_cut_into_slices() {
    let o = Options { owners: 2, shards: 3, ..Options::default() };
    let cluster = TestCluster::new(&pool(2), 1 << 20, &o).expect("an index");
    let pair = |n: u64| (Keys::Ascending.key(n), n.to_be_bytes().to_vec());
    let [mut first, mut second] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    second.load((0..900).map(pair).collect(), true, 0.7).expect("load");
    for n in 0..900 {
        let (own, other) =
            if n < 450 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let (key, value) = pair(n);
        assert_eq!(own.get(&key).expect("its own"), Some(value));
        refused(other.get(&key), "belongs to compute node");
        refused(other.write(&key, Write::Put(b"v")), "affinity own");
        own.write(&key, Write::Put(b"newer")).expect("its own");
    }
    for client in [&mut first, &mut second] {
        let found = scan_all(client, &everything(37));
        assert_eq!((found.len(), client.walk().expect("walk").keys), (450, 450));
        assert!(found.iter().all(|(_, value)| value == b"newer"));
    }
}

/// Borders that are given count before a load, too.
#[test]
fn borders_can_be_given() {
    let border = Keys::Ascending.key(100);
    let o = Options { owners: 2, borders: vec![border.clone()], ..Options::default() };
    let cluster = TestCluster::new(&pool(2), 1 << 20, &o).expect("an index");
    let [mut first, mut second] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    second.write(&border, Write::Insert(b"v")).expect("its own");
    refused(first.write(&border, Write::Put(b"v")), "belongs to compute node 1");
    first.write(&Keys::Ascending.key(99), Write::Put(b"v")).expect("its own");
}

/// What an owner has in its memory is not there for another opening of the index.
#[test]
fn an_index_is_opened_once() {
    let cluster = TestCluster::new(&pool(1), 1 << 20, Options::default()).expect("an index");
    cluster.client(0).expect("attach").write(b"k", Write::Put(b"v")).expect("put");
    let again = TestCluster::find(cluster.cluster.clone(), 1 << 20, &cluster.options, "test");
    let mut again = again.expect("it is in the catalog").client(0).expect("attach");
    let e = again.get(b"k").expect_err("it is lost");
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let o = Options { memtable_bytes: 4096, ..Options::default() };
    let cluster = TestCluster::new(&pool(2), 1 << 20, &o).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    refused(c.write(b"k", Write::Put(&[0; 4096])), "over memtable_bytes, which is 4096");
    let batch: Vec<_> = (0..100u8).map(|n| (vec![n + 1], [n; 100])).collect();
    let batch: Vec<_> = batch.iter().map(|(k, v)| (&k[..], Some(&v[..]))).collect();
    refused(c.write_batch(&batch), "a batch of 11700 bytes is over memtable_bytes");
    assert_eq!(c.walk().expect("walk").keys, 0, "nothing of it is there");
    let mut other = cluster.client(1).expect("attach");
    refused(other.write(b"k", Write::Put(b"v")), "an index without borders belongs to compute");
    assert!(!dmtree_dlsm::Dlsm::any_node(&o));
}
