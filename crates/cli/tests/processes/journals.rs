//! Pools with journal nodes: what was acknowledged is there again when all processes were killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dmtree::{ErrorKind, LoadOrder, Options, Pool};

use crate::common::has;
use crate::harness::{
    PATIENCE, Process, compute, compute_within, leases, run, serve, shell, within,
};
use crate::linear::PAUSE;

/// Memory nodes and journal nodes of a pool; the latter have directories.
pub struct Servers {
    memory: Vec<Process>,
    pub journal: Vec<Process>,
    pub at: String,
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

pub fn journal_node(at: &str, dir: &Path, more: &[&str]) -> Process {
    let args = ["journalnode", "--join", at, "--dir", text(dir)];
    let node = Process::start(&[&args, more].concat());
    let line = node.line();
    assert!(line.starts_with("jn"), "{line}");
    node
}

impl Servers {
    /// Two memory nodes, and a journal node for each of these directories.
    pub fn start(dirs: &[&Path], level: &str) -> Self {
        Self::start_with(dirs, &["--level", level])
    }

    /// The same with more said of the journal.
    pub fn start_with(dirs: &[&Path], more: &[&str]) -> Self {
        let journals = dirs.len().to_string();
        let args = ["--listen", "127.0.0.1:0", "--memory-bytes", "64MiB", "--memory-nodes", "2"];
        let (first, at) = serve(&[&args[..], &["--journal", &journals], more].concat());
        let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
        let second = Process::start(&join);
        assert!(second.line().starts_with("mn1 "));
        let journal = dirs.iter().map(|dir| journal_node(&at, dir, &[])).collect();
        Self { memory: vec![first, second], journal, at }
    }

