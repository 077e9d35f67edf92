//! Journal nodes on simulated hardware: what a write costs more with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use dmtree_check::harness::Harness;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, Options};
use dmtree_fabric::sim::{Profile, SimFabric};
use dmtree_fabric::{Endpoint, Fabric, NodeId, OpKind, RpcFuture, RpcHandler, SeededRandom};
use dmtree_journal::{
    IndexJournal, IndexNumber, JOURNAL_SERVICE, Journal, JournalService, Level, ShardedJournal,
};
use dmtree_parts::{AnyIndex, Write};
use dmtree_pool::PoolOptions;

use super::journal::{INDEX, SimJournal};

/// Longest time of a call, ns: no call is on its way for so long, because a lost one is sent again
/// every 30 us.
const ATTEMPT_NS: u64 = 1_000_000;

/// Counts the calls of a journal node.
struct Counted {
    service: JournalService,
    calls: Arc<AtomicU64>,
}

impl RpcHandler for Counted {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        self.calls.fetch_add(1, SeqCst);
        self.service.call(ep, from, request)
    }

    fn waits(&self) -> bool {
        RpcHandler::waits(&self.service)
    }
}

/// Journal nodes of a harness.
#[derive(Default)]
pub struct Attached {
    /// The calls that they have begun.
    pub calls: Arc<AtomicU64>,
    /// The senders of each compute node.
    pub senders: Vec<Vec<Endpoint>>,
}

/// Adds a journal node for each of these, and gives every compute node senders to them.
pub fn attach(harness: &Harness, parts: Vec<Arc<SimJournal>>, index: IndexNumber) -> Attached {
    let (mut senders, count, calls) = (Vec::new(), parts.len(), Arc::<AtomicU64>::default());
    for (node, part) in (0..).map(NodeId::journal).zip(parts) {
        harness.fabric.add_node(node, 4096).expect("new");
        serve(&harness.fabric, node, part, calls.clone());
    }
    for (cn, node) in (0..).zip(&harness.test_cluster.nodes) {
        let slots: Vec<u32> = (0..count).map(|_| harness.core().add_slot()).collect();
        let endpoints: Vec<_> = slots.iter().map(|slot| harness.endpoint(cn, *slot)).collect();
        senders.push(endpoints.clone());
        let driven = ShardedJournal::driven(1, endpoints, ATTEMPT_NS);
        let (journal, futures) = driven.expect("one at least");
        let journal: Arc<dyn Journal> = Arc::new(journal);
        node.typed::<DmNode>().attach_journal(IndexJournal::new(journal, index)).expect("first");
        slots.into_iter().zip(futures).for_each(|(slot, sender)| harness.spawn(cn, slot, sender));
    }
    Attached { calls, senders }
}

/// Has a journal node serve a part, and count the calls.
pub fn serve(fabric: &SimFabric, node: NodeId, part: Arc<SimJournal>, calls: Arc<AtomicU64>) {
    let service = Counted { service: JournalService::new(part, false), calls };
    fabric.serve(node, JOURNAL_SERVICE, Arc::new(service)).expect("a node");
}

const KEYS: u64 = 2_000;
const PARTS: u16 = 2;

fn key(n: u64) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

/// What a pass over all keys takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    memory_verbs: u64,
    compute_verbs: u64,
    calls: u64,
    took_ns: u64,
}

/// Reads, or updates, every key: alone, or with these many in a batch.
async fn pass(index: &mut AnyIndex, work: Work) {
    // Neighbours in this order are in different leaves.
    let keys: Vec<_> = (0..KEYS).map(|n| key(n * 769 % KEYS)).collect();
    let mut out = Vec::new();
    match work {
        Work::Get => {
            for key in &keys {
                assert!(index.get(key, &mut out).await.expect("read"));
            }
        }
        Work::Update => {
            for key in &keys {
                index.write(key, Write::Update(&key[2..])).await.expect("written");
            }
        }
        Work::Batch(size) => {
            for keys in keys.chunks(size) {
                let writes: Vec<_> = keys.iter().map(|k| (&k[..], Write::Put(&k[2..]))).collect();
                let mut outcomes = Vec::new();
                index.write_many(&writes, &mut outcomes).await.expect("written");
                outcomes.into_iter().for_each(|outcome| _ = outcome.expect("written"));
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Get,
    Update,
    Batch(usize),
}

/// The costs of passes, one after the other.
fn costs(has_journal: bool, passes: &[Work]) -> Vec<Cost> {
    let fabric = SimFabric::new(&Profile::named("dmtree-artifact-100g").expect("known"), 7);
    let pool =
        PoolOptions { compute_nodes: 2, memory_bytes_per_node: 16 << 20, ..PoolOptions::default() };
    let cluster = TestCluster::simulated(&fabric, &pool, 8 << 20, Options::default());
    let cluster = cluster.expect("a cluster");
    let pairs: Vec<_> = (0..KEYS).map(|n| (key(n), vec![0; 8])).collect();
    cluster.client(0).expect("a client").load(pairs, true, 0.7).expect("loaded");
    let harness = Harness::on(cluster, fabric, 8 << 20).expect("a harness");
    let mut calls = Arc::default();
    if has_journal {
        let level = Level::Process { sync_every: None };
        let part = || Arc::new(SimJournal::new(level, None, 1, 0, Vec::new()));
        calls = attach(&harness, (0..PARTS).map(|_| part()).collect(), INDEX).calls;
    }
    let (mut index, main) = (harness.client(0), harness.own_endpoint(0));
    let mut costs = Vec::new();
    harness.run(&mut SeededRandom::new(1), async {
        pass(&mut index, Work::Get).await;
        for work in passes {
            let (began, before) = (main.now(), calls.load(SeqCst));
            index.endpoint().reset_counters();
            pass(&mut index, *work).await;
            let kinds = [OpKind::Get, OpKind::Update, OpKind::WriteMany];
            let counts = index.endpoint().snapshot().total(&kinds).counts;
            costs.push(Cost {
                memory_verbs: counts.mn.verbs(),
                compute_verbs: counts.cn.verbs(),
                calls: calls.load(SeqCst) - before,
                took_ns: main.now() - began,
            });
        }
    });
    assert_eq!(harness.trouble(), None);
    costs
}

/// With journal nodes no verb is posted more, at memory nodes and at compute nodes; a write makes
/// one call, a round of a batch one for each part at most, and a get none.
#[test]
fn a_write_costs_one_call_more_and_a_get_nothing() {
    let passes = [Work::Get, Work::Update, Work::Batch(16)];
    let (plain, journaled) = (costs(false, &passes), costs(true, &passes));
    assert_eq!(journaled[0], plain[0], "gets");
    for (plain, journaled) in plain.iter().zip(&journaled) {
        let verbs = |cost: &Cost| (cost.memory_verbs, cost.compute_verbs);
        assert_eq!(verbs(journaled), verbs(plain));
        assert_eq!(plain.calls, 0);
    }
    assert_eq!(journaled[1].calls, KEYS);
    let more = |i: usize| (journaled[i].took_ns - plain[i].took_ns) / KEYS;
    assert!(more(1) > 0 && more(1) < 20_000, "a call takes {} ns", more(1));
    // Rounds of sixteen writes to two parts.
    assert!(journaled[2].calls < KEYS / 2, "{:?}", journaled[2]);
}
