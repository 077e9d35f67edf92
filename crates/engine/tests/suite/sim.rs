//! DMTree in simulated clusters: linearizable in virtual time, replayable, every step charged.

use dmtree_check::concurrent::{self, Stress};
use dmtree_check::conformance::above;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_fabric::sim::{Profile, SimFabric};
use dmtree_fabric::{Core, Endpoint, Fifo, OpKind, Role, Stage, Step, Worker};
use dmtree_parts::{Page, Write};
use dmtree_pool::PoolOptions;

fn test_cluster(profile: &str, seed: u64) -> (TestCluster, SimFabric) {
    let pool = PoolOptions {
        memory_nodes: 2,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    };
    let profile = Profile::named(profile).unwrap();
    let fabric = SimFabric::new(&profile, seed);
    (TestCluster::simulated(&fabric, &pool, 8 << 20, Options::default()).unwrap(), fabric)
}

fn run(profile: &str, seed: u64) -> u64 {
    let (test_cluster, fabric) = test_cluster(profile, seed);
    fabric.set_timed(true);
    let s = Stress { coroutines: 9, keys: 40, ops: 60, scan_one_in: 12, ..Stress::of(seed) };
    let history = concurrent::coroutines(&test_cluster, s, &mut Fifo);
    history.check().unwrap_or_else(|e| panic!("{profile}, seed {seed}: {e:?}"));
    fabric.trace_hash()
}

#[test]
fn linearizable_in_virtual_time() {
    for profile in ["ideal", "dmtree-artifact-100g", "soft-roce", "efa", "cxl2-pool"] {
        for seed in 0..8 {
            run(profile, seed);
        }
    }
}

/// A run depends on its seed alone, not on earlier runs in this process.
#[test]
fn a_seed_replays() {
    let first = run("dmtree-artifact-100g", 3);
    run("dmtree-artifact-100g", 4);
    assert_eq!(run("dmtree-artifact-100g", 3), first);
    assert_ne!(run("dmtree-artifact-100g", 5), first);
}

/// A step without a charge is free in the simulator and looks fast: every stage is charged by some
/// operation, and each operation charges the stages that it goes through.
#[test]
fn every_stage_is_charged() {
    let (test_cluster, fabric) = test_cluster("dmtree-artifact-100g", 1);
    let mut c = test_cluster.client(0).unwrap();
    let key = |i: u64| format!("{:024}", i * 7919 % 5000).into_bytes();
    for i in 0..4000 {
        c.write(&key(i), Write::Put(b"12345678")).unwrap();
    }
    fabric.set_timed(true);
    c.take_counts();
    let charged = |c: &mut dmtree_check::test_cluster::Client| {
        let counts = c.take_counts().charged;
        let all = Stage::ALL.into_iter().zip(counts);
        all.filter(|(_, n)| *n > 0).map(|(s, _)| s).collect::<Vec<_>>()
    };
    use Stage::{
        CacheFill, CacheLookup, EntryCheck, FingerprintScan, LocalQueue, NodeImage, Operation,
        ScanCollect,
    };
    c.get(&key(5)).unwrap().unwrap();
    assert_eq!(charged(&mut c), [Operation, CacheLookup, FingerprintScan, EntryCheck, LocalQueue]);
    c.write(&key(5), Write::Update(b"abcdefgh")).unwrap();
    assert_eq!(charged(&mut c), [Operation, CacheLookup, FingerprintScan, EntryCheck, LocalQueue]);
    c.scan(&above(&key(5), 50), &mut Page::new()).unwrap();
    assert_eq!(charged(&mut c), [Operation, CacheLookup, NodeImage, ScanCollect]);
    for i in 4000..5000 {
        c.write(&key(i), Write::Insert(b"12345678")).unwrap();
    }
    let insert = charged(&mut c);
    assert!(insert.contains(&NodeImage) && insert.contains(&CacheFill), "{insert:?}");
}

