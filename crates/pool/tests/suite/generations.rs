//! Generations and overlaps: a model watches random sequences of grants and returns on several
//! nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::common::{INNER, LARGE, LEAF, is_zero, knobbed, pool, run, small};
use dmtree_fabric::{Endpoint, ErrorKind, NodeId, Role};
use dmtree_pool::{
    ANY_INDEX, Arena, BlockPtr, ChunkUse, Cluster, Grant, PoolNode, PoolOptions, TableId,
};
use proptest::prelude::*;

/// Granted memory, by address: no two grants overlap. And the last generation of every address.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, u64>,
    generations: BTreeMap<u64, u16>,
}

impl Model {
    fn granted(&mut self, at: u64, bytes: u64) {
        if let Some((o, l)) = self.live.range(..=at).next_back() {
            assert!(o + l <= at, "{at:#x} overlaps {o:#x}+{l}");
        }
        if let Some((o, _)) = self.live.range(at..).next() {
            assert!(at + bytes <= *o, "{at:#x}+{bytes} overlaps {o:#x}");
        }
        self.live.insert(at, bytes);
    }

    fn object(&mut self, g: Grant, bytes: u64) {
        self.granted(g.addr.bits(), bytes);
        let before = self.generations.insert(g.addr.bits(), g.generation).unwrap_or(0);
        assert!(g.generation > before, "generation {} after {before} at {}", g.generation, g.addr);
    }

    fn returned(&mut self, at: u64) {
        self.live.remove(&at).expect("it was live");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Object {
        kind: u8,
        near: Option<u16>,
    },
    Block {
        bytes: u32,
    },
    Table {
        lines: u8,
    },
    /// Returns the item of this rank, on any node.
    Return {
        pick: u16,
        retire: bool,
    },
    Reclaim,
}

fn step() -> impl Strategy<Value = (u8, Step)> {
    let near = proptest::option::of(0u16..3);
    let step = prop_oneof![
        4 => (0u8..3, near).prop_map(|(kind, near)| Step::Object { kind, near }),
        3 => prop_oneof![1u32..2000, 1u32..200_000].prop_map(|bytes| Step::Block { bytes }),
        2 => (1u8..=4).prop_map(|lines| Step::Table { lines }),
        5 => (any::<u16>(), any::<bool>()).prop_map(|(pick, retire)| Step::Return { pick, retire }),
        1 => Just(Step::Reclaim),
    ];
    (0u8..2, step)
}

enum Item {
    Object(u8, Grant),
    Block(BlockPtr),
    Table(TableId),
}

struct World {
    cluster: Cluster,
    nodes: Vec<(Arc<PoolNode>, Endpoint, Vec<Arc<Arena>>)>,
    model: Model,
    items: Vec<Item>,
}

impl World {
    fn new(o: &PoolOptions) -> Self {
        let cluster = Cluster::embedded(o).expect("valid");
        let nodes = (0..cluster.compute_nodes()).map(|i| {
            let (node, ep) = super::common::of(&cluster, i);
            let arenas = [LEAF, INNER, LARGE].map(|k| node.arena(k)).to_vec();
            (node, ep, arenas)
        });
        Self { nodes: nodes.collect(), cluster, model: Model::default(), items: Vec::new() }
    }

    fn step(&mut self, on_node: u8, step: Step) {
        let (node, ep, arenas) = &self.nodes[usize::from(on_node)];
        let full = |e: dmtree_fabric::Error| assert_eq!(e.kind(), ErrorKind::Full, "{e}");
        match step {
            Step::Object { kind, near } => {
                let arena = &arenas[usize::from(kind)];
                let bytes = u64::from(arena.key().object_bytes);
                match run(ep, node.alloc(ep, arena, near.map(NodeId::memory))) {
                    Ok(g) => {
                        self.model.object(g, bytes);
                        self.items.push(Item::Object(kind, g));
                    }
                    Err(e) => full(e),
                }
            }
            Step::Block { bytes } => match run(ep, node.alloc_block(ep, 7, bytes, None)) {
                Ok(b) => {
                    assert!(b.capacity() >= bytes);
                    self.model.granted(b.addr().bits(), u64::from(b.capacity()));
                    self.items.push(Item::Block(b));
                }
                Err(e) => full(e),
            },
            Step::Table { lines } => {
                match run(ep, node.alloc_table(ep, ANY_INDEX, lines, Role::Compute)) {
                    Ok(t) => {
                        let at = run(ep, node.resolve(ep, t)).expect("granted");
                        assert_eq!(node.resolve_cached(t), Some(at));
                        self.model.granted(at.bits(), u64::from(lines) * 64);
                        self.items.push(Item::Table(t));
                    }
                    Err(e) => full(e),
                }
            }
            Step::Return { pick, retire } => {
                if self.items.is_empty() {
                    return;
                }
                let at = usize::from(pick) % self.items.len();
                match self.items.swap_remove(at) {
                    Item::Object(kind, g) => {
                        self.model.returned(g.addr.bits());
                        let arena = &arenas[usize::from(kind)];
                        if retire { node.retire(arena, g) } else { node.give_back(arena, g) }
                    }
                    Item::Block(b) => {
                        self.model.returned(b.addr().bits());
                        if retire { node.retire_block(7, b) } else { node.give_back_block(7, b) }
                    }
                    Item::Table(t) => {
                        let at = run(ep, node.resolve(ep, t)).expect("granted");
                        self.model.returned(at.bits());
                        if retire {
                            node.retire_table(ANY_INDEX, t)
                        } else {
                            node.give_back_table(ANY_INDEX, t)
                        }
                    }
                }
            }
            Step::Reclaim => {
                let got = run(ep, node.reclaimer().reclaim(ep)).expect("all nodes answer");
                assert_eq!(got.waiting, 0, "nothing runs");
            }
        }
    }

