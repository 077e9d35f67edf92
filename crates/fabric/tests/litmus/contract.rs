//! The guarantees of the contract hold, and a seed determines a run.

use dmtree_fabric::Endpoint;
use dmtree_fabric::verb::{cas, read, write};

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

/// The guarantees of the contract hold: the ordered pairs of a chain, atomics that exclude each
/// other, visibility.
#[test]
fn the_contract_is_kept() {
    holds("lock with READ, WRITE with unlock", |_, e, w| combined(e, w), WEAKEST);
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
