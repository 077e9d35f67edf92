//! The litmus suite: schemes of synchronization that are known to be unsound must fail on the adversarial fabric within a bounded
//! number of seeds, their sound counterparts must not. This is the test of the simulator, not of any index.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use dmtree_fabric::sim::{Hazards, SimFabric};
use dmtree_fabric::verb::{cas, faa, fenced, read, write, write_word};
use dmtree_fabric::{
    Buf, Capabilities, Core, Endpoint, Fabric, GlobalAddr, NodeId, SeededRandom, Worker,
};

type Client = Pin<Box<dyn Future<Output = ()>>>;
/// What clients see that must not be.
type Wrong = Rc<Cell<u32>>;
/// Makes the clients of a scheme.
type Scheme = fn(Vec<Endpoint>, Wrong) -> Vec<Client>;

/// Within so many seeds an unsound scheme fails.
const SEEDS: u64 = 300;
const ROUNDS: u64 = 40;
/// Words of an object, at `OBJECT` of the first memory node.
const WORDS: u64 = 32;
const OBJECT: u64 = 4096;

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(NodeId::memory(0), offset)
}

fn run(scheme: Scheme, grants: Capabilities, seed: u64) -> (bool, u64) {
    let f = SimFabric::adversarial(Hazards::of_seed(seed), grants, seed).unwrap();
    for m in 0..2 {
        f.add_node(NodeId::memory(m), 1 << 20).unwrap();
    }
    for c in 0..4 {
        f.add_node(NodeId::compute(c), 1 << 16).unwrap();
    }
    f.set_timed(true);
    let first = f.attach(NodeId::compute(0)).unwrap();
    let core = Core::new(first, 1 << 22);
    let mut worker = Worker::new(core.clone());
    let endpoints: Vec<Endpoint> = (0..4)
        .map(|c| {
            let t = f.attach(NodeId::compute(c)).unwrap();
            Endpoint::new(core.clone(), t, core.add_slot())
        })
        .collect();
    let slots: Vec<u32> = endpoints.iter().map(Endpoint::slot).collect();
    let wrong = Wrong::default();
    for (slot, client) in slots.into_iter().zip(scheme(endpoints, wrong.clone())) {
        worker.spawn(slot, client);
    }
    worker.run(&mut SeededRandom::new(seed)).unwrap();
    (wrong.get() > 0, f.trace_hash())
}

/// The first seed that shows the scheme to be unsound.
fn fails(name: &str, scheme: Scheme, grants: Capabilities) -> u64 {
    let seed = (0..SEEDS).find(|seed| run(scheme, grants, *seed).0);
    seed.unwrap_or_else(|| panic!("{name}: no failure in {SEEDS} seeds: the fabric is too kind"))
}

fn holds(name: &str, scheme: Scheme, grants: Capabilities) {
    for seed in 0..SEEDS {
        assert!(!run(scheme, grants, seed).0, "{name} fails with seed {seed}");
    }
}

const WEAKEST: Capabilities = Capabilities::NONE;
const LINES: Capabilities = Capabilities { line_atomic: true, ..Capabilities::NONE };
const ASCENDING: Capabilities =
    Capabilities { line_atomic: true, write_ascending: true, ..Capabilities::NONE };
const READONLY: Capabilities = Capabilities { cas_fail_is_readonly: true, ..Capabilities::NONE };

/// An object whose every word is `k`.
async fn object(ep: &Endpoint, k: u64) -> Buf {
    let mut buf = ep.buf(WORDS as u32 * 8).await.unwrap();
    buf.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&k.to_le_bytes()));
    buf
}

async fn sample(ep: &Endpoint) -> Vec<u64> {
    let s = ep.read(at(OBJECT), WORDS as u32 * 8).await.unwrap();
    (0..WORDS as usize).map(|i| s.word(i)).collect()
}

fn mixed(words: &[u64]) -> bool {
    words.iter().any(|w| *w != words[0])
}

fn flag(wrong: &Wrong, bad: bool) {
    wrong.set(wrong.get() + u32::from(bad));
}

/// One writer rewrites the object, others read it and believe it when `accept` says so.
fn readers(eps: Vec<Endpoint>, wrong: Wrong, accept: fn(&[u64]) -> bool) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let writer = eps.next().unwrap();
    let mut out: Vec<Client> = vec![Box::pin(async move {
        for k in 1..=ROUNDS {
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
        }
    })];
    for ep in eps {
        let wrong = wrong.clone();
        out.push(Box::pin(async move {
            for _ in 0..ROUNDS {
                let words = sample(&ep).await;
                flag(&wrong, accept(&words) && mixed(&words));
            }
        }));
    }
    out
}

fn front_and_rear(words: &[u64]) -> bool {
    words[0] == words[WORDS as usize - 1]
}

/// Every line carries the version (its first word); what is inside one line is not looked at.
fn every_line(words: &[u64]) -> bool {
    words.chunks(8).all(|line| line[0] == words[0])
}

