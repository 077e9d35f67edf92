//! Running an experiment: which cells there are, and what all rounds of each came to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dmtree_fabric::{OpCounts, Role, SideCounts, Snapshot, Totals};

use crate::client::Tally;
use crate::clock;
use crate::config::Resolved;
use crate::failure::{Failure, Result};
use crate::group::{CellPlan, Group, Host, Measured, Progress};
use crate::opened::{FOREGROUND, PoolSpec};
use crate::registry;
use crate::results::{
    Cell, KindFigures, LOCAL_NOTE, Machine, MemoryFigures, NodeFigures, OutcomeCost, Results,
    Round, SCHEMA_VERSION, Side,
};
use crate::sizing;
use crate::summary::Summary;

/// Who hears of a run.
pub trait Observer {
    /// Something moves; called often.
    fn progress(&mut self, p: Progress<'_>);
    /// A cell was measured in one more round.
    fn measured(&mut self, cell: &Cell);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _: Progress<'_>) {}
    fn measured(&mut self, _: &Cell) {}
}

/// Groups of cells in the order in which they run, once.
///
/// # Errors
/// Unknown names.
pub fn groups(r: &Resolved) -> Result<Vec<Group>> {
    let c = &r.config;
    let mut out = Vec::new();
    let mut number = 0;
    for (variant, config) in c.sweep.points(c)? {
        for system in registry::select(&c.systems)? {
            for d in &c.distributions {
                let mut shared: Vec<CellPlan> = Vec::new();
                let mut own = Vec::new();
                for w in &c.workloads {
                    // Preflight has refused it where the system was asked for by name.
                    if system.lacks(&config, w).is_some() {
                        continue;
                    }
                    let cell = CellPlan { number, workload: w.clone(), distribution: *d };
                    number += 1;
                    let mix = w.mix();
                    if mix.insert > 0 || mix.delete > 0 {
                        own.push(cell);
                    } else {
                        shared.push(cell);
                    }
                }
                // What a cell leaves behind (values of another version) must not help the next: reads first.
                shared.sort_by_key(|cell| {
                    let mix = cell.workload.mix();
                    mix.update + mix.read_modify_write > 0
                });
                let mut add = |cells: Vec<CellPlan>| {
                    out.push(Group {
                        system: system.clone(),
                        config: config.clone(),
                        variant: variant.clone(),
                        cells,
                        round: 0,
                    });
                };
                if !shared.is_empty() {
                    add(shared);
                }
                own.into_iter().for_each(|cell| add(vec![cell]));
            }
        }
    }
    Ok(out)
}

/// Opens every system with the settings of every point, on a small pool: what options, caches and fabrics refuse is better
/// refused before anything is done.
///
/// # Errors
/// What the system refuses.
pub fn preflight(r: &Resolved) -> Result<()> {
    for (_, c) in r.config.sweep.points(&r.config)? {
        let spec = PoolSpec {
            cns: c.cns,
            mns: c.mns,
            memory_bytes: 16 << 20,
            compute_bytes: 0,
            cache_bytes: c.cache_bytes.0,
        };
        for system in registry::select(&c.systems)? {
            if r.config.systems.iter().any(|name| name == system.name)
                && let Some(what) = c.workloads.iter().find_map(|w| system.lacks(&c, w))
            {
                return Err(Failure::input(what));
            }
            let (key, value) = (sizing::longest_key(&c.key_form), u64::from(c.value_size.max()));
            system.open(&spec, key, value).map_err(|e| e.context(system.name))?;
        }
    }
    Ok(())
}

/// A cell over all its rounds so far.
struct Sum {
    tally: Tally,
    counts: Snapshot,
    per_cn: Vec<(u64, u32)>,
    seconds: f64,
    rounds: Vec<Round>,
    memory: Option<MemoryFigures>,
    warmed: f64,
    law: String,
    complete_scans: bool,
}

impl Sum {
    fn new(m: Measured) -> Self {
        let mut sum = Self {
            tally: Tally::default(),
            counts: Snapshot::default(),
            per_cn: vec![(0, 0); m.per_cn.len()],
            seconds: 0.0,
            rounds: Vec::new(),
            memory: None,
            warmed: m.warmed,
            law: m.law.clone(),
            complete_scans: m.complete_scans,
        };
        sum.add(m);
        sum
    }

