//! A pool of several nodes as processes would have them, over TCP: memory nodes, compute nodes that
//! come and go. With `DMTREE_TEST_FABRIC=verbs` their verbs go over this machine's RDMA device.
#![expect(clippy::disallowed_methods, reason = "real nodes in real time")]

mod growth;
mod incarnations;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use dmtree_fabric::net::{DataPath, NicConfig};
use dmtree_fabric::{Change, Endpoint, ErrorKind, LeaseParameters, NodeId, Result, Role};
use dmtree_pool::{
    ANY_INDEX, ArenaKey, Cluster, IndexState, MemoryNode, NewIndex, Opening, Place, PoolNode,
    PoolOptions, TableId, open_pool_config,
};

const LEFT: NewIndex<'_> = NewIndex { name: "left", system: "test", options: b"{}" };
const SHORT: LeaseParameters = LeaseParameters {
    lease_ns: 200_000_000,
    acknowledge_ns: 2_000_000_000,
    drift_one_in: 16,
    mutant: None,
};

fn options(memory_nodes: u16) -> PoolOptions {
    let memory_bytes_per_node = 8 << 20;
    PoolOptions { memory_nodes, compute_nodes: 4, memory_bytes_per_node, ..PoolOptions::default() }
}

fn found(memory_nodes: u16) -> MemoryNode {
    let over_rdma = std::env::var("DMTREE_TEST_FABRIC").is_ok_and(|f| f == "verbs");
    let data_path = if over_rdma { DataPath::Rdma } else { DataPath::Frames };
    let options = options(memory_nodes);
    MemoryNode::found("127.0.0.1:0", &options, SHORT, data_path, &NicConfig::default())
        .expect("a free port")
}

fn place_at(first: &str, within: Duration) -> Place<'_> {
    static ANY: LazyLock<NicConfig> = LazyLock::new(NicConfig::default);
    Place { first, listen: "127.0.0.1:0", wanted: None, within, data_path: None, nic_config: &ANY }
}

fn place(first: &MemoryNode) -> Place<'_> {
    let within = Duration::from_secs(5);
    place_at(first.listens(), within)
}

fn on<T>(ep: &Endpoint, f: impl Future<Output = Result<T>>) -> Result<T> {
    ep.block_on(f)
}

/// It fails with an error of this kind; `why` it does.
#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, why: &str, kind: ErrorKind) {
    let e = result.expect_err(why);
    assert_eq!(e.kind(), kind, "{e}");
}

fn node(c: &Cluster) -> (Arc<PoolNode>, Endpoint) {
    let node = c.compute_node(0).expect("its own");
    let ep = node.endpoint(1 << 20).expect("a member");
    (node, ep)
}

/// A table cell on a compute node, used by no other client. On a busy machine the other process may
/// answer too late.
fn cell(node: &PoolNode, ep: &Endpoint) -> (TableId, NodeId) {
    let t = within("a cell", || match on(ep, node.alloc_table(ep, ANY_INDEX, 1, Role::Compute)) {
        Err(e) if e.kind() == ErrorKind::Unreachable => None,
        done => Some(done.expect("room")),
    });
    (t, on(ep, node.resolve(ep, t)).expect("an owner").node())
}

