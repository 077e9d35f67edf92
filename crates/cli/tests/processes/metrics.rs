//! `--metrics` of memory and compute nodes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::has;
use crate::harness::{Process, compute, first_node, found, run, within};

/// What is said at a path.
fn said(at: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    // A peer that reads no further closes the connection.
    let _ = stream.write_all(request.as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

fn get(at: &str, path: &str) -> String {
    said(at, &format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
}

/// Where a process says that it has metrics.
fn address(process: &Process) -> String {
    let line = within(Duration::from_secs(20), || {
        let notes = process.notes();
        notes
            .iter()
            .find_map(|line| line.strip_prefix("metrics at http://"))
            .map_or_else(|| Err(format!("{notes:?}")), |line| Ok(line.to_owned()))
    });
    line.trim_end_matches("/metrics").to_owned()
}

/// The names of families in a text, as their help says.
fn families(text: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.strip_prefix("# HELP ")?.split(' ').next()?.to_owned());
    text.lines().filter_map(name).collect()
}

fn pool() -> (Process, Process, String, [String; 2]) {
    let (memory, at) = found(&["--memory-bytes", "64MiB", "--metrics", "127.0.0.1:0"]);
    let node = first_node(&at, &["--metrics", "127.0.0.1:0"]);
    let metrics = [address(&memory), address(&node)];
    (memory, node, at, metrics)
}

#[test]
fn nodes_say_what_they_do() {
    let (memory, mut node, at, [of_memory, of_node]) = pool();
    let mut shell = compute(&at);
    let text = get(&of_memory, "/metrics");
    has(
        &text,
        &[
            "HTTP/1.1 200 OK",
            "dmtree_node_info{",
            "node=\"mn0\"",
            "dmtree_memory_bytes{state=\"used\"}",
            "dmtree_pool_memory_nodes{what=\"ready\"} 1",
            "dmtree_pool_member{node=\"cn1\",standing=\"living\"} 1",
            "dmtree_pool_lease_seconds{node=\"cn0\"}",
        ],
    );
    has(&get(&of_node, "/metrics"), &["dmtree_compute_serves_tables 1", "node=\"cn0\""]);
    has(&get(&of_memory, "/health"), &["200 OK", "mn0 serves"]);
    let text = get(&of_node, "/status.json");
    let body = text.split("\r\n\r\n").nth(1).expect("a body");
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(json["node"], "cn0", "{json}");

    // Whatever else connects is answered shortly, or not at all.
    has(&get(&of_node, "/"), &["404", "/metrics"]);
    has(&said(&of_node, "POST /metrics HTTP/1.1\r\n\r\n"), &["405"]);
    let began = Instant::now();
    for request in ["", "GET", "\0\u{1}", &"x".repeat(100_000)] {
        assert_eq!(said(&of_node, request), "", "{request:.20}");
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    has(&get(&of_node, "/metrics"), &["200 OK"]);

    let taken = run(&["node", "--connect", &at, "--metrics", &of_memory]);
    assert_eq!(taken.0, Some(2), "{}", taken.1);
    has(&taken.1, &["--metrics", "in use"]);
    assert_eq!(shell.ask("put a 1"), "done");
    node.signal("-TERM");
    assert!(node.child.wait().expect("it ends").success());
    drop(memory);
}

/// Every name is on the dashboard and in the documentation, `promtool` accepts the text.
#[test]
#[expect(clippy::disallowed_macros, reason = "it says what it skips")]
fn metrics_are_documented() {
    let (_memory, _node, _at, [of_memory, of_node]) = pool();
    let embedded = dmtree::Pool::embedded().memory("8MiB").open().expect("opened");
    let index = embedded.create("users", dmtree::Options::default()).expect("new");
    // Until something waits: every family has a value then.
    let waits = || index.stats().expect("stats").costs.waits.by_reason().next().is_some();
    while !waits() {
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| (0..1_000).for_each(|_| _ = index.put("a", "b")));
            }
        });
    }
    let body = |text: String| text.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
    let texts = [
        body(get(&of_memory, "/metrics")),
        body(get(&of_node, "/metrics")),
        embedded.metrics().expect("a text"),
    ];
    has(
        &texts[2],
        &[
            "dmtree_index_operations_total{index=\"users\",operation=\"put\",outcome=\"done\"} ",
            "dmtree_index_operation_seconds_bucket{index=\"users\",operation=\"put\",le=",
            "dmtree_index_operation_seconds_count{index=\"users\",operation=\"put\"} ",
            "dmtree_index_wait_seconds_total{index=\"users\",what=",
        ],
    );
    let all: BTreeSet<_> = texts.iter().flat_map(|text| families(text)).collect();
    assert!(all.len() > 20, "{all:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for place in ["deploy/grafana.json", "docs/operation.md"] {
        let text = std::fs::read_to_string(root.join(place)).expect(place);
        for name in &all {
            assert!(text.contains(name), "{name} is not in {place}");
        }
    }
    for text in texts {
        let mut check = Command::new("promtool");
        check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = check.stderr(Stdio::piped()).spawn() else {
            eprintln!("SKIPPED: promtool is not there (Debian: prometheus)");
            return;
        };
        child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
        let out = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stdout));
    }
}
