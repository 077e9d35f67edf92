//! Runs an experiment: determines the cells, and sums all rounds of each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_check::checked::System;
use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Divided, NodeId, OpCounts, OpKind as Kind, OpOutcome, Role, SideCounts, Snapshot, Stage, Step,
    StepTimes, Totals,
};
use dmtree_workload::{OpKind, Phase};

use crate::config::{Config, Resolved};
use crate::fabrics::{LOCAL, VERBS, data_path};
use crate::failure::{Failure, Result};
use crate::gains::Claims;
use crate::group::{CellPlan, Group, Measured, Progress, pool_spec};
use crate::latency::{cdf, percentiles};
use crate::offered::CRITERION;
use crate::opened::Opened;
use crate::place::Place;
use crate::published::Table;
use crate::results::{
    Cell, KindFigures, Machine, NodeFigures, OutcomeCost, PublishedTable, Results, Round,
    SCHEMA_VERSION, Side, SplitFigures, cell_key, note, per,
};
use crate::simulated::CpuSource;
use crate::summary::Summary;
use crate::system::{checked_options, lacks, options_for};
use crate::{clock, jobs, registry};

/// Receives reports of a run, from any thread, one at a time.
pub trait Observer: Send {
    /// Receives progress; called often.
    fn progress(&mut self, _: Progress<'_>) {}
    /// Receives the sum of a cell after one more round. `so_far` returns the results up to this
    /// time, marked as interrupted.
    fn measured(&mut self, _: &Cell, _: &dyn Fn() -> Results) {}
}

/// An observer that ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// The cells, in their order: points of the sweep, systems, distributions, workloads.
pub fn cells(r: &Resolved) -> Result<Vec<(System, CellPlan)>> {
    let c = &r.config;
    let mut out = Vec::new();
    for (variant, config) in c.sweep.points(c)? {
        for system in registry::select(&config.systems)? {
            for d in &config.distributions {
                for w in &config.workloads {
                    // Preflight refuses this cell.
                    if lacks(&system, &config, w).is_some() {
                        continue;
                    }
                    let mut plan = CellPlan {
                        number: out.len(),
                        workload: w.clone(),
                        distribution: *d,
                        config: of_system(config.for_cell(system.name, w), &system),
                        variant: variant.clone(),
                        same_as: None,
                    };
                    plan.same_as = twin(&out, &system, &plan);
                    out.push((system.clone(), plan));
                }
            }
        }
    }
    Ok(out)
}

/// The earlier cell with the same run: a simulation that only inserts, because no distribution
/// selects the inserted keys.
fn twin(earlier: &[(System, CellPlan)], system: &System, plan: &CellPlan) -> Option<usize> {
    let mix = plan.workload.mix();
    let only_inserts = mix.total() == u64::from(mix.weight(OpKind::Insert));
    if !(plan.config.simulated() && only_inserts) {
        return None;
    }
    let same = |(s, p): &&(System, CellPlan)| {
        s.name == system.name
            && p.workload == plan.workload
            && p.variant == plan.variant
            && p.config == plan.config
    };
    earlier.iter().find(same).map(|(_, p)| p.number)
}

/// Groups of cells, in the order of their runs, for one round. Cells that change the set of keys
/// have a pool of their own; others share a pool if the loaded keys and the pool are the same.
pub fn groups(r: &Resolved, skip: &dyn Fn(&System, &CellPlan) -> bool) -> Result<Vec<Group>> {
    let mut groups: Vec<(Option<String>, Group)> = Vec::new();
    for (system, cell) in cells(r)? {
        if cell.same_as.is_some() || skip(&system, &cell) {
            continue;
        }
        let mix = cell.workload.mix();
        let mixed = matches!(cell.workload.phase, Some(Phase::Mixed(_)));
        let own = mix.insert > 0 || mix.delete > 0 || mixed;
        let pool = (!own).then(|| pool_name(&system, &cell));
        match groups.iter_mut().find(|(name, _)| name.is_some() && *name == pool) {
            Some((_, g)) => g.cells.push(cell),
            None => groups.push((pool, Group { system, cells: vec![cell], round: 0 })),
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, g)| g).collect();
    for g in &mut groups {
        // The values that a cell leaves (of another version) must not help the next one, so reads
        // come first; of phases the fill.
        g.cells.sort_by_key(|cell| {
            let mix = cell.workload.mix();
            let fills = cell.workload.phase == Some(Phase::Fill);
            (mix.update + mix.read_modify_write > 0, !fills)
        });
    }
    Ok(groups)
}

/// Names the pool that a cell needs. Simulated cells of several distributions and numbers of
/// clients share one; those of different sweeps do not, because cells leave traces in the caches of
/// hot keys.
fn pool_name(system: &System, cell: &CellPlan) -> String {
    let c = &cell.config;
    let mut name = format!(
        "{} {} {} {:?} {:?} {} {} {} {:?} {:?} {}",
        system.name,
        options_for(system, c),
        c.keys,
        c.key_form,
        c.value_size,
        c.cns,
        c.mns,
        c.cache_bytes,
        c.memory_bytes,
        c.load_by,
        c.fill
    );
    let swept = cell.variant.as_deref().and_then(Place::of);
    name += &swept.map_or(String::new(), |place| format!(" {}", place.setting));
    name += &c.mn_cores.map_or(String::new(), |cores| format!(" {cores} cores"));
    name += &c.profile.as_ref().map_or(String::new(), |p| format!(" {}", p.hash));
    name += &format!(" seed {}", c.seed);
    if cell.workload.phase.is_some() {
        name += &format!(" phases {:?}", cell.variant);
    }
    if !c.simulated() {
        name += &format!(" {} {:?}", cell.distribution, cell.variant);
    }
    name
}

/// Opens every system with the settings of every point, on a small pool, so that impossible
/// options, caches and fabrics are refused before the run.
///
/// # Errors
/// The settings that a system refuses.
pub fn preflight(r: &Resolved) -> Result<()> {
    for (_, c) in r.config.sweep.points(&r.config)? {
        for system in registry::select(&c.systems)? {
            let lacking = |w| lacks(&system, &c.for_cell(system.name, w), w);
            if let Some(what) = c.workloads.iter().find_map(lacking) {
                return Err(Failure::input(what));
            }
        }
    }
    if r.config.fabric == VERBS {
        r.config.nic_config().describe()?;
    }
    let mut done = Vec::new();
    for (system, cell) in cells(r)? {
        let c = &cell.config;
        let options = checked_options(&system, c)?;
        let name = format!("{} {} {} {} {options}", system.name, c.cns, c.mns, c.cache_bytes);
        if done.contains(&name) {
            continue;
        }
        // Refusals do not depend on the place of the nodes.
        let is_apart = data_path(&c.fabric).is_some();
        let fabric = if is_apart { LOCAL.to_owned() } else { c.fabric.clone() };
        let spec = pool_spec(&Config { fabric, nodes: None, ..c.clone() }, 16 << 20, 0)?;
        Opened::create(system.name, &options, &spec).map_err(|e| e.context(system.name))?;
        done.push(name);
    }
    Ok(())
}

/// The sum of a cell over all its rounds so far.
struct Sum {
    all: Measured,
    rounds: Vec<Round>,
}

impl Sum {
    fn new(m: Measured) -> Self {
        Self { rounds: vec![round(&m)], all: m }
    }

