//! Table cells: spread, resolution, garbage.

use std::collections::BTreeSet;

use super::common::{KIB, MIB, fails, is_zero, knobbed, of, pool, run, small};
use dmtree_fabric::{ErrorKind, OpKind, OpOutcome, Role};
use dmtree_pool::{ANY_INDEX, Cluster, PoolNode, PoolOptions, TableId};
use proptest::prelude::*;

#[test]
fn tables_spread_over_all_compute_nodes() {
    for o in [small(2, 5), knobbed(3, small(2, 5))] {
        let cluster = Cluster::embedded(&o).expect("valid");
        let mut per_node = [0u32; 5];
        for c in 0..5 {
            let (node, ep) = super::common::of(&cluster, c);
            // Sizes take turns: each spreads by itself.
            for i in 0..101u32 {
                let lines = 1 + (i % 2) as u8;
                let t =
                    run(&ep, node.alloc_table(&ep, ANY_INDEX, lines, Role::Compute)).expect("room");
                let at = run(&ep, node.resolve(&ep, t)).expect("granted");
                assert_eq!(at.node().role(), Role::Compute);
                per_node[at.node().index()] += 1;
                assert!(is_zero(&ep, at, u32::from(lines) * 64));
            }
        }
        let (max, min) = (per_node.iter().max(), per_node.iter().min());
        assert!(max.zip(min).is_some_and(|(a, b)| a - b <= 10), "{per_node:?}");
    }
}

/// A node takes cells of its own region, as many as it has room for images, and one that comes back
/// again.
#[test]
fn own_cells_are_within_the_own_room() {
    let lines = 5;
    let cluster = Cluster::embedded(&small(2, 3)).expect("valid");
    let (node, ep) = super::common::of(&cluster, 1);
    let index =
        run(&ep, node.creations().create_index(&ep, "one", "test", b"{}")).expect("room").id;
    let own = || run(&ep, node.alloc_own_table(&ep, index, lines)).expect("works");
    assert_eq!(own(), None, "no room was given");
    node.images().give(index, 3 * u64::from(lines) * 64);
    // It is asked again after a while.
    let first = (0..100).find_map(|_| own()).expect("room");
    let cells: Vec<_> = [first].into_iter().chain(std::iter::from_fn(own)).collect();
    assert_eq!(cells.len(), 3);
    for t in &cells {
        let at = run(&ep, node.resolve(&ep, *t)).expect("granted");
        assert_eq!((at.node(), t.lines()), (node.cn(), lines));
    }
    node.give_back_table(index, cells[1]);
    assert_eq!([own(), own()], [Some(cells[1]), None]);
}

#[test]
fn partitions_fill_evenly() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let mut partitions = std::collections::BTreeMap::<u16, u32>::new();
    for _ in 0..4096 {
        let t = run(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Compute)).expect("room");
        *partitions.entry(t.partition().expect("granted")).or_default() += 1;
    }
    // Segments have 16, 32, 64 lines: no partition has a third one before all have two.
    assert!(partitions.values().all(|n| (48..=112).contains(n)), "{partitions:?}");
}

/// Cells of an index that was dropped are free again, wherever they are: in use, cached, or with
/// another node.
#[test]
fn cells_of_dropped_indexes_come_back() {
    let (cluster, node, ep) = pool(&small(1, 2));
    let (other, other_ep) = super::common::of(&cluster, 1);
    let mut far = 0;
    for round in 0..60 {
        let entry = run(&ep, node.creations().create_index(&ep, "one of many", "test", b"{}"))
            .expect("room");
        let mut seen = BTreeSet::new();
        for i in 0..1_500u32 {
            let (node, ep) = if i % 3 == 0 { (&other, &other_ep) } else { (&node, &ep) };
            let lines = 1 + (i % 2) as u8;
            let t = run(ep, node.alloc_table(ep, entry.id, lines, Role::Compute));
            let t = t.expect("room");
            let at = run(ep, node.resolve(ep, t)).expect("granted");
            far += u32::from(at.node().role() == Role::Memory);
            for line in 0..u64::from(lines) {
                assert!(seen.insert(at.bits() + line * 64), "round {round}: {t:?} overlaps");
            }
            assert!(is_zero(ep, at, u32::from(lines) * 64), "round {round}: {t:?} is used");
            run(ep, ep.write_word(at, 7)).expect("there");
            if i % 5 == 0 {
                node.retire_table(entry.id, t);
            }
        }
        run(&ep, node.catalog().drop_index(&ep, "one of many")).expect("it is there");
    }
    assert_eq!(far, 0, "cells on memory nodes");
}

