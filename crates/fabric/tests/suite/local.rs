//! The contract, verb by verb, on the in-process fabric.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::{self, CN, MN, at, endpoint, fails, on};
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::verb::{cas, faa, read, write, write_word};
use dmtree_fabric::{
    Core, DetachedHook, Endpoint, ErrorKind, Fabric, GlobalAddr, NodeId, OpKind, OpOutcome, Result,
    SeededRandom, Service, ServiceId, Worker,
};

fn fabric(knobs: Knobs) -> LocalFabric {
    let f = LocalFabric::with_knobs(knobs);
    f.add_node(MN, 1 << 16).expect("new");
    f.add_node(NodeId::memory(1), 1 << 16).expect("new");
    f.add_node(CN, 1 << 12).expect("new");
    f.add_node(NodeId::compute(1), 1 << 12).expect("new");
    f
}

#[test]
fn verbs_chains_and_batches() {
    for suspend_one_in in [0, 1, 2] {
        let f = fabric(Knobs { suspend_one_in, seed: 5 });
        let ep = &endpoint(&f, CN);
        on(ep, common::verbs_chains_and_batches(ep)).expect("all verbs work");
    }
}

/// A list that executes on the posting thread counts as a posted one does, verb by verb.
#[test]
fn direct_lists_count_as_posted_ones() {
    let counted = |suspend_one_in| {
        let f = fabric(Knobs { suspend_one_in, seed: 5 });
        let ep = &endpoint(&f, CN);
        assert_eq!(ep.is_direct(), suspend_one_in == 0);
        let scope = ep.begin(OpKind::Get);
        on(ep, common::verbs_chains_and_batches(ep)).expect("all verbs work");
        let buf = on(ep, ep.buf(8)).expect("room");
        ep.detach((write(at(64), buf), cas(at(72), 0, 0)), None);
        on(ep, ep.drain()).expect("works");
        scope.end(OpOutcome::Hit);
        ep.snapshot()
    };
    assert_eq!(counted(0), counted(1));
}

