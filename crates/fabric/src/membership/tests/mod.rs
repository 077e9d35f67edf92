mod any_order;
mod gaps;
mod growth;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::error::{ErrorKind, Result};
use crate::membership::{MemberPhase, MemoryAgent, Presence};

const A: Member = Member { node: NodeId::compute(0), incarnation: 1 };
const B: Member = Member { node: NodeId::compute(1), incarnation: 1 };
const C: Member = Member { node: NodeId::compute(2), incarnation: 1 };
const LEASE_PARAMETERS: LeaseParameters =
    LeaseParameters { lease_ns: 100, acknowledge_ns: 300, drift_one_in: 10, mutant: None };

fn now<T>(f: MembershipFuture<'_, T>) -> Result<T> {
    let mut f = pin!(f);
    match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => out,
        Poll::Pending => panic!("answers at once"),
    }
}

fn three() -> InProcess {
    let m = InProcess::new(LEASE_PARAMETERS);
    for member in [A, B, C] {
        assert_eq!(now(m.join(member, 0)).map(|l| l.for_ns).ok(), Some(90));
    }
    m
}

fn renew(m: &InProcess, members: &[Member], at: Nanos) {
    members.iter().for_each(|w| assert!(now(m.renew(*w, at)).is_ok(), "{w} at {at}"));
}

fn phase(m: &InProcess, member: Member) -> MemberPhase {
    m.latest().phase(member).expect("known")
}

fn acknowledge(m: &InProcess, members: &[Member], of: Member, s: MemberPhase, at: Nanos) {
    members.iter().for_each(|w| now(m.propose(*w, Change::Acknowledge(of, s), at)).expect("known"));
}

/// A death up to the assignment of new owners.
fn acknowledged_by_a_and_b(m: &InProcess, dead: Member, at: Nanos) {
    for s in [MemberPhase::Revoking, MemberPhase::Draining] {
        acknowledge(m, &[A, B], dead, s, at);
        now(m.propose(A, Change::Revoked(dead), at)).expect("living");
    }
}

#[test]
fn a_death_goes_step_by_step() {
    let m = three();
    renew(&m, &[A, B], 60);
    assert_eq!(phase(&m, C), MemberPhase::Living);
    renew(&m, &[A, B], 120);
    assert_eq!(phase(&m, C), MemberPhase::Revoking);
    assert_eq!(now(m.renew(C, 121)).map_err(|e| e.kind()).err(), Some(ErrorKind::Revoked));
    assert!(now(m.propose(A, Change::Revoked(C), 121)).is_ok());
    assert_eq!(phase(&m, C), MemberPhase::Revoking, "no acknowledgement yet");
    let ack = |by, s| now(m.propose(by, Change::Acknowledge(C, s), 122)).expect("living");
    ack(A, MemberPhase::Revoking);
    ack(B, MemberPhase::Draining);
    now(m.propose(A, Change::Revoked(C), 122)).expect("living");
    assert_eq!(phase(&m, C), MemberPhase::Revoking, "B acknowledged something else");
    ack(B, MemberPhase::Revoking);
    now(m.propose(A, Change::Revoked(C), 122)).expect("living");
    assert_eq!(phase(&m, C), MemberPhase::Draining);
    ack(A, MemberPhase::Draining);
    ack(A, MemberPhase::Draining);
    assert_eq!(phase(&m, C), MemberPhase::Draining);
    ack(B, MemberPhase::Draining);
    assert_eq!(phase(&m, C), MemberPhase::Reassigning);
    now(m.propose(A, Change::Reassigned(C), 123)).expect("living");
    assert_eq!(phase(&m, C), MemberPhase::Reassigning, "A has not claimed it");
    now(m.propose(B, Change::Claim(C), 123)).expect("living");
    now(m.propose(A, Change::Claim(C), 123)).expect("living");
    now(m.propose(B, Change::Reassigned(C), 123)).expect("living");
    assert_eq!(phase(&m, C), MemberPhase::Gone);
}