    pub fn kill(&mut self) {
        self.journal.iter_mut().chain(&mut self.memory).for_each(Process::kill);
    }
}

/// What a writer knows of its keys: values that are surely there, and what else may be.
#[derive(Default)]
pub struct Known {
    /// The last acknowledged value, `None` for a delete.
    due: BTreeMap<String, Option<String>>,
    /// A later one that was not acknowledged.
    open: BTreeMap<String, Vec<Option<String>>>,
}

impl Known {
    /// Whether a key may have this value.
    fn allows(&self, key: &str, found: Option<&str>) -> bool {
        let due = self.due.get(key).and_then(|value| value.as_deref());
        let open = self.open.get(key);
        found == due || open.is_some_and(|all| all.iter().any(|v| v.as_deref() == found))
    }
}

/// Writes until it is told to stop, or its pool ends: each writer has keys of its own.
pub fn write(number: usize, mut shell: Process, stops: &AtomicBool) -> Known {
    let mut known = Known::default();
    for i in 0..usize::MAX {
        if stops.load(SeqCst) {
            return known;
        }
        let key = format!("w{number}-{:03}", i * 7 % 200);
        let value = (i % 5 != 4).then(|| format!("{i}"));
        let line = match &value {
            Some(value) => format!("put {key} {value}"),
            None => format!("delete {key}"),
        };
        // Before it is asked for: an answer may be lost with its process.
        known.open.entry(key.clone()).or_default().push(value.clone());
        shell.say(&line);
        match shell.heard().as_deref() {
            Some("done" | "not found") => {
                known.open.remove(&key);
                known.due.insert(key, value);
            }
            Some(_) => {}
            None => return known,
        }
        std::thread::sleep(PAUSE);
    }
    known
}

pub fn contents(at: &str) -> BTreeMap<String, String> {
    let pool = Pool::connect(at).wait(PATIENCE).open().expect("joins");
    let index = pool.open("shell").expect("there");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let pairs = index.scan(..).pairs().map(|pair| pair.expect("read"));
    pairs.map(|(key, value)| (text(key), text(value))).collect()
}

pub fn check(found: &BTreeMap<String, String>, known: &[Known]) {
    let mut writes = 0;
    for known in known {
        for key in known.due.keys().chain(known.open.keys()) {
            let value = found.get(key).map(String::as_str);
            assert!(known.allows(key, value), "{key} is {value:?}: {:?}", known.due.get(key));
        }
        writes += known.due.len();
    }
    assert!(writes > 100, "{writes} keys were acknowledged");
    let writers = known.iter().flat_map(|k| k.due.keys().chain(k.open.keys()));
    let all: Vec<_> = writers.collect();
    let others: Vec<_> = found.keys().filter(|key| !all.contains(key)).collect();
    assert_eq!(others, ["ready"], "what nothing wrote");
}

/// Three compute processes write; one of them stands still for longer than its lease, so that it is
/// fenced; then all processes of the pool are killed, again and again.
#[test]
fn what_was_acknowledged_outlives_the_death_of_all_processes() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = [dir.path().join("j0"), dir.path().join("j1")];
    let dirs = [&*dirs[0], &*dirs[1]];
    for (round, level) in ["process", "sync", "process"].into_iter().enumerate() {
        if round > 0 {
            // The keys of a round are written anew.
            dirs.iter().for_each(|dir| std::fs::remove_dir_all(dir).expect("removed"));
        }
        let mut servers = Servers::start(&dirs, level);
        let stops = AtomicBool::new(false);
        let shells: Vec<Process> = (0..3).map(|_| compute(&servers.at)).collect();
        let known: Vec<Known> = std::thread::scope(|scope| {
            let (at, stops) = (&servers.at, &stops);
            let fenced = shells[0].child.id().to_string();
            let all: Vec<_> = { shells.into_iter().enumerate() }
                .map(|(i, shell)| scope.spawn(move || write(i, shell, stops)))
                .collect();
            std::thread::sleep(Duration::from_millis(600));
            let signal = |name: &str| {
                let sent = std::process::Command::new("kill").args([name, &*fenced]).status();
                assert!(sent.expect("kill").success());
            };
            signal("-STOP");
            std::thread::sleep(leases(5));
            signal("-CONT");
            std::thread::sleep(Duration::from_millis(600));
            if round == 2 {
                // Nothing was in flight: the journal has what memory has.
                stops.store(true, SeqCst);
                let known: Vec<_> = all.into_iter().map(|t| t.join().expect("no panic")).collect();
                check(&contents(at), &known);
                return known;
            }
            servers.kill();
            stops.store(true, SeqCst);
            all.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        servers.kill();
        for _ in 0..2 {
            let mut again = Servers::start(&dirs, level);
            check(&contents(&again.at), &known);
            // It can be written to, and outlives that, too.
            assert_eq!(compute(&again.at).ask("put ready again"), "done");
            again.kill();
        }
    }
}

/// A compute process that loads what the journal has is killed; the next one begins again, and no
/// index is there before it is whole.
#[test]
fn a_restart_that_is_killed_can_be_repeated() {
    const PAIRS: usize = 20_000;
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = [dir.path().join("j0"), dir.path().join("j1")];
    let dirs = [&*dirs[0], &*dirs[1]];
    let mut servers = Servers::start(&dirs, "process");
    let pool = Pool::connect(&servers.at).open().expect("joins");
    for name in ["a", "b"] {
        let index = pool.create(name, Options::default()).expect("new");
        let pair = |i| (format!("{name}{i:06}").into_bytes(), format!("{i}").into_bytes());
        index.load((0..PAIRS).map(pair), LoadOrder::Sorted).expect("loaded");
    }
    // Beyond a call to a journal node.
    let long = vec![7; 300_000];
    pool.open("a").expect("there").put("long", &long).expect("put");
    pool.create("gone", Options::default()).expect("new").put("k", "v").expect("put");
    pool.drop_index("gone").expect("removed");
    servers.kill();
    drop(pool);
    let mut servers = Servers::start(&dirs, "process");
    let mut cut_off = 0;
    for round in 1..6 {
        let mut first = shell(&servers.at);
        std::thread::sleep(Duration::from_millis(30 * round));
        first.kill();
        let status = run(&["status", "--connect", &servers.at]).1;
        cut_off += usize::from(!status.contains("shell"));
    }
    assert!(cut_off > 0, "every restart was faster than its kill");
    let pool = Pool::connect(&servers.at).wait(PATIENCE).open().expect("joins");
    let mut names = pool.list().expect("names");
    names.retain(|name| name != "shell");
    assert_eq!(names, ["a", "b"]);
    for (name, more) in [("a", 1), ("b", 0)] {
        let index = pool.open(name).expect("listed");
        assert_eq!(index.len().expect("a count"), PAIRS as u64 + more);
    }
    assert_eq!(pool.open("a").expect("there").get("long").expect("a get").as_deref(), Some(&*long));
    servers.kill();
}

/// Writes wait for a journal node that is away, and say which one; reads go on. It comes back with
/// its directory.
#[test]
fn writes_wait_for_a_journal_node_that_is_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = [dir.path().join("j0"), dir.path().join("j1")];
    let mut servers = Servers::start(&[&*dirs[0], &*dirs[1]], "process");
    let mut shells = [compute(&servers.at), compute(&servers.at)];
    let keys: Vec<String> = (0..8).map(|i| format!("k{i}")).collect();
    for key in &keys {
        assert_eq!(shells[0].ask(&format!("put {key} 1")), "done");
    }
    // A key of each part: the answer of one comes, that of the other does not.
    servers.journal[1].pause(leases(5));
    shells[0].until_done("put k0 1");
    servers.journal[0].kill();
    let began = Instant::now();
    let answers: Vec<String> = std::thread::scope(|scope| {
        let [a, b] = &mut shells;
        let waits = scope.spawn(move || {
            keys.iter().map(|key| a.ask(&format!("put {key} 2"))).find(|said| said != "done")
        });
        for i in 0..8 {
            let said = b.ask(&format!("get k{i}"));
            assert!(said == "1" || said == "2", "{said}");
        }
        assert!(began.elapsed() < Duration::from_secs(8), "reads go on");
        waits.join().expect("no panic").into_iter().collect()
    });
    has(&answers[0], &["jn0", "the effect is unknown"]);
    let status = run(&["status", "--connect", &servers.at]).1;
    has(&status, &["jn0", "lost", "jn1", "present"]);
    let mut late = {
        let at = servers.at.clone();
        let mut b = shells.into_iter().nth(1).expect("two");
        std::thread::scope(|scope| {
            // It waits, and is acknowledged when the journal node is back.
            let put = scope.spawn(move || {
                let said: Vec<String> = (0..8).map(|i| b.ask(&format!("put k{i} 3"))).collect();
                (b, said)
            });
            std::thread::sleep(Duration::from_secs(1));
            servers.journal[0] = journal_node(&at, &dirs[0], &[]);
            let (b, said) = put.join().expect("no panic");
            assert!(said.iter().all(|said| said == "done"), "{said:?}");
            b
        })
    };
    assert_eq!(late.ask("get k3"), "3");
    servers.kill();
    let again = Servers::start(&[&*dirs[0], &*dirs[1]], "process");
    let found = contents(&again.at);
    assert!((0..8).all(|i| found[&format!("k{i}")] == "3"), "{found:?}");
}

/// A checkpoint of a pool in use goes into another pool: with a write it has every write that was
/// acknowledged before.
#[test]
fn a_pool_in_use_goes_to_files_of_one_instant() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let mut servers = Servers::start(&[&at("j0"), &at("j1")], "process");
    let stops = AtomicBool::new(false);
    let files: Vec<_> = (0..3).map(|n| at(&format!("files-{n}"))).collect();
    std::thread::scope(|scope| {
        let mut shell = compute(&servers.at);
        let stops = &stops;
        let writes = scope.spawn(move || {
            // The parts of the journal take turns, as the hash says.
            let mut done = 0;
            while !stops.load(SeqCst) {
                assert_eq!(shell.ask(&format!("put k{:02} {done:08}", done % 40)), "done");
                done += 1;
            }
            done
        });
        for to in &files {
            std::thread::sleep(Duration::from_millis(300));
            let checkpoint = ["checkpoint", "--connect", &servers.at, "--to", text(to)];
            let (status, said) = run(&checkpoint);
            assert_eq!(status, Some(0), "{said}");
            has(&said, &["1 index with", "written to"]);
        }
        stops.store(true, SeqCst);
        let done = writes.join().expect("no panic");
        assert!(done > 100, "{done} writes");
    });
    servers.kill();
    let mut newest = 0;
    for from in &files {
        let pool = Pool::embedded().memory("64MiB").open().expect("opened");
        pool.restore(from).expect("restored");
        let index = pool.open("shell").expect("there");
        let number = |value: Vec<u8>| String::from_utf8(value).ok()?.parse::<usize>().ok();
        let pairs = index.scan("k".."l").pairs().map(|pair| pair.expect("read").1);
        let mut found: Vec<usize> = pairs.filter_map(number).collect();
        found.sort_unstable();
        let last = *found.last().expect("written");
        let due: Vec<usize> = (last.saturating_sub(39)..=last).collect();
        assert_eq!(found, due, "what was acknowledged before the newest of them");
        assert!(last > newest, "a later checkpoint has more");
        newest = last;
    }
}

