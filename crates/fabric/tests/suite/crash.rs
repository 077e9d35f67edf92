//! Crashes on the adversarial fabric, verb by verb.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::common::{MN, at, fails};
use dmtree_fabric::sim::{
    CrashPoint, FabricFaults, How, LONGEST_ZOMBIE_NS, Place, RETRANSMISSION_NS, SimFabric,
};
use dmtree_fabric::verb::{faa, write, write_word};
use dmtree_fabric::{
    Capabilities, Core, Endpoint, ErrorKind, Fabric, Fifo, GlobalAddr, NodeId, Result, Service,
    ServiceId, Worker,
};

const A: NodeId = NodeId::compute(0);
const B: NodeId = NodeId::compute(1);
const SERVICE: ServiceId = ServiceId(9);
const WORDS: u64 = 32;

/// Counts its calls.
struct Count;
impl Service for Count {
    async fn answer(&self, ep: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        let was = ep.faa(GlobalAddr::new(ep.node(), 64), 1).await?;
        Ok(was.to_le_bytes().to_vec())
    }
}

/// Waits a microsecond, and answers with the times before and after.
struct Clock;
impl Service for Clock {
    async fn answer(&self, ep: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        let before = ep.now();
        ep.sleep(1000).await;
        Ok([before, ep.now()].map(u64::to_le_bytes).concat())
    }
}

struct Bench {
    fabric: SimFabric,
    core: Rc<Core>,
}

impl Bench {
    fn new(seed: u64, grants: Capabilities) -> Self {
        Self::with(FabricFaults::of_seed(seed), seed, grants)
    }

    fn with(fabric_faults: FabricFaults, seed: u64, grants: Capabilities) -> Self {
        let fabric = SimFabric::adversarial(fabric_faults, grants, seed).unwrap();
        fabric.add_node(MN, 1 << 20).unwrap();
        fabric.add_node(NodeId::memory(1), 1 << 20).unwrap();
        for node in [A, B] {
            fabric.add_node(node, 1 << 16).unwrap();
            fabric.serve(node, SERVICE, Arc::new(Count)).unwrap();
        }
        fabric.set_timed(true);
        let core = Core::new(fabric.attach(B).unwrap(), 1 << 22);
        Self { fabric, core }
    }

    fn client(&self, node: NodeId) -> Endpoint {
        let t = self.fabric.attach(node).unwrap();
        Endpoint::new(self.core.clone(), t, self.core.add_slot())
    }

    /// A client of A works until A crashes; B looks on, and ends the run.
    fn run<F: Future<Output = ()>>(
        &self,
        a: impl FnOnce(Endpoint) -> F,
        watch: &Endpoint,
        b: impl Future<Output = ()>,
    ) {
        let ep = self.client(A);
        let mut worker = Worker::new(self.core.clone());
        let (own, slot) = (ep.slot(), watch.slot());
        let over = Rc::new(Cell::new(false));
        let work = a(ep.clone());
        let seen = over.clone();
        worker.spawn(own, async move {
            // Drops the work of a dead node at the end of the run, as a test harness does.
            let mut work = std::pin::pin!(work);
            std::future::poll_fn(|cx| match seen.get() {
                true => std::task::Poll::Ready(()),
                false => work.as_mut().poll(cx),
            })
            .await;
        });
        let core = self.core.clone();
        worker.spawn(slot, async move {
            b.await;
            over.set(true);
            core.wake(own);
        });
        worker.run(&mut Fifo).unwrap();
    }

    fn peek(&self, offset: u64, words: u64) -> Vec<u64> {
        self.fabric.set_timed(false);
        let ep = self.client(B);
        let read = async {
            let s = ep.read(at(offset), words as u32 * 8).await?;
            Ok((0..words as usize).map(|i| s.word(i)).collect())
        };
        let out = ep.block_on(read).unwrap();
        self.fabric.set_timed(true);
        out
    }
}

/// An object of ones.
async fn object(ep: &Endpoint) -> dmtree_fabric::Buf {
    let mut buf = ep.buf(WORDS as u32 * 8).await.unwrap();
    buf.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&1u64.to_le_bytes()));
    buf
}

/// How many words of both objects have landed.
async fn landed(ep: &Endpoint) -> u64 {
    let mut sum = 0;
    for offset in [4096, 8192] {
        let s = ep.read(at(offset), WORDS as u32 * 8).await.unwrap();
        sum += (0..WORDS as usize).map(|i| s.word(i)).sum::<u64>();
    }
    sum
}

