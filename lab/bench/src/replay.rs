//! Replays operation traces, and compares every read with the value that the trace implies.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clap::Args;
use dmtree_check::client::Client;
use dmtree_check::conformance::above;
use dmtree_parts::peer::leaf_bytes_per_key;
use dmtree_parts::{Outcome, Write, check_key};
use dmtree_workload::OpKind;
use dmtree_workload::trace::{Action, Record, TraceOp, TraceReader, shard};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::clock;
use crate::config::cores;
use crate::failure::{Failure, Result};
use crate::latency::{ByKind, percentiles};
use crate::opened::PoolSpec;
use crate::oracle::shown;
use crate::registry::find;
use crate::results::{LOCAL_NOTE, Percentiles};
use crate::system::{Tool, fit};
use crate::table::{Column, mops, table_of, time};

/// Operations that a thread gets at a time.
const BATCH: usize = 128;
/// Most batches that wait for a thread.
const WAITING: usize = 16;
/// Mismatches that a thread keeps as text.
const SAMPLES: usize = 5;

/// Parameters of a replay.
#[derive(Clone, Debug, Args)]
pub struct ReplayOptions {
    /// Trace files, plain or gzipped, replayed in this order as one.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
    /// Threads; the cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Compute nodes.
    #[arg(long, default_value_t = 6, value_name = "N")]
    pub cns: u16,
    /// Memory nodes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub mns: u16,
    /// Size of each memory node; computed from the trace by default.
    #[arg(long, value_name = "SIZE")]
    pub memory_bytes: Option<Bytes>,
    /// Cache budget of a compute node.
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    pub cache_bytes: Bytes,
}

/// The contents of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Operations.
    pub operations: u64,
    /// Writes of records.
    pub writes: u64,
    /// Longest key.
    pub longest_key: u64,
    /// Longest record that one operation writes.
    pub longest_value: u64,
    /// Lines of the client.
    pub client_lines: u64,
}

/// One kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindReport {
    /// Number of operations.
    pub ops: u64,
    /// Number of mismatches among them.
    pub mismatches: u64,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Percentiles,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// Version of this form.
    pub schema_version: u32,
    /// The system.
    pub system: String,
    /// The kind of memory.
    pub note: String,
    /// The files.
    pub files: Vec<PathBuf>,
    /// Operations done.
    pub ops: u64,
    /// Skipped lines of the client.
    pub client_lines: u64,
    /// Wall time, s.
    pub seconds: f64,
    /// Million operations per second, reading the trace included.
    pub mops: f64,
    /// Unexpected results, and failed operations.
    pub mismatches: u64,
    /// The first few of them, as text.
    pub samples: Vec<String>,
    /// By kind.
    pub by_kind: BTreeMap<String, KindReport>,
    /// Keys in the index at the end, by a walk.
    pub keys: u64,
    /// Expected number of keys.
    pub keys_expected: u64,
    /// Whether the user stopped it.
    pub interrupted: bool,
}

/// Reads the whole trace once: sizes, and whether every line is well-formed.
///
/// # Errors
/// The first malformed line, or a key that no index accepts.
pub fn survey(files: &[PathBuf]) -> Result<Survey> {
    let mut reader = TraceReader::open(files).map_err(Failure::refused)?;
    let mut s = Survey::default();
    let mut encoded = Vec::new();
    for op in reader.by_ref() {
        let op = op.map_err(Failure::refused)?;
        check_key(&op.key).map_err(|e| Failure::input(format!("the trace has {e}")))?;
        s.longest_key = s.longest_key.max(op.key.len() as u64);
        if let Action::Insert(r) | Action::Update(r) = &op.action {
            r.encode(&mut encoded);
            dmtree_parts::check_value(&encoded)
                .map_err(|e| Failure::input(format!("the trace has {e}")))?;
            s.longest_value = s.longest_value.max(encoded.len() as u64);
            s.writes += 1;
        }
    }
    s.operations = reader.counts().operations();
    s.client_lines = reader.counts().client_lines;
    Ok(s)
}