/// An index that stays keeps its cells when others come and go.
#[test]
fn cells_of_an_index_that_stays_are_left_alone() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let stays =
        run(&ep, node.creations().create_index(&ep, "stays", "test", b"{}")).expect("room").id;
    let mut mine = BTreeSet::new();
    for _ in 0..40 {
        let goes =
            run(&ep, node.creations().create_index(&ep, "goes", "test", b"{}")).expect("room").id;
        for i in 0..700 {
            let index = if i % 7 == 0 { stays } else { goes };
            let t = node.alloc_table(&ep, index, 1, Role::Compute);
            let at = run(&ep, async { node.resolve(&ep, t.await?).await }).expect("room");
            assert_eq!(at.node().role(), Role::Compute);
            assert!(!mine.contains(&at), "{at} is in use");
            if index == stays {
                run(&ep, ep.write_word(at, 77)).expect("there");
                mine.insert(at);
            }
        }
        run(&ep, node.catalog().drop_index(&ep, "goes")).expect("it is there");
    }
    for at in mine {
        assert_eq!(run(&ep, ep.read(at, 8)).expect("there").word(0), 77, "{at}");
    }
}

#[test]
fn resolving_costs_one_read_and_then_none() {
    let (cluster, node, ep) = pool(&small(1, 2));
    let tables: Vec<_> = (0..8)
        .map(|_| run(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Compute)).expect("room"))
        .filter(|t| t.partition() == Some(0))
        .collect();
    assert!(tables.len() > 1, "several in one segment");
    let (other, ep) = super::common::of(&cluster, 1);
    assert_eq!(other.resolve_cached(tables[0]), None);
    let scope = ep.begin(OpKind::Admin);
    let first = run(&ep, other.resolve(&ep, tables[0])).expect("granted");
    let counts = scope.counts();
    assert_eq!((counts.mn.read, counts.mn.verbs(), counts.cn.verbs()), (1, 1, 0));
    for t in &tables {
        run(&ep, other.resolve(&ep, *t)).expect("granted");
        assert!(other.resolve_cached(*t).is_some());
    }
    assert_eq!((scope.counts(), other.resolve_cached(tables[0])), (counts, Some(first)));
    scope.end(OpOutcome::Other);
    assert_eq!(run(&ep, node.resolve(&ep, tables[0])).expect("granted"), first);
}

#[test]
fn cells_are_distinct_and_reused_by_size() {
    let (_cluster, node, ep) = pool(&small(1, 2));
    let mut seen = BTreeSet::new();
    let mut live = Vec::new();
    for i in 0..2000u32 {
        let lines = 1 + (i % 4) as u8;
        let t = run(&ep, node.alloc_table(&ep, ANY_INDEX, lines, Role::Compute)).expect("room");
        let at = run(&ep, node.resolve(&ep, t)).expect("granted").bits();
        for line in 0..u64::from(lines) {
            assert!(seen.insert(at + line * 64), "{t:?} overlaps");
        }
        live.push(t);
    }
    for t in &live {
        node.retire_table(ANY_INDEX, *t);
    }
    run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
    let old: BTreeSet<_> = live.into_iter().collect();
    let again = (0..2000u32).map(|i| {
        let lines = 1 + (i % 4) as u8;
        let t = run(&ep, node.alloc_table(&ep, ANY_INDEX, lines, Role::Compute)).expect("room");
        assert_eq!(t.lines(), lines);
        old.contains(&t)
    });
    assert!(again.filter(|b| *b).count() > 1900);
}

