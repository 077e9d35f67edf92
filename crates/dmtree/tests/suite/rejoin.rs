//! A process that loses its membership joins again inside its `Pool`: pools of several processes,
//! in this one.
#![expect(clippy::disallowed_methods, reason = "real nodes in real time")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmtree::{AsyncOptions, Batch, Effect, ErrorKind, Index, Options, Outcome, Pool};
use dmtree_fabric::net::{Access, DataPath, KeyRole, Keys, NicConfig};
use dmtree_fabric::{Change, LeaseParameters, Member, NodeId};
use dmtree_pool::{MemoryNode, PoolOptions};

const SHORT: LeaseParameters = LeaseParameters {
    lease_ns: 300_000_000,
    acknowledge_ns: 3_000_000_000,
    drift_one_in: 16,
    mutant: None,
};

fn memory_at(listen: &str) -> MemoryNode {
    memory_with(listen, &NicConfig::default())
}

fn memory_with(listen: &str, nic_config: &NicConfig) -> MemoryNode {
    let options =
        PoolOptions { compute_nodes: 8, memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    MemoryNode::found(listen, &options, SHORT, DataPath::Frames, nic_config).expect("a free port")
}

fn connect(first: &MemoryNode) -> Pool {
    let to = Pool::connect(first.listens()).listen("127.0.0.1:0").cache("4MiB");
    to.open().expect("joins")
}

/// Ends the membership of a pool's process as the end of its lease would, without its knowledge.
fn revoke_access(first: &MemoryNode, pool: &Pool) -> (usize, u32) {
    let (number, incarnation) = pool.incarnation().expect("one");
    let member = Member { node: NodeId::compute(number as u16), incarnation };
    let ended = first.fabric().membership();
    pollster::block_on(ended.propose(member, Change::Leave, 0)).expect("it was living");
    (number, incarnation)
}

fn two(first: &MemoryNode) -> (Pool, Index, Pool, Index) {
    let (a, b) = (connect(first), connect(first));
    let here = a.open_or_create("t", Options::default()).expect("new");
    let there = b.open_or_create("t", Options::default()).expect("there");
    (a, here, b, there)
}

fn key(i: usize) -> String {
    format!("key{i:05}")
}

fn within(what: &str, mut f: impl FnMut() -> bool) {
    let began = Instant::now();
    while !f() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A pool's process loses its membership, and joins again.
fn join_again(first: &MemoryNode, pool: &Pool) {
    let former = revoke_access(first, pool);
    within("another incarnation", || pool.incarnation().expect("one") != former);
}

#[test]
fn reads_go_on_and_writes_are_done_or_in_doubt() {
    let first = memory_at("127.0.0.1:0");
    let (a, here, _b, there) = two(&first);
    for i in 0..200 {
        here.put(key(i), "before").expect("put");
    }
    for round in 0..3 {
        let former = revoke_access(&first, &a);
        assert_eq!(
            here.get(key(round)).expect("a read is repeated").as_deref(),
            Some(&b"before"[..])
        );
        within("another incarnation", || a.incarnation().expect("one") != former);
        let value = format!("after {round}");
        assert_eq!(here.put("k", &value).expect("a member again"), Outcome::Done);
        assert_eq!(there.get("k").expect("get").as_deref(), Some(value.as_bytes()));
        // Now a write meets the loss.
        let former = revoke_access(&first, &a);
        within("another incarnation", || {
            match here.put("k", "in doubt") {
                Ok(outcome) => assert_eq!(outcome, Outcome::Done),
                Err(e) => assert_eq!(e.effect(), Effect::Unknown, "{e}"),
            }
            a.incarnation().expect("one") != former
        });
        assert_eq!(here.put("k", "certain").expect("a member again"), Outcome::Done);
        assert_eq!(there.get("k").expect("get").as_deref(), Some(&b"certain"[..]));
        assert_eq!(a.list().expect("names"), ["t"]);
    }
    assert_eq!(here.scan(..).into_iter().count(), 201);
}

/// Leaves have images at both processes. A smaller budget holds behind a loss of the membership,
/// and the process that joins again keeps it.
#[test]
fn images_and_their_budget_survive_the_loss_of_the_membership() {
    let first = memory_at("127.0.0.1:0");
    let (a, b) = (connect(&first), connect(&first));
    let here = a.create("t", Options::default().images(0.5)).expect("new");
    let there = b.open("t").expect("there");
    for i in 0..2_000 {
        here.put(key(i), "x").expect("put");
    }
    let cache = |index: &Index| index.stats().expect("stats").caches[0];
    assert!(cache(&here).image_bytes > 0 && cache(&there).image_bytes > 0);
    // On a loaded machine the other node's answers may take longer than the call.
    within("a smaller budget", || match there.set_cache("256KiB") {
        Err(e) if e.kind() == ErrorKind::TimedOut => false,
        done => done.map(|()| true).expect("it fits"),
    });
    join_again(&first, &a);
    join_again(&first, &b);
    for i in 0..2_000 {
        assert_eq!(there.get(key(i)).expect("get").as_deref(), Some(&b"x"[..]), "{i}");
        here.put(key(i), "y").expect("a member again");
    }
    let (large, small) = (cache(&here), cache(&there));
    assert_eq!((large.budget_bytes, small.budget_bytes), (4 << 20, 256 << 10));
    assert!(small.used_bytes + small.image_bytes <= small.budget_bytes, "{small:?}");
    assert_eq!(there.shape().expect("sound").shape.keys, 2_000);
}

/// A pool with keys is used, and joined again, by processes with the role, over TLS; others are
/// refused in a line.
#[test]
fn a_pool_with_keys_takes_in_what_has_the_role() {
    let keys = Keys::of(&Keys::draw(1).expect("drawn")).expect("its own text");
    let first = memory_with("127.0.0.1:0", &NicConfig::with(Access::with(keys.clone())));
    let to = || Pool::connect(first.listens()).listen("127.0.0.1:0").cache("4MiB");
    let with = |role| to().keys(&keys.issue(role, 1).expect("issued")).open();
    let (a, b) =
        (with(KeyRole::Compute).expect("the role"), with(KeyRole::Compute).expect("the role"));
    let here = a.open_or_create("t", Options::default()).expect("new");
    let there = b.open_or_create("t", Options::default()).expect("there");
    let long: Vec<u8> = (0..1u32 << 20).map(|n| (n >> 4) as u8).collect();
    here.put("long", &long).expect("put");
    assert!(there.get("long").expect("get").as_deref() == Some(&long[..]), "as it was put");
    join_again(&first, &a);
    assert_eq!(here.put("k", "again").expect("a member again"), Outcome::Done);
    assert_eq!(there.get("k").expect("get").as_deref(), Some(&b"again"[..]));
    for role in [KeyRole::Memory, KeyRole::Reader, KeyRole::Admin] {
        let e = with(role).expect_err("too small a role");
        assert_eq!(e.kind(), ErrorKind::Incompatible, "{e}");
        assert!(e.to_string().contains("the role compute"), "{e}");
    }
    let e = to().open().expect_err("no keys");
    assert!(e.to_string().contains("asks for keys"), "{e}");
    let e = to().keys("no keys").open().expect_err("no keys");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

#[test]
fn a_scan_goes_on_behind_its_last_key() {
    let first = memory_at("127.0.0.1:0");
    let (a, here, _b, _there) = two(&first);
    for i in 0..300 {
        here.put(key(i), "x").expect("put");
    }
    let mut session = here.session().expect("a session");
    let mut seen = Vec::new();
    let mut former = (0, 0);
    for (n, pair) in session.scan(..).page_size(10).into_iter().enumerate() {
        seen.push(pair.expect("goes on").0);
        if n == 95 || n == 205 {
            within("another incarnation", || a.incarnation().expect("one") != former);
            former = revoke_access(&first, &a);
        }
    }
    assert_eq!(seen, (0..300).map(|i| key(i).into_bytes()).collect::<Vec<_>>());
}

#[test]
fn batches_and_names_survive_a_loss() {
    let first = memory_at("127.0.0.1:0");
    let (a, here, b, there) = two(&first);
    let former = revoke_access(&first, &a);
    let mut batch = Batch::new();
    for i in 0..100 {
        batch.put(key(i), "1").put(key(i), "2");
    }
    let outcomes = here.write_batch(&batch).expect("in range");
    let has_no_effect = |i: usize| outcomes[i].as_ref().is_err_and(|e| e.effect() == Effect::None);
    for (i, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(outcome) => assert_eq!(*outcome, Outcome::Done),
            // A write without an effect is repeated, unless the later write of its key may have
            // happened: a repetition would end behind it.
            Err(e) if has_no_effect(i) => {
                assert!(i % 2 == 0 && !has_no_effect(i + 1), "{i} is not repeated: {e}");
            }
            Err(e) => assert_eq!(e.effect(), Effect::Unknown, "{i}: {e}"),
        }
    }
    within("another incarnation", || a.incarnation().expect("one") != former);
    let outcomes = here.write_batch(&batch).expect("in range");
    assert!(outcomes.iter().all(|o| matches!(o, Ok(Outcome::Done))), "{outcomes:?}");
    assert_eq!(there.get(key(7)).expect("get").as_deref(), Some(&b"2"[..]));
    assert_eq!(here.get_many(&[key(1), key(999)]).expect("get"), [Some(b"2".to_vec()), None]);
    revoke_access(&first, &a);
    // Created in the old incarnation or in the new one, and opened in either.
    let other = a.open_or_create("other", Options::default()).expect("a member again");
    other.put("k", "v").expect("put");
    let known = b.open("other").expect("there");
    assert_eq!(known.get("k").expect("get").as_deref(), Some(&b"v"[..]));
    a.stats().expect("a member");
}

/// Handles of the other process, which work meanwhile, end in `Closed`.
#[test]
fn an_index_that_another_process_removes_gives_its_memory_back() {
    let first = memory_at("127.0.0.1:0");
    let (a, b) = (connect(&first), connect(&first));
    let used = || b.stats().expect("stats").memory_nodes[0].used_bytes;
    let before = used();
    for _ in 0..3 {
        let here = a.open_or_create("t", Options::default()).expect("new");
        let there = b.open_or_create("t", Options::default()).expect("there");
        there.put("first", "v").expect("put");
        let works = std::thread::spawn(move || {
            let mut puts = 0usize..;
            let put = |n| here.put(key(n % 5_000), vec![1; n % 300]).err();
            puts.find_map(put).expect("an error")
        });
        within("the other process works", || there.len().expect("a count") > 500);
        b.drop_index("t").expect("there");
        assert_eq!(works.join().expect("ends").kind(), ErrorKind::Closed);
        assert_eq!(there.get("first").expect_err("removed").kind(), ErrorKind::Closed);
        assert_eq!(used(), before);
    }
}

#[test]
fn an_index_that_was_removed_meanwhile_is_closed() {
    let first = memory_at("127.0.0.1:0");
    let (a, here, b, _there) = two(&first);
    let kept = a.create("kept", Options::default()).expect("new");
    let (client, of_kept) = (here.async_client().expect("one"), kept.async_client().expect("one"));
    here.put("k", "v").expect("put");
    b.drop_index("t").expect("there");
    b.create("t", Options::default()).expect("another one of its name");
    join_again(&first, &a);
    within("it is closed", || here.put("k", "v").is_err());
    assert_eq!(here.get("k").expect_err("removed").kind(), ErrorKind::Closed);
    assert_eq!(pollster::block_on(client.get("k")).expect_err("removed").kind(), ErrorKind::Closed);
    kept.put("k", "v").expect("goes on");
    let found = pollster::block_on(of_kept.get("k")).expect("goes on");
    assert_eq!(found.as_deref(), Some(&b"v"[..]));
    let again = a.open("t").expect("the other one");
    assert_eq!(again.get("k").expect("get"), None);
}

#[test]
fn requests_of_async_clients_are_answered_by_the_next_incarnation() {
    let first = memory_at("127.0.0.1:0");
    let (a, here, _b, there) = two(&first);
    let options = AsyncOptions::new().workers(2).coroutines(8);
    let client = here.async_client_with(options).expect("workers");
    for i in 0..100 {
        here.put(key(i), "v").expect("put");
    }
    let (mut done, mut in_doubt) = (0, 0);
    let mut former = (0, 0);
    for _ in 0..3 {
        within("another incarnation", || a.incarnation().expect("one") != former);
        former = revoke_access(&first, &a);
        pollster::block_on(async {
            let gets: Vec<_> = (0..100).map(|i| client.get(key(i))).collect();
            let puts: Vec<_> = (0..100).map(|i| client.put(key(i), "v")).collect();
            let tasks = gets.into_iter().zip(puts);
            for (get, put) in tasks {
                assert_eq!(get.await.expect("repeated").as_deref(), Some(&b"v"[..]));
                match put.await {
                    Ok(_) => done += 1,
                    Err(e) => {
                        assert_eq!(e.effect(), Effect::Unknown, "{e}");
                        in_doubt += 1;
                    }
                }
            }
            let mut scan = client.scan(..).page_size(7);
            let mut pairs = 0;
            while let Some(page) = scan.next_page().await.expect("repeated") {
                pairs += page.len();
            }
            assert_eq!(pairs, 100);
        });
    }
    assert!(done > 200, "{done} done, {in_doubt} in doubt");
    assert_eq!(there.scan(..).into_iter().count(), 100);
}

/// Threads in the midst of operations: acknowledged writes are there, others may be, and no other
/// result is reported.
#[test]
fn threads_in_flight_lose_nothing_acknowledged() {
    const THREADS: usize = 4;
    let first = memory_at("127.0.0.1:0");
    let (a, here, _b, there) = two(&first);
    let over = AtomicBool::new(false);
    let written: Vec<BTreeMap<usize, Vec<u64>>> = std::thread::scope(|s| {
        let work = |t: usize| {
            let (here, over) = (&here, &over);
            move || {
                // By key: the last acknowledged value, and those in doubt since.
                let mut written: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
                for n in 0u64.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let k = t * 1000 + (n % 50) as usize;
                    match here.put(key(k), n.to_string()) {
                        Ok(_) => _ = written.insert(k, vec![n]),
                        Err(e) => {
                            assert_eq!(e.effect(), Effect::Unknown, "{e}");
                            written.entry(k).or_default().push(n);
                        }
                    }
                    let got = here.get(key(k)).expect("reads are repeated");
                    let got = got.and_then(|v| String::from_utf8(v).ok()?.parse().ok());
                    let may = &written[&k];
                    assert!(got.is_none_or(|g| may.contains(&g)), "{k}: {got:?} of {may:?}");
                }
                written
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|t| s.spawn(work(t))).collect();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(150));
            join_again(&first, &a);
        }
        std::thread::sleep(Duration::from_millis(150));
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().expect("a thread")).collect()
    });
    for (k, may) in written.iter().flatten() {
        let got = there.get(key(*k)).expect("get");
        let got = got.and_then(|v| String::from_utf8(v).ok()?.parse().ok());
        assert!(got.is_none_or(|g| may.contains(&g)), "{k}: {got:?} of {may:?}");
        assert!(got.is_some() || may.len() > 1 || !here.contains(key(*k)).expect("get"));
    }
}

