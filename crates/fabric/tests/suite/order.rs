//! Schedules of the adversarial mode in place of drawn times: priorities, and exhaustive search.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::at;
use dmtree_fabric::sim::{FabricFaults, Order, SimFabric, next_choices};
use dmtree_fabric::{Capabilities, Core, Endpoint, Fabric, Fifo, NodeId, Worker};

fn fabric(order: &Order) -> (SimFabric, Vec<Endpoint>) {
    let f = SimFabric::adversarial(FabricFaults::NONE, Capabilities::NONE, 1).unwrap();
    f.add_node(NodeId::memory(0), 1 << 16).unwrap();
    f.add_node(NodeId::compute(0), 1 << 16).unwrap();
    f.set_timed(true);
    f.set_order(order);
    let t = f.attach(NodeId::compute(0)).unwrap();
    let core = Core::new(t.clone(), 1 << 20);
    let eps = (0..3).map(|_| Endpoint::new(core.clone(), t.clone(), core.add_slot())).collect();
    (f, eps)
}

/// Two clients that add 1 to a word by READ and WRITE, or by fetch-and-add; returns the final word,
/// and the choices made.
fn adders(order: &Order, atomically: bool) -> (u64, Vec<dmtree_fabric::sim::Choice>) {
    let (f, eps) = fabric(order);
    let core = eps[0].core().clone();
    let mut worker = Worker::new(core.clone());
    for ep in &eps[..2] {
        worker.spawn(ep.slot(), async move {
            if atomically {
                ep.faa(at(1024), 1).await.unwrap();
            } else {
                let n = ep.read(at(1024), 8).await.unwrap().word(0);
                ep.write_word(at(1024), n + 1).await.unwrap();
            }
        });
    }
    worker.run(&mut Fifo).unwrap();
    drop(worker);
    let choices = f.choices();
    f.set_timed(false);
    let ep = &eps[2];
    let sum = ep.block_on(async { Ok(ep.read(at(1024), 8).await?.word(0)) }).unwrap();
    (sum, choices)
}

fn all(switches: u32, atomically: bool) -> Vec<u64> {
    let mut sums = Vec::new();
    let mut next = Some(Vec::new());
    while let Some(choices) = next {
        let (sum, made) = adders(&Order::Listed { choices, switches }, atomically);
        sums.push(sum);
        next = next_choices(&made);
        assert!(sums.len() < 1000);
    }
    sums
}

/// Two clients of two verbs each have 6 orders, of which 2 are right; with one switch at most there
/// are fewer.
#[test]
fn every_order_is_tried_once() {
    let sums = all(u32::MAX, false);
    assert_eq!(sums.len(), 6, "{sums:?}");
    assert_eq!(sums.iter().filter(|s| **s == 2).count(), 2, "{sums:?}");
    assert_eq!(all(u32::MAX, true), [2, 2]);
    let bounded = all(1, false);
    assert!(bounded.len() < 6 && bounded.contains(&1), "{bounded:?}");
    assert_eq!(all(0, false), [2]);
}

/// A client with many steps never loses without a change of priorities, and loses in some runs with
/// one.
#[test]
fn priorities_change_at_drawn_moments() {
    let run = |seed, changes| {
        let (f, eps) = fabric(&Order::Priorities { seed, changes, steps: 80 });
        let mut worker = Worker::new(eps[0].core().clone());
        let torn = Rc::new(Cell::new(false));
        let (writer, reader) = (&eps[0], &eps[1]);
        worker.spawn(writer.slot(), async move {
            for k in 1..=20 {
                writer.write_word(at(1024), k).await.unwrap();
                writer.write_word(at(2048), k).await.unwrap();
            }
        });
        let seen = torn.clone();
        worker.spawn(reader.slot(), async move {
            for _ in 0..20 {
                let first = reader.read(at(2048), 8).await.unwrap().word(0);
                let second = reader.read(at(1024), 8).await.unwrap().word(0);
                seen.set(seen.get() || first != second);
            }
        });
        worker.run(&mut Fifo).unwrap();
        (torn.get(), f.trace_hash())
    };
    assert!((0..50).all(|seed| !run(seed, 0).0), "without a change one runs after the other");
    let found = (0..50).filter(|seed| run(*seed, 1).0).count();
    assert!((5..45).contains(&found), "{found} of 50");
    assert_eq!(run(3, 2), run(3, 2));
}
