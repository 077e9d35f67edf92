//! What background work costs: verbs and bytes of a flush, and of compactions near the data and at
//! the owner.

use dmtree_check::conformance::{Keys, everything};
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_dlsm::{Merging, Options};
use dmtree_fabric::{OpCounts, OpKind, SideCounts};
use dmtree_parts::{Page, Write};
use dmtree_pool::PoolOptions;

fn cluster(o: &Options) -> TestCluster {
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    // MemTables of a thousand pairs of 400 bytes have half a MiB, and there are four of them.
    TestCluster::new(&pool, 16 << 20, o).expect("an index")
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

/// Bytes over the wire of eight flushes, and of the compactions behind them.
fn moved(merging: Merging, family: Keys, value: &[u8]) -> u64 {
    let o = Options { memtable_entries: 1000, merging, ..Options::default() };
    let cluster = cluster(&o);
    let mut c = cluster.client(0).expect("attach");
    let mut bytes = 0;
    for round in 0..9 {
        for n in round * 1000..(round + 1) * 1000 {
            let mut key = family.key(n);
            key.resize(20, 0);
            c.write(&key, Write::Put(value)).expect("put");
        }
        c.maintain().expect("maintain");
        let cost = background(&mut c);
        bytes += cost.bytes_read + cost.bytes_written;
    }
    bytes
}

/// Near the data the tables' indexes and filters come over the wire, and nothing else. Tables of
/// ascending keys are not merged: what they cost is the flushes.
#[test]
fn merging_near_the_data_moves_metadata() {
    for (value, times) in [(&[7; 400][..], 15.0), (&[7; 8], 3.5)] {
        let flushes = moved(Merging::Near, Keys::Ascending, value);
        let of = |merging| (moved(merging, Keys::Hashed24, value) - flushes) as f64;
        let (near, owner) = (of(Merging::Near), of(Merging::Owner));
        let found = owner / near;
        assert!(found > times, "{found}: {owner} and {near} bytes, values of {}", value.len());
    }
}

/// The READs of all tables of a scan take one round trip: four flushed tables, as many READs.
#[test]
fn a_scan_reads_all_runs_together() {
    let o = Options { memtable_entries: 100, ..Options::default() };
    let cluster = cluster(&o);
    let mut c = cluster.client(0).expect("attach");
    put(&mut c, 0..401, &[7; 8]);
    let ep = cluster.cluster.compute_node(0).and_then(|node| node.endpoint(8 << 20)).expect("it");
    let mut worker = cluster.nodes[0].client(ep.clone());
    for _ in 0..4 {
        ep.block_on(worker.work()).expect("a flush");
    }
    c.take_counts();
    let mut page = Page::new();
    c.scan(&everything(10), &mut page).expect("scan");
    let counts = c.take_counts();
    let (.., totals) = counts.ops.iter().find(|(kind, ..)| *kind == OpKind::Scan).expect("it");
    assert_eq!((totals.counts.round_trips, totals.counts.mn.read, page.len()), (1, 4, 10));
}

/// Verbs of all work behind one MemTable of the sound system, with what is kept of it.
fn kept(c: &mut Client, numbers: std::ops::Range<u64>) -> SideCounts {
    put(c, numbers, &[7; 400]);
    c.take_counts();
    c.maintain().expect("maintain");
    let loose = c.counts().loose.mn;
    let mut sum = background(c);
    (sum.read, sum.write) = (sum.read + loose.read, sum.write + loose.write);
    sum.bytes_written += loose.bytes_written;
    sum
}

/// The manifest takes a WRITE for a flush, and one for a move or a merge near the data.
#[test]
fn a_flush_and_a_merge_are_a_write_of_the_manifest_each() {
    let o = Options { memtable_entries: 1000, piece_bytes: 64 << 10, ..Options::sound() };
    let cluster = cluster(&o);
    let mut c = cluster.client(0).expect("attach");
    // The log and the manifest have their first blocks.
    put(&mut c, 0..1, &[7; 400]);
    c.maintain().expect("maintain");
    let tables = 1000 * 436 + (4 + 2 + 20 + 1000 * 38 + 4) + (21 * 64 + 8);
    let cost = kept(&mut c, 1..1001);
    assert_eq!((cost.write, cost.read, cost.bytes_written - tables), (7 + 2 + 1 + 1, 0, 168));
    // Index and filter of the table that the memory node has made are READ in three pieces.
    let cost = kept(&mut c, 1001..2001);
    assert_eq!((cost.write, cost.read, cost.bytes_written - tables), (7 + 2 + 1 + 1, 3, 232));
}

/// What another node's operation costs: one call to the owner more, and no verb.
#[test]
fn a_foreign_key_is_one_call() {
    let pool = PoolOptions { compute_nodes: 2, ..PoolOptions::default() };
    let cluster = TestCluster::new(&pool, 1 << 20, Options::sound()).expect("an index");
    let [mut owner, mut other] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    owner.write(b"key", Write::Put(b"v")).expect("put");
    other.get(b"key").expect("get");
    let cost = |c: &mut Client, kind| {
        let counts = c.take_counts();
        let (.., totals) = counts.ops.iter().find(|(its, ..)| *its == kind).expect("it");
        assert_eq!(counts.loose, OpCounts::default());
        totals.counts
    };
    let one_call = |(asked, replied)| OpCounts {
        cn: SideCounts { rpc: 1, bytes_asked: asked, bytes_replied: replied, ..Default::default() },
        round_trips: 1,
        ..OpCounts::default()
    };
    other.take_counts();
    other.get(b"key").expect("get");
    let get = cost(&mut other, OpKind::Get);
    other.write(b"key", Write::Put(b"w")).expect("put");
    let put = cost(&mut other, OpKind::Put);
    other.write(b"key", Write::Delete).expect("delete");
    let delete = cost(&mut other, OpKind::Delete);
    other.scan(&everything(10), &mut Page::new()).expect("scan");
    let scan = cost(&mut other, OpKind::Scan);
    assert_eq!([get, put, delete, scan], [(21, 4), (24, 2), (22, 2), (21, 3)].map(one_call));
}
