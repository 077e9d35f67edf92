//! Concurrent clients. A checker verifies their histories key by key, as far as the published
//! layouts are sound.
//!
//! They are not sound everywhere. An entry has no checksum, so one READ while its leaf is divided
//! may show the key of the old entry and the value of the new entry of a slot. A table's WRITE
//! frees the lock with its last word, which presumes that words land in ascending order. A scan
//! without tables (on memory nodes) may return a pair before its insert has reached the table, and
//! a later read may miss it. So histories are checked where READs and WRITEs execute whole, or
//! where no leaf is divided; elsewhere only the final state is checked.

use std::cell::RefCell;
use std::ops::Bound;
use std::sync::Arc;

use dmtree_check::concurrent::{Stress, coroutines, threads};
use dmtree_check::history::History;
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{Core, Endpoint, NodeId, Policy, SeededRandom, Unfair, Worker};
use dmtree_fptree::{FpTree, Locks, Options, Tables};
use dmtree_parts::{Outcome, Page, RangeIndex, ScanRequest, Write};
use dmtree_pool::{Cluster, PoolOptions};

fn stress() -> Stress {
    Stress {
        seed: 1,
        threads: 4,
        coroutines: 6,
        ops: 250,
        keys: 64,
        value_bytes: 8,
        scan_one_in: 0,
        wave_ops: 0,
    }
}

fn pool(seed: u64) -> PoolOptions {
    PoolOptions {
        // On one compute node all clients meet in its queues, on several at the locks.
        compute_nodes: [3, 1, 2][seed as usize % 3],
        memory_nodes: 2,
        memory_bytes_per_node: 16 << 20,
        chunk_bytes: Some(64 << 10),
        ..PoolOptions::default()
    }
}

/// Verbs are delayed, and execute whole.
fn whole(seed: u64, o: &Options) -> TestCluster<FpTree> {
    test_cluster(seed, o, Tearing::Never)
}

fn test_cluster(seed: u64, o: &Options, tearing: Tearing) -> TestCluster<FpTree> {
    let pool = pool(seed);
    let fabric = LocalFabric::with_tearing(Knobs { suspend_one_in: 2, seed }, tearing);
    for m in 0..pool.memory_nodes {
        fabric.add_node(NodeId::memory(m), pool.memory_bytes_per_node).expect("a node");
    }
    for c in 0..pool.compute_nodes {
        fabric.add_node(NodeId::compute(c), pool.chosen_compute_bytes()).expect("a node");
    }
    let cluster = Cluster::format(Arc::new(fabric), &pool).expect("a pool");
    TestCluster::on(cluster, cache(o, seed), o).expect("an index")
}

/// Usually enough; sometimes room for a few nodes only.
fn cache(o: &Options, seed: u64) -> u64 {
    let least = dmtree_fptree::FpNode::least_cache_bytes(&dmtree_fptree::format::Geometry::new(o));
    if seed % 5 == 4 { 3 * least } else { 4 << 20 }
}

fn spread(o: Options) -> Options {
    Options { table_chunk_bytes: 4 << 10, fanout: 8, ..o }
}

fn preset(seed: u64) -> Options {
    spread(match seed % 5 {
        0 => Options::dmtree_published(),
        1 => Options::fptree_locking(),
        2 => Options::fptree(),
        3 => Options::fptree_rtc(),
        _ => Options::fptree_cache(),
    })
}

/// Uniform and unfair schedules, alternately.
fn policy(seed: u64) -> Box<dyn Policy> {
    if seed.is_multiple_of(2) {
        Box::new(SeededRandom::new(seed))
    } else {
        Box::new(Unfair::new(seed))
    }
}

/// The seeds of a test: its own number of them, or as many as `DMTREE_SEEDS` says (a 64th of these
/// for a test of one or two).
fn seeds(from: u64, usual: u64) -> std::ops::Range<u64> {
    let more = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    from..from + more.map_or(usual, |n| if usual <= 2 { n.div_ceil(64) } else { n })
}

fn check_linearizable(test_cluster: &TestCluster<FpTree>, history: &History, what: &str) {
    if let Err((key, violation)) = history.check() {
        panic!("{what}: key {:?}: {violation}", String::from_utf8_lossy(&key));
    }
    check_invariants(test_cluster);
}

fn check_invariants(test_cluster: &TestCluster<FpTree>) {
    test_cluster.client(0).expect("attach").walk().expect("every invariant holds");
}

