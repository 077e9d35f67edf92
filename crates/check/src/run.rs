//! Runs a case: a pool on the adversarial fabric, the clients, a check of what they saw, a phase without hazards in which
//! everything must end, and a walk.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dmtree_fabric::sim::{Choice, Hazards, Order, SimFabric};
use dmtree_fabric::{Core, Endpoint, Error, Policy, Result, Worker};
use dmtree_parts::{Fill, RangeIndex};

use crate::bed::Bed;
use crate::case::Case;
use crate::drive::{Bounds, Guarded, Shared, liveness, safety};
use crate::log::{Answer, Call, Log, still};
use crate::plan;
use crate::verdict::{Finding, Verdict, panic_text};

/// Buffers of all clients together.
const SLAB_BYTES: u64 = 16 << 20;
/// Bounds of the phase with hazards.
const SAFETY: Bounds = Bounds { until_ns: 120_000_000_000, steps: 20_000_000 };
/// Bounds of a small case whose verbs are ordered by a list: who waits for something that the list holds back may look for it for ever.
const LISTED: Bounds = Bounds { until_ns: 120_000_000_000, steps: 100_000 };
/// Virtual time within which the phase without hazards must end, ns.
const LIVENESS_NS: u64 = 5_000_000_000;

/// Runs a case with an index of type `I`.
///
/// # Errors
/// A case that cannot be run. What goes wrong in a run is in the verdict.
pub fn run<I: RangeIndex>(case: &Case) -> Result<Verdict> {
    run_in::<I>(case, &case.order()).map(|(verdict, _)| verdict)
}

/// The same with verbs in another order than the case's; also the choices made on the way, when they are listed.
///
/// # Errors
/// As [`run`].
pub fn run_in<I: RangeIndex>(case: &Case, order: &Order) -> Result<(Verdict, Vec<Choice>)> {
    case.check()?;
    let options: I::Options = serde_json::from_value(case.options.clone())
        .map_err(|e| Error::invalid(format!("options of {}: {e}", case.system)))?;
    let (bed, fabric) = Bed::<I>::adversarial(
        case.hazards,
        case.grants,
        case.order,
        &case.pool.options(),
        case.pool.cache_bytes,
        &options,
    )?;
    load(&bed, case)?;
    let mut choices = Vec::new();
    let caught =
        catch_unwind(AssertUnwindSafe(|| phases(&bed, &fabric, case, order, &mut choices)));
    let (finding, log) = match caught {
        Ok(done) => done?,
        Err(payload) => {
            let what = panic_text(&*payload);
            (Some(Finding::Panic { client: None, what }), Log::default())
        }
    };
    let trace_hash = fabric.trace_hash() ^ log.hash().rotate_left(32);
    let operations = log.records().len() as u64;
    let verdict = Verdict { finding, operations, trace_hash, virtual_ns: fabric.now(), log };
    Ok((verdict, choices))
}

/// The keys that are there at first.
fn load<I: RangeIndex>(bed: &Bed<I>, case: &Case) -> Result<()> {
    let there = (0..case.numbers()).filter(|n| !case.is_written(*n));
    let pair =
        |n| (plan::key(case.key_form, n), plan::value(still(n), plan::length(case, still(n))));
    let pairs: Vec<_> = there.map(pair).collect();
    if !pairs.is_empty() {
        let fill = Fill::Even(f64::from(case.fill_percent) / 100.0);
        bed.client(0)?.load(pairs, true, fill)?;
    }
    Ok(())
}

type Finished = (Option<Finding>, Log);

fn phases<I: RangeIndex>(
    bed: &Bed<I>,
    fabric: &SimFabric,
    case: &Case,
    order: &Order,
    choices: &mut Vec<Choice>,
) -> Result<Finished> {
    fabric.set_timed(true);
    fabric.set_order(order);
    let listed = matches!(order, Order::Listed { .. });
    let finished = clients(bed, fabric, case, listed, choices);
    fabric.set_timed(false);
    let (finding, mut log) = finished?;
    if finding.is_some() {
        // An answer that is wrong by itself says more than what followed from it.
        let finding = match (finding, log.check()) {
            (torn @ Some(Finding::Torn { .. }), _) => torn,
            (_, Err(wrong)) => Some(Finding::History(wrong)),
            (finding, Ok(())) => finding,
        };
        return Ok((finding, log));
    }
    let caught = catch_unwind(AssertUnwindSafe(|| afterwards(bed, case, &mut log)));
    let broken = match caught {
        Ok(done) => done.err().map(|e| Finding::Structure(e.to_string())),
        Err(payload) => Some(Finding::Panic { client: None, what: panic_text(&*payload) }),
    };
    let wrong = log.check().err().map(Finding::History);
    Ok((wrong.or(broken), log))
}