    fn add(&mut self, m: Measured) {
        let seconds = m.tally.elapsed.as_secs_f64().max(1e-9);
        let latency = m.tally.latency.total();
        let trips = m.counts.total(&FOREGROUND).counts.round_trips;
        self.rounds.push(Round {
            mops: m.tally.ops as f64 / seconds / 1e6,
            ops: m.tally.ops,
            seconds,
            p50_ns: latency.quantile(0.5),
            p99_ns: latency.quantile(0.99),
            p999_ns: latency.quantile(0.999),
            round_trips: per(trips, m.tally.ops),
            ended: m.tally.ended.name().to_owned(),
        });
        self.seconds += seconds;
        self.tally.add(&m.tally);
        self.counts.add(&m.counts);
        for (mine, theirs) in self.per_cn.iter_mut().zip(&m.per_cn) {
            *mine = (mine.0 + theirs.0, theirs.1);
        }
        self.memory = m.memory.or(self.memory.take());
    }
}

fn per(n: u64, ops: u64) -> f64 {
    if ops == 0 { 0.0 } else { n as f64 / ops as f64 }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The finished cells.
    pub results: Results,
    /// Why there are not all of them: an interrupt, or something that made it impossible to go on.
    pub failure: Option<Failure>,
}

/// Runs an experiment. Cells that were not finished when it was stopped are left out, and the results say so.
///
/// # Errors
/// Unknown names. What operations do wrong is counted in the cells instead.
pub fn run(r: &Resolved, stop: &Arc<AtomicBool>, observer: &mut dyn Observer) -> Result<Outcome> {
    let c = &r.config;
    let groups = groups(r)?;
    let begun = clock::now();
    let cells: usize = groups.iter().map(|g| g.cells.len()).sum::<usize>() * c.rounds as usize;
    let mut sums: BTreeMap<usize, (Group, CellPlan, Sum)> = BTreeMap::new();
    let observer = std::cell::RefCell::new(observer);
    let mut measured = |g: &Group, plan: &CellPlan, m: Measured| {
        let entry = sums.get_mut(&plan.number);
        match entry {
            Some((_, _, sum)) => sum.add(m),
            None => {
                sums.insert(plan.number, (g.clone(), plan.clone(), Sum::new(m)));
            }
        }
        if let Some((g, plan, sum)) = sums.get(&plan.number) {
            observer.borrow_mut().measured(&cell(g, plan, sum));
        }
    };
    let mut progress = |p: Progress<'_>| observer.borrow_mut().progress(p);
    let mut failure = None;
    let mut host = Host {
        stop: stop.clone(),
        deadline: c.budget.map(|s| begun + Duration::from_secs_f64(s)),
        cells_left: cells,
        cells,
        loads_left: 0,
        load_cost: Duration::ZERO,
        progress: &mut progress,
        measured: &mut measured,
    };
    'rounds: for round in 0..c.rounds {
        for (i, g) in groups.iter().enumerate() {
            let g = Group { round, ..g.clone() };
            let later = (c.rounds - round - 1) as usize * groups.len();
            host.loads_left = later + groups.len() - i - 1;
            if let Err(e) = g.system.run(&g, &mut host) {
                failure = Some(e);
                break 'rounds;
            }
        }
    }
    if stop.load(Ordering::Relaxed) && host.cells_left > 0 {
        failure = Some(Failure::Interrupted);
    }
    let results = Results {
        schema_version: SCHEMA_VERSION,
        experiment: r.name.clone(),
        description: r.description.clone(),
        note: LOCAL_NOTE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_unix: clock::unix_seconds(),
        machine: Machine::here(),
        seed: c.seed,
        config: c.clone(),
        config_hash: c.hash(),
        interrupted: failure == Some(Failure::Interrupted),
        failure: failure.as_ref().filter(|f| **f != Failure::Interrupted).map(Failure::to_string),
        cells: sums.values().map(|(g, plan, sum)| cell(g, plan, sum)).collect(),
    };
    Ok(Outcome { results, failure })
}

