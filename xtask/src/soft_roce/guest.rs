//! Runs a list of commands in the machine.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::machine::{MARK, Machine, Said};

/// One command that ran in the guest.
#[derive(Debug)]
pub struct Ran {
    /// The command.
    pub line: String,
    /// Its exit status; `None` when the machine ended before.
    pub status: Option<i32>,
    /// Duration by the guest's clock.
    pub seconds: f64,
}

/// Boots the machine, runs the commands one after another, and passes their output on; within
/// `limit`.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
#[expect(clippy::disallowed_methods, reason = "it waits for an emulator, by the clock")]
pub fn run(machine: &Machine, list: &[String], limit: Duration) -> Result<Vec<Ran>> {
    std::fs::write(machine.dir().join("list"), list.join("\n") + "\n")?;
    let running = machine.boot(include_str!("guest.sh"), &["-nic", "none"])?;
    let until = Instant::now() + limit;
    let (mut ran, mut status) = (Vec::<Ran>::new(), None);
    while status.is_none() {
        match running.line(until) {
            Said::Line(line) => match line.split_once(MARK) {
                Some((_, said)) => note(said.trim(), &mut ran, &mut status),
                None => println!("  | {line}"),
            },
            Said::Nothing => {
                let at = ran.last().map_or("booting", |r| &r.line);
                bail!("the machine was still at `{at}` after {} s", limit.as_secs());
            }
            Said::Ended => break,
        }
    }
    match status {
        Some(99) => bail!("the machine could not make its Soft-RoCE device (see above)"),
        Some(_) => Ok(ran),
        None => bail!("the machine ended without a word (see above)"),
    }
}

/// Records a guest's line about a command, or about the end.
fn note(said: &str, ran: &mut Vec<Ran>, status: &mut Option<i32>) {
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    match word {
        "run" => ran.push(Ran { line: rest.to_owned(), status: None, seconds: 0.0 }),
        "done" => {
            let mut words = rest.split(' ');
            let code = words.next().and_then(|w| w.parse().ok());
            let times: Vec<f64> = words.filter_map(|w| w.parse().ok()).collect();
            if let (Some(last), &[from, to]) = (ran.last_mut(), &times[..]) {
                (last.status, last.seconds) = (code, to - from);
            }
        }
        "status" => *status = rest.parse().ok(),
        _ => {}
    }
}
