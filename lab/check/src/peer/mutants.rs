//! Mutants of systems, and the seeds that find them. A mutant is enabled for the whole process: one
//! of these runs at a time, and no other. Errors are of cases that cannot run.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Capabilities, Result};
use dmtree_parts::peer::{NodeFaultSet, Setting, Soon};

use super::{each, passes};
use crate::checked::System;
use crate::conformance::is_whole;
use crate::exhaustive::Depth;

/// Exploration depth: orders of one small case.
const ORDERS: Depth = Depth { switches: 3, paths: 2_000 };
/// Number of small cases.
const SMALL: u64 = 12;

/// Node faults; every seed runs with each of these, one after the other.
const NODE_FAULTS: [(&str, NodeFaultSet); 3] = [
    ("no faults", NodeFaultSet::None),
    ("crashes", NodeFaultSet::Crash),
    ("all faults", NodeFaultSet::All),
];

/// Disables all mutants of a system when it is dropped.
struct Enabled<'a>(&'a System);

impl<'a> Enabled<'a> {
    fn of(subject: &'a System, mutant: &str) -> Self {
        (subject.enable)(&[mutant]);
        Self(subject)
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        (self.0.enable)(&[]);
    }
}

fn setting(node_faults: NodeFaultSet) -> Setting {
    Setting { node_faults, ..Setting::default() }
}

/// Most seeds for one mutant in a run that is not whole: mutants that need more are left out.
const FEW: u64 = 100;

/// The mutants of a system that [`found`] looks for.
pub fn soon_found(subject: &System) -> impl Iterator<Item = (&'static str, Soon)> {
    let most = if is_whole() { u64::MAX } else { FEW };
    let all = subject.mutants.iter().filter_map(|m| Some((m.name, m.soon?)));
    all.filter(move |(_, soon)| soon.seeds <= most)
}

/// Looks for the mutants of a system that few seeds find. Returns those that are not found, and
/// the seeds that find something without a mutant.
pub fn found(subject: &System) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (mutant, soon) in soon_found(subject) {
        let setting = setting(soon.node_faults);
        for seed in 0..soon.seeds.min(3) {
            if let Some(f) = subject.finding(seed, &setting)? {
                wrong.push(format!("{}: seed {seed} finds without a mutant: {f}", subject.name));
            }
        }
        let _enabled = Enabled::of(subject, mutant);
        let shows =
            |seed| Ok(subject.finding(seed, &setting)?.is_some_and(|f| f.kind() == soon.kind));
        if !any(soon.seeds, &shows)? {
            wrong.push(format!("{}: {mutant} is not found as {}", subject.name, soon.kind));
        }
    }
    Ok(wrong)
}

/// Whether a seed below `seeds` shows something; on all processors.
pub fn any(seeds: u64, shows: &(dyn Fn(u64) -> Result<bool> + Sync)) -> Result<bool> {
    let (found, failed) = (AtomicBool::new(false), Mutex::new(None));
    let all: Vec<u64> = (0..seeds).collect();
    let panics = each(&all, |seed| {
        if !found.load(Ordering::Relaxed) {
            match shows(*seed) {
                Ok(shown) => _ = found.fetch_or(shown, Ordering::Relaxed),
                Err(e) => _ = locked(&failed).replace(e),
            }
        }
        Ok(())
    });
    passes(&panics);
    locked(&failed).take().map_or(Ok(found.into_inner()), Err)
}

/// The mutants of a system as a Markdown table, all or those of these names: the number of seeds
/// until each is found, at most so many. Nothing when it has none.
pub fn markdown(subject: &System, seeds: u64, names: &[String]) -> Result<String> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let mut rows = String::new();
    for mutant in subject.mutants.iter().filter(|m| wanted(m.name)) {
        let _enabled = Enabled::of(subject, mutant.name);
        let found = match first(subject, seeds)? {
            Some(found) => Some(found),
            None => small(subject)?,
        };
        let found = found.unwrap_or_else(|| "- | | not found".to_owned());
        let _ = writeln!(rows, "| `{}` | {found} |", mutant.name);
    }
    let head = "| mutant | seeds | with | found as |\n|---|---|---|---|\n";
    Ok(if rows.is_empty() { rows } else { head.to_owned() + &rows })
}

/// The number of seeds until the first finding, the node faults of that seed, and the kind of the
/// finding.
fn first(subject: &System, seeds: u64) -> Result<Option<String>> {
    for seed in 0..seeds {
        for (name, node_faults) in NODE_FAULTS {
            if let Some(f) = subject.finding(seed, &setting(node_faults))? {
                return Ok(Some(format!("{} | {name} | {}", seed + 1, f.kind())));
            }
        }
    }
    Ok(None)
}

/// The same among all orders of small cases: the case and the number of orders.
fn small(subject: &System) -> Result<Option<String>> {
    for seed in 0..SMALL {
        let case = subject.tiny(seed, Capabilities::NONE);
        let explored = subject.explore(&case, ORDERS, &|| true)?;
        if explored.wrong.is_some() {
            return Ok(Some(format!("- | small case {seed}, order {} | ", explored.paths)));
        }
    }
    Ok(None)
}
