//! Memory comes back: of deletions, of stale versions, of tables that were merged.

use dmtree_check::conformance::{Keys, scaled};
use dmtree_check::test_cluster::TestCluster;
use dmtree_dlsm::{Defects, Merging, Options};
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

use crate::small;

fn cluster(o: &Options, bytes: u64) -> TestCluster {
    let pool = PoolOptions { memory_bytes_per_node: bytes, ..PoolOptions::default() };
    TestCluster::new(&pool, 1 << 20, o).expect("an index")
}

/// Bytes of tables after keys have come and gone in rounds.
fn left(o: &Options) -> u64 {
    let cluster = cluster(o, 16 << 20);
    let mut c = cluster.client(0).expect("attach");
    for round in 0..40u64 {
        let keys: Vec<_> = (0..80).map(|n| Keys::Hashed24.key(100 * round + n)).collect();
        for w in [Write::Put(b"value"), Write::Delete] {
            keys.iter().for_each(|key| _ = c.write(key, w).expect("room"));
            c.maintain().expect("maintain");
        }
    }
    c.walk().expect("walk").structure_bytes
}

/// As published deletions are never dropped, and what is deleted takes memory for ever.
#[test]
fn deletions_are_dropped_at_the_bottom() {
    let o = small(Options::default());
    let defects = Defects { keeps_deletions: true, ..Defects::default() };
    let (repaired, published) = (left(&o), left(&Options { defects, ..o.clone() }));
    assert!(4 * repaired < published, "{repaired} bytes, and {published} as published");
}

/// A pool with room for a few copies of the data takes any number of updates, wherever tables are
/// merged.
#[test]
fn stale_versions_take_no_memory_for_ever() {
    for merging in [Merging::Near, Merging::Owner, Merging::Adaptive] {
        let cluster = cluster(&small(Options { merging, ..Options::default() }), 2 << 20);
        let mut c = cluster.client(0).expect("attach");
        // In a debug build, too, the pairs are twice what the pool holds.
        for n in 0..scaled(360_000).min(60_000) {
            let key = Keys::Hashed24.key(n % 300);
            c.write(&key, Write::Put(&[n as u8; 100])).unwrap_or_else(|e| panic!("{n}: {e}"));
        }
        assert_eq!(c.walk().expect("walk").keys, 300);
    }
}
