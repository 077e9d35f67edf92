//! Free memory goes where it is needed: from node to node, and from a node that leaves to the next.

use std::collections::BTreeSet;

use super::common::{LARGE, LEAF, endpoint, fails, pool, run, small};
use dmtree_fabric::net::{DataPath, NicConfig};
use dmtree_fabric::{Endpoint, ErrorKind, LeaseParameters, Role};
use dmtree_pool::{
    ANY_INDEX, ArenaKey, BlockPtr, Cluster, Grant, MemoryNode, Place, PoolNode, PoolOptions,
};

fn fill_objects(node: &PoolNode, ep: &Endpoint, key: ArenaKey) -> Vec<Grant> {
    std::iter::from_fn(|| run(ep, node.alloc(ep, &node.arena(key), None)).ok()).collect()
}

fn fill_blocks(node: &PoolNode, ep: &Endpoint, bytes: u32) -> Vec<BlockPtr> {
    std::iter::from_fn(|| run(ep, node.alloc_block(ep, 1, bytes, None)).ok()).collect()
}

#[test]
fn a_full_node_gets_the_objects_that_another_has_free() {
    let (cluster, a, ea) = pool(&small(2, 2));
    let (b, eb) = super::common::of(&cluster, 1);
    let held = fill_objects(&a, &ea, LEAF);
    assert!(fill_objects(&b, &eb, LEAF).is_empty());
    let (free, retired) = held.split_at(held.len() / 2);
    free.iter().for_each(|g| a.give_back(&a.arena(LEAF), *g));
    let got = fill_objects(&b, &eb, LEAF);
    assert_eq!(got.len(), free.len(), "all of them, one after the other");
    let generations: BTreeSet<_> = got.iter().map(|g| (g.addr, g.generation)).collect();
    let expected: BTreeSet<_> = free.iter().map(|g| (g.addr, g.generation + 1)).collect();
    assert_eq!(generations, expected, "each once, in its next generation");
    // Items on the limbo list of a node that does nothing more.
    retired.iter().for_each(|g| a.retire(&a.arena(LEAF), *g));
    let mut more = fill_objects(&b, &eb, LEAF);
    while run(&eb, b.reclaimer().reclaim_for_room(&eb)).expect("no operation runs") {
        more.extend(fill_objects(&b, &eb, LEAF));
    }
    assert_eq!(more.len(), retired.len());
    assert_eq!(a.usage().retired + b.usage().retired + a.usage().refused + b.usage().refused, 0);
}

#[test]
fn a_full_node_gets_the_space_that_another_has_free() {
    let (cluster, a, ea) = pool(&small(1, 2));
    let (b, eb) = super::common::of(&cluster, 1);
    let held = fill_blocks(&a, &ea, 3000);
    assert!(held.len() > 300 && fill_blocks(&b, &eb, 3000).is_empty());
    held.iter().step_by(2).for_each(|p| a.give_back_block(1, *p));
    let got = fill_blocks(&b, &eb, 3000);
    assert!(got.len() + 40 >= held.len() / 2, "{} of {}", got.len(), held.len() / 2);
    let once: BTreeSet<_> = got.iter().chain(held.iter().skip(1).step_by(2)).collect();
    assert_eq!(once.len(), got.len() + held.len() / 2, "no block is granted twice");
    held.iter().skip(1).step_by(2).for_each(|p| a.retire_block(1, *p));
    got.iter().for_each(|p| b.retire_block(1, *p));
    let mut objects = fill_objects(&a, &ea, LARGE);
    while run(&ea, a.reclaimer().reclaim_for_room(&ea)).expect("no operation runs") {
        objects.extend(fill_objects(&a, &ea, LARGE));
    }
    assert!(objects.len() >= 60, "chunks are whole again: {}", objects.len());
}

/// In a pool that is full, the value of a key that is there can still be replaced.
#[test]
fn the_last_block_is_kept_for_replacing_values() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let mut held = fill_blocks(&node, &ep, 5000);
    fails(run(&ep, node.alloc_block(&ep, 1, 5000, None)), "full", ErrorKind::Full);
    for _ in 0..5 {
        let new = run(&ep, node.alloc_block_of(&ep, (1, 5000), None, true)).expect("the last one");
        assert!(run(&ep, node.alloc_block_of(&ep, (1, 5000), None, true)).is_err());
        node.retire_block(1, held.swap_remove(0));
        held.push(new);
        assert!(run(&ep, node.alloc_block(&ep, 1, 5000, None)).is_err(), "for replacing only");
    }
}

/// Sixty incarnations, one after the other, and each holds a piece of every kind.
#[test]
fn memory_of_an_incarnation_comes_back_when_it_leaves() {
    let o = PoolOptions { compute_nodes: 4, ..small(1, 1) };
    let nic_config = NicConfig::default();
    let listen = "127.0.0.1:0";
    let mn0 =
        MemoryNode::found(listen, &o, LeaseParameters::default(), DataPath::Frames, &nic_config)
            .expect("a free port");
    let within = std::time::Duration::from_secs(20);
    let place = Place {
        first: mn0.listens(),
        listen,
        wanted: None,
        within,
        data_path: None,
        nic_config: &nic_config,
    };
    let mut kept = BTreeSet::new();
    let mut used = 0;
    for incarnation in 0..60 {
        let cluster = Cluster::join(&place).expect("joins");
        let node = cluster.compute_node(0).expect("its own");
        let ep = endpoint(&node);
        for key in [LEAF, LARGE] {
            let g = run(&ep, node.alloc(&ep, &node.arena(key), None)).expect("room for an object");
            assert!(incarnation % 4 != 0 || kept.insert(g.addr), "granted twice: {g:?}");
            if incarnation % 4 != 0 {
                node.retire(&node.arena(key), g);
            }
        }
        let b = run(&ep, node.alloc_block(&ep, 1, 700, None)).expect("room for a block");
        assert!(kept.insert(b.addr()), "granted twice: {b:?}");
        let t =
            run(&ep, node.alloc_table(&ep, ANY_INDEX, 2, Role::Compute)).expect("room for a table");
        node.give_back_table(ANY_INDEX, t);
        let usage = run(&ep, node.usage_all(&ep)).expect("readable");
        if incarnation == 8 {
            used = usage.memory[0].used_chunks;
        }
        assert!(
            incarnation < 8 || usage.memory[0].used_chunks <= used + 4,
            "{incarnation}: {usage:?}"
        );
        assert_eq!(usage.here.refused, 0);
    }
}