/// A journal node writes checkpoints by itself, and the last two of them stay; a command goes on
/// with the series.
#[test]
fn a_journal_node_writes_checkpoints_by_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let (j0, backups) = (dir.path().join("j0"), dir.path().join("backups"));
    let founding = ["--listen", "127.0.0.1:0", "--memory-bytes", "64MiB", "--journal", "1"];
    let (_memory, pool) = serve(&founding);
    let node = ["journalnode", "--join", &pool, "--dir", text(&j0)];
    let series = ["--checkpoint-to", text(&backups), "--every", "1s", "--keep", "2"];
    let node = Process::start(&[&node[..], &series].concat());
    assert!(node.line().starts_with("jn0 "));
    let mut shell = compute_within(&pool, PATIENCE);
    assert_eq!(shell.ask("put key value"), "done");
    // The first may have been taken before the write.
    for number in 1..=3 {
        let line = node.line();
        has(&line, &["written to", &format!("/00000{number}")]);
    }
    within(PATIENCE, || match backups.join("000001").exists() {
        true => Err("the first one is still there".to_owned()),
        false => Ok(()),
    });
    drop(node);
    let arguments = ["checkpoint", "--connect", &pool, "--to", text(&backups), "--keep", "2"];
    let (status, out) = run(&arguments);
    assert_ne!(status, Some(0), "without its journal node: {out}");
    has(&out, &["jn0"]);
    let _node = journal_node(&pool, &j0, &[]);
    let out = within(PATIENCE, || {
        let (status, out) = run(&arguments);
        (status == Some(0)).then_some(out.clone()).ok_or(out)
    });
    has(&out, &["1 index with 2 pairs written to", "removed"]);
    let mut numbers: Vec<_> = std::fs::read_dir(&backups)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|at| at.join("MANIFEST.json").exists())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers.len(), 2, "{numbers:?}");
    let restored = Pool::embedded().memory("64MiB").open().expect("opened");
    restored.restore(&numbers[1]).expect("restored");
    let index = restored.open("shell").expect("there");
    assert_eq!(index.get("key").expect("a get").as_deref(), Some(&b"value"[..]));
}

