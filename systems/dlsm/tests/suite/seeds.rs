//! Seeds of `dmtree check --system dlsm` that have found something.

use dmtree_check::checked::System;
use dmtree_check::peer::mutants::markdown;
use dmtree_parts::peer::{NodeFaultSet, Setting};

fn finding(seed: u64, node_faults: NodeFaultSet) -> Option<String> {
    let mut systems = dmtree_dlsm::systems().into_iter().filter(|s| s.name == "dlsm");
    let system = System(systems.next().expect("it"));
    let setting = Setting { node_faults, ..Setting::default() };
    system.finding(seed, &setting).expect("a case that runs").map(|f| f.to_string())
}

/// Seed 3607: maintenance that asks for ranges of its slice waited for the turn of one, with the
/// deadline of an earlier operation.
#[test]
fn maintenance_does_not_wait_for_a_range_that_is_busy() {
    assert_eq!(finding(3607, NodeFaultSet::All), None);
}

/// Seed 3445: the node of a slice without a lease was asked to own a range, for ever.
#[test]
fn a_range_of_a_node_without_a_lease_is_claimed_by_another() {
    assert_eq!(finding(3445, NodeFaultSet::All), None);
}

/// Seed 5632: a get was dropped with its READ on the way, and the table was merged away and freed
/// before the READ executed.
#[test]
fn a_table_is_not_freed_before_a_read_of_a_dropped_get_has_ended() {
    assert_eq!(finding(5632, NodeFaultSet::All), None);
}

/// Seed 854: a member had restarted, and the collection of a node's maintenance did not reach it.
#[test]
fn a_collection_that_does_not_reach_a_member_is_repeated_later() {
    assert_eq!(finding(854, NodeFaultSet::All), None);
}

/// Most seeds with restarts: blocks of logs and manifests were missing in the numbers of a walk.
#[test]
fn blocks_of_logs_and_manifests_count() {
    let found: Vec<_> = (0..4).filter_map(|seed| finding(seed, NodeFaultSet::Restarts)).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The seeds of `DMTREE_SEEDS=FROM..TO`, without a build of the whole program.
#[test]
#[ignore = "long"]
fn some_seeds() {
    let asked = std::env::var("DMTREE_SEEDS").expect("DMTREE_SEEDS=FROM..TO");
    let (from, to) = asked.split_once("..").expect("FROM..TO");
    let faults = match std::env::var("DMTREE_NODE_FAULTS").as_deref() {
        Ok("none") => NodeFaultSet::None,
        Ok("crash") => NodeFaultSet::Crash,
        Ok("restarts") => NodeFaultSet::Restarts,
        _ => NodeFaultSet::All,
    };
    let seeds = from.parse::<u64>().expect("a seed")..to.parse().expect("a seed");
    let found: Vec<_> = seeds.filter_map(|seed| Some((seed, finding(seed, faults)?))).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The table of mutants in DESIGN.md, with `DMTREE_SEEDS=N` seeds at most, without a build of the
/// whole program; `DMTREE_MUTANTS=NAME,...` asks for these alone.
#[test]
#[ignore = "long"]
#[expect(clippy::disallowed_macros, reason = "it prints")]
fn mutants() {
    let seeds = std::env::var("DMTREE_SEEDS").ok().and_then(|n| n.parse().ok()).expect("a number");
    let names = std::env::var("DMTREE_MUTANTS").unwrap_or_default();
    let names: Vec<_> = names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
    let mut systems = dmtree_dlsm::systems().into_iter().filter(|s| s.name == "dlsm");
    let system = System(systems.next().expect("it"));
    println!("{}", markdown(&system, seeds, &names).expect("cases that run"));
}