/// A revocation does not wait for a list that a panic has ended.
#[test]
fn a_validator_that_panics_ends_its_list() {
    let f = fabric(Knobs::default());
    let ep = &endpoint(&f, CN);
    let mut word = [0; 8];
    let panics = || {
        let mut op = ep.begin_direct(OpKind::Get).expect("direct");
        op.list_at(MN, |verbs| {
            verbs.read(at(64), &mut word)?;
            panic!("a validator")
        })
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
    assert!(caught.map(|done: Result<(), _>| done.is_ok()).is_err());
    let mut op = ep.begin_direct(OpKind::Get).expect("direct");
    op.read(at(64), &mut word).expect("works");
    op.end(OpOutcome::Hit);
    drop(op);
    f.revoke(MN, CN, 1).expect("returns");
}

/// An operation that executes on the calling thread has the costs of a posted one, whether alike
/// ones follow each other or not, and also where it goes on as a posted one.
#[test]
fn direct_operations_count_as_posted_ones() {
    let lock = GlobalAddr::new(CN, 64);
    let f = fabric(Knobs::default());
    let direct = &endpoint(&f, CN);
    let mut entry = [0; 16];
    for (n, goes_on) in [(0, false), (1, false), (2, false), (3, true), (4, false)] {
        let mut op = direct.begin_direct(OpKind::Put).expect("direct");
        assert!(!op.has_begun());
        op.list();
        assert_eq!(op.cas(lock, 0, 7).expect("works"), 0);
        op.read(lock.plus(8), &mut entry).expect("works");
        op.list();
        op.write(at(128), &[n; 24]).expect("works");
        if goes_on {
            let scope = op.go_on().expect("no part of another");
            on(direct, direct.write_word(at(256), 1)).expect("works");
            direct.detach(cas(lock, 7, 0), None);
            scope.end(OpOutcome::Retried);
            continue;
        }
        op.list();
        op.write_word(at(256), 1).expect("works");
        assert!(op.detached_list(|op| op.cas(lock, 7, 0)));
        op.end(OpOutcome::Hit);
    }
    let f = fabric(Knobs { suspend_one_in: 1, seed: 5 });
    let posted = &endpoint(&f, CN);
    assert!(posted.begin_direct(OpKind::Put).is_none(), "posted");
    for n in 0..5 {
        let scope = posted.begin(OpKind::Put);
        on(posted, async {
            posted.chain((cas(lock, 0, 7), read(lock.plus(8), 16))).await?;
            let mut buf = posted.buf(24).await?;
            buf.fill(n);
            posted.write(at(128), buf).await?;
            posted.write_word(at(256), 1).await?;
            posted.detach(cas(lock, 7, 0), None);
            posted.drain().await
        })
        .expect("works");
        scope.end(if n == 3 { OpOutcome::Retried } else { OpOutcome::Hit });
    }
    let seen = direct.snapshot();
    assert_eq!((&seen, seen.cell(OpKind::Put, OpOutcome::Hit).ops), (&posted.snapshot(), 4));
    direct.reset_counters();
    let scope = direct.begin(OpKind::WriteMany);
    for ends in [true, false] {
        let mut part = direct.begin_direct(OpKind::Put).expect("direct");
        part.list();
        part.write_word(at(256), 1).expect("works");
        match ends {
            true => part.end(OpOutcome::Hit),
            false => assert!(part.go_on().is_none(), "it has no scope of its own"),
        }
    }
    scope.end(OpOutcome::Other);
    let all = direct.snapshot();
    let several = all.cell(OpKind::WriteMany, OpOutcome::Other);
    assert_eq!((all.ops.len(), several.counts.mn.write, several.counts.round_trips), (1, 2, 2));
}

/// A verb of an operation is refused as a posted one, and the operation counts as failed.
#[test]
fn a_direct_operation_is_refused_after_a_revocation() {
    let f = fabric(Knobs::default());
    let ep = &endpoint(&f, CN);
    let mut op = ep.begin_direct(OpKind::Get).expect("direct");
    let mut word = [0; 8];
    op.list();
    op.read(at(64), &mut word).expect("works");
    fails(op.read(at(1 << 16), &mut word), ErrorKind::Corrupt, "outside");
    fails(op.cas(at(65), 0, 1), ErrorKind::InvalidArgument, "aligned");
    drop(op);
    f.revoke(MN, CN, 1).expect("waits for no operation");
    let mut op = ep.begin_direct(OpKind::Get).expect("direct");
    op.list();
    assert_eq!(op.read(at(64), &mut word).expect_err("refused").kind(), ErrorKind::Revoked);
    let list = op.list_at(MN, |verbs| verbs.write(at(64), &[1; 8]));
    assert_eq!(list.expect_err("refused").kind(), ErrorKind::Revoked);
    assert!(!op.detached_list(|op| op.write_word(at(64), 1)));
    drop(op);
    assert_eq!(ep.snapshot().cell(OpKind::Get, OpOutcome::Failed).ops, 2);
    assert_eq!(on(ep, ep.drain()).expect_err("of the list").kind(), ErrorKind::Revoked);
}

#[test]
fn memory_nodes_may_have_on_chip_memory() {
    let f = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, 256);
    f.add_node(MN, 1 << 12).expect("new");
    f.add_node(CN, 1 << 12).expect("new");
    assert_eq!(f.caps().on_chip_bytes, 256);
    let ep = &endpoint(&f, CN);
    let chip = |offset| GlobalAddr::on_chip(MN, offset);
    on(ep, async {
        let mut buf = ep.buf(16).await?;
        buf.fill(7);
        let (_, (), was) =
            ep.chain((write(at(64), buf), write_word(chip(0), 1), cas(chip(0), 1, 2))).await?;
        assert_eq!(was, 1, "one chain reaches both memories of a node");
        assert_eq!(ep.faa(chip(248), 1).await?, 0);
        assert_eq!(ep.faa(at(248), 0).await?, 0, "another memory");
        Ok(())
    })
    .expect("works");
    fails(on(ep, ep.faa(chip(256), 1)), ErrorKind::Corrupt, "outside");
    fails(on(ep, ep.faa(GlobalAddr::on_chip(CN, 0), 1)), ErrorKind::Corrupt, "");
}

#[test]
fn batches_of_any_length() {
    let f = fabric(Knobs { suspend_one_in: 2, seed: 1 });
    let ep = &endpoint(&f, CN);
    let words = Vec::from_iter((0..20).map(|i| at(64 + i * 64)));
    on(ep, common::long_batches(ep, &words, 3)).expect("batches work");
}

