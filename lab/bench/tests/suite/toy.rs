//! The runner against a toy index that can return wrong results: the runner must find wrong
//! results, and accept correct ones.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use dmtree_bench::client::Ended;
use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::group::{CellPlan, Group, Host, Measured, run_group};
use dmtree_bench::{Failure, Result};
use dmtree_check::checked::System;
use dmtree_check::peer::toy::{Mutant, Options};
use dmtree_fabric::OpKind;
use dmtree_parts::peer::SystemSpec;
use dmtree_workload::Workload;

/// Measures a cell of the toy.
fn measure(mutant: Mutant, workload: &str, flags: &[&str]) -> Result<Measured> {
    measure_until(false, Options { mutant, workers: 0 }, workload, flags)
}

fn measure_until(stop: bool, options: Options, workload: &str, flags: &[&str]) -> Result<Measured> {
    let system = System(SystemSpec::of(("toy", "toy"), "a map", options));
    let small = "keys = 2000\nops = 20_000\ncns = 3\nthreads = 2\ncoroutines = 2";
    let config = resolve(&Experiment::parse("toy", "toy", small)?, &Flags::of(flags)?)?.config;
    let workload: Workload = workload.parse().unwrap();
    let distribution = "zipfian".parse().unwrap();
    let cell = CellPlan { number: 0, workload, distribution, config, variant: None, same_as: None };
    let group = Group { system, cells: vec![cell], round: 0 };
    let out = OnceLock::new();
    let measured = |_: &Group, _: &CellPlan, m: Measured| _ = out.set(m);
    let stop = Arc::new(AtomicBool::new(stop));
    run_group(&group, &mut Host::new(stop, 1, (&|_| {}, &measured)))?;
    Ok(out.into_inner().expect("a cell was measured"))
}

#[test]
fn an_honest_index_has_no_errors() {
    for workload in ["search", "search-absent", "insert", "update", "delete", "scan"] {
        for load_by in ["--load-by=bulk", "--load-by=put"] {
            let m = measure(Mutant::None, workload, &[load_by]).unwrap();
            assert_eq!(m.tally.errors, 0, "{workload}: {:?}", m.tally.samples);
            let due = if workload == "delete" { 2000 } else { 20_000 };
            assert_eq!(m.tally.ops, due, "{workload}");
            assert_eq!(m.per_cn.iter().map(|c| c.1).collect::<Vec<_>>(), [2, 1, 1]);
            assert_eq!(m.tally.latency.total().len(), due);
            let memory = m.memory.unwrap();
            assert_eq!(memory.keys, 2000 + m.tally.inserted - m.tally.deleted);
        }
    }
    for workload in ["ycsb-a", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let m = measure(Mutant::None, workload, &[]).unwrap();
        assert_eq!(m.tally.errors, 0, "{workload}: {:?}", m.tally.samples);
    }
}

/// On threads of their own, and on the simulator's: what they do is counted, and not as operations.
#[test]
fn workers_run_beside_the_clients() {
    for fabric in [&[][..], &["--fabric=sim"]] {
        let options = Options { workers: 2, ..Options::default() };
        let m = measure_until(false, options, "update", fabric).unwrap();
        assert_eq!(m.tally.errors, 0, "{fabric:?}: {:?}", m.tally.samples);
        let work = m.counts.total(&[OpKind::Maintain]);
        assert!(work.ops > 0 && work.counts.mn.read == work.ops, "{fabric:?}: {work:?}");
    }
}

