//! Phases in a row over one index that begins empty, as db_bench runs them: a fill, then reads; the
//! next begins when no background work is due.
//!
//! The clock of a phase is the published one: it stops with the last operation. What is due then
//! (flushes, merges) is waited for, and the time to the end of it is a figure of its own
//! ([`DrainFigures`]). Every result is checked: [`Written`] knows the numbers that were put.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dmtree_fabric::Endpoint;
use dmtree_parts::{AnyIndex, AnyOptions, Shape, Work};
use dmtree_workload::{LoadOrder, OpKind, Phase, Plan, Workload};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Ended, Tally};
use crate::failure::{Failure, Result};
use crate::group::{CellPlan, Group, Host, Measured, lookups, report, size_and_open};
use crate::measure::measure;
use crate::memory::Peak;
use crate::prepare::{Pool, walk};

/// How long background work may last after a phase, ns of the fabric's clock.
const DRAIN_NS: u64 = 600_000_000_000;
/// Pause between two looks at it, ns.
const LOOK_NS: u64 = 20_000;

/// The numbers with acknowledged puts.
#[derive(Debug)]
pub struct Written {
    bits: Vec<AtomicU64>,
    /// A put has failed: it may have taken effect.
    has_failed: AtomicBool,
}

impl Written {
    /// None of so many.
    pub fn new(numbers: u64) -> Self {
        let bits = (0..numbers.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { bits, has_failed: AtomicBool::new(false) }
    }

    /// A put was acknowledged.
    pub fn add(&self, number: u64) {
        self.bits[number as usize / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
    }

    /// A put has failed.
    pub fn failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Whether a put was acknowledged.
    pub fn has(&self, number: u64) -> bool {
        self.bits[number as usize / 64].load(Ordering::Relaxed) >> (number % 64) & 1 == 1
    }

    /// How many numbers were put.
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Checks a get of a number that `was` put before it began. `writes`: puts run beside it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, number: u64, was: bool, found: bool, writes: bool) -> Result<(), String> {
        match found {
            false if was => Err("a key that was put is reported absent".to_owned()),
            true if !was && !writes && !self.has_failed.load(Ordering::Relaxed) => {
                Err(format!("number {number}, which was never put, is found"))
            }
            _ => Ok(()),
        }
    }
}

/// The background work that was due when the clock of a phase stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainFigures {
    /// Its time, s.
    pub seconds: f64,
    /// Millions of operations per second to the end of it.
    pub mops: f64,
}

impl DrainFigures {
    /// Of a phase with so many operations in its clock's seconds, and of these seconds to the end.
    pub(crate) fn new((ops, clock): (u64, f64), to_end: f64) -> Self {
        let to_end = to_end.max(clock);
        Self { seconds: to_end - clock, mops: ops as f64 / to_end.max(1e-9) / 1e6 }
    }
}

/// Waits until no background work of a client's compute node is due or under way.
///
/// # Errors
/// Those of maintenance; work that does not end.
pub(crate) async fn settle(index: &mut AnyIndex, ep: &Endpoint) -> Result<(), String> {
    let deadline = ep.now().saturating_add(DRAIN_NS);
    loop {
        ep.renew_deadline();
        let work = index.maintain().await.map_err(|e| format!("background work: {e}"))?;
        if work == Work::None && index.is_settled() {
            return Ok(());
        }
        if ep.now() >= deadline {
            return Err(format!(
                "background work has not ended after {} s",
                DRAIN_NS / 1_000_000_000
            ));
        }
        if work == Work::None {
            ep.sleep(LOOK_NS).await;
        } else {
            ep.yield_now().await;
        }
    }
}

/// Operations of a phase: as many puts of a fill as there are numbers; for what reads entries, as
/// many as read so many entries. `None`: a pass ends by itself.
pub(crate) fn budget(workload: &Workload, keys: u64, ops: Option<u64>, scan: u32) -> Option<u64> {
    let ops = ops.unwrap_or(keys);
    match workload.phase? {
        Phase::Fill => Some(keys),
        Phase::Read if workload.mix().weight(OpKind::Pass) > 0 => None,
        Phase::Read if workload.mix().weight(OpKind::Scan) > 0 => {
            Some(ops.div_ceil(scan.max(1).into()).max(1))
        }
        _ => Some(ops),
    }
}

