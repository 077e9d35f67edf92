//! Real processes: a memory node, compute nodes that share an index on it, and what is left when one of them is killed.
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// The binary: another one than cargo's where it is given.
fn binary() -> String {
    std::env::var("DMTREE_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_dmtree").to_owned())
}

/// What carries verbs: tcp, or verbs where there is an RDMA device.
fn fabric() -> String {
    std::env::var("DMTREE_TEST_FABRIC").unwrap_or_else(|_| "tcp".to_owned())
}

/// Leases; longer where everything takes longer.
fn lease_ms() -> u64 {
    if fabric() == "tcp" { 300 } else { 1_500 }
}

/// A process whose lines can be waited for; killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let (to, lines) = channel();
        let out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let all: [Box<dyn std::io::Read + Send>; 2] = [Box::new(out), Box::new(err)];
        for stream in all {
            let to = to.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if to.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let input = child.stdin.take().expect("piped");
        Self { child, input, lines }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    fn line(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("nothing said for {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }
}

/// A memory node, and where it listens.
fn memnode() -> (Process, String) {
    memnode_at("127.0.0.1:0")
}

fn memnode_at(listen: &str) -> (Process, String) {
    let (lease, fabric) = (lease_ms().to_string(), fabric());
    let args = ["--listen", listen, "--memory-bytes", "64MiB", "--fabric", &fabric];
    let p = Process::start(&[&["memnode", "--lease-ms", &lease][..], &args].concat());
    let line = p.line();
    let at = line.split(" at ").nth(1).and_then(|l| l.split(';').next()).expect("an address");
    (p, at.to_string())
}

fn compute(at: &str) -> Process {
    let mut p = Process::start(&["shell", "--connect", at]);
    assert_eq!(p.ask("put ready yes"), "done");
    p
}

#[test]
fn what_one_process_writes_another_reads() {
    let (_mn, at) = memnode();
    let (mut a, mut b) = (compute(&at), compute(&at));
    assert_eq!(a.ask("put ada 1815"), "done");
    assert_eq!(b.ask("get ada"), "1815");
    assert_eq!(b.ask("cas ada 1815 1852"), "done");
    assert_eq!(a.ask("get ada"), "1852");
    assert_eq!(b.ask("delete ada"), "done");
    assert_eq!(a.ask("get ada"), "not found");
    // One that leaves in good order leaves its tables to the others.
    a.say("quit");
    let began = Instant::now();
    while a.child.try_wait().expect("a child").is_none() {
        assert!(began.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    for i in 0..100 {
        assert_eq!(b.ask(&format!("put after{i} x")), "done");
    }
}

/// Acknowledged writes survive the process that made them, whenever it is killed; the others go on, on the same leaves too.
#[test]
fn a_process_that_is_killed_while_it_writes_loses_nothing_acknowledged() {
    let (_mn, at) = memnode();
    let mut survivor = compute(&at);
    // A verb takes long where there is no NIC.
    let (rounds, keys) = if fabric() == "tcp" { (4, 3_000) } else { (3, 500) };
    for round in 0..rounds {
        let mut writer = compute(&at);
        let pause = Duration::from_millis(40 + 37 * round);
        let mut pipe = std::mem::replace(&mut writer.input, null_input());
        let feeder = std::thread::spawn(move || {
            for i in 0..200_000 {
                if writeln!(pipe, "put key{:05} v{round}-{i}", i % keys).is_err() {
                    return;
                }
            }
        });
        // In the middle of its writes, however long it takes to begin.
        assert_eq!(writer.line(), "done");
        std::thread::sleep(pause);
        writer.kill();
        feeder.join().expect("ends when the pipe breaks");
        let mut acknowledged = 1;
        while let Ok(line) = writer.lines.recv_timeout(PATIENCE) {
            assert_eq!(line, "done");
            acknowledged += 1;
        }
        let first = acknowledged - acknowledged.min(keys);
        for i in first..acknowledged {
            let found = survivor.ask(&format!("get key{:05}", i % keys));
            let written = |i: i32| found == format!("v{round}-{i}");
            // The one after the last acknowledged may have happened, too.
            assert!(
                written(i) || (i + keys == acknowledged && written(acknowledged)),
                "{i}: {found}"
            );
        }
        for i in 0..keys {
            assert_eq!(survivor.ask(&format!("put key{i:05} x")), "done", "key{i}");
        }
    }
    let count = survivor.ask("scan zzz *");
    assert_eq!(count, "(0)");
}

/// The pipe of a process that ends at once.
fn null_input() -> ChildStdin {
    let mut child = Command::new("true").stdin(Stdio::piped()).spawn().expect("true");
    let input = child.stdin.take().expect("piped");
    let _ = child.wait();
    input
}

/// A process that stands still for longer than its lease is dead to the others, and says so when it goes on.
#[test]
fn a_process_that_hangs_is_fenced_and_learns_of_it() {
    let (_mn, at) = memnode();
    let (mut a, mut b) = (compute(&at), compute(&at));
    for i in 0..200 {
        assert_eq!(a.ask(&format!("put k{i} a")), "done");
    }
    a.signal("-STOP");
    for i in 0..200 {
        assert_eq!(
            b.ask(&format!("put k{i} b")),
            "done",
            "writes go on without the one that hangs"
        );
    }
    std::thread::sleep(Duration::from_millis(lease_ms() * 2 + 100));
    assert_eq!(b.ask("put late b"), "done");
    a.signal("-CONT");
    let began = Instant::now();
    loop {
        let answer = a.ask("put k0 zombie");
        assert_ne!(answer, "done", "a zombie wrote");
        if answer.contains("lease") || answer.contains("lost its membership") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{answer}");
    }
    assert_eq!(b.ask("get k0"), "b");
}

#[test]
fn what_cannot_be_is_said_with_a_way_out() {
    let run = |args: &[&str]| {
        let out = Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("runs");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (_mn, at) = memnode();
    for (args, words) in [
        (vec!["memnode", "--listen", at.as_str()], "give another address or port"),
        (vec!["memnode", "--listen", "nowhere"], "cannot listen"),
        (vec!["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "1KiB"], "too little"),
        (vec!["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "8TiB"], "ask for a smaller"),
        (
            vec!["memnode", "--join", at.as_str(), "--listen", "127.0.0.1:0", "--wait", "1"],
            "all have been there",
        ),
        (vec!["shell", "--connect", "127.0.0.1:1"], "nobody listens there"),
        (vec!["bench", "quick", "--nodes", at.as_str()], "--fabric tcp"),
        (vec!["bench", "quick", "--device", "rxe0"], "give --fabric verbs"),
        (vec!["memnode", "--fabric", "sim", "--listen", "127.0.0.1:0"], "give tcp or verbs"),
        (vec!["conform", "--system", "none"], "unknown system"),
    ] {
        let (code, text) = run(&args);
        assert!(code == Some(2) && text.contains(words), "{args:?}: {code:?} {text}");
    }
}

/// What a memory node held is lost with it: one that starts again at the same address is another pool, and whoever belonged to the old
/// one is told, with what to do.
#[test]
fn a_memory_node_that_comes_back_empty_is_refused() {
    let (mut mn, at) = memnode();
    let mut a = compute(&at);
    mn.kill();
    let _again = memnode_at(&at);
    let began = Instant::now();
    loop {
        let answer = a.ask("get ready");
        if answer.contains("another pool") && answer.contains("start its compute processes again") {
            break;
        }
        assert_ne!(answer, "yes", "memory of the dead");
        assert!(began.elapsed() < PATIENCE, "{answer}");
    }
    let mut b = compute(&at);
    assert_eq!(b.ask("get ready"), "yes", "the new pool works");
}

/// The cells of a small run of the bench.
fn cells(
    systems: &str,
    keys: &str,
    clients: (&str, &str),
    fabric: &[&str],
) -> Vec<serde_json::Value> {
    let args = ["bench", "quick", "--systems", systems, "--workloads", "search,update,insert"];
    let small = ["--distributions", "uniform", "--keys", keys, "--ops", "2000", "--cns", "2"];
    // Caches are warm however slow the machine is: what they miss is not what is compared.
    let small = [&small[..], &["--warmup", "60"]].concat();
    let more = ["--threads", clients.0, "--coroutines", clients.1, "--json", "-q"];
    let out = Command::new(binary())
        .args([&args[..], &small[..], &more, fabric].concat())
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let results: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let cells = results["cells"].as_array().expect("cells").clone();
    assert_eq!(cells.len(), 3 * systems.split(',').count());
    assert!(cells.iter().all(|c| c["errors"] == 0), "{cells:?}");
    cells
}

/// Those that bear several clients on any fabric.
const SOUND: &str = "dmtree,dmtree-tables-on-mn,dmtree-no-rtc";

/// One of each family.
const SYSTEMS: &str = "dmtree,fptree,dmtree-published,sherman-published";

/// A binary without the feature, and a machine without the library or a device, say so.
#[test]
fn rdma_that_is_not_there_is_said() {
    if fabric() == "verbs" {
        return;
    }
    for args in [
        &["memnode", "--fabric", "verbs", "--listen", "127.0.0.1:0"][..],
        &["bench", "quick", "--fabric", "verbs"],
        &["conform", "--fabric", "verbs"],
    ] {
        let out = Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("runs");
        let text = String::from_utf8_lossy(&out.stderr);
        let ways_out = ["--features verbs", "apt-get install", "modprobe", "rdma link add"];
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(ways_out.iter().any(|words| text.contains(words)), "{args:?}: {text}");
    }
}

/// The workloads of the bench run on processes, with every result checked, and one client posts the verbs that it posts in one
/// process, exactly.
#[test]
fn the_bench_runs_on_a_memory_node_of_its_own() {
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

/// Several clients get in each other's way, in one process or not: their verbs per operation are within 3 %, what they try again
/// (atomics beyond the others') included. Keys are many, for how often two meet is chance.
#[test]
#[expect(clippy::disallowed_macros, reason = "what differs")]
fn several_clients_post_nearly_the_verbs_of_one_process() {
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
    let out = Command::new(binary())
        .args([&["conform", "--fabric", &fabric()][..], &systems].concat())
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(said.matches("two processes").count(), 5, "{said}");
}
