//! Memory nodes that join a pool in use: when they may be allocated from.

use super::*;

const M2: Member = Member { node: NodeId::memory(2), incarnation: 1 };

fn is_new(m: &InProcess) -> bool {
    m.latest().memory_node(M2.node).expect("it has joined").is_new
}

fn knows(m: &InProcess, by: Member, at: u64) {
    now(m.propose(by, Change::Knows(M2), at)).expect("living");
}

#[test]
fn memory_nodes_of_a_pool_without_compute_nodes_are_open_at_once() {
    let m = InProcess::new(LEASE_PARAMETERS);
    now(m.join(M2, 0)).expect("a first incarnation");
    assert!(!is_new(&m));
}

#[test]
fn a_memory_node_is_new_until_every_living_compute_node_knows_it() {
    let m = three();
    now(m.join(M2, 0)).expect("a first incarnation");
    assert!(is_new(&m));
    knows(&m, A, 1);
    knows(&m, A, 1);
    knows(&m, B, 2);
    assert!(is_new(&m), "C does not know it");
    let d = Member { node: NodeId::compute(7), incarnation: 1 };
    now(m.join(d, 3)).expect("a newcomer");
    knows(&m, C, 4);
    assert!(is_new(&m), "the newcomer may have its node directory from before");
    knows(&m, d, 5);
    assert!(!is_new(&m));
    assert!(m.take_news().contains(&News::Opened(M2)));
}

#[test]
fn a_dead_compute_node_owes_no_knowledge() {
    let m = three();
    now(m.join(M2, 0)).expect("a first incarnation");
    knows(&m, A, 1);
    knows(&m, B, 1);
    renew(&m, &[A, B, M2], 60);
    renew(&m, &[A, B, M2], 120);
    assert!(!m.latest().is_living(C), "its lease has ended");
    assert!(!is_new(&m));
}

/// What was said before it was away says nothing about the time after: the region is the same, so
/// it is asked again only because the list of acknowledgements is.
#[test]
fn a_new_memory_node_that_was_away_is_still_new() {
    let m = three();
    now(m.join(M2, 0)).expect("a first incarnation");
    knows(&m, A, 1);
    knows(&m, B, 1);
    renew(&m, &[A, B, C], 60);
    renew(&m, &[A, B, C], 120);
    assert_eq!(m.latest().presence(M2.node), Presence::Missing);
    knows(&m, C, 121);
    assert!(is_new(&m), "it is away");
    for by in [A, B, C] {
        now(m.propose(by, Change::Avoided(M2), 122)).expect("living");
    }
    assert!(is_new(&m), "to post nothing to it is another thing");
    now(m.propose(M2, Change::Returned(m.latest().epoch), 123)).expect("known");
    assert_eq!(m.latest().presence(M2.node), Presence::Present);
    assert!(is_new(&m));
    [A, B, C].into_iter().for_each(|by| knows(&m, by, 124));
    assert!(!is_new(&m));
}
