//! What ROLEX refuses, in one line, before anything is written.

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::Result;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;
use dmtree_rolex::Options;

fn cluster(o: &Options) -> TestCluster {
    let pool = PoolOptions { memory_bytes_per_node: 16 << 20, ..PoolOptions::default() };
    TestCluster::new(&pool, 1 << 20, o).expect("an index")
}

/// Foretells keys in this order.
fn foretold(cluster: &TestCluster, keys: &[Vec<u8>]) -> Result<bool> {
    let ep = cluster.cluster.compute_node(0)?.endpoint(1 << 20)?;
    let mut index = cluster.nodes[0].client(ep.clone());
    ep.block_on(index.foretell(&mut keys.iter().cloned()))
}

fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    let e = result.expect_err("refused").to_string();
    assert!(e.contains(words) && !e.contains('\n'), "{e}");
}

#[test]
fn foretold_keys_ascend_and_come_first() {
    let cluster = cluster(&Options { key_bytes: 8, ..Options::published() });
    let keys = |all: &[u64]| all.iter().map(|n| Keys::Ascending.key(*n)).collect::<Vec<_>>();
    let not_above = "foretold key 3 is not above the one before";
    refused(foretold(&cluster, &keys(&[1, 3, 2])), not_above);
    refused(foretold(&cluster, &keys(&[1, 3, 3])), not_above);
    refused(foretold(&cluster, &[vec![0; 7]]), "a key of 7 bytes in an index with keys of");
    assert!(foretold(&cluster, &keys(&[1, 2, 3])).expect("foretell"));
    let mut c = cluster.client(0).expect("attach");
    c.write(&keys(&[2])[0], Write::Put(&[1; 8])).expect("put");
    refused(foretold(&cluster, &keys(&[7, 8])), "this index has pairs");
}

/// It does not train on foretold keys.
#[test]
fn an_unforetold_index_does_not_listen() {
    let cluster = cluster(&Options { key_bytes: 8, ..Options::unforetold() });
    let keys: Vec<_> = (0..100).map(|n| Keys::Ascending.key(n)).collect();
    assert!(!foretold(&cluster, &keys).expect("nothing to refuse"));
    assert_eq!(cluster.client(0).expect("attach").walk().expect("walk").leaves, [(8, 1)]);
}

#[test]
fn keys_that_a_model_would_round_are_refused() {
    for (key_bytes, digit, words) in [
        (39, b'0', "keys with 39 decimal digits behind the 0 bytes that all have in common"),
        (17, b'a', "keys with 17 bytes behind the 0 bytes"),
    ] {
        let cluster = cluster(&Options { key_bytes, ..Options::published() });
        let key = |i: u8| vec![digit + i; key_bytes as usize];
        let mut c = cluster.client(0).expect("attach");
        let pairs = || (0..3).map(|i| (key(i), vec![i; 8])).collect();
        refused(c.load(pairs(), true, 0.7), words);
        refused(c.foretell((0..3).map(key)), words);
        let shape = c.walk().expect("no lock is left");
        assert_eq!((shape.keys, &shape.leaves[..]), (0, &[(8, 1)][..]));
    }
}

/// As published a leaf has one synonym.
#[test]
fn a_full_synonym_says_so() {
    let cluster = cluster(&Options { key_bytes: 8, ..Options::unforetold() });
    let mut c = cluster.client(0).expect("attach");
    let mut put = |n| c.write(&Keys::Ascending.key(n), Write::Put(&[1; 8]));
    for n in 0..16 {
        put(n).expect("a leaf and its synonym have 16 slots");
    }
    refused(put(16), "and its synonym are full: as published a leaf has one synonym");
    put(3).expect("the lock is free");
    assert_eq!(c.walk().expect("walk").keys, 16);
}

/// Loaded keys fill the last leaf of their segment, and a larger key belongs into the leaf behind,
/// which no window of the published design reaches.
#[test]
fn a_key_behind_the_last_trained_one_is_lost() {
    for whole_window in [false, true] {
        let o = Options { key_bytes: 8, whole_window, ..Options::unforetold() };
        let cluster = cluster(&o);
        let mut c = cluster.client(0).expect("attach");
        let pair = |n: u64| (Keys::Ascending.key(n), n.to_be_bytes().to_vec());
        c.load((0..16).map(pair).collect(), true, 1.0).expect("load");
        let (key, value) = pair(100);
        c.write(&key, Write::Insert(&value)).expect("insert");
        let found = c.get(&key).expect("get");
        assert_eq!(found, whole_window.then_some(value), "whole_window = {whole_window}");
        assert_eq!(c.walk().expect("walk").keys, 17);
    }
}

/// Uniform inserts that were not foretold meet a full synonym when they are 18 % of the loaded
/// keys: 1.4 for a leaf in the mean, with room for eight.
#[test]
fn inserts_that_were_not_foretold_fail_at_last() {
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, Options::unforetold()).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    let pair = |n: u64| (Keys::Hashed24.key(n), vec![1; 8]);
    c.load((0..100_000).map(pair).collect(), false, 1.0).expect("load");
    let mut inserts = (100_000..).map(pair).map(|(k, v)| c.write(&k, Write::Insert(&v)));
    let done = inserts.by_ref().take_while(Result::is_ok).count();
    assert!((16_000..20_000).contains(&done), "{done} inserts before one fails");
}
