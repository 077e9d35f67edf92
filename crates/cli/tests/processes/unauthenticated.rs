//! The effects of a peer that is no process of the pool: it connects, and sends nothing.

use std::net::TcpStream;
use std::time::Duration;

use crate::harness::{PATIENCE, Process, compute, memnode, within};

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