#[derive(Default)]
struct Tally {
    latency: ByKind,
    mismatches: BTreeMap<OpKind, u64>,
    samples: Vec<String>,
    keys: u64,
}

impl Tally {
    fn wrong(&mut self, kind: OpKind, key: &[u8], why: &str) {
        *self.mismatches.entry(kind).or_default() += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(format!("{kind} of {}: {why}", shown(key)));
        }
    }
}

/// Replays a trace on a fresh pool. Operations on one key run in the order of the trace, on one
/// thread.
///
/// # Errors
/// A malformed trace (before any operation), or impossible sizes.
pub fn replay(
    o: &ReplayOptions,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReplayReport> {
    let system = find(&o.system)?;
    let threads = o.threads.unwrap_or_else(cores) as usize;
    let survey = survey(&o.files)?;
    if threads == 0 || o.cns == 0 || o.mns == 0 {
        return Err(Failure::input("--threads, --cns and --mns must be 1 at least"));
    }
    let (key, value) = (survey.longest_key.max(1), survey.longest_value);
    let need = survey.writes.saturating_mul(leaf_bytes_per_key(&fit(key, value)));
    let floor = (u64::from(o.cns) * 4 + 64) << 20;
    let memory_bytes = o.memory_bytes.map(|b| b.0).unwrap_or_else(|| {
        ((need.saturating_mul(2) + floor) / u64::from(o.mns)).next_multiple_of(1 << 20)
    });
    let small = PoolSpec::small(o.cns, memory_bytes);
    let spec = PoolSpec { mns: o.mns, cache_bytes: o.cache_bytes.0, ..small };
    let pool = Tool::open(&system, &spec, key, value.min(64))?;
    let done = AtomicU64::new(0);
    let mut reader = TraceReader::open(&o.files).map_err(Failure::refused)?;
    let began = clock::now();
    let tallies = std::thread::scope(|scope| -> Result<Vec<Tally>> {
        let (mut to, mut running): (Vec<SyncSender<Vec<TraceOp>>>, _) = (Vec::new(), Vec::new());
        for me in 0..threads {
            let (sender, from) = sync_channel(WAITING);
            to.push(sender);
            let (pool, done) = (&pool, &done);
            running.push(scope.spawn(move || {
                let session = pool.client(me % pool.opened.compute_nodes())?;
                Ok::<_, Failure>(Shard::new(session, me, threads).work(&from, done))
            }));
        }
        let mut batches: Vec<Vec<TraceOp>> = vec![Vec::new(); threads];
        let mut feed = || -> Result<()> {
            for (op, read) in reader.by_ref().zip(1u64..) {
                let op = op.map_err(Failure::refused)?;
                let at = shard(&op.key, threads);
                batches[at].push(op);
                let is_full = batches[at].len() == BATCH;
                // A thread that has ended has failed; its join returns the error.
                if is_full && to[at].send(std::mem::take(&mut batches[at])).is_err() {
                    break;
                }
                if read.is_multiple_of(4096) {
                    progress(done.load(Ordering::Relaxed), survey.operations);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            Ok(())
        };
        let fed = feed();
        for (sender, batch) in to.into_iter().zip(batches) {
            let _ = sender.send(batch);
        }
        let panicked = |_| Failure::violation("a replaying thread panicked: a defect");
        let tallies = running.into_iter().map(|thread| thread.join().map_err(panicked)?);
        let tallies = tallies.collect::<Result<_>>()?;
        fed.map(|()| tallies)
    })?;
    let seconds = (clock::now() - began).as_secs_f64().max(1e-9);
    let mut report = sum_up(o, &survey, &tallies, seconds);
    report.interrupted = stop.load(Ordering::Relaxed);
    match pool.client(0)?.walk() {
        Ok(shape) => report.keys = shape.keys,
        Err(e) => {
            report.mismatches += 1;
            report.samples.push(format!("the structure is broken: {e}"));
        }
    }
    if report.keys != report.keys_expected {
        report.mismatches += 1;
        report.samples.push(format!(
            "the index holds {} keys where {} must be",
            report.keys, report.keys_expected
        ));
    }
    Ok(report)
}

fn sum_up(o: &ReplayOptions, s: &Survey, tallies: &[Tally], seconds: f64) -> ReplayReport {
    let mut latency = ByKind::default();
    let mut wrong: BTreeMap<OpKind, u64> = BTreeMap::new();
    for t in tallies {
        latency.add(&t.latency);
        for (kind, n) in &t.mismatches {
            *wrong.entry(*kind).or_default() += n;
        }
    }
    let by_kind: BTreeMap<String, KindReport> = latency
        .iter()
        .map(|(kind, l)| {
            let report = KindReport {
                ops: l.len(),
                mismatches: wrong.get(&kind).copied().unwrap_or(0),
                latency: percentiles(l),
            };
            (kind.name().to_owned(), report)
        })
        .collect();
    let ops = by_kind.values().map(|k| k.ops).sum();
    ReplayReport {
        schema_version: crate::results::SCHEMA_VERSION,
        system: o.system.clone(),
        note: LOCAL_NOTE.to_owned(),
        files: o.files.clone(),
        ops,
        client_lines: s.client_lines,
        seconds,
        mops: ops as f64 / seconds / 1e6,
        mismatches: wrong.values().sum(),
        samples: tallies.iter().flat_map(|t| t.samples.iter().cloned()).take(10).collect(),
        by_kind,
        keys_expected: tallies.iter().map(|t| t.keys).sum(),
        ..ReplayReport::default()
    }
}

impl ReplayReport {
    /// As text.
    pub fn text(&self) -> String {
        let columns: [Column<(&String, &KindReport)>; 6] = [
            ("operation", |(kind, _)| kind.clone()),
            ("number", |(_, k)| k.ops.to_string()),
            ("mismatches", |(_, k)| k.mismatches.to_string()),
            ("p50", |(_, k)| time(k.latency.p50_ns)),
            ("p99", |(_, k)| time(k.latency.p99_ns)),
            ("p99.9", |(_, k)| time(k.latency.p999_ns)),
        ];
        let table = table_of((&columns, 1), &self.by_kind);
        let mut out = format!(
            "{}: {} operations in {:.2} s, {} Mops, {} mismatches; {} keys at the end\n  {}\n{table}",
            self.system,
            self.ops,
            self.seconds,
            mops(self.mops),
            self.mismatches,
            self.keys,
            self.note,
        );
        for s in &self.samples {
            out += &format!("  {s}\n");
        }
        if self.interrupted {
            out += "interrupted: the rest of the trace was not replayed\n";
        }
        out
    }
}

/// The keys of one thread.
struct Shard {
    session: Client,
    me: usize,
    threads: usize,
    model: BTreeMap<Vec<u8>, Record>,
    tally: Tally,
    encoded: Vec<u8>,
}

impl Shard {
    fn new(session: Client, me: usize, threads: usize) -> Self {
        let (model, tally, encoded) = Default::default();
        Self { session, me, threads, model, tally, encoded }
    }

    fn work(mut self, from: &Receiver<Vec<TraceOp>>, done: &AtomicU64) -> Tally {
        while let Ok(batch) = from.recv() {
            for op in &batch {
                let kind = op.action.kind();
                let began = clock::now();
                let result = self.one(op);
                self.tally.latency.record(kind, clock::nanos(clock::now() - began));
                if let Err(why) = result {
                    self.tally.wrong(kind, &op.key, &why);
                }
            }
            done.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        self.tally.keys = self.model.len() as u64;
        self.tally
    }

    fn one(&mut self, op: &TraceOp) -> Result<(), String> {
        let key = op.key.as_slice();
        match &op.action {
            Action::Read(fields) => {
                let found = self.read(key)?;
                let project = |r: &Record| r.project(fields);
                let due = self.model.get(key);
                // The whole record is compared, and so are the requested fields.
                match (found.as_ref(), due) {
                    (found, due) if found == due => Ok(()),
                    (Some(f), Some(d)) if project(f) == project(d) => {
                        Err("another field than those read differs".to_owned())
                    }
                    (Some(_), Some(_)) => Err("the record differs from the one written".to_owned()),
                    (Some(_), None) => Err("a record is found where none must be".to_owned()),
                    _ => Err("the record is missing".to_owned()),
                }
            }
            Action::Insert(_) => {
                let after = op.action.apply(None);
                self.put(key, after)
            }
            Action::Update(_) => {
                let found = self.read(key)?;
                let same = found.as_ref() == self.model.get(key);
                let after = op.action.apply(found);
                self.put(key, after)?;
                if same {
                    Ok(())
                } else {
                    Err("the record to update is not the one written".to_owned())
                }
            }
            Action::Delete => {
                let was = self.model.remove(key).is_some();
                let outcome = self.session.write(key, Write::Delete).map_err(|e| e.to_string())?;
                let due = if was { Outcome::Done } else { Outcome::NotFound };
                if outcome == due {
                    Ok(())
                } else {
                    Err(format!("{outcome:?} where {due:?} must be"))
                }
            }
            Action::Scan { count, .. } => self.scan(key, *count as usize),
        }
    }

    fn read(&mut self, key: &[u8]) -> Result<Option<Record>, String> {
        let found = self.session.get(key).map_err(|e| e.to_string())?;
        found.map(|value| Record::decode(&value)).transpose().map_err(|e| e.to_string())
    }

    fn put(&mut self, key: &[u8], record: Option<Record>) -> Result<(), String> {
        let record = record.unwrap_or_default();
        record.encode(&mut self.encoded);
        let outcome =
            self.session.write(key, Write::Put(&self.encoded)).map_err(|e| e.to_string())?;
        self.model.insert(key.to_vec(), record);
        if outcome == Outcome::Done { Ok(()) } else { Err(format!("a put gives {outcome:?}")) }
    }

    /// Checks order, number and readability of all pairs. Of this thread's keys, it also checks
    /// that none is missing or has another value than written.
    fn scan(&mut self, from: &[u8], count: usize) -> Result<(), String> {
        let request = above(from, count);
        let (me, threads) = (self.me, self.threads);
        let mut mine = self.model.range(from.to_vec()..).peekable();
        let (mut wrong, mut pairs): (Option<String>, usize) = (None, 0);
        let mut last: Option<Vec<u8>> = None;
        let scanned = self.session.for_each(request, &mut |k, v| {
            pairs += 1;
            let mut say = |why: String| {
                wrong.get_or_insert(why);
            };
            if k < from || last.as_ref().is_some_and(|l| l.as_slice() >= k) {
                say(format!("{} is out of order", shown(k)));
            }
            match Record::decode(v) {
                Err(e) => say(e.to_string()),
                Ok(r) if shard(k, threads) == me => match mine.next() {
                    Some((key, due)) if key.as_slice() == k && *due == r => {}
                    Some((key, _)) if key.as_slice() == k => say(format!("{} differs", shown(k))),
                    Some((key, _)) => say(format!("{} where {} must be", shown(k), shown(key))),
                    None => say(format!("{} was never written, or deleted", shown(k))),
                },
                Ok(_) => {}
            }
            last = Some(k.to_vec());
            true
        });
        scanned.map_err(|e| e.to_string())?;
        if let Some(why) = wrong {
            return Err(why);
        }
        if pairs > count {
            return Err(format!("{pairs} records where {count} were asked for"));
        }
        match mine.next() {
            Some((due, _)) if pairs < count || last.as_ref().is_some_and(|l| due <= l) => {
                Err(format!("{} is missing", shown(due)))
            }
            _ => Ok(()),
        }
    }
}