/// A chain of three WRITEs and an atomic, and where it is cut: the words that landed.
fn cut(seed: u64, point: CrashPoint, grants: Capabilities) -> Vec<u64> {
    let bench = Bench::new(seed, grants);
    bench.fabric.crash_at(A, point, How::Machine).unwrap();
    let watch = bench.client(B);
    let fabric = bench.fabric.clone();
    bench.run(
        |ep| async move {
            let (first, second) = (object(&ep).await, object(&ep).await);
            let list = (write(at(4096), first), write(at(8192), second), faa(at(64), 1));
            let _ = ep.chain(list).await;
            ep.write_word(at(128), 1).await.unwrap();
            unreachable!("A crashes before");
        },
        &watch,
        async {
            watch.sleep(LONGEST_ZOMBIE_NS + 50_000_000).await;
            assert!(fabric.is_down(A));
            assert_eq!(fabric.crashes(), 1);
        },
    );
    [(4096, WORDS), (8192, WORDS), (64, 1), (128, 1)].map(|(at, n)| bench.peek(at, n)).concat()
}

/// Before: nothing of the verb. After: all of it, and nothing behind it. Inside: any part, with
/// everything before it.
#[test]
fn a_node_crashes_at_a_verb() {
    let n = WORDS as usize;
    for seed in 0..40 {
        for verb in 1..=4 {
            for (place, landed) in [(Place::Before, verb - 1), (Place::After, verb)] {
                let got = cut(seed, CrashPoint { verb, place }, Capabilities::NONE);
                let due = |i| u64::from(landed >= i);
                let due: Vec<u64> =
                    [vec![due(1); n], vec![due(2); n], vec![due(3), due(4)]].concat();
                // Verb four is posted after three others have completed.
                assert_eq!(got, due, "seed {seed} verb {verb} {place:?}");
            }
        }
    }
    let mut parts = BTreeSet::new();
    for seed in 0..60 {
        let got = cut(seed, CrashPoint { verb: 2, place: Place::Inside }, Capabilities::NONE);
        assert!(
            got[..n].iter().all(|w| *w == 1),
            "verbs that the chain orders before it have landed"
        );
        let landed: u64 = got[n..2 * n].iter().sum();
        assert!(landed == WORDS || got[2 * n] == 0, "an atomic overtook half a WRITE");
        parts.insert(landed);
    }
    assert!(parts.contains(&0) && parts.contains(&WORDS) && parts.len() > 5, "{parts:?}");
}

#[test]
fn whole_writes_are_whole() {
    let grants = Capabilities { whole_write_bytes: WORDS as u32 * 8, ..Capabilities::NONE };
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let got = cut(seed, CrashPoint { verb: 2, place: Place::Inside }, grants);
        let landed: u64 = got[WORDS as usize..2 * WORDS as usize].iter().sum();
        assert!(landed == 0 || landed == WORDS, "seed {seed}: {landed} words");
        seen.insert(landed);
    }
    assert_eq!(seen.len(), 2);
}

/// The pieces of independent WRITEs in flight at a crash that land, and when the last one does:
/// after the crash, ns.
fn in_flight(seed: u64, revoke_after: Option<u64>, grants: Capabilities) -> (Vec<u64>, u64) {
    let bench = Bench::new(seed, grants);
    let watch = bench.client(B);
    let fabric = bench.fabric.clone();
    let latest = Rc::new(Cell::new(0));
    let seen = latest.clone();
    bench.run(
        |ep| async move {
            let (a, b) = (object(&ep).await, object(&ep).await);
            let _ = ep.batch((write(at(4096), a), write(at(8192), b), faa(at(64), 1))).await;
            std::future::pending::<()>().await;
        },
        &watch,
        async {
            watch.sleep(1 + seed * 97 % 5_000).await;
            fabric.crash(A, How::Machine).unwrap();
            let crashed = watch.now();
            let mut sum = 0;
            let until = revoke_after.unwrap_or(LONGEST_ZOMBIE_NS + 60_000_000);
            let mut revoked = None;
            while watch.now() < crashed + until + 60_000_000 {
                let now = landed(&watch).await;
                if now != sum {
                    sum = now;
                    seen.set(watch.now() - crashed);
                    assert!(
                        revoked.is_none_or(|at| at == sum),
                        "seed {seed}: a verb after the revocation"
                    );
                }
                if revoke_after.is_some() && revoked.is_none() && watch.now() > crashed + until {
                    fabric.revoke(MN, A, 1).unwrap();
                    sum = landed(&watch).await;
                    revoked = Some(sum);
                }
                watch.sleep(200_000).await;
            }
        },
    );
    ([bench.peek(4096, WORDS), bench.peek(8192, WORDS)].concat(), latest.get())
}