/// One line each, a status of 2, and nothing changed.
#[test]
fn what_is_no_part_of_the_journal_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let (j0, j1, embedded) = (at("j0"), at("j1"), at("embedded"));
    let pool = Pool::embedded().memory("8MiB").durable(&embedded).open().expect("opened");
    pool.create("a", Options::default()).expect("new");
    drop(pool);
    let (_none, without) = serve(&["--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"]);
    let join = |pool: &str, dir: &Path, more: &[&str]| {
        let node = ["journalnode", "--join", pool, "--wait", "2", "--dir", text(dir)];
        let (status, said) = run(&[&node[..], more].concat());
        assert_eq!(status, Some(2), "{said}");
        said
    };
    has(&join(&without, &j0, &[]), &["no journal nodes", "--journal N"]);
    assert!(!j0.exists(), "nothing is made");
    let mut servers = Servers::start(&[&j0, &j1], "process");
    has(&join(&servers.at, &at("new"), &[]), &["all 2 journal nodes", "found it with more"]);
    has(&join(&servers.at, &at("new"), &["--index", "5"]), &["no journal node 5"]);
    has(&join(&servers.at, &at("new"), &["--index", "0"]), &["jn0 is served by", "end that one"]);
    has(&join(&servers.at, &at("new"), &["--level", "sync"]), &["--level process"]);
    has(&join(&servers.at, &j0, &[]), &["has it open"]);
    let (status, said) = run(&["shell", "--connect", &servers.at, "--system", "sherman"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["has journal nodes", "without `--journal`"]);
    assert_eq!(compute(&servers.at).ask("put a 1"), "done");
    servers.kill();

    let e = Pool::embedded().durable(&j1).open().expect_err("a part");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    has(&e.to_string(), &["part 1 of the 2", "dmtree journalnode"]);
    let found = |journals: &str| {
        serve(&["--listen", "127.0.0.1:0", "--memory-bytes", "64MiB", "--journal", journals])
    };
    let (_three, three) = found("3");
    has(&join(&three, &j0, &[]), &["2 nodes", "founded for 3", "--journal 2"]);
    has(&join(&three, &embedded, &[]), &["of a pool in one process"]);
    // Of two pools.
    let mut other = Servers::start(&[&at("o0"), &at("o1")], "process");
    assert_eq!(compute(&other.at).ask("put a 1"), "done");
    other.kill();
    let (_two, two) = found("2");
    let first = journal_node(&two, &j0, &[]);
    has(&join(&two, &at("o1"), &[]), &["another pool"]);
    has(&join(&two, &at("new"), &[]), &["no part of it"]);
    drop(first);
    let (status, said) = run(&["memnode", "--listen", "127.0.0.1:0", "--journal", "0"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["journal nodes", "choose 1 to 64"]);
    let (status, said) = run(&["memnode", "--listen", "127.0.0.1:0", "--level", "never"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["never", "process", "sync"]);
    // What was refused has changed nothing.
    let again = within(PATIENCE, || Ok::<_, String>(Servers::start(&[&j1, &j0], "sync")));
    assert_eq!(contents(&again.at)["a"], "1");
}
