//! The kit fails where it must.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dmtree_check::checked::System;
use dmtree_check::conformance::Keys;
use dmtree_check::peer::costs::{self, cost, means, row};
use dmtree_check::peer::rows::{self, basics, model};
use dmtree_check::peer::toy::{self, Options};
use dmtree_check::peer::{Budget, Peer, defects, mutants, tables, workloads};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::Tearing;
use dmtree_fabric::{Capabilities, OpKind};
use dmtree_parts::Write;
use dmtree_parts::peer::{Defect, Mutant, NodeFaultSet, Repair, Setting, Soon, SystemSpec, value};
use dmtree_parts::worker::Workers;

const SOUND: Options = Options { mutant: toy::Mutant::None, workers: 0 };
const RACES: Options = Options { mutant: toy::Mutant::Races, workers: 0 };

fn toy(options: &Options) -> SystemSpec {
    let spec = SystemSpec::of(("toy", "toy"), "a map", options);
    SystemSpec { least_cache_bytes: |_| 1 << 10, ..spec }
}

fn peer(options: Options) -> Peer {
    Peer {
        local: vec![basics(), model("hashed keys", Keys::Hashed24, 300, 1_000)],
        sound: vec![("toy", Setting::default(), 0..4)],
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        ..Peer::of(vec![toy(&options)])
    }
}

fn one(failures: &[String], words: &str) {
    assert!(failures.len() == 1 && failures[0].contains(words), "{failures:?}");
}

#[test]
fn an_index_that_loses_a_key_fails() {
    assert_eq!(rows::local(&peer(SOUND)), Vec::<String>::new());
    assert_eq!(rows::apart(&peer(SOUND)), Vec::<String>::new());
    let loses = peer(Options { mutant: toy::Mutant::LosesKeys, ..SOUND });
    one(&rows::local(&loses), "toy: hashed keys: ");
    one(&rows::apart(&loses), "toy, apart: ");
}

fn at_once(mutant: toy::Mutant) -> Vec<String> {
    let local = vec![rows::snapshots_and_batches(Keys::Short, 100, 1_000)];
    rows::local(&Peer { local, ..peer(Options { mutant, ..SOUND }) })
}

/// What needs no concurrency to be wrong.
#[test]
fn loose_snapshots_and_cut_batches_fail() {
    assert_eq!(at_once(toy::Mutant::None), Vec::<String>::new());
    let wrong = [toy::Mutant::LooseSnapshots, toy::Mutant::CutsBatches, toy::Mutant::ReleasesTwice];
    for mutant in wrong {
        one(&at_once(mutant), "toy: snapshots and batches: ");
    }
}

/// A snapshot of two instants, and a batch in two parts, show in histories.
#[test]
fn histories_find_torn_snapshots_and_batches() {
    for (mutant, words) in [
        (toy::Mutant::TearsSnapshots, "snapshot of k"),
        (toy::Mutant::TearsBatches, "part of a batch"),
    ] {
        assert_eq!(at_once(mutant), Vec::<String>::new(), "one client cannot see it");
        let found = workloads::interleaved(&peer(Options { mutant, ..SOUND }));
        assert!(found.iter().any(|f| f.contains(words)), "{mutant:?}: {found:?}");
    }
}

#[test]
fn seeds_that_must_find_nothing_find_a_race() {
    assert_eq!(defects::sound(&peer(SOUND)), Vec::<String>::new());
    assert!(!defects::sound(&peer(RACES)).is_empty());
    assert_eq!(workloads::interleaved(&peer(SOUND)), Vec::<String>::new());
    assert!(!workloads::interleaved(&peer(RACES)).is_empty());
}

/// Workers run beside the clients of a seed.
#[test]
fn seeds_find_what_a_worker_does_wrong() {
    let peer = |mutant| peer(Options { mutant, workers: 2 });
    assert_eq!(defects::sound(&peer(toy::Mutant::None)), Vec::<String>::new());
    assert!(!defects::sound(&peer(toy::Mutant::LosesInWork)).is_empty());
}