#[test]
fn every_mutant_is_found() {
    for (mutant, workload, word) in [
        (Mutant::ForgetsReads, "search", "absent"),
        (Mutant::WrongValues, "search", "not written for this key"),
        (Mutant::SkipsInScans, "scan", "misses"),
        (Mutant::SkipsInScans, "ycsb-e", "misses"),
        (Mutant::StopsScansEarly, "scan", "although"),
        (Mutant::Unordered, "scan", ""),
        (Mutant::LosesInserts, "insert", "keys where"),
        (Mutant::SayExists, "insert", "Exists"),
    ] {
        let m = measure(mutant, workload, &["--warmup=0"]);
        match m {
            Ok(Measured { tally: t, .. }) => {
                assert!(t.errors > 0, "{mutant:?} in {workload}");
                assert!(t.samples.iter().any(|s| s.contains(word)), "{mutant:?}: {:?}", t.samples);
            }
            // The warm-up has already found it.
            Err(Failure::Violation(_)) => {
                assert!([Mutant::ForgetsReads, Mutant::WrongValues].contains(&mutant))
            }
            Err(e) => panic!("{mutant:?}: {e}"),
        }
    }
    let e = measure(Mutant::DropsInLoad, "search", &[]).unwrap_err();
    assert!(e.to_string().contains("1999") && e.exit_code() == 1, "{e}");
}

/// Regressions: the runner waited for ever for a client that panicked at its creation, and two
/// panicking clients ended the process.
#[test]
fn a_panic_ends_a_cell() {
    for mutant in [Mutant::PanicsWhenMade, Mutant::PanicsInReads] {
        let e = measure(mutant, "search", &[]).unwrap_err();
        assert!(e.to_string().contains("panicked") && e.exit_code() == 1, "{mutant:?}: {e}");
    }
}

#[test]
fn a_stop_ends_a_group() {
    let stopped = measure_until(true, Options::default(), "search", &[]);
    assert_eq!(stopped.unwrap_err(), Failure::Interrupted);
}

#[test]
fn a_time_limit_ends_a_cell() {
    let flags = ["--ops=18446744073709551615", "--duration=0.05"];
    let m = measure(Mutant::None, "search", &flags).unwrap();
    assert_eq!(m.tally.ended, Ended::Duration);
    assert!(m.tally.ops > 0);
}

const PHASES: [&str; 5] =
    ["fillrandom", "readrandom", "readrandomwriterandom(30)", "readseq", "readrandomrange"];

/// A phase on an index that begins empty, and waits for its workers.
#[test]
fn phases_begin_empty_and_end_when_nothing_is_due() {
    for (workload, fabric) in
        PHASES.iter().flat_map(|w| [(w, &[][..]), (w, &["--fabric=sim", "--cns=3"])])
    {
        let options = Options { workers: 1, ..Options::default() };
        let m = measure_until(false, options, workload, fabric).unwrap();
        assert_eq!(m.tally.errors, 0, "{workload} {fabric:?}: {:?}", m.tally.samples);
        assert_eq!(m.drain.is_some(), workload.contains("write") || *workload == "fillrandom");
        let keys = m.memory.unwrap().keys;
        let mixed = workload.contains("write");
        assert!(mixed || (1100..1400).contains(&keys), "{keys} of 2000 numbers in 2000 puts");
        match *workload {
            "fillrandom" => {
                assert_eq!(m.tally.all_ops, 2000);
                let work = m.counts.total(&[OpKind::Maintain]);
                assert_eq!(work.ops, 2000, "the workers have seen every put");
            }
            // In a simulator the first pass that ends stops the others.
            "readseq" if fabric.is_empty() => assert_eq!(m.tally.all_ops, 4 * keys),
            "readseq" => assert!((keys..=4 * keys).contains(&m.tally.all_ops)),
            // Of scans the entries count; budgets are by the longest.
            "readrandomrange" => assert!((5_000..=20_000).contains(&m.tally.all_ops)),
            _ => assert!(m.tally.all_ops >= 20_000),
        }
    }
}

#[test]
fn phases_find_what_is_wrong() {
    for (mutant, workload, word) in [
        (Mutant::LosesKeys, "fillrandom", "keys where"),
        (Mutant::ForgetsReads, "readrandom", "that was put is reported absent"),
        (Mutant::WrongValues, "readrandomwriterandom(99)", "not written for this key"),
        (Mutant::Unordered, "readrandomrange", "comes after"),
    ] {
        let t = measure(mutant, workload, &["--ops=200_000"]).unwrap().tally;
        assert!(t.samples.iter().any(|s| s.contains(word)), "{mutant:?}: {:?}", t.samples);
    }
}