#[test]
fn a_member_that_does_not_acknowledge_dies_too() {
    let m = three();
    for at in (50..=350).step_by(50) {
        renew(&m, &[A, B], at);
        now(m.propose(A, Change::Acknowledge(C, MemberPhase::Revoking), at)).expect("living");
    }
    renew(&m, &[A], 420);
    assert_eq!((phase(&m, B), phase(&m, A)), (MemberPhase::Revoking, MemberPhase::Living));
    let ack = |of| now(m.propose(A, Change::Acknowledge(of, MemberPhase::Revoking), 421));
    ack(B).expect("living");
    for of in [B, C] {
        now(m.propose(A, Change::Revoked(of), 421)).expect("living");
        assert_eq!(phase(&m, of), MemberPhase::Draining);
    }
}

#[test]
fn a_dead_claimant_is_replaced_and_its_death_waits_for_no_dead_node() {
    let m = three();
    renew(&m, &[A, B], 60);
    renew(&m, &[A, B], 120);
    acknowledged_by_a_and_b(&m, C, 120);
    now(m.propose(B, Change::Claim(C), 121)).expect("living");
    renew(&m, &[A], 200);
    renew(&m, &[A], 230);
    assert_eq!(phase(&m, B), MemberPhase::Revoking);
    let claimant = || m.latest().of(C).and_then(|m| m.claimant);
    now(m.propose(A, Change::Claim(C), 231)).expect("living");
    assert_eq!(claimant(), Some(B), "verbs of B in flight may still execute");
    now(m.propose(A, Change::Acknowledge(B, MemberPhase::Revoking), 231)).expect("living");
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
    let known = |node| now(m.state(node, 121)).expect("answers").phase(C);
    assert_eq!((known(A), known(B)), (Some(MemberPhase::Revoking), Some(MemberPhase::Living)));
    assert_eq!(now(m.state(B, 171)).expect("answers").phase(C), Some(MemberPhase::Revoking));
}

/// Regression: two nodes died one soon after the other, and two others assigned new owners to the
/// tables of the first at the same time. One of them acted for the second death, with a directory
/// that it had read before. A table then had two owners, each with its own writers.
#[test]
fn there_is_one_claimant_at_a_time() {
    let d = Member { node: NodeId::compute(3), incarnation: 1 };
    let m = three();
    now(m.join(d, 1)).expect("a new one");
    for at in [60, 120] {
        renew(&m, &[A, B], at);
    }
    for dead in [C, d] {
        acknowledged_by_a_and_b(&m, dead, 121);
    }
    let claimant = |of| m.latest().of(of).and_then(|m| m.claimant);
    now(m.propose(A, Change::Claim(C), 122)).expect("living");
    now(m.propose(B, Change::Claim(d), 122)).expect("living");
    assert_eq!((claimant(C), claimant(d)), (Some(A), None));
    now(m.propose(A, Change::Reassigned(C), 123)).expect("living");
    now(m.propose(B, Change::Claim(d), 123)).expect("living");
    assert_eq!(claimant(d), Some(B));
}

/// A node that comes back before its lease has ended is a new incarnation, and the first one is
/// dead at once.
#[test]
fn a_second_incarnation_ends_the_first() {
    let m = three();
    let again = Member { incarnation: 2, ..C };
    now(m.join(again, 10)).expect("a new one");
    assert_eq!((phase(&m, C), phase(&m, again)), (MemberPhase::Revoking, MemberPhase::Living));
    assert!(now(m.join(C, 11)).is_err());
}

