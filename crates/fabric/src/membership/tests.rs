use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::error::{ErrorKind, Result};
use crate::membership::Standing;

const A: Member = Member { node: NodeId::compute(0), incarnation: 1 };
const B: Member = Member { node: NodeId::compute(1), incarnation: 1 };
const C: Member = Member { node: NodeId::compute(2), incarnation: 1 };
const TERMS: Terms = Terms { lease_ns: 100, acknowledge_ns: 300, drift_one_in: 10 };

fn now<T>(f: MembershipFuture<'_, T>) -> Result<T> {
    let mut f = pin!(f);
    match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("answers at once"),
    }
}

fn three() -> InProcess {
    let m = InProcess::new(TERMS);
    for member in [A, B, C] {
        assert_eq!(now(m.join(member, 0)).map(|l| l.for_ns).ok(), Some(90));
    }
    m
}

fn renew(m: &InProcess, who: &[Member], at: Nanos) {
    who.iter().for_each(|w| assert!(now(m.renew(*w, at)).is_ok(), "{w} at {at}"));
}

fn standing(m: &InProcess, who: Member) -> Standing {
    m.latest().standing(who).expect("known")
}

#[test]
fn a_death_goes_step_by_step() {
    let m = three();
    renew(&m, &[A, B], 60);
    assert_eq!(standing(&m, C), Standing::Living);
    renew(&m, &[A, B], 120);
    assert_eq!(standing(&m, C), Standing::Revoking);
    assert_eq!(now(m.renew(C, 121)).map_err(|e| e.kind()).err(), Some(ErrorKind::Fenced));
    assert!(now(m.propose(A, Change::Revoked(C), 121)).is_ok());
    assert_eq!(standing(&m, C), Standing::Revoking, "nobody has acknowledged");
    let ack = |who, s| now(m.propose(who, Change::Acknowledge(C, s), 122)).expect("living");
    ack(A, Standing::Revoking);
    ack(B, Standing::Draining);
    now(m.propose(A, Change::Revoked(C), 122)).expect("living");
    assert_eq!(standing(&m, C), Standing::Revoking, "B acknowledged something else");
    ack(B, Standing::Revoking);
    now(m.propose(A, Change::Revoked(C), 122)).expect("living");
    assert_eq!(standing(&m, C), Standing::Draining);
    ack(A, Standing::Draining);
    ack(A, Standing::Draining);
    assert_eq!(standing(&m, C), Standing::Draining);
    ack(B, Standing::Draining);
    assert_eq!(standing(&m, C), Standing::Rehoming);
    now(m.propose(A, Change::Rehomed(C), 123)).expect("living");
    assert_eq!(standing(&m, C), Standing::Rehoming, "A has not claimed it");
    now(m.propose(B, Change::Claim(C), 123)).expect("living");
    now(m.propose(A, Change::Claim(C), 123)).expect("living");
    now(m.propose(B, Change::Rehomed(C), 123)).expect("living");
    assert_eq!(standing(&m, C), Standing::Gone);
}

#[test]
fn who_does_not_acknowledge_dies_too() {
    let m = three();
    for at in (50..=350).step_by(50) {
        renew(&m, &[A, B], at);
        now(m.propose(A, Change::Acknowledge(C, Standing::Revoking), at)).expect("living");
    }
    renew(&m, &[A], 420);
    assert_eq!((standing(&m, B), standing(&m, A)), (Standing::Revoking, Standing::Living));
    let ack = |of| now(m.propose(A, Change::Acknowledge(of, Standing::Revoking), 421));
    ack(B).expect("living");
    for of in [B, C] {
        now(m.propose(A, Change::Revoked(of), 421)).expect("living");
        assert_eq!(standing(&m, of), Standing::Draining);
    }
}

