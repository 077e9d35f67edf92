//! The limbo list: nothing is reused under a running operation, everything is afterwards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::common::{LARGE, LEAF, each_client, fails, knobbed, pool, run, small};
use dmtree_fabric::{
    Endpoint, ErrorKind, GlobalAddr, NodeId, OpCounts, OpKind, OpOutcome, Result, Role,
};
use dmtree_pool::{ANY_INDEX, ArenaKey, Cluster, Grant, PoolNode, PoolOptions};

fn reuse(node: &PoolNode, ep: &Endpoint, old: Grant, tries: usize) -> bool {
    let arena = node.arena(LARGE);
    (0..tries)
        .filter_map(|_| run(ep, node.alloc(ep, &arena, None)).ok())
        .any(|g| g.addr == old.addr)
}

#[test]
fn a_running_operation_holds_what_it_may_reach() {
    for o in [small(1, 2), knobbed(5, small(1, 2))] {
        let (cluster, node, ep) = pool(&o);
        let other = cluster.compute_node(1).expect("exists");
        let arena = node.arena(LARGE);
        let g = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
        let (early, late) = (other.register(), other.register());
        early.enter();
        node.retire(&arena, g);
        for _ in 0..3 {
            let got = run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
            assert_eq!((got.objects, got.waiting), (0, 1));
        }
        // Began after the retirement: holds nothing of it.
        late.enter();
        early.leave();
        let got = run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
        assert_eq!((got.objects, got.waiting), (1, 0));
        let again = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
        assert_eq!((again.addr, again.generation), (g.addr, g.generation + 1));
    }
}

#[test]
fn without_the_wait_it_would_be_reused_at_once() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let arena = node.arena(LARGE);
    let client = node.register();
    client.enter();
    let g = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
    node.give_back(&arena, g);
    assert!(reuse(&node, &ep, g, 1), "the test of the wait can tell the difference");
    let h = run(&ep, node.alloc(&ep, &arena, None)).expect("room");
    node.retire(&arena, h);
    run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
    assert!(!reuse(&node, &ep, h, 1000), "not even when the pool is full");
    client.leave();
    let again = run(&ep, node.alloc(&ep, &arena, None)).expect("a full pool reclaims by itself");
    assert_eq!(again.addr, h.addr);
}

#[test]
fn renewing_lets_go_and_dropping_too() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let retire = |id: u32| {
        let b = run(&ep, node.alloc_block(&ep, id, 500, None)).expect("room");
        node.retire_block(id, b);
        run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting
    };
    let scan = node.register();
    scan.enter();
    assert_eq!(retire(1), 1);
    scan.renew();
    assert_eq!(run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting, 0);
    assert_eq!(retire(2), 1, "renewed is still running");
    drop(scan);
    assert_eq!(run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting, 0);
    {
        let client = node.register();
        let _guard = client.guard();
        assert_eq!(retire(3), 1);
    }
    assert_eq!(run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting, 0);
}

#[test]
fn reclaiming_is_due_after_enough() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    assert!(!node.reclaimer().reclaim_due());
    for _ in 0..64 {
        assert!(!node.reclaimer().reclaim_due());
        let t = run(&ep, node.alloc_table(&ep, ANY_INDEX, 1, Role::Compute)).expect("room");
        node.retire_table(ANY_INDEX, t);
    }
    assert!(node.reclaimer().reclaim_due());
    let before = node.usage();
    assert_eq!((before.retired, before.retired_bytes), (64, 64 * 64));
    let got = run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
    assert_eq!((got.tables, got.bytes, got.waiting), (64, 64 * 64, 0));
    assert!(!node.reclaimer().reclaim_due());
    // Idle rounds ask no node.
    let scope = ep.begin(OpKind::Maintain);
    run(&ep, node.reclaimer().reclaim(&ep)).expect("nothing to do");
    assert_eq!(scope.counts(), OpCounts::default());
    scope.end(OpOutcome::Other);
}

#[test]
fn room_comes_when_operations_end() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    assert!(!run(&ep, node.reclaimer().reclaim_for_room(&ep)).expect("nothing waits"));
    let client = node.register();
    client.enter();
    let b = run(&ep, node.alloc_block(&ep, 1, 500, None)).expect("room");
    node.retire_block(1, b);
    ep.set_deadline(ep.now() + 2_000_000);
    fails(
        run(&ep, node.reclaimer().reclaim_for_room(&ep)),
        "the operation does not end",
        ErrorKind::TimedOut,
    );
    client.leave();
    assert!(run(&ep, node.reclaimer().reclaim_for_room(&ep)).expect("it has ended"));
}

/// A client that did not get the turn must not release it: all clients reclaim at once.
#[test]
fn many_reclaimers_take_turns() {
    let (cluster, ..) = pool(&small(1, 2));
    each_client(&cluster, 6, |node, ep| {
        for _ in 0..2000 {
            let b = run(ep, node.alloc_block(ep, 1, 64, None)).expect("room");
            node.retire_block(1, b);
            run(ep, node.reclaimer().reclaim(ep)).expect("answers");
        }
    });
    for i in 0..2 {
        let (node, ep) = super::common::of(&cluster, i);
        run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
        let usage = node.usage();
        assert_eq!((usage.retired, usage.refused), (0, 0));
        assert_eq!(usage.free_block_bytes % (64 << 10), 0, "all merged again");
    }
}