/// Measures the phases of a group on a fresh pool; without a fill of their own, after one that
/// counts for nothing.
///
/// # Errors
/// Impossible settings, a broken structure, or an interrupt. Errors of operations are counted
/// instead.
pub(crate) fn run_phases(g: &Group, host: &mut Host<'_>) -> Result<()> {
    let Some(first) = g.cells.first() else { return Ok(()) };
    let peak = Peak::begin();
    let written = Arc::new(Written::new(first.config.keys));
    let cut = |options| with_borders(options, &*first.plan()?);
    let opened = size_and_open(g, first, cut)?;
    let pool = Pool { group: g, opened, oracle: None, foretold: 0, written: Some(written.clone()) };
    let mut shape = Shape::default();
    if first.workload.phase != Some(Phase::Fill) {
        let workload = Workload::named("fillrandom").map_err(Failure::refused)?;
        let fill = CellPlan { workload, ..first.clone() };
        let (filled, walked) = phase(&pool, &fill, host)?;
        shape = walked.unwrap_or(shape);
        if let Some(wrong) = filled.tally.samples.first() {
            return Err(Failure::violation(format!("{}: filling: {wrong}", g.system.name)));
        }
    }
    for cell in &g.cells {
        let (m, walked) = phase(&pool, cell, host)?;
        shape = walked.unwrap_or(shape);
        report(&pool, cell, host, (m, &shape, &peak));
    }
    Ok(())
}

/// Options of an index with `borders` of its shards (`owners` times `shards`), with those that give
/// each shard as many of the numbers, unless there are some: nothing is loaded that could say where
/// to cut.
fn with_borders(options: AnyOptions, plan: &Plan) -> Result<AnyOptions> {
    let number = |name: &str| options.get(name).and_then(Value::as_u64);
    let shards = number("owners").unwrap_or(1) * number("shards").unwrap_or(1);
    let is_open = options.get("borders").and_then(Value::as_array).is_some_and(Vec::is_empty);
    if !is_open || shards < 2 || plan.spec.records < shards {
        return Ok(options);
    }
    let sorted = plan.load(LoadOrder::Sorted);
    let key_at = |at: u64| {
        let mut key = Vec::new();
        sorted.records(at..at + 1).for_each(|record| plan.key(record, &mut key));
        key
    };
    // The shortest bytes above the last key below, or above one that is a hundredth of a shard
    // further down: options have little room.
    let first_of = |shard: u64| {
        let at = plan.spec.records * shard / shards;
        let further = plan.spec.records / shards / 100;
        let (below, mut key) = (key_at(at - 1 - further), key_at(at));
        let common = below.iter().zip(&key).take_while(|(a, b)| a == b).count();
        key.truncate(common + 1);
        key
    };
    let borders: Vec<Vec<u8>> = (1..shards).map(first_of).collect();
    let mut changed = Value::clone(&options);
    changed["borders"] = serde_json::to_value(borders).unwrap_or_default();
    Ok(options.with(changed))
}

/// Runs a phase; after one that writes, the structure, which must hold the numbers that were put.
fn phase(p: &Pool<'_>, cell: &CellPlan, host: &mut Host<'_>) -> Result<(Measured, Option<Shape>)> {
    host.stopped()?;
    let plan = cell.plan()?;
    let before = lookups(&p.opened);
    let mut m = measure(p, (cell, &plan), host)?;
    m.lookups = (before, lookups(&p.opened));
    if m.tally.ended == Ended::Interrupted {
        return Err(Failure::Interrupted);
    }
    let writes = cell.workload.phase.is_some_and(Phase::writes);
    let shape = if writes { found(walk(p, host), &mut m.tally) } else { None };
    if let (Some(shape), Some(written)) = (&shape, &p.written)
        && m.tally.unknown == 0
        && m.tally.errors == 0
        && shape.keys != written.count()
    {
        let (held, due) = (shape.keys, written.count());
        m.tally.found(format!("the index holds {held} keys where {due} must be"));
    }
    Ok((m, shape))
}

fn found(walked: Result<Shape>, tally: &mut Tally) -> Option<Shape> {
    walked.map_err(|e| tally.found(e.to_string())).ok()
}
