//! Mutants that checked runs do not show: real threads do, as a handler is one step in virtual
//! time, or operations that such runs do not draw. They are enabled for the whole process, so this
//! program has one test.

use dmtree_check::concurrent::Stress;
use dmtree_check::conformance::Keys;
use dmtree_check::peer::workloads::check_threads;
use dmtree_check::test_cluster::TestCluster;
use dmtree_check::verdict::caught;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;
use dmtree_rpc::{Mutant, Options};

fn threads_on_few_keys() {
    for seed in 0..20 {
        let s = Stress { ops: 2_000, keys: 12, value_bytes: 200, ..Stress::of(seed) };
        check_threads(Options::default(), Stress { coroutines: 1, ..s });
    }
}

fn cluster() -> TestCluster {
    let pool = PoolOptions { memory_nodes: 2, compute_nodes: 2, ..PoolOptions::default() };
    TestCluster::new(&pool, 1 << 20, Options::default()).expect("an index")
}

fn batches_are_whole() {
    let cluster = cluster();
    let mut client = cluster.client(0).expect("attach");
    let keys: Vec<_> = (0..20).map(|n| Keys::Ascending.key(n)).collect();
    let writes: Vec<_> = keys.iter().map(|key| (&key[..], Write::Put(b"v"))).collect();
    let outcomes = client.write_many(&writes).expect("writes");
    assert!(outcomes.iter().all(Result::is_ok));
    assert!(keys.iter().all(|key| client.get(key).expect("reads").is_some()));
}

fn keys_from_before_a_load_stay() {
    let cluster = cluster();
    let [mut first, mut loader] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    first.write(b"zz", Write::Put(b"v")).expect("writes");
    let pairs = (0..900).map(|n| (Keys::Ascending.key(n), b"v".to_vec())).collect();
    loader.load(pairs, true, 0.7).expect("loads");
    assert!(first.get(b"zz").expect("reads").is_some());
}

#[test]
fn mutants_are_found() {
    let all: [(Mutant, fn()); 3] = [
        (Mutant::NoLatch, threads_on_few_keys),
        (Mutant::HalfBatch, batches_are_whole),
        (Mutant::CutWithKeys, keys_from_before_a_load_stay),
    ];
    for (mutant, check) in all {
        check();
        Mutant::enable(&[mutant]);
        let found = caught(check).is_err();
        Mutant::enable(&[]);
        assert!(found, "{mutant:?}");
    }
}