/// Workers on threads of their own work until they are stopped; a stop says what has ended one.
#[test]
fn workers_end_with_their_index() {
    let started = |mutant| {
        let pool = workloads::contended(0);
        let index = TestCluster::new(&pool, 1 << 20, Options { mutant, workers: 2 }).unwrap();
        let (pool, node) = (index.cluster.compute_node(0).unwrap(), index.nodes[0].clone());
        let mut workers = Workers::default();
        workers.start(&pool, 2, move |ep| node.client(ep)).unwrap();
        (workers, index)
    };
    let (workers, index) = started(toy::Mutant::LosesInWork);
    let mut c = index.client(0).unwrap();
    (0..100).for_each(|n| _ = c.write(&[n], Write::Put(&[n])).unwrap());
    let pauses = (0..10_000).map(|_| std::thread::park_timeout(Duration::from_millis(1)));
    pauses.take_while(|()| c.walk().unwrap().keys > 0).for_each(drop);
    assert_eq!(c.walk().unwrap().keys, 0, "a piece of work for each write");
    assert_eq!(workers.stop().unwrap().total(&[OpKind::Maintain]).ops, 100);
    let (workers, _index) = started(toy::Mutant::PanicsWhenMade);
    assert!(workers.stop().unwrap_err().to_string().contains("worker 0 of cn0: it panicked"));
    drop(started(toy::Mutant::None));
}

/// A defect has to show, and its repair has to remove it.
#[test]
fn a_defect_that_is_repaired_fails() {
    let defect = |broken: &Options, repaired: &Options| {
        let setting = Setting::new(broken, Capabilities::NONE);
        let defect = Defect::new("a race", setting, 0, Repair::Options(value(repaired)));
        let defects = vec![Defect { counted: 3, ..defect }];
        [System(SystemSpec { defects, ..toy(&SOUND) })]
    };
    assert_eq!(defects::found(&defect(&RACES, &SOUND)), Vec::<String>::new());
    one(&defects::found(&defect(&SOUND, &SOUND)), "a race: no seed of 0..30 shows it");
    one(&defects::found(&defect(&RACES, &RACES)), "a race, repaired: seed ");
    let table = defects::markdown(&defect(&RACES, &SOUND)[0]);
    assert!(table.contains("| a race | toy |  | ") && table.contains(" | none of 3 |"));
}

/// Whether the toy races.
static RACING: AtomicBool = AtomicBool::new(false);

#[test]
fn a_mutant_that_does_nothing_is_not_found() {
    let soon = |seeds, kind| Some(Soon { node_faults: NodeFaultSet::None, seeds, kind });
    let of = |name, soon| {
        System(SystemSpec {
            mutants: vec![Mutant { name, soon }],
            enable: |names| RACING.store(names.contains(&"Races"), Ordering::Relaxed),
            draw: |_, _| value(if RACING.load(Ordering::Relaxed) { &RACES } else { &SOUND }),
            ..toy(&SOUND)
        })
    };
    assert_eq!(mutants::found(&of("Races", soon(20, "history"))).unwrap(), Vec::<String>::new());
    assert!(!RACING.load(Ordering::Relaxed), "a mutant stays enabled");
    let table = mutants::markdown(&of("Races", None), 20, &[]).unwrap();
    assert!(
        table.contains("| `Races` | ") && table.contains(" | no faults | history |"),
        "{table}"
    );
    one(&mutants::found(&of("Idle", soon(3, "history"))).unwrap(), "Idle is not found as history");
    one(&mutants::found(&of("Races", soon(3, "hung"))).unwrap(), "not found as hung");
    assert_eq!(mutants::markdown(&of("Idle", None), 2, &["Races".to_owned()]).unwrap(), "");
}

#[test]
fn a_wrong_number_in_a_table_of_costs_fails() {
    let verb = cost(1, [1, 0, 0, 8, 0]);
    let with = |rows: Vec<costs::Row>, means: Vec<costs::Mean>| {
        let budget = Budget::new(vec![("toy", SOUND)], rows);
        let budget = Budget { keys: 1_000, means, ..budget };
        Peer { budgets: vec![budget], ..peer(SOUND) }
    };
    let rows = |cost| vec![row("*", "get, get absent, update, insert", cost)];
    let good = with(rows(verb), means("toy", "get", &[(costs::TRIPS, 1.0)]));
    assert_eq!(costs::check(&good), Vec::<String>::new());
    let update = "| toy | update | 1 | 1 | 0 | 0 | 8 | 0 | 0 | 0 | 0 | 1.000 | 1.00 | 1.00 |";
    assert!(tables(&good).contains(update), "{}", tables(&good));
    assert_eq!(costs::check(&with(rows(cost(1, [1, 0, 0, 16, 0])), Vec::new())).len(), 4);
    let mean = means("toy", "get", &[(costs::VERBS, 1.04)]);
    one(&costs::check(&with(Vec::new(), mean)), "toy: get, mean: 1.0000, wanted 1.0400");
    let twice = |times| vec![row("toy", "get", cost(0, [0; 5])).again(verb, Some(times))];
    assert_eq!(costs::check(&with(twice(1.0), Vec::new())), Vec::<String>::new());
    one(&costs::check(&with(twice(1.1), Vec::new())), "wanted 1.1");
    one(&costs::check(&with(vec![row("toy", "merge", verb)], Vec::new())), "not measured");
}
