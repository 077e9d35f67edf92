//! Concurrent clients on DMTree; their histories are checked key by key.

use dmtree_check::concurrent::{Stress, seeds};
use dmtree_check::peer::workloads::{check_history, check_threads, suspended};
use dmtree_engine::{Options, Techniques};
use dmtree_fabric::local::Tearing;

use crate::conformance::switched_off;

/// Every combination of the ablation switches, sound under interleaving.
#[test]
fn interleaved_with_every_combination_of_switches() {
    for bits in 0..64u64 {
        let o = switched_off(61 ^ bits, Options { fanout: 8, ..Options::default() });
        for seed in seeds(bits * 1_000, 2) {
            let keys = [12, 400][seed as usize % 2];
            let s = Stress { ops: 150, keys, scan_one_in: 40, ..Stress::of(seed) };
            let test_cluster = suspended(seed, &o, 4 << 20, Tearing::AnyOrder);
            check_history(&test_cluster, s, &format!("switches {bits:06b}"));
        }
    }
}

/// Threads really tear images. (Regression: a key deleted from one slot and inserted into another
/// while a scan sampled the leaf was returned twice.)
#[test]
fn real_threads_on_few_keys() {
    for seed in seeds(0, 6) {
        let wide = seed % 4 == 3;
        let techniques = Techniques {
            mirrors: !seed.is_multiple_of(5),
            delegation: !seed.is_multiple_of(7),
            ..Techniques::default()
        };
        let value_inline_bytes = if wide { 64 } else { 8 };
        let o = Options { value_inline_bytes, techniques, ..Options::default() };
        let keys = [64, 8, 200, 30][seed as usize % 4];
        let value_bytes = [8, 200, 8, 60][seed as usize % 4];
        let s = Stress { ops: 1_500, keys, value_bytes, ..Stress::of(seed) };
        check_threads(
            &o,
            Stress { coroutines: 4, scan_one_in: 40, wave_ops: (seed % 3) * 40, ..s },
        );
    }
}

#[test]
fn real_threads_with_structure_changes() {
    let o = Options { fanout: 8, ..Options::default() };
    let s = Stress { ops: 4_000, keys: 1_500, scan_one_in: 300, value_bytes: 20, ..Stress::of(9) };
    check_threads(&o, Stress { coroutines: 4, ..s });
}
