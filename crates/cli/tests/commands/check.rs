//! `dmtree check` as users run it.

use std::process::Output;

use crate::common::{has, text};
use serde_json::Value;

fn check<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["check"], args].concat()
}

fn run(args: &[&str]) -> Output {
    crate::common::run(&check(args))
}

fn ok(args: &[&str]) -> String {
    crate::common::ok(&check(args))
}

fn refused(args: &[&str], words: &[&str]) {
    crate::common::refused(&check(args), words);
}

fn last(text: &str) -> &str {
    text.lines().last().unwrap_or("")
}

#[test]
fn a_sound_system_ends_in_one_line_and_status_0() {
    let out = ok(&["--system", "dmtree,dmtree-no-rtc", "--seeds", "0..4", "--quiet"]);
    assert!(last(&out).starts_with("seeds 8 operations "), "{out}");
    assert!(last(&out).ends_with(" violations 0"), "{out}");
    assert!(out.contains("seeds per second") && out.contains("atomic_gap_ns"), "{out}");
    let json = ok(&["--seeds", "5..7", "--quiet", "--json"]);
    let v: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&v["seeds"], &v["violations"]), (&2.into(), &serde_json::json!([])));
}

#[test]
fn a_violation_is_small_and_replays() {
    let dir = tempfile::tempdir().unwrap();
    let case = dir.path().join("case.json");
    let case = case.to_str().unwrap();
    let args = ["--system", "dmtree-published", "--seeds", "4..6", "--shrink-seconds", "1", "-q"];
    let o = run(&[&args[..], &["--save", case]].concat());
    let out = text(&o.stdout);
    assert_eq!(o.status.code(), Some(1), "{out}{}", text(&o.stderr));
    assert!(last(&out).starts_with("seeds 2 operations "), "{out}");
    assert!(!last(&out).ends_with("violations 0"), "{out}");
    has(&out, &["smallest case after", "as a file of lab/bench/tests/suite/regressions"]);
    // The command that is printed, and the file that was saved, go wrong again.
    let replay = out.lines().find_map(|l| l.strip_prefix("replay: dmtree check ")).unwrap();
    let again: Vec<&str> = replay.split(' ').chain(["--shrink-seconds", "0"]).collect();
    assert_eq!(run(&again).status.code(), Some(1), "{replay}");
    let [a, b] = [0, 1].map(|_| text(&run(&["--replay", case, "-q"]).stdout));
    assert!(a.contains("violation (") && a.contains(", trace "), "{a}");
    assert_eq!(a, b, "the same case, the same run");
    // Under another configuration it is refused.
    refused(&["--replay", case, "--system", "dmtree"], &["dmtree-published, not of dmtree"]);
    refused(&["--replay", case, "--grant", "line_atomic"], &["grants nothing"]);
    let version = format!("\"version\":{}", dmtree_check::case::CASE_VERSION);
    let old = std::fs::read_to_string(case).unwrap().replace(&version, "\"version\":0");
    std::fs::write(case, old).unwrap();
    refused(&["--replay", case], &["case.json", "version 0"]);
}

#[test]
fn a_seed_of_another_configuration_is_refused() {
    let out = ok(&["--replay", "3", "--json"]);
    let v: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(v["case"]["seed"], 3);
    assert_eq!(ok(&["--replay", "3"]), ok(&["--replay", "3"]), "the same seed, the same trace");
    refused(&["--replay", "3:00000000"], &["another case", "00000000", "--grant"]);
    let drawn = v["case"]["node_faults"].as_array().map_or(0, Vec::len);
    assert_eq!(drawn, 0);
    let plain = out.lines().count();
    assert!(plain > 0);
    refused(&["--replay", "3", "--system", "all"], &["one seed of one system"]);
    refused(&["--replay", "/nowhere/case.json"], &["/nowhere/case.json"]);
    refused(&["--replay", "99999999999999999999"], &["no seed"]);
}

#[test]
fn histories_are_written_checked_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.jsonl");
    let at = path.to_str().unwrap();
    ok(&["--replay", "2", "--history", at]);
    assert!(ok(&["--check-history", at]).contains("linearizable"), "{at}");
    let good = std::fs::read_to_string(&path).unwrap();
    // A read that finds nothing finds a value that no client wrote.
    let absent = "{\"found\":null}";
    let wrong = good.replacen(absent, "{\"found\":12345}", 1);
    assert_ne!(good, wrong);
    std::fs::write(&path, wrong).unwrap();
    let o = run(&["--check-history", at]);
    assert_eq!(o.status.code(), Some(1), "{}", text(&o.stderr));
    assert!(text(&o.stdout).contains("violation: key"), "{}", text(&o.stdout));
    let lines: Vec<&str> = good.lines().collect();
    std::fs::write(&path, lines[..10].join("\n")).unwrap();
    refused(&["--check-history", at], &["h.jsonl", "line 11", "truncated"]);
    std::fs::write(&path, good.replacen("\"version\":1", "\"version\":7", 1)).unwrap();
    refused(&["--check-history", at], &["line 1", "version 7"]);
}

#[test]
fn bad_input_is_status_2() {
    refused(&["--node-faults", "x"], &["crash", "all"]);
    refused(&["--seeds", "9..9"], &["0..200"]);
    refused(&["--seeds", "x"], &["0..200"]);
    refused(&["--system", "x"], &["unknown system", "dmtree-published"]);
    refused(&["--grant", "x", "--seeds", "0..1"], &["line_atomic"]);
    refused(&["--minutes=-1"], &["--minutes"]);
    refused(&["--check-history", "/nowhere"], &["/nowhere"]);
    refused(&["--history", "x"], &["--replay"]);
}

#[test]
fn a_former_name_is_refused_with_the_present_one() {
    refused(&["--faults", "all", "--seeds", "0..1"], &["--node-faults"]);
    refused(&["--node-faults", "lives", "--seeds", "0..1"], &["restarts"]);
}
