//! The costs of operations over processes: the verbs of one process, and the same after any
//! history.

use crate::common;
use crate::harness::{Process, alone, compute, fabric, found, memnode, run};

/// The cells of a small run of the bench.
fn cells(
    systems: &str,
    keys: &str,
    clients: (&str, &str),
    fabric: &[&str],
) -> Vec<serde_json::Value> {
    let args = ["bench", "quick", "--systems", systems, "--workloads", "search,update,insert"];
    let small = ["--distributions", "uniform", "--keys", keys, "--ops", "2000", "--cns", "2"];
    // Caches are warm however slow the machine is: cache misses are not compared.
    let small = [&small[..], &["--warmup", "60"]].concat();
    let more = ["--threads", clients.0, "--coroutines", clients.1, "--json", "-q"];
    let out = common::run(&[&args[..], &small[..], &more, fabric].concat());
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let results: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let cells = results["cells"].as_array().expect("cells").clone();
    assert_eq!(cells.len(), 3 * systems.split(',').count());
    assert!(cells.iter().all(|c| c["errors"] == 0), "{cells:?}");
    cells
}

/// Systems that are sound with several clients on any fabric.
const SOUND: &str = "dmtree,dmtree-tables-on-mn,dmtree-no-rtc";

/// One of each family.
const SYSTEMS: &str = "dmtree,fptree,dmtree-published,sherman-published";

/// The workloads of the bench run on processes, with every result checked, and one client posts the
/// verbs that it posts in one process, exactly.
#[test]
fn the_bench_runs_on_a_memory_node_of_its_own() {
    let _machine = alone();
    let (_mn, at) = memnode();
    let fabric = fabric();
    cells("dmtree", "5000", ("1", "1"), &["--fabric", &fabric, "--nodes", &at]);
    let counts = |fabric: &str| -> Vec<_> {
        let all = cells(SYSTEMS, "5000", ("1", "1"), &["--fabric", fabric]);
        let what = ["mn", "cn", "round_trips", "doorbells"];
        all.iter().map(|c| what.map(|what| c[what].clone())).collect()
    };
    assert_eq!(counts(&fabric), counts("local"));
}

/// Several clients conflict, in one process or not: their verbs per operation are within 3 %,
/// retries (additional atomics) included. Keys are many, because the number of conflicts is random.
#[test]
#[expect(clippy::disallowed_macros, reason = "prints the differences")]
fn several_clients_post_nearly_the_verbs_of_one_process() {
    let _machine = alone();
    let verbs = |c: &serde_json::Value, side: &str| -> f64 {
        ["read", "write", "atomic"].iter().map(|v| c[side][*v].as_f64().expect("a count")).sum()
    };
    let [here, there] = ["local".to_owned(), fabric()]
        .map(|fabric| cells(SOUND, "60000", ("2", "2"), &["--fabric", &fabric]));
    for (h, t) in here.iter().zip(&there) {
        for side in ["mn", "cn"] {
            let (h_verbs, t_verbs) = (verbs(h, side), verbs(t, side));
            let name = format!("{} {} at {side}", h["system"], h["workload"]);
            println!(
                "{name}: local {h_verbs:.4}, {} {t_verbs:.4}; atomics {} and {}",
                t["fabric"], h[side]["atomic"], t[side]["atomic"]
            );
            let apart = (h_verbs - t_verbs).abs() / h_verbs.max(0.1);
            assert!(apart <= 0.03, "{name}: {h_verbs} and {t_verbs}");
        }
    }
}

/// The conformance suite, with operations of two processes.
#[test]
fn systems_conform_on_two_processes() {
    let systems = ["--system", "families", "--steps", "300"];
    let _machine = alone();
    let (status, said) = run(&[&["conform", "--fabric", &fabric()][..], &systems].concat());
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches("two processes").count(), 8, "{said}");
}

/// The number of operations of a process, and their round trips, as its shell reports them.
fn operations(p: &mut Process) -> (f64, f64) {
    p.say("stats");
    for _ in 0..20 {
        let line = p.line();
        assert!(!line.starts_with("error"), "{line}");
        let Some(rest) = line.strip_prefix("operations") else { continue };
        let words: Vec<&str> = rest.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        let number = |i: usize| words[i].parse().expect("a number");
        return (number(0), number(1));
    }
    panic!("no line of operations")
}

/// A reader of keys that a process has loaded and left: after a first pass, its gets take one round
/// trip.
#[test]
fn gets_of_keys_of_a_process_that_left_take_one_round_trip() {
    const KEYS: usize = 3_000;
    let _machine = alone();
    let (_mn, at) = memnode();
    let mut loader = compute(&at);
    (0..KEYS).for_each(|i| assert_eq!(loader.ask(&format!("put key{i:05} v")), "done"));
    loader.quit();
    let mut reader = compute(&at);
    let mut pass = || {
        let before = operations(&mut reader);
        (0..KEYS).for_each(|i| assert_eq!(reader.ask(&format!("get key{i:05}")), "v"));
        let after = operations(&mut reader);
        (after.1 - before.1) / (after.0 - before.0)
    };
    let passes = [pass(), pass(), pass()];
    assert!(passes[2] < 1.1, "round trips of a get in three passes: {passes:?}");
}

/// Run after run of the bench on one pool: tables are where they belong, and writes cost the same.
#[test]
fn run_after_run_of_the_bench_costs_the_same() {
    let _machine = alone();
    let (_mn, at) = found(&["--memory-bytes", "256MiB"]);
    let fabric = fabric();
    let side = |c: &serde_json::Value, side: &str| -> f64 {
        ["read", "write", "atomic"].iter().map(|v| c[side][*v].as_f64().expect("a count")).sum()
    };
    let verbs = |c: &serde_json::Value| (side(c, "mn"), side(c, "cn"));
    let run = || cells("dmtree", "5000", ("1", "1"), &["--fabric", &fabric, "--nodes", &at]);
    let first: Vec<_> = run().iter().map(verbs).collect();
    for n in 2..7 {
        for (cell, first) in run().iter().zip(&first) {
            let now = verbs(cell);
            let near = |a: f64, b: f64| (a - b).abs() <= 0.05 * b.max(1.0);
            assert!(
                near(now.0, first.0) && near(now.1, first.1),
                "run {n}, {}: {now:?} verbs at memory and compute nodes; first {first:?}",
                cell["workload"]
            );
        }
    }
}
