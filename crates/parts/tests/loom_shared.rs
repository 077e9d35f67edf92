//! Every interleaving of the kernels that the clients of a compute node share (combining, FIFO
//! mutexes, cache), explored by loom: `RUSTFLAGS="--cfg loom" cargo test --release --test
//! loom_shared`.
#![cfg(loom)]

use std::sync::Arc;

use dmtree_fabric::GlobalAddr;
use dmtree_parts::Outcome;
use dmtree_parts::cache::{NodeCache, NodeParts, Record};
use dmtree_parts::combine::{Arrival, BatchResult, Combiner, Intent, LeaderGuard};
use dmtree_parts::fifo_mutex::FifoMutexes;
use dmtree_parts::hash::KeyHash;
use dmtree_parts::keys::KeyArray;
use loom::sync::Mutex;
use loom::thread;

fn lead(mut lease: LeaderGuard, store: &Mutex<Vec<u8>>) {
    while !lease.try_begin() {
        thread::yield_now();
    }
    let mut value = Vec::new();
    lease.close(&mut value);
    *store.lock().unwrap() = value;
    lease.finish(&Ok(BatchResult::Wrote(Outcome::Done)), None);
}

/// A put through the combiner over a "remote" store; on return it is acknowledged.
fn put(c: &Arc<Combiner>, store: &Mutex<Vec<u8>>, value: &[u8]) {
    match c.arrive((b"k", KeyHash::of(b"k")), &Intent::Put(value), false) {
        Arrival::Lead(lease) => lead(lease, store),
        Arrival::Alone => unreachable!("one key, two writers"),
        Arrival::Join(group) => {
            let mut out = Vec::new();
            loop {
                match group.result(&mut out) {
                    Some(result) => return drop(result.unwrap()),
                    None => thread::yield_now(),
                }
            }
        }
    }
}

/// Digest 8.1 #1: whatever the interleaving, an acknowledged write is there, or was overwritten by
/// one that overlapped it.
#[test]
fn combined_writes_are_never_lost() {
    loom::model(|| {
        let c = Combiner::new(1, 8);
        let store = Arc::new(Mutex::new(Vec::new()));
        let (c2, store2) = (c.clone(), store.clone());
        let other = thread::spawn(move || put(&c2, &store2, b"2"));
        put(&c, &store, b"1");
        let seen = store.lock().unwrap().clone();
        assert!(seen == b"1" || seen == b"2", "acknowledged and there: {seen:?}");
        other.join().unwrap();
        put(&c, &store, b"3");
        assert_eq!(*store.lock().unwrap(), b"3", "nothing older is written later");
    });
}

/// Digest 8.1 #2: a read that begins after a write was acknowledged sees it, delegated or not.
#[test]
fn delegated_reads_are_fresh() {
    loom::model(|| {
        let c = Combiner::new(1, 8);
        let store = Arc::new(Mutex::new(b"old".to_vec()));
        let get = |c: &Arc<Combiner>, store: &Mutex<Vec<u8>>| -> Vec<u8> {
            let mut out = Vec::new();
            match c.arrive((b"k", KeyHash::of(b"k")), &Intent::Read, false) {
                Arrival::Lead(mut lease) => {
                    while !lease.try_begin() {
                        thread::yield_now();
                    }
                    lease.close(&mut out);
                    let value = store.lock().unwrap().clone();
                    thread::yield_now();
                    lease.finish(&Ok(BatchResult::Found(true)), Some(&value));
                    value
                }
                Arrival::Alone => store.lock().unwrap().clone(),
                Arrival::Join(group) => loop {
                    if group.result(&mut out).is_some() {
                        return out;
                    }
                    thread::yield_now();
                },
            }
        };
        let (c2, store2) = (c.clone(), store.clone());
        let reader = thread::spawn(move || get(&c2, &store2));
        *store.lock().unwrap() = b"new".to_vec();
        assert_eq!(get(&c, &store), b"new", "own write");
        let seen = reader.join().unwrap();
        assert!(seen == b"old" || seen == b"new");
    });
}

#[test]
fn turns_at_one_lock_exclude_each_other() {
    loom::model(|| {
        let table = FifoMutexes::new(1);
        let inside = Arc::new(Mutex::new(0));
        let (table2, inside2) = (table.clone(), inside.clone());
        let enter = |table: &Arc<FifoMutexes>, inside: &Mutex<i32>| {
            if let Some(turn) = table.try_lock(7) {
                *inside.lock().unwrap() += 1;
                assert_eq!(*inside.lock().unwrap(), 1);
                *inside.lock().unwrap() -= 1;
                drop(turn);
            }
        };
        let other = thread::spawn(move || enter(&table2, &inside2));
        enter(&table, &inside);
        other.join().unwrap();
        assert!(table.try_lock(9).is_some(), "passed on when dropped");
    });
}

fn node(cache: &NodeCache, children: &[u8]) -> Arc<dmtree_parts::cache::CachedNode> {
    let keys: Vec<[u8; 1]> = children.iter().map(|k| [*k]).collect();
    let records = children
        .iter()
        .map(|k| Record::new(GlobalAddr::from_bits(u64::from(*k) << 8 | 64), 1, 7, 32, 0))
        .collect();
    let keys = keys.iter().map(|k| &k[..]);
    let parts = NodeParts {
        addr: GlobalAddr::from_bits(64),
        generation: 1,
        lo: &[0],
        hi: None,
        keys,
        records,
    };
    cache.insert(1, parts)
}

/// Digest 8.1 #7 and 8.5 #20: a reader never gets a record of one image with a key of another, and
/// bytes are counted once.
#[test]
fn cached_nodes_are_replaced_whole() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let cache = Arc::new(NodeCache::new(1 << 20, Some(1)));
        let old = node(&cache, &[0]);
        let reader = cache.clone();
        let fill = thread::spawn(move || old.fill_mirror(0, &[3; 32]));
        let look = thread::spawn(move || {
            let found = reader.lookup(1, &[5]);
            if let Some((n, i)) = &found {
                assert_eq!(n.keys().get(*i)[0], (n.record(*i).child.bits() >> 8) as u8);
            }
            found
        });
        node(&cache, &[0, 4]);
        fill.join().unwrap();
        assert!(look.join().unwrap().is_some(), "some image is always there");
        cache.clear();
        let s = cache.stats();
        assert_eq!((s.nodes, s.used_bytes, s.mirror_bytes), (0, 0, 0));
    });
}
