//! The sanitizer of the adversarial fabric: each of its reports fires, and legal accesses cause
//! none.

use crate::common::at;
use dmtree_fabric::sim::{FabricFaults, SimFabric};
use dmtree_fabric::{Capabilities, Endpoint, Fabric, Member, NodeId, ShadowState, Worker};
use std::future::Future;

const ME: Member = Member { node: NodeId::compute(0), incarnation: 1 };

/// The reports on the accesses of a client.
fn reports<F: Future<Output = ()>>(work: impl FnOnce(SimFabric, Endpoint) -> F) -> Vec<String> {
    let f =
        SimFabric::adversarial(FabricFaults::of_seed(3), Capabilities::NONE, 3).expect("a fabric");
    f.add_node(NodeId::memory(0), 1 << 16).expect("new");
    f.add_node(NodeId::compute(0), 1 << 12).expect("new");
    f.add_node(NodeId::compute(1), 1 << 12).expect("new");
    f.sanitize();
    f.set_timed(true);
    let ep = Endpoint::alone(f.attach(NodeId::compute(0)).expect("a member"), 1 << 20);
    let mut worker = Worker::new(ep.core().clone());
    worker.spawn(ep.slot(), work(f.clone(), ep.clone()));
    worker.run(&mut dmtree_fabric::Fifo).expect("it ends");
    drop(worker);
    f.reports()
}

#[test]
fn outside_and_unaligned() {
    let found = reports(|_, ep| async move {
        ep.read(at(1 << 16), 8).await.expect_err("outside");
        ep.cas(at(1028), 0, 1).await.expect_err("no word");
    });
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("outside the region"), "{found:?}");
    assert!(found[1].contains("not aligned"), "{found:?}");
}

#[test]
fn reads_of_unwritten_memory() {
    let found = reports(|f, ep| async move {
        f.allocation_event(ME, at(1024), 128, ShadowState::Undefined);
        ep.write_word(at(1024), 7).await.expect("written");
        ep.read(at(1024), 128).await.expect("defined, as far as it is anything");
        ep.read(at(1152), 8).await.expect("no event covers it");
        ep.read(at(1032), 8).await.expect("only its first word is");
    });
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("8 bytes") && found[0].contains("never written"), "{found:?}");
}

#[test]
fn freed_memory() {
    let found = reports(|f, ep| async move {
        f.allocation_event(ME, at(1024), 64, ShadowState::Freed);
        f.allocation_event(ME, at(2048), 64, ShadowState::FreedTyped);
        ep.read(at(2048), 64).await.expect("legal");
        ep.cas(at(2048), 0, 0).await.expect("legal");
        ep.read_unvalidated(at(1024), 8).await.expect("an unvalidated READ may find anything");
        ep.read(at(1024), 8).await.expect("reported");
        ep.write_word(at(2048), 1).await.expect("reported");
        f.allocation_event(ME, at(1024), 64, ShadowState::Plain);
        ep.read(at(1024), 64).await.expect("reallocated");
    });
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|r| r.contains("is freed")), "{found:?}");
}

/// Regression (checked faults, seed 610477): a node that had lost its membership went on allocating
/// memory that others had taken over.
#[test]
fn events_of_revoked_nodes_are_ignored() {
    let found = reports(|f, ep| async move {
        let other = Member { node: NodeId::compute(1), incarnation: 1 };
        f.allocation_event(other, at(2048), 64, ShadowState::Freed);
        f.revoke(NodeId::memory(0), other.node, 1).expect("a host");
        f.allocation_event(other, at(1024), 64, ShadowState::Freed);
        ep.read(at(1024), 8).await.expect("not theirs to say");
        ep.read(at(2048), 8).await.expect("reported: said before");
    });
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn nothing_is_watched_unless_asked() {
    let f = SimFabric::adversarial(FabricFaults::NONE, Capabilities::NONE, 1).expect("a fabric");
    f.allocation_event(ME, at(1024), 64, ShadowState::Freed);
    assert!(f.reports().is_empty());
}