/// All clients on one executor, first with hazards and then without.
fn clients<I: RangeIndex>(
    bed: &Bed<I>,
    fabric: &SimFabric,
    case: &Case,
    listed: bool,
    choices: &mut Vec<Choice>,
) -> Result<Finished> {
    let attach = |cn: usize| bed.cluster.fabric().attach(bed.cluster.compute_node(cn)?.cn());
    let first = attach(0)?;
    let core = Core::new(first.clone(), SLAB_BYTES);
    let mut seats = Vec::new();
    for number in 0..case.total() {
        let cn = number as usize % bed.nodes.len();
        let transport = if cn == 0 { first.clone() } else { attach(cn)? };
        let slot = core.add_slot();
        if !case.numbers_of(number).is_empty() {
            let ep = Endpoint::new(core.clone(), transport, slot);
            seats.push((number, slot, RefCell::new(Some(I::client(ep, bed.nodes[cn].clone())))));
        }
    }
    let bounds = if listed { LISTED } else { SAFETY };
    let shared = Shared::new(case, fabric.clone(), core.clone(), bounds);
    shared.slots.borrow_mut().extend(seats.iter().map(|(_, slot, _)| *slot));
    let mut policy = case.schedule.policy(case.order);
    let mut worker = Worker::new(core);
    for (number, slot, index) in &seats {
        worker.spawn(
            *slot,
            Guarded::new(&shared, *number, async {
                if let Some(mut client) = index.take() {
                    safety(&mut client, &shared, *number).await;
                    index.replace(Some(client));
                }
            }),
        );
    }
    work(&mut worker, &mut *policy, &shared);
    *choices = fabric.choices();
    fabric.set_order(&Order::Drawn);
    if case.liveness && !shared.is_over() {
        fabric.set_hazards(Hazards::NONE);
        shared.phase.set("liveness");
        shared.bounds.set(Bounds { until_ns: fabric.now() + LIVENESS_NS, ..SAFETY });
        for (number, slot, index) in &seats {
            worker.spawn(
                *slot,
                Guarded::new(&shared, *number, async {
                    if let Some(mut client) = index.take() {
                        liveness(&mut client, &shared, *number).await;
                        index.replace(Some(client));
                    }
                }),
            );
        }
        work(&mut worker, &mut *policy, &shared);
    }
    drop(worker);
    let finding = shared.take();
    let log = shared.log.take();
    Ok((finding, log))
}

fn work(worker: &mut Worker<'_>, policy: &mut dyn Policy, shared: &Shared<'_>) {
    if let Err(stalled) = worker.run(policy) {
        shared.found(Finding::Stalled(stalled.to_string()));
    }
}

/// When nobody works any more: every key is read once more, a scan agrees, and the structure is whole.
fn afterwards<I: RangeIndex>(bed: &Bed<I>, case: &Case, log: &mut Log) -> Result<()> {
    let mut c = bed.client(0)?;
    c.maintain().map_err(|e| e.context("maintenance"))?;
    let mut keys = 0;
    for n in 0..case.numbers() {
        let record = log.call(case.total(), 0, Call::Get(n));
        let value = c.get(&plan::key(case.key_form, n)).map_err(|e| e.context("a last get"))?;
        keys += u64::from(value.is_some());
        let answer = match value.as_ref().map(|v| plan::identity(v)) {
            None => Answer::Found(None),
            Some(Some(id)) => Answer::Found(Some(id)),
            Some(None) => Answer::Torn(format!("{value:02x?}")),
        };
        log.ret(record, 0, answer);
    }
    let shape = c.walk()?;
    if shape.keys != keys {
        let found = shape.keys;
        return Err(Error::corrupt(format!("the walk finds {found} keys, and gets find {keys}")));
    }
    Ok(())
}
