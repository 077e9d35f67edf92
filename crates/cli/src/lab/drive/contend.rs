//! Threads that compare-and-set shared counters.
#![expect(clippy::disallowed_methods, reason = "a driver works for some time, on threads")]

use std::io::BufRead;
use std::time::{Duration, Instant};

use dmtree::{Index, Outcome, Session};
use dmtree_command::{Failure, Result};

use super::DriveArgs;
use crate::output;

/// Says `ready`, waits for a line, contends, and says how many of its writes have taken effect.
pub fn run(a: &DriveArgs, index: &Index) -> Result<()> {
    for k in 0..a.keys {
        index.insert(key(k), 0u64.to_le_bytes()).map_err(Failure::refused)?;
    }
    output::line("ready");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|e| Failure::input(e.to_string()))?;
    let until = Instant::now() + Duration::from_secs(a.seconds);
    let done: dmtree::Result<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..a.threads)
            .map(|t| {
                scope.spawn(move || {
                    let mut session = index.session()?;
                    let mut done = 0;
                    for n in 0.. {
                        if Instant::now() >= until {
                            break;
                        }
                        done += u64::from(add_one(&mut session, &key((t + n) % a.keys))?);
                    }
                    Ok(done)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no thread panics")).sum()
    });
    output::line(&format!("done {}", done.map_err(Failure::refused)?));
    Ok(())
}

fn key(counter: u32) -> Vec<u8> {
    format!("counter {counter}").into_bytes()
}

/// One try; whether it has taken effect.
fn add_one(session: &mut Session, key: &[u8]) -> dmtree::Result<bool> {
    let Some(old) = session.get(key)? else { return Ok(false) };
    let n = old.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    Ok(session.compare_and_set(key, &old, &(n + 1).to_le_bytes())? == Outcome::Done)
}
