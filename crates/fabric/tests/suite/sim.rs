//! The simulated fabric: its timing against formulas, its contract, its determinism.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use crate::common::{at, fails};
use dmtree_fabric::sim::{Profile, SimFabric};
use dmtree_fabric::verb::{VerbVec, cas, fenced, read, write, write_word};
use dmtree_fabric::{
    Core, Endpoint, ErrorKind, Fabric, Fifo, GlobalAddr, NodeId, Transport, Worker,
};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

const CNS: u16 = 6;

fn fabric(profile: &Profile, seed: u64, mns: u16) -> SimFabric {
    let f = SimFabric::new(profile, seed);
    for m in 0..mns {
        f.add_node(NodeId::memory(m), 64 << 20).unwrap();
    }
    for c in 0..CNS {
        f.add_node(NodeId::compute(c), 1 << 20).unwrap();
    }
    f.set_timed(true);
    f
}

fn artifact() -> Profile {
    let mut p = Profile::named("dmtree-artifact-100g").unwrap();
    for field in ["cache_lookup_ns", "fingerprint_scan_ns", "entry_check_ns", "local_queue_ns"] {
        p.set(&format!("cpu.{field}"), "0").unwrap();
    }
    p
}

/// 0 to `n - 1`.
fn below(rng: &mut SplitMix64, n: u64) -> u64 {
    ((rng.next_u64() >> 32) * n) >> 32
}

/// One verb of a formula, with its payload.
#[derive(Clone, Copy)]
enum V {
    R(u32),
    W(u32),
    Cas,
}

/// Where it goes: to the entry of the operation on the memory node, or to a random compute node.
#[derive(Clone, Copy)]
enum To {
    Mn(V),
    Cn(V),
}

