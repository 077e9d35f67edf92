//! Cells that share one loaded pool: loading, warming up, measuring, walking.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dmtree_fabric::Snapshot;
use dmtree_parts::{Outcome, RangeIndex, Shape, Write};
use dmtree_workload::{Distribution, LOADED, LoadOrder, Plan, Seed, Workload};

use crate::client::{self, Ended, Orders, Tally};
use crate::clock;
use crate::config::{Config, LoadBy, MIN_OPS, Measure};
use crate::failure::{Failure, Result};
use crate::memory;
use crate::offered::{Arrivals, LoadShape, OpenFigures};
use crate::opened::{Crew, Left, Loop, Opened, PoolSpec, Seat};
use crate::oracle::Oracle;
use crate::registry::System;
use crate::results::MemoryFigures;
use crate::simulated::{self, FabricSpec, START_SPREAD_NS, SimFigures};
use crate::sizing;
use crate::window::{Extent, Window};

/// Every how many keys, in key order, a warm-up reads one: at least one per leaf.
const WARM_STRIDE: u64 = 8;

/// One cell to measure.
#[derive(Clone, Debug)]
pub struct CellPlan {
    /// Its number in the run.
    pub number: usize,
    /// What is done.
    pub workload: Workload,
    /// To which keys.
    pub distribution: Distribution,
    /// The settings.
    pub config: Config,
    /// The point of a sweep.
    pub variant: Option<String>,
    /// The cell whose run is this one's too: simulated, and the same but for a distribution that the workload has no use for.
    pub same_as: Option<usize>,
}

/// Cells of one system that share a pool.
#[derive(Clone, Debug)]
pub struct Group {
    /// The system.
    pub system: System,
    /// The cells; more than one only when none changes which keys exist, and all want the same pool.
    pub cells: Vec<CellPlan>,
    /// The round, from 0.
    pub round: u32,
}

/// What a cell came to in one round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// All clients' tallies.
    pub tally: Tally,
    /// All clients' counters.
    pub counts: Snapshot,
    /// Operations and clients by compute node.
    pub per_cn: Vec<(u64, u32)>,
    /// The law in effect.
    pub law: String,
    /// Whether scans were checked against all loaded keys.
    pub complete_scans: bool,
    /// Keys read by the average compute node in warm-ups.
    pub warmed: f64,
    /// What keys cost in memory.
    pub memory: Option<MemoryFigures>,
    /// What the throughput is of: operations, and the time they took, s.
    pub rate: (u64, f64),
    /// What only a simulated cell has.
    pub sim: Option<SimFigures>,
    /// What became of an open load.
    pub open: Option<OpenFigures>,
}

/// What a run tells about its progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The cell's or group's name.
    pub what: &'a str,
    /// `load`, `warm-up`, `measure`, `walk`.
    pub phase: &'static str,
    /// The cell's number, from 1, and how many there are.
    pub cell: (usize, usize),
    /// Operations done in this phase.
    pub done: u64,
    /// How far the phase is, 0 to 1.
    pub share: f64,
}

/// Where a run reports to, and what limits it.
pub struct Host<'a> {
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// When everything must be done; nothing when there is no budget.
    pub deadline: Option<Instant>,
    /// Cells left to measure, this one included.
    pub cells_left: usize,
    /// All cells.
    pub cells: usize,
    /// Groups that are still to be loaded after this one.
    pub loads_left: usize,
    /// What the last load took.
    pub load_cost: Duration,
    /// The order of the keys of the last load, for the next that has the same keys.
    pub oracle: Option<(String, Arc<Oracle>)>,
    /// Hears of progress.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
    /// Takes what a cell came to.
    pub measured: &'a mut dyn FnMut(&Group, &CellPlan, Measured),
}

impl std::fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} of {} cells left)", self.cells_left, self.cells)
    }
}

