//! Calls to services that wait, in virtual time: the reply of each is held back until its handler
//! has ended.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::common::fabrics::{CN1, LOSSY, adversarial, sim};
use crate::common::{CN, MN};
use dmtree_fabric::sim::{How, SimFabric};
use dmtree_fabric::{
    Core, Effect, Endpoint, Error, ErrorKind, Fabric, Fifo, NodeId, Result, Service, ServiceId,
    Stage, Worker,
};

const SERVICE: ServiceId = ServiceId(9);
const US: u64 = 1_000;

/// Waits for as many microseconds as the request says, and notes what it begins and ends.
#[derive(Default)]
struct Slow(Mutex<Vec<(u8, bool)>>);

impl Slow {
    fn note(&self, request: u8, ends: bool) {
        self.0.lock().expect("no panic").push((request, ends));
    }

    fn noted(&self) -> Vec<(u8, bool)> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Service for Slow {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        self.note(request[0], false);
        ep.sleep(u64::from(request[0]) * US).await;
        self.note(request[0], true);
        Ok(request.to_vec())
    }

    fn waits(&self) -> bool {
        true
    }
}

fn served(f: &SimFabric) -> Arc<Slow> {
    let slow = Arc::new(Slow::default());
    f.serve(MN, SERVICE, slow.clone()).expect("a member");
    slow
}

/// The time and the answer of a call, ns.
type Answered = (u64, Result<Vec<u8>>);

/// Longest wait for an answer, ns.
const LONG: u64 = 10_000 * US;

fn calls(f: &SimFabric, calls: &[(NodeId, u8)], at_ns: u64, act: impl FnOnce()) -> Vec<Answered> {
    let calls: Vec<_> = calls.iter().map(|(from, request)| (*from, *request, LONG)).collect();
    calls_within(f, &calls, at_ns, act)
}

/// Makes calls, each from a client of its own, in order, that waits for so long; does something at
/// a time beside them.
fn calls_within(
    f: &SimFabric,
    calls: &[(NodeId, u8, u64)],
    at_ns: u64,
    act: impl FnOnce(),
) -> Vec<Answered> {
    let neutral = f.attach(MN).expect("a member");
    let core = Core::new(neutral.clone(), 1 << 20);
    let mut worker = Worker::new(core.clone());
    let answers = Rc::new(RefCell::new(vec![(0, Err(Error::closed("no answer"))); calls.len()]));
    for (i, (from, request, timeout_ns)) in calls.iter().enumerate() {
        let (slot, transport) = (core.add_slot(), f.attach(*from).expect("a member"));
        let (ep, answers) = (Endpoint::new(core.clone(), transport, slot), answers.clone());
        ep.set_timeout(*timeout_ns);
        worker.spawn(slot, async move {
            let mut reply = Vec::new();
            let called = ep.rpc(MN, SERVICE, &[*request], &mut reply).await;
            answers.borrow_mut()[i] = (ep.now(), called.map(|()| reply));
        });
    }
    let slot = core.add_slot();
    let ep = Endpoint::new(core, neutral, slot);
    worker.spawn(slot, async move {
        ep.sleep(at_ns).await;
        act();
    });
    worker.run(&mut Fifo).expect("no deadlock");
    drop(worker);
    Rc::into_inner(answers).expect("all have ended").into_inner()
}

/// One call is answered at a time, in the order of arrival, and time passes meanwhile.
#[test]
fn calls_are_answered_one_after_the_other() {
    let f = sim(&[]);
    let slow = served(&f);
    let answers = calls(&f, &[(CN, 30), (CN1, 10), (CN, 20)], 0, || {});
    let noted = [(30, false), (30, true), (10, false), (10, true), (20, false), (20, true)];
    assert_eq!(slow.noted(), noted);
    // The way to the node and back is 500 ns each.
    let times: Vec<u64> = answers.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [31 * US, 41 * US, 61 * US]);
    let replies = answers.into_iter().map(|(_, answer)| answer.expect("answered"));
    assert_eq!(replies.collect::<Vec<_>>(), [[30], [10], [20]]);
}

