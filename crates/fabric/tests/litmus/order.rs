//! Verbs that must have completed before others begin.

use std::cell::Cell;
use std::rc::Rc;

use dmtree_fabric::verb::write_word;
use dmtree_fabric::{Endpoint, GlobalAddr, NodeId};

use crate::test_cluster::*;

/// A new object on one memory node, its pointer on another.
fn publish(eps: Vec<Endpoint>, wrong: Wrong, awaited: bool) -> Vec<Client> {
    let child = |k: u64| GlobalAddr::new(NodeId::memory(1), OBJECT + k * 8);
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            if awaited {
                writer.write_word(child(k), k).await.unwrap();
                writer.write_word(at(1024), k).await.unwrap();
            } else {
                writer.batch((write_word(child(k), k), write_word(at(1024), k))).await.unwrap();
            }
        }
    };
    two(eps, first, async move |reader: Endpoint| {
        for _ in 0..ROUNDS {
            let k = reader.read(at(1024), 8).await.unwrap().word(0);
            if k > 0 {
                flag(&wrong, reader.read(child(k), 8).await.unwrap().word(0) != k);
            }
        }
    })
}

#[test]
fn a_pointer_to_another_node_waits_for_its_object() {
    fails("pointer beside the object", |_, e, w| publish(e, w, false), WEAKEST);
    holds("pointer after the object", |_, e, w| publish(e, w, true), WEAKEST);
}

/// An operation that is acknowledged while its last WRITE is on the way.
fn acknowledge(eps: Vec<Endpoint>, wrong: Wrong, awaited: bool) -> Vec<Client> {
    let acknowledged = Rc::new(Cell::new(0));
    let seen = acknowledged.clone();
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            if awaited {
                writer.write_word(at(1024), k).await.unwrap();
            } else {
                writer.detach(write_word(at(1024), k), None);
            }
            acknowledged.set(k);
            writer.sleep(1_000).await;
            writer.drain().await.unwrap();
        }
    };
    two(eps, first, async move |reader: Endpoint| {
        for _ in 0..ROUNDS {
            let due = seen.get();
            let found = reader.read(at(1024), 8).await.unwrap().word(0);
            flag(&wrong, found < due);
        }
    })
}

#[test]
fn an_acknowledged_write_is_visible() {
    fails("acknowledged before its WRITE", |_, e, w| acknowledge(e, w, false), WEAKEST);
    holds("acknowledged after it", |_, e, w| acknowledge(e, w, true), WEAKEST);
}