impl Host<'_> {
    fn stopped(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// This cell's share of the time that is left.
    fn slot(&self) -> Option<Duration> {
        let left = self.deadline?.saturating_duration_since(clock::now());
        // Loads to come take their part first, but never more than two thirds.
        let loads = self.load_cost.saturating_mul(self.loads_left as u32).min(left * 2 / 3);
        Some((left - loads) / self.cells_left.max(1) as u32)
    }
}

/// What a pool for these settings is made of.
///
/// # Errors
/// A profile that cannot be read.
pub fn pool_spec(c: &Config, memory_bytes: u64, compute_bytes: u64) -> Result<PoolSpec> {
    let fabric = match &c.profile {
        Some(p) => FabricSpec::Sim { profile: Box::new(p.profile()?), seed: c.seed },
        None => FabricSpec::Local,
    };
    Ok(PoolSpec {
        cns: c.cns,
        mns: c.mns,
        memory_bytes,
        compute_bytes,
        cache_bytes: c.cache_bytes.0,
        fabric,
    })
}

/// The order of the keys: the last one's if the keys are the same.
fn oracle(host: &mut Host<'_>, c: &Config, plan: &Plan) -> Option<Arc<Oracle>> {
    let name = format!("{} {} {}", c.keys, c.key_form, c.seed);
    if let Some((have, oracle)) = &host.oracle
        && *have == name
    {
        return Some(oracle.clone());
    }
    host.oracle = None;
    let oracle = Oracle::new(plan)?;
    host.oracle = Some((name, oracle.clone()));
    Some(oracle)
}

/// Measures the cells of a group on a fresh pool.
///
/// # Errors
/// Settings that cannot be, a load that does not fit or is wrong, an interrupt. What operations do wrong is counted instead.
pub fn run_group<I: RangeIndex>(g: &Group, host: &mut Host<'_>) -> Result<()> {
    let Some(first) = g.cells.first() else { return Ok(()) };
    let c = &first.config;
    let memory_bytes = sizing::memory(c, &first.workload);
    let began = clock::now();
    let spec = pool_spec(c, memory_bytes, sizing::tables(c, memory_bytes))?;
    let opened = Opened::<I>::create(g.system.name, &g.system.options_for(c), &spec)?;
    let plan = c.workload(&first.workload, first.distribution).build()?;
    let needs_order =
        g.cells.iter().any(|cell| cell.workload.mix().scan > 0) || c.load_by == LoadBy::Bulk;
    let oracle = if needs_order { oracle(host, c, &plan) } else { None };
    load(g, host, &opened, &plan, oracle.as_ref())?;
    host.stopped()?;
    let mut shape = walk(g, host, &opened)?;
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
            // A simulated cell is warm or it is none.
            let limit = (!c.simulated()).then(|| Duration::from_secs_f64(longest));
            let (reads, complete) = warm_up(g, cell, host, &opened, &plan, oracle.as_ref(), limit)?;
            warmed += reads;
            warm = complete;
        }
        host.stopped()?;
        let plan = cell.config.workload(&cell.workload, cell.distribution).build()?;
        let before = lookups(&opened);
        let mut m = measure(g, cell, host, &opened, &plan, oracle.as_ref())?;
        let after = lookups(&opened);
        if m.tally.ended == Ended::Interrupted {
            return Err(Failure::Interrupted);
        }
        let mix = cell.workload.mix();
        let changes = mix.insert > 0 || mix.delete > 0;
        let last = g.cells.last().is_some_and(|l| l.number == cell.number);
        if changes || (last && mix.update + mix.read_modify_write > 0) {
            match walk(g, host, &opened) {
                Ok(after) => {
                    let due = c.keys + m.tally.inserted - m.tally.deleted;
                    if m.tally.unknown == 0 && m.tally.errors == 0 && after.keys != due {
                        m.tally.errors += 1;
                        m.tally.samples.push(format!(
                            "the index holds {} keys where {due} must be",
                            after.keys
                        ));
                    }
                    shape = after;
                }
                Err(e) => {
                    m.tally.errors += 1;
                    m.tally.samples.push(e.to_string());
                }
            }
        }
        m.warmed = warmed;
        let clients = m.per_cn.iter().map(|(_, clients)| *clients).collect::<Vec<_>>();
        let cache = |cn| opened.cache_stats(cn);
        let mut figures = memory::figures(&shape, &g.system.options, &clients, cache);
        figures.cache_hit_rate = memory::hit_rate(before, after, m.tally.all_ops);
        m.memory = Some(figures);
        (host.measured)(g, cell, m);
        host.cells_left = host.cells_left.saturating_sub(1);
    }
    Ok(())
}

