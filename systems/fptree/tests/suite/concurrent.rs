//! Concurrent clients. A checker verifies their histories key by key, as far as the published
//! layouts are sound.
//!
//! An entry has no checksum: a READ while its leaf is divided may show the old key with the new
//! value. A table's WRITE frees the lock with its last word, so words have to land in ascending
//! order. A scan without tables may return a pair that a later read misses. Histories are checked
//! where verbs execute whole, or no leaf is divided; elsewhere the final state is.

use dmtree_check::concurrent::{Stress, seeds};
use dmtree_check::peer::workloads::{
    check_history, check_threads, contended, lose_no_write, scans_over_splits, suspended,
    write_own_keys,
};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::golden_hash;
use dmtree_fabric::local::Tearing;
use dmtree_fptree::{Options, Tables};
use dmtree_parts::peer::typed;
use dmtree_parts::{Outcome, Write};

use crate::systems::{peer, switched};

/// The cache is usually enough; sometimes it has room for a few nodes only.
fn test_cluster(seed: u64, o: &Options, tearing: Tearing) -> TestCluster {
    let cache_bytes = if seed % 5 == 4 { 3 * peer().least_cache(&o.into()) } else { 4 << 20 };
    suspended(seed, o, cache_bytes, tearing)
}

fn preset(seed: u64) -> Options {
    let (_, o) = peer().systems.swap_remove([4, 3, 0, 1, 2][seed as usize % 5]);
    Options { fanout: 8, ..typed(&o) }
}

#[test]
fn interleaved_with_every_combination_of_switches() {
    for bits in 0..128 {
        let o = switched(bits, Options { adaptive_capacity: bits >> 6 == 1, ..preset(2) });
        for seed in seeds(u64::from(bits) * 1_000, 2) {
            let keys = [12, 400][seed as usize % 2];
            let s = Stress { ops: 150, keys, ..Stress::of(seed) };
            check_history(&test_cluster(seed, &o, Tearing::Never), s, &format!("{bits:07b}"));
        }
    }
}

#[test]
fn scans_over_splits_miss_and_repeat_nothing() {
    for seed in seeds(300, 60) {
        let o = preset(seed);
        let exact = o.tables == Tables::Compute;
        scans_over_splits(&test_cluster(seed, &o, Tearing::Never), seed, false, exact);
    }
}

#[test]
fn torn_scans_over_splits_miss_one_key_at_most() {
    for seed in seeds(400, 60) {
        let o = preset([0, 1, 4][seed as usize % 3]);
        scans_over_splits(&test_cluster(seed, &o, Tearing::Ascending), seed, true, false);
    }
}

/// Words land in ascending order, as the layouts presume. A read may meet a torn entry.
#[test]
fn torn_ascending_verbs_lose_no_write() {
    for seed in seeds(500, 40) {
        lose_no_write(&test_cluster(seed, &preset(seed), Tearing::Ascending), seed, 300);
    }
}

/// Words that land in any order: the lock word of a table may be free before its fingerprints have
/// landed, and none of these layouts tolerates that. The test checks that no client panics and
/// every call ends.
#[test]
fn verbs_torn_in_any_order_end() {
    for seed in seeds(600, 15) {
        let o = Options { timeout_ms: 2, ..preset(seed) };
        write_own_keys(&test_cluster(seed, &o, Tearing::AnyOrder), seed, 60);
    }
}

/// Real threads, on one leaf that is never divided.
#[test]
fn real_threads_on_one_leaf() {
    for seed in seeds(0, 5) {
        let o = Options { leaf_capacity: 128, ..preset(seed) };
        let scan_one_in = if o.tables == Tables::Compute { 40 } else { 0 };
        let keys = [64, 8, 120][seed as usize % 3];
        let s = Stress { coroutines: 3, ops: 500, keys, scan_one_in, ..Stress::of(seed) };
        check_threads(&o, s);
    }
}

/// Real threads that divide leaves: each inserts keys of its own and updates them at once. A read
/// may meet a torn entry, so reads are not checked meanwhile. Every key is there at the end.
#[test]
fn real_threads_with_splits() {
    let key = |n: u64| format!("key-{:020}", golden_hash(n)).into_bytes();
    for seed in seeds(0, 5) {
        let o = Options { combining: true, ..preset(seed) };
        let test_cluster = &TestCluster::new(&contended(seed), 4 << 20, &o).expect("an index");
        let own_keys = |t: u64| {
            let cn = t as usize % test_cluster.nodes.len();
            let mut c = test_cluster.client(cn).expect("attach");
            for n in (0..4_000).map(|i| i * 4 + t) {
                let mut write = |w| c.write(&key(n), w).expect("write");
                assert_eq!(write(Write::Insert(&[1; 8])), Outcome::Done);
                let done = write(Write::Update(&n.to_le_bytes()));
                assert_eq!(done, Outcome::Done, "an acknowledged key is gone");
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|t| _ = scope.spawn(move || own_keys(t))));
        let mut c = test_cluster.client(0).expect("attach");
        for n in 0..16_000u64 {
            assert_eq!(c.get(&key(n)).expect("get"), Some(n.to_le_bytes().to_vec()), "key {n}");
        }
        assert_eq!(c.walk().expect("every invariant holds").keys, 16_000);
    }
}
