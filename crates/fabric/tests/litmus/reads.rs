//! Lock-free readers: how a reader detects torn reads.

use dmtree_fabric::Endpoint;
use dmtree_fabric::verb::{read, write, write_word};

use crate::test_cluster::*;

/// One writer rewrites the object, others read it and believe it when `accept` says so.
pub fn readers(eps: Vec<Endpoint>, wrong: Wrong, accept: fn(&[u64]) -> bool) -> Vec<Client> {
    stamped(eps, wrong, |_, _| (), move |words| accept(words) && mixed(words))
}

/// The same, with objects that the writer stamps with their version, and the mixes that readers
/// believe.
fn stamped(
    eps: Vec<Endpoint>,
    wrong: Wrong,
    stamp: impl Fn(u64, &mut [u8]) + 'static,
    is_believed_mix: impl Fn(&[u64]) -> bool + Copy + 'static,
) -> Vec<Client> {
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            let mut buf = object(&writer, k).await;
            stamp(k, &mut buf);
            writer.write(at(OBJECT), buf).await.unwrap();
        }
    };
    one_and_others(eps, &wrong, first, async move |ep| {
        let words = sample(ep).await;
        is_believed_mix(&words)
    })
}

pub fn front_and_rear(words: &[u64]) -> bool {
    words[0] == words[WORDS as usize - 1]
}

/// Every line carries the version (its first word); the bytes inside one line are not checked.
fn every_line(words: &[u64]) -> bool {
    words.chunks(8).all(|line| line[0] == words[0])
}

fn every_word(words: &[u64]) -> bool {
    !mixed(words)
}

/// Equal versions at both ends of an object say nothing about its middle, whatever the order of
/// pieces.
#[test]
fn front_and_rear_versions() {
    let naive: Scheme = |_, eps, wrong| readers(eps, wrong, front_and_rear);
    fails("front and rear versions", naive, LINES);
    fails("front and rear versions, WRITEs ascending", naive, ASCENDING);
    let lines: Scheme = |_, eps, wrong| readers(eps, wrong, every_line);
    holds("a version in every line", lines, LINES);
    fails("a version in every line, where lines are torn", lines, WEAKEST);
    holds("a checksum over all words", |_, e, w| readers(e, w, every_word), WEAKEST);
}

/// A writer that marks the object (word 0 of the first line) as being changed; readers in one READ
/// and a look back, or in three.
fn sequence_lock(eps: Vec<Endpoint>, wrong: Wrong, three: bool) -> Vec<Client> {
    let version = at(1024);
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            writer.write_word(version, 2 * k - 1).await.unwrap();
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
            writer.write_word(version, 2 * k).await.unwrap();
        }
    };
    one_and_others(eps, &wrong, first, async move |ep| {
        let (before, words) = if three {
            (ep.read(version, 8).await.unwrap().word(0), sample(ep).await)
        } else {
            let both = ep.batch((read(version, 8), read(at(OBJECT), WORDS as u32 * 8)));
            let (v, s) = both.await.unwrap();
            (v.word(0), (0..WORDS as usize).map(|i| s.word(i)).collect())
        };
        let after = ep.read(version, 8).await.unwrap().word(0);
        before == after && before % 2 == 0 && mixed(&words)
    })
}

#[test]
fn version_and_data_read_together() {
    fails("version and data in one round", |_, e, w| sequence_lock(e, w, false), WEAKEST);
    holds("three awaited READs", |_, e, w| sequence_lock(e, w, true), WEAKEST);
}

