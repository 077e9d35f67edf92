//! `--log` of memory and compute nodes.

use serde_json::Value;

use crate::common::has;
use crate::harness::{PATIENCE, Process, compute, first_node, found, run, within};

/// The events of a process so far: kinds and messages.
fn events(process: &Process) -> Vec<(String, String)> {
    let notes = process.notes();
    let lines = notes.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    lines.map(|v| (text(&v["fields"]["event"]), text(&v["fields"]["message"]))).collect()
}

fn expect(process: &Process, kind: &str, words: &str) {
    within(PATIENCE, || {
        let all = events(process);
        let is_there = all.iter().any(|(k, message)| k == kind && message.contains(words));
        is_there.then_some(()).ok_or_else(|| format!("no {kind} {words:?} in {all:?}"))
    });
}

/// Joins, each step of a death, and tables that move.
#[test]
fn nodes_log_rare_events() {
    let (memory, at) = found(&["--memory-bytes", "64MiB", "--log", "json"]);
    let node = first_node(&at, &["--log", "json"]);
    let mut shell = compute(&at);
    expect(&node, "membership", "cn1 (incarnation 1): living");
    for i in 0..200 {
        assert_eq!(shell.ask(&format!("put key{i} value")), "done");
    }
    shell.kill();
    for step in ["being revoked", "being drained", "get new owners", ": gone"] {
        expect(&node, "membership", step);
    }
    expect(&node, "move", "goes from cn1 to cn0");
    expect(&memory, "membership", "its process has ended");
    has(&run(&["node", "--connect", &at, "--log", "xml"]).1, &["xml", "text", "json"]);
    assert_eq!(events(&memory).iter().filter(|(kind, _)| kind.is_empty()).count(), 0);
}
