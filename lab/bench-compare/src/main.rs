//! Measures dmtree beside other ordered maps, in one run: gets, gets of several keys, puts of
//! existing keys and scans, uniform hits, by one thread and by two.
//!
//! The rounds alternate between the engines, so that a slow period of the machine affects all of
//! them. A time is the processor time of the threads for one operation, so that other processes do
//! not count. Ratios are taken within a round.

mod engines;
mod keys;

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bplustree::BPlusTree;
use clap::Parser;
use crossbeam_skiplist::SkipMap;
use dmtree_workload::Seed;
use rustix::time::{ClockId, clock_gettime};
use scc::TreeIndex;
use serde_json::json;

use engines::{Dmtree, Engine, Heap, Named, Redb};
use keys::{Key, Value, key, value};

/// Compares dmtree with other ordered maps on this machine.
#[derive(Parser)]
struct Args {
    /// Keys of 24 bytes, values of 8.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Rounds of every engine, alternating.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Operations of each kind in a round; a hundredth as many scans.
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Keys of a call that reads several.
const BATCH: usize = 16;
const SCAN_PAIRS: usize = 50;

/// What is measured: the name, how many threads, and the work of one.
type Kind = (&'static str, usize, fn(&dyn Engine, &[(Key, Value)]) -> Result<Option<u64>>);

const KINDS: [Kind; 6] = [
    ("get", 1, gets),
    ("get, 2 threads", 2, gets),
    ("16 gets a call", 1, many),
    ("put", 1, puts),
    ("put, 2 threads", 2, puts),
    ("scan of 50", 1, scans),
];

/// Processor time of this thread, ns.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
}

/// Time of an operation, ns; `None` where the engine has none of the kind.
fn gets(engine: &dyn Engine, pairs: &[(Key, Value)]) -> Result<Option<u64>> {
    let mut worker = engine.worker()?;
    let mut out = Vec::with_capacity(64);
    let mut right = 0;
    let began = thread_ns();
    for (key, value) in pairs {
        right += usize::from(worker.get(key, &mut out)? && out == value);
    }
    let ns = thread_ns() - began;
    ensure!(right == pairs.len(), "{} answers wrongly", engine.name());
    Ok(Some(ns))
}

fn many(engine: &dyn Engine, pairs: &[(Key, Value)]) -> Result<Option<u64>> {
    let mut worker = engine.worker()?;
    let keys: Vec<Key> = pairs.iter().map(|(key, _)| *key).collect();
    let mut hits = 0;
    let began = thread_ns();
    for keys in keys.chunks(BATCH) {
        let Some(found) = worker.get_many(keys)? else { return Ok(None) };
        hits += found;
    }
    let ns = thread_ns() - began;
    ensure!(hits == keys.len(), "{} answers wrongly", engine.name());
    Ok(Some(ns))
}

/// The values are those that are there, so that gets can be checked.
fn puts(engine: &dyn Engine, pairs: &[(Key, Value)]) -> Result<Option<u64>> {
    let mut worker = engine.worker()?;
    let began = thread_ns();
    worker.put(pairs)?;
    Ok(Some(thread_ns() - began))
}

fn scans(engine: &dyn Engine, pairs: &[(Key, Value)]) -> Result<Option<u64>> {
    let mut worker = engine.worker()?;
    let (mut seen, mut scans) = (0, 0);
    let began = thread_ns();
    for (key, _) in pairs.iter().step_by(100) {
        seen += worker.scan(key, SCAN_PAIRS)?;
        scans += 1;
    }
    let ns = thread_ns() - began;
    // A scan near the right end finds less.
    ensure!(seen * 10 > scans * SCAN_PAIRS * 9, "{} answers wrongly", engine.name());
    Ok(Some(ns * 100))
}

/// Runs one kind of work on all its threads; ns per operation.
fn measure(engine: &dyn Engine, kind: &Kind, args: &Args, round: u64) -> Result<Option<f64>> {
    let (_, threads, work) = *kind;
    // All engines get the same keys in the same order, made before.
    let drawn = |thread: usize| {
        let mut draws = Seed(round).numbered("thread", thread as u64).rng();
        let numbers = (0..args.operations).map(|_| draws.below(args.keys));
        numbers.map(|n| (key(n), value(n))).collect::<Vec<_>>()
    };
    let drawn: Vec<_> = (0..threads).map(drawn).collect();
    let times = std::thread::scope(|scope| {
        let running: Vec<_> =
            drawn.iter().map(|pairs| scope.spawn(move || work(engine, pairs))).collect();
        let joined = running.into_iter().map(|t| t.join().ok().context("a thread has panicked")?);
        joined.collect::<Result<Vec<Option<u64>>>>()
    })?;
    let all: Option<u64> = times.into_iter().sum();
    Ok(all.map(|ns| ns as f64 / (args.operations * threads as u64) as f64))
}

fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    let mid = of.len() / 2;
    match of.len() {
        0 => None,
        n if n % 2 == 1 => Some(of[mid]),
        _ => Some((of[mid - 1] + of[mid]) / 2.0),
    }
}

