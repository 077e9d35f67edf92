//! What background work costs: verbs and bytes of a flush, and of compactions near the data and at
//! the owner.

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_dlsm::{Merging, Options};
use dmtree_fabric::{OpKind, SideCounts};
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

fn cluster(o: &Options) -> TestCluster {
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    TestCluster::new(&pool, 1 << 20, o).expect("an index")
}

/// Counts of all background work since the last call, towards memory nodes.
fn background(c: &mut Client) -> SideCounts {
    let counts = c.take_counts();
    let mut sum = SideCounts::default();
    for (_, _, totals) in counts.ops.iter().filter(|(kind, ..)| *kind == OpKind::Maintain) {
        let mn = &totals.counts.mn;
        (sum.read, sum.write) = (sum.read + mn.read, sum.write + mn.write);
        sum.bytes_read += mn.bytes_read;
        sum.bytes_written += mn.bytes_written;
    }
    sum
}

fn put(c: &mut Client, numbers: std::ops::Range<u64>, value: &[u8]) {
    for n in numbers {
        c.write(&Keys::Hashed24.key(n)[..20], Write::Put(value)).expect("put");
    }
}

/// A flush of 1000 pairs of 436 bytes in pieces of 64 KiB: 7 pieces (150 pairs each), index and
/// filter; as published both are READ back.
#[test]
fn a_flush_is_its_pieces_and_two_writes() {
    for (reads_back, reads) in [(true, 2), (false, 0)] {
        let o = Options {
            memtable_entries: 1000,
            piece_bytes: 64 << 10,
            reads_back,
            ..Options::default()
        };
        let cluster = cluster(&o);
        let mut c = cluster.client(0).expect("attach");
        put(&mut c, 0..1001, &[7; 400]);
        let foreground = c.take_counts();
        assert_eq!(foreground.ops.iter().filter(|(kind, ..)| *kind == OpKind::Maintain).count(), 0);
        c.maintain().expect("maintain");
        let cost = background(&mut c);
        assert_eq!((cost.write, cost.read), (7 + 2, reads));
        // Index records of 38 bytes, and a filter of 10 bits a key.
        let (index, filter) = (4 + 2 + 20 + 1000 * 38 + 4, 21 * 64 + 8);
        assert_eq!(cost.bytes_written, 1000 * 436 + index + filter);
        assert_eq!(cost.bytes_read, if reads_back { index + filter } else { 0 });
    }
}

/// Bytes over the wire of compactions of the same tables.
fn compacted(merging: Merging, value: &[u8]) -> u64 {
    let o = Options { memtable_entries: 1000, merging, ..Options::default() };
    let cluster = cluster(&o);
    let mut c = cluster.client(0).expect("attach");
    // One table after the other enters level 0, and is merged with all of level 1.
    let mut bytes = 0;
    for round in 0..8 {
        put(&mut c, round * 1000..(round + 1) * 1000 + 1, value);
        c.maintain().expect("maintain");
        let cost = background(&mut c);
        let flushed = cost_of_flush(value.len() as u64);
        bytes += cost.bytes_read + cost.bytes_written - flushed;
    }
    bytes
}

/// About: data, index and filter out, the latter two in.
fn cost_of_flush(value: u64) -> u64 {
    1000 * (36 + value) + 2 * (1000 * 38 + 1400)
}

/// Near the data the tables' indexes and filters come over the wire, and nothing else.
#[test]
fn merging_near_the_data_moves_metadata() {
    for (value, times) in [(&[7; 400][..], 15.0), (&[7; 8], 3.5)] {
        let [near, owner] = [Merging::Near, Merging::Owner].map(|m| compacted(m, value) as f64);
        assert!(owner / near > times, "{owner} and {near} bytes with values of {}", value.len());
    }
}
