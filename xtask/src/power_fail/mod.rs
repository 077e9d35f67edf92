//! Losses of power: a program writes to a journal on the disk of a throwaway machine and tells each
//! acknowledgement over the machine's console; the machine is killed, so that everything is gone
//! that its disk did not have; it boots again, and what the journal has is compared.
//!
//! One writer makes the writes of a round in order. So the journal must have what was there before
//! the round, and then the first writes of the round: at level `sync` all that were acknowledged,
//! at level `process` any number of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::built::executables;
use crate::machine::{self, MARK, Machine, Running, Said, Tool};
use crate::{output, root};

const TOOLS: &[Tool] = &[("mkfs.ext4", "e2fsprogs")];
const ROUNDS: u64 = 20;
const DISK: &str = "512M";
/// Longest time until a machine has told what its journal has.
const BOOT: Duration = Duration::from_secs(300);
/// Writes that may be on the disk with acknowledgements that the console has lost.
const MOST_UNHEARD: u64 = 20_000;

type Pairs = BTreeMap<String, String>;

/// A round: its number, and what its writer was told.
#[derive(Clone, Copy)]
struct Round {
    number: u64,
    acknowledged: u64,
}

impl Round {
    /// Every third one is at level `process`.
    fn is_synced(number: u64) -> bool {
        number % 3 != 2
    }

    /// The key and the value of write `n`.
    fn write(self, n: u64) -> (String, String) {
        (format!("key{}", n * 7 % 500), format!("v{}-{n}", self.number))
    }

    /// The pairs that the journal must have, when it has these: with as many writes of the round
    /// as they show.
    fn explain(self, before: &Pairs, found: &Pairs) -> Result<u64> {
        let least = if Self::is_synced(self.number) { self.acknowledged } else { 0 };
        let mut pairs = before.clone();
        for n in 0..=self.acknowledged + MOST_UNHEARD {
            if n >= least && pairs == *found {
                return Ok(n);
            }
            pairs.extend([self.write(n)]);
        }
        bail!(
            "round {}: {} writes were acknowledged, and the journal has pairs that no number of writes explains: {found:?}",
            self.number,
            self.acknowledged
        )
    }
}

/// Kills the machine so often (20 times by default).
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run(args: &[String]) -> Result<()> {
    let rounds = args.first().map_or(Ok(ROUNDS), |n| n.parse().context("a number of rounds"))?;
    if let Some(why) = machine::install(&[&machine::TOOLS, TOOLS].concat(), &[])? {
        println!("SKIPPED: losses of power: {why}");
        return Ok(());
    }
    let dir = root().join("target/power-fail");
    let machine = Machine::prepare(&dir)?;
    build(&dir)?;
    let disk = dir.join("disk");
    let _ = std::fs::remove_file(&disk);
    output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).arg(DISK))?;
    let (mut pairs, mut last) = (Pairs::new(), None::<Round>);
    // The boot after the last round only looks.
    for number in 0..=rounds {
        let mut life = Life::begin(&machine, &disk, number)?;
        if let Some(round) = last {
            let writes = round.explain(&pairs, &life.found)?;
            println!(
                "power-fail: round {}, {}: {} writes acknowledged, {writes} there",
                round.number,
                if Round::is_synced(round.number) { "level sync" } else { "level process" },
                round.acknowledged
            );
        }
        pairs = std::mem::take(&mut life.found);
        if number < rounds {
            let pause = Duration::from_millis(200 + 613 * (number % 5));
            last = Some(Round { number, acknowledged: life.writes_for(pause)? });
        }
    }
    println!("power-fail: {rounds} losses of power; everything that was promised is there");
    Ok(())
}

/// The kernel speaks on the same console.
fn is_key(word: &str) -> bool {
    word.strip_prefix("key").is_some_and(|n| n.parse::<u32>().is_ok())
}

/// The binary without the laboratory, with journals, as CI tests it: it is built once.
fn build(dir: &Path) -> Result<()> {
    let words = ["test", "--no-run", "-p", "dmtree-cli", "--no-default-features"];
    let made =
        executables(Command::new("cargo").args(words).args(["--features", "cloud,durable"]))?;
    let binary = made.iter().find(|made| made.name == "dmtree" && !made.is_test);
    let binary = binary.context("cargo made no dmtree")?;
    std::fs::copy(&binary.path, dir.join("dmtree"))?;
    Ok(())
}

/// A machine from its boot to its end.
struct Life {
    running: Running,
    /// The pairs that its journal had.
    found: Pairs,
}

impl Life {
    /// Boots the machine, and hears what its journal has.
    #[expect(clippy::disallowed_methods, reason = "it waits for an emulator, by the clock")]
    fn begin(machine: &Machine, disk: &Path, number: u64) -> Result<Self> {
        let level = if Round::is_synced(number) { "--sync" } else { "" };
        let script = format!("LEVEL={level}\nROUND={number}\n{}", include_str!("guest.sh"));
        // The machine's own cache is lost with it. What its disk was given stays.
        let drive = format!("file={},format=raw,if=virtio,cache=unsafe", disk.display());
        let running = machine.boot(&script, &["-nic", "none", "-drive", &drive])?;
        let (until, mut found, mut begins) = (Instant::now() + BOOT, Pairs::new(), false);
        loop {
            let line = match running.line(until) {
                Said::Line(line) => line,
                Said::Nothing => bail!("round {number}: nothing of the journal after {BOOT:?}"),
                Said::Ended => bail!("round {number}: the machine has ended"),
            };
            if let Some((_, said)) = line.split_once(MARK) {
                begins |= said.trim() == "begins";
                if let Some(why) = said.trim().strip_prefix("failed: ") {
                    bail!("round {number}: {why}");
                }
            } else if !begins {
                // The kernel's.
            } else if let Some(count) = line.strip_prefix('(') {
                let count: usize = count.trim_end_matches(')').parse().context("a count")?;
                if count != found.len() {
                    bail!("round {number}: {} pairs were told, of {count}", found.len());
                }
                return Ok(Self { running, found });
            } else if let Some((key, value)) = line.split_once(' ').filter(|(k, _)| is_key(k)) {
                found.insert(key.to_owned(), value.to_owned());
            } else if line.starts_with("error") {
                bail!("round {number}: the shell says {line:?}");
            }
        }
    }

    /// Lets it write for this long after the first acknowledgement, and kills it: how many writes
    /// were acknowledged.
    #[expect(clippy::disallowed_methods, reason = "it waits for an emulator, by the clock")]
    fn writes_for(&mut self, time: Duration) -> Result<u64> {
        let (mut acknowledged, mut until, mut killed) = (0, Instant::now() + BOOT, false);
        loop {
            match self.running.line(until) {
                Said::Line(line) if line == "done" => {
                    if acknowledged == 0 {
                        until = Instant::now() + time;
                    }
                    acknowledged += 1;
                }
                Said::Line(line) if line.starts_with("error") => bail!("a write: {line}"),
                // The kernel's.
                Said::Line(_) => {}
                Said::Nothing if acknowledged == 0 => bail!("no write after {BOOT:?}"),
                Said::Nothing => {}
                Said::Ended if killed => return Ok(acknowledged),
                Said::Ended => bail!("the machine has ended"),
            }
            if acknowledged > 0 && !killed && Instant::now() >= until {
                self.running.kill();
                killed = true;
                until = Instant::now() + BOOT;
            }
        }
    }
}
