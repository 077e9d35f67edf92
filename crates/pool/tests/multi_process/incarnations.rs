//! Starts, ends and losses of nodes: the other nodes see them, and the pool goes on.

use super::*;
use dmtree_fabric::{GlobalAddr, MemberPhase, Presence, Role};

/// Short times: a newcomer that is late loses its membership soon.
const HASTY: LeaseParameters = LeaseParameters {
    lease_ns: 200_000_000,
    acknowledge_ns: 400_000_000,
    drift_one_in: 16,
    mutant: None,
};

fn founded(memory_nodes: u16, compute_nodes: u16) -> MemoryNode {
    let options = PoolOptions { compute_nodes, ..options(memory_nodes) };
    let nic_config = &NicConfig::default();
    MemoryNode::found("127.0.0.1:0", &options, HASTY, DataPath::Frames, nic_config)
        .expect("a free port")
}

fn join(first: &MemoryNode) -> Cluster {
    Cluster::join(&place(first)).expect("joins")
}

/// Lets a process hang: its lease is not renewed any more.
fn hang(c: &Cluster) -> dmtree_pool::Heartbeat {
    c.compute_node(0).expect("its own").heartbeat()
}

fn is_over(by: &PoolNode, of: &PoolNode) -> bool {
    let dead = of.member();
    by.membership().phase(dead.node, dead.incarnation) == Some(MemberPhase::Gone)
}

fn await_settled(node: &PoolNode) {
    within("every death is complete", || node.membership().has_settled_membership().then_some(()));
}

/// Guards against the loss of a newcomer: the only process of a pool left, and the next one was
/// late for that death.
#[test]
fn a_process_joins_long_after_the_last_one_has_left() {
    let mn0 = founded(1, 4);
    let a = join(&mn0);
    let (na, ea) = node(&a);
    let (t, owner) = cell(&na, &ea);
    assert_eq!(owner, na.cn());
    drop(a);
    std::thread::sleep(Duration::from_secs(1));
    let b = join(&mn0);
    let (nb, eb) = node(&b);
    assert_ne!(nb.cn(), na.cn());
    let owner = within("a new owner", || on(&eb, nb.resolve(&eb, t)).ok().map(|at| at.node()));
    assert_eq!(owner, nb.cn());
    std::thread::sleep(Duration::from_secs(1));
    nb.check_lease(&eb).expect("it has its time");
    await_settled(&nb);
    assert!(is_over(&nb, &na));
}

/// Guards against numbers that stay taken: without a living compute node no agent carried a death
/// on.
#[test]
fn a_number_is_free_when_its_incarnation_is_dead_even_if_no_node_is_living() {
    let mn0 = founded(1, 1);
    let a = join(&mn0);
    let (na, ea) = node(&a);
    let (t, _) = cell(&na, &ea);
    let full = Place { within: Duration::from_millis(10), ..place(&mn0) };
    let e = Cluster::join(&full).expect_err("one is living");
    assert!(e.to_string().contains("all 1 compute nodes"), "{e}");
    let _hung = hang(&a);
    let b = join(&mn0);
    let (nb, eb) = node(&b);
    assert_eq!((nb.cn(), nb.member().incarnation), (na.cn(), 2));
    let owner = within("a new owner", || on(&eb, nb.resolve(&eb, t)).ok().map(|at| at.node()));
    assert_eq!(owner, nb.cn());
    await_settled(&nb);
    assert_eq!(nb.membership().deaths(), 1);
    assert!(nb.is_revoked(na.cn(), 1) && !nb.is_revoked(na.cn(), 2));
}

