//! An index is dropped while clients work in it, and its memory becomes another index's.

use std::cell::Cell;
use std::panic::catch_unwind;
use std::rc::Rc;

use dmtree_check::concurrent::seeds;
use dmtree_check::conformance::everything;
use dmtree_check::harness::Harness;
use dmtree_check::scenario::LEASE_PARAMETERS;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_fabric::ErrorKind::{Busy, Closed, TimedOut, Unreachable};
use dmtree_fabric::sim::{FabricFaults, How, SimFabric};
use dmtree_fabric::{Capabilities, Fifo, NodeId, Result};
use dmtree_parts::{AnyIndex, AnyOptions, Fill, NodeContext, Page, Root, Write, naming};
use dmtree_pool::{ChunkUse, NewIndex, PoolMutant, PoolOptions};

const CACHE_BYTES: u64 = 1 << 20;
const KEYS: u64 = 300;
/// Operations before the index is dropped.
const BEFORE: u64 = 300;
/// Most tries of a purge: members may be busy with a round of reclamation, or a death is under way.
const TRIES: u32 = 1_000;

fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

/// Too long for a slot: it lies in a block.
fn value(n: u64) -> Vec<u8> {
    format!("v{n:05}").repeat(1 + n as usize % 20).into_bytes()
}

/// Operations of a client until the index is gone.
async fn work(mut c: AnyIndex, seed: u64, operations: &Cell<u64>) {
    let (mut page, mut out) = (Page::new(), Vec::new());
    for n in 0u64.. {
        let at = (seed.wrapping_mul(7_919) + n * 31) % KEYS;
        let (key, value) = (key(at), value(at));
        c.endpoint().renew_deadline();
        let done = match n % 6 {
            0 | 1 => c.write(&key, Write::Put(&value)).await.map(drop),
            2 => c.write(&key, Write::Delete).await.map(drop),
            3 => c.scan(&everything(40), &mut page).await.map(drop),
            4 => c.maintain().await.map(drop),
            _ => c.get(&key, &mut out).await.map(drop),
        };
        match done {
            Ok(()) => operations.set(operations.get() + 1),
            Err(e) if e.kind() == Closed => return,
            Err(e) => panic!("seed {seed}, operation {n}: {e}"),
        }
    }
}

/// Drops the index of a cluster in virtual time, and makes another one of its memory. A node may
/// die meanwhile.
async fn replace(
    h: Rc<Harness>,
    options: AnyOptions,
    operations: Rc<Cell<u64>>,
    dies: Option<How>,
) -> Result<()> {
    let (pool, ep) = (h.pool(1), h.own_endpoint(1));
    while operations.get() < BEFORE {
        ep.sleep(10_000).await;
    }
    if let Some(how) = dies {
        h.fabric.crash(NodeId::compute(2), how).expect("known");
    }
    pool.catalog().drop_index(&ep, "test").await?;
    for _ in 0..TRIES {
        ep.renew_deadline();
        match pool.catalog().purge_dropped(&ep).await {
            Ok(_) => break,
            // A round of reclamation, or a death.
            Err(e) if matches!(e.kind(), Busy | Unreachable | TimedOut) => ep.sleep(500_000).await,
            Err(e) => return Err(e),
        }
    }
    assert_eq!(pool.catalog().purge_dropped(&ep).await?, 0, "nothing is left");
    for node in 0..2 {
        let records = pool.chunk_records(&ep, NodeId::memory(node)).await?;
        let left = records.into_iter().flatten().filter(|r| r.used_for != ChunkUse::Tables);
        assert_eq!(left.count(), 0, "chunks of mn{node}");
    }
    let cx = NodeContext { pool, cache_bytes: CACHE_BYTES };
    let encoded = serde_json::to_vec(&options).expect("plain data");
    let new = NewIndex { name: "next", system: "test", options: &encoded };
    let entry = naming::create(&ep, &cx, new, &options).await?;
    let root = Root { index: entry.id, word: entry.root_word };
    let mut c = options.node(&cx, root)?.client(ep);
    let mut pairs = (0..KEYS).map(|n| (key(n), value(n + 1)));
    c.load(&mut pairs, true, Fill::Even(0.7)).await?;
    let mut out = Vec::new();
    for n in (0..KEYS).chain(0..KEYS) {
        c.endpoint().renew_deadline();
        assert!(c.get(&key(n), &mut out).await?, "key {n}");
        assert_eq!(out, value(n + 1), "key {n}");
        c.write(&key(n), Write::Update(&value(n + 1))).await?;
    }
    c.walk().await.map(drop)
}

/// The first illegal access or failure.
fn play(seed: u64) -> Option<String> {
    let faults = FabricFaults { refuse_memory_one_in: 0, ..FabricFaults::of_seed(seed) };
    let fabric = SimFabric::adversarial(faults, Capabilities::NONE, seed).expect("grants");
    let pool = PoolOptions {
        memory_nodes: 2,
        compute_nodes: 3,
        memory_bytes_per_node: 8 << 20,
        chunk_bytes: Some(64 << 10),
        ..PoolOptions::default()
    };
    let options: AnyOptions = Options { fanout: 8, ..Options::default() }.into();
    let cluster = TestCluster::simulated(&fabric, &pool, CACHE_BYTES, options.clone());
    let cluster = cluster.expect("a cluster");
    fabric.sanitize();
    let pairs = (0..KEYS).map(|n| (key(n), value(n))).collect::<Vec<_>>();
    cluster.client(0).and_then(|mut c| c.load(pairs, true, Fill::Even(0.7))).expect("room");
    let h = Rc::new(Harness::on(cluster, fabric.clone(), 16 << 20).expect("a harness"));
    let judge = h.test_cluster.membership();
    judge.set_lease_parameters(LEASE_PARAMETERS);
    h.membership_agents();
    let dies = [None, Some(How::Process), Some(How::Machine)][seed as usize % 3];
    let (operations, left) =
        (Rc::new(Cell::new(0)), Rc::new(Cell::new(if dies.is_some() { 4 } else { 6 })));
    for client in 0..6u16 {
        let (operations, left) = (operations.clone(), left.clone());
        h.worker(client % 3, move |c| async move {
            work(c, seed + u64::from(client), &operations).await;
            left.set(left.get() - 1);
        });
    }
    let complain = h.complain();
    let (playing, waiting) = (replace(h.clone(), options, operations.clone(), dies), left.clone());
    let ep = h.own_endpoint(2);
    h.run(&mut Fifo, async move {
        playing.await.unwrap_or_else(|e| complain(e.to_string()));
        for _ in 0..10_000 {
            if waiting.get() == 0 {
                return;
            }
            ep.sleep(10_000).await;
        }
        complain("clients of a dropped index go on".to_owned());
    });
    fabric.reports().into_iter().next().or_else(|| h.trouble())
}

/// One test: a mutant is enabled for everything that the process opens.
#[test]
fn memory_of_a_dropped_index_becomes_another_one_s() {
    for seed in seeds(0, 200) {
        assert_eq!(play(seed), None, "seed {seed}");
    }
    // Without the barriers a client accesses memory that is free, or another index's.
    PoolMutant::enable(&[PoolMutant::PurgeAtOnce]);
    let is_found = |seed| catch_unwind(|| play(seed).is_some()).unwrap_or(true);
    assert!((0..24).any(is_found), "no seed finds {}", PoolMutant::PurgeAtOnce.name());
}