/// Few keys (one leaf or two), many writers; scans where tables show which pairs count.
#[test]
fn interleaved_on_few_keys() {
    for seed in seeds(0, 60) {
        let o = preset(seed);
        let test_cluster = whole(seed, &o);
        let scan_one_in = if o.tables == Tables::Compute { 30 } else { 0 };
        let s = Stress { seed, keys: 8 + seed % 60, scan_one_in, ..stress() };
        let history = coroutines(&test_cluster, s, &mut *policy(seed));
        check_linearizable(&test_cluster, &history, &format!("seed {seed}"));
    }
}

/// Leaves and inner nodes are divided under readers and writers.
#[test]
fn interleaved_splits() {
    for seed in seeds(100, 60) {
        let o = preset(seed);
        let test_cluster = whole(seed, &o);
        let scan_one_in = if o.tables == Tables::Compute { 60 } else { 0 };
        let keys = 300 + seed % 1_500;
        let s = Stress { seed, coroutines: 8, ops: 400, keys, scan_one_in, ..stress() };
        let history = coroutines(&test_cluster, s, &mut *policy(seed));
        check_linearizable(&test_cluster, &history, &format!("seed {seed}"));
    }
}

/// Every combination of the ablation switches.
#[test]
fn interleaved_with_every_combination_of_switches() {
    for bits in 0..128u64 {
        let on = |n: u64| bits >> n & 1 == 1;
        let o = Options {
            tables: if on(0) { Tables::Memory } else { Tables::Compute },
            locks: if on(1) { Locks::Leaf } else { Locks::Table },
            mirrors: on(2) && !on(0),
            round_trip_combining: on(3),
            delegation: on(4),
            combining: on(5),
            adaptive_capacity: on(6),
            ..spread(Options::fptree())
        };
        for seed in seeds(bits * 1_000, 2) {
            let test_cluster = whole(seed, &o);
            let s = Stress { seed, ops: 150, keys: [12, 400][seed as usize % 2], ..stress() };
            let history = coroutines(&test_cluster, s, &mut *policy(seed));
            check_linearizable(
                &test_cluster,
                &history,
                &format!("switches {bits:07b}, seed {seed}"),
            );
        }
    }
}

/// A scan returns every key that is present throughout, once and in order, on every preset, while
/// other clients insert keys between them and divide leaves. Updates raise the value of each key,
/// and a scan never returns less than the acknowledged value.
#[test]
fn scans_over_splits_miss_and_repeat_nothing() {
    for seed in seeds(300, 60) {
        scans_over_splits(seed, &preset(seed), Tearing::Never);
    }
}

/// With verbs torn in ascending order, a scan with tables misses at most the key of one torn entry,
/// the last one of a leaf, and never a part of a leaf. It repeats nothing.
#[test]
fn torn_scans_over_splits_miss_one_key_at_most() {
    for seed in seeds(400, 60) {
        let o = [Options::dmtree_published(), Options::fptree_locking(), Options::fptree_cache()];
        scans_over_splits(seed, &spread(o[seed as usize % 3].clone()), Tearing::Ascending);
    }
}

/// Even keys are present throughout; odd ones are inserted.
fn numbered(n: u64) -> Vec<u8> {
    format!("key-{n:020}").into_bytes()
}

struct Scenario {
    seed: u64,
    /// The number of even keys.
    n: u64,
    torn: bool,
    /// Tables show which pairs count.
    exact: bool,
    /// The last acknowledged value of each even key.
    acknowledged: RefCell<Vec<u64>>,
}

