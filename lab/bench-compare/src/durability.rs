//! What durability costs: dmtree in memory, and with a journal at both levels, beside the engine of
//! its journal and redb by themselves, in one run.
//!
//! Gets and puts of one session are medians of alternating rounds. Puts of many threads wait for
//! the device, so their rate is by the wall clock.

mod keys;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use dmtree::{Index, LoadOrder, Options, Pool};
use dmtree_workload::Seed;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use redb::{ReadableDatabase, TableDefinition};

use keys::{key, value};

/// Measures what durability costs on this machine.
#[derive(Parser)]
struct Args {
    /// Keys of 24 bytes, values of 8.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Rounds of every engine, alternating.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Operations of one session in a round.
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// Puts of one session in a row, after the rounds: a journal that takes puts faster than its
    /// engine cannot do so for long.
    #[arg(long, default_value_t = 2_000_000)]
    sustained: u64,
    /// Threads that put and wait for the device.
    #[arg(long, default_value_t = 64)]
    threads: u64,
    /// How long they do, ms.
    #[arg(long, default_value_t = 2_000)]
    sync_ms: u64,
}

/// A store under test.
trait Store: Sync {
    fn get(&self, n: u64) -> Result<bool>;
    fn put(&self, n: u64) -> Result<()>;
}

impl Store for Index {
    fn get(&self, n: u64) -> Result<bool> {
        Ok(Index::get(self, key(n))?.as_deref() == Some(&value(n)[..]))
    }

    fn put(&self, n: u64) -> Result<()> {
        Ok(Index::put(self, key(n), value(n)).map(|_| ())?)
    }
}

/// The engine of the journal; a put asks the device when it `syncs`.
struct Fjall {
    db: Database,
    pairs: Keyspace,
    syncs: bool,
}

impl Fjall {
    fn new(path: &Path, keys: u64, syncs: bool) -> Result<Self> {
        let db = Database::builder(path).open()?;
        let pairs = db.keyspace("pairs", KeyspaceCreateOptions::default)?;
        for n in 0..keys {
            pairs.insert(key(n), value(n))?;
        }
        Ok(Self { db, pairs, syncs })
    }
}

impl Store for Fjall {
    fn get(&self, n: u64) -> Result<bool> {
        Ok(self.pairs.get(key(n))?.as_deref() == Some(&value(n)[..]))
    }

