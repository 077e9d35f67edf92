//! A cluster of real processes on this machine that start, leave, hang and are killed at random,
//! for the requested time, with a check of every acknowledged write and of the resources of the
//! long-lived processes: `cargo xtask soak --minutes N [--seed S] [--etcd]`. With `--etcd` a server
//! of etcd keeps the membership, stands still, and is killed and started again, too.
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]

mod cluster;
mod etcd;
mod events;
mod model;
mod process;
mod sample;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::root;
use cluster::Cluster;
use events::Events;

/// Time between two checks of recovery.
const STORM: Duration = Duration::from_secs(60);
/// Share of a soak's time after which a memory node is lost, percent.
const LOSS_AT: u32 = 85;

struct Settings {
    minutes: f64,
    seed: u64,
    etcd: bool,
}

fn settings(args: &[String]) -> Result<Settings> {
    let mut s = Settings { minutes: 1.0, seed: 1, etcd: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--etcd" {
            s.etcd = true;
            continue;
        }
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--minutes" => s.minutes = value.parse().context("--minutes: a number")?,
            "--seed" => s.seed = value.parse().context("--seed: a number")?,
            _ => bail!("soak [--minutes N] [--seed S] [--etcd]: unknown argument {arg}"),
        }
    }
    if !(0.5..=10_000.0).contains(&s.minutes) {
        bail!("--minutes is {}: give 0.5 or more", s.minutes);
    }
    Ok(s)
}

/// The binary: as given, or built.
fn binary() -> Result<String> {
    if let Ok(given) = std::env::var("DMTREE_BIN") {
        return Ok(given);
    }
    let words = ["build", "--release", "-p", "dmtree-cli"];
    crate::run(std::process::Command::new("cargo").args(words))?;
    let target = std::env::var("CARGO_TARGET_DIR").map_or(root().join("target"), Into::into);
    Ok(target.join("release/dmtree").to_string_lossy().into_owned())
}

/// Runs a soak; fails on any violation.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run(args: &[String]) -> Result<()> {
    let s = settings(args)?;
    let length = Duration::from_secs_f64(s.minutes * 60.0);
    let mut cluster = Cluster::start(binary()?, s.etcd)?;
    let mut events = Events::new(s.seed);
    let (began, mut lost) = (Instant::now(), false);
    while began.elapsed() < length && cluster.is_fine() {
        if !lost && began.elapsed() * 100 > length * LOSS_AT {
            lost = true;
            cluster.lose_a_memory_node();
        }
        let storm = STORM.min(length / 3).min(length.saturating_sub(began.elapsed()));
        events.storm(&mut cluster, storm)?;
        cluster.check_recovery()?;
        println!("{:5.0} s: {}", began.elapsed().as_secs_f64(), cluster.summary(&events));
    }
    cluster.end()?;
    let violations = cluster.violations();
    println!("{}", cluster.uses());
    println!(
        "soak {} min: {}, {} violations (seed {})",
        s.minutes,
        cluster.summary(&events),
        violations.len(),
        s.seed
    );
    if violations.is_empty() {
        return Ok(());
    }
    let lines = cluster.last_words();
    bail!("{}\nlast lines of the processes:\n{}", violations.join("\n"), lines.join("\n"))
}
