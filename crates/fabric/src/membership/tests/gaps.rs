//! Gaps of the journal: when writes may skip a journal node, and when they may not any more.

use super::*;

const J0: Member = Member { node: NodeId::journal(0), incarnation: 1 };
const J1: Member = Member { node: NodeId::journal(1), incarnation: 1 };
const J1_AGAIN: Member = Member { incarnation: 2, ..J1 };

fn with_journal(skips: bool) -> InProcess {
    let m = three();
    m.set_agents(2);
    m.set_skips_journal(skips);
    for member in [J0, J1] {
        now(m.join(member, 0)).expect("a first incarnation");
    }
    m
}

fn gap_of(m: &InProcess, of: Member) -> (bool, bool) {
    let state = m.latest();
    (state.memory_node(of.node).expect("known").gap, state.is_skipped(of.node))
}

/// J1 is missing, and the others renew their leases.
fn missing(m: &InProcess) {
    for at in [60, 120] {
        renew(m, &[A, B, C, J0], at);
    }
    assert_eq!(m.latest().presence(J1.node), Presence::Missing);
}

fn back(m: &InProcess) {
    now(m.join(J1_AGAIN, 130)).expect("the former one is away");
    if m.latest().presence(J1.node).is_away() {
        now(m.propose(J1_AGAIN, Change::Returned(m.latest().epoch), 130)).expect("known");
    }
    assert_eq!(m.latest().presence(J1.node), Presence::Present);
}

#[test]
fn a_part_has_a_gap_from_the_state_on_in_which_it_is_missing() {
    let waits = with_journal(false);
    missing(&waits);
    assert_eq!(gap_of(&waits, J1), (false, false), "writes wait for it");
    let goes_on = with_journal(true);
    assert_eq!(gap_of(&goes_on, J1), (false, false));
    missing(&goes_on);
    assert_eq!(gap_of(&goes_on, J1), (true, true));
    assert_eq!(gap_of(&goes_on, J0), (false, false));
    assert_eq!(goes_on.latest().gaps(), 2);
    back(&goes_on);
    assert_eq!(gap_of(&goes_on, J1), (true, true), "what was skipped is missing");
}

#[test]
fn a_refill_ends_when_every_compute_node_waits_for_the_part_again() {
    let m = with_journal(true);
    let ask = |by, change| now(m.propose(by, change, 140));
    missing(&m);
    assert!(ask(A, Change::Refill(J1)).is_err(), "it is away");
    back(&m);
    assert!(ask(A, Change::Refill(J1)).is_err(), "a former incarnation");
    assert!(ask(A, Change::Refill(J0)).is_err(), "it lacks nothing");
    ask(A, Change::Refill(J1_AGAIN)).expect("it is there, with a gap");
    assert_eq!(gap_of(&m, J1), (true, false), "writes wait for it");
    assert!(ask(B, Change::Refill(J1_AGAIN)).is_err(), "another one refills it");
    for by in [A, B] {
        ask(by, Change::Resumed(J1_AGAIN)).expect("living");
        assert!(ask(A, Change::Filled(J1_AGAIN)).is_err(), "C may skip it still");
    }
    // One that comes now waits for the part.
    let d = Member { node: NodeId::compute(3), incarnation: 1 };
    now(m.join(d, 140)).expect("a first incarnation");
    ask(C, Change::Resumed(J1_AGAIN)).expect("living");
    assert!(ask(B, Change::Filled(J1_AGAIN)).is_err(), "A refills it");
    ask(A, Change::Filled(J1_AGAIN)).expect("all wait for it");
    assert_eq!(gap_of(&m, J1), (false, false));
}

#[test]
fn a_part_that_is_away_meanwhile_keeps_its_gap() {
    let m = with_journal(true);
    missing(&m);
    back(&m);
    now(m.propose(A, Change::Refill(J1_AGAIN), 140)).expect("with a gap");
    for by in [A, B, C] {
        now(m.propose(by, Change::Resumed(J1_AGAIN), 140)).expect("living");
    }
    for at in [180, 240] {
        renew(&m, &[A, B, C, J0], at);
    }
    assert_eq!(gap_of(&m, J1), (true, true), "it is missing again");
    now(m.propose(J1_AGAIN, Change::Returned(m.latest().epoch), 241)).expect("known");
    assert!(now(m.propose(A, Change::Filled(J1_AGAIN), 242)).is_err());
    // Its refiller dies: another one begins.
    now(m.propose(A, Change::Refill(J1_AGAIN), 243)).expect("with a gap");
    renew(&m, &[B, C, J0, J1_AGAIN], 300);
    renew(&m, &[B, C, J0, J1_AGAIN], 345);
    assert!(!m.latest().is_living(A));
    now(m.propose(B, Change::Refill(J1_AGAIN), 346)).expect("the former one is dead");
    for by in [B, C] {
        now(m.propose(by, Change::Resumed(J1_AGAIN), 346)).expect("living");
    }
    now(m.propose(B, Change::Filled(J1_AGAIN), 347)).expect("all of the living");
    assert_eq!(m.latest().gaps(), 0);
}

/// The directories say it of the pool before.
#[test]
fn a_part_may_have_a_gap_from_the_beginning() {
    let m = three();
    m.lacks(J1.node);
    now(m.join(J1, 0)).expect("a first incarnation");
    assert_eq!(gap_of(&m, J1), (true, true));
    m.lacks(J1.node);
    assert_eq!(m.latest().gaps(), 2);
}
