//! Prepares a pool for its cells: load, walk, warm-up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dmtree_check::client::Client;
use dmtree_parts::{Outcome, Shape, Write};
use dmtree_workload::{LOADED, LoadOrder, Plan, Workload};

use crate::clock;
use crate::config::{Config, LoadBy};
use crate::failure::{Failure, Result};
use crate::group::{CellPlan, Group, Host, name};
use crate::opened::{Loop, Opened, PlacedClient};
use crate::oracle::Oracle;
use crate::phases::Written;
use crate::sizing;
use crate::system::bytes_per_key;

pub(crate) struct Pool<'g> {
    pub group: &'g Group,
    pub opened: Opened,
    /// The loaded keys in order, if that is needed.
    pub oracle: Option<Arc<Oracle>>,
    /// How many keys of inserts the index was told of, and listened to: no others are inserted.
    pub foretold: u64,
    /// The numbers that phases have put.
    pub written: Option<Arc<Written>>,
}

pub(crate) fn load(p: &Pool<'_>, c: &Config, host: &mut Host<'_>, plan: &Arc<Plan>) -> Result<()> {
    let Pool { group: g, opened, oracle, .. } = p;
    let n = plan.spec.records;
    let show = |host: &mut Host<'_>, done: u64| {
        host.show(g.system.name, "load", done, done as f64 / n as f64);
    };
    show(host, 0);
    match c.load_by {
        LoadBy::Bulk => {
            let mut client = opened.client(0)?;
            let ep = client.endpoint().clone();
            let mut done = 0;
            // Without the key order in memory, the index sorts the pairs itself.
            let record = records(plan, oracle.as_ref());
            let mut pairs = (0..n).map_while(|i| {
                done = i + 1;
                if done.is_multiple_of(1 << 16) {
                    show(host, done);
                    host.stopped().ok()?;
                }
                let record = record(i);
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
            let body = |mut placed: PlacedClient| -> Loop<Result<(), dmtree_fabric::Error>> {
                let (plan, order) = (plan.clone(), order.clone());
                let (stop, done) = (stop.clone(), counter.clone());
                Box::pin(async move {
                    let i = u64::from(placed.number);
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    for (turn, record) in
                        order.records(n * i / clients..n * (i + 1) / clients).enumerate()
                    {
                        plan.key(record, &mut key);
                        plan.value(record, &key, LOADED, &mut value);
                        let outcome = placed.client.write(&key, Write::Put(&value)).await?;
                        if outcome != Outcome::Done {
                            return Err(dmtree_fabric::Error::corrupt(format!(
                                "a put while loading gives {outcome:?}"
                            )));
                        }
                        let ends = || stop.load(Ordering::Relaxed);
                        if turn % 16 == 15 && pause(&placed, &done, ends).await {
                            break;
                        }
                    }
                    placed.ep.drain().await
                })
            };
            let mut tick = || show(host, done.load(Ordering::Relaxed));
            let left = opened.run((c.threads, c.coroutines), &body, &mut tick)?;
            for l in left {
                l.out.map_err(fits)?;
            }
        }
    }
    Ok(())
}

/// Foretells the keys that a workload will insert, at most as many as are loaded; how many, if the
/// index listens, else 0.
pub(crate) fn foretell(p: &Pool<'_>, c: &Config, w: &Workload, plan: &Plan) -> Result<u64> {
    let (mut client, first) = (p.opened.client(0)?, plan.spec.records);
    let room = sizing::insert_room(c, w, bytes_per_key(&p.group.system, c)).min(first);
    let told = AtomicU64::new(0);
    let sorted = || {
        let key = |record| {
            let mut key = Vec::new();
            plan.key(record, &mut key);
            key
        };
        // Numbers behind the end of the key space have no key.
        let keys = (first..first.saturating_add(room)).map(key).filter(|key| !key.is_empty());
        let keys: BTreeSet<Vec<u8>> = keys.collect();
        told.store(keys.len() as u64, Ordering::Relaxed);
        keys
    };
    // An index that does not listen asks for none: then they are not made.
    let mut keys = std::iter::once(()).filter(|()| room > 0).flat_map(|()| sorted());
    let ep = client.endpoint().clone();
    let listens = ep.core().block_on(ep.slot(), client.foretell(&mut keys)).map_err(fits)?;
    Ok(if listens { told.into_inner() } else { 0 })
}

/// After 16 operations of a client: counts them, and lets others run unless this one `ends`.
async fn pause(placed: &PlacedClient, done: &AtomicU64, ends: impl FnOnce() -> bool) -> bool {
    done.fetch_add(16, Ordering::Relaxed);
    let ends = ends();
    if !ends && placed.shares_thread {
        placed.ep.yield_now().await;
    }
    ends
}

/// The loaded records by position: in the order of their keys if that is known, else in random
/// order.
fn records(plan: &Plan, oracle: Option<&Arc<Oracle>>) -> impl Fn(u64) -> u64 + Send + use<> {
    let order = match oracle {
        Some(oracle) => Ok(oracle.clone()),
        None => Err(plan.load(LoadOrder::Random)),
    };
    move |at| match &order {
        Ok(oracle) => oracle.record_at(at as usize),
        Err(random) => random.records(at..at + 1).next().unwrap_or(at),
    }
}

/// Turns a load that does not fit into bad input, with advice.
fn fits(e: dmtree_fabric::Error) -> Failure {
    if e.kind() == dmtree_fabric::ErrorKind::Full {
        Failure::input(format!(
            "the keys do not fit the memory ({e}): give more --memory-bytes or fewer --keys"
        ))
    } else {
        Failure::from(e).context("loading")
    }
}

/// The structure of an index; where each compute node has keys of its own, with the keys and bytes
/// of all.
pub(crate) fn walk(p: &Pool<'_>, host: &mut Host<'_>) -> Result<Shape> {
    let name = p.group.system.name;
    host.show(name, "walk", 0, 0.0);
    let own = |cn| {
        let broken = |e| Failure::violation(format!("{name}: the structure is broken: {e}"));
        Client::from(p.opened.client(cn)?).walk().map_err(broken)
    };
    let mut shape = own(0)?;
    let nodes = if p.group.system.options.any_node()? { 1 } else { p.opened.compute_nodes() };
    for cn in 1..nodes {
        let own = own(cn)?;
        shape.keys += own.keys;
        shape.structure_bytes += own.structure_bytes;
        shape.block_bytes += own.block_bytes;
        shape.levels = shape.levels.max(own.levels);
    }
    Ok(shape)
}

/// Reads keys on every compute node with clients. Returns how many keys the average node read, and
/// whether all nodes completed.
pub(crate) fn warm_up(
    p: &Pool<'_>,
    (cell, plan): (&CellPlan, &Arc<Plan>),
    host: &mut Host<'_>,
    limit: Option<Duration>,
) -> Result<(f64, bool)> {
    let (Pool { group: g, opened, oracle, .. }, c) = (p, &cell.config);
    // Without timing one client of each compute node is enough.
    let placement = if c.simulated() { (1, 1) } else { (c.threads, c.coroutines) };
    let cns = u32::from(c.cns);
    let clients = if c.simulated() { cns } else { c.clients() };
    let pairs_per_leaf = g.system.options.pairs_per_leaf();
    let n = plan.spec.records;
    let deadline = limit.map(|limit| clock::now() + limit);
    let done = Arc::new(AtomicU64::new(0));
    let stop = host.stop.clone();
    let body = |mut placed: PlacedClient| -> Loop<(u64, bool, Vec<String>)> {
        let (plan, oracle, stop, done) = (plan.clone(), oracle.clone(), stop.clone(), done.clone());
        Box::pin(async move {
            // The clients of a compute node share its keys.
            let mine = u64::from(placed.number / cns);
            let sharers = u64::from((clients - placed.cn as u32).div_ceil(cns));
            let any = records(&plan, oracle.as_ref());
            // Of a key space in slices, its own.
            let own = plan.loaded_in(placed.cn as u32);
            let n = own.map_or(n, |own| own.len() as u64);
            let record = |at: u64| own.map_or_else(|| any(at), |own| own[at as usize]);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let (mut reads, mut wrong) = (0u64, Vec::new());
            let mut position = mine * pairs_per_leaf;
            while position < n {
                plan.key(record(position), &mut key);
                match placed.client.get(&key, &mut value).await {
                    Ok(true) => {
                        if let Err(e) = plan.check_value(&key, &value) {
                            wrong.push(e.to_string());
                        }
                    }
                    Ok(false) => wrong.push("a loaded key is reported absent".to_owned()),
                    Err(e) => wrong.push(e.to_string()),
                }
                reads += 1;
                position += sharers * pairs_per_leaf;
                let late = || deadline.is_some_and(|d| clock::now() >= d);
                let ends = || stop.load(Ordering::Relaxed) || late() || wrong.len() > 100;
                if reads.is_multiple_of(16) && pause(&placed, &done, ends).await {
                    break;
                }
            }
            if let Err(e) = placed.ep.drain().await {
                wrong.push(e.to_string());
            }
            (reads, position >= n, wrong)
        })
    };
    let what = name(g, cell);
    let each = plan.loaded_in(0).map_or(n, |own| own.len() as u64);
    let all = (each / pairs_per_leaf).max(1) * u64::from(cns.min(clients));
    let mut tick = || {
        let done = done.load(Ordering::Relaxed);
        host.show(&what, "warm-up", done, done as f64 / all as f64);
    };
    let left = opened.run(placement, &body, &mut tick)?;
    if let Some(wrong) = left.iter().find_map(|l| l.out.2.first()) {
        return Err(Failure::violation(format!("{}: warming up: {wrong}", g.system.name)));
    }
    let reads: u64 = left.iter().map(|l| l.out.0).sum();
    let per_node = reads as f64 / f64::from(cns.min(clients));
    Ok((per_node, left.iter().all(|l| l.out.1)))
}
