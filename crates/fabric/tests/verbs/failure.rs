//! Connections that break, revoked members, nodes that restart.

use dmtree_fabric::verb::{VerbVec, cas, write_word};
use dmtree_fabric::{Effect, ErrorKind, Fabric, NodeId};

use crate::test_cluster::*;

#[test]
fn revocation_ends_a_nodes_access_and_a_new_incarnation_has_it_again() {
    let Some(f) = fabric() else { return };
    crate::common::revocation(&f, |node, bytes| f.add_node(node, bytes));
}

/// The basis of recovery after the death of a compute node: after the revocation the memory does
/// not change any more.
#[test]
fn no_verb_executes_after_a_revocation() {
    for round in 0..5u64 {
        let Some(f) = fabric() else { return };
        std::thread::scope(|s| {
            let writer = f.clone();
            s.spawn(move || {
                let ep = endpoint(&writer, CN);
                let e = loop {
                    let mut v = VerbVec::new();
                    (0..40).for_each(|i| _ = v.cas(at(64 + i * 8), 1 << 40, 1));
                    (0..40).for_each(|i| _ = v.write_word(at(512 + i * 8), i));
                    let round = async {
                        ep.faa(at(64), 1).await?;
                        ep.batch(v).await
                    };
                    if let Err(e) = on(&ep, round) {
                        break e;
                    }
                };
                assert_eq!(e.kind(), ErrorKind::Revoked, "{e}");
            });
            let ep = endpoint(&f, NodeId::compute(1));
            while on(&ep, ep.read(at(64), 8)).expect("a member").word(0) < 3 + round {
                std::thread::yield_now();
            }
            f.revoke(MN, CN, 1).expect("known nodes");
            let before = on(&ep, fetch(&ep, at(64), 1024)).expect("a member");
            for _ in 0..50 {
                assert_eq!(on(&ep, fetch(&ep, at(64), 1024)).expect("a member"), before);
            }
        });
    }
}

#[test]
fn a_connection_that_breaks_is_made_anew() {
    let Some(f) = fabric() else { return };
    let (ep, transport) = &client(&f, CN);
    on(ep, ep.faa(at(64), 1)).expect("connects");
    for _ in 0..3 {
        // Cut with verbs in flight: they end, their effect unknown.
        ep.detach((write_word(at(128), 1), cas(at(136), 0, 0)), None);
        transport.cut(ep.core(), MN);
        let e = on(ep, ep.drain());
        if let Err(e) = e {
            assert_eq!((e.kind(), e.effect()), (ErrorKind::Unreachable, Effect::Unknown), "{e}");
        }
        on(ep, ep.faa(at(64), 1)).expect("a new connection");
    }
    let stats = transport.stats();
    assert_eq!((stats.connections, stats.breaks), (4, 3));
    assert_eq!(on(ep, ep.faa(at(64), 0)).expect("works"), 4);
    assert_eq!(
        (transport.outstanding(), ep.core().slab().live_bytes()),
        (0, 0),
        "nothing is left behind"
    );
}

#[test]
fn lists_that_wait_for_room_survive_a_break() {
    let Some(f) = fabric_with(&dmtree_fabric::verbs::Config { outstanding: 4, ..config() }) else {
        return;
    };
    let (ep, transport) = &client(&f, CN);
    on(ep, ep.faa(at(64), 1)).expect("connects");
    for i in 0..20 {
        ep.detach((write_word(at(128 + i * 16), 1), cas(at(136 + i * 16), 0, 2)), None);
    }
    transport.cut(ep.core(), MN);
    let _ = on(ep, ep.drain());
    let _ = on(ep, ep.drain());
    let seen = on(ep, ep.read(at(128), 320)).expect("a new connection");
    assert_eq!(
        (seen.word(38), seen.word(39)),
        (1, 2),
        "the last list was not in flight: it went after the break"
    );
    assert_eq!(transport.outstanding(), 0);
}

#[test]
fn a_node_that_restarts_is_unknown_until_others_connect() {
    let Some(f) = fabric() else { return };
    let ep = &endpoint(&f, NodeId::compute(1));
    on(ep, ep.write_word(at(64), 5)).expect("works");
    f.revoke(NodeId::memory(1), MN, 1).expect("known nodes");
    f.add_node(MN, REGION_BYTES).expect("comes back");
    fails(on(ep, ep.read(at(64), 8)), ErrorKind::Unreachable, "");
    fails(on(ep, ep.read(at(64), 8)), ErrorKind::Unreachable, "restarted");
    f.connect(NodeId::compute(1), MN, 2);
    assert_eq!(on(ep, ep.read(at(64), 8)).expect("known").word(0), 0, "a new region");
}

#[test]
fn dropped_futures_leave_their_buffers_to_the_posting() {
    let Some(f) = fabric() else { return };
    let (ep, transport) = &client(&f, CN);
    on(ep, ep.faa(at(64), 1)).expect("connects");
    on(ep, async {
        let mut read = Box::pin(ep.read(at(64), 4000));
        std::future::poll_fn(|cx| {
            assert!(read.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(read);
        assert!(ep.core().slab().live_bytes() >= 4000, "still in flight");
        while ep.core().slab().live_bytes() > 0 {
            ep.sleep(1000).await;
        }
        Ok(())
    })
    .expect("it completes");
    assert_eq!(transport.outstanding(), 0);
}

#[test]
fn detached_lists_finish_when_their_executor_is_dropped() {
    let Some(f) = fabric() else { return };
    for i in 0..20 {
        let ep = endpoint(&f, CN);
        ep.detach((write_word(at(64), i), cas(at(72), i, i + 1)), None);
    }
    let ep = &endpoint(&f, CN);
    let seen = on(ep, ep.read(at(64), 16)).expect("works");
    assert_eq!((seen.word(0), seen.word(1)), (19, 20));
}
