//! The guarantees of the contract hold, and a seed determines a run.

use dmtree_fabric::Endpoint;
use dmtree_fabric::verb::{beside, cas, read, write};

use crate::reads::{front_and_rear, readers};
use crate::test_cluster::*;

/// [compare-and-swap, READ] in one chain under a lock that is freed behind the WRITE: the sound way
/// in one round each.
fn combined(eps: Vec<Endpoint>, wrong: Wrong) -> Vec<Client> {
    each(eps, async move |ep, tag| {
        for _ in 0..ROUNDS / 4 {
            loop {
                let list = (cas(at(1024), 0, tag), read(at(OBJECT), WORDS as u32 * 8));
                let (was, s) = ep.chain(list).await.unwrap();
                if was != 0 {
                    ep.sleep(1_000).await;
                    continue;
                }
                let words: Vec<u64> = (0..WORDS as usize).map(|i| s.word(i)).collect();
                flag(&wrong, mixed(&words));
                let buf = object(&ep, words[0] + 1).await;
                ep.detach((write(at(OBJECT), buf), cas(at(1024), tag, 0)), None);
                break;
            }
        }
        ep.drain().await.unwrap();
        let count = ep.faa(at(2048), ROUNDS / 4).await.unwrap() + ROUNDS / 4;
        if count == ROUNDS {
            while ep.read(at(1024), 8).await.unwrap().word(0) != 0 {
                ep.sleep(1_000).await;
            }
            flag(&wrong, sample(&ep).await != vec![ROUNDS; WORDS as usize]);
        }
    })
}

/// A lock, and the object in two READs: each is ordered behind the compare-and-swap, and so the two
/// agree.
fn in_two_reads(eps: Vec<Endpoint>, wrong: Wrong) -> Vec<Client> {
    each(eps, async move |ep, tag| {
        let (front, rear) = (read(at(OBJECT), 32), read(at(OBJECT + 32), WORDS as u32 * 8 - 32));
        for _ in 0..ROUNDS / 4 {
            loop {
                let list = (cas(at(1024), 0, tag), beside(rear, Some(front)));
                let (was, (rear, front)) = ep.chain(list).await.unwrap();
                if was != 0 {
                    ep.sleep(1_000).await;
                    continue;
                }
                let front = front.expect("it was asked for");
                let mut words: Vec<u64> = (0..4).map(|i| front.word(i)).collect();
                words.extend((0..WORDS as usize - 4).map(|i| rear.word(i)));
                flag(&wrong, mixed(&words));
                let buf = object(&ep, words[0] + 1).await;
                ep.chain((write(at(OBJECT), buf), cas(at(1024), tag, 0))).await.unwrap();
                break;
            }
        }
    })
}

/// One READ beside another that looks at what is written later: between them is no order.
fn in_order(eps: Vec<Endpoint>, wrong: Wrong) -> Vec<Client> {
    let writer = async |ep: Endpoint| {
        for i in 1..=ROUNDS {
            ep.write_word(at(1024), i).await.unwrap();
            ep.write_word(at(2048), i).await.unwrap();
        }
    };
    one_and_others(eps, &wrong, writer, async |ep| {
        let list = (cas(at(3072), 0, 0), beside(read(at(2048), 8), Some(read(at(1024), 8))));
        let (_, (late, early)) = ep.chain(list).await.unwrap();
        early.expect("it was asked for").word(0) < late.word(0)
    })
}

/// The guarantees of the contract hold: the ordered pairs of a chain, atomics that exclude each
/// other, visibility.
#[test]
fn the_contract_is_kept() {
    holds("lock with READ, WRITE with unlock", |_, e, w| combined(e, w), WEAKEST);
    holds("lock with two READs", |_, e, w| in_two_reads(e, w), WEAKEST);
}

/// READs beside each other have no order.
#[test]
fn reads_of_a_chain_overtake_each_other() {
    fails("the first of two READs is the earlier one", |_, e, w| in_order(e, w), WEAKEST);
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        let scheme: Scheme = |_, e, w| readers(e, w, front_and_rear);
        let first = run(scheme, WEAKEST, seed);
        run(|_, e, w| combined(e, w), WEAKEST, seed + 1);
        assert_eq!(run(scheme, WEAKEST, seed), first);
    }
}
