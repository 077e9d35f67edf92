//! The measured phase of a cell.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dmtree_fabric::Snapshot;
use dmtree_workload::{Phase, Plan, Seed};

use crate::client::{self, Orders, Tally};
use crate::clock;
use crate::config::{MIN_OPS, Measure};
use crate::failure::Result;
use crate::group::{CellPlan, Host, Measured, name};
use crate::instructions::Instructions;
use crate::offered::{Arrivals, LoadShape, OpenFigures};
use crate::opened::{Left, Loop, Opened, PlacedClient};
use crate::phases::{self, DrainFigures};
use crate::prepare::Pool;
use crate::series::Recorder;
use crate::simulated::{self, CpuSource, START_SPREAD_NS, SimFigures};
use crate::sizing;
use crate::system::bytes_per_key;
use crate::window::{Extent, Window};

/// Measures a cell on a loaded and warm pool.
pub(crate) fn measure(
    p: &Pool<'_>,
    (cell, plan): (&CellPlan, &Arc<Plan>),
    host: &mut Host<'_>,
) -> Result<Measured> {
    let (opened, c) = (&p.opened, &cell.config);
    let clients = c.clients();
    // Under a budget, the rest of this cell's share; a walk follows.
    let share = host.slot().map(|slot| slot.mul_f64(0.9));
    let time = share.into_iter().chain(c.duration.map(Duration::from_secs_f64)).min();
    let orders = Arc::new(orders(p, (cell, plan), host, time)?);
    let body =
        |placed: PlacedClient| -> Loop<Tally> { Box::pin(client::work(placed, orders.clone())) };
    let what = name(p.group, cell);
    let (began, issued) = (clock::now(), issued(opened));
    let mut tick = || {
        let done = orders.done.load(Ordering::Relaxed);
        let share = match (&orders.window, time) {
            (Some(w), _) => w.share(),
            (None, Some(t)) => (clock::now() - began).as_secs_f64() / t.as_secs_f64().max(1e-9),
            (None, None) => 0.0,
        };
        let by_ops = orders.left.as_ref().and(c.ops).map_or(0.0, |n| done as f64 / n as f64);
        host.show(&what, "measure", done, share.max(by_ops).min(1.0));
    };
    opened.set_timed(true);
    let left = opened.run((c.threads, c.coroutines), &body, &mut tick);
    opened.set_timed(false);
    let ordered = p.oracle.as_ref().is_some_and(|o| o.knows_scans());
    let mut m = sum_up(&left?, opened.compute_nodes(), plan, ordered);
    if let Some(counted) = orders.counted.get() {
        m.counts = counted.clone();
    }
    let verbs = self::issued(opened) - issued;
    conclude(&mut m, &orders, clients, ((clock::now() - began).as_secs_f64(), verbs));
    Ok(m)
}

/// Number of verbs that all compute nodes of a simulated pool have posted.
fn issued(opened: &Opened) -> u64 {
    let Some(sim) = opened.sim() else { return 0 };
    sim.nodes().into_iter().map(|node| sim.issued(node)).sum()
}

fn orders(
    p: &Pool<'_>,
    (cell, plan): (&CellPlan, &Arc<Plan>),
    host: &Host<'_>,
    time: Option<Duration>,
) -> Result<Orders> {
    let (Pool { group: g, opened, oracle, foretold, written }, c) = (p, &cell.config);
    let clients = c.clients();
    let seed = Seed(c.seed).numbered("round", g.round.into()).child(&name(g, cell));
    let min_ops = if host.deadline.is_some() { MIN_OPS.div_ceil(u64::from(clients)) } else { 1 };
    let phase = cell.workload.phase;
    let whole = c.measure == Measure::All || phase.is_some();
    let budget = match phase {
        None => c.ops.filter(|_| opened.sim().is_none() || whole),
        Some(_) => phases::budget(&cell.workload, c.keys, c.ops, c.scan_length.most()),
    };
    // A fill is as long as its keys are many.
    let time = time.filter(|_| phase != Some(Phase::Fill) || c.budget.is_some());
    let extent = Extent {
        ops: c.ops.filter(|_| !whole),
        ns: time.map(clock::nanos),
        whole: phase.is_some(),
    };
    let window = opened.sim().map(|sim| Window::new(sim.clone(), clients, START_SPREAD_NS, extent));
    let arrivals = match c.load {
        LoadShape::Closed => None,
        LoadShape::Open { ops_per_s } => {
            Some(Arrivals::new(seed, ops_per_s, opened.compute_nodes()))
        }
    };
    Ok(Orders {
        plan: plan.clone(),
        oracle: oracle.clone(),
        first_stream: g.round.wrapping_mul(clients),
        time,
        min_ops,
        left: budget.map(|n| AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX))),
        insert_room: match foretold {
            0 => sizing::insert_room(c, &cell.workload, bytes_per_key(&g.system, c)),
            told => *told,
        },
        stop: host.stop.clone(),
        done: AtomicU64::new(0),
        start: OnceLock::new(),
        spread_ns: if window.is_some() { START_SPREAD_NS } else { 0 },
        seed,
        arrivals,
        window,
        counted: OnceLock::new(),
        series: c.series_us.map(|us| Recorder::new(us, opened.nodes())),
        maintain_every: c.maintain_every.into(),
        threads: c.threads,
        written: written.clone(),
        measure: if phase.is_some() { Measure::All } else { c.measure },
        steps: c.steps,
        instructions: (c.cpu == Some(CpuSource::Counted))
            .then(|| Instructions::of(g.system.name))
            .transpose()?,
    })
}