/// A message is believed to be there when its last word is.
fn message(eps: Vec<Endpoint>, wrong: Wrong, flagged: bool) -> Vec<Client> {
    let done = if flagged { at(1024) } else { at(OBJECT + WORDS * 8 - 8) };
    let first = async move |sender: Endpoint| {
        for k in 1..=ROUNDS {
            let buf = object(&sender, k).await;
            if flagged {
                sender.chain((write(at(OBJECT), buf), write_word(at(1024), k))).await.unwrap();
            } else {
                sender.write(at(OBJECT), buf).await.unwrap();
            }
        }
    };
    two(eps, first, async move |receiver: Endpoint| {
        for _ in 0..ROUNDS {
            let k = receiver.read(done, 8).await.unwrap().word(0);
            let words = sample(&receiver).await;
            // Later messages may have come; older ones must not be seen.
            flag(&wrong, words.iter().any(|w| *w < k));
        }
    })
}

#[test]
fn the_last_byte_is_not_the_message() {
    fails("last word polled", |_, e, w| message(e, w, false), WEAKEST);
    holds("a flag behind the message", |_, e, w| message(e, w, true), WEAKEST);
}

/// Every line carries the low bit of the version.
fn line_versions_of_one_bit(eps: Vec<Endpoint>, wrong: Wrong, mask: u64) -> Vec<Client> {
    let stamp = move |k: u64, buf: &mut [u8]| {
        buf.chunks_exact_mut(64).for_each(|l| l[..8].copy_from_slice(&(k & mask).to_le_bytes()));
    };
    stamped(eps, wrong, stamp, |words| {
        every_line(words) && words.chunks(8).any(|line| line[1] != words[1])
    })
}

/// A version that comes round again within one READ certifies a mix.
#[test]
fn versions_must_not_wrap_within_a_read() {
    fails("versions of one bit", |_, e, w| line_versions_of_one_bit(e, w, 1), LINES);
    holds("versions of 64 bits", |_, e, w| line_versions_of_one_bit(e, w, u64::MAX), LINES);
}

/// An object with its sum, which is written late: readers accept an object that matches its sum.
fn sums(eps: Vec<Endpoint>, wrong: Wrong, seed: u64) -> Vec<Client> {
    let first = async move |writer: Endpoint| {
        writer.sleep(5_000).await;
        let mut buf = object(&writer, 1).await;
        let sum = seed.wrapping_add(WORDS - 1);
        buf[WORDS as usize * 8 - 8..].copy_from_slice(&sum.to_le_bytes());
        writer.write(at(OBJECT), buf).await.unwrap();
    };
    two(eps, first, async move |reader: Endpoint| {
        for _ in 0..ROUNDS {
            let words = sample(&reader).await;
            let (sum, data) = words.split_last().unwrap();
            let adds_up = data.iter().fold(seed, |s, w| s.wrapping_add(*w)) == *sum;
            flag(&wrong, adds_up && data.iter().any(|w| *w != 1));
        }
    })
}

#[test]
fn unwritten_memory_must_not_verify() {
    fails("a checksum that begins at zero", |_, e, w| sums(e, w, 0), WEAKEST);
    holds("a checksum with a seed", |_, e, w| sums(e, w, 0x5eed), WEAKEST);
}

/// An entry that is there from its first WRITE on, and is rewritten all the time; a reader that
/// treats a torn entry as absent.
fn torn_is_absent(eps: Vec<Endpoint>, wrong: Wrong, again: bool) -> Vec<Client> {
    let first = async move |writer: Endpoint| {
        for k in 1..=ROUNDS {
            let buf = object(&writer, k).await;
            writer.write(at(OBJECT), buf).await.unwrap();
            writer.write_word(at(1024), 1).await.unwrap();
        }
    };
    two(eps, first, async move |reader: Endpoint| {
        for _ in 0..ROUNDS {
            if reader.read(at(1024), 8).await.unwrap().word(0) == 0 {
                continue;
            }
            let mut words = sample(&reader).await;
            while again && mixed(&words) {
                words = sample(&reader).await;
            }
            let found = !mixed(&words) && words[0] != 0;
            flag(&wrong, !found);
        }
    })
}

#[test]
fn torn_is_not_absent() {
    fails("torn taken for absent", |_, e, w| torn_is_absent(e, w, false), WEAKEST);
    holds("torn is read again", |_, e, w| torn_is_absent(e, w, true), WEAKEST);
}
