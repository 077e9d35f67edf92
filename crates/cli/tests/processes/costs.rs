//! The costs of operations over processes: the verbs of one process, and the same after any
//! history.

use std::sync::OnceLock;

use crate::common;
use crate::etcd::{Etcd, founded};
use crate::harness::{Process, alone, compute, fabric, found, memnode, run, serve};
use crate::keys::new_keys;

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

/// What an operation costs in the cells of one client: verbs, bytes and round trips.
fn counts(systems: &str, fabric: &[&str]) -> Vec<[serde_json::Value; 4]> {
    let all = cells(systems, "5000", ("1", "1"), fabric);
    all.iter().map(|c| ["mn", "cn", "round_trips", "doorbells"].map(|w| c[w].clone())).collect()
}

/// The same in this process.
fn counts_here() -> &'static [[serde_json::Value; 4]] {
    static HERE: OnceLock<Vec<[serde_json::Value; 4]>> = OnceLock::new();
    HERE.get_or_init(|| counts(SYSTEMS, &["--fabric", "local"]))
}

/// The workloads of the bench run on processes, with every result checked, and one client posts the
/// verbs that it posts in one process, exactly.
#[test]
fn the_bench_runs_on_a_memory_node_of_its_own() {
    let _machine = alone();
    let (_mn, at) = memnode();
    let fabric = fabric();
    cells("dmtree", "5000", ("1", "1"), &["--fabric", &fabric, "--nodes", &at]);
    assert_eq!(counts(SYSTEMS, &["--fabric", &fabric]), counts_here());
}

/// TLS changes no verb, byte or round trip, and no result of the conformance suite.
#[test]
fn pools_with_keys_conform_and_cost_the_same() {
    let _machine = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let keys = new_keys(folder.path(), "pool.keys");
    let fabric = fabric();
    let with = ["--fabric", &fabric, "--key-file", &keys];
    assert_eq!(counts(SYSTEMS, &with), counts_here());
    conforms(&with, "30");
}

/// A membership in etcd changes no verb, byte or round trip, and no result of the conformance
/// suite.
#[test]
fn pools_in_etcd_conform_and_cost_the_same() {
    let _machine = alone();
    let Some(etcd) = Etcd::start(1) else { return };
    let pool = etcd.pool();
    let found = ["memnode", "--listen", "127.0.0.1:0", "--membership", &pool];
    let _mn = founded(&[&found[..], &["--memory-bytes", "256MiB", "--lease-ms", "2000"]].concat());
    let fabric = fabric();
    let (_other, at) = serve(&["--listen", "127.0.0.1:0", "--memory-bytes", "256MiB"]);
    let there = |nodes: &str| counts("dmtree", &["--fabric", &fabric, "--nodes", nodes]);
    assert_eq!(there(&pool), there(&at));
    conforms(&["--nodes", &pool], "30");
}

/// Several clients of each process, on keys of its own: their verbs per operation are those of one
/// process within 3 %, as splits and conflicts are random. (The retries of processes that contend
/// for the same keys depend on time.)
#[test]
#[expect(clippy::disallowed_macros, reason = "prints the differences")]
fn several_clients_post_nearly_the_verbs_of_one_process() {
    let _machine = alone();
    let verbs = |c: &serde_json::Value, side: &str| -> f64 {
        ["read", "write", "atomic"].iter().map(|v| c[side][*v].as_f64().expect("a count")).sum()
    };
    let [here, there] = ["local".to_owned(), fabric()].map(|fabric| {
        cells(SOUND, "20000", ("2", "2"), &["--fabric", &fabric, "--affinity", "own"])
    });
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

/// The conformance suite of each family in so many steps, with operations of two processes.
fn conforms(pool: &[&str], steps: &str) {
    let systems = ["--system", "families", "--steps", steps];
    let (status, said) = run(&[&["conform"][..], pool, &systems].concat());
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches("two processes").count(), 9, "{said}");
}

#[test]
fn systems_conform_on_two_processes() {
    let _machine = alone();
    conforms(&["--fabric", &fabric()], "100");
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
    for n in 2..5 {
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
