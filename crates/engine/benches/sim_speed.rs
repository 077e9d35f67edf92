//! How fast the simulator runs the index, searches, then updates, in a closed loop of 6 compute
//! nodes, 72 threads and 4 coroutines: `cargo bench -p dmtree-engine --bench sim_speed -- [KEYS [US
//! [PROFILE]]]`.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_check::rng::Rng;
use dmtree_engine::{DmTree, Options};
use dmtree_fabric::sim::{Profile, SimFabric};
use dmtree_fabric::{Core, Endpoint, Fabric, Fifo, NodeId, Worker, golden_hash};
use dmtree_parts::fill::Fill;
use dmtree_parts::{NodeContext, RangeIndex, Root, Write};
use dmtree_pool::{Cluster, PoolOptions};

const CNS: u16 = 6;

fn key(i: u64) -> [u8; 24] {
    let mut out = [b'0'; 24];
    out[4..].copy_from_slice(format!("{:020}", golden_hash(i)).as_bytes());
    out
}

/// User time of this process, from the kernel's clock of 100 Hz.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.split(' ').nth(13).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let keys: u64 = args.first().map_or(1_000_000, |a| a.parse().unwrap());
    let us: u64 = args.get(1).map_or(20_000, |a| a.parse().unwrap());
    let profile = args.get(2).map_or("dmtree-artifact-100g", String::as_str);
    let options = PoolOptions {
        memory_nodes: 1,
        compute_nodes: CNS,
        memory_bytes_per_node: 256 * keys + (256 << 20),
        ..PoolOptions::default()
    };
    let fabric = SimFabric::new(&Profile::named(profile).unwrap(), 1);
    fabric.add_node(NodeId::memory(0), options.memory_bytes_per_node).unwrap();
    for c in 0..CNS {
        fabric.add_node(NodeId::compute(c), options.chosen_compute_bytes()).unwrap();
    }
    let cluster = Cluster::format(Arc::new(fabric.clone()), &options).unwrap();
    let o = Options::default();
    let cache_bytes = 12 * keys + (16 << 20);
    let pool = cluster.compute_node(0).unwrap();
    let ep = pool.endpoint(1 << 30).unwrap();
    let cx = NodeContext { pool: pool.clone(), cache_bytes };
    let root = ep
        .core()
        .block_on(ep.slot(), async {
            let entry = pool.creations().create_index(&ep, "x", "dmtree", b"{}").await?;
            let root = Root { index: entry.id, word: entry.root_word };
            DmTree::format(&ep, &cx, &o, root).await?;
            pool.catalog().publish_index(&ep, &entry).await?;
            Ok(root)
        })
        .unwrap();
    let nodes: Vec<_> = (0..CNS)
        .map(|c| {
            let pool = cluster.compute_node(c.into()).unwrap();
            DmTree::node(&NodeContext { pool, cache_bytes }, &o, root).unwrap()
        })
        .collect();
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let clock = std::time::Instant::now;
    let began = clock();
    let mut client = DmTree::client(ep.clone(), nodes[0].clone());
    let mut pairs = (0..keys).map(|i| (key(i).to_vec(), i.to_le_bytes().to_vec()));
    ep.core()
        .block_on(ep.slot(), client.load(&mut pairs, false, Fill::RandomInserts { seed: 1 }))
        .unwrap();
    println!("load {:.1} s", began.elapsed().as_secs_f64());
    let began = clock();
    for node in &nodes {
        let mut client = DmTree::client(ep.clone(), node.clone());
        ep.core()
            .block_on(ep.slot(), async {
                let mut value = Vec::new();
                for i in (0..keys).step_by(if keys > 2_000_000 { 4 } else { 1 }) {
                    client.get(&key(i), &mut value).await?;
                }
                Ok(())
            })
            .unwrap();
    }
    println!("warm {:.1} s", began.elapsed().as_secs_f64());
    fabric.set_timed(true);
    for update in [false, true] {
        let core = Core::new(fabric.attach(NodeId::compute(0)).unwrap(), 1 << 30);
        let mut worker = Worker::new(core.clone());
        let start = fabric.now();
        let (from, to) = (start + 600_000, start + 600_000 + us * 1000);
        let ops = Rc::new(Cell::new(0u64));
        let mut first: Option<Endpoint> = None;
        for thread in 0..CNS * 72 {
            let t = fabric.attach(NodeId::compute(thread % CNS)).unwrap();
            for coroutine in 0..4u64 {
                let slot = core.add_slot();
                let ep = match &first {
                    Some(first) => Endpoint::counting_with(core.clone(), t.clone(), slot, first),
                    None => Endpoint::new(core.clone(), t.clone(), slot),
                };
                first.get_or_insert(ep.clone());
                let mut client =
                    DmTree::client(ep.clone(), nodes[usize::from(thread % CNS)].clone());
                let mut rng = Rng::new(u64::from(thread) * 4 + coroutine);
                let ops = ops.clone();
                worker.spawn(slot, async move {
                    ep.sleep(rng.below(500_000)).await;
                    let mut value = Vec::new();
                    while ep.now() < to {
                        let x = rng.next_u64();
                        let k = key(x % keys);
                        if update {
                            client.write(&k, Write::Update(&x.to_le_bytes())).await.unwrap();
                        } else {
                            assert!(client.get(&k, &mut value).await.unwrap());
                        }
                        let now = ep.now();
                        if (from..to).contains(&now) {
                            ops.set(ops.get() + 1);
                        }
                    }
                });
            }
        }
        let (began, cpu) = (clock(), cpu_seconds());
        worker.run(&mut Fifo).unwrap();
        let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let s = first.unwrap().snapshot();
        let verbs: u64 = s.nodes.iter().map(|(_, c)| c.verbs()).sum();
        println!(
            "{}: {:.2} Mops simulated; {verbs} verbs in {wall:.2} s: {:.2} million verbs per second, {:.2} per CPU second; hash {:x}",
            if update { "update" } else { "search" },
            ops.get() as f64 / us as f64,
            verbs as f64 / wall / 1e6,
            verbs as f64 / cpu / 1e6,
            fabric.trace_hash(),
        );
    }
}
