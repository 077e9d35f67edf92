//! The effects of a peer that is no process of the pool: it connects, sends nothing, or occupies an
//! address.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Process, compute, found, memnode, run, within};

/// The addresses at which a process listens, as the system lists them.
fn listens(p: &Process) -> Vec<String> {
    let folder = format!("/proc/{}/fd", p.child.id());
    let links = std::fs::read_dir(folder).expect("Linux").filter_map(Result::ok);
    let sockets: Vec<String> = { links }
        .filter_map(|link| std::fs::read_link(link.path()).ok())
        .filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').into()))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let rows = table.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let listening = rows.filter(|row| row[3] == "0A" && sockets.iter().any(|s| s == row[9]));
    listening.map(|row| row[1].to_owned()).collect()
}

/// Without a key a process listens on loopback only, and explains what another address needs.
#[test]
fn without_a_key_only_loopback_is_served() {
    let (mn, at) = memnode();
    let a = compute(&at);
    for (name, p) in [("memory node", &mn), ("compute process", &a)] {
        let all = listens(p);
        assert!(!all.is_empty(), "{name}");
        assert!(all.iter().all(|at| at.starts_with("0100007F:")), "{name}: {all:?}");
    }
    let mut open = Process::start(&["memnode", "--listen", "0.0.0.0:0", "--memory-bytes", "64MiB"]);
    let line = open.line();
    open.kill();
    assert!(line.starts_with("error"), "{line}");
    assert!(line.contains("--key-file") && line.contains("--insecure"), "{line}");
}

/// Peers that connect and send nothing cost no threads and few descriptors, and are disconnected in
/// time.
#[test]
fn idle_peers_are_bounded() {
    const PEERS: usize = 400;
    let (mn, at) = memnode();
    let mut other = compute(&at);
    let (threads, descriptors) = (mn.status("Threads"), mn.descriptors());
    let peers: Vec<_> = (0..PEERS).map(|_| TcpStream::connect(&at)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let more = mn.status("Threads").saturating_sub(threads);
    assert!(more < 16, "{more} threads for {PEERS} idle peers");
    assert_eq!(other.ask("put k v"), "done");
    within(PATIENCE, || {
        let more = mn.descriptors().saturating_sub(descriptors);
        (more < PEERS / 4).then_some(()).ok_or_else(|| format!("{more} descriptors are kept"))
    });
    drop(peers);
}

/// A black hole: it listens, and never completes a connection.
struct BlackHole {
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

fn black_hole(at: &str) -> BlackHole {
    let listener = within(PATIENCE, || TcpListener::bind(at).map_err(|e| e.to_string()));
    let address = listener.local_addr().expect("it is bound");
    let mut queued = Vec::new();
    // Nothing is accepted: when the queue is full, the system does not answer any more.
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        queued.push(stream);
    }
    BlackHole { _listener: listener, _queued: queued }
}

/// A memory node is gone, and something that does not answer has its address: operations end within
/// their deadline.
#[test]
fn a_black_hole_costs_an_operation_its_deadline_at_most() {
    let (mut mn, at) = found(&["--memory-bytes", "64MiB"]);
    let mut a = compute(&at);
    mn.kill();
    let _hole = black_hole(&at);
    let in_time = |began: Instant| {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            let (status, said) = run(&["shell", "--connect", &at]);
            assert_eq!(status, Some(2), "a start: {said}");
            in_time(began);
        });
        for _ in 0..2 {
            let began = Instant::now();
            let answer = a.ask("get ready");
            assert!(answer.starts_with("error"), "{answer}");
            in_time(began);
        }
    });
}