    /// The memory nodes' records account for every grant there.
    fn check_records(&self) {
        let (node, ep, _) = &self.nodes[0];
        for m in 0..self.cluster.memory_nodes() {
            let mn = NodeId::memory(m as u16);
            let records = run(ep, node.chunk_records(ep, mn)).expect("readable");
            let chunk0 = node.chunk_addr(mn, 0).expect("exists").offset();
            let of = |at: u64| records[((at - chunk0) / (64 << 10)) as usize];
            for item in &self.items {
                let (addr, used_for, size) = match item {
                    Item::Object(kind, g) => (
                        g.addr,
                        ChunkUse::Arena,
                        [LEAF, INNER, LARGE][usize::from(*kind)].object_bytes,
                    ),
                    Item::Block(b) => (b.addr(), ChunkUse::Blocks, 0),
                    Item::Table(_) => continue,
                };
                if addr.node() == mn {
                    let r = of(addr.offset()).expect("its chunk is recorded");
                    assert_eq!((r.used_for, r.object_bytes), (used_for, size.next_multiple_of(64)));
                    assert_eq!(r.index, if used_for == ChunkUse::Arena { 1 } else { 7 });
                    assert_eq!(r.incarnation, 1);
                }
            }
        }
        for (node, ..) in &self.nodes {
            assert_eq!(node.usage().refused, 0, "nothing was returned twice");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn grants_never_overlap_and_generations_grow(
        seed: u64,
        knobs: bool,
        generation_bits in prop_oneof![Just(2u8), Just(16)],
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        let o = PoolOptions { generation_bits, memory_bytes_per_node: 1 << 20, ..small(2, 2) };
        let o = if knobs { knobbed(seed, o) } else { o };
        let mut w = World::new(&o);
        for (on_node, step) in steps {
            w.step(on_node, step);
        }
        w.check_records();
    }
}

#[test]
fn fresh_memory_is_zero_and_generations_begin_with_one() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    // Blocks dirty some chunks, then go back to the memory node whole.
    let blocks: Vec<_> =
        (0..8).map(|_| run(&ep, node.alloc_block(&ep, 1, 60_000, None)).expect("room")).collect();
    run(&ep, async {
        for b in blocks {
            let mut buf = ep.buf(b.capacity()).await?;
            buf.fill(0xaa);
            ep.write(b.addr(), buf).await?;
            node.retire_block(1, b);
        }
        node.reclaimer().reclaim(&ep).await
    })
    .expect("reclaimed");
    let arena = node.arena(LARGE);
    for _ in 0..60 {
        let g = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
        assert_eq!(g.generation, 1);
        assert!(is_zero(&ep, g.addr, LARGE.object_bytes));
    }
}

#[test]
fn two_bit_generations_wear_out() {
    let (_cluster, node, ep) = pool(&PoolOptions { generation_bits: 2, ..small(1, 1) });
    let arena = node.arena(LARGE);
    let mut per_address = BTreeMap::<u64, Vec<u16>>::new();
    let granted = std::iter::from_fn(|| match run(&ep, node.alloc(&ep, &arena, None)) {
        Ok(g) => {
            node.give_back(&arena, g);
            Some(g)
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Full);
            None
        }
    });
    for g in granted {
        per_address.entry(g.addr.bits()).or_default().push(g.generation);
    }
    let usage = run(&ep, node.usage_all(&ep)).expect("readable");
    let objects = u64::from(usage.memory[0].used_chunks) * 4;
    assert_eq!(per_address.len() as u64, objects, "every address was used");
    assert!(per_address.values().all(|granted| *granted == [1, 2, 3]));
    assert_eq!(usage.here.arenas[0].worn_out, objects, "set aside, not reused");
    assert_eq!(usage.memory[0].free_chunks, 0);
}

#[test]
fn garbage_given_back_is_counted_and_left_alone() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let arena = node.arena(LEAF);
    let real = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
    let block = run(&ep, node.alloc_block(&ep, 1, 100, None)).expect("room");
    // Outside every chunk, misaligned, of no memory node, of no partition.
    let garbage = [0, 64, 1 << 63, u64::MAX];
    for bits in garbage {
        let addr = dmtree_fabric::GlobalAddr::from_bits(bits);
        node.give_back(&arena, Grant { addr, generation: 1 });
        node.give_back_block(1, BlockPtr::from_bits(bits));
        node.give_back_table(ANY_INDEX, TableId::from_bits(bits));
    }
    node.give_back(&arena, Grant { addr: real.addr.plus(8), generation: 1 });
    node.give_back(&arena, Grant { generation: 0, ..real });
    node.give_back_block(1, block);
    node.give_back_block(1, block);
    assert_eq!(node.usage().refused, 3 * garbage.len() as u64 + 3);
}

#[test]
fn chunks_go_round_robin_and_near_is_near() {
    let (_cluster, node, ep) = pool(&small(3, 1));
    let arena = node.arena(LARGE);
    let mut used = [0u32; 3];
    for _ in 0..48 {
        let g = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
        used[g.addr.node().index()] += 1;
    }
    assert_eq!(used, [16; 3]);
    for m in 0..3 {
        for _ in 0..6 {
            let near = NodeId::memory(m);
            let g = run(&ep, node.alloc(&ep, &arena, Some(near))).expect("room");
            assert_eq!(g.addr.node(), near);
        }
    }
    let nowhere = Some(NodeId::memory(99));
    run(&ep, node.alloc(&ep, &arena, nowhere)).expect("a preference, not an order");
}
