//! Answers that are lost, and locks that are lost with the memory they are in.

use std::cell::Cell;
use std::rc::Rc;

use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::{Endpoint, Fabric, GlobalAddr, NodeId, Result};

use crate::test_cluster::*;

/// How often the link is cut, longer each time than a verb is tried again.
const CUTS: u64 = 12;

/// A link that is cut now and then loses answers of compare-and-swaps that took effect: a retrying
/// client may find its own lock.
fn answer_lost(f: &SimFabric, eps: Vec<Endpoint>, wrong: Wrong, tagged: bool) -> Vec<Client> {
    let (f, over) = (f.clone(), Rc::new(Cell::new(false)));
    let ended = over.clone();
    let first = async move |client: Endpoint| {
        for k in 1..=ROUNDS / 4 {
            let tag = if tagged { k + 1 } else { 1 };
            let mut tries = 0;
            loop {
                // No answer: try again.
                let was = client.cas(at(1024), 0, tag).await;
                if was.as_ref().is_ok_and(|was| *was == 0 || tagged && *was == tag) {
                    break;
                }
                tries += 1;
                if tries > 200 {
                    // No other client wants the lock, and still it cannot be acquired.
                    flag(&wrong, true);
                    over.set(true);
                    return;
                }
                client.sleep(20_000).await;
            }
            while client.cas(at(1024), tag, 0).await.is_err() {
                client.sleep(20_000).await;
            }
        }
        over.set(true);
    };
    two(eps, first, async move |cutter: Endpoint| {
        let (near, far) = (NodeId::compute(0), NodeId::memory(0));
        for pause in (1..=CUTS).map(|n| n * 7_000) {
            if ended.get() {
                return;
            }
            cutter.sleep(pause).await;
            f.cut(near, far);
            cutter.sleep(700_000).await;
            f.heal(near, far);
        }
    })
}

/// L17.
#[test]
fn a_client_without_an_answer_recognizes_its_own_lock() {
    fails("a lock that says nothing", |f, e, w| answer_lost(f, e, w, false), WEAKEST);
    holds("a lock that names its holder", |f, e, w| answer_lost(f, e, w, true), WEAKEST);
}

fn chip_lock() -> GlobalAddr {
    GlobalAddr::on_chip(NodeId::memory(0), 64)
}

/// Adds 1 to the counter under the lock. `start_over`: a client that has lost its connection treats
/// its lock as lost, too.
async fn add(f: &SimFabric, ep: &Endpoint, tag: u64, start_over: bool) -> Result<()> {
    let again = || {
        let host = NodeId::memory(0);
        f.connect(ep.node(), host, f.incarnation(host).unwrap());
    };
    'whole: loop {
        match ep.cas(chip_lock(), 0, tag).await {
            Ok(0) => {}
            Ok(was) if was == tag => {}
            Ok(_) => {
                ep.sleep(1_000).await;
                continue;
            }
            Err(_) => {
                again();
                continue;
            }
        }
        let count = loop {
            match ep.read(at(OBJECT), 8).await {
                Ok(count) => break count.word(0),
                Err(_) => again(),
            }
            if start_over {
                continue 'whole;
            }
        };
        while ep.write_word(at(OBJECT), count + 1).await.is_err() {
            again();
            if start_over {
                continue 'whole;
            }
        }
        while ep.cas(chip_lock(), tag, 0).await.is_err() {
            again();
        }
        return Ok(());
    }
}

/// The NIC restarts: locks in its memory are free again, and their holders do not know.
fn chip_restarts(f: &SimFabric, eps: Vec<Endpoint>, wrong: Wrong, start_over: bool) -> Vec<Client> {
    let done = Rc::new(Cell::new(0));
    let mut eps = eps.into_iter();
    let last = eps.next().unwrap();
    let workers = 3;
    let ended = Rc::new(Cell::new(0));
    let mut out: Vec<Client> = eps
        .enumerate()
        .map(|(i, ep)| -> Client {
            let (f, done, ended) = (f.clone(), done.clone(), ended.clone());
            Box::pin(async move {
                for _ in 0..ROUNDS / 4 {
                    add(&f, &ep, i as u64 + 1, start_over).await.unwrap();
                    done.set(done.get() + 1);
                }
                ended.set(ended.get() + 1);
            })
        })
        .collect();
    let f = f.clone();
    // Clients are in the order of their slots.
    out.insert(
        0,
        Box::pin(async move {
            let host = NodeId::memory(0);
            for _ in 0..3 {
                last.sleep(40_000).await;
                f.restart_nic(host).unwrap();
            }
            while ended.get() < workers {
                last.sleep(100_000).await;
            }
            f.connect(last.node(), host, f.incarnation(host).unwrap());
            let count = last.read(at(OBJECT), 8).await.unwrap().word(0);
            // A client that started over may have counted twice; no count is lost.
            flag(&wrong, count < done.get());
        }),
    );
    out
}

/// L18.
#[test]
fn a_restart_of_the_nic_ends_critical_sections_under_its_locks() {
    fails_on("goes on", |f, e, w| chip_restarts(f, e, w, false), ON_CHIP);
    holds_on("starts over", |f, e, w| chip_restarts(f, e, w, true), ON_CHIP);
}