fn scans_over_splits(seed: u64, o: &Options, tearing: Tearing) {
    let test_cluster = test_cluster(seed, o, tearing);
    let mut c = test_cluster.client(0).expect("attach");
    let n = 400;
    for i in 0..n {
        c.write(&numbered(2 * i), Write::Put(&0u64.to_le_bytes())).expect("put");
    }
    let torn = tearing != Tearing::Never;
    let exact = !torn && o.tables == Tables::Compute;
    let acknowledged = RefCell::new(vec![0; n as usize]);
    let scenario = Scenario { seed, n, torn, exact, acknowledged };
    let first = test_cluster.cluster.fabric().attach(NodeId::compute(0)).expect("attach");
    let core = Core::new(first, 64 << 20);
    let mut worker = Worker::new(core.clone());
    for client in 0..6u64 {
        let slot = core.add_slot();
        let cn = client as usize % test_cluster.nodes.len();
        let transport =
            test_cluster.cluster.fabric().attach(NodeId::compute(cn as u16)).expect("attach");
        let ep = Endpoint::new(core.clone(), transport, slot);
        let mut index = FpTree::new(ep, test_cluster.nodes[cn].clone());
        let scenario = &scenario;
        let mut rng = Rng::new(seed << 8 | client);
        worker.spawn(slot, async move {
            for round in 0..150 {
                let i = rng.below(scenario.n);
                match client {
                    // Only one client updates, so that values grow.
                    0 => scenario.update(&mut index, i).await,
                    1..=3 => {
                        let at = numbered(2 * i + 1);
                        index.write(&at, Write::Put(&[9; 8])).await.expect("put");
                    }
                    _ if round % 5 == 0 => scenario.scan(&mut index, i).await,
                    _ => scenario.get(&mut index, i).await,
                }
                index.endpoint().yield_now().await;
            }
        });
    }
    worker.run(&mut *policy(seed)).expect("every client ends");
    drop(worker);
    check_invariants(&test_cluster);
}

impl Scenario {
    async fn update(&self, index: &mut FpTree, i: u64) {
        let new = self.acknowledged.borrow()[i as usize] + 1;
        let value = new.to_le_bytes();
        let done = index.write(&numbered(2 * i), Write::Update(&value)).await.expect("update");
        assert!(self.torn || done == Outcome::Done, "seed {}", self.seed);
        self.acknowledged.borrow_mut()[i as usize] = new;
    }

    async fn get(&self, index: &mut FpTree, i: u64) {
        let before = self.acknowledged.borrow()[i as usize];
        let mut v = Vec::new();
        let found = index.get(&numbered(2 * i), &mut v).await.expect("get");
        if !self.torn {
            assert!(found, "seed {}: gone", self.seed);
            assert!(number(&v) >= before, "seed {}: an old value", self.seed);
        }
    }

