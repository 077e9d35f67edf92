//! The tests of the array: the test kit for crates of indexes, and what the laboratory does with a
//! system that it has been told of.

use std::sync::Arc;

use dmtree_array::Options;
use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::registry;
use dmtree_bench::run::{Silent, run};
use dmtree_bench::simulated::CpuSource;
use dmtree_check::peer::mutants;
use dmtree_check::peer::prelude::*;
use dmtree_check::peer::rows::basics;

dmtree_check::peer_tests! {
    array: crate::peer();
}

fn peer() -> Peer {
    let peer = Peer::of(dmtree_array::systems());
    let whole = 8 + 8 + 300 * 32;
    let read = |locked| match locked {
        true => cost(5, [3, 0, 2, whole, 0]),
        false => cost(3, [3, 0, 0, whole, 0]),
    };
    let rows = vec![
        row("array", "get, get absent", read(true)),
        row("array-unlocked", "get, get absent", read(false)),
    ];
    Peer {
        local: vec![
            basics(),
            model("hashed keys", Keys::Hashed24, 200, 1_000),
            model("a small array", Keys::Ascending, 40, 500).options(|o| Options {
                key_bytes: 8,
                capacity: 40,
                ..o
            }),
        ],
        sound: vec![("array", Setting::default(), 0..8)],
        budgets: vec![Budget { keys: 300, ..Budget::new(peer.presets(), rows) }],
        ..peer
    }
}

/// A mutant, a row of an experiment, a sweep.
#[test]
fn the_laboratory_has_it_as_one_of_its_own() {
    let add = || registry::add(dmtree_array::systems());
    add().expect("new names");
    assert!(add().expect_err("taken").to_string().contains("\"array\" already"));
    passes(&mutants::found(&registry::find("array").expect("added")).expect("cases that run"));
    let flags = [
        "--systems=array",
        "--workloads=search,update",
        "--distributions=uniform",
        "--keys=600",
        "--ops=400",
        "--cns=2",
        "--threads=2",
        "--coroutines=1",
        "--sweep=array.capacity=1000,2000",
    ];
    let experiment = Experiment::find("fast26").expect("built in");
    let resolved = resolve(&experiment, &Flags::of(&flags).expect("flags")).expect("settings");
    let done = run(&resolved, &[], &Arc::default(), &mut Silent).expect("a run");
    assert_eq!((done.failure, done.results.errors()), (None, 0));
    assert_eq!(done.results.cells.len(), 4);
    // It names no step that takes CPU time: its code is timed, or what it computes is free.
    let charged = [&flags[..], &["--cpu=charged"]].concat();
    let charged = resolve(&experiment, &Flags::of(&charged).expect("flags")).expect("settings");
    let free = run(&charged, &[], &Arc::default(), &mut Silent).expect("a run");
    for (measured, free) in done.results.cells.iter().zip(&free.results.cells) {
        assert_eq!((measured.cpu, free.cpu), (CpuSource::Measured, CpuSource::Free));
        assert!(measured.mops < free.mops, "{}: {} and {}", free.key(), measured.mops, free.mops);
    }
    let unknown = [flags[0], "--option=array.locks=3"];
    let refused = resolve(&experiment, &Flags::of(&unknown).expect("flags"));
    assert!(refused.expect_err("unknown").to_string().contains("locks"));
}
