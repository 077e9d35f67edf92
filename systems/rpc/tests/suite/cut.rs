//! Ranges of memory nodes.

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::TestCluster;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;
use dmtree_rpc::{Options, Reads};

/// Regression: a compute node had a route to the only leaf of the empty index, and found the keys
/// absent there that a load put on other memory nodes: the leaf did not say where its range ends.
#[test]
fn a_route_from_before_the_cut_leads_to_no_key_of_another_range() {
    let pool = PoolOptions { memory_nodes: 3, compute_nodes: 2, ..PoolOptions::default() };
    for reads in [Reads::Farm, Reads::Hybrid, Reads::Call] {
        let o = Options::reading(reads);
        let cluster = TestCluster::new(&pool, 1 << 20, &o).expect("an index");
        let mut late = cluster.client(0).expect("attach");
        let keys: Vec<_> = (1..=900).map(|n| Keys::Ascending.key(n)).collect();
        assert_eq!(late.get(&keys[0]).expect("reads"), None);
        let mut loader = cluster.client(1).expect("attach");
        let pairs = keys.iter().map(|key| (key.clone(), b"v".to_vec()));
        loader.load(pairs.collect(), true, 0.7).expect("loads");
        for key in &keys {
            assert_eq!(late.get(key).expect("reads").as_deref(), Some(&b"v"[..]), "{reads:?}");
        }
        // (Regression: the first leaf of another range, which has no lower fence, took the place of
        // the first leaf of all in the routes.)
        assert!(late.get(&keys[0]).expect("reads").is_some(), "{reads:?}");
        late.write(&keys[899], Write::Delete).expect("writes");
        assert_eq!(loader.get(&keys[899]).expect("reads"), None);
    }
}