    async fn scan(&self, index: &mut FpTree, from: u64) {
        let Self { seed, n, torn, exact, .. } = *self;
        let before = self.acknowledged.borrow().clone();
        let low = numbered(2 * from);
        let r = ScanRequest {
            low: Bound::Included(&low),
            high: Bound::Unbounded,
            reverse: false,
            limit: 10_000,
        };
        let mut page = Page::new();
        index.scan(&r, &mut page).await.expect("scan");
        let mut last: &[u8] = &[];
        let (mut next, mut missed) = (from, 0);
        let mut inserted = Vec::new();
        for (k, v) in page.iter() {
            assert!(k > last, "seed {seed}: in order, each once");
            last = k;
            let at: u64 = std::str::from_utf8(&k[4..]).expect("digits").parse().expect("digits");
            if at % 2 == 1 {
                assert!(torn || v == [9; 8], "seed {seed}");
                inserted.push(at);
                continue;
            }
            missed += at / 2 - next;
            assert!(torn || number(v) >= before[at as usize / 2], "seed {seed}: an old value");
            next = at / 2 + 1;
        }
        missed += n - next;
        assert!(missed <= u64::from(torn), "seed {seed}: {missed} keys are missing");
        // Keys that a scan with tables has returned stay present.
        let again = if exact { inserted.len() } else { 0 };
        for at in inserted.iter().rev().take(again.min(60)) {
            let found = index.get(&numbered(*at), &mut Vec::new()).await.expect("get");
            assert!(found, "seed {seed}: seen by a scan, then gone");
        }
    }
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// Runs clients that write disjoint keys, and read at random. Returns the number of failed writes,
/// and the acknowledged ones.
fn write_disjoint_keys(
    test_cluster: &TestCluster<FpTree>,
    seed: u64,
    ops: u64,
) -> (u64, Vec<(Vec<u8>, u64)>) {
    let failed = RefCell::new(0);
    let written = RefCell::new(Vec::new());
    let transport = test_cluster.cluster.fabric().attach(NodeId::compute(0)).expect("attach");
    let core = Core::new(transport.clone(), 64 << 20);
    let mut worker = Worker::new(core.clone());
    for client in 0..6u64 {
        let slot = core.add_slot();
        let ep = Endpoint::new(core.clone(), transport.clone(), slot);
        let mut index = FpTree::new(ep, test_cluster.nodes[0].clone());
        let (failed, written) = (&failed, &written);
        let mut rng = Rng::new(seed << 8 | client);
        worker.spawn(slot, async move {
            let mut out = Vec::new();
            let mut last = std::collections::BTreeMap::new();
            let key = |n: u64| format!("{:024}", n * 7919 % 1_000_003).into_bytes();
            for i in 0..ops {
                let n = rng.below(ops / 2) * 6 + client;
                match index.write(&key(n), Write::Put(&i.to_le_bytes())).await {
                    Ok(_) => _ = last.insert(key(n), i),
                    Err(_) => *failed.borrow_mut() += 1,
                }
                let _ = index.get(&key(rng.below(ops * 3)), &mut out).await;
            }
            written.borrow_mut().extend(last);
        });
    }
    worker.run(&mut *policy(seed)).expect("every client ends");
    drop(worker);
    (failed.into_inner(), written.into_inner())
}

/// Verbs torn at random words that land in ascending order, as the layouts presume. A read may meet
/// a torn entry, so reads are not checked; every acknowledged write is there at the end.
#[test]
fn torn_ascending_verbs_lose_no_write() {
    for seed in seeds(500, 40) {
        let o = preset(seed);
        let test_cluster = test_cluster(seed, &o, Tearing::Ascending);
        let (failed, written) = write_disjoint_keys(&test_cluster, seed, 300);
        assert_eq!(failed, 0, "seed {seed}");
        let mut c = test_cluster.client(0).expect("attach");
        for (key, value) in &written {
            let found = c.get(key).expect("get");
            assert_eq!(found, Some(value.to_le_bytes().to_vec()), "seed {seed}");
        }
        assert_eq!(c.walk().expect("every invariant holds").keys, written.len() as u64);
    }
}

/// Words that land in any order: the lock word of a table may be free before its fingerprints have
/// landed, and none of these layouts tolerates that. The test checks that no client panics and
/// every call ends.
#[test]
fn verbs_torn_in_any_order_end() {
    for seed in seeds(600, 15) {
        let o = Options { timeout_ms: 2, ..preset(seed) };
        let test_cluster = test_cluster(seed, &o, Tearing::AnyOrder);
        write_disjoint_keys(&test_cluster, seed, 60);
    }
}

/// Real threads, on one leaf that is never divided.
#[test]
fn real_threads_on_one_leaf() {
    for seed in seeds(0, 5) {
        let o = Options { leaf_capacity: 128, ..preset(seed) };
        let test_cluster = TestCluster::new(&pool(seed), 4 << 20, &o).expect("a pool and an index");
        let scan_one_in = if o.tables == Tables::Compute { 40 } else { 0 };
        let keys = [64, 8, 120][seed as usize % 3];
        let s = Stress { seed, coroutines: 3, ops: 500, keys, scan_one_in, ..stress() };
        let history = threads(&test_cluster, s);
        check_linearizable(&test_cluster, &history, &format!("seed {seed}"));
    }
}

/// Real threads that divide leaves. A read may meet a torn entry, so reads are not checked; every
/// acknowledged key is there at the end, with the value of its only writer.
#[test]
fn real_threads_with_splits() {
    for seed in seeds(0, 5) {
        let o = Options { combining: true, ..preset(seed) };
        let test_cluster =
            TestCluster::<FpTree>::new(&pool(seed), 4 << 20, &o).expect("a pool and an index");
        let key = |n: u64| format!("key-{:020}", dmtree_fabric::golden_hash(n)).into_bytes();
        let per = 4_000u64;
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let test_cluster = &test_cluster;
                scope.spawn(move || {
                    let mut c =
                        test_cluster.client(t as usize % test_cluster.nodes.len()).expect("attach");
                    for n in (0..per).map(|i| i * 4 + t) {
                        let w = Write::Insert(&[1; 8]);
                        assert_eq!(c.write(&key(n), w).expect("insert"), Outcome::Done);
                        let again = n.to_le_bytes();
                        let done = c.write(&key(n), Write::Update(&again)).expect("update");
                        assert_eq!(done, Outcome::Done, "seed {seed}: an acknowledged key is gone");
                    }
                });
            }
        });
        let mut c = test_cluster.client(0).expect("attach");
        for n in 0..4 * per {
            assert_eq!(c.get(&key(n)).expect("get"), Some(n.to_le_bytes().to_vec()), "seed {seed}");
        }
        assert_eq!(c.walk().expect("every invariant holds").keys, 4 * per);
    }
}