/// Hits and misses of all compute nodes so far.
fn lookups<I: RangeIndex>(opened: &Opened<I>) -> (u64, u64) {
    let stats = (0..opened.compute_nodes()).map(|cn| opened.cache_stats(cn));
    stats.fold((0, 0), |(hits, misses), s| (hits + s.hits, misses + s.misses))
}

fn name(g: &Group, cell: Option<&CellPlan>) -> String {
    match cell {
        Some(c) => {
            let variant = c.variant.as_ref().map(|v| format!(" [{v}]")).unwrap_or_default();
            format!("{}{variant}, {}, {}", g.system.name, c.workload, c.distribution)
        }
        None => g.system.name.to_owned(),
    }
}

/// The settings that loading goes by: those of the first cell.
fn settings(g: &Group) -> Result<&Config> {
    let first = g.cells.first().ok_or_else(|| Failure::input("a group without cells"))?;
    Ok(&first.config)
}

fn at(host: &Host<'_>) -> (usize, usize) {
    (host.cells - host.cells_left + 1, host.cells)
}

/// Loads the keys.
fn load<I: RangeIndex>(
    g: &Group,
    host: &mut Host<'_>,
    opened: &Opened<I>,
    plan: &Arc<Plan>,
    oracle: Option<&Arc<Oracle>>,
) -> Result<()> {
    let (c, n) = (settings(g)?, plan.records());
    let what = name(g, None);
    let cell = at(host);
    let show = |host: &mut Host<'_>, done: u64| {
        let share = done as f64 / n as f64;
        (host.progress)(Progress { what: &what, phase: "load", cell, done, share });
    };
    show(host, 0);
    match c.load_by {
        LoadBy::Bulk => {
            let mut client = opened.client(0)?;
            let ep = client.endpoint().clone();
            let mut done = 0;
            // Without the order in memory the index sorts for itself.
            let order = oracle.is_none().then(|| plan.load(LoadOrder::Random));
            let mut pairs = (0..n).map_while(|i| {
                done = i + 1;
                if done.is_multiple_of(1 << 16) {
                    show(host, done);
                    host.stopped().ok()?;
                }
                let record = match (oracle, &order) {
                    (Some(o), _) => o.record_at(i as usize),
                    (None, Some(order)) => order.records(i..i + 1).next().unwrap_or(i),
                    (None, None) => i,
                };
                let (mut key, mut value) = (Vec::new(), Vec::new());
                plan.key(record, &mut key);
                plan.value(record, &key, LOADED, &mut value);
                Some((key, value))
            });
            let sorted = oracle.is_some();
            let loaded = ep
                .core()
                .block_on(ep.slot(), client.load(&mut pairs, sorted, c.fill.fill(c.seed)))
                .map_err(fits)?;
            host.stopped()?;
            if loaded.pairs != n {
                return Err(Failure::violation(format!(
                    "{}: the load stored {} of {n} pairs",
                    g.system.name, loaded.pairs
                )));
            }
        }
        LoadBy::Put => {
            let clients = u64::from(c.clients());
            let order = plan.load(LoadOrder::Random);
            let done = Arc::new(AtomicU64::new(0));
            let (stop, counter) = (host.stop.clone(), done.clone());
            let body = |mut seat: Seat<I>| -> Loop<Result<(), dmtree_fabric::Error>> {
                let (plan, order) = (plan.clone(), order.clone());
                let (stop, done) = (stop.clone(), counter.clone());
                Box::pin(async move {
                    let i = u64::from(seat.number);
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    for (turn, record) in
                        order.records(n * i / clients..n * (i + 1) / clients).enumerate()
                    {
                        plan.key(record, &mut key);
                        plan.value(record, &key, LOADED, &mut value);
                        let outcome = seat.client.write(&key, Write::Put(&value)).await?;
                        if outcome != Outcome::Done {
                            return Err(dmtree_fabric::Error::corrupt(format!(
                                "a put while loading gives {outcome:?}"
                            )));
                        }
                        if turn % 16 == 15 {
                            done.fetch_add(16, Ordering::Relaxed);
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            if seat.shares_thread {
                                seat.ep.yield_now().await;
                            }
                        }
                    }
                    seat.ep.drain().await
                })
            };
            let mut tick = || show(host, done.load(Ordering::Relaxed));
            let left = opened.run(crew(c), &body, &mut tick)?;
            for l in left {
                l.out.map_err(fits)?;
            }
        }
    }
    Ok(())
}

