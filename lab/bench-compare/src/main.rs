//! Measures `get` of dmtree and of other ordered maps side by side, in one run: one thread, uniform
//! hits, the value copied out.
//!
//! The rounds alternate between the engines, so that a slow period of the machine affects all of
//! them. Ratios are taken within a round.

mod engines;
mod keys;

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use dmtree_workload::Seed;
use serde_json::json;

use engines::{Dmtree, Engine, LockedBTree, Redb, Skiplist};
use keys::{key, value};

/// Compares dmtree with other ordered maps on this machine.
#[derive(Parser)]
struct Args {
    /// Keys of 24 bytes, values of 8.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Rounds of every engine, alternating.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Reads in a round.
    #[arg(long, default_value_t = 500_000)]
    reads: u64,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

struct Measured {
    name: &'static str,
    put_ns: f64,
    /// One for every round.
    get_ns: Vec<f64>,
}

impl Measured {
    fn median(&self) -> f64 {
        median(self.get_ns.clone())
    }

    /// The speedup of `ours`: the median of the ratios within each round, in which both ran on the
    /// same machine state.
    fn ratio(&self, ours: &Self) -> f64 {
        median(self.get_ns.iter().zip(&ours.get_ns).map(|(theirs, ours)| theirs / ours).collect())
    }

    fn range(&self) -> (f64, f64) {
        let low = self.get_ns.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.get_ns.iter().copied().fold(0.0, f64::max))
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    let mid = of.len() / 2;
    if of.len() % 2 == 1 { of[mid] } else { (of[mid - 1] + of[mid]) / 2.0 }
}

fn fill(engine: &mut dyn Engine, records: u64) -> Result<f64> {
    let mut pairs = (0..records).map(|n| (key(n), value(n)));
    let began = Instant::now();
    engine.fill(&mut pairs)?;
    Ok(began.elapsed().as_nanos() as f64 / records as f64)
}

fn round(engine: &mut dyn Engine, args: &Args, seed: u64) -> Result<f64> {
    // Keys are made before the measurement. All engines read the same keys in the same order.
    let mut draws = Seed(seed).rng();
    let numbers: Vec<u64> = (0..args.reads).map(|_| draws.below(args.keys)).collect();
    let wanted: Vec<_> = numbers.iter().map(|n| key(*n)).collect();
    let mut out = Vec::with_capacity(64);
    let (mut hits, mut sum) = (0u64, 0u64);
    let began = Instant::now();
    for key in &wanted {
        hits += u64::from(engine.get(key, &mut out)?);
        sum = sum.wrapping_add(u64::from(out[0]));
    }
    let ns = began.elapsed().as_nanos() as f64 / args.reads as f64;
    let right = numbers.iter().fold(0u64, |s, n| s.wrapping_add(u64::from(value(*n)[0])));
    ensure!(hits == args.reads && sum == right, "{} answers wrongly", engine.name());
    Ok(ns)
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.keys > 0 && args.rounds > 0 && args.reads > 0, "all numbers must be above 0");
    let mut dmtree = Dmtree::new(args.keys)?;
    let index = dmtree.index.clone();
    let (mut skiplist, mut btree, mut redb) =
        (Skiplist::default(), LockedBTree::default(), Redb::new()?);
    let mut engines: [&mut dyn Engine; 4] = [&mut dmtree, &mut skiplist, &mut btree, &mut redb];
    let mut results = Vec::new();
    for engine in &mut engines {
        let put_ns = fill(*engine, args.keys)?;
        // Warms the caches; not counted.
        round(*engine, &args, 0)?;
        results.push(Measured { name: engine.name(), put_ns, get_ns: Vec::new() });
    }
    for n in 0..args.rounds {
        for (engine, measured) in engines.iter_mut().zip(&mut results) {
            measured.get_ns.push(round(*engine, &args, 1 + n as u64)?);
        }
    }
    let gets = index.stats()?.of_operation(dmtree::Operation::Get).total();
    ensure!(gets == args.reads * (args.rounds as u64 + 1), "the counters were on: {gets}");
    report(&args, &results)
}

fn report(args: &Args, results: &[Measured]) -> Result<()> {
    let ours = &results[0];
    if args.json {
        let engines: Vec<_> = results
            .iter()
            .map(|m| {
                json!({
                    "engine": m.name, "get_ns_median": m.median(), "get_ns_rounds": m.get_ns,
                    "put_ns": m.put_ns, "get_rate_of_dmtree_to_this": m.ratio(ours),
                })
            })
            .collect();
        let all = json!({ "keys": args.keys, "reads": args.reads, "rounds": args.rounds,
            "key_bytes": keys::KEY_BYTES, "value_bytes": 8, "threads": 1, "engines": engines });
        println!("{all:#}");
        return Ok(());
    }
    println!(
        "{} keys of {} B, values of 8 B copied out, uniform hits, one thread, {} rounds of {} reads",
        args.keys,
        keys::KEY_BYTES,
        args.rounds,
        args.reads
    );
    println!(
        "{:<20}{:>10}{:>18}{:>10}{:>20}",
        "engine", "get, ns", "min..max", "put, ns", "dmtree is"
    );
    for m in results {
        let (low, high) = m.range();
        let (spread, ratio) = (format!("{low:.0}..{high:.0}"), m.ratio(ours));
        println!(
            "{:<20}{:>10.0}{:>18}{:>10.0}{:>14.2} x as fast",
            m.name,
            m.median(),
            spread,
            m.put_ns,
            ratio
        );
    }
    Ok(())
}
