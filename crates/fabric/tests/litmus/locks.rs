//! Atomics, and locks made of them.

use std::cell::Cell;
use std::rc::Rc;

use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::verb::{cas, faa, fenced, read, write_word};
use dmtree_fabric::{Endpoint, Fabric, NodeId};

use crate::test_cluster::*;

/// A word that some touch by atomics and one by `plain` WRITEs.
fn mixed_access(eps: Vec<Endpoint>, wrong: Wrong, plain: bool) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let owner = eps.next().unwrap();
    let mut out: Vec<Client> = vec![Box::pin(async move {
        for k in 1..=ROUNDS {
            if plain {
                owner.write_word(at(1024), k).await.unwrap();
            } else {
                owner.cas(at(1024), k - 1, k).await.unwrap();
            }
            let now = owner.read(at(1024), 8).await.unwrap().word(0);
            flag(&wrong, now != k);
        }
    })];
    for ep in eps {
        out.push(Box::pin(async move {
            for _ in 0..ROUNDS {
                ep.faa(at(1024), 0).await.unwrap();
            }
        }));
    }
    out
}

#[test]
fn plain_writes_and_atomics_on_one_word() {
    fails("WRITE beside fetch-and-add", |_, e, w| mixed_access(e, w, true), WEAKEST);
    holds("atomics alone", |_, e, w| mixed_access(e, w, false), WEAKEST);
}

/// A lock that its holder frees by a WRITE of 0, or by a compare-and-swap.
fn release(eps: Vec<Endpoint>, wrong: Wrong, by_write: bool) -> Vec<Client> {
    each(eps, async move |ep, tag| {
        for _ in 0..ROUNDS / 4 {
            let mut tries = 0;
            loop {
                let was = ep.cas(at(1024), 0, tag).await.unwrap();
                if was == 0 {
                    break;
                }
                tries += 1;
                if was == tag || tries > 2_000 {
                    // A release was undone: this client's or another one's.
                    flag(&wrong, true);
                    return;
                }
                ep.sleep(1_000).await;
            }
            if by_write {
                ep.write_word(at(1024), 0).await.unwrap();
            } else {
                ep.cas(at(1024), tag, 0).await.unwrap();
            }
        }
    })
}

#[test]
fn a_lock_is_freed_by_an_atomic() {
    fails("freed by WRITE", |_, e, w| release(e, w, true), WEAKEST);
    holds("freed by WRITE, failing atomics write nothing", |_, e, w| release(e, w, true), READONLY);
    holds("freed by compare-and-swap", |_, e, w| release(e, w, false), WEAKEST);
}

const WRITER: u64 = 1 << 32;

/// Readers count themselves in by fetch-and-add; a writer changes the object only when it counts
/// none.
fn shared_lock(eps: Vec<Endpoint>, wrong: Wrong, fence: bool) -> Vec<Client> {
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            while writer.cas(at(1024), 0, WRITER).await.unwrap() != 0 {
                writer.sleep(500).await;
            }
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
            writer.faa(at(1024), WRITER.wrapping_neg()).await.unwrap();
            writer.sleep(2_000).await;
        }
    };
    one_and_others(eps, &wrong, first, async move |ep| {
        if ep.faa(at(1024), 1).await.unwrap() >= WRITER {
            ep.faa(at(1024), u64::MAX).await.unwrap();
            return false;
        }
        let (data, back) = (read(at(OBJECT), WORDS as u32 * 8), faa(at(1024), u64::MAX));
        let s = if fence {
            ep.chain((data, fenced(back))).await.unwrap().0
        } else {
            ep.batch((data, back)).await.unwrap().0
        };
        mixed(&(0..WORDS as usize).map(|i| s.word(i)).collect::<Vec<_>>())
    })
}

#[test]
fn a_shared_lock_is_given_back_behind_the_read() {
    fails("given back beside the READ", |_, e, w| shared_lock(e, w, false), WEAKEST);
    holds("given back behind a fence", |_, e, w| shared_lock(e, w, true), WEAKEST);
}

/// Two threads of one compute node hand a remote lock over between them, the first one's WRITE
/// posted or completed.
fn hand_over(eps: Vec<Endpoint>, wrong: Wrong, awaited: bool) -> Vec<Client> {
    let turn = Rc::new(Cell::new(0));
    each(eps.into_iter().take(2), async move |ep, number| {
        let me = number - 1;
        for k in 0..ROUNDS {
            while turn.get() % 2 != me {
                ep.sleep(200).await;
            }
            let seen = ep.read(at(OBJECT), 8).await.unwrap().word(0);
            flag(&wrong, seen != 2 * k + me);
            if awaited {
                ep.write_word(at(OBJECT), seen + 1).await.unwrap();
            } else {
                ep.detach(write_word(at(OBJECT), seen + 1), None);
            }
            turn.set(turn.get() + 1);
            ep.drain().await.unwrap();
        }
    })
}

