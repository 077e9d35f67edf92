//! A small real run, and all files that are made from its results.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dmtree_bench::compare::compare;
use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::results::{Cell, Results, SCHEMA_VERSION};
use dmtree_bench::run::{self, Observer, Silent};
use dmtree_bench::{csv, files, report, table};

fn small(text: &str, flags: &[&str]) -> Results {
    let small = "keys = 3000\nops = 3000\nthreads = 2\ncoroutines = 1\ncns = 2\n";
    let e = Experiment::parse("small", "small", &format!("{small}{text}")).unwrap();
    let resolved = resolve(&e, &Flags::of(flags).unwrap()).unwrap();
    let outcome = run::run(&resolved, &[], &Arc::new(AtomicBool::new(false)), &mut Silent).unwrap();
    assert_eq!(outcome.failure, None);
    outcome.results
}

#[test]
fn the_form_holds_what_was_promised() {
    let r = small("", &["--systems=dmtree", "--rounds=2"]);
    assert_eq!(r.errors(), 0, "{}", table::render(&r));
    assert_eq!(r.cells.len(), 8);
    assert!(Results::parse("x", &r.to_json()).unwrap() == r, "what is written reads back");
    let v: serde_json::Value = serde_json::from_str(&r.to_json()).unwrap();
    for key in ["schema_version", "seed", "config", "config_hash", "version", "machine", "cells"] {
        assert!(!v[key].is_null(), "{key}");
    }
    for cell in v["cells"].as_array().unwrap() {
        let keys = "system workload distribution fabric mops ops combined errors p50_ns p99_ns \
                    p999_ns round_trips round_trips_p99";
        for key in keys.split(' ') {
            assert!(!cell[key].is_null(), "{key}");
        }
        let mut sides = vec![cell["mn"].clone(), cell["cn"].clone()];
        for outcome in ["hit", "absent", "insert_plain", "insert_split", "retried"] {
            sides.push(cell["by_outcome"][outcome]["mn"].clone());
            sides.push(cell["by_outcome"][outcome]["cn"].clone());
        }
        for side in sides {
            for key in ["read", "write", "atomic", "rpc", "bytes_read", "bytes_written"] {
                assert!(side[key].is_number(), "{key}");
            }
        }
        assert_eq!(cell["rounds"].as_array().unwrap().len(), 2);
        assert_eq!(cell["ops"], 6000);
        assert!(cell["memory"]["mn_bytes_per_key"].as_f64().unwrap() > 30.0);
        assert!(cell["memory"]["cn_bytes_per_cached_key"].as_f64().unwrap() > 0.0);
        assert!(cell["nodes"].as_array().unwrap().len() >= 3, "mn0, cn0, cn1");
    }
    let one = |w: &str| r.cells.iter().find(|c| c.workload == w).unwrap();
    assert!(one("search").by_outcome["hit"].ops > 0);
    assert!(one("insert").by_outcome["insert_plain"].ops > 0);
    assert_eq!(one("scan").scan_check.as_deref(), Some("complete"));
    assert!((one("scan").entries_per_scan.unwrap() - 50.0).abs() < 10.0);
}

#[test]
fn tables_are_the_artifacts() {
    let r = small("", &["--systems=dmtree"]);
    let tables = report::tables(&r);
    let names: Vec<&str> = tables.iter().map(|t| t.0.as_str()).collect();
    assert_eq!(names, ["simple_results_uniform.csv", "simple_results_zipfian.csv"]);
    for (_, text) in &tables {
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("Index,Workload,Total,Node1,Node2"));
        let rows: Vec<Vec<&str>> = lines.map(|l| l.split(',').collect()).collect();
        let workloads: Vec<&str> = rows.iter().map(|r| r[1]).collect();
        assert_eq!(workloads, ["ycsb-c", "insert-only", "update-only", "scan-only"]);
        for row in rows {
            let n: Vec<f64> = row[2..].iter().map(|f| f.parse().unwrap()).collect();
            assert!(n[0] > 0.0 && (n[1] + n[2] - n[0]).abs() < 0.01 * n[0] + 1e-5, "{row:?}");
        }
    }
    let page = report::html(&r);
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    assert!(Results::parse("the page", data).unwrap() == r, "the page has all of the results");
    assert!(data.contains("no statement about a NIC") && data.contains(&r.config_hash));
    let text = table::render(&r);
    assert!(text.contains("B/key on MN") && text.contains("p99.9"), "{text}");
}

#[test]
fn sweeps_and_ablations_have_rows_of_their_own() {
    let r = small(
        "workloads = [\"scan\"]\ndistributions = [\"uniform\"]\nsystems = [\"dmtree\", \"dmtree-no-mirrors\"]\n[sweep]\nscan-length = [\"1\", \"10\"]\n",
        &[],
    );
    let labels: Vec<String> = r.cells.iter().map(Cell::label).collect();
    assert_eq!(
        labels,
        [
            "dmtree [scan-length=1]",
            "dmtree-no-mirrors [scan-length=1]",
            "dmtree [scan-length=10]",
            "dmtree-no-mirrors [scan-length=10]"
        ]
    );
    assert_eq!(r.cells[0].entries_per_scan, Some(1.0));
    let places: Vec<_> = r.cells.iter().filter_map(|c| c.place.as_ref()).collect();
    let axis: Vec<_> = places.iter().map(|p| (p.setting.as_str(), p.x)).collect();
    let (one, ten) = (("scan-length", 1.0), ("scan-length", 10.0));
    assert_eq!(axis, [one, one, ten, ten]);
    assert_eq!(r.errors(), 0);
}