    fn put(&self, n: u64) -> Result<()> {
        self.pairs.insert(key(n), value(n))?;
        if self.syncs {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");

/// A transaction a put, durable when it is committed.
struct Redb(redb::Database);

impl Redb {
    fn new(path: &Path, keys: u64) -> Result<Self> {
        let db = redb::Database::create(path)?;
        let all = db.begin_write()?;
        {
            let mut table = all.open_table(TABLE)?;
            for n in 0..keys {
                table.insert(&key(n)[..], &value(n)[..])?;
            }
        }
        all.commit()?;
        Ok(Self(db))
    }
}

impl Store for Redb {
    fn get(&self, n: u64) -> Result<bool> {
        let read = self.0.begin_read()?;
        let found = read.open_table(TABLE)?.get(&key(n)[..])?;
        Ok(found.is_some_and(|found| found.value() == value(n)))
    }

    fn put(&self, n: u64) -> Result<()> {
        let write = self.0.begin_write()?;
        write.open_table(TABLE)?.insert(&key(n)[..], &value(n)[..])?;
        Ok(write.commit()?)
    }
}

/// A row: a store, and what is measured of it.
struct Row {
    name: &'static str,
    store: Box<dyn Store>,
    /// Puts wait for the device.
    syncs: bool,
    get_ns: Vec<f64>,
    put_ns: Vec<f64>,
}

fn row(name: &'static str, store: impl Store + 'static, syncs: bool) -> Row {
    Row { name, store: Box::new(store), syncs, get_ns: Vec::new(), put_ns: Vec::new() }
}

fn index(path: Option<&Path>, syncs: bool, keys: u64) -> Result<Index> {
    let builder = Pool::embedded().memory((256 << 20) + keys * 256);
    let builder = match path {
        None => builder,
        Some(path) if syncs => builder.durable(path).sync(),
        Some(path) => builder.durable(path),
    };
    let index = builder.open()?.open_or_create("pairs", Options::default())?;
    let mut pairs: Vec<_> = (0..keys).map(|n| (key(n).to_vec(), value(n).to_vec())).collect();
    pairs.sort_unstable();
    index.load(pairs, LoadOrder::Sorted)?;
    Ok(index)
}

/// ns of one operation.
fn timed(
    (keys, operations): (u64, u64),
    round: u64,
    mut call: impl FnMut(u64) -> Result<bool>,
) -> Result<f64> {
    let mut draws = Seed(round).numbered("round", round).rng();
    let numbers: Vec<u64> = (0..operations).map(|_| draws.below(keys)).collect();
    let began = Instant::now();
    for n in &numbers {
        ensure!(call(*n)?, "a wrong answer");
    }
    Ok(began.elapsed().as_nanos() as f64 / operations as f64)
}

fn median(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Puts a second by many threads.
fn rate(args: &Args, store: &dyn Store, threads: u64) -> Result<f64> {
    let began = Instant::now();
    let until = began + Duration::from_millis(args.sync_ms);
    let puts = std::thread::scope(|scope| {
        let work = |thread| {
            scope.spawn(move || {
                let mut draws = Seed(thread).numbered("thread", thread).rng();
                let mut puts = 0;
                while Instant::now() < until {
                    store.put(draws.below(args.keys))?;
                    puts += 1;
                }
                anyhow::Ok(puts)
            })
        };
        let running: Vec<_> = (0..threads).map(work).collect();
        let joined = running.into_iter().map(|t| t.join().ok().context("a thread has panicked")?);
        joined.sum::<Result<u64>>()
    })?;
    Ok(puts as f64 / began.elapsed().as_secs_f64())
}

/// How long the device takes for a sync of one block, ms.
fn sync_ms(dir: &Path) -> Result<f64> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::create(dir.join("probe"))?;
    let mut took = Vec::new();
    for n in 0..50u64 {
        file.write_all_at(&[n as u8; 4096], n * 4096)?;
        let began = Instant::now();
        file.sync_data()?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&took))
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(
        args.keys > 0 && args.rounds > 0 && args.operations > 0 && args.sustained > 0,
        "numbers must be above 0"
    );
    let dir = tempfile::tempdir_in(".")?;
    let at = |name: &str| dir.path().join(name);
    let device_ms = sync_ms(dir.path())?;
    let mut rows = [
        row("dmtree, in memory", index(None, false, args.keys)?, false),
        row("dmtree, level process", index(Some(&at("process")), false, args.keys)?, false),
        row("dmtree, level sync", index(Some(&at("sync")), true, args.keys)?, true),
        row("fjall", Fjall::new(&at("fjall"), args.keys, false)?, false),
        row("fjall, each put synced", Fjall::new(&at("fjall-sync"), args.keys, true)?, true),
        row("redb, each put synced", Redb::new(&at("redb"), args.keys)?, true),
    ];
    let of_round = (args.keys, args.operations);
    for round in 0..=args.rounds {
        for row in &mut rows {
            let get_ns = timed(of_round, round, |n| row.store.get(n))?;
            if round > 0 {
                row.get_ns.push(get_ns);
            }
            if !row.syncs {
                let put_ns = timed(of_round, round, |n| row.store.put(n).map(|()| true))?;
                if round > 0 {
                    row.put_ns.push(put_ns);
                }
            }
        }
    }
    println!(
        "{} keys of 24 bytes, values of 8, uniform; a sync of the device: {device_ms:.2} ms",
        args.keys
    );
    println!(
        "{:26} {:>9} {:>9} {:>17} {:>16}",
        "", "get, ns", "put, ns", "put in a row, ns", "synced puts/s"
    );
    for row in &rows {
        let rate = if row.syncs {
            format!("{:.0}", rate(&args, &*row.store, args.threads)?)
        } else {
            "-".to_owned()
        };
        let put = if row.syncs { "-".to_owned() } else { format!("{:.0}", median(&row.put_ns)) };
        let sustained = match row.syncs {
            true => "-".to_owned(),
            false => {
                let of_all = (args.keys, args.sustained);
                let put = timed(of_all, args.rounds + 1, |n| row.store.put(n).map(|()| true))?;
                format!("{put:.0}")
            }
        };
        println!("{:26} {:9.0} {put:>9} {sustained:>17} {rate:>16}", row.name, median(&row.get_ns));
    }
    drop(rows);
    reopened(&args, &at("process"))
}

/// How long it takes to open the journal again.
fn reopened(args: &Args, path: &Path) -> Result<()> {
    let began = Instant::now();
    let builder = Pool::embedded().memory((256 << 20) + args.keys * 256).durable(path);
    let index = builder.open()?.open("pairs")?;
    let took = began.elapsed().as_secs_f64();
    ensure!(Store::get(&index, args.keys - 1)?, "a pair is missing");
    println!("opened again: {} pairs in {took:.2} s", args.keys);
    Ok(())
}
