//! Real threads on the MemTables of one node, with all that happens behind them.

use dmtree_check::concurrent::{Stress, seeds};
use dmtree_check::peer::workloads::check_threads;
use dmtree_dlsm::{Format, Merging, Options};

use crate::small;

#[test]
fn real_threads_on_few_keys() {
    for seed in seeds(0, 6) {
        let merging = [Merging::Near, Merging::Owner, Merging::Adaptive][seed as usize % 3];
        let format =
            [Format::Dense(1), Format::Dense(4), Format::Blocks(300)][seed as usize / 2 % 3];
        let o = small(Options { merging, format, queue: seed == 5, ..Options::default() });
        let s = Stress { ops: 1_500, keys: 60, value_bytes: 60, ..Stress::of(seed) };
        check_threads(&o, Stress { coroutines: 2, scan_one_in: 40, ..s });
    }
}
