//! Journals in parts: appends of a compute node at journal nodes that lose answers, restart, stand
//! still, or are away.
#![expect(clippy::disallowed_methods, reason = "threads of journal nodes")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::{
    Effect, Endpoint, Error, ErrorKind, Fabric, Member, NodeId, Result, RpcFuture, RpcHandler,
};
use dmtree_journal::{
    DirectoryJournal, IndexJournal, IndexNumber, JOURNAL_SERVICE, Journal, JournalService,
    KnownIndex, Level, Record, ShardedJournal,
};

const ME: Member = Member { node: NodeId::compute(0), incarnation: 1 };
const SOON: Duration = Duration::from_secs(20);

/// What a journal node does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It answers.
    None,
    /// It executes every other call of each compute node and does not answer, so that the call
    /// comes again. Counted over all of them, two that call in turns would have one that loses each
    /// answer.
    AnswersLost,
    /// It is not reached.
    Away,
    /// It restarts before every fifth call.
    Restarts,
    /// It executes a call when the test says so.
    StandsStill,
}

/// A journal node over a directory.
struct Node {
    _dir: tempfile::TempDir,
    journal: Arc<DirectoryJournal>,
    service: Mutex<Arc<JournalService>>,
    fault: Mutex<Fault>,
    calls: AtomicUsize,
    calls_of: Mutex<BTreeMap<NodeId, usize>>,
}

impl Node {
    fn start(fabric: &LocalFabric, n: u16) -> Arc<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = DirectoryJournal::open(dir.path(), Level::default()).expect("opened");
        let journal = Arc::new(journal);
        let service = Mutex::new(Arc::new(JournalService::new(journal.clone(), false)));
        let (fault, calls) = (Mutex::new(Fault::None), AtomicUsize::new(0));
        let calls_of = Mutex::default();
        let node = Arc::new(Self { _dir: dir, journal, service, fault, calls, calls_of });
        fabric.add_node(NodeId::journal(n), 4096).expect("new");
        fabric.serve(NodeId::journal(n), JOURNAL_SERVICE, node.clone()).expect("served");
        node
    }

    fn fault(&self) -> MutexGuard<'_, Fault> {
        self.fault.lock().expect("no panic")
    }

    fn set(&self, fault: Fault) {
        *self.fault() = fault;
    }

    /// What it has of an index.
    fn pairs(&self, index: IndexNumber) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let cut = self.journal.cut().expect("a cut");
        cut.pairs(index).expect("an index").map(|pair| pair.expect("read")).collect()
    }
}

impl RpcHandler for Node {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        let calls = self.calls.fetch_add(1, SeqCst);
        let is_other = {
            let mut calls_of = self.calls_of.lock().expect("no panic");
            let own = calls_of.entry(from).or_default();
            *own += 1;
            own.is_multiple_of(2)
        };
        let (fault, gone) = (*self.fault(), || Error::unreachable("it is away"));
        let service = {
            let mut service = self.service.lock().expect("no panic");
            if fault == Fault::Restarts && calls.is_multiple_of(5) {
                *service = Arc::new(JournalService::new(self.journal.clone(), false));
            }
            service.clone()
        };
        Box::pin(async move {
            if fault == Fault::Away {
                return Err(gone());
            }
            while *self.fault() == Fault::StandsStill {
                std::thread::sleep(Duration::from_millis(1));
            }
            let answer = RpcHandler::call(&*service, ep, from, request).await?;
            match fault == Fault::AnswersLost && is_other {
                true => Err(gone().effect_unknown()),
                false => Ok(answer),
            }
        })
    }
}

/// A compute node and its journal nodes.
struct Pool {
    fabric: Arc<dyn Fabric>,
    nodes: Vec<Arc<Node>>,
    journal: Arc<ShardedJournal>,
}

impl Pool {
    fn of(journal_nodes: u16) -> Self {
        let local = LocalFabric::with_knobs(dmtree_fabric::local::Knobs::default());
        (0..4).for_each(|n| local.add_node(NodeId::compute(n), 4096).expect("new"));
        let nodes = (0..journal_nodes).map(|n| Node::start(&local, n)).collect();
        let fabric: Arc<dyn Fabric> = Arc::new(local);
        let journal = ShardedJournal::open(&fabric, ME, journal_nodes, |_| false).expect("opened");
        Self { fabric, nodes, journal: Arc::new(journal) }
    }

