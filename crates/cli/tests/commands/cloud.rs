//! Checkpoints in an object store: moto's server from PyPI stands for S3.
//!
//! `pip install 'moto[server]'`, then `cargo test -p dmtree-cli --features cloud --test commands
//! cloud`; `DMTREE_TEST_MOTO` is the path of `moto_server` where it is not on the path of the
//! shell.
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]
#![expect(clippy::disallowed_macros, reason = "it says what it skips")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{has, said};
use dmtree::{LoadOrder, Options, Pool};

const PAIRS: u64 = 30_000;

struct Store {
    server: Child,
    at: String,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Store {
    /// With a bucket `backups`; `None` when the server is not there.
    fn start() -> Option<Self> {
        let program = std::env::var("DMTREE_TEST_MOTO").unwrap_or_else(|_| "moto_server".into());
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
        let mut server = Command::new(program);
        server.args(["-H", "127.0.0.1", "-p", &free.port().to_string()]);
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let store = Self { server, at: free.to_string() };
        let began = Instant::now();
        while TcpStream::connect(&store.at).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not listen");
            std::thread::sleep(Duration::from_millis(100));
        }
        store.ask("PUT", "/backups");
        Some(store)
    }

    fn ask(&self, method: &str, path: &str) {
        let mut stream = TcpStream::connect(&self.at).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.at
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        run_at(&self.at, &[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")], arguments)
    }
}

fn run_at(at: &str, more: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = crate::common::dmtree(arguments);
    command.env("AWS_ENDPOINT", format!("http://{at}")).env("AWS_REGION", "us-east-1");
    command.envs(more.iter().copied());
    let out = command.output().expect("the binary");
    (out.status.code(), said(&out))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

#[test]
fn a_checkpoint_goes_to_a_store_and_comes_back() {
    let Some(store) = Store::start() else {
        eprintln!("SKIPPED: there is no moto_server (pip install 'moto[server]')");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let pool = Pool::embedded().memory("128MiB").durable(at("pool")).open().expect("opened");
    let index = pool.create("noise", Options::default()).expect("new");
    // More than a part of an object.
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (state >> 33) as u8
    };
    let value: Vec<Vec<u8>> = (0..PAIRS).map(|_| (0..400).map(|_| draw()).collect()).collect();
    let pairs = value.iter().zip(0u64..).map(|(v, i)| (i.to_be_bytes().to_vec(), v.clone()));
    index.load(pairs, LoadOrder::Sorted).expect("loaded");
    drop((index, pool));

    let source = at("pool");
    let checkpoint = |to: &str| store.run(&["checkpoint", "--durable", text(&source), "--to", to]);
    let (status, out) = checkpoint("s3://backups/monday");
    assert_eq!(status, Some(0), "{out}");
    has(&out, &["1 index with 30000 pairs written to s3://backups/monday"]);
    let (status, out) = checkpoint("s3://backups/monday");
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["there is a checkpoint already"]);

    let restore =
        |from: &str, to: &str| store.run(&["restore", "--durable", text(&at(to)), "--from", from]);
    let (status, out) = restore("s3://backups/monday", "restored");
    assert_eq!(status, Some(0), "{out}");
    let pool = Pool::embedded().memory("128MiB").durable(at("restored")).open().expect("opened");
    let found = pool.open("noise").expect("there").values().collect::<Result<Vec<_>, _>>();
    assert!(found.expect("a scan") == value);

    for (place, words) in [
        ("s3://backups/tuesday", "no MANIFEST.json"),
        ("s3://absent/monday", "no MANIFEST.json"),
        ("s3://backups", "name s3://BUCKET/PATH"),
    ] {
        let (status, out) = restore(place, "none");
        assert_eq!(status, Some(2), "{out}");
        has(&out, &[place, words]);
    }
    store.ask("DELETE", "/backups/monday/index-0-shard-0-0.parquet");
    let (status, out) = restore("s3://backups/monday", "none");
    assert_ne!(status, Some(0), "{out}");
    has(&out, &["index-0-shard-0-0.parquet: it is missing"]);

    let arguments = ["checkpoint", "--durable", text(&source), "--to", "s3://backups/friday"];
    let (status, out) = run_at(&store.at, &[], &arguments);
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["there are no credentials", "AWS_ACCESS_KEY_ID"]);
    let began = Instant::now();
    let (status, out) = run_at(
        "127.0.0.1:1",
        &[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")],
        &arguments,
    );
    assert_ne!(status, Some(0), "{out}");
    has(&out, &["the object store"]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// A process of a pool; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Starts it, and reads its first line.
    fn start(arguments: &[&str]) -> (Self, String) {
        let mut command = crate::common::dmtree(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Self(command.spawn().expect("the binary"));
        let mut line = String::new();
        let out = server.0.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        (server, line)
    }

    /// Two memory nodes, and journal nodes over these directories.
    fn pool(journals: &[PathBuf]) -> (Vec<Self>, String) {
        let here = ["--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
        let count = journals.len().to_string();
        let founding = ["memnode", "--memory-nodes", "2", "--journal", &count];
        let (first, line) = Self::start(&[&founding[..], &here].concat());
        let at = crate::common::address(&line);
        let (second, _) = Self::start(&[&["memnode", "--join", &at][..], &here].concat());
        let mut all = vec![first, second];
        for dir in journals {
            all.push(Self::start(&["journalnode", "--join", &at, "--dir", text(dir)]).0);
        }
        (all, at)
    }
}

fn joined(at: &str) -> Pool {
    Pool::connect(at).wait(Duration::from_secs(60)).open().expect("joins")
}

/// Three compute nodes write to a pool with two memory nodes and two journal nodes. Checkpoints go
/// to a store and to a directory meanwhile; all processes are killed and start again. Each
/// checkpoint has the first writes of each writer, and the journals have all that were
/// acknowledged.
#[test]
fn a_cluster_goes_to_a_store_and_outlives_all_processes() {
    const WRITERS: u64 = 3;
    let Some(store) = Store::start() else {
        eprintln!("SKIPPED: there is no moto_server (pip install 'moto[server]')");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let journals = ["j0", "j1"].map(|name| dir.path().join(name));
    let (servers, at) = Server::pool(&journals);
    joined(&at).create("numbers", Options::default()).expect("new");
    let stops = AtomicBool::new(false);
    let directory = dir.path().join("files");
    let places = [text(&directory), "s3://backups/cluster", "s3://backups/series/000002"];
    // A writer writes one after the other: with one of them a checkpoint has all before it.
    let write = |writer: u64| {
        let pool = joined(&at);
        let index = pool.open("numbers").expect("there");
        let mut done = 0u64;
        while !stops.load(Ordering::SeqCst) {
            let key = [writer.to_be_bytes(), done.to_be_bytes()].concat();
            // A busy device may take longer than an operation may: the same again is no harm.
            let began = Instant::now();
            while let Err(e) = index.put(&key, done.to_be_bytes()) {
                assert!(began.elapsed() < Duration::from_secs(120), "put: {e}");
            }
            done += 1;
        }
        done
    };
    let write = &write;
    let done: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(move || write(n))).collect();
        for to in &places[..2] {
            std::thread::sleep(Duration::from_millis(500));
            let (status, out) = store.run(&["checkpoint", "--connect", &at, "--to", to]);
            assert_eq!(status, Some(0), "{out}");
            has(&out, &["1 index with", "written to", to]);
        }
        let series = ["checkpoint", "--connect", &at, "--to", "s3://backups/series", "--keep", "1"];
        for said in ["written to s3://backups/series/000001", "s3://backups/series/000001 removed"]
        {
            let (status, out) = store.run(&series);
            assert_eq!(status, Some(0), "{out}");
            has(&out, &[said]);
        }
        stops.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
    });
    drop(servers);
    let (_servers, at) = Server::pool(&journals);
    assert!(done.iter().all(|n| *n > 50), "{done:?} writes");
    assert_eq!(counts(&joined(&at), WRITERS), done, "what was acknowledged");
    let restore =
        |from: &str, to: &Path| store.run(&["restore", "--durable", text(to), "--from", from]);
    let mut former = vec![0; WRITERS as usize];
    for (number, from) in places.iter().enumerate() {
        let to = dir.path().join(format!("restored-{number}"));
        let (status, out) = restore(from, &to);
        assert_eq!(status, Some(0), "{out}");
        let pool = Pool::embedded().memory("64MiB").durable(&to).open().expect("opened");
        let found = counts(&pool, WRITERS);
        assert!(found.iter().zip(&former).all(|(new, old)| new >= old), "{former:?}, {found:?}");
        former = found;
    }
    let (status, out) = restore("s3://backups/series/000001", &dir.path().join("none"));
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["no MANIFEST.json"]);
}

/// How many keys of each writer there are: the first ones, without a gap.
fn counts(pool: &Pool, writers: u64) -> Vec<u64> {
    let index = pool.open("numbers").expect("there");
    let count = |writer: u64| {
        let (low, high) = (writer.to_be_bytes(), (writer + 1).to_be_bytes());
        let pairs = index.scan(&low[..]..&high[..]).pairs();
        let number = |value: Vec<u8>| u64::from_be_bytes(value.try_into().expect("8 bytes"));
        let numbers: Vec<u64> = pairs.map(|pair| number(pair.expect("read").1)).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "a gap: {numbers:?}");
        numbers.len() as u64
    };
    (0..writers).map(count).collect()
}

/// A writer that fails behind its claim leaves the place to the next one.
#[test]
fn a_checkpoint_that_failed_can_be_repeated_at_its_place() {
    let Some(store) = Store::start() else {
        eprintln!("SKIPPED: there is no moto_server (pip install 'moto[server]')");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let journals = ["j0", "j1"].map(|name| dir.path().join(name));
    let (mut servers, at) = Server::pool(&journals);
    let mut command = crate::common::dmtree(&["shell", "--connect", &at]);
    command.env("AWS_ENDPOINT", format!("http://{}", store.at)).env("AWS_REGION", "us-east-1");
    command.envs([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
    let mut shell = Server(crate::common::piped(&mut command).spawn().expect("the binary"));
    let mut input = shell.0.stdin.take().expect("piped");
    let mut said = BufReader::new(shell.0.stdout.take().expect("piped")).lines();
    let mut errors = BufReader::new(shell.0.stderr.take().expect("piped")).lines();
    writeln!(input, "put ada 1815").expect("written");
    assert_eq!(said.next().expect("an answer").expect("text"), "done");
    // Without this journal node there is no cut.
    drop(servers.pop());
    writeln!(input, "checkpoint s3://backups/again").expect("written");
    let refused = errors.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("error")));
    has(&refused.expect("an error").expect("text"), &["checkpoint s3://backups/again", "jn1"]);
    servers.push(Server::start(&["journalnode", "--join", &at, "--dir", text(&journals[1])]).0);
    let began = Instant::now();
    loop {
        let (status, out) =
            store.run(&["checkpoint", "--connect", &at, "--to", "s3://backups/again"]);
        if status == Some(0) {
            has(&out, &["1 index with 1 pairs written to s3://backups/again"]);
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60) && !out.contains("CLAIM"), "{out}");
    }
}