    fn add(&mut self, m: Measured) {
        self.rounds.push(round(&m));
        let all = &mut self.all;
        all.rate = (all.rate.0 + m.rate.0, all.rate.1 + m.rate.1);
        all.tally.add(&m.tally);
        all.counts.add(&m.counts);
        for (mine, theirs) in all.per_cn.iter_mut().zip(&m.per_cn) {
            *mine = (mine.0 + theirs.0, theirs.1);
        }
        all.memory = m.memory.or(all.memory.take());
        all.sim = m.sim.or(all.sim.take());
        all.drain = m.drain.or(all.drain);
        all.open = m.open.or(all.open.take());
        all.series = m.series.or(all.series.take());
    }
}

fn round(m: &Measured) -> Round {
    let (rate_ops, seconds) = m.rate;
    let trips = m.counts.total(&Kind::FOREGROUND).counts.round_trips;
    Round {
        mops: rate_ops as f64 / seconds / 1e6,
        ops: m.tally.ops,
        seconds,
        latency: percentiles(&m.tally.latency.total()),
        round_trips: per(trips, m.tally.counted),
        ended: m.tally.ended,
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The finished cells.
    pub results: Results,
    /// Why cells are missing: an interrupt, or a failure that ended the run.
    pub failure: Option<Failure>,
}

/// Runs an experiment. Cells that were not finished at a stop are left out, and the results say so.
/// Cells in `finished` are taken over and do not run.
///
/// # Errors
/// Unknown names. Errors of operations are counted in the cells instead.
pub fn run(
    r: &Resolved,
    finished: &[Cell],
    stop: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let c = &r.config;
    let table = c.published.as_deref().map(Table::named).transpose()?;
    let have = |s: &System, p: &CellPlan| finished.iter().find(|f| f.key() == key(s, p));
    let once = groups(r, &|s, p| have(s, p).is_some())?;
    let rounds = (0..c.rounds).flat_map(|round| once.iter().map(move |g| (round, g.clone())));
    let groups: Vec<Group> = rounds.map(|(round, g)| Group { round, ..g }).collect();
    let order = cells(r)?;
    let count = groups.iter().map(|g| g.cells.len()).sum();
    type Sums = BTreeMap<usize, (Group, CellPlan, Sum)>;
    let so_far = |sums: &Sums, failure: Option<&Failure>| {
        let cells = order.iter().filter_map(|(s, p)| {
            match (sums.get(&p.same_as.unwrap_or(p.number)), have(s, p)) {
                (Some((g, _, sum)), _) => Some(cell(g, p, sum, table.as_ref())),
                (None, earlier) => earlier.cloned(),
            }
        });
        results(r, cells.collect(), table.as_ref(), failure)
    };
    let state = Mutex::new((0, Sums::new(), observer));
    let progress = |p: Progress<'_>| {
        let (done, _, observer) = &mut *locked(&state);
        observer.progress(Progress { cell: ((*done + 1).min(count), count), ..p });
    };
    let measured = |g: &Group, plan: &CellPlan, m: Measured| {
        let (done, sums, observer) = &mut *locked(&state);
        *done += 1;
        match sums.get_mut(&plan.number) {
            Some((_, _, sum)) => sum.add(m),
            None => _ = sums.insert(plan.number, (g.clone(), plan.clone(), Sum::new(m))),
        }
        let (g, plan, sum) = &sums[&plan.number];
        let cell = cell(g, plan, sum, table.as_ref());
        observer.measured(&cell, &|| so_far(sums, Some(&Failure::Interrupted)));
    };
    let ran = jobs::run(c, (&groups, count), stop, (&progress, &measured));
    let mut failure = ran.err();
    let (done, sums, _) = &*locked(&state);
    if stop.load(Ordering::Relaxed) && *done < count {
        failure = Some(Failure::Interrupted);
    }
    Ok(Outcome { results: so_far(sums, failure.as_ref()), failure })
}

/// The key of a cell that has not run yet, as [`Cell::key`].
fn key(s: &System, p: &CellPlan) -> String {
    let name = [s.name, p.workload.name(), &p.distribution.to_string()];
    cell_key(name, &p.config.fabric, p.variant.as_deref())
}

fn results(
    r: &Resolved,
    cells: Vec<Cell>,
    table: Option<&Table>,
    failure: Option<&Failure>,
) -> Results {
    let c = &r.config;
    let interrupted = failure == Some(&Failure::Interrupted);
    Results {
        schema_version: SCHEMA_VERSION,
        experiment: r.name.clone(),
        description: r.description.clone(),
        note: note(c),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: crate::results::commit().map(str::to_owned),
        created_unix: clock::unix_seconds(),
        machine: Machine::here(),
        seed: c.seed,
        config: c.clone(),
        config_hash: c.hash(),
        published: table.map(|t| PublishedTable {
            table: t.name.to_owned(),
            source: t.source.clone(),
            without_counterpart: t.without_counterpart(c),
        }),
        gains: c
            .published_gains
            .as_ref()
            .and_then(|name| Claims::named(name).ok())
            .map(|claims| claims.beside(c, &cells))
            .filter(|gains| !gains.rows.is_empty()),
        matched: crate::matched::of(&cells),
        interrupted,
        saturated_means: CRITERION.to_owned(),
        failure: failure.filter(|_| !interrupted).map(Failure::to_string),
        cells,
    }
}

/// Where the CPU time of a system comes from follows from the system, if nothing is said of it.
pub(crate) fn of_system(mut c: Config, system: &System) -> Config {
    if c.simulated() && !system.charges_cpu {
        c.cpu.get_or_insert(CpuSource::Measured);
    }
    c
}

/// Where the CPU time of a cell has come from.
fn cpu_source(c: &Config, counts: &Snapshot) -> CpuSource {
    let begins = Stage::Operation as usize;
    let names_steps = counts.charged.iter().enumerate().any(|(i, units)| i != begins && *units > 0);
    match c.cpu.unwrap_or_default() {
        CpuSource::Charged if c.simulated() && !names_steps => CpuSource::Free,
        source => source,
    }
}

fn cell(g: &Group, plan: &CellPlan, s: &Sum, table: Option<&Table>) -> Cell {
    let (c, m) = (&plan.config, &s.all);
    // The operations that the counters cover; failed operations have counted, too.
    let ops = m.tally.counted;
    let all = m.counts.total(&Kind::FOREGROUND);
    let mops: Vec<f64> = s.rounds.iter().map(|r| r.mops).collect();
    let summary = Summary::of(&mops).unwrap_or_default();
    let (by_outcome, combined) = outcomes(&m.counts);
    let scans = m.tally.scans;
    let latency = m.tally.latency.total();
    Cell {
        system: g.system.name.to_owned(),
        family: g.system.family.to_owned(),
        published: g.system.published,
        workload: plan.workload.name().to_owned(),
        csv_name: plan.workload.csv_name.clone(),
        distribution: plan.distribution.to_string(),
        law: m.law.clone(),
        fabric: c.fabric.clone(),
        variant: plan.variant.clone(),
        place: plan.variant.as_deref().and_then(Place::of),
        loaded_keys: c.keys,
        clients: c.clients(),
        published_figure: table.and_then(|t| {
            let name = [g.system.name, plan.workload.name(), &plan.distribution.to_string()];
            t.reference(c, &name, summary.average)
        }),
        open: m.open,
        sim: m.sim.clone(),
        drain: m.drain,
        steps_ns: steps(&m.counts),
        mops: summary.average,
        mops_summary: summary,
        ops: m.tally.ops,
        combined,
        errors: m.tally.errors,
        error_samples: m.tally.samples.clone(),
        latency: percentiles(&latency),
        cdf: cdf(&latency),
        round_trips: per(all.counts.round_trips, ops),
        round_trips_p99: all.round_trips_quantile(0.99),
        detached: per(all.counts.detached, ops),
        doorbells: per(all.counts.doorbells, ops),
        mn: Side::per(&all.counts.mn, ops),
        cn: Side::per(&all.counts.cn, ops),
        background: background(&m.counts, ops),
        by_background: by_background(&m.counts),
        series: m.series.clone(),
        splits: splits(&m.counts),
        by_outcome,
        by_kind: m
            .tally
            .latency
            .iter()
            .map(|(kind, l)| {
                let figures = KindFigures { ops: l.len(), latency: percentiles(l) };
                (kind.name().to_owned(), figures)
            })
            .collect(),
        entries_per_scan: (scans.0 > 0).then(|| per(scans.1, scans.0)),
        scan_check: (scans.0 > 0)
            .then(|| if m.complete_scans { "complete" } else { "order and values" }.to_owned()),
        nodes: nodes(m, ops),
        memory: m.memory.clone(),
        warmup_reads_per_node: m.warmed,
        foretold_keys: m.foretold,
        cpu: cpu_source(c, &m.counts),
        rounds: s.rounds.clone(),
    }
}

/// Time of an average operation by kind and step, ns.
fn steps(counts: &Snapshot) -> BTreeMap<String, BTreeMap<String, f64>> {
    let is_shown = |kind: &Kind| Kind::FOREGROUND.contains(kind) || *kind == Kind::Train;
    let kinds = counts.steps.iter().filter(|(kind, _)| is_shown(kind));
    let of = |(kind, times): &(Kind, StepTimes)| {
        let ops = counts.total(&[*kind]).ops;
        let steps = Step::ALL.iter().zip(times).filter(|(_, ns)| **ns > 0);
        let steps = steps.map(|(step, ns)| (step.name().to_owned(), per(*ns, ops))).collect();
        (kind.name().to_owned(), steps)
    };
    kinds.map(of).collect()
}

/// Costs by outcome, and the number of operations that another client's verb served.
fn outcomes(counts: &Snapshot) -> (BTreeMap<String, OutcomeCost>, u64) {
    let mut totals: BTreeMap<&'static str, Totals> = BTreeMap::new();
    for (kind, outcome, t) in &counts.ops {
        if Kind::FOREGROUND.contains(kind) {
            totals.entry(outcome.name()).or_default().add(t);
        }
    }
    let combined = totals.get("shared").map_or(0, |t| t.ops);
    // These entries always exist, so that readers need no check.
    for name in ["hit", "absent", "insert_plain", "insert_split", "retried"] {
        totals.entry(name).or_default();
    }
    let costs = totals.into_iter().map(|(name, t)| (name.to_owned(), cost(&t)));
    (costs.collect(), combined)
}

/// What an operation costs.
fn cost(t: &Totals) -> OutcomeCost {
    OutcomeCost {
        ops: t.ops,
        round_trips: per(t.counts.round_trips, t.ops),
        round_trips_p99: if t.ops == 0 { 0 } else { t.round_trips_quantile(0.99) },
        detached: per(t.counts.detached, t.ops),
        mn: Side::per(&t.counts.mn, t.ops),
        cn: Side::per(&t.counts.cn, t.ops),
    }
}

/// Costs of background work by kind and outcome.
fn by_background(counts: &Snapshot) -> BTreeMap<String, OutcomeCost> {
    let kinds = counts.ops.iter().filter(|(kind, ..)| !Kind::FOREGROUND.contains(kind));
    kinds.map(|(kind, o, t)| (format!("{} {}", kind.name(), o.name()), cost(t))).collect()
}

/// The leaves that inserts divided.
fn splits(counts: &Snapshot) -> Option<SplitFigures> {
    let inserts = counts.total(&[Kind::Insert]).ops;
    let splits = counts.cell(Kind::Insert, OpOutcome::InsertSplit).ops;
    let Divided { keys, slots } = counts.divided;
    let (per_insert, load_factor) = (per(splits, inserts), per(keys, slots));
    (inserts > 0).then_some(SplitFigures { per_insert, load_factor })
}

/// Verbs that no operation awaited.
fn background(counts: &Snapshot, ops: u64) -> Side {
    let mut sum: SideCounts = SideCounts::default();
    let mut add = |c: &OpCounts| {
        sum.add(&c.mn);
        sum.add(&c.cn);
    };
    add(&counts.loose);
    for (kind, _, t) in &counts.ops {
        if !Kind::FOREGROUND.contains(kind) {
            add(&t.counts);
        }
    }
    Side::per(&sum, ops)
}

fn nodes(m: &Measured, ops: u64) -> Vec<NodeFigures> {
    let (rate_ops, seconds) = (m.rate.0 as f64, m.rate.1);
    // Millions of operations per second for each measured operation.
    let per_op_rate = rate_ops / m.tally.ops.max(1) as f64 / seconds.max(1e-9) / 1e6;
    let figures = |node: NodeId, own: Option<(u64, u32)>| {
        let served = m.counts.nodes.iter().find(|(n, _)| *n == node);
        let c = served.map_or_else(SideCounts::default, |(_, c)| *c);
        NodeFigures {
            node: node.to_string(),
            mops: own.map(|(own, _)| own as f64 * per_op_rate),
            clients: own.map(|(_, clients)| clients),
            mverbs: per(c.verbs(), ops) * rate_ops / seconds / 1e6,
            served: Side::per(&c, ops),
        }
    };
    let memory = m.counts.nodes.iter().map(|(n, _)| *n).filter(|n| n.role() == Role::Memory);
    let computes = (0..).map(NodeId::compute).zip(&m.per_cn);
    let memory = memory.map(|n| figures(n, None));
    memory.chain(computes.map(|(n, own)| figures(n, Some(*own)))).collect()
}
