//! What the laboratory does with a system that it has been told of. A mutant is enabled for the
//! whole process, so these tests have a process of their own.

use std::sync::Arc;

use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::registry;
use dmtree_bench::run::{Silent, run};
use dmtree_bench::simulated::CpuSource;
use dmtree_check::peer::{mutants, passes};

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