#[test]
fn a_planned_move_waits_for_all() {
    let m = three();
    now(m.propose(A, Change::Plan(vec![3, 4], Some(B)), 1)).expect("living");
    now(m.propose(B, Change::Plan(vec![9], None), 1)).expect("living");
    for by in [A, B] {
        now(m.propose(by, Change::AcknowledgeMove, 2)).expect("living");
    }
    now(m.propose(A, Change::ClaimMove, 2)).expect("living");
    let planned = m.latest().planned.clone().expect("under way");
    assert_eq!((planned.phase, planned.claimant), (MemberPhase::Draining, None));
    now(m.propose(C, Change::AcknowledgeMove, 2)).expect("living");
    now(m.propose(A, Change::ClaimMove, 2)).expect("living");
    now(m.propose(A, Change::Moved, 2)).expect("living");
    assert_eq!(m.latest().planned, None);
}

const M0: Member = Member { node: NodeId::memory(0), incarnation: 1 };
const M1: Member = Member { node: NodeId::memory(1), incarnation: 1 };

/// Two memory nodes with leases.
fn with_memory() -> InProcess {
    let m = three();
    m.set_agents(2);
    for member in [M0, M1] {
        now(m.join(member, 0)).expect("a first incarnation");
    }
    m
}

/// Regression: a pool was lost after its only process had left, or was killed. The next one counted
/// as late for a death that was asked for before it joined.
#[test]
fn a_newcomer_owes_nothing_since_before_it_joined() {
    let m = InProcess::new(LEASE_PARAMETERS);
    now(m.join(A, 0)).expect("a first incarnation");
    now(m.propose(A, Change::Leave, 10)).expect("living");
    now(m.join(B, 5_000)).expect("a first incarnation");
    for at in (5_010..5_290).step_by(50) {
        renew(&m, &[B], at);
    }
    assert_eq!(phase(&m, B), MemberPhase::Living);
    for at in [5_295, 5_301] {
        now(m.state(C, at)).expect("answers");
    }
    assert_eq!(phase(&m, B), MemberPhase::Revoking, "since then it has had its time");
}

#[test]
fn a_death_proceeds_without_living_nodes_until_owners_must_be_assigned() {
    let m = with_memory();
    for at in [60, 120, 180] {
        renew(&m, &[M0, M1], at);
    }
    assert!([A, B, C].iter().all(|w| phase(&m, *w) == MemberPhase::Revoking));
    for of in [A, B, C] {
        acknowledge(&m, &[M0], of, MemberPhase::Revoking, 181);
        assert_eq!(phase(&m, of), MemberPhase::Revoking, "it may still reach mn1");
        acknowledge(&m, &[M1], of, MemberPhase::Revoking, 182);
        assert_eq!(phase(&m, of), MemberPhase::Reassigning);
    }
    let again = Member { incarnation: 2, ..A };
    now(m.join(again, 190)).expect("a later incarnation");
    for of in [A, B, C] {
        now(m.propose(again, Change::Claim(of), 191)).expect("living");
        now(m.propose(again, Change::Reassigned(of), 191)).expect("living");
        assert_eq!(phase(&m, of), MemberPhase::Gone);
    }
    let s = m.latest();
    assert_eq!((s.of(A), s.deaths, s.members.len()), (None, 3, 3), "A is forgotten, not B and C");
    assert!(now(m.join(A, 192)).is_err() && now(m.join(B, 192)).is_err());
}

#[test]
fn a_time_in_which_the_server_stood_still_ends_no_lease() {
    let m = with_memory();
    m.tick(0);
    for at in (10..60).step_by(10) {
        m.tick(at);
    }
    m.tick(5_000);
    assert!([A, B, C].iter().all(|w| phase(&m, *w) == MemberPhase::Living), "it stood still");
    assert!(m.take_news().iter().any(|n| matches!(n, News::StoodStill(4_950))));
    for at in (5_010..5_060).step_by(10) {
        m.tick(at);
    }
    assert_eq!(phase(&m, A), MemberPhase::Revoking, "the rest of its lease has ended");
}