    /// The journal of another compute node.
    fn journal_of(&self, compute_node: u16) -> Arc<ShardedJournal> {
        let me = Member { node: NodeId::compute(compute_node), ..ME };
        let parts = self.nodes.len() as u16;
        Arc::new(ShardedJournal::open(&self.fabric, me, parts, |_| false).expect("opened"))
    }

    fn ep(&self) -> Endpoint {
        Endpoint::alone(self.fabric.attach(ME.node).expect("its own"), 0)
    }

    fn create(&self, name: &str) -> IndexJournal {
        let number = self.journal.create().expect("created");
        let known = KnownIndex { number, name: name.to_owned(), options: b"{}".to_vec() };
        self.journal.name(&[known]).expect("named");
        IndexJournal::new(self.journal.clone(), number)
    }

    /// What all parts have of an index.
    fn pairs(&self, index: IndexNumber) -> Vec<(Vec<u8>, Vec<u8>)> {
        let cut = self.journal.cut().expect("a cut");
        cut.pairs(index).expect("an index").map(|pair| pair.expect("read")).collect()
    }

    fn put(&self, index: &IndexJournal, key: &[u8], value: &[u8], within_ns: u64) -> Result<()> {
        let ep = self.ep();
        ep.set_timeout(within_ns);
        ep.renew_deadline();
        let append = index.append(&[Record::Put { key, value }])?;
        ep.block_on(append.accepted(&ep))
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads that each own keys, as holders of locks do, put and delete them; the last record of
/// every key stays, whatever the journal nodes do.
fn the_last_record_of_a_key_stays(fault: Fault) {
    const KEYS: u32 = 40;
    let pool = Pool::of(3);
    let (a, b) = (pool.create("a"), pool.create("b"));
    pool.nodes.iter().for_each(|node| node.set(fault));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (pool, a, b) = (&pool, &a, &b);
            scope.spawn(move || {
                for round in 0..10u32 {
                    for key in (0..KEYS).filter(|key| key % 4 == thread) {
                        let (key, value) = (key.to_be_bytes(), round.to_be_bytes());
                        let put = Record::Put { key: &key, value: &value };
                        let ep = pool.ep();
                        let both = [put, Record::Delete { key: &key[..3] }, put];
                        let append = a.append(&both).expect("appended");
                        ep.block_on(append.accepted(&ep)).expect("accepted");
                        if round % 2 == 0 {
                            pool.put(b, &key, &value, 10_000_000_000).expect("accepted");
                        }
                    }
                }
            });
        }
    });
    pool.nodes.iter().for_each(|node| node.set(Fault::None));
    let due = |value: u32| {
        let pair = |key: u32| (key.to_be_bytes().to_vec(), value.to_be_bytes().to_vec());
        (0..KEYS).map(pair).collect::<Vec<_>>()
    };
    assert_eq!(pool.pairs(a.number()), due(9), "in key order");
    assert_eq!(pool.pairs(b.number()), due(8));
    let parts: Vec<_> = pool.nodes.iter().map(|node| node.pairs(a.number()).len()).collect();
    assert!(parts.iter().all(|n| *n > 0) && parts.iter().sum::<usize>() == KEYS as usize);
}

#[test]
fn records_of_a_key_keep_their_order() {
    the_last_record_of_a_key_stays(Fault::None);
}

#[test]
fn records_of_a_key_keep_their_order_when_answers_are_lost() {
    the_last_record_of_a_key_stays(Fault::AnswersLost);
}

#[test]
fn records_of_a_key_keep_their_order_when_journal_nodes_restart() {
    the_last_record_of_a_key_stays(Fault::Restarts);
}

/// A call that comes again because its answer was lost is answered, and not executed again: an
/// index that is created so has one number.
#[test]
fn a_call_whose_answer_is_lost_takes_effect_once() {
    let pool = Pool::of(2);
    pool.nodes.iter().for_each(|node| node.set(Fault::AnswersLost));
    let numbers: Vec<_> = (0..10).map(|_| pool.journal.create().expect("created").0).collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
    let before: usize = pool.nodes.iter().map(|node| node.calls.load(SeqCst)).sum();
    assert!(before > 20, "{before} calls: every other one came again");
}

