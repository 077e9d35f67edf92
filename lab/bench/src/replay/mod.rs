//! Replays operation traces, and compares every read with the value that the trace implies.

mod feed;
mod shard;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dmtree_check::client::Client;
use dmtree_parts::peer::leaf_bytes_per_key;
use dmtree_workload::OpKind;
use dmtree_workload::trace::{Action, Format, TraceReader};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::clock;
use crate::config::{Config, cores};
use crate::fabrics::{LOCAL, SIM};
use crate::failure::{Failure, Result};
use crate::group::pool_spec;
use crate::latency::{ByKind, percentiles};
use crate::opened::{Loop, Opened, PlacedClient};
use crate::profile::ProfileText;
use crate::registry::find;
use crate::results::{Percentiles, note};
use crate::run::of_system;
use crate::system::fit;
use crate::table::{Column, mops, table_of, time};

use feed::Feed;
use shard::{Shard, Tally};

/// Threads of each compute node by default, on the simulated fabric.
const SIM_THREADS: u32 = 8;

/// Parameters of a replay.
#[derive(Clone, Debug, Args)]
pub struct ReplayOptions {
    /// Trace files, plain or gzipped, replayed in this order as one.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The form of the trace: ycsb (output of the YCSB client's basic binding), twitter (rows
    /// timestamp,key,key size,value size,client id,operation,TTL), or csv (the first row names the
    /// columns: op and key; value, or size; length of scans).
    #[arg(long, default_value = "ycsb", hide_possible_values = true, value_parser = formats())]
    pub format: Format,
    /// The system.
    #[arg(long, default_value = "dmtree", value_name = "NAME")]
    pub system: String,
    /// The fabric: local, sim, tcp, or verbs.
    #[arg(long, default_value = LOCAL)]
    pub fabric: String,
    /// On fabrics tcp and verbs: where the first memory node of a running pool listens; without
    /// it, memory nodes are started in this process.
    #[arg(long, value_name = "HOST:PORT")]
    pub nodes: Option<String>,
    /// The file with the keys of this process; or else the one that DMTREE_KEY_FILE names.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Without keys: listen on other addresses than the loopback nevertheless.
    #[arg(long)]
    pub insecure: bool,
    /// On fabric verbs: the RDMA device; the first with an active port by default.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// On fabric verbs: index into the table of addresses of its port.
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
    /// Profile of the simulated fabric, or a file that ends with .toml.
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub profile: Option<String>,
    /// Set a field of the profile otherwise; may be given several times.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub profile_set: Vec<String>,
    /// Threads in all, the cores by default; on fabric sim those of each compute node, 8 by
    /// default.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Clients of each thread.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub coroutines: u32,
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

fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name))
        .map(|name| name.parse().unwrap_or_default())
}

impl ReplayOptions {
    /// The settings of a run on the same pool.
    ///
    /// # Errors
    /// Impossible settings, named.
    fn config(&self) -> Result<Config> {
        let simulated = self.fabric == SIM;
        let mut c = Config {
            systems: vec![self.system.clone()],
            fabric: self.fabric.clone(),
            nodes: self.nodes.clone(),
            key_file: self.key_file.clone(),
            insecure: self.insecure,
            device: self.device.clone(),
            gid_index: self.gid_index,
            threads: self.threads.unwrap_or_else(|| if simulated { SIM_THREADS } else { cores() }),
            coroutines: self.coroutines,
            cns: self.cns,
            mns: self.mns,
            cache_bytes: self.cache_bytes,
            ..Config::default()
        };
        if simulated {
            c.profile = Some(ProfileText::find(self.profile.as_deref(), &self.profile_set)?);
        } else if self.profile.is_some() || !self.profile_set.is_empty() {
            return Err(Failure::input(
                "a profile says how the simulated fabric behaves: give --fabric sim too",
            ));
        }
        c.check_pool()?;
        Ok(of_system(c, &find(&self.system)?))
    }
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
    /// The fabric.
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
/// The first malformed line, with what is expected there.
pub fn survey(files: &[PathBuf], format: Format) -> Result<Survey> {
    let mut reader = TraceReader::open(files).map_err(Failure::refused)?.with_format(format);
    let mut s = Survey::default();
    for op in reader.by_ref() {
        let op = op.map_err(Failure::refused)?;
        s.longest_key = s.longest_key.max(op.key.len() as u64);
        if let Action::Insert(r) | Action::Update(r) = &op.action {
            s.longest_value = s.longest_value.max(r.encoded_len() as u64);
            s.writes += 1;
        }
    }
    s.operations = reader.counts().operations();
    s.client_lines = reader.counts().client_lines;
    Ok(s)
}

/// Replays a trace on a fresh pool, or on an index of its own in a running one. Operations on one
/// key run in the order of the trace, by one client.
///
/// # Errors
/// A malformed trace (before any operation), or impossible sizes.
pub fn replay(
    o: &ReplayOptions,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReplayReport> {
    let config = o.config()?;
    let survey = survey(&o.files, o.format)?;
    let opened = open(o, &config, &survey)?;
    let reader = TraceReader::open(&o.files).map_err(Failure::refused)?.with_format(o.format);
    let clients = config.clients() as usize;
    let feed = Arc::new(Feed::new(reader, clients, stop.clone()));
    let body = |placed: PlacedClient| -> Loop<Tally> {
        Box::pin(Shard::new(placed, clients, feed.clone()).work())
    };
    let began = clock::now();
    let mut tick = || progress(feed.done.load(Ordering::Relaxed), survey.operations);
    opened.set_timed(true);
    let left = opened.run((config.threads, config.coroutines), &body, &mut tick);
    opened.set_timed(false);
    let tallies: Vec<Tally> = left?.into_iter().map(|left| left.out).collect();
    if let Some(e) = feed.failure() {
        return Err(Failure::refused(e));
    }
    // On the simulated fabric the time is the fabric's.
    let virtual_ns = tallies.iter().map(|t| t.elapsed_ns).max().unwrap_or(0);
    let seconds = match opened.sim() {
        Some(_) => virtual_ns as f64 / 1e9,
        None => (clock::now() - began).as_secs_f64(),
    };
    let mut report = sum_up(o, &survey, &tallies, seconds.max(1e-9));
    report.note = note(&config);
    report.interrupted = stop.load(Ordering::Relaxed);
    match Client::from(opened.client(0)?).walk() {
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

/// An empty index with room for what a trace writes.
fn open(o: &ReplayOptions, config: &Config, survey: &Survey) -> Result<Opened> {
    let system = find(&o.system)?;
    let (key, value) = (survey.longest_key.max(1), survey.longest_value);
    let need = survey.writes.saturating_mul(leaf_bytes_per_key(&fit(key, value)));
    let floor = (u64::from(o.cns) * 4 + 64) << 20;
    let memory_bytes = o.memory_bytes.map(|b| b.0).unwrap_or_else(|| {
        let all = need.saturating_mul(2).saturating_add(floor);
        (all / u64::from(o.mns)).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
    });
    let options = (system.fit)(&system.options, &fit(key, value.min(64)));
    let spec = pool_spec(config, memory_bytes, 0)?;
    Opened::create(system.name, &system.options.with(options), &spec)
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
            "{}: {} operations in {}, {} Mops, {} mismatches; {} keys at the end\n  {}\n{table}",
            self.system,
            self.ops,
            match self.seconds {
                0.1.. => format!("{:.2} s", self.seconds),
                s => time((s * 1e9) as u64),
            },
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
