//! Capacity: a full pool says so, names the nodes, and goes on working.

use super::common::{INNER, LARGE, LEAF, MIB, each_client, fails, knobbed, pool, run, small};
use dmtree_fabric::{ErrorKind, NodeId};
use dmtree_pool::{BlockPtr, ChunkUse, Cluster, Grant, PoolOptions};

#[test]
fn full_names_the_nodes_and_leaves_everything_usable() {
    for o in [small(2, 1), knobbed(9, small(2, 1))] {
        let (_cluster, node, ep) = pool(&o);
        let arena = node.arena(LARGE);
        let mut live: Vec<Grant> = Vec::new();
        let end = loop {
            match run(&ep, node.alloc(&ep, &arena, None)) {
                Ok(g) => live.push(g),
                Err(e) => break e,
            }
        };
        assert_eq!(end.kind(), ErrorKind::Full);
        let text = end.to_string();
        assert!(text.contains("mn0, mn1 are full (4 MiB, no free chunk)"), "{text}");
        assert!(text.contains("delete keys"), "{text}");
        let usage = run(&ep, node.usage_all(&ep)).expect("readable");
        assert!(usage.memory.iter().all(|m| m.free_chunks == 0 && m.used_chunks > 20));
        let chunks: u32 = usage.memory.iter().map(|m| m.used_chunks).sum();
        assert_eq!(live.len(), chunks as usize * 4, "to the last object");
        // Other arenas find it full as well, without harm.
        assert!(run(&ep, node.alloc(&ep, &node.arena(LEAF), None)).is_err());
        assert!(run(&ep, node.alloc_block(&ep, 1, 64, None)).is_err());
        // Freed memory is reusable.
        for round in 0..3 {
            let g = live.swap_remove(round * 5);
            if round == 0 {
                node.give_back(&arena, g)
            } else {
                node.retire(&arena, g)
            }
            let again = run(&ep, node.alloc(&ep, &arena, None)).expect("one is free");
            assert_eq!((again.addr, again.generation), (g.addr, g.generation + 1));
            live.push(again);
            assert!(run(&ep, node.alloc(&ep, &arena, None)).is_err());
        }
    }
}

#[test]
fn free_blocks_become_anything_again() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let mut sizes = (0u32..).map(|i| 40 + i * 977 % 30_000);
    let blocks: Vec<BlockPtr> =
        std::iter::from_fn(|| run(&ep, node.alloc_block(&ep, 1, sizes.next()?, None)).ok())
            .collect();
    let bytes: u64 = blocks.iter().map(|b| u64::from(b.capacity())).sum();
    let usage = run(&ep, node.usage_all(&ep)).expect("readable");
    let chunks = u64::from(usage.memory[0].used_chunks) * (64 << 10);
    assert!(bytes * 10 >= chunks * 9, "{bytes} of {chunks}: sizes share chunks without much waste");
    assert_eq!(usage.here.free_block_bytes, chunks - bytes);
    for b in blocks {
        node.retire_block(1, b);
    }
    // The full pool reclaims and returns chunks by itself; 64 KiB chunks in a row make 1 MiB.
    let large = run(&ep, node.alloc_block(&ep, 1, MIB as u32, None)).expect("all is free");
    assert_eq!(u64::from(large.capacity()), MIB);
    let usage = run(&ep, node.usage_all(&ep)).expect("readable");
    assert_eq!(usage.memory[0].used_chunks, 16);
    let records = run(&ep, node.chunk_records(&ep, NodeId::memory(0))).expect("readable");
    let run_of: Vec<_> = records.iter().flatten().map(|r| r.run).collect();
    assert_eq!(run_of, [[16].as_slice(), &[0; 15]].concat());
    node.give_back_block(1, large);
    let arena = node.arena(INNER);
    for _ in 0..16 * 16 {
        run(&ep, node.alloc(&ep, &arena, None)).expect("runs become objects too");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    for bytes in [0, (2 << 20) + 1, u32::MAX] {
        fails(
            run(&ep, node.alloc_block(&ep, 1, bytes, None)),
            "refused",
            ErrorKind::InvalidArgument,
        );
    }
    let huge = node.arena(dmtree_pool::ArenaKey { object_bytes: u32::MAX, ..LEAF });
    fails(run(&ep, node.alloc(&ep, &huge, None)), "refused", ErrorKind::InvalidArgument);
    let e = run(&ep, node.alloc_block(&ep, 1, 2 << 20, None)).expect_err("no 32 chunks in a row");
    assert!(
        e.kind() == ErrorKind::Full && e.to_string().contains("32 free chunks in a row"),
        "{e}"
    );
}

#[test]
fn records_name_the_owner_of_a_chunk() {
    let (cluster, _, _) = pool(&small(2, 3));
    for c in 0..3 {
        let (node, ep) = super::common::of(&cluster, c);
        run(&ep, node.alloc(&ep, &node.arena(LEAF), None)).expect("room");
        run(&ep, node.alloc_block(&ep, 30 + c as u32, 5000, None)).expect("room");
    }
    let (node, ep) = super::common::of(&cluster, 1);
    let mut owners = Vec::new();
    for m in 0..2 {
        let records = run(&ep, node.chunk_records(&ep, NodeId::memory(m))).expect("readable");
        owners
            .extend(records.into_iter().flatten().map(|r| (r.used_for, r.owner.index(), r.index)));
    }
    owners.sort();
    let arenas = (0..3).map(|c| (ChunkUse::Arena, c, 1));
    let blocks = (0..3).map(|c| (ChunkUse::Blocks, c, 30 + c as u32));
    assert_eq!(owners, arenas.chain(blocks).collect::<Vec<_>>());
    let usage = run(&ep, node.usage_all(&ep)).expect("readable");
    let by_use: u32 = usage.memory.iter().flat_map(|m| &m.by_use).map(|u| u.chunks).sum();
    assert_eq!(by_use, 6);
    assert!(run(&ep, node.chunk_records(&ep, NodeId::memory(2))).is_err());
}

#[test]
fn threads_of_one_node_share_chunks() {
    let o = PoolOptions { memory_bytes_per_node: 8 * MIB, ..small(2, 2) };
    for o in [o.clone(), knobbed(2, o)] {
        let cluster = Cluster::embedded(&o).expect("valid");
        let granted = each_client(&cluster, 6, |node, ep| {
            let arena = node.arena(LEAF);
            let mut kept = Vec::new();
            for i in 0..600 {
                let g = run(ep, node.alloc(ep, &arena, None)).expect("room");
                if i % 3 == 0 { node.give_back(&arena, g) } else { kept.push(g) }
            }
            kept
        })
        .concat();
        assert_eq!(granted.len(), 2400);
        let distinct: std::collections::BTreeSet<_> = granted.iter().map(|g| g.addr).collect();
        assert_eq!(distinct.len(), 2400, "no object is granted twice");
        let (node, ep) = super::common::of(&cluster, 0);
        let usage = run(&ep, node.usage_all(&ep)).expect("readable");
        let chunks: u32 = usage.memory.iter().map(|m| m.used_chunks).sum();
        // 46 objects a chunk: 53 chunks hold what is kept; each node may have one or two begun.
        assert!(chunks <= 58, "{chunks} chunks: one client at a time asks for more");
    }
}

#[test]
fn a_dropped_pool_frees_its_memory() {
    let (cluster, node, ep) = pool(&small(1, 1));
    let fabric = std::sync::Arc::downgrade(cluster.fabric());
    drop((cluster, node, ep));
    assert!(fabric.upgrade().is_none(), "no service keeps the fabric alive");
}