#[test]
fn a_lock_is_handed_over_when_the_write_has_completed() {
    fails("handed over at the post", |_, e, w| hand_over(e, w, false), WEAKEST);
    holds("handed over at the completion", |_, e, w| hand_over(e, w, true), WEAKEST);
}

/// Inserters hold a lock shared while they put an entry by compare-and-swap; a splitter, which
/// holds it exclusively, moves entries.
fn entry_beside_release(eps: Vec<Endpoint>, wrong: Wrong, fence: bool) -> Vec<Client> {
    let (old, new) = (|r: u64| at(OBJECT + 8 * r), |r: u64| at(2 * OBJECT + 8 * r));
    let moved = |r: u64| at(3 * OBJECT + 8 * r);
    let first = async move |inserter: Endpoint| {
        for r in 0..ROUNDS {
            while inserter.faa(at(1024), 1).await.unwrap() >= WRITER {
                inserter.faa(at(1024), u64::MAX).await.unwrap();
                inserter.sleep(500).await;
            }
            if inserter.read(moved(r), 8).await.unwrap().word(0) == 1 {
                inserter.cas(new(r), 0, 1).await.unwrap();
                inserter.faa(at(1024), u64::MAX).await.unwrap();
            } else if fence {
                let list = (cas(old(r), 0, 1), fenced(faa(at(1024), u64::MAX)));
                inserter.chain(list).await.unwrap();
            } else {
                inserter.batch((cas(old(r), 0, 1), faa(at(1024), u64::MAX))).await.unwrap();
            }
            // Acknowledged. When the splitter has passed, it must be at the new place.
            while inserter.read(moved(r), 8).await.unwrap().word(0) == 0 {
                inserter.sleep(500).await;
            }
            flag(&wrong, inserter.read(new(r), 8).await.unwrap().word(0) != 1);
        }
    };
    two(eps, first, async move |splitter: Endpoint| {
        for r in 0..ROUNDS {
            while splitter.cas(at(1024), 0, WRITER).await.unwrap() != 0 {
                splitter.sleep(300).await;
            }
            let entry = splitter.read(old(r), 8).await.unwrap().word(0);
            splitter.cas(new(r), 0, entry).await.unwrap();
            splitter.write_word(moved(r), 1).await.unwrap();
            splitter.faa(at(1024), WRITER.wrapping_neg()).await.unwrap();
        }
    })
}

#[test]
fn an_entry_is_there_before_its_lock_is_given_back() {
    fails("given back beside the entry", |_, e, w| entry_beside_release(e, w, false), WEAKEST);
    holds("given back behind a fence", |_, e, w| entry_beside_release(e, w, true), WEAKEST);
}

/// A lock is taken over from a holder with an ended lease, with or without a revocation before; its
/// WRITEs may still be in flight.
fn steal(f: &SimFabric, eps: Vec<Endpoint>, wrong: Wrong, revoke: bool) -> Vec<Client> {
    const LEASE_NS: u64 = 20_000;
    let f = f.clone();
    let first = async move |holder: Endpoint| {
        for k in 1..=ROUNDS {
            // Anything that fails: revoked.
            let Ok(was) = holder.cas(at(1024), 0, 1).await else { return };
            if was != 0 {
                return;
            }
            let buf = object(&holder, k).await;
            if holder.write(at(OBJECT), buf).await.is_err()
                || !holder.cas(at(1024), 1, 0).await.is_ok_and(|was| was == 1)
            {
                return;
            }
        }
    };
    two(eps, first, async move |thief: Endpoint| {
        let mut since = thief.now();
        for _ in 0..20 * ROUNDS {
            if thief.read(at(1024), 8).await.unwrap().word(0) != 1 {
                since = thief.now();
            }
            if thief.now() - since > LEASE_NS {
                break;
            }
        }
        if revoke {
            f.revoke(NodeId::memory(0), NodeId::compute(0), u32::MAX).unwrap();
        }
        if thief.cas(at(1024), 1, 2).await.unwrap() != 1 {
            return;
        }
        let buf = object(&thief, 1_000).await;
        thief.write(at(OBJECT), buf).await.unwrap();
        for _ in 0..ROUNDS {
            let words = sample(&thief).await;
            flag(&wrong, words.iter().any(|w| *w != 1_000));
        }
    })
}

#[test]
fn a_holder_is_revoked_before_its_lock_is_taken() {
    fails("stolen after its lease", |f, e, w| steal(f, e, w, false), WEAKEST);
    holds("revoked, then stolen", |f, e, w| steal(f, e, w, true), WEAKEST);
}
