//! The sound `chime` with a twentieth of the cache that its inner nodes want.

use std::collections::BTreeMap;

use dmtree_check::conformance::{Keys, above};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_parts::{AnyNode, Outcome, Page, Write};
use dmtree_pool::PoolOptions;

const KEYS: u64 = 40_000;

fn options() -> Options {
    Options { fanout: 8, ..dmtree_chime::sound::options() }
}

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

fn loaded(cache_bytes: u64) -> TestCluster {
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, cache_bytes, options()).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    c.load((0..KEYS).map(|n| (key(n), value(n))).collect(), false, 0.7).expect("room");
    cluster
}

fn used(node: &AnyNode) -> u64 {
    node.cache_stats().used_bytes
}

#[test]
fn a_twentieth_of_the_inner_nodes_answers() {
    let all = loaded(1 << 30);
    let mut c = all.client(0).expect("attach");
    (0..KEYS).for_each(|n| assert!(c.get(&key(n)).expect("an answer").is_some()));
    let wanted = used(&all.nodes[0]);
    let budget = wanted / 20;
    let few = loaded(budget);
    let mut c = few.client(0).expect("attach");
    let mut all: BTreeMap<_, _> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    for n in (0..KEYS).step_by(3) {
        let w = if n % 2 == 0 { Write::Delete } else { Write::Update(b"replaced") };
        assert_eq!(c.write(&key(n), w).expect("room"), Outcome::Done, "key {n}");
        match w {
            Write::Delete => _ = all.remove(&key(n)),
            _ => _ = all.insert(key(n), b"replaced".to_vec()),
        }
    }
    for n in KEYS..KEYS + 4_000 {
        assert_eq!(c.write(&key(n), Write::Insert(&value(n))).expect("room"), Outcome::Done);
        all.insert(key(n), value(n));
    }
    (0..KEYS + 4_000).for_each(|n| {
        assert_eq!(c.get(&key(n)).expect("an answer").as_ref(), all.get(&key(n)), "key {n}");
    });
    let mut page = Page::new();
    for n in (0..KEYS).step_by(997) {
        let low = key(n);
        c.scan(&above(&low, 100), &mut page).expect("a page");
        let wanted = all.range(low.clone()..).take(100).map(|(k, v)| (&k[..], &v[..]));
        assert!(page.iter().eq(wanted), "from {n}");
    }
    let stats = few.nodes[0].cache_stats();
    assert_eq!(stats.budget_bytes, budget);
    assert!(stats.used_bytes <= budget && 2 * stats.used_bytes > budget, "{stats:?}");
    c.walk().expect("every invariant holds");
}
