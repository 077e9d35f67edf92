//! Bump allocators: round robin, zeroes, no overlap, and what happens at the end.

use super::common::{KIB, fails, is_zero, pool, run, small};
use dmtree_fabric::{ErrorKind, GlobalAddr, NodeId, Role};
use dmtree_pool::{ANY_INDEX, Cluster, PoolOptions};

#[test]
fn pieces_come_from_chunk_after_chunk_of_all_memory_nodes() {
    let (_cluster, node, ep) = pool(&small(3, 1));
    let bump = node.supply().bump(7, 1);
    let mut chunks: Vec<(NodeId, u64)> = Vec::new();
    let mut end = GlobalAddr::NULL;
    for i in 0..400u32 {
        let bytes = [1360, 56, 1752, 5200, 1][i as usize % 5];
        let at = run(&ep, node.supply().alloc_bump(&ep, &bump, bytes)).expect("room");
        assert!(at.offset().is_multiple_of(8) && at.node().role() == Role::Memory);
        assert!(is_zero(&ep, at, bytes), "fresh memory is zero");
        let mut ones = run(&ep, ep.buf(bytes)).expect("a buffer");
        ones.fill(0xff);
        run(&ep, async { ep.write(at, ones).await }).expect("inside");
        if at != end {
            chunks.push((at.node(), at.offset()));
        }
        end = at.plus(u64::from(bytes).next_multiple_of(8));
    }
    let nodes: Vec<_> = chunks.iter().map(|(n, _)| n.index()).collect();
    assert!(nodes.len() > 6, "{nodes:?}");
    assert!(nodes.windows(2).all(|w| w[1] == (w[0] + 1) % 3), "round robin: {nodes:?}");
}

#[test]
fn pieces_larger_than_a_chunk_are_refused_and_full_is_full() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let bump = node.supply().bump(7, 1);
    fails(
        run(&ep, node.supply().alloc_bump(&ep, &bump, 65 << 10)),
        "too large",
        ErrorKind::InvalidArgument,
    );
    let mut pieces = 0;
    let e = loop {
        match run(&ep, node.supply().alloc_bump(&ep, &bump, 32 << 10)) {
            Ok(_) => pieces += 1,
            Err(e) => break e,
        }
        assert!(pieces < 1000);
    };
    assert!(e.kind() == ErrorKind::Full && pieces > 40, "{pieces} pieces, {e}");
}

#[test]
fn stripes_go_round_the_compute_nodes_until_all_are_full() {
    let o = PoolOptions { compute_bytes_per_node: 64 * KIB, ..small(1, 3) };
    let cluster = Cluster::embedded(&o).expect("valid");
    let (node, ep) = super::common::of(&cluster, 1);
    let stripes = node.supply().stripes(4 * KIB);
    // Cells of other indexes live in the same memory.
    let cell = run(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Compute)).expect("room");
    let cell = run(&ep, node.resolve(&ep, cell)).expect("granted");
    let mut seen = Vec::new();
    while let Some(at) = run(&ep, node.supply().alloc_stripe(&ep, &stripes, 56)).expect("reachable")
    {
        assert!(is_zero(&ep, at, 56) && at.node().role() == Role::Compute);
        seen.push(at);
        assert!(seen.len() < 10_000);
    }
    assert!(run(&ep, node.supply().alloc_stripe(&ep, &stripes, 56)).expect("reachable").is_none());
    for (i, at) in seen.iter().enumerate().take(73 * 30) {
        assert_eq!(at.node().index(), (1 + i / 73) % 3, "piece {i}: 73 fit 4 KiB");
    }
    seen.push(cell);
    seen.sort();
    assert!(seen.windows(2).all(|w| w[0].plus(56).bits() <= w[1].bits()), "no overlap");
    assert!(seen.len() as u64 > 3 * (64 - 8) * KIB / 57, "{} pieces", seen.len());
    // The remainder of a node is granted in a shorter stretch, and the other allocator still
    // works elsewhere.
    run(&ep, node.alloc_table(&ep, ANY_INDEX, 4, Role::Memory)).expect("memory nodes have room");
}