#[test]
fn errors_are_values() {
    let f = fabric(Knobs::default());
    let ep = &endpoint(&f, CN);
    common::bad_addresses(&f, ep, 1 << 20);
    common::bad_nodes(ep, |node, bytes| f.add_node(node, bytes));
}

#[test]
fn revocation_ends_a_nodes_access_and_a_new_incarnation_has_it_again() {
    let f = fabric(Knobs::default());
    common::revocation(&f, |node, bytes| f.add_node(node, bytes));
    assert_eq!(f.incarnation(CN), Some(2));
}

/// A revocation waits for verbs that are being executed: afterwards the memory does not change any
/// more.
#[test]
fn no_verb_executes_after_a_revocation() {
    for _ in 0..if cfg!(miri) { 1 } else { 20 } {
        let f = fabric(Knobs::default());
        std::thread::scope(|s| {
            let writer = f.clone();
            s.spawn(move || {
                let ep = endpoint(&writer, CN);
                while on(&ep, ep.faa(at(64), 1)).is_ok() {}
            });
            while on_word(&f, at(64)) < 10 {
                std::thread::yield_now();
            }
            f.revoke(MN, CN, 1).expect("known nodes");
            let seen = on_word(&f, at(64));
            for _ in 0..100 {
                assert_eq!(on_word(&f, at(64)), seen);
            }
        });
    }
}

fn on_word(f: &LocalFabric, at: GlobalAddr) -> u64 {
    let ep = endpoint(f, NodeId::compute(1));
    on(&ep, ep.read(at, 8)).expect("read").word(0)
}

/// A dropped future leaves its buffers to the verbs until they have completed; they go back to the
/// slab then.
#[test]
fn a_dropped_future_keeps_its_buffers_until_completion() {
    let f = fabric(Knobs { suspend_one_in: 1, seed: 3 });
    let ep = &endpoint(&f, CN);
    on(ep, async {
        for i in 0..50 {
            let mut buf = ep.buf(256).await?;
            buf.fill(i);
            let mut post = ep.write(at(256), buf);
            let waker = std::task::Waker::noop();
            let polled =
                std::pin::Pin::new(&mut post).poll(&mut std::task::Context::from_waker(waker));
            assert!(polled.is_pending(), "suspended");
            drop(post);
            assert!(ep.core().slab().live_bytes() >= 256, "still in flight");
            ep.sleep(1).await;
        }
        ep.sleep(1).await;
        let seen = ep.read(at(256), 8).await?.word(0);
        assert_eq!(seen, u64::from_le_bytes([49; 8]), "dropped, but executed");
        Ok(())
    })
    .expect("runs");
    assert_eq!(ep.core().slab().live_bytes(), 0);
}

struct Count(Cell<u64>);
impl DetachedHook for Count {
    fn finished(&self, arg: u64) {
        self.0.set(self.0.get() + arg);
    }
}

#[test]
fn detached_lists_are_finished_and_counted_apart() {
    let f = fabric(Knobs { suspend_one_in: 2, seed: 9 });
    let transport = f.attach(CN).expect("a member");
    let core = Core::new(transport.clone(), 0);
    let hook = Rc::new(Count(Cell::new(0)));
    let mut worker = Worker::new(core.clone());
    for i in 0..4u64 {
        let slot = core.add_slot();
        let ep = Endpoint::new(core.clone(), transport.clone(), slot);
        let hook = hook.clone();
        worker.spawn(slot, async move {
            for n in 0..25 {
                let scope = ep.begin(OpKind::Put);
                ep.cas(at(64 + i * 64), n, n).await.expect("cas");
                ep.detach(cas(at(64 + i * 64), n, n + 1), Some((hook.clone(), 1)));
                assert_eq!((scope.counts().round_trips, scope.counts().detached), (1, 1));
                scope.end(OpOutcome::Hit);
                ep.drain().await.expect("finished");
            }
            let t = ep.snapshot().total(&[OpKind::Put]);
            assert_eq!((t.ops, t.counts.round_trips, t.counts.mn.atomic), (25, 25, 50));
        });
    }
    worker.run(&mut SeededRandom::new(4)).expect("all end");
    assert_eq!(hook.0.get(), 100);
    for i in 0..4 {
        assert_eq!(on_word(&f, at(64 + i * 64)), 25);
    }
}