#[test]
fn a_revoked_node_does_not_count_and_a_mute_member_does() {
    let (cluster, node, ep) = pool(&small(1, 3));
    let dead = cluster.compute_node(2).expect("exists").register();
    dead.enter();
    let b = run(&ep, node.alloc_block(&ep, 1, 500, None)).expect("room");
    node.retire_block(1, b);
    assert_eq!(run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting, 1);
    // Revoking the access at compute nodes alone does not keep the dead node from reading.
    let revoke = |host| cluster.fabric().revoke(host, NodeId::compute(2), 1).expect("revoked");
    (0..2).for_each(|cn| revoke(NodeId::compute(cn)));
    assert!(cluster.fabric().members().expect("known").contains(&NodeId::compute(2)));
    assert_ne!(run(&ep, node.reclaimer().reclaim(&ep)).map_or(1, |r| r.waiting), 0);
    revoke(NodeId::memory(0));
    assert_eq!(run(&ep, node.reclaimer().reclaim(&ep)).expect("answers").waiting, 0);
}

/// Readers follow root words to objects while writers replace and retire them. In an operation, an
/// object that was reachable stays what it was.
struct SharedRoots {
    roots: GlobalAddr,
    stop: AtomicBool,
    reads: AtomicU64,
    replaced: AtomicU64,
}

const ROOTS: u64 = 16;
const VICTIM: ArenaKey = ArenaKey { index: 2, kind: 9, object_bytes: 256 };

impl SharedRoots {
    async fn replace(&self, node: &PoolNode, ep: &Endpoint, which: u64, serial: u64) -> Result<()> {
        let arena = node.arena(VICTIM);
        let g = node.alloc(ep, &arena, None).await?;
        let mut buf = ep.buf(256).await?;
        let mark = serial << 16 | u64::from(g.generation);
        buf.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&mark.to_le_bytes()));
        ep.write(g.addr, buf).await?;
        let root = self.roots.plus(which * 8);
        let old = ep.read(root, 8).await?.word(0);
        if ep.cas(root, old, g.addr.bits()).await? != old {
            node.give_back(&arena, g);
            return Ok(());
        }
        self.replaced.fetch_add(1, Ordering::Relaxed);
        if old != 0 {
            // Only the client that unlinked it retires it, so it is not rewritten in between.
            let addr = GlobalAddr::from_bits(old);
            let generation = ep.read(addr, 8).await?.word(0) as u16;
            node.retire(&arena, Grant { addr, generation });
        }
        Ok(())
    }

    async fn read(&self, ep: &Endpoint, which: u64) -> Result<()> {
        let at = GlobalAddr::from_bits(ep.read(self.roots.plus(which * 8), 8).await?.word(0));
        if at.is_null() {
            return Ok(());
        }
        let mut seen = None;
        for _ in 0..4 {
            let bytes = ep.read(at, 256).await?;
            let mark = bytes.word(0);
            assert!((0..32).all(|i| bytes.word(i) == mark), "torn: it was reused under a reader");
            assert_eq!(*seen.get_or_insert(mark), mark, "it was reused under a reader");
            ep.yield_now().await;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn stress(o: &PoolOptions, rounds: u64) {
    let cluster = Cluster::embedded(o).expect("valid");
    let (node, ep) = super::common::of(&cluster, 0);
    let roots = run(&ep, node.alloc(&ep, &node.arena(LEAF), None)).expect("room").addr;
    let shared = SharedRoots {
        roots,
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        replaced: AtomicU64::new(0),
    };
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u64)
            .map(|t| {
                let (shared, node) =
                    (&shared, cluster.compute_node(t as usize % 2).expect("exists"));
                s.spawn(move || {
                    let ep = super::common::endpoint(&node);
                    let client = node.register();
                    for i in 0..rounds {
                        loop {
                            let work = shared.replace(&node, &ep, (i * 7 + t) % ROOTS, t << 32 | i);
                            let done = {
                                let _in = client.guard();
                                run(&ep, work)
                            };
                            // A thread that was preempted in an operation holds back what the
                            // others retire.
                            match done {
                                Ok(()) => break,
                                Err(e) => assert_eq!(e.kind(), ErrorKind::Full, "{e}"),
                            }
                            run(&ep, node.reclaimer().reclaim_for_room(&ep)).expect("in time");
                            // The other node may have it all.
                            std::thread::yield_now();
                        }
                        if node.reclaimer().reclaim_due() {
                            run(&ep, node.reclaimer().reclaim(&ep)).expect("answers");
                        }
                    }
                })
            })
            .collect();
        for t in 0..3u64 {
            let (shared, node) = (&shared, cluster.compute_node(t as usize % 2).expect("exists"));
            s.spawn(move || {
                let ep = super::common::endpoint(&node);
                let client = node.register();
                let mut i = t;
                while !shared.stop.load(Ordering::Relaxed) {
                    i += 1;
                    let _in = client.guard();
                    run(&ep, shared.read(&ep, i % ROOTS)).expect("reads");
                }
            });
        }
        for w in writers {
            let joined = w.join();
            if joined.is_err() {
                shared.stop.store(true, Ordering::Relaxed);
            }
            joined.expect("a writer");
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    assert!(shared.reads.load(Ordering::Relaxed) > 0);
    assert!(shared.replaced.load(Ordering::Relaxed) >= rounds, "writers do succeed");
    let usage = node.usage();
    let arena = usage.arenas.iter().find(|a| a.key == VICTIM).expect("used");
    assert!(arena.chunk_bytes < rounds * 4 * 256 / 2, "memory was reused: {arena:?}");
    assert_eq!(usage.refused, 0);
}

#[test]
fn readers_never_see_reuse() {
    stress(&small(2, 2), 20_000);
}

#[test]
fn readers_never_see_reuse_while_verbs_suspend() {
    stress(&knobbed(11, small(2, 2)), 8_000);
}