#[test]
fn the_seed_decides_the_fate_of_verbs_in_flight() {
    let (mut none, mut whole, mut part, mut late) = (0, 0, 0, 0);
    for seed in 0..80 {
        let (words, latest) = in_flight(seed, None, Capabilities::NONE);
        match words.iter().sum::<u64>() {
            0 => none += 1,
            n if n == 2 * WORDS => whole += 1,
            _ => part += 1,
        }
        late += u32::from(latest > 5_000_000);
        assert!(latest <= LONGEST_ZOMBIE_NS + 30_000_000, "seed {seed}: {latest} ns after");
    }
    assert!(none > 5 && whole > 5 && part > 5 && late > 3, "{none} {whole} {part} {late}");
}

/// For all verbs in flight: none executes at a host after a revocation has returned there, and a
/// revocation tears no WRITE that is granted to be whole.
#[test]
fn nothing_executes_after_a_revocation() {
    let grants = Capabilities { whole_write_bytes: WORDS as u32 * 8, ..Capabilities::NONE };
    for seed in 0..60 {
        in_flight(seed, Some(seed * 20_011 % 3_000_000), Capabilities::NONE);
        let (words, _) = in_flight(seed, Some(seed * 20_011 % 3_000_000), grants);
        for part in words.chunks(WORDS as usize) {
            assert!(part.iter().all(|w| *w == part[0]), "seed {seed}: a whole WRITE was torn");
        }
    }
}

/// A node that is down, that hangs, and that has come back, as others see it.
#[test]
fn a_crashed_node_as_a_target() {
    for (seed, how) in [(1, How::Process), (2, How::Machine), (3, How::Hung)] {
        let bench = Bench::with(FabricFaults::NONE, seed, Capabilities::NONE);
        let (watch, fabric) = (bench.client(B), bench.fabric.clone());
        bench.run(|_| std::future::pending::<()>(), &watch, async {
            let cell = GlobalAddr::new(A, 128);
            let mut reply = Vec::new();
            assert_eq!(watch.faa(cell, 1).await.unwrap(), 0);
            watch.rpc(A, SERVICE, &[], &mut reply).await.unwrap();
            fabric.crash(A, how).unwrap();
            let began = watch.now();
            if how == How::Hung {
                assert_eq!(watch.faa(cell, 1).await.unwrap(), 1, "its NIC serves");
                watch.set_timeout(3_000_000);
                watch.renew_deadline();
                fails(watch.rpc(A, SERVICE, &[], &mut reply).await, ErrorKind::TimedOut, "");
                assert!(watch.now() < began + 4_000_000);
            } else {
                fails(watch.faa(cell, 1).await, ErrorKind::Unreachable, "cn0");
                let took = watch.now() - began;
                assert!((RETRANSMISSION_NS..2 * RETRANSMISSION_NS).contains(&took), "{took}");
                fails(watch.rpc(A, SERVICE, &[], &mut reply).await, ErrorKind::Unreachable, "");
            }
            assert!(fabric.attach(A).is_err());
            fabric.restart(A).unwrap();
            assert_eq!((fabric.incarnation(A), fabric.is_down(A)), (Some(2), false));
            fails(watch.faa(cell, 1).await, ErrorKind::Unreachable, "restarted");
            fabric.connect(B, A, 2);
            assert_eq!(watch.faa(cell, 1).await.unwrap(), 0, "a zeroed region");
            assert!(fabric.restart(A).is_err());
        });
    }
}

