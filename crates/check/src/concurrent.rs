//! Concurrent clients; their histories are checked key by key.

use std::cell::RefCell;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::{Core, Endpoint, Fifo, Policy, SeededRandom, Unfair, Worker, golden_hash};
use dmtree_parts::{Outcome, Page, RangeIndex, ScanRequest, Write};

use crate::history::{Event, History, Op, Swap, ValueId};
use crate::rng::Rng;
use crate::test_cluster::TestCluster;

/// Degree of concurrency, and number of keys.
#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// Seed of everything the clients draw.
    pub seed: u64,
    /// Threads (for [`threads`]).
    pub threads: usize,
    /// Clients per thread.
    pub coroutines: usize,
    /// Operations per client.
    pub ops: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of values: 8 at least; the first 8 are unique.
    pub value_bytes: usize,
    /// One operation in this many is a scan; 0: none.
    pub scan_one_in: u64,
    /// Clients fill and empty the index in turns of this many operations, so that leaves split and
    /// merge all the time; 0: an even mix.
    pub wave_ops: u64,
}

impl Stress {
    /// Six coroutines, on each of four threads for [`threads`], share 64 keys; no scans.
    pub fn of(seed: u64) -> Self {
        let (scan_one_in, wave_ops) = (0, 0);
        let (threads, coroutines, ops, keys, value_bytes) = (4, 6, 250, 64, 8);
        Self { seed, threads, coroutines, ops, keys, value_bytes, scan_one_in, wave_ops }
    }
}

/// Uniform and unfair schedules, alternately.
pub fn policy(seed: u64) -> Box<dyn Policy> {
    if seed.is_multiple_of(2) {
        Box::new(SeededRandom::new(seed))
    } else {
        Box::new(Unfair::new(seed))
    }
}

/// The seeds of a test: its own number of them, or as many as `DMTREE_SEEDS` says (a 64th of these
/// for a test of one or two, which runs many configurations).
pub fn seeds(from: u64, usual: u64) -> std::ops::Range<u64> {
    let more = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    from..from + more.map_or(usual, |n| if usual <= 2 { n.div_ceil(64) } else { n })
}

/// The history is linearizable, and afterwards every invariant holds.
///
/// # Panics
/// Otherwise.
pub fn judge<I: RangeIndex>(test_cluster: &TestCluster<I>, history: &History, what: &str) {
    if let Err((key, violation)) = history.check() {
        panic!("{what}: key {:?}: {violation}", String::from_utf8_lossy(&key));
    }
    let mut c = test_cluster.client(0).expect("attach");
    c.maintain().expect("maintain");
    c.walk().expect("every invariant holds");
}

/// Logical time: calls and returns of all threads in one order.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{:020}", golden_hash(n)).into_bytes()
}