fn within<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(out) = f() {
            return out;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_compute_nodes_share_memory_tables_and_names() {
    let mn0 = found(2);
    let second = place(&mn0);
    let mn1 = MemoryNode::join(&second, 4 << 20).expect("the second memory node");
    assert_eq!(mn1.node(), NodeId::memory(1));
    let (a, b) = (Cluster::join(&second).expect("joins"), Cluster::join(&second).expect("joins"));
    let ((na, ea), (nb, eb)) = (node(&a), node(&b));
    let key = ArenaKey { index: 1, kind: 1, object_bytes: 1024 };
    let ga = on(&ea, na.alloc(&ea, &na.arena(key), None)).expect("room");
    let gb = on(&eb, nb.alloc(&eb, &nb.arena(key), None)).expect("room");
    assert_ne!(ga.addr, gb.addr);
    let entry =
        on(&ea, na.creations().create_index(&ea, "users", "test", b"{}")).expect("a new name");
    on(&ea, na.catalog().publish_index(&ea, &entry)).expect("published");
    let found = on(&eb, nb.catalog().find_index(&eb, "users")).expect("reads").expect("is there");
    assert_eq!((found.id, found.root_word), (entry.id, entry.root_word));
    let taken = on(&eb, nb.creations().create_index(&eb, "users", "test", b"{}"));
    assert_eq!(taken.expect_err("taken").kind(), ErrorKind::Exists);
    // Cells come from both compute nodes (when the first has heard of the second), and either finds
    // them.
    for owner in [na.cn(), nb.cn()] {
        let (t, _) = within("a cell there", || Some(cell(&na, &ea)).filter(|(_, h)| *h == owner));
        assert_eq!(on(&eb, nb.resolve(&eb, t)).expect("an owner").node(), owner);
    }
}

#[test]
fn retired_memory_comes_back_when_the_other_node_holds_it_no_more() {
    let mn0 = found(1);
    let (a, b) = (Cluster::join(&place(&mn0)).expect("a"), Cluster::join(&place(&mn0)).expect("b"));
    let ((na, ea), (nb, _eb)) = (node(&a), node(&b));
    let key = ArenaKey { index: 1, kind: 1, object_bytes: 1024 };
    let arena = na.arena(key);
    let g = on(&ea, na.alloc(&ea, &arena, None)).expect("room");
    let running = nb.register();
    running.enter();
    na.retire(&arena, g);
    on(&ea, na.reclaimer().reclaim(&ea)).expect("both answer");
    // An operation of the other node that began before the retirement may still hold it.
    assert_eq!(on(&ea, na.reclaimer().reclaim(&ea)).expect("both answer").objects, 0);
    running.leave();
    assert_eq!(on(&ea, na.reclaimer().reclaim(&ea)).expect("both answer").objects, 1);
}

#[test]
fn a_compute_node_that_leaves_hands_its_tables_over() {
    let mn0 = found(1);
    let (a, b) = (Cluster::join(&place(&mn0)).expect("a"), Cluster::join(&place(&mn0)).expect("b"));
    let (na, ea) = node(&a);
    let nb = node(&b).0.cn();
    let there = within("a cell at the other", || Some(cell(&na, &ea)).filter(|(_, h)| *h == nb)).0;
    drop(b);
    // On a busy machine the lease of a node may end before it has left. The other then knows the
    // former owner until it learns of that.
    within("the new owner", || {
        let owner = on(&ea, na.resolve(&ea, there)).ok().map(|at| at.node());
        owner.filter(|owner| *owner == na.cn())
    });
    let again = Cluster::join(&place(&mn0)).expect("a new node");
    assert_ne!(node(&again).0.cn(), na.cn());
}

#[test]
fn a_pool_that_is_not_there_or_not_ready_is_an_error_with_a_way_out() {
    let soon = Duration::from_millis(200);
    let unused = place_at("127.0.0.1:1", soon);
    fails(Cluster::join(&unused), "no node is there", ErrorKind::Unreachable);
    let mn0 = found(2);
    let early = Place { within: soon, ..place(&mn0) };
    let e = Cluster::join(&early).expect_err("a memory node is missing");
    assert!(e.to_string().contains("1 of 2"), "{e}");
    assert_eq!(
        open_pool_config(mn0.listens(), &NicConfig::default(), soon).expect("answers").memory_nodes,
        2
    );
    fails(MemoryNode::join(&early, 1024), "too small", ErrorKind::InvalidArgument);
}

/// Guards against owners on memory nodes that are never asked once a node has joined: memory nodes
/// are no members, and were taken for unknown nodes.
#[test]
fn memory_nodes_grant_cells_though_they_hold_no_lease() {
    let mn0 = found(1);
    let a = Cluster::join(&place(&mn0)).expect("joins");
    let (node, ep) = node(&a);
    let t = on(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Memory)).expect("room");
    assert_eq!(on(&ep, node.resolve(&ep, t)).expect("an owner").node(), mn0.node());
}

