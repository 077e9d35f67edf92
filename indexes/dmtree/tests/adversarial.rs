//! DMTree on a fabric that does everything the contract allows, drawn from seeds: every history is linearizable, and afterwards
//! every invariant holds.

use dmtree_check::bed::Bed;
use dmtree_check::concurrent::{Stress, coroutines};
use dmtree_engine::{DmNode, DmTree, Options, Tables};
use dmtree_fabric::sim::Hazards;
use dmtree_fabric::{Policy, SeededRandom, Unfair};
use dmtree_pool::PoolOptions;

/// How many seeds a test runs: its own number, or more when `DMTREE_SEEDS` asks for more.
fn seeds(from: u64, usual: u64) -> std::ops::Range<u64> {
    let more = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    from..from + more.unwrap_or(usual)
}

/// Bits of a seed as choices.
struct Draw(u64);
impl Draw {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        choices[(self.0 >> 33) as usize % choices.len()]
    }
}

fn run(seed: u64) {
    let mut d = Draw(seed ^ 0x5eed);
    let mut o = Options {
        fanout: d.of(&[8, 8, 16, 32]),
        leaf_capacity: d.of(&[32, 32, 64]),
        key_inline_bytes: d.of(&[24, 8, 40]),
        value_inline_bytes: d.of(&[8, 8, 64]),
        ..Options::default()
    };
    if d.of(&[false, true]) {
        o = Options {
            mirrors: d.of(&[true, false]),
            tables: d.of(&[Tables::Compute, Tables::Memory]),
            delegation: d.of(&[true, false]),
            combining: d.of(&[true, false]),
            adaptive_capacity: d.of(&[true, false]),
            round_trip_combining: d.of(&[true, false]),
            ..o
        };
    }
    let pool = PoolOptions {
        compute_nodes: d.of(&[2, 3]),
        memory_nodes: d.of(&[1, 2]),
        memory_bytes_per_node: 32 << 20,
        life_bits: d.of(&[PoolOptions::default().life_bits, 2]),
        ..PoolOptions::default()
    };
    let least = DmNode::least_cache_bytes(&dmtree_engine::format::Geometry::new(&o));
    let cache = d.of(&[4 << 20, 3 * least]);
    let s = Stress {
        seed,
        threads: 1,
        coroutines: d.of(&[4, 6, 9]),
        ops: 120,
        keys: d.of(&[6, 24, 64, 300]),
        value_bytes: d.of(&[8, 8, 60, 200, 5000]),
        scan_one_in: d.of(&[0, 20, 60]),
        wave_ops: d.of(&[0, 0, 40]),
    };
    let hazards = Hazards::of_seed(seed);
    let (bed, fabric) = Bed::<DmTree>::adversarial(hazards, seed, &pool, cache, &o).unwrap();
    fabric.set_timed(true);
    let mut policy: Box<dyn Policy> = if d.of(&[false, true]) {
        Box::new(SeededRandom::new(seed))
    } else {
        Box::new(Unfair::new(seed))
    };
    let history = coroutines(&bed, s, &mut *policy);
    if let Err((key, violation)) = history.check() {
        let key = String::from_utf8_lossy(&key).into_owned();
        panic!("seed {seed}: key {key:?}: {violation}\n{hazards:?}\n{o:?}\n{s:?}");
    }
    fabric.set_timed(false);
    let mut c = bed.client(0).expect("attach");
    c.maintain().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    c.walk().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

#[test]
fn adversarial_seeds() {
    seeds(0, 200).for_each(run);
}