/// Its lock is released at the deadline. What is in the queue then is never sent: a record of the
/// next holder would be overtaken.
#[test]
fn a_record_that_was_given_up_is_never_sent() {
    let pool = Pool::of(1);
    let index = pool.create("a");
    pool.nodes[0].set(Fault::Away);
    let e = pool.put(&index, b"k", b"late", 50_000_000).expect_err("nothing accepts it");
    assert_eq!((e.kind(), e.effect()), (ErrorKind::TimedOut, Effect::Unknown), "{e}");
    assert!(e.to_string().contains("journal node jn0: it is away"), "{e}");
    // A future that is dropped: it was sent again and again until now.
    let dropped = index.append(&[Record::Put { key: b"d", value: b"late" }]).expect("appended");
    let calls = pool.nodes[0].calls.load(SeqCst);
    eventually("it is sent again", || pool.nodes[0].calls.load(SeqCst) > calls + 1);
    drop(dropped);
    let behind = index.append(&[Record::Put { key: b"x", value: b"1" }]).expect("appended");
    pool.nodes[0].set(Fault::None);
    let ep = pool.ep();
    ep.block_on(behind.accepted(&ep)).expect("accepted");
    assert_eq!(pool.pairs(index.number()), [(b"x".to_vec(), b"1".to_vec())]);
}

/// An attempt that is under way may be executed: an append that is given up has not ended before.
#[test]
fn an_append_ends_when_its_attempt_has_ended() {
    let pool = Pool::of(1);
    let index = pool.create("a");
    for dropped in [false, true] {
        let node = &pool.nodes[0];
        node.set(Fault::StandsStill);
        let calls = node.calls.load(SeqCst);
        let (ended, mut early) = (AtomicUsize::new(0), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if dropped {
                    let put = Record::Put { key: b"d", value: b"1" };
                    let append = index.append(&[put]).expect("appended");
                    eventually("it is on its way", || node.calls.load(SeqCst) > calls);
                    drop(append);
                } else {
                    pool.put(&index, b"k", b"1", 50_000_000).expect_err("nothing accepts it");
                }
                ended.fetch_add(1, SeqCst);
            });
            eventually("it is on its way", || node.calls.load(SeqCst) > calls);
            std::thread::sleep(Duration::from_millis(300));
            early = ended.load(SeqCst);
            node.set(Fault::None);
        });
        let after = ended.load(SeqCst);
        assert_eq!((early, after), (0, 1), "the attempt was still under way");
    }
    assert_eq!(pool.pairs(index.number()).len(), 2, "both were executed");
}

/// A value that exceeds a call goes in several; a node that restarts in their midst gets all of
/// them again.
#[test]
fn a_long_value_goes_in_several_calls() {
    let pool = Pool::of(2);
    let index = pool.create("a");
    let long: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
    for (key, fault) in [(b"k1", Fault::None), (b"k2", Fault::AnswersLost), (b"k3", Fault::None)] {
        pool.nodes.iter().for_each(|node| node.set(fault));
        pool.put(&index, key, &long, 10_000_000_000).expect("accepted");
    }
    let before = pool.nodes[0].calls.load(SeqCst) + pool.nodes[1].calls.load(SeqCst);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| pool.put(&index, b"k4", &long, 10_000_000_000));
        eventually("some of it is there", || {
            pool.nodes.iter().map(|node| node.calls.load(SeqCst)).sum::<usize>() > before + 3
        });
        for node in &pool.nodes {
            let again = JournalService::new(node.journal.clone(), false);
            *node.service.lock().expect("no panic") = Arc::new(again);
        }
        put.join().expect("no panic").expect("accepted");
    });
    pool.nodes.iter().for_each(|node| node.set(Fault::None));
    let pairs = pool.pairs(index.number());
    assert_eq!(pairs.len(), 4);
    assert!(pairs.iter().all(|(_, value)| *value == long));
}

/// Records of an index that was removed are refused; others in the same call are accepted.
#[test]
fn an_index_that_was_removed_refuses_its_records_alone() {
    let pool = Pool::of(2);
    let (a, b) = (pool.create("a"), pool.create("b"));
    pool.journal.remove(a.number()).expect("removed");
    let e = pool.put(&a, b"k", b"v", 1_000_000_000).expect_err("it is gone");
    assert_eq!((e.kind(), e.effect()), (ErrorKind::Closed, Effect::Unknown), "{e}");
    pool.put(&b, b"k", b"v", 1_000_000_000).expect("accepted");
    let names = |journal: &dyn Journal| -> Vec<String> {
        let cut = journal.cut().expect("a cut");
        cut.indexes().iter().map(|known| known.name.clone()).collect()
    };
    assert_eq!(names(&*pool.journal), ["b"]);
    // A creator that has died after naming: the next of that name has it.
    let c = pool.create("b");
    assert_eq!(names(&*pool.journal), ["b"]);
    assert!(pool.pairs(c.number()).is_empty());
    pool.nodes.iter().for_each(|node| assert_eq!(names(&*node.journal), ["b"]));
}

