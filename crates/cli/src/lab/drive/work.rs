//! Threads that write and read keys of their own, and say so. Lines on standard output, each of
//! words:
//!
//! | line | what |
//! |---|---|
//! | `up` | the index is open |
//! | `s KEY N`, `s KEY -N` | write number N of a key begins; with a minus it removes the key |
//! | `a KEY N` | it is done |
//! | `n KEY N` | it has failed without an effect |
//! | `u KEY N` | it has failed, and may have happened or happen later |
//! | `r KEY N`, `r KEY 0` | a read has found what write N wrote, or nothing |
//! | `f KEY` | a read has failed |
//! | `t KEY` | a read has found what nothing has written |
//! | `e TEXT` | the error, after each of `n`, `u` and `f` |
//! | `m BYTES...` | memory in use at each memory node, on request |
//! | `over` | the last line of a driver that leaves |
//!
//! Lines on standard input: `stats`, and `leave` (so does its end).
#![expect(clippy::disallowed_methods, reason = "a driver works in real time, on threads")]

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dmtree::{Effect, Index, Pool, Session};
use dmtree_command::{Failure, Result};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::DriveArgs;
use crate::output;

/// Pause between two operations of a thread: several drivers share the machine with what they
/// drive.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest value.
const LONGEST: u64 = 3_000;

/// Works until it is told to leave.
pub fn run(a: &DriveArgs, pool: &Pool, index: &Index) -> Result<()> {
    let stop = AtomicBool::new(false);
    output::line("up");
    let ended: dmtree::Result<()> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..a.threads)
            .map(|t| {
                let stop = &stop;
                scope.spawn(move || {
                    Writer::new(a, t, index.session()?).work(stop);
                    Ok(())
                })
            })
            .collect();
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            match line.as_str() {
                "stats" => memory(pool),
                _ => break,
            }
        }
        stop.store(true, Ordering::SeqCst);
        writers.into_iter().try_for_each(|w| w.join().expect("no thread panics"))
    });
    ended.map_err(Failure::refused)?;
    output::line("over");
    Ok(())
}

fn memory(pool: &Pool) {
    match pool.stats() {
        Ok(stats) => {
            let used = stats.memory_nodes.iter().map(|m| format!(" {}", m.used_bytes));
            output::line(&format!("m{}", used.collect::<String>()));
        }
        Err(e) => output::line(&format!("e {e}")),
    }
}

/// A thread with its keys.
struct Writer {
    session: Session,
    /// The first of its keys.
    first: u32,
    keys: u32,
    draws: u64,
    next: u64,
}

impl Writer {
    fn new(a: &DriveArgs, thread: u32, session: Session) -> Self {
        let first = (a.slot * a.threads + thread) * a.keys;
        let draws = mix(a.seed ^ u64::from(first) << 20 ^ a.after);
        Self { session, first, keys: a.keys, draws, next: a.after + 1 }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.draws = mix(self.draws);
        self.draws % n
    }

    /// Reads all its keys, then writes and reads them, then reads all again.
    fn work(&mut self, stop: &AtomicBool) {
        let all = self.first..self.first + self.keys;
        for key in all.clone() {
            self.read(key);
        }
        while !stop.load(Ordering::SeqCst) {
            let key = self.first + self.draw(self.keys.into()) as u32;
            match self.draw(10) {
                0..=5 => self.write(key, false),
                6 => self.write(key, true),
                _ => self.read(key),
            }
            std::thread::sleep(PAUSE);
        }
        all.for_each(|key| self.read(key));
    }

    fn write(&mut self, key: u32, remove: bool) {
        let n = self.next;
        self.next += 1;
        let sign = if remove { "-" } else { "" };
        output::line(&format!("s {key} {sign}{n}"));
        let done = match remove {
            true => self.session.delete(&name(key)),
            false => self.session.put(&name(key), &value(key, n)),
        };
        match done {
            Ok(_) => output::line(&format!("a {key} {n}")),
            Err(e) => {
                let unknown = e.effect() == Effect::Unknown;
                output::line(&format!("{} {key} {n}", if unknown { "u" } else { "n" }));
                output::line(&format!("e {e}"));
            }
        }
    }

    fn read(&mut self, key: u32) {
        match self.session.get(&name(key)) {
            Ok(None) => output::line(&format!("r {key} 0")),
            Ok(Some(found)) => match number(key, &found) {
                Some(n) => output::line(&format!("r {key} {n}")),
                None => output::line(&format!("t {key}")),
            },
            Err(e) => {
                output::line(&format!("f {key}"));
                output::line(&format!("e {e}"));
            }
        }
    }
}

fn mix(x: u64) -> u64 {
    SplitMix64::seed_from_u64(x).next_u64()
}

fn name(key: u32) -> Vec<u8> {
    format!("key{key:08}").into_bytes()
}

/// The value that write `n` of a key writes: its number, and bytes that follow from both.
fn value(key: u32, n: u64) -> Vec<u8> {
    let mut v = n.to_le_bytes().to_vec();
    let mut x = mix(u64::from(key) << 40 ^ n);
    // Short ones are more.
    let bytes = match x % 4 {
        0 => 8 + x / 4 % LONGEST,
        _ => 8 + x / 4 % 40,
    };
    while v.len() < bytes as usize {
        x = mix(x);
        v.extend_from_slice(&x.to_le_bytes());
    }
    v
}

/// The write that a value comes from, if any.
fn number(key: u32, found: &[u8]) -> Option<u64> {
    let n = u64::from_le_bytes(*found.first_chunk()?);
    (found == value(key, n)).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_write_and_nothing_else_does() {
        for (key, n) in [(0, 1), (7, 2), (9, u64::MAX)] {
            let v = value(key, n);
            assert!(v.len() <= LONGEST as usize + 16);
            assert_eq!(number(key, &v), Some(n));
            assert_eq!(number(key + 1, &v), None);
            assert_eq!(number(key, &v[..v.len() - 1]), None);
        }
        assert_eq!(number(0, b"short"), None);
    }
}