/// A load that finds no room is bad input, and says so.
fn fits(e: dmtree_fabric::Error) -> Failure {
    if e.kind() == dmtree_fabric::ErrorKind::Full {
        Failure::input(format!(
            "the keys do not fit the memory ({e}): give more --memory-bytes or fewer --keys"
        ))
    } else {
        Failure::from(e).context("loading")
    }
}

fn walk<I: RangeIndex>(g: &Group, host: &mut Host<'_>, opened: &Opened<I>) -> Result<Shape> {
    let what = name(g, None);
    let cell = at(host);
    (host.progress)(Progress { what: &what, phase: "walk", cell, done: 0, share: 0.0 });
    let mut client = opened.client(0)?;
    let ep = client.endpoint().clone();
    ep.core()
        .block_on(ep.slot(), client.walk())
        .map_err(|e| Failure::violation(format!("{}: the structure is broken: {e}", g.system.name)))
}

/// Reads keys on every compute node that has clients. How many the average one read, and whether each came to the end.
fn warm_up<I: RangeIndex>(
    g: &Group,
    cell: &CellPlan,
    host: &mut Host<'_>,
    opened: &Opened<I>,
    plan: &Arc<Plan>,
    oracle: Option<&Arc<Oracle>>,
    limit: Option<Duration>,
) -> Result<(f64, bool)> {
    let c = &cell.config;
    // Untimed, one client of each compute node does.
    let crew = if c.simulated() { Crew { threads: 1, coroutines: 1 } } else { crew(c) };
    let cns = u32::from(c.cns);
    let clients = if c.simulated() { cns } else { c.clients() };
    let n = plan.records();
    let deadline = limit.map(|limit| clock::now() + limit);
    let done = Arc::new(AtomicU64::new(0));
    let stop = host.stop.clone();
    let body = |mut seat: Seat<I>| -> Loop<(u64, bool, Vec<String>)> {
        let (plan, oracle, stop, done) =
            (plan.clone(), oracle.cloned(), stop.clone(), done.clone());
        Box::pin(async move {
            // The clients of a compute node share its keys.
            let mine = u64::from(seat.number / cns);
            let sharers = u64::from((clients - seat.cn as u32).div_ceil(cns));
            let order = oracle.is_none().then(|| plan.load(LoadOrder::Random));
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let (mut reads, mut wrong) = (0u64, Vec::new());
            let mut position = mine * WARM_STRIDE;
            while position < n {
                let record = match (&oracle, &order) {
                    (Some(o), _) => o.record_at(position as usize),
                    (None, Some(o)) => o.records(position..position + 1).next().unwrap_or(0),
                    (None, None) => position,
                };
                plan.key(record, &mut key);
                match seat.client.get(&key, &mut value).await {
                    Ok(true) => {
                        if let Err(e) = plan.check_value(&key, &value) {
                            wrong.push(e.to_string());
                        }
                    }
                    Ok(false) => wrong.push("a loaded key is reported absent".to_owned()),
                    Err(e) => wrong.push(e.to_string()),
                }
                reads += 1;
                position += sharers * WARM_STRIDE;
                if reads.is_multiple_of(16) {
                    done.fetch_add(16, Ordering::Relaxed);
                    let late = deadline.is_some_and(|d| clock::now() >= d);
                    if stop.load(Ordering::Relaxed) || late || wrong.len() > 100 {
                        break;
                    }
                    if seat.shares_thread {
                        seat.ep.yield_now().await;
                    }
                }
            }
            if let Err(e) = seat.ep.drain().await {
                wrong.push(e.to_string());
            }
            (reads, position >= n, wrong)
        })
    };
    let (what, place) = (name(g, Some(cell)), at(host));
    let all = (n / WARM_STRIDE).max(1) * u64::from(cns.min(clients));
    let mut tick = || {
        let done = done.load(Ordering::Relaxed);
        let share = done as f64 / all as f64;
        (host.progress)(Progress { what: &what, phase: "warm-up", cell: place, done, share });
    };
    let left = opened.run(crew, &body, &mut tick)?;
    if let Some(wrong) = left.iter().find_map(|l| l.out.2.first()) {
        return Err(Failure::violation(format!("{}: warming up: {wrong}", g.system.name)));
    }
    let reads: u64 = left.iter().map(|l| l.out.0).sum();
    let per_node = reads as f64 / f64::from(cns.min(clients));
    Ok((per_node, left.iter().all(|l| l.out.1)))
}