/// Runs a formula (verbs, each awaited) in a closed loop; million operations per second.
fn mops(rounds: &'static [To], threads: u32, coroutines: u32, us: u64) -> f64 {
    let f = fabric(&artifact(), 1, 1);
    let mut worker: Option<(Rc<Core>, Worker<'_>)> = None;
    let done = Rc::new(Cell::new(0u64));
    let (from, to) = (1_000_000, 1_000_000 + us * 1000);
    for thread in 0..threads {
        let t = f.attach(NodeId::compute(thread as u16 % CNS)).unwrap();
        for coroutine in 0..coroutines {
            let (core, worker) = worker.get_or_insert_with(|| {
                let core = Core::new(t.clone(), 1 << 30);
                (core.clone(), Worker::new(core))
            });
            let slot = core.add_slot();
            let ep = Endpoint::new(core.clone(), t.clone(), slot);
            let done = done.clone();
            let mut rng = SplitMix64::seed_from_u64(u64::from(thread * 64 + coroutine) + 1);
            worker.spawn(slot, async move {
                ep.sleep(below(&mut rng, 500_000)).await;
                while ep.now() < to {
                    // An operation writes where it has read.
                    let entry =
                        GlobalAddr::new(NodeId::memory(0), 64 + below(&mut rng, 400_000) * 128);
                    for verb in rounds {
                        let (to, v) = match *verb {
                            To::Mn(v) => (entry, v),
                            To::Cn(v) => {
                                let node = NodeId::compute(below(&mut rng, 6) as u16);
                                (GlobalAddr::new(node, 64 + below(&mut rng, 8_000) * 128), v)
                            }
                        };
                        match v {
                            V::R(n) => drop(ep.read(to, n).await.unwrap()),
                            V::W(n) => {
                                let b = ep.buf(n).await.unwrap();
                                drop(ep.write(to, b).await.unwrap());
                            }
                            V::Cas => drop(ep.cas(to, 0, 0).await.unwrap()),
                        }
                    }
                    let now = ep.now();
                    if (from..to).contains(&now) {
                        done.set(done.get() + 1);
                    }
                }
            });
        }
    }
    let (_, mut worker) = worker.unwrap();
    worker.run(&mut Fifo).unwrap();
    done.get() as f64 / us as f64
}

/// The limits of one 100 Gb/s memory-side NIC in plain arithmetic: 12.3 bytes per ns of wire, 19.8,
/// 11.0 and 14.4 ns of pipeline.
#[test]
fn the_slowest_server_bounds_throughput() {
    use To::{Cn, Mn};
    use V::{Cas, R, W};
    let near = |name: &str, got: f64, due: f64| {
        assert!((got / due - 1.0).abs() < 0.02, "{name}: {got:.2} Mops where {due:.2} are due");
    };
    // Bound by the READ pipeline.
    near("search", mops(&[Mn(R(40))], 432, 4, 1000), 1000.0 / 19.8);
    near("table and entry", mops(&[Mn(R(56)), Mn(R(40))], 432, 4, 1000), 1000.0 / 39.6);
    // Bound by the pipeline, three kinds of verbs.
    let update = &[Cn(Cas), Cn(R(56)), Mn(R(40)), Mn(W(40)), Cn(W(8))];
    near("update", mops(update, 432, 4, 1000), 1000.0 / 30.8);
    let fptree = &[Mn(Cas), Mn(R(56)), Mn(R(40)), Mn(W(40)), Mn(W(8))];
    let due = 1000.0 / (14.4 + 2.0 * 19.8 + 2.0 * 11.0);
    near("all on the memory node", mops(fptree, 432, 4, 1000), due);
    // Lines that were never read: 22 ns each, except for those that were written before.
    let cold = mops(&[Mn(W(40))], 432, 4, 1000);
    assert!((1000.0 / 22.0..1000.0 / 19.0).contains(&cold), "cold writes: {cold:.2} Mops");
    // Bound by the wire from the memory node.
    near("leaves", mops(&[Mn(R(1360))], 432, 4, 1000), 12_300.0 / 1446.0);
    // Bound by the wire to it.
    near("leaf writes", mops(&[Mn(W(1360))], 432, 4, 1000), 12_300.0 / 1458.0);
    // Bound by latency: 2.2 us a round.
    let one = mops(&[Mn(R(8))], 1, 1, 4000);
    // Propagation both ways, completion, posting, resuming, one READ.
    near("one client", 1.0 / one, 1.7 + 0.4 + 0.1 + 0.25 + 0.036);
}

fn run<F: Future>(t: &Rc<dyn Transport>, body: impl FnOnce(Endpoint) -> F) -> F::Output {
    let ep = Endpoint::alone(t.clone(), 1 << 24);
    let work = body(ep.clone());
    ep.block_on(async { Ok(work.await) }).unwrap()
}

#[test]
fn verbs_take_effect_and_have_their_latency() {
    let f = fabric(&Profile::named("ideal").unwrap(), 1, 2);
    let t = f.attach(NodeId::compute(0)).unwrap();
    run(&t, |ep| async move {
        assert_eq!(ep.cas(at(64), 0, 7).await.unwrap(), 0);
        assert_eq!(ep.now(), 1000, "one round trip of the ideal profile");
        assert_eq!(ep.faa(at(64), 3).await.unwrap(), 7);
        // A chain is one round, a fence one more.
        let (was, seen) = ep.chain((cas(at(64), 10, 11), read(at(64), 8))).await.unwrap();
        assert_eq!((was, seen.word(0)), (10, 11));
        assert_eq!(ep.now(), 3000);
        let buf = ep.buf(8).await.unwrap();
        ep.chain((read(at(128), 8), fenced(write(at(128), buf)))).await.unwrap();
        assert_eq!(ep.now(), 5000);
        // A batch goes to all nodes at once.
        let other = GlobalAddr::new(NodeId::memory(1), 64);
        ep.batch((write_word(at(72), 1), write_word(other, 2), cas(at(80), 0, 5))).await.unwrap();
        assert_eq!(ep.now(), 6000);
        ep.sleep(500).await;
        assert_eq!(ep.now(), 6500);
    });
    assert_eq!(f.usage().nodes[0].atomics, 4);
}

#[test]
fn errors_are_values_here_too() {
    let f = fabric(&artifact(), 1, 1);
    let t = f.attach(NodeId::compute(0)).unwrap();
    run(&t, |ep| async move {
        fails(ep.read(at(1 << 40), 8).await, ErrorKind::Corrupt, "outside");
        let unknown = GlobalAddr::new(NodeId::memory(9), 64);
        fails(ep.read(unknown, 8).await, ErrorKind::Unreachable, "");
        fails(ep.cas(at(65), 0, 0).await, ErrorKind::InvalidArgument, "aligned");
        ep.read(at(64), 8).await.unwrap();
    });
    f.revoke(NodeId::memory(0), NodeId::compute(0), 1).unwrap();
    run(&t, |ep| async move { fails(ep.read(at(64), 8).await, ErrorKind::Revoked, "") });
}

/// A queue pair has 16 READs in flight at most: 64 of them take four rounds, 16 take one.
#[test]
fn reads_wait_for_the_window_of_their_queue_pair() {
    let f = fabric(&Profile::named("ideal").unwrap(), 1, 1);
    let t = f.attach(NodeId::compute(0)).unwrap();
    run(&t, |ep| async move {
        for (n, due) in [(16u64, 1000), (64, 4000), (65, 5000)] {
            let before = ep.now();
            let mut list = VerbVec::new();
            (0..n).for_each(|i| {
                list.read(at(64 + i * 64), 64);
            });
            ep.batch(list).await.unwrap();
            assert_eq!(ep.now() - before, due, "{n} READs");
        }
        // WRITEs have no such window.
        let before = ep.now();
        let mut list = VerbVec::new();
        (0..64u64).for_each(|i| {
            list.write_word(at(64 + i * 64), 1);
        });
        ep.batch(list).await.unwrap();
        assert_eq!(ep.now() - before, 1000);
    });
}

#[test]
fn atomics_on_one_word_are_served_one_after_another() {
    let f = fabric(&artifact(), 1, 1);
    let per_op = |spread: u64| {
        let t = f.attach(NodeId::compute(0)).unwrap();
        run(&t, |ep| async move {
            let before = ep.now();
            for _ in 0..20 {
                let mut list = VerbVec::new();
                (0..16u64).for_each(|i| {
                    list.cas(at(64 + i * spread), 0, 0);
                });
                ep.batch(list).await.unwrap();
            }
            (ep.now() - before) / 320
        })
    };
    let (same, apart) = (per_op(0), per_op(64));
    assert!((460..720).contains(&same) && apart < 300, "{same} ns on one word, {apart} on many");
}

/// No slot can ever be woken: a report, not a hang.
#[test]
fn a_stall_is_reported_with_its_reason() {
    let f = fabric(&artifact(), 1, 1);
    let t = f.attach(NodeId::compute(0)).unwrap();
    let ep = Endpoint::alone(t, 1 << 20);
    let mut worker = Worker::new(ep.core().clone());
    worker.spawn(ep.slot(), std::future::pending());
    let stalled = worker.run(&mut Fifo).unwrap_err();
    assert!(stalled.to_string().starts_with("no client can make progress"), "{stalled}");
}

/// A dead node may leave verbs in flight: a later reader of its memory waits as usual.
#[test]
fn time_that_stands_still_passes_beside_verbs_in_flight() {
    let f = fabric(&artifact(), 1, 2);
    let client = |cn| Endpoint::alone(f.attach(NodeId::compute(cn)).unwrap(), 1 << 20);
    let ep = client(0);
    let posted = ep.block_on(async {
        let mut read = std::pin::pin!(ep.read(at(64), 8));
        Ok(std::future::poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending())).await)
    });
    assert!(posted.unwrap(), "a read takes time");
    let other = client(1);
    let pause = || {
        other.block_on(async {
            other.sleep(1000).await;
            Ok(())
        })
    };
    assert!(pause().unwrap_err().to_string().starts_with("no client can make progress"));
    f.set_timed(false);
    let before = other.now();
    pause().unwrap();
    assert_eq!(other.now() - before, 1000);
}

