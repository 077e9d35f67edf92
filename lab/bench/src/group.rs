//! Cells that share one loaded pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmtree_check::checked::System;
use dmtree_fabric::Snapshot;
use dmtree_fabric::net::NicConfig;
use dmtree_parts::{AnyOptions, Shape};
use dmtree_workload::{Distribution, Plan, Workload};

use crate::access::access;
use crate::client::{Ended, Tally};
use crate::clock;
use crate::config::{Config, LoadBy};
use crate::fabrics::data_path;
use crate::failure::{Failure, Result};
use crate::instructions::counting;
use crate::measure::measure;
use crate::memory::{self, Peak};
use crate::offered::OpenFigures;
use crate::opened::{Opened, PoolSpec};
use crate::oracle::Oracle;
use crate::phases::{DrainFigures, run_phases};
use crate::prepare::{Pool, foretell, load, walk, warm_up};
use crate::results::MemoryFigures;
use crate::series::Series;
use crate::simulated::{CpuSource, FabricSpec, SimFigures};
use crate::sizing;
use crate::system::{bytes_per_key, fit_of, options_for};

/// One cell to measure.
#[derive(Clone, Debug)]
pub struct CellPlan {
    /// Its number in the run.
    pub number: usize,
    /// The workload.
    pub workload: Workload,
    /// The distribution of keys.
    pub distribution: Distribution,
    /// The settings.
    pub config: Config,
    /// The point of a sweep.
    pub variant: Option<String>,
    /// The cell with the same run as this one: both are simulated, and differ only in a
    /// distribution that the workload does not use.
    pub same_as: Option<usize>,
}

impl CellPlan {
    /// What its clients do.
    pub(crate) fn plan(&self) -> Result<Arc<Plan>> {
        let workload = self.config.workload(&self.workload, self.distribution);
        workload.build().map_err(Failure::refused)
    }
}

/// Cells of one system that share a pool.
#[derive(Clone, Debug)]
pub struct Group {
    /// The system.
    pub system: System,
    /// The cells. There is more than one only if none changes the set of keys, and all need the
    /// same pool.
    pub cells: Vec<CellPlan>,
    /// The round, from 0.
    pub round: u32,
}

/// The result of a cell in one round.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The tallies of all clients.
    pub tally: Tally,
    /// The counters of all clients.
    pub counts: Snapshot,
    /// Operations and clients of each compute node.
    pub per_cn: Vec<(u64, u32)>,
    /// The law in effect.
    pub law: String,
    /// Whether scans were checked against all loaded keys.
    pub complete_scans: bool,
    /// Keys that the average compute node read in warm-ups.
    pub warmed: f64,
    /// Keys of inserts that the index was told of, and listened, before it was loaded.
    pub foretold: u64,
    /// Hits and misses of the caches of all compute nodes, before it and after it.
    pub lookups: ((u64, u64), (u64, u64)),
    /// What was due when the clock of a phase stopped.
    pub drain: Option<DrainFigures>,
    /// Memory per key.
    pub memory: Option<MemoryFigures>,
    /// The operations that the throughput covers, and their time, s.
    pub rate: (u64, f64),
    /// Figures of simulated cells.
    pub sim: Option<SimFigures>,
    /// Figures of an open load.
    pub open: Option<OpenFigures>,
    /// The cell over time.
    pub series: Option<Series>,
}

/// A progress report of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The cell's or group's name.
    pub what: &'a str,
    /// `load`, `warm-up`, `measure`, `walk`.
    pub phase: &'static str,
    /// The cell's number, from 1, and the number of cells.
    pub cell: (usize, usize),
    /// Operations done in this phase.
    pub done: u64,
    /// Progress of the phase, 0 to 1.
    pub share: f64,
}

/// The host of a run: receives its reports, and limits it.
pub struct Host<'a> {
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// The end of the time budget; `None` without a budget.
    pub deadline: Option<Instant>,
    /// No other group runs at the same time.
    pub is_alone: bool,
    /// Cells left to measure, this one included.
    pub cells_left: usize,
    /// Number of cells.
    pub cells: usize,
    /// Groups that remain to be loaded after this one.
    pub loads_left: usize,
    /// Duration of the last load.
    pub load_cost: Duration,
    /// The key order of the last load, for the next load with the same keys.
    pub oracle: Option<(String, Arc<Oracle>)>,
    /// Where its reports go.
    pub reports: Reports<'a>,
}

/// Receivers of the progress of a phase, and of the result of a cell.
pub type Reports<'a> =
    (&'a (dyn Fn(Progress<'_>) + Sync), &'a (dyn Fn(&Group, &CellPlan, Measured) + Sync));