fn every_word(words: &[u64]) -> bool {
    !mixed(words)
}

/// Equal versions at both ends of an object say nothing about its middle, whatever the order of pieces.
#[test]
fn front_and_rear_versions() {
    let naive: Scheme = |eps, wrong| readers(eps, wrong, front_and_rear);
    fails("front and rear versions", naive, LINES);
    fails("front and rear versions, WRITEs ascending", naive, ASCENDING);
    let lines: Scheme = |eps, wrong| readers(eps, wrong, every_line);
    holds("a version in every line", lines, LINES);
    fails("a version in every line, where lines are torn", lines, WEAKEST);
    holds("a checksum over all words", |e, w| readers(e, w, every_word), WEAKEST);
}

/// A writer that marks the object (word 0 of the first line) as being changed; readers in one READ and a look back, or in three.
fn sequence_lock(eps: Vec<Endpoint>, wrong: Wrong, three: bool) -> Vec<Client> {
    let version = at(1024);
    let mut eps = eps.into_iter();
    let writer = eps.next().unwrap();
    let mut out: Vec<Client> = vec![Box::pin(async move {
        for k in 1..=ROUNDS {
            writer.write_word(version, 2 * k - 1).await.unwrap();
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
            writer.write_word(version, 2 * k).await.unwrap();
        }
    })];
    for ep in eps {
        let wrong = wrong.clone();
        out.push(Box::pin(async move {
            for _ in 0..ROUNDS {
                let (before, words) = if three {
                    (ep.read(version, 8).await.unwrap().word(0), sample(&ep).await)
                } else {
                    let both = ep.batch((read(version, 8), read(at(OBJECT), WORDS as u32 * 8)));
                    let (v, s) = both.await.unwrap();
                    (v.word(0), (0..WORDS as usize).map(|i| s.word(i)).collect())
                };
                let after = ep.read(version, 8).await.unwrap().word(0);
                flag(&wrong, before == after && before % 2 == 0 && mixed(&words));
            }
        }));
    }
    out
}

#[test]
fn version_and_data_read_together() {
    fails("version and data in one round", |e, w| sequence_lock(e, w, false), WEAKEST);
    holds("three awaited READs", |e, w| sequence_lock(e, w, true), WEAKEST);
}

/// A message is believed to be there when its last word is.
fn message(eps: Vec<Endpoint>, wrong: Wrong, flagged: bool) -> Vec<Client> {
    let done = if flagged { at(1024) } else { at(OBJECT + WORDS * 8 - 8) };
    let mut eps = eps.into_iter();
    let (sender, receiver) = (eps.next().unwrap(), eps.next().unwrap());
    vec![
        Box::pin(async move {
            for k in 1..=ROUNDS {
                let buf = object(&sender, k).await;
                if flagged {
                    sender.chain((write(at(OBJECT), buf), write_word(at(1024), k))).await.unwrap();
                } else {
                    sender.write(at(OBJECT), buf).await.unwrap();
                }
            }
        }),
        Box::pin(async move {
            for _ in 0..ROUNDS {
                let k = receiver.read(done, 8).await.unwrap().word(0);
                let words = sample(&receiver).await;
                // Later messages may have come; older ones must not be seen.
                flag(&wrong, words.iter().any(|w| *w < k));
            }
        }),
    ]
}

#[test]
fn the_last_byte_is_not_the_message() {
    fails("last word polled", |e, w| message(e, w, false), WEAKEST);
    holds("a flag behind the message", |e, w| message(e, w, true), WEAKEST);
}

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
    fails("WRITE beside fetch-and-add", |e, w| mixed_access(e, w, true), WEAKEST);
    holds("atomics alone", |e, w| mixed_access(e, w, false), WEAKEST);
}