/// Compute nodes write in turns, each when the write of the other was acknowledged: a cut with a
/// write has all that came before it, whatever part each is in.
#[test]
fn a_cut_has_what_was_acknowledged_before_what_it_has() {
    const KEYS: u64 = 16;
    let pool = Pool::of(3);
    let index = pool.create("a");
    pool.nodes.iter().for_each(|node| node.set(Fault::AnswersLost));
    // How many writes were acknowledged. The mutex is the writers' alone: it is not fair, and
    // whichever writes has it nearly all the time.
    let (turn, last, stops) = (Mutex::new(()), AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for node in 1..3 {
            let part = IndexJournal::new(pool.journal_of(node), index.number());
            let (pool, turn, last, stops) = (&pool, &turn, &last, &stops);
            scope.spawn(move || {
                while stops.load(SeqCst) == 0 {
                    let _turn = turn.lock().expect("no panic");
                    let next = last.load(SeqCst);
                    let (key, value) = ((next % KEYS).to_be_bytes(), next.to_be_bytes());
                    pool.put(&part, &key, &value, 10_000_000_000).expect("accepted");
                    last.store(next + 1, SeqCst);
                }
            });
        }
        let other = pool.journal_of(3);
        let (mut cuts, mut latest, mut wrong) = (0, 0, None);
        for journal in [&pool.journal, &other].into_iter().cycle().take(60) {
            let before = last.load(SeqCst);
            let cut = match journal.cut() {
                Ok(cut) => cut,
                Err(e) => {
                    // The writers would be waited for.
                    stops.fetch_add(1, SeqCst);
                    panic!("no cut: {e}");
                }
            };
            let pairs = cut.pairs(index.number()).expect("an index");
            let number = |bytes: Vec<u8>| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
            let pairs = pairs.map(|pair| pair.map(|(k, v)| (number(k), number(v))).expect("read"));
            let found: BTreeMap<u64, u64> = pairs.collect();
            let Some(newest) = found.values().max().copied() else { continue };
            let is_due = |n: u64| found.get(&(n % KEYS)) == Some(&n);
            let is_closed = (newest.saturating_sub(KEYS - 1)..=newest).all(is_due);
            if newest + 1 < before || !is_closed {
                wrong = Some(format!("{newest} is in the cut, {before} before it: {found:?}"));
            }
            cuts += u32::from(newest > latest);
            latest = newest;
        }
        stops.fetch_add(1, SeqCst);
        assert_eq!(wrong, None);
        assert!(cuts > 20, "{cuts} cuts had something new, up to {latest}");
    });
}

/// A part that does not stand still from its cut to the release of it has no moment in common with
/// the others.
#[test]
fn a_cut_whose_standstill_has_ended_is_none() {
    let pool = Pool::of(2);
    let index = pool.create("a");
    std::thread::scope(|scope| {
        pool.nodes[1].set(Fault::StandsStill);
        let cut = scope.spawn(|| pool.journal.cut().map(drop));
        std::thread::sleep(Duration::from_millis(2_300));
        // The standstill of part 0 is over: it accepts records again.
        let other = IndexJournal::new(pool.journal_of(1), index.number());
        let key = |part| {
            let mut keys = (0..100u8).map(|n| [n]);
            keys.find(|key| xxhash_rust::xxh3::xxh3_64(key) % 2 == part).expect("one of each")
        };
        pool.put(&other, &key(0), b"v", 1_000_000_000).expect("accepted");
        pool.nodes[1].set(Fault::None);
        let e = cut.join().expect("no panic").expect_err("it is none");
        assert!(e.to_string().contains("stand still"), "{e}");
    });
    pool.journal.cut().expect("the next is one");
}

/// What part 0 has numbered and never named is there under another index's number later.
#[test]
fn what_a_cut_off_creation_has_left_is_empty_for_the_next_of_its_number() {
    let pool = Pool::of(2);
    let stale = IndexNumber(1);
    pool.nodes[1].journal.create_numbered(stale).expect("created");
    pool.nodes[1].journal.append(stale, &[Record::Put { key: b"old", value: b"" }]).expect("put");
    let a = pool.create("a");
    assert_eq!(a.number(), stale);
    assert!(pool.pairs(stale).is_empty());
}
