//! Concurrent clients. A checker verifies their histories key by key, as far as the published
//! layouts are sound.
//!
//! They are not sound everywhere. An entry has no checksum, so one READ while its leaf is divided
//! may show the key of the old entry and the value of the new entry of a slot. A table's WRITE
//! frees the lock with its last word, which presumes that words land in ascending order. A scan
//! without tables (on memory nodes) may return a pair before its insert has reached the table, and
//! a later read may miss it. So histories are checked where READs and WRITEs execute whole, or
//! where no leaf is divided; elsewhere only the final state is checked.

use dmtree_check::concurrent::{Stress, coroutines, judge, policy, seeds, threads};
use dmtree_check::peer::workloads::{
    lose_no_write, scans_over_splits, threads_lose_no_write, write_own_keys,
};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fptree::{FpTree, Options, Tables};
use dmtree_pool::PoolOptions;

use crate::systems::{least_cache, spread, switched, systems};

fn pool(seed: u64) -> PoolOptions {
    PoolOptions {
        // On one compute node all clients meet in its queues, on several at the locks.
        compute_nodes: [3, 1, 2][seed as usize % 3],
        memory_nodes: 2,
        memory_bytes_per_node: 16 << 20,
        chunk_bytes: Some(64 << 10),
        ..PoolOptions::default()
    }
}

/// Verbs are delayed. The cache is usually enough; sometimes it has room for a few nodes only.
fn test_cluster(seed: u64, o: &Options, tearing: Tearing) -> TestCluster<FpTree> {
    let fabric = LocalFabric::with_tearing(Knobs { suspend_one_in: 2, seed }, tearing);
    let cache_bytes = if seed % 5 == 4 { 3 * least_cache(o) } else { 4 << 20 };
    TestCluster::on_local(fabric, &pool(seed), cache_bytes, o).expect("an index")
}

/// A preset, the last one first.
fn preset(seed: u64) -> Options {
    let (_, o) = systems().swap_remove([4, 3, 0, 1, 2][seed as usize % 5]);
    Options { fanout: 8, ..o }
}

/// Scans where tables show which pairs count.
fn scans(o: &Options, one_in: u64) -> u64 {
    if o.tables == Tables::Compute { one_in } else { 0 }
}

/// Verbs execute whole.
fn check_histories(
    seeds: std::ops::Range<u64>,
    o: impl Fn(u64) -> Options,
    s: impl Fn(u64, &Options) -> Stress,
) {
    for seed in seeds {
        let o = o(seed);
        let test_cluster = test_cluster(seed, &o, Tearing::Never);
        let history = coroutines(&test_cluster, s(seed, &o), &mut *policy(seed));
        judge(&test_cluster, &history, &format!("seed {seed}, {o:?}"));
    }
}

/// Few keys (one leaf or two), many writers.
#[test]
fn interleaved_on_few_keys() {
    check_histories(seeds(0, 60), preset, |seed, o| Stress {
        keys: 8 + seed % 60,
        scan_one_in: scans(o, 30),
        ..Stress::of(seed)
    });
}

/// Leaves and inner nodes are divided under readers and writers.
#[test]
fn interleaved_splits() {
    check_histories(seeds(100, 60), preset, |seed, o| {
        let keys = 300 + seed % 1_500;
        Stress { coroutines: 8, ops: 400, keys, scan_one_in: scans(o, 60), ..Stress::of(seed) }
    });
}

#[test]
fn interleaved_with_every_combination_of_switches() {
    for bits in 0..128 {
        let adaptive_capacity = bits >> 6 == 1;
        let base = Options { adaptive_capacity, fanout: 8, ..spread(Options::fptree()) };
        let o = |_| switched(bits, base.clone());
        check_histories(seeds(u64::from(bits) * 1_000, 2), o, |seed, _| Stress {
            ops: 150,
            keys: [12, 400][seed as usize % 2],
            ..Stress::of(seed)
        });
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

/// A scan with tables.
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
        let (keys, scan_one_in) = ([64, 8, 120][seed as usize % 3], scans(&o, 40));
        let s = Stress { coroutines: 3, ops: 500, keys, scan_one_in, ..Stress::of(seed) };
        let test_cluster = unsuspended(seed, &o);
        judge(&test_cluster, &threads(&test_cluster, s), &format!("seed {seed}"));
    }
}

/// Real threads that divide leaves. A read may meet a torn entry, so reads are not checked.
#[test]
fn real_threads_with_splits() {
    for seed in seeds(0, 5) {
        let o = Options { combining: true, ..preset(seed) };
        threads_lose_no_write(&unsuspended(seed, &o), 4_000);
    }
}

fn unsuspended(seed: u64, o: &Options) -> TestCluster<FpTree> {
    TestCluster::new(&pool(seed), 4 << 20, o).expect("a pool and an index")
}