/// A lock that its holder frees by a WRITE of 0, or by a compare-and-swap.
fn release(eps: Vec<Endpoint>, wrong: Wrong, by_write: bool) -> Vec<Client> {
    let clients = eps.into_iter().enumerate();
    let clients = clients.map(|(i, ep)| -> Client {
        let wrong = wrong.clone();
        let tag = i as u64 + 1;
        Box::pin(async move {
            for _ in 0..ROUNDS / 4 {
                let mut tries = 0;
                loop {
                    let was = ep.cas(at(1024), 0, tag).await.unwrap();
                    if was == 0 {
                        break;
                    }
                    tries += 1;
                    if was == tag || tries > 2_000 {
                        // Our own release was undone, or somebody's.
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
    });
    clients.collect()
}

#[test]
fn a_lock_is_freed_by_an_atomic() {
    fails("freed by WRITE", |e, w| release(e, w, true), WEAKEST);
    holds("freed by WRITE, failing atomics write nothing", |e, w| release(e, w, true), READONLY);
    holds("freed by compare-and-swap", |e, w| release(e, w, false), WEAKEST);
}

/// Readers count themselves in by fetch-and-add; a writer changes the object only when it counts none.
fn shared_lock(eps: Vec<Endpoint>, wrong: Wrong, fence: bool) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let writer = eps.next().unwrap();
    const WRITER: u64 = 1 << 32;
    let mut out: Vec<Client> = vec![Box::pin(async move {
        for k in 1..=ROUNDS {
            while writer.cas(at(1024), 0, WRITER).await.unwrap() != 0 {
                writer.sleep(500).await;
            }
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
            writer.faa(at(1024), WRITER.wrapping_neg()).await.unwrap();
            writer.sleep(2_000).await;
        }
    })];
    for ep in eps {
        let wrong = wrong.clone();
        out.push(Box::pin(async move {
            for _ in 0..ROUNDS {
                if ep.faa(at(1024), 1).await.unwrap() >= WRITER {
                    ep.faa(at(1024), u64::MAX).await.unwrap();
                    continue;
                }
                let (data, back) = (read(at(OBJECT), WORDS as u32 * 8), faa(at(1024), u64::MAX));
                let s = if fence {
                    ep.chain((data, fenced(back))).await.unwrap().0
                } else {
                    ep.batch((data, back)).await.unwrap().0
                };
                flag(&wrong, mixed(&(0..WORDS as usize).map(|i| s.word(i)).collect::<Vec<_>>()));
            }
        }));
    }
    out
}

#[test]
fn a_shared_lock_is_given_back_behind_the_read() {
    fails("given back beside the READ", |e, w| shared_lock(e, w, false), WEAKEST);
    holds("given back behind a fence", |e, w| shared_lock(e, w, true), WEAKEST);
}

/// A new object on one memory node, its pointer on another.
fn publish(eps: Vec<Endpoint>, wrong: Wrong, awaited: bool) -> Vec<Client> {
    let child = |k: u64| GlobalAddr::new(NodeId::memory(1), OBJECT + k * 8);
    let mut eps = eps.into_iter();
    let (writer, reader) = (eps.next().unwrap(), eps.next().unwrap());
    vec![
        Box::pin(async move {
            for k in 1..=ROUNDS {
                if awaited {
                    writer.write_word(child(k), k).await.unwrap();
                    writer.write_word(at(1024), k).await.unwrap();
                } else {
                    writer.batch((write_word(child(k), k), write_word(at(1024), k))).await.unwrap();
                }
            }
        }),
        Box::pin(async move {
            for _ in 0..ROUNDS {
                let k = reader.read(at(1024), 8).await.unwrap().word(0);
                if k > 0 {
                    flag(&wrong, reader.read(child(k), 8).await.unwrap().word(0) != k);
                }
            }
        }),
    ]
}

#[test]
fn a_pointer_to_another_node_waits_for_what_it_points_to() {
    fails("pointer beside the object", |e, w| publish(e, w, false), WEAKEST);
    holds("pointer after the object", |e, w| publish(e, w, true), WEAKEST);
}

/// An operation that is acknowledged while its last WRITE is on the way.
fn acknowledge(eps: Vec<Endpoint>, wrong: Wrong, awaited: bool) -> Vec<Client> {
    let mut eps = eps.into_iter();
    let (writer, reader) = (eps.next().unwrap(), eps.next().unwrap());
    let acknowledged = Rc::new(Cell::new(0));
    let seen = acknowledged.clone();
    vec![
        Box::pin(async move {
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
        }),
        Box::pin(async move {
            for _ in 0..ROUNDS {
                let due = seen.get();
                let found = reader.read(at(1024), 8).await.unwrap().word(0);
                flag(&wrong, found < due);
            }
        }),
    ]
}

#[test]
fn what_is_acknowledged_is_there() {
    fails("acknowledged before its WRITE", |e, w| acknowledge(e, w, false), WEAKEST);
    holds("acknowledged after it", |e, w| acknowledge(e, w, true), WEAKEST);
}

/// [compare-and-swap, READ] in one chain under a lock that is freed behind the WRITE: the sound way in one round each.
fn combined(eps: Vec<Endpoint>, wrong: Wrong) -> Vec<Client> {
    let clients = eps.into_iter().enumerate();
    let clients = clients.map(|(i, ep)| -> Client {
        let wrong = wrong.clone();
        let tag = i as u64 + 1;
        Box::pin(async move {
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
    });
    clients.collect()
}

/// What the contract promises is kept: the ordered pairs of a chain, atomics that exclude each other, visibility.
#[test]
fn the_contract_is_kept() {
    holds("lock with READ, WRITE with unlock", combined, WEAKEST);
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        let scheme: Scheme = |e, w| readers(e, w, front_and_rear);
        let first = run(scheme, WEAKEST, seed);
        run(combined, WEAKEST, seed + 1);
        assert_eq!(run(scheme, WEAKEST, seed), first);
    }
}
