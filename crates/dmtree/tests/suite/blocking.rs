//! The blocking face: pools, indexes, sessions, scans, batches, load, stats.

use std::collections::BTreeMap;
use std::ops::Bound;

use dmtree::{Batch, ErrorKind, Index, LoadOrder, Operation, Options, Outcome, Pool, Session};

fn pool() -> Pool {
    Pool::embedded().memory("32MiB").compute_nodes(2).cache("4MiB").open().expect("a small pool")
}

fn index() -> Index {
    pool().create("t", Options::default()).expect("a new index")
}

fn must_be<T: Send + Sync + Clone>(_: &T) {}

#[test]
fn outcomes_of_point_operations() {
    let i = index();
    must_be(&i);
    assert_eq!(i.get("k").expect("get"), None);
    assert_eq!(i.update("k", "1").expect("update"), Outcome::NotFound);
    assert_eq!(i.compare_and_set("k", "", "1").expect("cas"), Outcome::NotFound);
    assert_eq!(i.insert("k", "1").expect("insert"), Outcome::Done);
    assert_eq!(i.insert("k", "2").expect("insert"), Outcome::Exists);
    assert_eq!(i.compare_and_set("k", "2", "3").expect("cas"), Outcome::Mismatch);
    assert_eq!(i.compare_and_set("k", "1", "3").expect("cas"), Outcome::Done);
    assert_eq!(i.update("k", "").expect("update"), Outcome::Done);
    assert_eq!(i.get("k").expect("get"), Some(Vec::new()));
    assert!(i.contains("k").expect("contains"));
    assert_eq!(i.compare_and_delete("k", "x").expect("cad"), Outcome::Mismatch);
    assert_eq!(i.compare_and_delete("k", "").expect("cad"), Outcome::Done);
    assert_eq!(i.delete("k").expect("delete"), Outcome::NotFound);
    assert_eq!(i.put("k", "9").expect("put"), Outcome::Done);
    assert_eq!(i.delete("k").expect("delete"), Outcome::Done);
}

