//! What the tests share.
#![allow(dead_code, reason = "each test file uses a part")]

use std::future::Future;

use dmtree_fabric::local::Knobs;
use dmtree_fabric::{Endpoint, ErrorKind, GlobalAddr, Result};
use dmtree_pool::{ArenaKey, Cluster, PoolNode, PoolOptions};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A pool with 64 KiB chunks.
pub fn small(memory_nodes: u16, compute_nodes: u16) -> PoolOptions {
    PoolOptions {
        memory_nodes,
        compute_nodes,
        memory_bytes_per_node: 2 * MIB,
        compute_bytes_per_node: MIB,
        chunk_bytes: Some(64 * KIB),
        ..PoolOptions::default()
    }
}

/// The same, with verbs that suspend at random.
pub fn knobbed(seed: u64, o: PoolOptions) -> PoolOptions {
    PoolOptions { knobs: Knobs { suspend_one_in: 3, seed }, ..o }
}

/// Runs a future of an endpoint to its end.
pub fn run<T>(ep: &Endpoint, future: impl Future<Output = Result<T>>) -> Result<T> {
    ep.block_on(future)
}

/// It fails with an error of this kind; `why` it does.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: Result<T>, why: &str, kind: ErrorKind) {
    let e = result.expect_err(why);
    assert_eq!(e.kind(), kind, "{e}");
}

/// A pool, its first compute node and an endpoint.
pub fn pool(o: &PoolOptions) -> (Cluster, std::sync::Arc<PoolNode>, Endpoint) {
    let cluster = Cluster::embedded(o).expect("valid options");
    let (node, ep) = of(&cluster, 0);
    (cluster, node, ep)
}

/// Compute node number `i` of a pool, and an endpoint.
pub fn of(cluster: &Cluster, i: usize) -> (std::sync::Arc<PoolNode>, Endpoint) {
    let node = cluster.compute_node(i).expect("exists");
    let ep = endpoint(&node);
    (node, ep)
}

/// Whether so many bytes there are all zero.
pub fn is_zero(ep: &Endpoint, at: GlobalAddr, bytes: u32) -> bool {
    let read = run(ep, async { ep.read(at, bytes).await }).expect("inside");
    read.extract(|b| b.iter().all(|b| *b == 0))
}

/// What clients of the compute nodes in turn do, each on a thread of its own.
pub fn each_client<T: Send>(
    cluster: &Cluster,
    clients: usize,
    work: impl Fn(&std::sync::Arc<PoolNode>, &Endpoint) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|s| {
        let nodes = cluster.compute_nodes();
        let client = |c| {
            let (node, work) = (cluster.compute_node(c % nodes).expect("exists"), &work);
            s.spawn(move || work(&node, &endpoint(&node)))
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        threads.into_iter().map(|t| t.join().expect("a thread")).collect()
    })
}

pub const LEAF: ArenaKey = ArenaKey { index: 1, kind: 1, object_bytes: 1408 };
pub const INNER: ArenaKey = ArenaKey { index: 1, kind: 2, object_bytes: 4000 };
/// So large that a chunk of 64 KiB holds four.
pub const LARGE: ArenaKey = ArenaKey { index: 1, kind: 3, object_bytes: 16 << 10 };

/// An endpoint whose waits do not time out on a busy machine: these tests begin no operations, so
/// one deadline covers all.
pub fn endpoint(node: &PoolNode) -> Endpoint {
    let ep = node.endpoint(0).expect("a member");
    ep.set_timeout(600_000_000_000);
    ep
}
