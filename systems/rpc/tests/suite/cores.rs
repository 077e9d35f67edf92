//! Several cores on one tree, with real threads.

use dmtree_check::concurrent::{Stress, seeds};
use dmtree_check::peer::workloads::check_threads;
use dmtree_rpc::{Options, Reads};

#[test]
fn real_threads_on_few_keys() {
    for seed in seeds(0, 4) {
        let reads = [Reads::Call, Reads::Hybrid, Reads::Farm, Reads::Cell][seed as usize % 4];
        let o = Options { leaf_slots: 6, ..Options::reading(reads) };
        let value_bytes = [8, 200][seed as usize % 2];
        let s = Stress { ops: 1_500, keys: 60, value_bytes, ..Stress::of(seed) };
        check_threads(&o, Stress { coroutines: 2, scan_one_in: 40, ..s });
    }
}
