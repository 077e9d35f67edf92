//! Objects that move, or have their memory reused.

use dmtree_fabric::{Endpoint, golden_hash};

use crate::test_cluster::*;

fn sum(words: [u64; 3]) -> u64 {
    words.iter().fold(0x5eed, |s: u64, w| golden_hash(s ^ w).rotate_left(29))
}

/// Three words with their checksum.
async fn put(ep: &Endpoint, offset: u64, [a, b, c]: [u64; 3]) {
    let mut buf = ep.buf(32).await.unwrap();
    for (word, w) in buf.chunks_exact_mut(8).zip([a, b, c, sum([a, b, c])]) {
        word.copy_from_slice(&w.to_le_bytes());
    }
    ep.write(at(offset), buf).await.unwrap();
}

/// Three words, read until they are whole (or never written).
async fn whole(ep: &Endpoint, offset: u64) -> [u64; 3] {
    loop {
        let s = ep.read(at(offset), 32).await.unwrap();
        let words = [s.word(0), s.word(1), s.word(2)];
        if sum(words) == s.word(3) || (words, s.word(3)) == ([0; 3], 0) {
            return words;
        }
    }
}

/// A node of words {generation, key, value}, written again and again for other keys under its old
/// address; readers and a writer that keep the address.
fn reuse(eps: Vec<Endpoint>, wrong: Wrong, identity: bool) -> Vec<Client> {
    let first = async move |owner: Endpoint| {
        for k in 1..=ROUNDS {
            put(&owner, OBJECT, [k, 100 + k, 1_000 + k]).await;
            // The directory: key and generation of the node.
            owner.write_word(at(1024), k).await.unwrap();
            owner.sleep(2_000).await;
        }
    };
    one_and_others(eps, &wrong, first, async move |ep| {
        let generation = ep.read(at(1024), 8).await.unwrap().word(0);
        ep.sleep(1_000).await;
        let [now, _, value] = whole(ep, OBJECT).await;
        let believed = generation > 0 && (!identity || now == generation);
        believed && value != 1_000 + generation
    })
}

#[test]
fn a_cached_address_is_checked_against_the_generation() {
    fails("any whole node is believed", |_, e, w| reuse(e, w, false), WEAKEST);
    holds("its generation is compared", |_, e, w| reuse(e, w, true), WEAKEST);
}

/// The same for a writer: it locks what its cached address names, and writes. The lock lies in the
/// node and outlives it.
fn stale_writer(eps: Vec<Endpoint>, wrong: Wrong, identity: bool) -> Vec<Client> {
    let lock = at(1024);
    let generation = at(1032);
    let value = at(OBJECT);
    let first = async move |owner: Endpoint| {
        for k in 1..=ROUNDS {
            while owner.cas(lock, 0, 1).await.unwrap() != 0 {
                owner.sleep(500).await;
            }
            // Freed and granted again, for other contents.
            owner.write_word(generation, k).await.unwrap();
            owner.write_word(value, k).await.unwrap();
            owner.cas(lock, 1, 0).await.unwrap();
            owner.sleep(3_000).await;
            let found = owner.read(value, 8).await.unwrap().word(0);
            flag(&wrong, found & 0xffff != k);
        }
    };
    two(eps, first, async move |writer: Endpoint| {
        for _ in 0..ROUNDS {
            let cached = writer.read(generation, 8).await.unwrap().word(0);
            while writer.cas(lock, 0, 2).await.unwrap() != 0 {
                writer.sleep(500).await;
            }
            let same = writer.read(generation, 8).await.unwrap().word(0) == cached;
            if same || !identity {
                writer.write_word(value, 1 << 16 | cached).await.unwrap();
            }
            writer.cas(lock, 2, 0).await.unwrap();
        }
    })
}

#[test]
fn a_writer_looks_again_under_the_lock() {
    fails("locked by a cached address", |_, e, w| stale_writer(e, w, false), WEAKEST);
    holds("identity checked under the lock", |_, e, w| stale_writer(e, w, true), WEAKEST);
}

const KEYS: u64 = 8;
const END: u64 = u64::MAX;

/// A leaf image: {lo, hi, keys as bits}.
async fn put_leaf(ep: &Endpoint, offset: u64, lo: u64, hi: u64) {
    let keys: u64 = (lo..hi.min(KEYS)).map(|k| 1 << k).sum();
    put(ep, offset, [lo, hi, keys]).await;
}

/// A leaf that splits and absorbs its right half again; scans over both.
fn scans(eps: Vec<Endpoint>, wrong: Wrong, fences: bool) -> Vec<Client> {
    let (left, right) = (OBJECT, OBJECT + 4096);
    let first = async move |writer: Endpoint| {
        for _ in 0..ROUNDS {
            put_leaf(&writer, right, END, END).await;
            put_leaf(&writer, left, 0, END).await;
            writer.write_word(at(1024), 1).await.unwrap();
            writer.sleep(1_000).await;
            put_leaf(&writer, right, KEYS / 2, END).await;
            put_leaf(&writer, left, 0, KEYS / 2).await;
            writer.sleep(1_000).await;
            put_leaf(&writer, left, 0, END).await;
        }
    };
    one_and_others(eps, &wrong, first, async move |ep| {
        if ep.read(at(1024), 8).await.unwrap().word(0) == 0 {
            return false;
        }
        let mut seen = [0u32; KEYS as usize];
        let mut take = |keys: u64| {
            (0..KEYS).filter(|k| keys >> k & 1 == 1).for_each(|k| seen[k as usize] += 1);
        };
        let [_, hi, keys] = whole(ep, left).await;
        if !fences {
            take(keys | whole(ep, right).await[2]);
            take(keys & whole(ep, right).await[2]);
        } else if hi == END {
            take(keys);
        } else {
            let mut next = whole(ep, right).await;
            let mut again = 0;
            // Not the leaf that begins where this one ended: from its upper fence on, the
            // left one has the rest.
            while next[0] != hi {
                let now = whole(ep, left).await;
                if now[1] == END {
                    next = [hi, END, now[2] >> hi << hi];
                } else {
                    next = whole(ep, right).await;
                }
                again += 1;
                assert!(again < 100_000, "no consistent pair of leaves");
            }
            take(keys | next[2]);
            take(keys & next[2]);
        }
        seen.iter().any(|n| *n != 1)
    })
}

#[test]
fn a_scan_goes_on_where_the_fence_says() {
    fails("the next leaf, whatever it holds", |_, e, w| scans(e, w, false), WEAKEST);
    holds("the leaf that begins at the fence", |_, e, w| scans(e, w, true), WEAKEST);
}