fn measure<I: RangeIndex>(
    g: &Group,
    cell: &CellPlan,
    host: &mut Host<'_>,
    opened: &Opened<I>,
    plan: &Arc<Plan>,
    oracle: Option<&Arc<Oracle>>,
) -> Result<Measured> {
    let c = &cell.config;
    let clients = c.clients();
    // Of a budget, the time that is left of this cell's share; a walk follows.
    let time = match (host.slot(), c.duration) {
        (Some(slot), None) => Some(slot.mul_f64(0.9)),
        (Some(slot), Some(d)) => Some(slot.mul_f64(0.9).min(Duration::from_secs_f64(d))),
        (None, d) => d.map(Duration::from_secs_f64),
    };
    let orders = Arc::new(orders(g, cell, host, opened, plan, oracle, time));
    let body = |seat: Seat<I>| -> Loop<Tally> { Box::pin(client::work(seat, orders.clone())) };
    let (what, place) = (name(g, Some(cell)), at(host));
    let began = clock::now();
    let mut tick = || {
        let done = orders.done.load(Ordering::Relaxed);
        let share = match (&orders.window, time) {
            (Some(w), _) => w.share(),
            (None, Some(t)) => (clock::now() - began).as_secs_f64() / t.as_secs_f64().max(1e-9),
            (None, None) => 0.0,
        };
        let by_ops = orders.left.as_ref().and(c.ops).map_or(0.0, |n| done as f64 / n as f64);
        let share = share.max(by_ops).min(1.0);
        (host.progress)(Progress { what: &what, phase: "measure", cell: place, done, share });
    };
    opened.set_timed(true);
    let left = opened.run(crew(c), &body, &mut tick);
    opened.set_timed(false);
    let mut m = sum_up(&left?, opened.compute_nodes(), plan, oracle.is_some());
    if let Some(counted) = orders.counted.get() {
        m.counts = counted.clone();
    }
    conclude(&mut m, &orders, clients, (clock::now() - began).as_secs_f64());
    Ok(m)
}

/// The crew of a cell.
fn crew(c: &Config) -> Crew {
    Crew { threads: c.threads, coroutines: c.coroutines }
}

