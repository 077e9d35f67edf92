//! Memory nodes that are added to a pool in use.

use super::*;
use dmtree_fabric::Presence;

const ARENA: ArenaKey = ArenaKey { index: 1, kind: 1, object_bytes: 4096 };

/// Allocates until the pool is full; how many objects each memory node gave.
fn fill(node: &PoolNode, ep: &Endpoint, memory_nodes: usize) -> Vec<usize> {
    let arena = node.arena(ARENA);
    let mut given = vec![0; memory_nodes];
    loop {
        ep.renew_deadline();
        match on(ep, node.alloc(ep, &arena, None)) {
            Ok(g) => {
                let at = g.addr.plus(64);
                on(ep, ep.write_word(at, g.addr.bits())).expect("it is memory");
                given[g.addr.node().index()] += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Full, "{e}");
                return given;
            }
        }
    }
}

/// Every compute node uses the memory of an added memory node, and reads what another one wrote
/// there.
#[test]
fn a_full_pool_goes_on_with_an_added_memory_node() {
    let mn0 = found(1);
    let a = Cluster::join(&place(&mn0)).expect("joins");
    let b = Cluster::join(&place(&mn0)).expect("joins");
    let ((na, ea), (nb, eb)) = (node(&a), node(&b));
    let before = fill(&na, &ea, 1);
    assert!(before[0] > 100, "{before:?}");
    let mn1 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the pool grows");
    assert_eq!(mn1.node(), NodeId::memory(1));
    let arena = na.arena(ARENA);
    let g = within("room", || on(&ea, na.alloc(&ea, &arena, None)).ok());
    assert_eq!(g.addr.node(), mn1.node());
    on(&ea, ea.write_word(g.addr, 77)).expect("a member");
    assert_eq!(on(&eb, eb.read(g.addr, 8)).expect("b knows it").word(0), 77);
    let near =
        within("room there", || on(&eb, nb.alloc(&eb, &nb.arena(ARENA), Some(mn1.node()))).ok());
    assert_eq!(near.addr.node(), mn1.node());
    let more = fill(&na, &ea, 2);
    assert!(more[0] < 20 && more[1] > 100, "{more:?}");
    // One that joins later knows it, too.
    let c = Cluster::join(&place(&mn0)).expect("joins");
    let (nc, ec) = node(&c);
    assert_eq!(on(&ec, ec.read(g.addr, 8)).expect("c knows it").word(0), 77);
    let usage = on(&ec, nc.usage_all(&ec)).expect("all answer");
    assert_eq!(usage.memory.len(), 2);
    assert!(mn0.take_news().iter().any(|line| line.contains("mn1") && line.contains("in use")));
}

/// What returns to the lists of a node is granted again, also on an added memory node.
#[test]
fn memory_of_an_added_memory_node_is_reused() {
    let mn0 = found(1);
    let a = Cluster::join(&place(&mn0)).expect("joins");
    let (na, ea) = node(&a);
    let _mn1 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the pool grows");
    let arena = na.arena(ARENA);
    let near = Some(NodeId::memory(1));
    let g = within("the new one is open", || {
        let g = on(&ea, na.alloc(&ea, &arena, near)).expect("room");
        if g.addr.node() == NodeId::memory(1) {
            return Some(g);
        }
        na.give_back(&arena, g);
        None
    });
    let block = on(&ea, na.alloc_block(&ea, 1, 500, near)).expect("room");
    assert_eq!(block.addr().node(), NodeId::memory(1));
    na.give_back(&arena, g);
    na.give_back_block(1, block);
    assert_eq!(na.usage().refused, 0);
    let again = on(&ea, na.alloc(&ea, &arena, near)).expect("room");
    assert_eq!((again.addr.node(), again.generation > 0), (NodeId::memory(1), true));
    // What a leaving node hands in is found by the next one.
    drop(a);
    let b = Cluster::join(&place(&mn0)).expect("joins");
    let (nb, eb) = node(&b);
    let given = fill(&nb, &eb, 2);
    assert!(given.iter().all(|n| *n > 100), "{given:?}");
}

/// A memory node that ends before every compute node knows it takes nothing with it, and the next
/// one gets another number.
#[test]
fn an_added_memory_node_may_be_lost() {
    let mn0 = found(1);
    let a = Cluster::join(&place(&mn0)).expect("joins");
    let (na, ea) = node(&a);
    let mn1 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the pool grows");
    drop(mn1);
    let is_lost = || {
        let away = na.membership().away();
        (away == [(NodeId::memory(1), Presence::Lost)]).then_some(())
    };
    within("it is lost", is_lost);
    let mn2 = MemoryNode::join(&place(&mn0), 4 << 20).expect("the pool grows");
    assert_eq!(mn2.node(), NodeId::memory(2));
    let arena = na.arena(ARENA);
    within("the second one is open", || {
        let g = on(&ea, na.alloc(&ea, &arena, Some(mn2.node()))).expect("room");
        (g.addr.node() == mn2.node()).then_some(())
    });
    let b = Cluster::join(&place(&mn0)).expect("needs no memory node that is lost");
    let (nb, eb) = node(&b);
    let given = fill(&nb, &eb, 3);
    assert!(given[1] == 0 && given[2] > 100, "{given:?}");
}