impl<'a> Host<'a> {
    /// A host of so many cells that runs alone, without a time budget.
    pub fn new(stop: Arc<AtomicBool>, cells: usize, reports: Reports<'a>) -> Self {
        let (deadline, oracle, load_cost) = (None, None, Duration::ZERO);
        let (is_alone, cells_left, loads_left) = (true, cells, 0);
        Self { stop, deadline, is_alone, cells_left, cells, loads_left, load_cost, oracle, reports }
    }

    pub(crate) fn stopped(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    pub(crate) fn show(&mut self, what: &str, phase: &'static str, done: u64, share: f64) {
        let cell = (self.cells - self.cells_left + 1, self.cells);
        (self.reports.0)(Progress { what, phase, cell, done, share });
    }

    /// This cell's share of the remaining time.
    pub(crate) fn slot(&self) -> Option<Duration> {
        let left = self.deadline?.saturating_duration_since(clock::now());
        // Remaining loads take their part first, but at most two thirds of the time.
        let loads = self.load_cost.saturating_mul(self.loads_left as u32).min(left * 2 / 3);
        Some((left - loads) / self.cells_left.max(1) as u32)
    }
}

/// The pool specification for these settings.
///
/// # Errors
/// A profile that cannot be read.
pub fn pool_spec(c: &Config, memory_bytes: u64, compute_bytes: u64) -> Result<PoolSpec> {
    let fabric = match (&c.profile, data_path(&c.fabric), &c.nodes) {
        (Some(p), _, _) => {
            let mut profile = p.profile()?;
            if let Some(cores) = c.mn_cores {
                profile.set("host.cores", &cores.to_string())?;
            }
            let cpu = c.cpu.unwrap_or_default();
            if cpu == CpuSource::Counted {
                profile = counting(profile)?;
            }
            FabricSpec::Sim { profile: Box::new(profile), seed: c.seed, cpu }
        }
        (_, None, _) => FabricSpec::Local,
        (_, Some(data_path), None) => FabricSpec::Apart { data_path, nic_config: c.connected()? },
        (_, data_path, Some(first)) => {
            FabricSpec::Joined { first: first.clone(), data_path, nic_config: c.connected()? }
        }
    };
    Ok(PoolSpec {
        cns: c.cns,
        mns: c.mns,
        memory_bytes,
        compute_bytes,
        cache_bytes: c.cache_bytes.0,
        fabric,
        index: None,
    })
}

impl Config {
    /// The NIC configuration of this process, with its keys.
    fn connected(&self) -> Result<NicConfig> {
        let mut nic_config = self.nic_config();
        nic_config.access = access(self.key_file.as_deref(), self.insecure)?;
        Ok(nic_config)
    }