/// Guards against deaths that wait for a lost memory node for ever.
#[test]
fn a_lost_memory_node_costs_what_it_held_and_nothing_else() {
    let mn0 = founded(2, 4);
    let mn1 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the second memory node");
    let lost = mn1.node();
    let (a, b) = (join(&mn0), join(&mn0));
    let ((na, ea), (nb, _)) = (node(&a), node(&b));
    let key = ArenaKey { index: 1, kind: 1, object_bytes: 1024 };
    let arena = na.arena(key);
    let there = on(&ea, na.alloc(&ea, &arena, Some(lost))).expect("room").addr;
    assert_eq!(there.node(), lost);
    assert!(mn0.take_news().iter().all(|line| !line.contains("mn1")));
    drop(mn1);
    within("it is known as lost", || {
        (na.membership().away() == [(lost, Presence::Lost)]).then_some(())
    });
    // Operations that need it fail at once, and name it.
    let e = on(&ea, async { ea.read(there, 8).await }).expect_err("it is lost");
    assert!(e.to_string().contains("mn1 is lost"), "{e}");
    // All else goes on.
    for near in [None, Some(lost)] {
        let g = on(&ea, na.alloc(&ea, &arena, near)).expect("room elsewhere");
        assert_eq!(g.addr.node(), mn0.node());
    }
    let t = on(&ea, na.alloc_table(&ea, ANY_INDEX, 1, Role::Memory)).expect("room elsewhere");
    assert_eq!(on(&ea, na.resolve(&ea, t)).expect("an owner").node(), mn0.node());
    let _hung = hang(&b);
    within("the death of a compute node ends", || is_over(&na, &nb).then_some(()));
    // Newcomers are admitted, and know of it.
    let c = join(&mn0);
    let (nc, ec) = node(&c);
    assert_eq!(nc.membership().away(), [(lost, Presence::Lost)]);
    let usage = on(&ec, nc.usage_all(&ec)).expect("of the others");
    assert_eq!((usage.memory.len(), usage.away), (1, vec![(lost, Presence::Lost)]));
    on(&ec, nc.reclaimer().reclaim(&ec)).expect("needs no memory node but the first");
    // It is reported once.
    let news = mn0.take_news();
    assert_eq!(news.iter().filter(|line| line.contains("mn1")).count(), 1, "{news:?}");
    let e = MemoryNode::join(&Place { wanted: Some(1), ..place(&mn0) }, 4 << 20);
    assert!(e.expect_err("what it held is lost").to_string().contains("lost"));
}

/// Guards against an impossible number that ended the thread which registers nodes.
#[test]
fn numbers_beyond_those_of_the_pool_are_refused() {
    let mn0 = founded(2, 4);
    for wanted in [2, 40_000, u16::MAX] {
        let place = Place { wanted: Some(wanted), ..place(&mn0) };
        let e = MemoryNode::join(&place, 4 << 20).expect_err("no such number");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains("numbered 0 to 1"), "{e}");
    }
    let _mn1 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the second memory node");
    for wanted in [4, 40_000, u16::MAX] {
        let e = Cluster::join(&Place { wanted: Some(wanted), ..place(&mn0) });
        let e = e.expect_err("no such number");
        assert!(e.to_string().contains("numbered 0 to 3"), "{e}");
    }
}

/// Guards against growth: every incarnation left something in the messages of the membership and in
/// the bookkeeping of the first memory node.
#[test]
fn many_incarnations_of_one_number() {
    let mn0 = founded(1, 1);
    for incarnation in 1..=30 {
        let c = join(&mn0);
        let (n, ep) = node(&c);
        assert_eq!(n.member().incarnation, incarnation);
        on(&ep, n.alloc_block(&ep, 1, 100, None)).map(|b| n.give_back_block(1, b)).expect("room");
    }
    let c = join(&mn0);
    let (n, ep) = node(&c);
    await_settled(&n);
    assert_eq!(n.membership().deaths(), 30);
    assert!((1..=30).all(|incarnation| n.is_revoked(n.cn(), incarnation)));
    let at = GlobalAddr::new(mn0.node(), 64);
    on(&ep, async { ep.read(at, 8).await }).expect("it is served");
}