fn orders<I: RangeIndex>(
    g: &Group,
    cell: &CellPlan,
    host: &Host<'_>,
    opened: &Opened<I>,
    plan: &Arc<Plan>,
    oracle: Option<&Arc<Oracle>>,
    time: Option<Duration>,
) -> Orders {
    let c = &cell.config;
    let clients = c.clients();
    let seed = Seed(c.seed).numbered("round", g.round.into()).numbered("cell", cell.number as u64);
    let min_ops = if host.deadline.is_some() { MIN_OPS.div_ceil(u64::from(clients)) } else { 1 };
    let whole = c.measure == Measure::All;
    let budget = c.ops.filter(|_| opened.sim().is_none() || whole);
    let extent = Extent { ops: c.ops.filter(|_| !whole), ns: time.map(clock::nanos) };
    let window = opened.sim().map(|sim| Window::new(sim.clone(), clients, START_SPREAD_NS, extent));
    let arrivals = match c.load {
        LoadShape::Closed => None,
        LoadShape::Open { ops_per_s } => {
            Some(Arrivals::new(seed, ops_per_s, opened.compute_nodes()))
        }
    };
    Orders {
        plan: plan.clone(),
        oracle: oracle.cloned(),
        first_stream: g.round.wrapping_mul(clients),
        time,
        min_ops,
        left: budget.map(|n| AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX))),
        insert_room: sizing::insert_room(c, &cell.workload),
        stop: host.stop.clone(),
        done: AtomicU64::new(0),
        start: OnceLock::new(),
        spread_ns: if window.is_some() { START_SPREAD_NS } else { 0 },
        seed,
        arrivals,
        window,
        counted: OnceLock::new(),
        measure: c.measure,
        steps: c.steps,
    }
}

/// What follows from the window and from the offered load.
fn conclude(m: &mut Measured, o: &Orders, clients: u32, real_seconds: f64) {
    let start = o.start.get().copied().unwrap_or(0);
    if let Some(w) = &o.window {
        let span = w.span(start);
        m.rate = (span.ops, (span.to_ns - span.from_ns) as f64 / 1e9);
        let (usage, hash) = (w.usage(), w.trace_hash());
        let nodes = simulated::nodes(&usage);
        m.sim = Some(SimFigures {
            trace_hash: format!("{hash:016x}"),
            window_ns: (span.from_ns, span.to_ns),
            window_ops: span.ops,
            busiest: simulated::busiest(&nodes),
            nodes,
            real_seconds,
        });
        if let Some(a) = &o.arrivals {
            let (from, to) = (span.from_ns - start, span.to_ns - start);
            let backlog = a.due(0, to).saturating_sub(span.begun);
            m.open = Some(OpenFigures::judge(a.ops_per_s(), a.due(from, to), span.ops, backlog));
        }
    } else if let Some(a) = &o.arrivals {
        // The whole phase is the window; what is under way at its end is one per client at most.
        let due = a.due(0, clock::nanos(m.tally.elapsed));
        let backlog = due.saturating_sub(m.tally.all_ops + u64::from(clients));
        m.open = Some(OpenFigures::judge(a.ops_per_s(), due, m.tally.all_ops, backlog));
    }
}

fn sum_up(left: &[Left<Tally>], cns: usize, plan: &Plan, ordered: bool) -> Measured {
    let mut tally = Tally::default();
    let mut counts = Snapshot::default();
    let mut per_cn = vec![(0, 0); cns];
    for l in left {
        tally.add(&l.out);
        counts.add(&l.counts);
        per_cn[l.cn].0 += l.out.ops;
        per_cn[l.cn].1 += 1;
    }
    let complete_scans = ordered && plan.workload().mix().delete == 0;
    Measured {
        rate: (tally.ops, tally.elapsed.as_secs_f64().max(1e-9)),
        tally,
        counts,
        per_cn,
        law: plan.distribution().name(),
        complete_scans,
        warmed: 0.0,
        memory: None,
        sim: None,
        open: None,
    }
}