    /// The NIC configuration of this process.
    pub fn nic_config(&self) -> NicConfig {
        NicConfig::of(self.device.clone(), self.gid_index)
    }
}

/// The key order: that of the last load if the keys are the same.
fn oracle(host: &mut Host<'_>, c: &Config, plan: &Plan, scans: bool) -> Option<Arc<Oracle>> {
    let name = format!("{} {} {}", c.keys, c.key_form, c.seed);
    if let Some((have, oracle)) = &host.oracle
        && *have == name
        && (oracle.knows_scans() || !scans)
    {
        return Some(oracle.clone());
    }
    host.oracle = None;
    let oracle = Oracle::new(plan, scans)?;
    host.oracle = Some((name, oracle.clone()));
    Some(oracle)
}

/// A fresh pool for the cells of a group, with the memory of the first one, and an empty
/// index of options that `change` has changed.
///
/// # Errors
/// Impossible settings.
pub(crate) fn size_and_open(
    g: &Group,
    first: &CellPlan,
    change: impl FnOnce(AnyOptions) -> Result<AnyOptions>,
) -> Result<Opened> {
    let c = &first.config;
    let memory_bytes = sizing::memory(c, &first.workload, bytes_per_key(&g.system, c));
    let options = options_for(&g.system, c);
    let memory_bytes = match c.memory_bytes {
        Some(_) => memory_bytes,
        None => memory_bytes + sizing::logs(&options.typed(), c, memory_bytes),
    };
    let tables = sizing::tables(c, memory_bytes) + sizing::images(&options.typed(), c);
    let spec = pool_spec(c, memory_bytes, tables)?;
    Opened::create(g.system.name, &change(options)?, &spec)
}

/// Measures the cells of a group on a fresh pool.
///
/// # Errors
/// Impossible settings, a load that does not fit or has wrong results, or an interrupt. Errors of
/// operations are counted instead.
pub fn run_group(g: &Group, host: &mut Host<'_>) -> Result<()> {
    let Some(first) = g.cells.first() else { return Ok(()) };
    if first.workload.phase.is_some() {
        return run_phases(g, host);
    }
    let c = &first.config;
    let began = clock::now();
    let peak = Peak::begin();
    let opened = size_and_open(g, first, Ok)?;
    let plan = first.plan()?;
    let scans = g.cells.iter().any(|cell| cell.workload.mix().scan > 0);
    let needs_order = scans || c.load_by == LoadBy::Bulk;
    let oracle = if needs_order { oracle(host, c, &plan, scans) } else { None };
    let mut pool = Pool { group: g, opened, oracle, foretold: 0, written: None };
    pool.foretold = foretell(&pool, c, &first.workload, &plan)?;
    load(&pool, c, host, &plan)?;
    host.stopped()?;
    let mut shape = walk(&pool, host)?;
    if shape.keys != c.keys {
        return Err(Failure::violation(format!(
            "{}: after loading {} keys the index holds {}",
            g.system.name, c.keys, shape.keys
        )));
    }
    host.load_cost = clock::now() - began;
    let mut warmed = 0.0;
    let mut warm = false;
    for cell in &g.cells {
        host.stopped()?;
        let slot = host.slot();
        if !warm {
            let longest = slot.map_or(c.warmup, |s| c.warmup.min(s.as_secs_f64() / 3.0));
            // A simulated warm-up always completes.
            let limit = (!c.simulated()).then(|| Duration::from_secs_f64(longest));
            let (reads, complete) = warm_up(&pool, (cell, &plan), host, limit)?;
            warmed += reads;
            warm = complete;
        }
        host.stopped()?;
        let plan = cell.plan()?;
        let before = lookups(&pool.opened);
        let mut m = measure(&pool, (cell, &plan), host)?;
        m.lookups = (before, lookups(&pool.opened));
        if m.tally.ended == Ended::Interrupted {
            return Err(Failure::Interrupted);
        }
        let mix = cell.workload.mix();
        let changes = mix.insert > 0 || mix.delete > 0;
        let last = g.cells.last().is_some_and(|l| l.number == cell.number);
        if changes || (last && mix.update + mix.read_modify_write > 0) {
            match walk(&pool, host) {
                Ok(after) => {
                    let due = c.keys + m.tally.inserted - m.tally.deleted;
                    let held = after.keys;
                    if m.tally.unknown == 0 && m.tally.errors == 0 && held != due {
                        m.tally.found(format!("the index holds {held} keys where {due} must be"));
                    }
                    shape = after;
                }
                Err(e) => m.tally.found(e.to_string()),
            }
        }
        (m.warmed, m.foretold) = (warmed, pool.foretold);
        report(&pool, cell, host, (m, &shape, &peak));
    }
    Ok(())
}

/// Hands a measured cell on, with the memory that the index takes.
pub(crate) fn report(
    p: &Pool<'_>,
    cell: &CellPlan,
    host: &mut Host<'_>,
    (mut m, shape, peak): (Measured, &Shape, &Peak),
) {
    let (Pool { group: g, opened, .. }, c) = (p, &cell.config);
    let clients = m.per_cn.iter().map(|(_, clients)| *clients).collect::<Vec<_>>();
    let cache = |cn| opened.cache_stats(cn);
    let mut figures = memory::figures(shape, g.system.has_tables_on_memory_nodes, &clients, cache);
    let fit = fit_of(c);
    let pair = u64::from(fit.key_bytes) + u64::from(fit.value_bytes);
    figures.leaf_metadata = memory::leaf_metadata(shape, pair);
    let (before, after) = m.lookups;
    figures.cache_hit_rate = memory::hit_rate(before, after, m.tally.all_ops);
    let all_here = data_path(&c.fabric).is_none();
    figures.peak_bytes = if all_here && host.is_alone { peak.bytes() } else { None };
    m.memory = Some(figures);
    (host.reports.1)(g, cell, m);
    host.cells_left = host.cells_left.saturating_sub(1);
}

/// Hits and misses of all compute nodes so far.
pub(crate) fn lookups(opened: &Opened) -> (u64, u64) {
    let stats = (0..opened.compute_nodes()).map(|cn| opened.cache_stats(cn));
    stats.fold((0, 0), |(hits, misses), s| (hits + s.hits, misses + s.misses))
}

pub(crate) fn name(g: &Group, c: &CellPlan) -> String {
    let variant = c.variant.as_ref().map(|v| format!(" [{v}]")).unwrap_or_default();
    format!("{}{variant}, {}, {}", g.system.name, c.workload, c.distribution)
}
