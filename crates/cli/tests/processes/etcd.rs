//! Pools with a membership in etcd, with real servers. Without `etcd` (Debian's `etcd-server`)
//! these tests say that they skip.
#![expect(clippy::disallowed_macros, reason = "a skip is loud")]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Process, compute, run, shell, within};
use crate::linear::clients;

/// Servers of one etcd cluster, with their data in a folder that goes with them.
pub struct Etcd {
    servers: Vec<(Child, Vec<String>, String)>,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// So many servers; `None`, said loudly, where there is no etcd.
    pub fn start(count: usize) -> Option<Self> {
        Self::start_at("127.0.0.1", count)
    }

    /// A port that was free may be taken before a server listens there: others are tried.
    fn start_at(host: &str, count: usize) -> Option<Self> {
        for _ in 0..5 {
            let mut etcd = Self::launch_at(host, count)?;
            if etcd.listens() {
                return Some(etcd);
            }
        }
        panic!("no ports for etcd");
    }

    /// Whether all servers listen; false when one has ended.
    fn listens(&mut self) -> bool {
        within(PATIENCE, || {
            if self.servers.iter_mut().any(|(c, ..)| c.try_wait().expect("a child").is_some()) {
                return Ok(false);
            }
            let all = self.servers.iter().all(|(.., at)| TcpStream::connect(at).is_ok());
            all.then_some(true).ok_or_else(|| "etcd does not listen".to_owned())
        })
    }

    fn launch_at(host: &str, count: usize) -> Option<Self> {
        let data = tempfile::tempdir().expect("a folder");
        let url = || {
            let listener = TcpListener::bind((host, 0)).expect("a port");
            format!("http://{}", listener.local_addr().expect("bound"))
        };
        let ports: Vec<[String; 2]> = (0..count).map(|_| [url(), url()]).collect();
        let peers = ports.iter().enumerate().map(|(n, [_, peer])| format!("s{n}={peer}"));
        let cluster = peers.collect::<Vec<_>>().join(",");
        let mut servers = Vec::new();
        for (n, [client, peer]) in ports.iter().enumerate() {
            let folder = data.path().join(n.to_string());
            let arguments = [
                ["--name", &format!("s{n}")],
                ["--data-dir", folder.to_str().expect("text")],
                ["--log-level", "error"],
                ["--listen-client-urls", client],
                ["--advertise-client-urls", client],
                ["--listen-peer-urls", peer],
                ["--initial-advertise-peer-urls", peer],
                ["--initial-cluster", &cluster],
            ];
            let arguments: Vec<String> = arguments.concat().iter().map(|s| s.to_string()).collect();
            let Some(child) = launch(&arguments) else {
                eprintln!("SKIPPED: there is no etcd here (Debian: apt-get install etcd-server)");
                return None;
            };
            servers.push((child, arguments, client.trim_start_matches("http://").to_owned()));
        }
        Some(Self { servers, _data: data })
    }

    pub fn pool(&self) -> String {
        let all: Vec<&str> = self.servers.iter().map(|(.., at)| at.as_str()).collect();
        format!("etcd://{}/pool", all.join(","))
    }

    fn signal(&self, server: usize, signal: &str) {
        let id = self.servers[server].0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }

    fn kill(&mut self, server: usize) {
        let _ = self.servers[server].0.kill();
        let _ = self.servers[server].0.wait();
    }

    fn restart(&mut self, server: usize) {
        self.kill(server);
        self.servers[server].0 = launch(&self.servers[server].1).expect("it was there");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.servers.len()).for_each(|n| self.kill(n));
    }
}

fn launch(arguments: &[String]) -> Option<Child> {
    let mut command = Command::new("etcd");
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().ok()
}