#[test]
fn full_compute_nodes_fall_back_to_memory_nodes() {
    let o =
        PoolOptions { compute_bytes_per_node: 20 * KIB, memory_bytes_per_node: MIB, ..small(2, 2) };
    let (_cluster, node, ep) = pool(&o);
    let mut sides = [0u32; 2];
    let end = loop {
        match run(&ep, node.alloc_table(&ep, ANY_INDEX, 2, Role::Compute)) {
            Ok(t) => {
                let at = run(&ep, node.resolve(&ep, t)).expect("granted");
                sides[usize::from(at.node().role() == Role::Memory)] += 1;
                assert!(at.node().role() == Role::Compute || is_zero(&ep, at, 128));
            }
            Err(e) => break e,
        }
    };
    assert_eq!(end.kind(), ErrorKind::Full);
    let text = end.to_string();
    assert!(["cn0", "cn1", "mn0", "mn1"].iter().all(|n| text.contains(n)), "{text}");
    assert!(sides[0] >= 280 && sides[1] > 5000, "{sides:?}");
    fails(run(&ep, node.alloc_table(&ep, ANY_INDEX, 2, Role::Memory)), "full", ErrorKind::Full);
    fails(
        run(&ep, node.alloc_table(&ep, ANY_INDEX, 5, Role::Compute)),
        "no room for an image",
        ErrorKind::Full,
    );
    fails(
        run(&ep, node.alloc_table(&ep, ANY_INDEX, 0, Role::Compute)),
        "of no line",
        ErrorKind::InvalidArgument,
    );
}

/// Regression: a node that left while all others were full was given its own partitions again,
/// until its time to leave was over.
#[test]
fn a_node_that_leaves_full_nodes_hands_over_to_memory_nodes() {
    let o =
        PoolOptions { compute_bytes_per_node: 20 * KIB, memory_bytes_per_node: MIB, ..small(1, 2) };
    let (cluster, stays, ep) = pool(&o);
    let (leaves, its) = of(&cluster, 1);
    let tables: Vec<_> = (0..600)
        .map(|_| run(&ep, stays.alloc_table(&ep, ANY_INDEX, 2, Role::Compute)).expect("room"))
        .collect();
    let owned = |by: &PoolNode| {
        let owner = |t: &&TableId| run(&ep, stays.resolve(&ep, **t)).expect("an owner").node();
        tables.iter().filter(|t| owner(t) == by.cn()).count()
    };
    assert!(owned(&stays) > 0 && owned(&leaves) > 0);
    let keep =
        |node: &PoolNode, ep| run(ep, node.membership().membership_step(ep)).expect("living");
    let mut tries = 0;
    while !run(&its, leaves.partitions().hand_over(&its)).expect("living") {
        tries += 1;
        assert!(tries < 100, "it has partitions still");
        (0..4).for_each(|_| {
            keep(&stays, &ep);
            keep(&leaves, &its);
        });
    }
    run(&its, leaves.membership().leave(&its)).expect("living");
    keep(&stays, &ep);
    assert_eq!(owned(&leaves), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn garbage_ids_are_errors(bits in proptest::collection::vec(any::<u64>(), 1..40), mask in 0u64..3) {
        let (_cluster, node, ep) = pool(&small(1, 1));
        let good = run(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Compute)).expect("room");
        for bits in bits {
            // Random words, words like real ids, and ids in a partition that exists.
            let t = TableId::from_bits(match mask {
                0 => bits,
                1 => bits & ((1 << 47) - 1),
                _ => good.bits() ^ (bits & 0xffff),
            });
            match run(&ep, node.resolve(&ep, t)) {
                Ok(at) => {
                    prop_assert_eq!(t.partition(), good.partition());
                    prop_assert_eq!(node.resolve_cached(t), Some(at));
                }
                Err(e) => prop_assert_eq!(e.kind(), ErrorKind::Corrupt),
            }
        }
        prop_assert!(run(&ep, node.resolve(&ep, TableId::NONE)).is_err());
    }
}
