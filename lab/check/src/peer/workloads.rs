//! Concurrent clients on systems that need not be linearizable everywhere: what they must keep in
//! spite of that.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_parts::{AnyIndex, AnyOptions, Outcome, Page, Write};
use dmtree_pool::PoolOptions;

use super::{Peer, each, named};
use crate::concurrent::{self, Stress, policy, run_clients, seeds};
use crate::conformance::above;
use crate::rng::Rng;
use crate::test_cluster::TestCluster;

/// A pool in which all clients meet in the queues of one compute node, or at the locks.
pub fn contended(seed: u64) -> PoolOptions {
    PoolOptions {
        compute_nodes: [3, 1, 2][seed as usize % 3],
        memory_nodes: 2,
        memory_bytes_per_node: 32 << 20,
        chunk_bytes: Some(64 << 10),
        ..PoolOptions::default()
    }
}

/// An index in such a pool with clients suspended at every second verb.
pub fn suspended(
    seed: u64,
    o: impl Into<AnyOptions>,
    cache_bytes: u64,
    tearing: Tearing,
) -> TestCluster {
    let fabric = LocalFabric::with_chips(Knobs { suspend_one_in: 2, seed }, tearing, 0);
    TestCluster::on_local(fabric, &contended(seed), cache_bytes, o).expect("an index")
}

/// Longest operation on a busy machine, ms.
const BUSY_MS: u64 = 60_000;

/// The history of coroutines is linearizable.
pub fn check_history(test_cluster: &TestCluster, s: Stress, what: &str) {
    let log = concurrent::coroutines(test_cluster, s, &mut *policy(s.seed));
    concurrent::judge(test_cluster, &log, &format!("seed {}, {what}", s.seed));
}

/// The history of real threads on an index in a contended pool is linearizable.
pub fn check_threads(o: impl Into<AnyOptions>, s: Stress) {
    let o = &o.into();
    let test_cluster = TestCluster::new(&contended(s.seed), 4 << 20, o).expect("an index");
    let log = concurrent::threads(&test_cluster, s);
    concurrent::judge(&test_cluster, &log, &format!("seed {}, {o:?}", s.seed));
}

/// Coroutines that are suspended at random verbs, on every system with options drawn from the seed:
/// few keys (one leaf or two), then many, with splits, and with merges in waves. Returns the
/// seeds with a history that is not linearizable.
pub fn interleaved(peer: &Peer) -> Vec<String> {
    let Some((tearing, scans)) = &peer.interleaved else { return Vec::new() };
    let all: Vec<u64> = seeds(0, 60).chain(seeds(1 << 20, 60)).collect();
    each(&all, |&seed| {
        let (system, o) = &peer.systems[seed as usize % peer.systems.len()];
        let mut rng = Rng::new(seed);
        let mut drawn = peer.subjects[0].drawn(Some(o), &mut |n| rng.below(n));
        if let Some(timeout_ms) = drawn.options.get_mut("timeout_ms") {
            // The clock is that of the machine, which may be busy.
            *timeout_ms = BUSY_MS.into();
        }
        let o = o.with(drawn.options);
        let cache_bytes = if seed % 5 == 4 { 3 * drawn.least_cache_bytes } else { 4 << 20 };
        let value_bytes = drawn.value_bytes.unwrap_or([8, 8, 60, 200][seed as usize % 4]) as usize;
        let scan_one_in = if scans(&o) { [30, 60, 8][seed as usize % 3] } else { 0 };
        let few = Stress { value_bytes, scan_one_in, keys: 8 + seed % 100, ..Stress::of(seed) };
        let wave_ops = if o.ops().delete { seed % 2 * (60 + seed % 60) } else { 0 };
        // (Regression: a scan repeated keys when the leaf that covers its cursor had meanwhile
        // taken over its left neighbour's range.)
        let keys = if wave_ops > 0 { 100 + seed % 300 } else { 150 + seed % 1_500 };
        let many = Stress { coroutines: 8, ops: 500, keys, wave_ops, ..few };
        named(&format!("{system}, interleaved"), || {
            let s = if seed >> 20 == 0 { few } else { many };
            check_history(&suspended(seed, &o, cache_bytes, *tearing), s, &format!("{o:?}"));
        })
    })
}

/// Six clients on one thread, spread over the compute nodes.
fn six<F: Future<Output = ()>>(
    test_cluster: &TestCluster,
    seed: u64,
    client: impl Fn(u64, AnyIndex) -> F,
) {
    let nodes = test_cluster.local_places();
    let clients = test_cluster.coroutines((0..6).map(|n| n % nodes)).expect("attach");
    run_clients(clients, 0, &mut *policy(seed), client);
}