/// One table with all figures: its columns are those of the document, and each swept setting has
/// its own.
#[test]
fn the_long_table_has_every_figure() {
    let sweeps = ["--sweep=scan-length=1,10", "--sweep=seed=3,4", "--rounds=2"];
    let text = "workloads = [\"scan\"]\ndistributions = [\"uniform\"]\nsystems = [\"dmtree\"]\n";
    let r = small(text, &sweeps);
    let table = csv::cells(&r);
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let document = include_str!("../../../../docs/experiments.md");
    let rows = document.split("<!-- fields: csv -->").nth(1).unwrap();
    let documented = rows.split("<!-- end -->").next().unwrap().lines().skip(3);
    let documented: Vec<&str> = documented.map(|row| row.split('`').nth(1).unwrap()).collect();
    let swept = ["swept_seed", "swept_scan-length"];
    assert_eq!(head, [&documented[..], &swept].concat());
    let rows: Vec<Vec<&str>> = lines.collect();
    assert_eq!(rows.len(), 4);
    for (row, c) in rows.iter().zip(&r.cells) {
        assert_eq!(row.len(), head.len());
        let at = |name: &str| row[head.iter().position(|n| *n == name).unwrap()];
        assert_eq!(at("seed"), at("swept_seed"));
        let (asked, found) = (at("swept_scan-length"), at("entries_per_scan"));
        let short = asked.parse::<f64>().unwrap() - found.parse::<f64>().unwrap();
        assert!((0.0..0.2).contains(&short), "{found} of {asked}: scans near the end are shorter");
        assert_eq!(at("p99_ns"), c.latency.p99_ns.to_string());
        assert_eq!(at("mn_verbs").parse::<f64>().unwrap(), c.mn.verbs());
        assert_eq!(at("mops").parse::<f64>().unwrap(), c.mops);
        assert!(at("mops_min").parse::<f64>().unwrap() <= c.mops);
        assert_eq!((at("rounds"), at("profile"), at("published_mops")), ("2", "", ""));
        assert_eq!(c.cdf.last().unwrap().1, 1.0);
    }
}

#[test]
fn comparisons_judge_counters_only() {
    let a = small("", &["--systems=dmtree", "--distributions=uniform"]);
    assert!(!compare(&a, &a, 0.0).differs());
    let mut b = a.clone();
    b.cells[0].mops *= 2.0;
    b.cells[0].latency.p99_ns *= 3;
    let c = compare(&a, &b, 0.03);
    assert!(!c.differs(), "{}", c.text());
    assert!(c.text().contains("2.000"));
    b.cells[0].mn.read *= 1.05;
    assert!(compare(&a, &b, 0.03).differs());
    assert!(!compare(&a, &b, 0.10).differs());
    let lost = b.cells.pop().unwrap();
    assert_eq!(compare(&a, &b, 0.10).only_first, [lost.key()]);
    b.cells.clear();
    assert!(compare(&a, &b, 0.1).differs(), "nothing in common");
}

#[test]
fn files_are_written_whole_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let r = small("", &["--systems=dmtree", "--workloads=search"]);
    let written = files::write_all(dir.path(), &r).unwrap();
    assert_eq!(written.last().unwrap().file_name().unwrap(), "results.json");
    let there = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(there, written.len(), "no temporary file is left");
    assert!(files::read_results(dir.path()).unwrap() == r);
    for other in [SCHEMA_VERSION - 1, 99] {
        let current = format!("\"schema_version\": {SCHEMA_VERSION}");
        let text = r.to_json().replace(&current, &format!("\"schema_version\": {other}"));
        let e = Results::parse("x", &text).unwrap_err().to_string();
        assert!(e.contains(&format!("another version: it has schema_version {other}")), "{e}");
    }
    assert!(Results::parse("x", "{}").unwrap_err().to_string().contains("no schema_version"));
    assert!(Results::parse("x", "nope").is_err());
}

#[test]
fn an_interrupt_keeps_what_is_finished() {
    struct StopAfter(Arc<AtomicBool>);
    impl Observer for StopAfter {
        fn measured(&mut self, _: &Cell, _: &dyn Fn() -> Results) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let e = Experiment::parse("small", "small", "keys = 1000\nops = 500\ncns = 2").unwrap();
    let resolved = resolve(&e, &Flags::of::<&str>(&[]).unwrap()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let outcome = run::run(&resolved, &[], &stop, &mut StopAfter(stop.clone())).unwrap();
    assert_eq!(outcome.failure, Some(dmtree_bench::Failure::Interrupted));
    assert!(outcome.results.interrupted);
    assert_eq!(outcome.results.cells.len(), 1);
}
