//! Checkpoints in an object store: moto's server from PyPI stands for S3.
//!
//! `pip install 'moto[server]'`, then `cargo test -p dmtree-cli --features cloud --test cloud`;
//! `DMTREE_TEST_MOTO` is the path of `moto_server` where it is not on the path of the shell.
#![cfg(feature = "cloud")]
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]
#![expect(clippy::disallowed_macros, reason = "it says what it skips")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{has, said};
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
    let mut command = common::dmtree(arguments);
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