/// Times of an engine: for each kind, ns per operation of each round.
struct Measured {
    name: &'static str,
    ns: Vec<Vec<f64>>,
}

impl Measured {
    /// How many times as long as dmtree it takes: the median of the ratios within a round.
    fn ratio(&self, dmtree: &Self, kind: usize) -> Option<f64> {
        median(self.ns[kind].iter().zip(&dmtree.ns[kind]).map(|(a, b)| a / b).collect())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.keys > 0 && args.rounds > 0, "all numbers must be above 0");
    ensure!(args.operations >= 100, "at least 100 operations");
    let engines: [Box<dyn Engine>; 7] = [
        Box::new(Dmtree::new(args.keys)?),
        Box::new(Named("bplustree", BPlusTree::<Key, Value>::new())),
        Box::new(Named("scc::TreeIndex", TreeIndex::<Key, Value>::new())),
        Box::new(Named("RwLock<BTreeMap>, fixed", RwLock::new(BTreeMap::<Key, Value>::new()))),
        Box::new(Named("RwLock<BTreeMap>, heap", RwLock::new(BTreeMap::<Heap, Heap>::new()))),
        Box::new(Named("crossbeam-skiplist", SkipMap::<Key, Value>::new())),
        Box::new(Redb::new()?),
    ];
    let pairs: Vec<(Key, Value)> = (0..args.keys).map(|n| (key(n), value(n))).collect();
    let mut measured = Vec::new();
    for engine in &engines {
        engine.worker()?.put(&pairs)?;
        measured.push(Measured { name: engine.name(), ns: vec![Vec::new(); KINDS.len()] });
    }
    drop(pairs);
    // Round 0 warms the caches and is not counted.
    for round in 0..=args.rounds as u64 {
        for (engine, measured) in engines.iter().zip(&mut measured) {
            for (kind, ns) in KINDS.iter().zip(&mut measured.ns) {
                let took = measure(&**engine, kind, &args, round)?;
                ns.extend(took.filter(|_| round > 0));
            }
        }
    }
    report(&args, &measured);
    Ok(())
}

fn report(args: &Args, measured: &[Measured]) {
    let dmtree = &measured[0];
    if args.json {
        let of = |m: &Measured| {
            let kinds = KINDS.iter().enumerate().map(|(i, (kind, threads, _))| {
                json!({ "kind": kind, "threads": threads, "ns_median": median(m.ns[i].clone()),
                    "ns_rounds": m.ns[i], "times_of_dmtree": m.ratio(dmtree, i) })
            });
            json!({ "engine": m.name, "kinds": kinds.collect::<Vec<_>>() })
        };
        let engines: Vec<_> = measured.iter().map(of).collect();
        let all = json!({ "keys": args.keys, "operations": args.operations, "rounds": args.rounds,
            "key_bytes": keys::KEY_BYTES, "value_bytes": 8, "engines": engines });
        println!("{all:#}");
        return;
    }
    println!(
        "{} keys of {} B, values of 8 B, uniform hits; ns of processor time per operation, medians of {} alternating rounds of {};\nin brackets, times of dmtree",
        args.keys,
        keys::KEY_BYTES,
        args.rounds,
        args.operations
    );
    print!("{:<25}", "engine");
    KINDS.iter().for_each(|(kind, ..)| print!("{kind:>16}"));
    println!();
    for m in measured {
        print!("{:<25}", m.name);
        for (i, ns) in m.ns.iter().enumerate() {
            let cell = match (median(ns.clone()), m.ratio(dmtree, i)) {
                (Some(ns), Some(ratio)) => format!("{ns:.0} ({ratio:.2})"),
                _ => "-".to_owned(),
            };
            print!("{cell:>16}");
        }
        println!();
    }
}