#[test]
fn input_out_of_range_is_an_error_that_says_so() {
    let i = index();
    for (key, value) in [(0, 0), (1025, 0), (1, (1 << 20) + 1)] {
        let e = i.put(vec![1; key], vec![2; value]).expect_err("refused");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    assert_eq!(i.get("").expect_err("empty").kind(), ErrorKind::InvalidArgument);
    i.put(vec![7; 1024], vec![8; 1 << 20]).expect("the largest of both");
    assert_eq!(i.get(vec![7; 1024]).expect("get").map(|v| v.len()), Some(1 << 20));
    assert_eq!(i.resume(b"no cursor").expect_err("refused").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn names_and_layouts() {
    let p = pool();
    assert_eq!(p.open("a").expect_err("none yet").kind(), ErrorKind::NotFound);
    let a = p.create("a", Options::default()).expect("new");
    assert_eq!(p.create("a", Options::default()).expect_err("taken").kind(), ErrorKind::Exists);
    a.put("k", "1").expect("put");
    // Every opening yields the same index; the timeout may differ, the layout may not.
    let patient = Options::default().timeout_ms(60_000);
    for same in [p.open("a"), p.open_or_create("a", patient)] {
        assert_eq!(same.expect("it is there").get("k").expect("get").as_deref(), Some(&b"1"[..]));
    }
    let others = [
        ("key_inline_bytes", Options::default().key_inline_bytes(32)),
        ("value_inline_bytes", Options::default().value_inline_bytes(16)),
        ("leaf_capacity", Options::default().leaf_capacity(64)),
        ("fanout", Options::default().fanout(16)),
    ];
    for (option, other) in others {
        let e = p.open_or_create("a", other).expect_err("another layout");
        assert_eq!(e.kind(), ErrorKind::Incompatible);
        assert!(e.to_string().contains(option), "{e}");
    }
    p.create("b", Options::default().fanout(16)).expect("new");
    assert_eq!(p.list().expect("list"), ["a", "b"]);
    p.drop_index("a").expect("there");
    assert_eq!(p.list().expect("list"), ["b"]);
    assert_eq!(a.get("k").expect_err("gone").kind(), ErrorKind::Closed);
    assert_eq!(p.drop_index("a").expect_err("gone").kind(), ErrorKind::NotFound);
    let again = p.open_or_create("a", Options::default()).expect("a new one");
    assert_eq!(again.get("k").expect("get"), None);
    let bad = p.create("c", Options::default().fanout(2)).expect_err("too small");
    assert_eq!(bad.kind(), ErrorKind::InvalidArgument);
    assert_eq!(p.list().expect("list"), ["a", "b"]);
}

#[test]
fn pools_that_cannot_be() {
    for e in [
        Pool::embedded().memory("plenty").open().expect_err("no size"),
        Pool::embedded().memory("1KiB").open().expect_err("too little"),
        Pool::embedded().memory_nodes(0).open().expect_err("none"),
        Pool::embedded().compute_nodes(0).open().expect_err("none"),
        Pool::embedded().cache("-1").open().expect_err("no size"),
        Pool::embedded().table_memory("some").open().expect_err("no size"),
        Pool::embedded().table_memory(64u64).open().expect_err("too little"),
    ] {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let tight = Pool::embedded().memory("8MiB").cache("64B").open().expect("a pool");
    let e = tight.create("t", Options::default()).expect_err("no room for one node");
    assert!(e.to_string().contains("cache"), "{e}");
}

fn filled(n: u32) -> (Index, BTreeMap<Vec<u8>, Vec<u8>>) {
    let i = index();
    let pair = |n: u32| (format!("{:05}", n * 7 % 100_000).into_bytes(), n.to_le_bytes().to_vec());
    let model: BTreeMap<_, _> = (0..n).map(pair).collect();
    i.load((0..n).map(pair), LoadOrder::Unsorted).expect("load");
    (i, model)
}

fn all<S: dmtree::PageSource>(scan: dmtree::Scan<S>) -> Vec<(Vec<u8>, Vec<u8>)> {
    scan.into_iter().collect::<Result<_, _>>().expect("scan")
}

#[test]
fn scans_agree_with_a_map() {
    let (i, model) = filled(3000);
    let expect = |low: Bound<&[u8]>, high: Bound<&[u8]>| -> Vec<(Vec<u8>, Vec<u8>)> {
        let range = model.range::<[u8], _>((low, high));
        range.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let (a, b) = (&b"00700"[..], &b"14000"[..]);
    let (inc, exc) = (Bound::Included, Bound::Excluded);
    assert_eq!(all(i.scan(..)), expect(Bound::Unbounded, Bound::Unbounded));
    assert_eq!(all(i.scan(a..b)), expect(inc(a), exc(b)));
    assert_eq!(all(i.scan(a..=b)), expect(inc(a), inc(b)));
    assert_eq!(all(i.scan(..b).page_size(7)), expect(Bound::Unbounded, exc(b)));
    assert_eq!(all(i.scan((exc(a), inc(b)))), expect(exc(a), inc(b)));
    let mut down = expect(inc(a), exc(b));
    down.reverse();
    assert_eq!(all(i.scan(a..b).rev().page_size(11)), down);
    down.truncate(25);
    assert_eq!(all(i.scan(a..b).rev().limit(25).page_size(10)), down);
    assert_eq!(all(i.scan_prefix("007")), expect(inc(b"007"), exc(b"008")));
    assert_eq!(all(i.scan("00710".."1").prefix("007")), expect(inc(b"00710"), exc(b"008")));
    assert_eq!(all(i.scan(b..a)), []);
    assert_eq!(all(i.scan(..).limit(0)), []);
    let mut s = i.session().expect("session");
    assert_eq!(all(s.scan("2"..).rev()).len(), expect(inc(b"2"), Bound::Unbounded).len());
}

#[test]
fn a_cursor_resumes_anywhere() {
    let (i, model) = filled(1000);
    for reverse in [false, true] {
        let scan = || if reverse { i.scan(..).rev() } else { i.scan(..) };
        let mut expect: Vec<_> = model.keys().cloned().collect();
        if reverse {
            expect.reverse();
        }
        let mut cursor = scan().limit(900).page_size(64).pairs().cursor();
        let mut got = Vec::new();
        let mut portion = 1;
        loop {
            let mut pairs = i.resume(&cursor).expect("a cursor").page_size(50).pairs();
            let some: Vec<_> = pairs.by_ref().take(portion).map(|p| p.expect("scan").0).collect();
            if some.is_empty() {
                break;
            }
            got.extend(some);
            cursor = pairs.cursor();
            portion = portion * 2 % 97;
        }
        assert_eq!(got, expect[..900]);
    }
}

#[test]
fn a_scan_goes_on_while_the_index_changes() {
    let (i, model) = filled(500);
    let mut seen = 0;
    for pair in i.scan(..).page_size(10) {
        let (key, _) = pair.expect("scan");
        assert_eq!(i.delete(&key).expect("delete"), Outcome::Done);
        seen += 1;
    }
    assert_eq!(seen, model.len());
    assert_eq!(all(i.scan(..)), []);
}

#[test]
fn many_at_once() {
    let i = index();
    let mut batch = Batch::new();
    batch.put("a", "1").insert("a", "2").update("b", "3").delete("a").insert("c", "4");
    batch.compare_and_set("c", "4", "5").compare_and_delete("c", "4");
    assert_eq!(batch.len(), 7);
    let outcomes = i.write_batch(&batch).expect("applied");
    let ok: Vec<_> = outcomes.iter().map(|o| *o.as_ref().expect("outcome")).collect();
    use Outcome::{Done, Exists, Mismatch, NotFound};
    assert_eq!(ok, [Done, Exists, NotFound, Done, Done, Done, Mismatch]);
    let values = i.get_many(&["c", "a", "c"]).expect("get_many");
    assert_eq!(values, [Some(b"5".to_vec()), None, Some(b"5".to_vec())]);
    // A write that no index takes refuses the whole batch beforehand.
    let mut bad = Batch::new();
    bad.put("c", "6").put("", "no key");
    assert_eq!(i.write_batch(&bad).expect_err("refused").kind(), ErrorKind::InvalidArgument);
    assert_eq!(i.get("c").expect("get").as_deref(), Some(&b"5"[..]));
    assert!(i.write_batch(&Batch::new()).expect("nothing").is_empty());
    assert!(i.get_many::<&str>(&[]).expect("nothing").is_empty());
}

/// A long batch goes to the index in parts: its writes keep their order, and one that is out of
/// range refuses all of them, wherever it is.
#[test]
fn a_long_batch_is_like_its_writes_one_by_one() {
    const WRITES: u64 = 5_000;
    let (i, one_by_one) = (index(), index());
    let (mut batch, mut single) = (Batch::new(), Vec::new());
    for n in 0..WRITES {
        let (key, value) = ((n * 7919 % 600).to_be_bytes(), n.to_be_bytes());
        single.push(match n % 5 {
            0 => {
                batch.delete(key);
                one_by_one.delete(key)
            }
            1 => {
                batch.insert(key, value);
                one_by_one.insert(key, value)
            }
            _ => {
                batch.put(key, value);
                one_by_one.put(key, value)
            }
        });
    }
    let mut bad = batch.clone();
    bad.put(vec![0; 5_000], "too long");
    assert_eq!(i.write_batch(&bad).expect_err("refused").kind(), ErrorKind::InvalidArgument);
    assert!(i.is_empty().expect("read"), "nothing of it was written");
    let together = i.write_batch(&batch).expect("applied");
    let outcome = |outcome: dmtree::Result<Outcome>| outcome.expect("done");
    assert!(together.into_iter().map(outcome).eq(single.into_iter().map(outcome)));
    let pairs = |i: &Index| i.scan(..).pairs().map(|p| p.expect("read")).collect::<Vec<_>>();
    assert_eq!(pairs(&i), pairs(&one_by_one));
}

#[test]
fn loading() {
    let i = index();
    let pairs = |n: u32| (0..n).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8]));
    let wrong = pairs(10).chain(pairs(1));
    let e = i.load(wrong, LoadOrder::Sorted).expect_err("not sorted");
    assert!(e.to_string().contains("pair 11"), "{e}");
    let loaded = i.load(pairs(5000), LoadOrder::Sorted).expect("load");
    assert!(loaded.pairs == 5000 && loaded.leaves > 100, "{loaded:?}");
    // Into an index with keys, with a call of the same index from inside.
    let same = i.clone();
    let again = pairs(6000).filter(move |(k, _)| same.get(k).expect("get").is_none());
    assert_eq!(i.load(again, LoadOrder::Unsorted).expect("load").pairs, 1000);
    assert_eq!(i.shape().expect("walk").shape.keys, 6000);
}

#[test]
fn threads_share_an_index() {
    let i = index();
    std::thread::scope(|scope| {
        let start = |t: u32| {
            let i = i.clone();
            scope.spawn(move || {
                for n in 0..500u32 {
                    i.put((n * 4 + t).to_be_bytes(), [t as u8]).expect("put");
                }
            })
        };
        let threads: Vec<_> = (0..4).map(start).collect();
        // Joined one by one: a scope alone does not wait for the destructors of a thread.
        threads.into_iter().for_each(|t| t.join().expect("no thread panics"));
    });
    let shape = i.shape().expect("walk");
    assert_eq!(shape.shape.keys, 2000);
    assert!(shape.memory_bytes_per_key() > 32.0 && shape.table_bytes_per_key() > 0.0);
    let stats = i.stats().expect("stats");
    assert_eq!(stats.of_operation(Operation::Put).done, 2000);
    // The threads are gone and so are their sessions; what they cost is known in full.
    assert_eq!(stats.sessions, 1);
    let puts = stats.costs.total(&[dmtree::OpKind::Put]);
    assert!(puts.ops == 2000 && puts.counts.mn.write >= 2000, "{puts:?}");
    assert!(stats.pool.used_bytes() > 0 && stats.pool.used_bytes() < stats.pool.total_bytes());
    assert_eq!((stats.caches.len(), stats.maintenance_errors), (2, 0));
}

#[test]
fn sessions_take_turns_over_compute_nodes_and_survive_their_pool() {
    let i = index();
    let sessions: Vec<Session> = (0..4).map(|_| i.session().expect("session")).collect();
    let nodes: Vec<_> = sessions.iter().map(Session::compute_node).collect();
    assert_eq!(nodes, [0, 1, 0, 1]);
    assert_eq!(i.session_on(2).expect_err("two nodes only").kind(), ErrorKind::NotFound);
    drop(i);
    for (n, mut s) in sessions.into_iter().enumerate() {
        s.put(&[n as u8 + 1], b"v").expect("the pool is still there");
        let mut out = vec![1, 2, 3];
        assert!(s.get_into(&[n as u8 + 1], &mut out).expect("get"));
        assert_eq!(out, b"v");
        assert!(!s.get_into(&[99], &mut out).expect("get") && out.is_empty());
    }
}

#[test]
fn deleted_keys_give_room_back_without_anybody_asking() {
    let p = Pool::embedded().memory("4MiB").open().expect("small");
    let i = p.create("t", Options::default()).expect("new");
    // Many times over what fits at once.
    for round in 0..12u32 {
        for n in 0..4000u32 {
            let key = (round * 4000 + n).to_be_bytes();
            i.put(key, [1; 8]).unwrap_or_else(|e| panic!("round {round}, key {n}: {e}"));
        }
        for n in 0..4000u32 {
            let key = (round * 4000 + n).to_be_bytes();
            assert_eq!(i.delete(key).expect("delete"), Outcome::Done);
        }
    }
    assert_eq!(i.shape().expect("walk").shape.keys, 0);
}

#[test]
fn a_full_pool_says_so_and_stays_usable() {
    let p = Pool::embedded().memory("3MiB").open().expect("small");
    let i = p.create("t", Options::default()).expect("new");
    let mut stored = 0u32;
    let e = loop {
        match i.put(stored.to_be_bytes(), [7; 200]) {
            Ok(_) => stored += 1,
            Err(e) => break e,
        }
        assert!(stored < 100_000, "it never fills");
    };
    assert_eq!(e.kind(), ErrorKind::Full, "{e}");
    assert_eq!(all(i.scan(..)).len() as u32, stored);
    assert_eq!(i.delete(0u32.to_be_bytes()).expect("delete"), Outcome::Done);
}

#[test]
fn sessions_of_a_thread_end_with_their_index() {
    let p = pool();
    let a = p.create("t", Options::default()).expect("new");
    a.put("k", "v").expect("put");
    a.clone().put("k", "w").expect("a clone has the same session");
    assert_eq!(a.stats().expect("stats").sessions, 1);
    let b = p.open("t").expect("there");
    drop(a);
    let stats = b.stats().expect("stats");
    assert_eq!((stats.sessions, stats.of_operation(Operation::Put).done), (0, 2));
    // A session of another thread ends with the thread.
    std::thread::scope(|s| s.spawn(|| b.get("k").expect("get")).join().expect("no panic"));
    assert_eq!(b.stats().expect("stats").sessions, 0);
    // A scan of an index that is dropped meanwhile reports that once, and ends.
    b.load((0..1000u32).map(|n| (n.to_be_bytes().to_vec(), vec![])), LoadOrder::Sorted)
        .expect("load");
    let mut pairs = b.scan(..).page_size(10).pairs();
    assert!(pairs.next().is_some_and(|p| p.is_ok()));
    p.drop_index("t").expect("there");
    let errors = pairs.filter_map(Result::err).map(|e| e.kind()).collect::<Vec<_>>();
    assert_eq!(errors, [ErrorKind::Closed]);
}

/// A pool of two compute nodes gives the memory of a dropped index to the next ones, however often.
#[test]
fn dropped_indexes_give_their_memory_back() {
    let pool = Pool::embedded().compute_nodes(2).memory("64MiB").open().expect("a pool");
    let used = |pool: &Pool| pool.stats().expect("stats").memory_nodes[0].used_bytes;
    let mut first = None;
    for round in 0..20u32 {
        let index = pool.create("t", Options::default()).expect("room for another index");
        let pair = |n: u32| (n.to_be_bytes().to_vec(), vec![round as u8; 100]);
        index.load((0..5_000).map(pair), LoadOrder::Sorted).expect("room for its pairs");
        // Both compute nodes have free memory of the index.
        for session in 0..2 {
            let mut session = index.session_on(session).expect("a session");
            for n in 5_000..6_000u32 {
                let (key, value) = pair(n);
                session.put(&key, &value).expect("room");
                session.delete(&n.to_be_bytes()).expect("there");
            }
        }
        assert_eq!(index.get(7u32.to_be_bytes()).expect("get"), Some(vec![round as u8; 100]));
        pool.drop_index("t").expect("dropped");
        assert_eq!(index.get(7u32.to_be_bytes()).expect_err("gone").kind(), ErrorKind::Closed);
        let left = used(&pool);
        assert_eq!(*first.get_or_insert(left), left, "round {round}");
    }
}

/// Reports of programs take what the index says of itself as it is.
#[test]
fn stats_are_serialized() {
    let pool = Pool::embedded().memory("16MiB").open().expect("a pool");
    let index = pool.create("a", Options::default()).expect("new");
    index.put("a", "1").expect("put");
    index.get("b").expect("get");
    let found = index.stats().expect("stats");
    let stats = serde_json::to_value(&found).expect("a document");
    assert_eq!(stats["operations"]["put"]["done"], 1, "{stats}");
    assert_eq!(stats["operations"]["get"]["not_found"], 1, "{stats}");
    let puts = stats["costs"].as_array().expect("a list").iter().find(|c| c["kind"] == "put");
    assert!(puts.expect("of puts")["counts"]["mn"]["write"].as_u64() >= Some(1), "{stats}");
    let total = found.pool.total_bytes();
    assert_eq!(stats["pool"]["memory_nodes"][0]["total_bytes"], total, "{stats}");
    let shape = serde_json::to_value(index.shape().expect("a walk")).expect("a document");
    assert_eq!(shape["shape"]["keys"], 1, "{shape}");
}

/// One operation in 64 is timed, and what clients of one key wait for has a name.
#[test]
fn operations_are_sampled_and_waits_are_named() {
    let i = index();
    let writers = 3;
    let rounds = (1..200).find(|_| {
        std::thread::scope(|s| {
            for _ in 0..writers {
                let write = || (0..2_000).for_each(|n: u32| _ = i.put("k", n.to_le_bytes()));
                s.spawn(write);
            }
        });
        i.stats().expect("stats").costs.waits.by_reason().next().is_some()
    });
    let rounds = rounds.expect("threads that write one key meet") as u64;
    let stats = i.stats().expect("stats");
    let sampled = stats.latencies_of(Operation::Put);
    let operations = stats.of_operation(Operation::Put).total();
    assert_eq!(operations, rounds * writers * 2_000);
    // A thread's session goes with it, and with it the beginning of its next 64.
    assert_eq!(sampled.samples(), rounds * writers * (2_000 / 64));
    assert!(sampled.quantile_ns(0.5) <= sampled.quantile_ns(1.0));
    assert_eq!(stats.latencies_of(Operation::Get).samples(), 0);
    let objects = stats.costs.waits.most_awaited();
    assert!(objects.iter().all(|(why, waits)| !why.what.is_empty() && *waits > 0), "{objects:?}");
}