/// Charges so many units of work, and waits for nothing.
struct Busy;

impl Service for Busy {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        ep.stage_cost(Stage::IterEntry, request[0].into());
        Ok(request.to_vec())
    }

    fn waits(&self) -> bool {
        true
    }
}

/// The work of a handler delays its answer, and the next call.
#[test]
fn an_answer_waits_for_the_work_of_its_handler() {
    let f = sim(&[("cpu.iter_entry_ns", "1000")]);
    f.serve(MN, SERVICE, Arc::new(Busy)).expect("a member");
    let answers = calls(&f, &[(CN, 30), (CN1, 10), (CN, 20)], 0, || {});
    let times: Vec<u64> = answers.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [31 * US, 41 * US, 61 * US]);
}

/// Requests and replies are lost: every call is answered, and no handler runs twice for one.
#[test]
fn lost_calls_are_answered_once() {
    for seed in 0..50 {
        let f = adversarial(LOSSY, seed);
        let slow = served(&f);
        let answers = calls(&f, &[(CN, 30), (CN1, 10), (CN, 20), (CN1, 40)], 0, || {});
        assert!(answers.iter().all(|(_, answer)| answer.is_ok()), "{answers:?}");
        assert_eq!(slow.noted().len(), 8);
    }
}

/// A call that its caller has given up before its turn has no effect.
#[test]
fn a_call_that_was_given_up_is_not_begun() {
    let f = sim(&[]);
    let slow = served(&f);
    let answers = calls_within(&f, &[(CN, 30, LONG), (CN1, 10, 20 * US), (CN, 20, LONG)], 0, || {});
    let kind = |(_, answer): &Answered| answer.as_ref().err().map(Error::kind);
    let given_up = Some(ErrorKind::TimedOut);
    assert_eq!(answers.iter().map(kind).collect::<Vec<_>>(), [None, given_up, None]);
    assert_eq!(slow.noted(), [(30, false), (30, true), (20, false), (20, true)]);
}

/// A call whose caller loses its access while it waits for its turn has no effect.
#[test]
fn a_fenced_caller_is_refused_at_its_turn() {
    let f = sim(&[]);
    let slow = served(&f);
    let fence = || f.revoke(MN, CN1, 1).expect("known");
    let answers = calls(&f, &[(CN, 30), (CN1, 10), (CN, 20)], 15 * US, fence);
    let kind = |(_, answer): &Answered| answer.as_ref().err().map(Error::kind);
    assert_eq!(
        answers.iter().map(kind).collect::<Vec<_>>(),
        [None, Some(ErrorKind::Revoked), None]
    );
    assert_eq!(slow.noted(), [(30, false), (30, true), (20, false), (20, true)]);
}

/// A node that ends answers nothing that it held: the effects are unknown, and its next
/// incarnation answers new calls.
#[test]
fn what_a_node_held_when_it_ended_fails() {
    for is_back in [false, true] {
        let f = sim(&[]);
        served(&f);
        let end = || {
            f.crash(MN, How::Process).expect("known");
            if is_back {
                f.restart(MN).expect("down");
            }
        };
        let answers = calls(&f, &[(CN, 30), (CN1, 10)], 15 * US, end);
        for (at, answer) in answers {
            let e = answer.expect_err("the node has ended");
            assert_eq!((e.kind(), e.effect()), (ErrorKind::Unreachable, Effect::Unknown), "{e}");
            assert!(at < 1_000 * US, "{at} ns");
        }
        if is_back {
            let slow = served(&f);
            [CN, CN1].into_iter().for_each(|cn| f.connect(cn, MN, 2));
            let answers = calls(&f, &[(CN, 5)], 0, || {});
            assert_eq!(answers[0].1.as_deref().expect("answered"), [5]);
            assert_eq!(slow.noted().len(), 2);
        }
    }
}