/// Dropping an executor loses no unlock.
#[test]
fn detached_lists_outlive_their_caller() {
    let f = fabric(Knobs { suspend_one_in: 1, seed: 2 });
    for i in 1..=20 {
        let ep = endpoint(&f, CN);
        ep.detach(faa(at(64), 1), None);
        drop(ep);
        assert_eq!(on_word(&f, at(64)), i);
    }
}

struct Doubler;
impl Service for Doubler {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let n = ep.faa(GlobalAddr::new(ep.node(), 512), 1).await?;
        let nested = ep.rpc(from, ServiceId(1), b"", &mut Vec::new()).await;
        assert_eq!(nested.expect_err("refused").kind(), ErrorKind::Unsupported);
        let mut reply = [request, request].concat();
        reply.push(n as u8);
        Ok(reply)
    }
}

#[test]
fn remote_calls() {
    let f = fabric(Knobs::default());
    let ep = &endpoint(&f, CN);
    let mut reply = Vec::new();
    let early = on(ep, ep.rpc(MN, ServiceId(1), b"x", &mut reply));
    fails(early, ErrorKind::Unsupported, "");
    f.serve(MN, ServiceId(1), Arc::new(Doubler)).expect("a member");
    for n in 0..3 {
        on(ep, ep.rpc(MN, ServiceId(1), b"ab", &mut reply)).expect("answers");
        assert_eq!(reply, [b"abab".as_slice(), &[n]].concat());
    }
    let large = vec![0; (64 << 10) + 1];
    assert!(on(ep, ep.rpc(MN, ServiceId(1), &large, &mut reply)).is_err());
}

#[test]
fn deadlines_name_the_wait_reason() {
    let f = fabric(Knobs::default());
    let ep = &endpoint(&f, CN);
    ep.set_timeout(2_000_000);
    let why = "a lock that never comes free";
    let waited = on(ep, async {
        let mut backoff = ep.backoff(why, at(64));
        loop {
            backoff.step().await?;
        }
        #[allow(unreachable_code, reason = "gives the block its type")]
        Ok(())
    });
    fails(waited, ErrorKind::TimedOut, why);
}

/// However often a client waits, it leaves one deadline timer behind at most, and its deadline
/// still ends a wait. Its waits are counted, with their time and object.
#[test]
fn waits_leave_no_timers_behind_and_end_at_the_deadline() {
    let f = fabric(Knobs::default());
    let transport = f.attach(CN).expect("a member");
    let core = Core::new(transport.clone(), 0);
    let fifo_mutex = dmtree_fabric::wait::FifoMutex::new();
    let why = dmtree_fabric::WaitReason { what: "a turn", at: 7 };
    let waits = std::cell::RefCell::new(dmtree_fabric::Waits::default());
    let mut worker = Worker::new(core.clone());
    for number in 0..3 {
        let slot = core.add_slot();
        let ep = Endpoint::new(core.clone(), transport.clone(), slot);
        let (fifo_mutex, waits) = (&fifo_mutex, &waits);
        worker.spawn(slot, async move {
            for _ in 0..2_000 {
                let scope = ep.begin(OpKind::Put);
                fifo_mutex.acquire(&ep, why).await.expect("the turn comes");
                ep.yield_now().await;
                fifo_mutex.release();
                scope.end(OpOutcome::Hit);
            }
            if number == 0 {
                fifo_mutex.acquire(&ep, why).await.expect("the turn comes");
                ep.set_timeout(3_000_000);
                let scope = ep.begin(OpKind::Put);
                let e = fifo_mutex.acquire(&ep, why).await.expect_err("no release comes");
                assert_eq!(e.kind(), ErrorKind::TimedOut);
                scope.end(OpOutcome::Failed);
                fifo_mutex.release();
            }
            waits.borrow_mut().add(&ep.snapshot().waits);
        });
    }
    worker.run(&mut SeededRandom::new(1)).expect("all end");
    assert!(core.timers() <= 3 * 2, "{} timers are left", core.timers());
    let waits = waits.borrow();
    let counted: Vec<_> = waits.by_reason().collect();
    let [("a turn", count)] = counted[..] else { panic!("{counted:?}") };
    assert!(
        count.waits >= 2_000 && count.ns >= 3_000_000,
        "the last one alone took 3 ms: {count:?}"
    );
    assert_eq!(waits.most_awaited(), [(why, count.waits)]);
}
