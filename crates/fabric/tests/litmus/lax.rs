//! Releases of a lock on platforms that keep less than the contract: relaxed memory, and locks in
//! on-chip memory beside objects in main memory.

use dmtree_fabric::verb::{cas, write, write_word};
use dmtree_fabric::{Endpoint, GlobalAddr, NodeId};

use crate::test_cluster::*;

/// How a holder gives its lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// `[WRITE object, WRITE 0]`.
    WriteBehind,
    /// `[WRITE object, compare-and-swap]`.
    AtomicBehind,
    /// The WRITE of the object is awaited first.
    Awaited,
}

/// Holders, one after the other, find the object as the one before left it.
fn release(eps: Vec<Endpoint>, wrong: Wrong, lock: GlobalAddr, how: Release) -> Vec<Client> {
    each(eps, async move |ep, tag| {
        for _ in 0..ROUNDS / 4 {
            while ep.cas(lock, 0, tag).await.unwrap() != 0 {
                ep.sleep(1_000).await;
            }
            let words = sample(&ep).await;
            flag(&wrong, mixed(&words));
            let new = object(&ep, words[0] + 1).await;
            let object = at(OBJECT);
            match how {
                Release::WriteBehind => {
                    _ = ep.chain((write(object, new), write_word(lock, 0))).await.unwrap();
                }
                Release::AtomicBehind => {
                    _ = ep.chain((write(object, new), cas(lock, tag, 0))).await.unwrap();
                }
                Release::Awaited => {
                    ep.write(object, new).await.unwrap();
                    ep.cas(lock, tag, 0).await.unwrap();
                }
            }
        }
    })
}

fn in_main_memory() -> GlobalAddr {
    at(1024)
}

fn on_chip() -> GlobalAddr {
    GlobalAddr::on_chip(NodeId::memory(0), 64)
}

/// L9.
#[test]
fn a_release_in_relaxed_memory_is_an_atomic_or_waits() {
    use Release::{AtomicBehind, Awaited, WriteBehind};
    fails_on("WRITE of 0 behind", |_, e, w| release(e, w, in_main_memory(), WriteBehind), RELAXED);
    holds_on("atomic behind", |_, e, w| release(e, w, in_main_memory(), AtomicBehind), RELAXED);
    holds_on("awaited", |_, e, w| release(e, w, in_main_memory(), Awaited), RELAXED);
    holds("strict memory", |_, e, w| release(e, w, in_main_memory(), WriteBehind), READONLY);
}

/// L10.
#[test]
fn a_lock_on_chip_is_given_back_when_the_object_is_there() {
    use Release::{AtomicBehind, Awaited};
    fails_on("on chip, behind", |_, e, w| release(e, w, on_chip(), AtomicBehind), SKEWED);
    holds_on("on chip, awaited", |_, e, w| release(e, w, on_chip(), Awaited), SKEWED);
    holds_on("on chip, as promised", |_, e, w| release(e, w, on_chip(), AtomicBehind), ON_CHIP);
}