fn cell(g: &Group, plan: &CellPlan, s: &Sum) -> Cell {
    let ops = s.tally.ops;
    let all = s.counts.total(&FOREGROUND);
    let latency = s.tally.latency.total();
    let mops: Vec<f64> = s.rounds.iter().map(|r| r.mops).collect();
    let summary = Summary::of(&mops).unwrap_or(Summary {
        rounds: 0,
        average: 0.0,
        min: None,
        max: None,
        half_width_95: None,
    });
    let (by_outcome, combined) = outcomes(&s.counts);
    let scans = s.tally.scans;
    Cell {
        system: g.system.name.to_owned(),
        family: g.system.family.to_owned(),
        published: g.system.published,
        workload: plan.workload.name().to_owned(),
        csv_name: plan.workload.csv_name().to_owned(),
        distribution: plan.distribution.name(),
        law: s.law.clone(),
        fabric: g.config.fabric.clone(),
        variant: g.variant.clone(),
        mops: summary.average,
        mops_summary: summary,
        ops,
        combined,
        errors: s.tally.errors,
        error_samples: s.tally.samples.clone(),
        p50_ns: latency.quantile(0.5),
        p99_ns: latency.quantile(0.99),
        p999_ns: latency.quantile(0.999),
        round_trips: per(all.counts.round_trips, ops),
        round_trips_p99: all.round_trips_quantile(0.99),
        detached: per(all.counts.detached, ops),
        doorbells: per(all.counts.doorbells, ops),
        mn: Side::per(&all.counts.mn, ops),
        cn: Side::per(&all.counts.cn, ops),
        background: background(&s.counts, ops),
        by_outcome,
        by_kind: s
            .tally
            .latency
            .iter()
            .map(|(kind, l)| {
                let figures = KindFigures {
                    ops: l.len(),
                    p50_ns: l.quantile(0.5),
                    p99_ns: l.quantile(0.99),
                    p999_ns: l.quantile(0.999),
                };
                (kind.name().to_owned(), figures)
            })
            .collect(),
        entries_per_scan: (scans.0 > 0).then(|| per(scans.1, scans.0)),
        scan_check: (scans.0 > 0)
            .then(|| if s.complete_scans { "complete" } else { "order and values" }.to_owned()),
        nodes: nodes(s, ops),
        memory: s.memory.clone(),
        warmup_reads_per_node: s.warmed,
        rounds: s.rounds.clone(),
    }
}

/// Costs by outcome, and how many operations another client's verb served.
fn outcomes(counts: &Snapshot) -> (BTreeMap<String, OutcomeCost>, u64) {
    let mut totals: BTreeMap<&'static str, Totals> = BTreeMap::new();
    for (kind, outcome, t) in &counts.ops {
        if FOREGROUND.contains(kind) {
            totals.entry(outcome.name()).or_default().add(t);
        }
    }
    let combined = totals.get("shared").map_or(0, |t| t.ops);
    // These are always there, so that readers need not ask.
    for name in ["hit", "absent", "insert_plain", "insert_split", "retried"] {
        totals.entry(name).or_default();
    }
    let costs = totals.into_iter().map(|(name, t)| {
        let cost = OutcomeCost {
            ops: t.ops,
            round_trips: per(t.counts.round_trips, t.ops),
            round_trips_p99: if t.ops == 0 { 0 } else { t.round_trips_quantile(0.99) },
            detached: per(t.counts.detached, t.ops),
            mn: Side::per(&t.counts.mn, t.ops),
            cn: Side::per(&t.counts.cn, t.ops),
        };
        (name.to_owned(), cost)
    });
    (costs.collect(), combined)
}

/// Verbs that nobody waited for as part of an operation.
fn background(counts: &Snapshot, ops: u64) -> Side {
    let mut sum: SideCounts = SideCounts::default();
    let mut add = |c: &OpCounts| {
        sum.add(&c.mn);
        sum.add(&c.cn);
    };
    add(&counts.loose);
    for (kind, _, t) in &counts.ops {
        if !FOREGROUND.contains(kind) {
            add(&t.counts);
        }
    }
    Side::per(&sum, ops)
}

fn nodes(s: &Sum, ops: u64) -> Vec<NodeFigures> {
    let served = |node: dmtree_fabric::NodeId| {
        s.counts
            .nodes
            .iter()
            .find(|(n, _)| *n == node)
            .map_or_else(SideCounts::default, |(_, c)| *c)
    };
    let figures = |node: dmtree_fabric::NodeId, name: String, own: Option<(u64, u32)>| {
        let c = served(node);
        NodeFigures {
            node: name,
            mops: own.map(|(ops, _)| ops as f64 / s.seconds / 1e6),
            clients: own.map(|(_, clients)| clients),
            mverbs: c.verbs() as f64 / s.seconds / 1e6,
            served: Side::per(&c, ops),
        }
    };
    let memory = s.counts.nodes.iter().map(|(n, _)| n).filter(|n| n.role() == Role::Memory);
    let mut out: Vec<NodeFigures> =
        memory.map(|n| figures(*n, format!("mn{}", n.index()), None)).collect();
    for (cn, own) in s.per_cn.iter().enumerate() {
        let node = dmtree_fabric::NodeId::compute(cn as u16);
        out.push(figures(node, format!("cn{cn}"), Some(*own)));
    }
    out
}
