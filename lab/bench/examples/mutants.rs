//! Mutation tests: which mutants of DMTree (for mutants of lock words: of `sherman`), or of the
//! sound SMART, the checker finds, and after how many seeds.
//!
//! `mutants [SEEDS [NAME...]]`, `mutants [SEEDS [smart NAME...]]`. The output is a table in
//! Markdown.

#![allow(clippy::disallowed_macros, reason = "a program prints")]

use dmtree_bench::checked::{Setting, case, run, tiny};
use dmtree_bench::registry::find;
use dmtree_bench::system::System;
use dmtree_check::exhaustive::Depth;
use dmtree_check::fault::NodeFaultSet;
use dmtree_check::verdict::keep_panics;
use dmtree_engine::Mutant;
use dmtree_fabric::Capabilities;
use dmtree_smart::sound as smart;

/// Exploration depth: orders of one small case.
const ORDERS: Depth = Depth { switches: 3, paths: 2_000 };
/// Number of small cases.
const SMALL: u64 = 12;

/// The index that shows a mutant.
fn system(d: Mutant) -> System {
    let name = if d.name().starts_with("Word") { "sherman" } else { "dmtree" };
    find(name).expect("it is registered")
}

/// Node faults; every seed runs with each of these, one after the other.
const NODE_FAULTS: [(&str, NodeFaultSet); 3] = [
    ("no faults", NodeFaultSet::None),
    ("crashes", NodeFaultSet::Crash),
    ("all faults", NodeFaultSet::All),
];

/// The number of seeds until the first finding, the node faults of that seed, and the kind of the
/// finding.
fn first(system: &System, seeds: u64) -> Option<(u64, &'static str, String)> {
    (0..seeds).find_map(|seed| {
        NODE_FAULTS.into_iter().find_map(|(name, node_faults)| {
            let setting = Setting { grants: Capabilities::NONE, node_faults };
            let verdict = run(&case(system, seed, setting)).expect("a seed's case runs");
            verdict.finding.map(|f| (seed + 1, name, f.kind().to_owned()))
        })
    })
}

/// The same among all orders of small cases: the case and the number of orders.
fn small(dmtree: &System) -> Option<(u64, u64)> {
    (0..SMALL).find_map(|seed| {
        let case = tiny(dmtree, seed, Capabilities::NONE);
        let e = dmtree.explore(&case, ORDERS, &|| true).expect("a small case runs");
        e.wrong.map(|_| (seed, e.paths))
    })
}

/// A row of the table for the enabled mutant.
fn row(name: &str, system: &System, seeds: u64) {
    let found = first(system, seeds).map(|(n, with, kind)| format!("{n} | {with} | {kind}"));
    let found = found
        .or_else(|| small(system).map(|(case, n)| format!("- | small case {case}, order {n} | ")));
    println!("| {name} | {} |", found.unwrap_or_else(|| "- | | not found".to_owned()));
}

fn main() {
    keep_panics();
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let seeds: u64 = match args.is_empty() {
        true => 2_000,
        false => args.remove(0).parse().expect("a number of seeds"),
    };
    let of_smart = args.first().is_some_and(|a| a == "smart");
    args.retain(|a| a != "smart");
    let wanted = |name: &str| args.is_empty() || args.iter().any(|a| a == name);
    println!("| mutant | seeds | with | found as |");
    println!("|---|---|---|---|");
    if of_smart {
        let smart = find("smart").expect("it is registered");
        for d in smart::Mutant::ALL.iter().filter(|d| wanted(d.name())) {
            smart::Mutant::enable(&[*d]);
            row(d.name(), &smart, seeds);
        }
        return;
    }
    for d in Mutant::ALL.iter().filter(|d| wanted(d.name())) {
        Mutant::enable(&[*d]);
        row(d.name(), &system(*d), seeds);
    }
}