#[test]
fn a_claimant_that_dies_is_replaced_and_its_own_death_waits_for_nobody_dead() {
    let m = three();
    renew(&m, &[A, B], 60);
    renew(&m, &[A, B], 120);
    for s in [Standing::Revoking, Standing::Draining] {
        for who in [A, B] {
            now(m.propose(who, Change::Acknowledge(C, s), 120)).expect("living");
        }
        now(m.propose(A, Change::Revoked(C), 120)).expect("living");
    }
    now(m.propose(B, Change::Claim(C), 121)).expect("living");
    renew(&m, &[A], 200);
    renew(&m, &[A], 230);
    assert_eq!(standing(&m, B), Standing::Revoking);
    let claimant = || m.latest().of(C).and_then(|m| m.claimant);
    now(m.propose(A, Change::Claim(C), 231)).expect("living");
    assert_eq!(claimant(), Some(B), "what B has in flight may still execute");
    now(m.propose(A, Change::Acknowledge(B, Standing::Revoking), 231)).expect("living");
    now(m.propose(A, Change::Revoked(B), 231)).expect("living");
    now(m.propose(A, Change::Claim(C), 231)).expect("living");
    assert_eq!(claimant(), Some(A));
}

#[test]
fn news_is_late_where_a_test_wants_it() {
    let m = three();
    m.delay_news(B.node, 50);
    renew(&m, &[A, B], 60);
    renew(&m, &[A, B], 120);
    let told = |who| now(m.state(who, 121)).expect("answers").standing(C);
    assert_eq!((told(A), told(B)), (Some(Standing::Revoking), Some(Standing::Living)));
    assert_eq!(now(m.state(B, 171)).expect("answers").standing(C), Some(Standing::Revoking));
}

/// Two nodes die one soon after the other, and two others found new homes for the tables of the first at the same time: one of them
/// for the death that was its own to see to, with a directory it had read before. A table had two homes then, and each of the two
/// its writers.
#[test]
fn there_is_one_claimant_at_a_time() {
    let d = Member { node: NodeId::compute(3), incarnation: 1 };
    let m = three();
    now(m.join(d, 1)).expect("a new one");
    for at in [60, 120] {
        renew(&m, &[A, B], at);
    }
    for dead in [C, d] {
        for s in [Standing::Revoking, Standing::Draining] {
            for who in [A, B] {
                now(m.propose(who, Change::Acknowledge(dead, s), 121)).expect("living");
            }
            now(m.propose(A, Change::Revoked(dead), 121)).expect("living");
        }
    }
    let claimant = |of| m.latest().of(of).and_then(|m| m.claimant);
    now(m.propose(A, Change::Claim(C), 122)).expect("living");
    now(m.propose(B, Change::Claim(d), 122)).expect("living");
    assert_eq!((claimant(C), claimant(d)), (Some(A), None));
    now(m.propose(A, Change::Rehomed(C), 123)).expect("living");
    now(m.propose(B, Change::Claim(d), 123)).expect("living");
    assert_eq!(claimant(d), Some(B));
}

/// A node that comes back before its lease has ended is another one, and the first is dead at once.
#[test]
fn a_second_incarnation_ends_the_first() {
    let m = three();
    let again = Member { incarnation: 2, ..C };
    now(m.join(again, 10)).expect("a new one");
    assert_eq!((standing(&m, C), standing(&m, again)), (Standing::Revoking, Standing::Living));
    assert!(now(m.join(C, 11)).is_err());
}

#[test]
fn a_planned_move_waits_for_all() {
    let m = three();
    now(m.propose(A, Change::Plan(vec![3, 4], Some(B)), 1)).expect("living");
    now(m.propose(B, Change::Plan(vec![9], None), 1)).expect("living");
    for who in [A, B] {
        now(m.propose(who, Change::AcknowledgeMove, 2)).expect("living");
    }
    now(m.propose(A, Change::ClaimMove, 2)).expect("living");
    let planned = m.latest().planned.clone().expect("under way");
    assert_eq!((planned.standing, planned.claimant), (Standing::Draining, None));
    now(m.propose(C, Change::AcknowledgeMove, 2)).expect("living");
    now(m.propose(A, Change::ClaimMove, 2)).expect("living");
    now(m.propose(A, Change::Moved, 2)).expect("living");
    assert_eq!(m.latest().planned, None);
}
