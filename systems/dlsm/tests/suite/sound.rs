//! The sound system: owners and callers that die at any verb, openings that follow each other, and
//! what is refused.

use dmtree_check::conformance::{Keys, everything, scan_all};
use dmtree_check::scenario::sweeps::everywhere;
use dmtree_check::scenario::{Op, Script, changes, deletes, inserts, updates, value};
use dmtree_check::test_cluster::TestCluster;
use dmtree_dlsm::{Defects, Dlsm, Merging, Options};
use dmtree_fabric::ErrorKind;
use dmtree_parts::{RangeIndex, Write};
use dmtree_pool::PoolOptions;

use crate::plays::{dies_twice, lost, of_two, options, script};

/// More writes than MemTables and level 0 have room for: switches, flushes, merges, and blocks of
/// log and tables that go back.
fn much() -> impl Iterator<Item = Op> {
    inserts((0..48).map(|n| n * 2 + 1)).chain(updates((0..10).map(|n| n * 10))).chain(deletes([50]))
}

fn writes() -> Script {
    script("writes", Merging::Near, changes())
}

fn flushes() -> Script {
    script("flushes, merges near the data", Merging::Near, much())
}

#[test]
fn a_crash_in_a_write() {
    everywhere(&writes(), 1);
}

#[test]
fn a_crash_in_a_flush_or_a_merge() {
    everywhere(&flushes(), 1);
    everywhere(&script("flushes, merges at the owner", Merging::Owner, much()), 1);
}

/// A batch is there with all of its keys or with none, whatever is left of the group of its record.
#[test]
fn a_crash_in_a_batch() {
    let batch = |n: u64, low| Op::Batch { low, high: 95, step: 5, value: value(9_000 + n) };
    let ops = (1..4).flat_map(|n| [batch(n, 5 * n), batch(n + 3, 0)]).chain(deletes([90]));
    everywhere(&script("batches", Merging::Near, ops), 1);
}

/// The ranges are those of two owners: either may die.
#[test]
fn a_crash_of_one_of_two_owners() {
    everywhere(&of_two("two owners", much()), 1);
}

#[test]
fn a_crash_in_a_take_over() {
    dies_twice(writes(), (1, 1));
    dies_twice(flushes(), (7, 1));
}

/// What the manifest names is in use after a take-over; what the dead owner had taken besides, a
/// collection finds: blocks of a flush or a merge, and tables of jobs that it has not learned of.
#[test]
fn what_a_dead_owner_had_taken_is_found() {
    let (blocks, made) = lost(flushes(), 20..400, 3);
    assert!(blocks > 0 && made > 0, "{blocks} bytes of blocks, {made} of jobs");
    let at_the_owner = script("flushes, merges at the owner", Merging::Owner, much());
    let (blocks, made) = lost(at_the_owner, 20..400, 29);
    assert!(blocks > 0 && made == 0, "{blocks} bytes of blocks, {made} of jobs");
}

fn pool(compute_nodes: u16) -> PoolOptions {
    PoolOptions { memory_nodes: 2, compute_nodes, ..PoolOptions::default() }
}

/// An opening that has ended leaves everything to the next one; while it lasts, it is asked.
#[test]
fn an_index_is_opened_again() {
    let cluster = TestCluster::new(&pool(2), 1 << 20, options(Merging::Near)).expect("an index");
    let [mut first, mut second] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    for n in 0..300 {
        let c = if n % 2 == 0 { &mut first } else { &mut second };
        c.write(&Keys::Ascending.key(n), Write::Put(&n.to_be_bytes())).expect("put");
    }
    let find = || {
        TestCluster::find(cluster.cluster.clone(), 1 << 20, &cluster.options, "test").expect("it")
    };
    let beside = find();
    let mut c = beside.client(0).expect("attach");
    assert_eq!(scan_all(&mut c, &everything(64)).len(), 300);
    c.write(&Keys::Ascending.key(7), Write::Delete).expect("delete");
    assert_eq!(first.get(&Keys::Ascending.key(7)).expect("get"), None);
    drop((c, beside, first, second));
    let found = TestCluster::find(cluster.cluster.clone(), 1 << 20, &cluster.options, "test");
    drop(cluster);
    let found = found.expect("it is in the catalog");
    let mut again = found.client(1).expect("attach");
    let all = scan_all(&mut again, &everything(64));
    assert_eq!((all.len(), again.walk().expect("walk").keys), (299, 299));
    assert!(all.iter().all(|(key, value)| *key == Keys::Ascending.key(number(value))));
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().expect("eight bytes"))
}

/// Requests and answers that are longer than a call go in parts.
#[test]
fn long_values_go_between_nodes() {
    let cluster = TestCluster::new(&pool(2), 1 << 20, Options::sound()).expect("an index");
    let [mut owner, mut other] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    owner.write(b"k", Write::Put(b"v")).expect("put");
    let value: Vec<u8> = (0..1u32 << 20).map(|n| n.wrapping_mul(n) as u8).collect();
    for n in [60_000, 65_000, 70_000, 1 << 20] {
        let w = Write::CompareAndSet { expected: b"v", new: Some(&value[..n]) };
        other.write(b"k", w).expect("set");
        assert_eq!(other.get(b"k").expect("get").as_deref(), Some(&value[..n]));
        assert_eq!(scan_all(&mut other, &everything(3)), [(b"k".to_vec(), value[..n].to_vec())]);
        let w = Write::CompareAndSet { expected: &value[..n], new: Some(b"v") };
        other.write(b"k", w).expect("set");
    }
}

#[test]
fn what_the_options_exclude_is_named() {
    let sound = Options::sound;
    for (bad, words) in [
        (Options { log: true, ..Options::default() }, "a log is of an index with any_node = true"),
        (Options { ring: true, ..sound() }, "a ring of WRITEs and any_node exclude each other"),
        (Options { queue: true, ..sound() }, "a queue of writers and any_node exclude"),
        (
            Options { defects: Defects { unordered: true, ..Defects::default() }, ..sound() },
            "published defects and any_node exclude each other",
        ),
        (Options { log_bytes: 8, ..sound() }, "log_bytes is 8; it must be 4096"),
    ] {
        let e = bad.check().expect_err("refused").to_string();
        assert!(e.contains(words) && !e.contains('\n'), "{e}");
    }
    assert!(Dlsm::any_node(&sound()) && !Dlsm::ops(&sound()).snapshots);
    let cluster = TestCluster::new(&pool(1), 1 << 20, sound()).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    let e = TestCluster::new(&pool(1), 32 << 10, sound()).map(drop);
    e.expect("room for four MemTables of 4 KiB");
    let e = TestCluster::new(&pool(1), 31 << 10, sound()).map(drop).expect_err("no room");
    assert!(e.to_string().contains("has no room in its half for 4 MemTables"), "{e}");
    let two = TestCluster::new(&pool(1), 1 << 20, Options { owners: 2, ..sound() }).expect("it");
    let batch: [(&[u8], Option<&[u8]>); 2] = [(b"a", Some(b"1")), (b"z", Some(b"2"))];
    let mut of_two = two.client(0).expect("attach");
    let e = of_two.write_batch(&batch).expect_err("two logs have no common record");
    assert!(e.to_string().contains("2 ranges have no atomic batches: create the index"), "{e}");
    assert_eq!(of_two.get(b"a").expect("get"), None);
    let e = c.take_snapshot().expect_err("there are none");
    assert!(
        e.kind() == ErrorKind::Unsupported && e.to_string().contains("any_node = false"),
        "{e}"
    );
}
