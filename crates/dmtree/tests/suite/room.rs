//! Room in a pool: deleted keys make room again, for every node and every index.

use dmtree::{ErrorKind, Index, Options, Outcome, Pool, Session};

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Puts ascending keys until the pool is full; how many.
fn fill(s: &mut Session, value: &[u8]) -> u64 {
    for i in 0.. {
        match s.put(&key(i), value) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Full => return i,
            Err(e) => panic!("put {i}: {e}"),
        }
    }
    0
}

fn empty(s: &mut Session, keys: u64) {
    for i in 0..keys {
        assert_eq!(s.delete(&key(i)).expect("deleted"), Outcome::Done, "{i}");
    }
}

fn pool(memory: &str, compute_nodes: u16) -> (Pool, Index) {
    let pool = Pool::embedded().memory(memory).compute_nodes(compute_nodes).open().expect("a pool");
    let index = pool.create("numbers", Options::default()).expect("a new index");
    (pool, index)
}

/// Fills, empties and fills again; by one compute node, or by several in turn.
fn filled_again(compute_nodes: u16, value: &[u8]) {
    let (_pool, index) = pool("2MiB", compute_nodes);
    let session = |n: u16| index.session_on(usize::from(n)).expect("a session");
    let first = fill(&mut session(0), value);
    assert!(first > 100);
    empty(&mut session(0), first);
    for round in 1..4 {
        let n = round % compute_nodes;
        let again = fill(&mut session(n), value);
        assert!(again * 100 >= first * 95, "{first} pairs, and then {again} by cn{n}");
        empty(&mut session(n), again);
    }
}

#[test]
fn a_pool_that_was_emptied_takes_as_much_again() {
    filled_again(1, &[7; 8]);
    filled_again(1, &[7; 3000]);
}

#[test]
fn what_one_node_has_deleted_makes_room_for_another() {
    filled_again(2, &[7; 8]);
    filled_again(2, &[7; 3000]);
}

#[test]
fn values_of_a_full_pool_can_be_replaced() {
    for compute_nodes in [1, 2] {
        let (_pool, index) = pool("4MiB", compute_nodes);
        let mut s = index.session_on(0).expect("a session");
        let keys = fill(&mut s, &[1; 3000]);
        let mut s = index.session_on(usize::from(compute_nodes) - 1).expect("a session");
        for i in (0..keys).step_by(7) {
            assert_eq!(s.update(&key(i), &[2; 3000]).expect("replaced"), Outcome::Done, "{i}");
            assert_eq!(s.get(&key(i)).expect("there").as_deref(), Some(&[2; 3000][..]));
        }
    }
}

#[test]
fn sixty_four_indexes_share_a_small_pool() {
    let pool = Pool::embedded().memory("64MiB").open().expect("a pool");
    for i in 0..64 {
        let index = pool.create(&format!("index {i}"), Options::default()).expect("room");
        index.put(b"name", [i; 1000]).expect("room");
    }
}