/// Even keys are present throughout; odd ones are inserted.
fn numbered(n: u64) -> Vec<u8> {
    format!("key-{n:020}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// The number of even keys.
const EVEN: u64 = 400;

struct Present {
    seed: u64,
    torn: bool,
    /// A key that a scan has returned stays present.
    exact: bool,
    /// The last acknowledged value of each even key.
    acknowledged: RefCell<Vec<u64>>,
}

/// A scan returns every key that is present throughout, once and in order, while other clients
/// insert keys between them and divide leaves. Updates raise the value of each key, and a scan
/// never returns less than the acknowledged value. Where its READs can be `torn`, a scan
/// misses at most the key of one torn entry, the last one of a leaf, and never a part of a leaf.
pub fn scans_over_splits(test_cluster: &TestCluster, seed: u64, torn: bool, exact: bool) {
    let mut c = test_cluster.client(0).expect("attach");
    for i in 0..EVEN {
        c.write(&numbered(2 * i), Write::Put(&0u64.to_le_bytes())).expect("put");
    }
    let acknowledged = RefCell::new(vec![0; EVEN as usize]);
    let present = &Present { seed, torn, exact, acknowledged };
    six(test_cluster, seed, |client, mut index: AnyIndex| async move {
        let mut rng = Rng::new(seed << 8 | client);
        for round in 0..150 {
            let i = rng.below(EVEN);
            match client {
                // Only one client updates, so that values grow.
                0 => present.update(&mut index, i).await,
                1..=3 => {
                    let at = numbered(2 * i + 1);
                    index.write(&at, Write::Put(&[9; 8])).await.expect("put");
                }
                _ if round % 5 == 0 => present.scan(&mut index, i).await,
                _ => present.get(&mut index, i).await,
            }
            index.endpoint().yield_now().await;
        }
    });
    c.walk().expect("every invariant holds");
}

impl Present {
    async fn update(&self, index: &mut AnyIndex, i: u64) {
        let new = self.acknowledged.borrow()[i as usize] + 1;
        let done = index.write(&numbered(2 * i), Write::Update(&new.to_le_bytes())).await;
        assert!(self.torn || done.expect("update") == Outcome::Done, "seed {}", self.seed);
        self.acknowledged.borrow_mut()[i as usize] = new;
    }

    async fn get(&self, index: &mut AnyIndex, i: u64) {
        let before = self.acknowledged.borrow()[i as usize];
        let mut v = Vec::new();
        let found = index.get(&numbered(2 * i), &mut v).await.expect("get");
        assert!(self.torn || found, "seed {}: gone", self.seed);
        assert!(self.torn || number(&v) >= before, "seed {}: an old value", self.seed);
    }

    async fn scan(&self, index: &mut AnyIndex, from: u64) {
        let Self { seed, torn, .. } = *self;
        let before = self.acknowledged.borrow().clone();
        let low = numbered(2 * from);
        let mut page = Page::new();
        index.scan(&above(&low, 10_000), &mut page).await.expect("scan");
        let (mut last, mut next, mut missed, mut inserted) = (&[][..], from, 0, Vec::new());
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
        missed += EVEN - next;
        assert!(missed <= u64::from(torn), "seed {seed}: {missed} keys are missing");
        let again = if self.exact { inserted.len().min(60) } else { 0 };
        for at in inserted.iter().rev().take(again) {
            let found = index.get(&numbered(*at), &mut Vec::new()).await.expect("get");
            assert!(found, "seed {seed}: seen by a scan, then gone");
        }
    }
}

/// Six clients write keys of their own, and read at random. Returns the number of failed writes,
/// and the last acknowledged value of each key.
pub fn write_own_keys(
    test_cluster: &TestCluster,
    seed: u64,
    ops: u64,
) -> (u64, BTreeMap<Vec<u8>, u64>) {
    let (failed, written) = (&RefCell::new(0), &RefCell::new(BTreeMap::new()));
    let key = |n: u64| format!("{:024}", n * 7919 % 1_000_003).into_bytes();
    six(test_cluster, seed, |client, mut index: AnyIndex| async move {
        let (mut rng, mut out) = (Rng::new(seed << 8 | client), Vec::new());
        for i in 0..ops {
            let n = rng.below(ops / 2) * 6 + client;
            match index.write(&key(n), Write::Put(&i.to_le_bytes())).await {
                Ok(_) => _ = written.borrow_mut().insert(key(n), i),
                Err(_) => *failed.borrow_mut() += 1,
            }
            let _ = index.get(&key(rng.below(ops * 3)), &mut out).await;
        }
    });
    (failed.take(), written.take())
}

/// Every acknowledged write is there at the end, whatever reads meet meanwhile.
pub fn lose_no_write(test_cluster: &TestCluster, seed: u64, ops: u64) {
    let (failed, written) = write_own_keys(test_cluster, seed, ops);
    assert_eq!(failed, 0, "seed {seed}");
    let mut c = test_cluster.client(0).expect("attach");
    for (key, value) in &written {
        let found = c.get(key).expect("get");
        assert_eq!(found, Some(value.to_le_bytes().to_vec()), "seed {seed}");
    }
    assert_eq!(c.walk().expect("every invariant holds").keys, written.len() as u64);
}