/// The rows of a breakdown add up to the time of the operations.
#[test]
fn steps_add_up_to_latency() {
    let (test_cluster, fabric) = test_cluster("dmtree-artifact-100g", 1);
    let mut c = test_cluster.client(0).unwrap();
    let key = |i: u64| format!("{i:024}").into_bytes();
    for i in 0..500 {
        c.write(&key(i), Write::Put(b"12345678")).unwrap();
    }
    drop(c);
    fabric.set_timed(true);
    let cn = test_cluster.cluster.compute_node(0).unwrap();
    let transport = test_cluster.cluster.fabric().attach(cn.cn()).unwrap();
    let core = Core::new(transport.clone(), 1 << 24);
    let slot = core.add_slot();
    let ep = Endpoint::new(core.clone(), transport, slot);
    ep.set_timed_steps(true);
    let mut worker = Worker::new(core);
    let mut client = test_cluster.nodes[0].client(ep.clone());
    worker.spawn(slot, async move {
        let (mut gets, mut updates) = (0, 0);
        let mut out = Vec::new();
        for i in 0..200 {
            let t = client.endpoint().now();
            assert!(client.get(&key(i), &mut out).await.unwrap());
            gets += client.endpoint().now() - t;
            let t = client.endpoint().now();
            client.write(&key(i), Write::Update(b"abcdefgh")).await.unwrap();
            updates += client.endpoint().now() - t;
        }
        let s = client.endpoint().snapshot();
        for (kind, took) in [(OpKind::Get, gets), (OpKind::Update, updates)] {
            let (_, steps) = s.steps.iter().find(|(k, _)| *k == kind).unwrap();
            let sum: u64 = steps.iter().sum();
            assert!(sum <= took && sum * 100 >= took * 97, "{kind:?}: {sum} of {took} ns");
            assert_eq!(steps[Step::CacheLookup as usize], 200 * 3200, "{kind:?}");
            assert!(steps[Step::Entry as usize] > 200 * 2000, "{kind:?}");
            assert_eq!(steps[Step::Lock as usize] > 0, kind == OpKind::Update);
        }
    });
    worker.run(&mut Fifo).unwrap();
}

/// Regression: groups of writers had room for 64 members, and one more group could wait. Of 288
/// clients of a compute node, most waiting for the hottest key, the others then queued for its leaf
/// one by one, each for a lock of its own: zipfian updates fell to a seventh. However many clients
/// want one key, two groups serve them.
#[test]
fn any_number_of_writers_share_a_hot_key() {
    let (test_cluster, fabric) = test_cluster("dmtree-artifact-100g", 1);
    fabric.set_timed(true);
    let cn = test_cluster.cluster.compute_node(0).unwrap();
    let mut worker: Option<(Worker<'_>, Endpoint)> = None;
    let (clients, rounds) = (300, 10);
    for i in 0..clients {
        let transport = test_cluster.cluster.fabric().attach(cn.cn()).unwrap();
        let (worker, first) = worker.get_or_insert_with(|| {
            let core = Core::new(transport.clone(), 1 << 26);
            let ep = Endpoint::new(core.clone(), transport.clone(), core.add_slot());
            (Worker::new(core), ep)
        });
        let core = first.core().clone();
        let slot = core.add_slot();
        let ep = Endpoint::counting_with(core, transport, slot, first);
        let mut client = test_cluster.nodes[0].client(ep);
        worker.spawn(slot, async move {
            for _ in 0..rounds {
                let value = [i as u8; 8];
                client.write(b"the hottest of all keys!", Write::Put(&value)).await.unwrap();
            }
        });
    }
    let (mut worker, first) = worker.unwrap();
    worker.run(&mut Fifo).unwrap();
    let s = first.snapshot();
    let writes: u64 =
        s.nodes.iter().filter(|(n, _)| n.role() == Role::Memory).map(|(_, c)| c.write).sum();
    assert!(writes <= 4 * rounds, "{} puts took {writes} WRITEs", clients * rounds);
}
