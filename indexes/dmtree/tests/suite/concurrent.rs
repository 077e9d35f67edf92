//! Concurrent clients on DMTree; their histories are checked key by key.

use dmtree_check::concurrent::{Stress, coroutines, judge, policy, seeds, threads};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmTree, Options, Tables};
use dmtree_fabric::local::Knobs;
use dmtree_pool::PoolOptions;

fn test_cluster(knobs: Knobs, o: &Options) -> TestCluster<DmTree> {
    let pool = PoolOptions {
        // On one compute node all clients meet in its queues; on several, at the locks.
        compute_nodes: [3, 1, 2][knobs.seed as usize % 3],
        memory_nodes: 2,
        memory_bytes_per_node: 32 << 20,
        knobs,
        ..PoolOptions::default()
    };
    TestCluster::new(&pool, 4 << 20, o).expect("a pool and an index")
}

fn check(test_cluster: &TestCluster<DmTree>, s: Stress, what: &str) {
    let history = coroutines(test_cluster, s, &mut *policy(s.seed));
    judge(test_cluster, &history, what);
}

/// Interleaved at verbs on one thread, in orders drawn from seeds.
#[test]
fn interleaved_coroutines() {
    for seed in seeds(0, 60) {
        let knobs = Knobs { suspend_one_in: 2, seed };
        let o = match seed % 4 {
            0 => Options::default(),
            1 => Options { mirrors: seed % 8 == 1, tables: Tables::Memory, ..Options::default() },
            2 => Options { value_inline_bytes: 64, ..Options::default() },
            _ => Options {
                round_trip_combining: false,
                combining: seed % 8 == 3,
                ..Options::default()
            },
        };
        let test_cluster = test_cluster(knobs, &o);
        let s = Stress {
            ops: 250,
            keys: 8 + seed % 100,
            value_bytes: [8, 8, 60, 200][seed as usize % 4],
            scan_one_in: 40,
            ..Stress::of(seed)
        };
        check(&test_cluster, s, &format!("seed {seed}"));
    }
}

/// Every combination of the ablation switches, sound under interleaving.
#[test]
fn interleaved_with_every_combination_of_switches() {
    for bits in 0..64u64 {
        let on = |n: u64| bits >> n & 1 == 1;
        let o = Options {
            mirrors: on(0),
            tables: if on(1) { Tables::Memory } else { Tables::Compute },
            delegation: on(2),
            combining: on(3),
            adaptive_capacity: on(4),
            round_trip_combining: on(5),
            fanout: 8,
            ..Options::default()
        };
        for seed in seeds(bits * 1_000, 2) {
            let test_cluster = test_cluster(Knobs { suspend_one_in: 2, seed }, &o);
            let s = Stress {
                ops: 150,
                keys: [12, 400][seed as usize % 2],
                scan_one_in: 40,
                ..Stress::of(seed)
            };
            check(&test_cluster, s, &format!("switches {bits:06b}, seed {seed}"));
        }
    }
}

/// Splits and merges under concurrent readers: many keys, small leaves.
#[test]
fn interleaved_structure_changes() {
    for seed in seeds(100, 40) {
        let o = Options { fanout: 8, mirrors: !seed.is_multiple_of(3), ..Options::default() };
        let test_cluster = test_cluster(Knobs { suspend_one_in: 2, seed }, &o);
        let s = Stress {
            coroutines: 8,
            ops: 400,
            keys: 150 + seed % 600,
            scan_one_in: 60,
            ..Stress::of(seed)
        };
        check(&test_cluster, s, &format!("seed {seed}"));
    }
}

/// Filled and emptied in waves: leaves split and merge all the time under readers and scans.
/// (Regression: a scan repeated keys when the leaf that covers its cursor had meanwhile taken over
/// its left neighbour's range.)
#[test]
fn interleaved_waves() {
    for seed in seeds(2_000, 30) {
        let o = Options { fanout: 8, mirrors: !seed.is_multiple_of(3), ..Options::default() };
        let test_cluster = test_cluster(Knobs { suspend_one_in: 2, seed }, &o);
        let s = Stress {
            coroutines: 8,
            ops: 500,
            keys: 100 + seed % 300,
            scan_one_in: 8,
            wave_ops: 60 + seed % 60,
            ..Stress::of(seed)
        };
        check(&test_cluster, s, &format!("seed {seed}"));
    }
}

/// Threads really tear images. (Regression: a key deleted from one slot and inserted into another
/// while a scan sampled the leaf was returned twice.)
#[test]
fn real_threads_on_few_keys() {
    for seed in seeds(0, 6) {
        let wide = seed % 4 == 3;
        let o = Options {
            value_inline_bytes: if wide { 64 } else { 8 },
            mirrors: !seed.is_multiple_of(5),
            delegation: !seed.is_multiple_of(7),
            ..Options::default()
        };
        let test_cluster = test_cluster(Knobs { seed, ..Knobs::default() }, &o);
        let s = Stress {
            keys: [64, 8, 200, 30][seed as usize % 4],
            value_bytes: [8, 200, 8, 60][seed as usize % 4],
            wave_ops: (seed % 3) * 40,
            scan_one_in: 40,
            ..Stress::of(seed)
        };
        judge(&test_cluster, &threads(&test_cluster, s), &format!("seed {seed}"));
    }
}

#[test]
fn real_threads_with_structure_changes() {
    let o = Options { fanout: 8, ..Options::default() };
    let test_cluster = test_cluster(Knobs::default(), &o);
    let s = Stress { ops: 4_000, keys: 1_500, scan_one_in: 300, value_bytes: 20, ..Stress::of(9) };
    judge(&test_cluster, &threads(&test_cluster, s), "structure changes");
}