fn encode(id: ValueId, len: usize) -> Vec<u8> {
    let mut v = id.to_le_bytes().to_vec();
    let mut rng = Rng::new(id);
    while v.len() < len {
        v.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    v.truncate(len.max(8));
    v
}

/// The identity of a value, which must be whole.
fn decode(v: &[u8]) -> ValueId {
    let id = u64::from_le_bytes(v[..8].try_into().expect("values have 8 bytes at least"));
    assert!(v == encode(id, v.len()), "a torn value: {v:?}");
    id
}

async fn client<I: RangeIndex>(mut index: I, s: Stress, number: u64, clock: &Clock) -> History {
    let mut rng = Rng::new(s.seed ^ number.wrapping_mul(0xff51_afd7_ed55_8ccd));
    let mut history = History::default();
    let mut out = Vec::new();
    let mut seen: Option<(u64, ValueId)> = None;
    for i in 0..s.ops {
        if s.scan_one_in > 0 && rng.below(s.scan_one_in) == 0 {
            scan(&mut index, s, &mut rng, clock, &mut history).await;
            continue;
        }
        let mut n = rng.below(s.keys);
        let id = s.seed << 40 | number << 28 | i;
        let value = encode(id, s.value_bytes);
        let expected;
        let call = clock.tick();
        let shrinking = s.wave_ops > 0 && !(i / s.wave_ops).is_multiple_of(2);
        let draw = match rng.below(10) {
            // An operation that the index lacks is replaced.
            8 if !I::OPS.delete => 3,
            9 if !I::OPS.compare_and_set => 4,
            3..=7 if shrinking && I::OPS.delete => 8,
            8 if s.wave_ops > 0 && !shrinking => 6,
            draw => draw,
        };
        let event = match draw {
            0..=2 => {
                let found = index.get(&key(n), &mut out).await.expect("get");
                Event::Get(found.then(|| decode(&out)))
            }
            3..=4 => {
                let done = index.write(&key(n), Write::Put(&value)).await.expect("put");
                assert_eq!(done, Outcome::Done);
                Event::Put(id)
            }
            5 => {
                let done = index.write(&key(n), Write::Update(&value)).await.expect("update");
                Event::Update(id, done == Outcome::Done)
            }
            6..=7 => {
                let done = index.write(&key(n), Write::Insert(&value)).await.expect("insert");
                Event::Insert(id, done == Outcome::Done)
            }
            8 => {
                let done = index.write(&key(n), Write::Delete).await.expect("delete");
                Event::Delete(done == Outcome::Done)
            }
            _ => {
                let (at, e) = seen.unwrap_or((n, 0));
                n = at;
                expected = encode(e, s.value_bytes);
                let w = Write::CompareAndSet { expected: &expected, new: Some(&value) };
                let swap = match index.write(&key(n), w).await.expect("compare_and_set") {
                    Outcome::Done => Swap::Done,
                    Outcome::Mismatch => Swap::Mismatch,
                    _ => Swap::NotFound,
                };
                Event::CompareAndSet(e, id, swap)
            }
        };
        let ret = clock.tick();
        if let Event::Get(Some(id)) = event {
            seen = Some((n, id));
        }
        history.push(&key(n), Op { call, ret: Some(ret), event });
        if i % 4 == 0 {
            index.maintain().await.expect("maintain");
        }
        index.endpoint().yield_now().await;
    }
    history
}

/// A scan is as many reads as there are keys in its range, each somewhere inside it; and in order,
/// each key once.
async fn scan<I: RangeIndex>(
    index: &mut I,
    s: Stress,
    rng: &mut Rng,
    clock: &Clock,
    history: &mut History,
) {
    let (mut a, mut b) = (key(rng.below(s.keys)), key(rng.below(s.keys)));
    if a > b {
        std::mem::swap(&mut a, &mut b);
    }
    let mut page = Page::new();
    let mut pairs = Vec::new();
    let reverse = I::OPS.reverse_scan && rng.below(3) == 0;
    let (mut low, mut high) = (Bound::Included(a.clone()), Bound::Included(b.clone()));
    let call = clock.tick();
    loop {
        let r = ScanRequest {
            low: low.as_ref().map(Vec::as_slice),
            high: high.as_ref().map(Vec::as_slice),
            reverse,
            limit: 1 + rng.below(40) as usize,
        };
        let resume = index.scan(&r, &mut page).await.expect("scan");
        pairs.extend(page.iter().map(|(k, v)| (k.to_vec(), decode(v))));
        match resume {
            None => break,
            Some(next) if reverse => high = next.0,
            Some(next) => low = next.0,
        }
    }
    let ret = Some(clock.tick());
    if reverse {
        pairs.reverse();
    }
    assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0), "a scan is in order, each key once");
    let found: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
    assert!(found.keys().all(|k| (&a..=&b).contains(&k)), "a scan stays in its range");
    for n in 0..s.keys {
        let k = key(n);
        if (&a..=&b).contains(&&k) {
            let event = Event::Get(found.get(&k).copied());
            history.push(&k, Op { call, ret, event });
        }
    }
}

/// Runs clients of one thread as coroutines, spread over all compute nodes, in the order that a
/// policy picks. Needs the suspending knob of the fabric.
pub fn coroutines<I: RangeIndex>(
    test_cluster: &TestCluster<I>,
    s: Stress,
    policy: &mut dyn Policy,
) -> History {
    let clock = Clock::default();
    let all = RefCell::new(History::default());
    let attach = |cn: usize| {
        let node = test_cluster.cluster.compute_node(cn).expect("a node");
        node.fabric().attach(node.cn()).expect("attach")
    };
    let first = attach(0);
    let core = Core::new(first.clone(), 64 << 20);
    let mut worker = Worker::new(core.clone());
    for number in 0..s.coroutines {
        let cn = number % test_cluster.nodes.len();
        let transport = if cn == 0 { first.clone() } else { attach(cn) };
        let slot = core.add_slot();
        let ep = Endpoint::new(core.clone(), transport, slot);
        let index = I::client(ep, test_cluster.nodes[cn].clone());
        let (clock, all) = (&clock, &all);
        worker.spawn(slot, async move {
            let history = client(index, s, number as u64, clock).await;
            all.borrow_mut().append(history);
        });
    }
    worker.run(policy).expect("every client ends");
    drop(worker);
    all.into_inner()
}

/// Real threads over all compute nodes, with coroutines on each.
pub fn threads<I: RangeIndex>(test_cluster: &TestCluster<I>, s: Stress) -> History {
    let clock = Clock::default();
    let mut all = History::default();
    std::thread::scope(|scope| {
        let clock = &clock;
        let handles: Vec<_> = (0..s.threads)
            .map(|t| scope.spawn(move || one_thread(test_cluster, s, t, clock)))
            .collect();
        for handle in handles {
            all.append(handle.join().expect("no client panics"));
        }
    });
    all
}

fn one_thread<I: RangeIndex>(
    test_cluster: &TestCluster<I>,
    s: Stress,
    t: usize,
    clock: &Clock,
) -> History {
    let (core, clients) =
        test_cluster.coroutines(t % test_cluster.nodes.len(), s.coroutines).expect("attach");
    let all = RefCell::new(History::default());
    let mut worker = Worker::new(core);
    for (i, (slot, index)) in clients.into_iter().enumerate() {
        let number = (t * s.coroutines + i) as u64;
        let all = &all;
        worker.spawn(slot, async move {
            let history = client(index, s, number, clock).await;
            all.borrow_mut().append(history);
        });
    }
    worker.run(&mut Fifo).expect("every client ends");
    drop(worker);
    all.into_inner()
}
