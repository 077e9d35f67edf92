//! What an operator sees of a pool, and compute nodes without a program.

use std::time::Duration;

use serde_json::Value;

use crate::common::has;
use crate::harness::{
    PATIENCE, compute, first_node, leases, memnode, run, two_memory_nodes, within,
};

fn json(first: &str) -> Value {
    let (status, out) = run(&["status", "--connect", first, "--json"]);
    assert_eq!(status, Some(0), "{out}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn node<'v>(status: &'v Value, name: &str) -> &'v Value {
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().find(|n| n["node"] == name).unwrap_or_else(|| panic!("no {name} in {status}"))
}

#[test]
fn a_pool_says_how_it_does() {
    let ([_first, mut second], at) = two_memory_nodes();
    let mut shell = compute(&at);
    for i in 0..100 {
        assert_eq!(shell.ask(&format!("put key{i} value")), "done");
    }
    let status = json(&at);
    assert_eq!((&status["memory_nodes"], &status["ready_memory_nodes"]), (&2.into(), &2.into()));
    let mut all_used = 0;
    for name in ["mn0", "mn1"] {
        let memory = node(&status, name);
        assert_eq!(memory["standing"], "present", "{memory}");
        let used = memory["report"]["memory"]["used_bytes"].as_u64().expect("a number");
        let total = memory["report"]["memory"]["total_bytes"].as_u64().expect("a number");
        assert!(used <= total && total < 64 << 20, "{memory}");
        all_used += used;
    }
    assert!(all_used > 0);
    let cn0 = node(&status, "cn0");
    assert_eq!((&cn0["standing"], &cn0["incarnation"]), (&"living".into(), &1.into()));
    assert!(cn0["lease_ms"].as_u64().is_some_and(|ms| ms <= 10_000), "{cn0}");
    let index = &cn0["report"]["indexes"][0];
    assert_eq!(index["name"], "shell", "{cn0}");
    // One more was to see that it works.
    assert_eq!(index["operations"]["put"]["done"], 101, "{index}");
    // The 65th operation was timed.
    assert_eq!(index["latencies"]["put"]["counts"].as_array().map(Vec::len), Some(28), "{index}");
    assert!(cn0["report"]["partitions"].as_u64().is_some_and(|n| n > 0), "{cn0}");
    let (code, text) = run(&["status", "--connect", &at]);
    assert_eq!(code, Some(0), "{text}");
    has(&text, &["partitions of tables", "shell on cn0: latency below, half and 99 %: put "]);
    has(&text, &["2 of 2 memory nodes, 1 of", "mn0", "present", "cn0", "living", "shell"]);
    let (code, text) = run(&["top", "--connect", &at, "--count", "2"]);
    assert_eq!(code, Some(0), "{text}");
    has(&text, &["operations", "per second"]);

    // Only the first memory node knows the pool; a node that is lost is named.
    let other = node(&status, "cn0")["address"].as_str().expect("an address").to_owned();
    let (code, text) = run(&["status", "--connect", &other]);
    assert_eq!(code, Some(2), "{text}");
    has(&text, &["is cn0", "ask that one"]);
    second.kill();
    let text = within(leases(40) + Duration::from_secs(5), || {
        let (code, text) = run(&["status", "--connect", &at]);
        if code == Some(1) { Ok(text) } else { Err(text) }
    });
    has(&text, &["mn1 is"]);
    let (code, text) = run(&["status", "--connect", "127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{text}");
    has(&text, &["no process listens there"]);
}

#[test]
fn a_compute_node_without_a_program_serves_and_leaves() {
    let (_first, at) = memnode();
    let mut node_process = first_node(&at, &[]);
    let mut shell = compute(&at);
    for i in 0..200 {
        assert_eq!(shell.ask(&format!("put key{i} value")), "done");
    }
    let status = json(&at);
    assert_eq!(node(&status, "cn0")["report"]["compute"]["serves_tables"], true);
    assert_eq!(node(&status, "cn1")["standing"], "living");
    // It hands its share over: nothing is lost, and no lease has to end.
    node_process.signal("-TERM");
    assert!(node_process.child.wait().expect("it ends").success());
    for i in 0..200 {
        assert_eq!(shell.ask(&format!("get key{i}")), "value");
    }
    // The others acknowledge that it is gone.
    within(leases(10) + Duration::from_secs(5), || {
        let status = json(&at);
        let is_there =
            status["nodes"].as_array().expect("nodes").iter().any(|n| n["node"] == "cn0");
        if is_there { Err(status.to_string()) } else { Ok(()) }
    });
    shell.quit();
}

/// A node that an operator drains ends by itself, and its tables have another owner then; what
/// cannot leave says why.
#[test]
fn a_drained_compute_node_leaves() {
    let (_mn, at) = memnode();
    let mut node = first_node(&at, &[]);
    let drain =
        |node: &str, more: &[&str]| run(&[&["drain", node, "--connect", &at][..], more].concat());
    let refused = |node: &str, words: &[&str]| {
        let (status, out) = drain(node, &[]);
        assert_eq!(status, Some(2), "{out}");
        has(&out, words);
    };
    refused("cn0", &["cn0 is the last compute node"]);
    let mut shell = compute(&at);
    assert_eq!(shell.ask("put ada 1815"), "done");
    refused("mn0", &["mn0 keeps data", "compute nodes can leave"]);
    refused("cn9", &["no compute node \"cn9\"", "cn0, cn1"]);
    let (status, out) = drain("cn1", &["--wait", "1"]);
    assert_eq!(status, Some(1), "a shell does not look: {out}");
    has(&out, &["cn1", "is living after 1 s", "is_asked_to_leave"]);
    has(&run(&["status", "--connect", &at]).1, &["living, asked to leave"]);

    let (status, out) = drain("cn0", &[]);
    assert_eq!(status, Some(0), "{out}");
    has(&out, &["cn0", "has left the pool"]);
    let status = within(PATIENCE, || {
        node.child.try_wait().expect("a child").ok_or_else(|| "it has not ended".to_owned())
    });
    assert!(status.success(), "{status}");
    assert_eq!(shell.ask("get ada"), "1815");
    assert_eq!(shell.ask("put ada 1852"), "done");
    refused("cn0", &["no compute node \"cn0\"", "cn1"]);
}