fn hash_of(seed: u64) -> u64 {
    let f = fabric(&artifact(), seed, 1);
    let t = f.attach(NodeId::compute(1)).unwrap();
    run(&t, |ep| async move {
        let mut rng = SplitMix64::seed_from_u64(seed);
        for _ in 0..200 {
            ep.faa(at(64 + below(&mut rng, 10) * 8), 1).await.unwrap();
        }
    });
    f.trace_hash()
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    assert_eq!(hash_of(5), hash_of(5));
    assert_ne!(hash_of(5), hash_of(6));
}

#[test]
fn time_stands_still_until_it_is_let_go() {
    let f = fabric(&artifact(), 1, 1);
    f.set_timed(false);
    let t = f.attach(NodeId::compute(0)).unwrap();
    run(&t, |ep| async move {
        ep.write_word(at(64), 9).await.unwrap();
        assert_eq!(ep.now(), 0);
    });
    f.set_timed(true);
    run(&t, |ep| async move {
        assert_eq!(ep.faa(at(64), 0).await.unwrap(), 9);
        assert!(ep.now() > 2_000);
    });
}

/// A doorbell is held longer the more threads share it; threads that are gone share nothing.
#[test]
fn doorbells_are_shared_by_the_threads_that_are_there() {
    let mut p = artifact();
    p.set("doorbell.slots", "1").unwrap();
    let f = fabric(&p, 1, 1);
    let took = |others: usize| {
        let _others: Vec<_> = (0..others).map(|_| f.attach(NodeId::compute(0)).unwrap()).collect();
        let t = f.attach(NodeId::compute(0)).unwrap();
        run(&t, |ep| async move {
            let before = ep.now();
            ep.read(at(64), 8).await.unwrap();
            ep.now() - before
        })
    };
    let alone = took(0);
    assert!((took(3) - alone).abs_diff(190 + 4 * 110) <= 1);
    assert!(took(0).abs_diff(alone) <= 1);
}
