//! `--log` of memory and compute nodes.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::common::has;
use crate::harness::{PATIENCE, Process, compute, first_node, found, run, within};
use crate::keys::new_keys;

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

/// Verbs at a memory node that stands still.
#[test]
fn slow_operations_are_logged() {
    let (memory, at) = found(&["--memory-bytes", "64MiB"]);
    let log = ["--log", "json", "--slow-ms", "50"];
    let mut shell = Process::start(&[&["shell", "--connect", &at][..], &log].concat());
    assert_eq!(shell.ask("put key value"), "done");
    assert_eq!(events(&shell).iter().filter(|(kind, _)| kind == "slow").count(), 0);
    let is_slow = |(kind, what): &(String, String)| kind == "slow" && what.contains("mn0: verbs");
    // A machine with other work may let the shell begin its write behind the pause.
    within(PATIENCE, || {
        memory.signal("-STOP");
        shell.say("put key other");
        std::thread::sleep(Duration::from_millis(300));
        memory.signal("-CONT");
        assert_eq!(shell.line(), "done");
        let all = events(&shell);
        all.iter().any(is_slow).then_some(()).ok_or_else(|| format!("no slow verbs in {all:?}"))
    });
    has(&run(&["shell", "--slow-ms", "50"]).1, &["--log"]);
    has(&run(&["shell", "--log", "text", "--slow-ms", "0"]).1, &["0", "1..=3600000"]);
}

/// Peers without keys, with those of another pool, and what is no process of dmtree.
#[test]
fn refused_peers_are_logged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (new_keys(folder.path(), "ours"), new_keys(folder.path(), "theirs"));
    let log = ["--memory-bytes", "64MiB", "--log", "json"];
    let (memory, at) = found(&[&["--key-file", &ours], &log[..]].concat());
    let why = "a peer at 127.0.0.1 is refused: ";
    assert!(run(&["shell", "--connect", &at]).0 != Some(0));
    expect(&memory, "refused", &format!("{why}127.0.0.1 has no keys"));
    assert!(run(&["shell", "--connect", &at, "--key-file", &theirs]).0 != Some(0));
    expect(&memory, "refused", &format!("{why}it has the keys of another pool"));
    let mut stranger = TcpStream::connect(&at).expect("connected");
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: dmtree\r\n\r\n").expect("sent");
    expect(&memory, "refused", &format!("{why}127.0.0.1 is no node of dmtree"));
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