/// The first memory node of a pool in etcd. The servers of etcd take a moment to begin.
pub fn founded(arguments: &[&str]) -> Process {
    within(PATIENCE, || {
        let p = Process::start(arguments);
        match p.heard() {
            Some(line) if line.starts_with("mn0 ") => Ok(p),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Two memory nodes of a pool in etcd.
fn memory(pool: &str) -> [Process; 2] {
    let first = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
    let pair = ["--memory-nodes", "2", "--membership", pool, "--lease-ms", "2000"];
    let mn0 = founded(&[&first[..], &pair].concat());
    let mn1 = Process::start(&[&first[..], &["--join", pool]].concat());
    assert!(mn1.line().starts_with("mn1 "));
    [mn0, mn1]
}

/// Writes keys of a range until each is acknowledged.
fn write(p: &mut Process, keys: std::ops::Range<usize>) {
    keys.for_each(|i| p.until_done(&format!("put k{i:05} v{i}")));
}

fn check(p: &mut Process, keys: std::ops::Range<usize>) {
    for i in keys {
        within(PATIENCE, || match p.ask(&format!("get k{i:05}")) {
            answer if answer == format!("v{i}") => Ok(()),
            // A pair that is there is never said to be missing.
            answer if answer.starts_with("error") => Err(answer),
            answer => panic!("k{i:05}: {answer}"),
        });
    }
}

/// Compute processes are killed, and stand still beyond their leases; etcd is killed and started
/// again: nothing that was acknowledged is lost, and each goes on.
#[test]
fn a_pool_in_etcd_outlives_its_processes_and_restarts_of_etcd() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let pool = etcd.pool();
    let _memory = memory(&pool);
    let mut all: Vec<Process> = (0..3).map(|_| compute(&pool)).collect();
    for (n, p) in all.iter_mut().enumerate() {
        write(p, 100 * n..100 * n + 100);
    }
    // Killed: dead at once, since its host refuses connections.
    let began = Instant::now();
    all[2].kill();
    write(&mut all[0], 200..300);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    all[2] = shell(&pool);
    check(&mut all[2], 0..300);
    // It stands still beyond its lease, and joins again.
    all[1].pause(Duration::from_secs(5));
    write(&mut all[0], 300..330);
    write(&mut all[1], 330..360);
    // etcd ends and begins while all of them write.
    etcd.restart(0);
    for (n, p) in all.iter_mut().enumerate() {
        write(p, 400 + 100 * n..450 + 100 * n);
    }
    let mut newcomer = shell(&pool);
    for keys in [0..360, 400..450, 500..550, 600..650] {
        check(&mut newcomer, keys);
    }
    let (code, status) = run(&["status", "--connect", &pool]);
    assert!(code == Some(0) && status.contains("membership in etcd://"), "{status}");
}

/// Four processes share keys, while each thing happens that a cluster has to survive: the history
/// is linearizable, and those that live go on.
#[test]
fn what_processes_see_is_linearizable_whatever_fails() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let pool = etcd.pool();
    let _memory = memory(&pool);
    let second = Duration::from_secs(1);
    let (operations, after) = clients(&pool, 4, |ids| {
        let signal = |n: usize, signal: &str| {
            let id = ids[n].to_string();
            assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
        };
        std::thread::sleep(second);
        signal(1, "-STOP");
        std::thread::sleep(4 * second);
        signal(1, "-CONT");
        std::thread::sleep(second);
        etcd.restart(0);
        std::thread::sleep(2 * second);
        signal(2, "-KILL");
        std::thread::sleep(2 * second);
        etcd.signal(0, "-STOP");
        std::thread::sleep(4 * second);
        etcd.signal(0, "-CONT");
        // Operations that were cut end at their deadlines, after ten seconds.
        std::thread::sleep(12 * second);
    });
    assert!(operations > 500 && after > 100, "{operations} operations, {after} at the end");
}

/// Without etcd gets and writes go on until leases end, and fail with its name then; when it is
/// back, the same processes go on.
#[test]
fn etcd_may_be_away() {
    let Some(etcd) = Etcd::start(1) else { return };
    let pool = etcd.pool();
    let _memory = memory(&pool);
    let mut a = compute(&pool);
    write(&mut a, 0..50);
    let incarnation = |p: &mut Process| p.notes().iter().filter(|n| n.contains("joined")).count();
    let before = incarnation(&mut a);
    etcd.signal(0, "-STOP");
    write(&mut a, 50..60);
    let named = within(PATIENCE, || match a.ask("put k00000 v0") {
        answer if answer.contains("etcd") => Ok(answer),
        answer => Err(answer),
    });
    assert!(named.starts_with("error"), "{named}");
    etcd.signal(0, "-CONT");
    write(&mut a, 60..100);
    check(&mut a, 0..100);
    assert_eq!(incarnation(&mut a), before, "{:?}", a.notes());
}

/// One of three servers is killed: no operation fails.
#[test]
fn one_of_three_servers_may_be_lost() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let pool = etcd.pool();
    let _memory = memory(&pool);
    let mut all: Vec<Process> = (0..2).map(|_| compute(&pool)).collect();
    for server in 0..2 {
        for (n, p) in all.iter_mut().enumerate() {
            write(p, 1_000 * server + 100 * n..1_000 * server + 100 * n + 50);
        }
        match server {
            0 => etcd.kill(0),
            // Its place is taken again; then another one is lost.
            _ => {
                etcd.restart(0);
                std::thread::sleep(Duration::from_secs(3));
                etcd.kill(1);
            }
        }
        for (n, p) in all.iter_mut().enumerate() {
            write(p, 1_000 * server + 100 * n + 50..1_000 * server + 100 * n + 100);
        }
    }
    let mut newcomer = shell(&pool);
    for first in [0, 1_000] {
        check(&mut newcomer, first..first + 200);
    }
}

/// A machine of its own for a process: a network namespace with one link to this one.
struct Machine {
    name: String,
    /// The addresses of this machine, and of the other one.
    hosts: [String; 2],
}

impl Machine {
    /// `None`, said loudly, where no namespace can be made.
    fn new() -> Option<Self> {
        let number = std::process::id() % 250;
        let name = format!("dm{number}");
        let hosts = [1, 2].map(|n| format!("10.213.{number}.{n}"));
        let this = Self { name, hosts };
        let (here, there) = (this.link(), format!("{}t", this.name));
        let at = |host: &str| format!("{host}/24");
        let done = ip(&["netns", "add", &this.name])
            && ip(&["link", "add", &here, "type", "veth", "peer", "name", &there])
            && ip(&["link", "set", &there, "netns", &this.name])
            && ip(&["addr", "add", &at(&this.hosts[0]), "dev", &here])
            && ip(&["-n", &this.name, "addr", "add", &at(&this.hosts[1]), "dev", &there])
            && ip(&["link", "set", &here, "up"])
            && ip(&["-n", &this.name, "link", "set", &there, "up"])
            && ip(&["-n", &this.name, "link", "set", "lo", "up"]);
        if !done {
            eprintln!(
                "SKIPPED: this machine makes no network namespaces (it takes root, and `ip`)"
            );
        }
        done.then_some(this)
    }

    fn link(&self) -> String {
        format!("{}h", self.name)
    }

    fn shell(&self, pool: &str) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_dmtree"), "shell"]);
        command.args(["--connect", pool, "--insecure"]);
        Process::of(command)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The link goes with its namespace.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    let done = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// The link of a process is cut for longer than its lease: it is dead to the others, which go on,
/// and joins again when the link is back.
#[test]
fn a_link_may_be_cut() {
    let Some(machine) = Machine::new() else { return };
    let here = machine.hosts[0].clone();
    let Some(etcd) = Etcd::start_at(&here, 1) else { return };
    let pool = etcd.pool();
    let listen = format!("{here}:0");
    let found = ["memnode", "--listen", &listen, "--memory-bytes", "64MiB", "--insecure"];
    let kept = ["--membership", &pool, "--lease-ms", "2000"];
    let _mn0 = within(PATIENCE, || {
        let p = Process::start(&[&found[..], &kept].concat());
        match p.heard() {
            Some(line) if line.starts_with("mn0 ") => Ok(p),
            other => Err(format!("{other:?}")),
        }
    });
    let mut near = Process::start(&["shell", "--connect", &pool, "--insecure"]);
    let mut far = machine.shell(&pool);
    write(&mut near, 0..100);
    write(&mut far, 100..200);
    assert!(ip(&["link", "set", &machine.link(), "down"]));
    let began = Instant::now();
    write(&mut near, 50..150);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    std::thread::sleep(Duration::from_secs(5));
    assert!(ip(&["link", "set", &machine.link(), "up"]));
    write(&mut far, 200..220);
    check(&mut far, 0..220);
    check(&mut near, 0..220);
}

/// Settings and states that cannot be, each with a line and status 2.
#[test]
fn impossible_pools_in_etcd_are_refused() {
    let one = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
    let refused = |more: &[&str], words: &str| {
        let (code, text) = run(&[&one[..], more].concat());
        assert!(code == Some(2) && text.contains(words), "{more:?}: {code:?} {text}");
    };
    refused(&["--membership", "etcd://nowhere"], "etcd://HOST:PORT,HOST:PORT/POOL");
    refused(&["--membership", "127.0.0.1:1"], "is no place for a membership");
    refused(&["--membership", "etcd://127.0.0.1:1/p"], "does not answer");
    refused(&["--join", "etcd://127.0.0.1:1/p", "--wait", "1"], "does not answer");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let name = format!("file:{}", file.to_str().expect("text"));
    refused(&["--join", &name], "No such file");
    std::fs::write(&file, "memory = 3").expect("room");
    refused(&["--join", &name], "cluster.toml");
    std::fs::write(&file, "").expect("room");
    refused(&["--join", &name], "names no node");
    std::fs::write(&file, "memory = [\"127.0.0.1:1\"]").expect("room");
    refused(&["--join", &name, "--wait", "1"], "127.0.0.1:1");
    let Some(etcd) = Etcd::start(1) else { return };
    let pool = etcd.pool();
    refused(&["--join", &pool, "--wait", "1"], "has no pool \"pool\"");
    let _memory = memory(&pool);
    refused(&["--membership", &pool], "has a pool \"pool\" already");
    refused(&["--membership", &pool, "--anew"], "hold leases");
    std::fs::write(&file, format!("membership = \"{pool}\"")).expect("room");
    let mut by_file = shell(&name);
    assert_eq!(by_file.ask("put a 1"), "done");
}