/// Adds the figures of the window and of the offered load.
fn conclude(m: &mut Measured, o: &Orders, clients: u32, real: (f64, u64)) {
    let (real_seconds, real_verbs) = real;
    let start = o.start.get().copied().unwrap_or(0);
    m.series = o.series.as_ref().map(Recorder::series);
    if let Some(w) = &o.window {
        let span = w.span(start);
        let ops = acknowledged(span.ops, m.tally.ops, m.tally.counted);
        m.rate = (ops, (span.to_ns - span.from_ns) as f64 / 1e9);
        let (usage, hash) = w.at_end();
        let nodes = simulated::nodes(&usage, o.threads as usize);
        m.sim = Some(SimFigures {
            trace_hash: format!("{hash:016x}"),
            window_ns: (span.from_ns, span.to_ns),
            window_ops: span.ops,
            mn_cpu_ns_per_op: {
                let busy: u64 = usage.nodes.iter().map(|n| n.data_ns + n.job_ns).sum();
                busy as f64 / (span.ops.max(1)) as f64
            },
            busiest: simulated::busiest(&nodes),
            nodes,
            real_seconds,
            real_verbs,
            sim_verbs_per_s: real_verbs as f64 / real_seconds.max(1e-9),
        });
        if o.plan.spec.workload.phase.is_some_and(Phase::writes) {
            let to_end = start + clock::nanos(m.tally.settled);
            let to_end = to_end.saturating_sub(span.from_ns) as f64 / 1e9;
            m.drain = Some(DrainFigures::new(m.rate, to_end));
        }
        if let Some(a) = &o.arrivals {
            let (from, to) = (span.from_ns - start, span.to_ns - start);
            let backlog = a.due(0, to).saturating_sub(span.begun);
            m.open = Some(OpenFigures::judge(a.ops_per_s, a.due(from, to), span.ops, backlog));
        }
    } else if let Some(a) = &o.arrivals {
        // The whole phase is the window. At its end each client has at most one operation in
        // progress.
        let due = a.due(0, clock::nanos(m.tally.elapsed));
        let backlog = due.saturating_sub(m.tally.all_ops + u64::from(clients));
        m.open = Some(OpenFigures::judge(a.ops_per_s, due, m.tally.all_ops, backlog));
    }
    if o.window.is_none() && o.plan.spec.workload.phase.is_some_and(Phase::writes) {
        m.drain = Some(DrainFigures::new(m.rate, m.tally.settled.as_secs_f64()));
    }
}

/// How many of the operations of a window count for throughput: the share of the counted ones that
/// was acknowledged. A failed operation ends, too, and has done nothing.
fn acknowledged(window: u64, ops: u64, counted: u64) -> u64 {
    let share = u128::from(window) * u128::from(ops) / u128::from(counted.max(1));
    u64::try_from(share).unwrap_or(window).min(window)
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
    let complete_scans = ordered && plan.spec.workload.mix().delete == 0;
    Measured {
        rate: (tally.ops, tally.elapsed.as_secs_f64().max(1e-9)),
        tally,
        counts,
        per_cn,
        law: plan.spec.distribution.to_string(),
        complete_scans,
        ..Measured::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cell shows no throughput when every operation of it has failed.
    #[test]
    fn failed_operations_are_no_throughput() {
        assert_eq!(acknowledged(500, 800, 800), 500);
        assert_eq!(acknowledged(500, 400, 800), 250);
        assert_eq!((acknowledged(500, 0, 800), acknowledged(0, 0, 0)), (0, 0));
    }
}