/// The first memory node starts again: that is another pool, which this process does not join by
/// itself.
#[test]
fn another_pool_at_the_same_address_is_not_joined() {
    let first = memory_at("127.0.0.1:0");
    let pool = connect(&first);
    let index = pool.create("t", Options::default()).expect("new");
    index.put("k", "v").expect("put");
    let at = first.listens().to_string();
    drop(first);
    let _other = memory_at(&at);
    let began = Instant::now();
    loop {
        let e = index.get("k").expect_err("what was there is gone");
        if e.kind() == ErrorKind::Incompatible && e.to_string().contains("another pool") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{e}");
    }
    assert_eq!(pool.list().expect_err("gone").kind(), ErrorKind::Incompatible);
}

/// The threads of an incarnation end with it. They are counted in a process of its own, where no
/// other test has any.
#[test]
fn an_old_incarnation_leaves_no_threads() {
    const ALONE: &str = "DMTREE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().expect("a test is a file"));
        let test = ["--exact", "rejoin::an_old_incarnation_leaves_no_threads", "--nocapture"];
        let out = alone.args(test).env(ALONE, "1").output().expect("runs");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{said}{out:?}");
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let first = memory_at("127.0.0.1:0");
    let (a, here, b, there) = two(&first);
    there.put("k", "v").expect("put");
    let before = threads();
    for _ in 0..8 {
        join_again(&first, &a);
        here.put("k", "v").expect("put");
        b.stats().expect("a member");
    }
    within("threads of former incarnations have ended", || threads() <= before);
}

/// The caller chooses where a process listens. The address is free again for its next incarnation,
/// though sessions of the old one are there.
#[test]
fn a_process_listens_at_its_address_again() {
    let first = memory_at("127.0.0.1:0");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = free.local_addr().expect("bound").to_string();
    drop(free);
    let pool = Pool::connect(first.listens()).listen(&at).node(3).open().expect("joins");
    let index = pool.create("t", Options::default()).expect("new");
    let mut idle = index.session().expect("a session");
    idle.put(b"k", b"v").expect("put");
    for round in 2..4 {
        join_again(&first, &pool);
        assert_eq!(pool.incarnation().expect("one"), (3, round));
    }
    assert_eq!(idle.get(b"k").expect("get").as_deref(), Some(&b"v"[..]));
}
