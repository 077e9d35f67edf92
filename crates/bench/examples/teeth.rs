//! Which defects of DMTree (and, for those of lock words, of `sherman`) the checker finds, and after how many seeds:
//! `teeth [SEEDS [NAME...]]`. A table in Markdown.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

use dmtree_bench::checked::{Setting, case, run, tiny};
use dmtree_bench::registry::{System, find};
use dmtree_check::exhaustive::Depth;
use dmtree_check::fault::FaultSet;
use dmtree_check::verdict::keep_panics;
use dmtree_engine::Defect;
use dmtree_fabric::Capabilities;

/// Orders of one small case.
const ORDERS: Depth = Depth { switches: 3, paths: 2_000 };
/// Small cases.
const SMALL: u64 = 12;

/// The index that a defect shows in.
fn system(d: Defect) -> System {
    let name = if d.name().starts_with("Word") { "sherman" } else { "dmtree" };
    find(name).expect("it is registered")
}

/// The first seed that goes wrong, and how.
fn first(dmtree: &System, seeds: u64, faults: FaultSet) -> Option<(u64, &'static str)> {
    let setting = Setting { grants: Capabilities::NONE, faults };
    (0..seeds).find_map(|seed| {
        let verdict = run(&case(dmtree, seed, setting)).expect("a seed's case runs");
        verdict.finding.map(|f| (seed + 1, f.kind()))
    })
}

/// The same among every order of small cases: case and order.
fn small(dmtree: &System) -> Option<(u64, u64)> {
    (0..SMALL).find_map(|seed| {
        let case = tiny(dmtree, seed, Capabilities::NONE);
        let e = dmtree.explore(&case, ORDERS, &|| true).expect("a small case runs");
        e.wrong.map(|_| (seed, e.paths))
    })
}

fn main() {
    keep_panics();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seeds: u64 = args.first().map_or(2_000, |a| a.parse().expect("a number of seeds"));
    let wanted = |d: &Defect| args.len() < 2 || args[1..].iter().any(|name| name == d.name());
    println!("| defect | without faults | with crashes | with all faults | small cases |");
    println!("|---|---|---|---|---|");
    for d in Defect::ALL.iter().filter(|d| wanted(d)) {
        Defect::plant(&[*d]);
        let system = system(*d);
        let shown = |f: Option<(u64, &str)>| f.map(|(n, kind)| format!("{n} ({kind})"));
        let calm = shown(first(&system, seeds, FaultSet::None));
        let crash = match calm {
            Some(_) => None,
            None => shown(first(&system, seeds, FaultSet::Crash)),
        };
        let all = match (&calm, &crash) {
            (None, None) => shown(first(&system, seeds, FaultSet::All)),
            _ => None,
        };
        let orders = match (&calm, &crash, &all) {
            (None, None, None) => small(&system).map(|(case, n)| format!("case {case}, order {n}")),
            _ => None,
        };
        let text = |t: Option<String>| t.unwrap_or_else(|| "-".to_owned());
        let (calm, crash, all) = (text(calm), text(crash), text(all));
        println!("| {} | {calm} | {crash} | {all} | {} |", d.name(), text(orders));
    }
}