/// Old clients of a node that has restarted stay dead; new ones work; a revocation of the first
/// incarnation does not affect the second.
#[test]
fn a_restarted_node_is_another_one() {
    let bench = Bench::with(FabricFaults::NONE, 5, Capabilities::NONE);
    let (watch, fabric) = (bench.client(B), bench.fabric.clone());
    let posted = Rc::new(Cell::new(0));
    let seen = posted.clone();
    bench.run(
        |ep| async move {
            loop {
                ep.sleep(1_000).await;
                seen.set(seen.get() + 1);
                // A detached unlock, and an awaited verb.
                ep.detach((write_word(at(256), seen.get()), faa(at(264), 1)), None);
                ep.faa(at(64), 1).await.unwrap();
            }
        },
        &watch,
        async {
            watch.sleep(100_000).await;
            fabric.crash(A, How::Process).unwrap();
            let old = fabric.issued(A);
            assert!(old > 10);
            fabric.restart(A).unwrap();
            watch.sleep(2 * LONGEST_ZOMBIE_NS).await;
            let sum = watch.faa(at(64), 0).await.unwrap();
            let at_crash = posted.get();
            watch.sleep(1_000_000).await;
            assert_eq!(watch.faa(at(64), 0).await.unwrap(), sum);
            assert!(posted.get() <= at_crash + 1);
            fabric.revoke(MN, A, 1).unwrap();
        },
    );
    let young = bench.client(A);
    let before = bench.peek(64, 1)[0];
    young.block_on(async { young.faa(at(64), 5).await }).unwrap();
    assert_eq!(bench.peek(64, 1), [before + 5]);
    assert_eq!(bench.core.detached_in_flight(), 0, "lists of dead clients are drained");
}

#[test]
fn a_lost_memory_node_is_named_within_a_bound() {
    for seed in 0..20 {
        let bench = Bench::new(seed, Capabilities::NONE);
        let (watch, fabric) = (bench.client(B), bench.fabric.clone());
        bench.run(|_| std::future::pending::<()>(), &watch, async {
            watch.write_word(at(64), 3).await.unwrap();
            fabric.crash(MN, How::Machine).unwrap();
            let began = watch.now();
            let other = GlobalAddr::new(NodeId::memory(1), 64);
            let both = watch.batch((write_word(other, 1), write_word(at(64), 1))).await;
            fails(both, ErrorKind::Unreachable, "mn0");
            assert!(watch.now() < began + 30_000_000);
            watch.chain((write_word(other, 2), faa(other, 1))).await.unwrap();
        });
    }
}

/// Regression: handlers of remote calls read the real clock of the process, so that a run with
/// leases or held windows was no function of its seed.
#[test]
fn a_service_reads_virtual_time() {
    let bench = Bench::with(FabricFaults::NONE, 1, Capabilities::NONE);
    bench.fabric.serve(A, SERVICE, Arc::new(Clock)).unwrap();
    let ep = bench.client(B);
    let times = async {
        ep.sleep(5_000_000_000).await;
        let (from, mut reply) = (ep.now(), Vec::new());
        ep.rpc(A, SERVICE, &[], &mut reply).await?;
        let word = |i: usize| u64::from_le_bytes(reply[8 * i..8 * i + 8].try_into().unwrap());
        Ok((from, word(0), word(1), ep.now()))
    };
    let (from, before, after, to) = ep.block_on(times).unwrap();
    assert!(from <= before && before <= to, "{before} is not in {from}..={to}");
    assert_eq!(after, before + 1000);
}

/// Verbs of the former incarnation may execute for long. No client of the new one waits for them.
#[test]
fn a_slot_is_quiet_in_a_new_incarnation() {
    let bench = Bench::new(3, Capabilities::NONE);
    let ep = bench.client(A);
    let drop_a_read = |ep: &Endpoint| {
        let mut read = Box::pin(ep.read(at(4096), 512));
        let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    };
    drop_a_read(&ep);
    ep.when_quiet(|| panic!("the client is gone"));
    bench.fabric.crash(A, How::Machine).unwrap();
    bench.fabric.restart(A).unwrap();
    bench.core.renew_slot(ep.slot());
    let again = Endpoint::new(bench.core.clone(), bench.fabric.attach(A).unwrap(), ep.slot());
    assert!(again.is_quiet());
    drop_a_read(&again);
    assert!(!again.is_quiet(), "its own verb counts");
    let watch = bench.client(B);
    let later = async {
        watch.sleep(2 * LONGEST_ZOMBIE_NS).await;
        Ok(())
    };
    watch.block_on(later).unwrap();
    assert!(again.is_quiet());
}