/// A node that is alone owns its tables itself, after any number of former incarnations: none goes
/// to a memory node.
#[test]
fn a_node_that_comes_after_others_have_gone_owns_its_tables() {
    let mn0 = found(1);
    for incarnation in 0..7 {
        let a = Cluster::join(&place(&mn0)).expect("joins");
        let (node, ep) = node(&a);
        for i in 0..40 {
            let (t, owner) = cell(&node, &ep);
            assert_eq!(owner, node.cn(), "cell {i} of incarnation {incarnation}: {t:?}");
        }
    }
}

/// Partitions that found no room but on a memory node go to a compute node that joins later.
#[test]
fn a_joining_node_takes_tables_from_memory_nodes() {
    let options = PoolOptions { compute_bytes_per_node: 20 << 10, ..options(1) };
    let nic_config = NicConfig::default();
    let mn0 = MemoryNode::found("127.0.0.1:0", &options, SHORT, DataPath::Frames, &nic_config);
    let mn0 = mn0.expect("a free port");
    let (a, b) = (Cluster::join(&place(&mn0)).expect("a"), Cluster::join(&place(&mn0)).expect("b"));
    let ((na, ea), cnb) = (node(&a), node(&b).0.cn());
    within("each knows the other", || Some(cell(&na, &ea)).filter(|(_, owner)| *owner == cnb));
    // Until both are full.
    let mut of_b = Vec::new();
    loop {
        match cell(&na, &ea) {
            (t, owner) if owner == cnb => of_b.push(t),
            (_, owner) if owner == mn0.node() => break,
            _ => {}
        }
    }
    drop(b);
    let owners = |wanted: &dyn Fn(NodeId) -> bool| {
        let owner = |t: &TableId| on(&ea, na.resolve(&ea, *t)).ok().map(|at| at.node());
        within("new owners", || of_b.iter().all(|t| owner(t).is_some_and(wanted)).then_some(()));
    };
    owners(&|n| n == mn0.node());
    let c = Cluster::join(&place(&mn0)).expect("joins");
    let cnc = node(&c).0.cn();
    owners(&|n| n == cnc);
}

/// A creator that is killed leaves its name in state `Creating`; the next that wants the name gets
/// it, and of several that want it one.
#[test]
fn the_name_of_a_dead_creator_is_free() {
    let mn0 = found(1);
    let place = place(&mn0);
    let dead = Cluster::join(&place).expect("joins");
    let others: Vec<_> = (0..3).map(|_| Cluster::join(&place).expect("joins")).collect();
    let (node_of_dead, ep) = node(&dead);
    let left = on(&ep, node_of_dead.creations().begin_index(&ep, LEFT)).expect("new");
    let (first, there) = node(&others[0]);
    fails(
        on(&there, first.creations().create_index(&there, "left", "test", b"{}")),
        "taken",
        ErrorKind::Exists,
    );
    // Its membership ends as with a crash: nothing is tidied up.
    std::mem::forget(left);
    let me = node_of_dead.member();
    on(&there, dead.membership().propose(me, Change::Leave, there.now())).expect("it was living");
    let begun: usize = std::thread::scope(|s| {
        let threads: Vec<_> = others
            .iter()
            .map(|c| {
                s.spawn(move || {
                    let (node, ep) = node(c);
                    match on(&ep, node.creations().open_or_begin_index(&ep, LEFT)) {
                        Ok(Opening::Begun(begun)) => {
                            on(&ep, begun.publish()).expect("published");
                            1
                        }
                        Ok(Opening::Ready(e)) => {
                            assert_eq!(e.state, IndexState::Ready);
                            0
                        }
                        Err(e) => panic!("{e}"),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a thread")).sum()
    });
    assert_eq!(begun, 1);
}
