//! The tree that memory nodes execute: a client, and a memory node, are killed.

use std::time::Duration;

use crate::harness::{Process, found, two_memory_nodes};

/// Less than a lease: nothing has to be recovered.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A compute process with an index of this name.
fn client(at: &str, index: &str) -> Process {
    let mut p = Process::start(&["shell", "--connect", at, "--system", "rpc", "--index", index]);
    assert_eq!(p.ask("put ready yes"), "done");
    p
}

#[test]
fn a_killed_client_leaves_whole_writes_and_nothing_to_recover() {
    let (_mn, at) = found(&["--memory-bytes", "64MiB", "--cores", "2"]);
    let (mut first, mut second) = (client(&at, "tree"), client(&at, "tree"));
    for i in 0..300 {
        assert_eq!(first.ask(&format!("put k{i:03} v{i}")), "done");
    }
    first.say("put last whole");
    first.kill();
    for i in 0..300 {
        let (value, took) = second.timed(&format!("get k{i:03}"));
        assert_eq!(value, format!("v{i}"));
        assert!(took < AT_ONCE, "{took:?}");
    }
    let (last, absent) = (second.ask("get last"), second.ask("get nothing"));
    assert!(last == "whole" || last == absent, "{last}");
    for i in 0..300 {
        let (done, took) = second.timed(&format!("put k{i:03} w"));
        assert!(done == "done" && took < AT_ONCE, "{done} after {took:?}");
    }
}

#[test]
fn a_killed_memory_node_takes_its_trees_only() {
    let ([_first, mut second], at) = two_memory_nodes();
    let mut both = [client(&at, "one"), client(&at, "two")];
    second.kill();
    std::thread::sleep(crate::harness::leases(3));
    let answers = both.each_mut().map(|p| p.timed("put ready no"));
    assert!(answers.iter().all(|(_, took)| *took < AT_ONCE), "{answers:?}");
    let fails = |i: usize| answers[i].0.contains("mn1");
    assert!(fails(0) != fails(1), "one tree is on each memory node: {answers:?}");
    assert_eq!(answers[usize::from(fails(0))].0, "done");
}