#[test]
fn a_death_does_not_wait_for_a_memory_node_that_is_missing() {
    let m = with_memory();
    for at in [60, 120] {
        renew(&m, &[A, B, M0], at);
    }
    assert_eq!(phase(&m, C), MemberPhase::Revoking);
    assert_eq!(m.latest().presence(M1.node), Presence::Missing);
    acknowledge(&m, &[A, B, M0], C, MemberPhase::Revoking, 121);
    now(m.propose(A, Change::Avoided(M1), 121)).expect("living");
    let why = "B may still post to mn1, where C may still write";
    assert_eq!(phase(&m, C), MemberPhase::Revoking, "{why}");
    now(m.propose(B, Change::Avoided(M1), 121)).expect("living");
    assert_eq!(phase(&m, C), MemberPhase::Draining);
    // Its return is refused before it knows of the death, and accepted afterwards.
    let early = now(m.propose(M1, Change::Returned(1), 122)).expect_err("too early");
    assert!(early.is_retryable(), "{early}");
    assert!(m.latest().presence(M1.node).is_away());
    let epoch = m.latest().epoch;
    now(m.propose(M1, Change::Returned(epoch), 123)).expect("in time");
    assert_eq!(m.latest().presence(M1.node), Presence::Present);
    let lines: Vec<String> = m.take_news().iter().map(ToString::to_string).collect();
    assert_eq!(lines.iter().filter(|l| l.contains("mn1 is missing")).count(), 1, "{lines:?}");
}

/// The first memory node keeps the membership: the others may be missing, and lost.
#[test]
fn memory_nodes_are_lost_when_they_leave_or_their_hosts_say_so() {
    let m = with_memory();
    now(m.propose(M1, Change::Leave, 1)).expect("known");
    assert_eq!(m.latest().presence(M1.node), Presence::Lost);
    let m = with_memory();
    m.lose(M1);
    assert_eq!(m.latest().presence(M1.node), Presence::Present, "it holds a lease");
    m.tick(100);
    m.lose(M1);
    let s = m.latest();
    assert_eq!((s.presence(M0.node), s.presence(M1.node)), (Presence::Present, Presence::Lost));
    let later = Member { incarnation: 2, ..M1 };
    assert!(now(m.join(later, 101)).is_err(), "its region is lost");
    // The host was wrong: the node was only cut off.
    now(m.propose(M1, Change::Returned(s.epoch), 102)).expect("the same incarnation");
    assert_eq!(m.latest().presence(M1.node), Presence::Present);
}

#[test]
fn an_agent_revokes_dead_nodes_before_its_node_is_present_again() {
    let m = with_memory();
    let revoked = std::cell::RefCell::new(Vec::new());
    let revoke = |dead: Member| {
        revoked.borrow_mut().push(dead);
        Ok(())
    };
    let mut agent = MemoryAgent::new(M1);
    let step =
        |agent: &mut MemoryAgent, at| now(Box::pin(agent.step(&m, &revoke, at))).expect("answers");
    assert!(step(&mut agent, 1));
    for at in [60, 120] {
        renew(&m, &[A, B, M0], at);
    }
    assert!(m.latest().presence(M1.node).is_away());
    step(&mut agent, 130);
    assert_eq!(*revoked.borrow(), [C]);
    assert_eq!(m.latest().presence(M1.node), Presence::Present);
}

#[test]
fn incarnations_are_distinguished_by_16_bits() {
    let m = three();
    let incarnation = |n: u32| m.latest().incarnation_of(A.node, n as u16).map(|m| m.incarnation);
    assert_eq!([1, 2, 0].map(incarnation), [Some(1), None, None]);
    let late = Member { incarnation: 70_000, ..A };
    now(m.join(late, 1)).expect("a later incarnation");
    assert_eq!([70_000, 69_000].map(incarnation), [Some(70_000), Some(69_000)]);
    assert_eq!(incarnation(70_001), None, "not known yet");
    let former = Member { incarnation: 69_000, ..A };
    assert_eq!(m.latest().phase(former), Some(MemberPhase::Gone));
}
