//! A durable pool as files of one instant, and into other pools.

use std::path::Path;
use std::time::Duration;

use dmtree::{ErrorKind, LoadOrder, Options, Pool};

use crate::common::has;
use crate::harness::{Process, found, run};

const INDEXES: [&str; 3] = ["a", "b", "c"];
/// Pairs of each index: few, or so many that a command can be killed while it writes them.
const FEW: usize = 5_000;
const MANY: usize = 25_000;

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

/// What a command says of all of it.
fn told() -> String {
    format!("{} indexes with {} pairs", INDEXES.len(), INDEXES.len() * FEW)
}

/// A durable pool with three indexes, in a directory.
fn durable(dir: &Path, pairs: usize) {
    let pool = Pool::embedded().memory("128MiB").durable(dir).open().expect("opened");
    for name in INDEXES {
        let index = pool.create(name, Options::default()).expect("new");
        let pair = |i| (format!("{name}{i:06}").into_bytes(), format!("{i}").into_bytes());
        index.load((0..pairs).map(pair), LoadOrder::Sorted).expect("loaded");
    }
}

fn is_whole(pool: &Pool, pairs: usize) {
    assert_eq!(pool.list().expect("names"), INDEXES);
    for name in INDEXES {
        let index = pool.open(name).expect("listed");
        let last = index.last().expect("a get").expect("a pair").0;
        assert_eq!(last, format!("{name}{:06}", pairs - 1).into_bytes());
        assert_eq!(index.len().expect("a count"), pairs as u64);
    }
}

#[test]
fn a_durable_pool_goes_to_files_and_into_other_pools() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    durable(&at("pool"), FEW);
    let (pool, files) = (at("pool"), at("files"));
    let checkpoint = |to: &Path| run(&["checkpoint", "--durable", text(&pool), "--to", text(to)]);
    let open = Process::start(&["shell", "--durable", text(&pool), "--index", "a"]);
    let mut open = open;
    assert_eq!(open.ask("get a000000"), "0");
    let (status, out) = checkpoint(&files);
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["has it open"]);
    has(&open.ask(&format!("checkpoint {}", text(&at("by-shell")))), &[&told()]);
    open.quit();
    let (status, out) = checkpoint(&files);
    assert_eq!(status, Some(0), "{out}");
    has(&out, &[&told(), "written to", text(&files)]);
    assert_eq!(checkpoint(&files).0, Some(2), "it is there");

    for from in ["files", "by-shell"] {
        let into = at(&format!("from-{from}"));
        let (from, into) = (at(from), text(&into));
        let restore = || run(&["restore", "--durable", into, "--from", text(&from)]);
        let (status, out) = restore();
        assert_eq!(status, Some(0), "{out}");
        has(&out, &[&told(), "restored from"]);
        is_whole(&Pool::embedded().memory("128MiB").durable(into).open().expect("opened"), FEW);
        let (status, out) = restore();
        assert_eq!(status, Some(2), "{out}");
        has(&out, &["not empty", "restore into a new pool"]);
    }
    let small = at("small");
    let (status, out) = run(&[
        "restore",
        "--durable",
        text(&small),
        "--memory-bytes",
        "1MiB",
        "--from",
        text(&files),
    ]);
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["1 MiB", "give it about"]);
    let (status, out) = run(&["restore", "--durable", text(&small), "--from", text(&at("none"))]);
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["no MANIFEST.json"]);
    // What could not be restored has left nothing.
    let (status, out) = run(&["restore", "--durable", text(&small), "--from", text(&files)]);
    assert_eq!(status, Some(0), "{out}");
}

/// A checkpoint is killed again and again: what it leaves is whole, or is none.
#[test]
fn a_killed_checkpoint_is_whole_or_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = dir.path().join("pool");
    durable(&pool, MANY);
    let mut cut_off = 0;
    for round in 0..12 {
        let to = dir.path().join(format!("files-{round}"));
        let mut checkpoint =
            Process::start(&["checkpoint", "--durable", text(&pool), "--to", text(&to)]);
        std::thread::sleep(Duration::from_millis(15 * round));
        checkpoint.kill();
        let target = Pool::embedded().memory("128MiB").open().expect("opened");
        match target.restore(&to) {
            Ok(_) => is_whole(&target, MANY),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                cut_off += 1;
            }
        }
    }
    assert!(cut_off > 0, "every checkpoint was faster than its kill");
}

/// A restore is killed again and again: no index is there before it is whole, and the same command
/// ends what it has begun.
#[test]
fn a_killed_restore_can_be_repeated() {
    let dir = tempfile::tempdir().expect("a directory");
    let (pool, files) = (dir.path().join("pool"), dir.path().join("files"));
    durable(&pool, MANY);
    assert_eq!(run(&["checkpoint", "--durable", text(&pool), "--to", text(&files)]).0, Some(0));
    let (_memory, to) = found(&["--memory-bytes", "1GiB"]);
    let arguments = ["restore", "--connect", &to, "--from", text(&files)];
    let mut cut_off = 0;
    for round in 1..8 {
        let mut restore = Process::start(&arguments);
        std::thread::sleep(Duration::from_millis(25 * round));
        restore.kill();
        let pool = Pool::connect(&to).open().expect("joins");
        let names = pool.list().expect("names");
        cut_off += usize::from(names != INDEXES);
        for name in names.iter().filter(|name| INDEXES.contains(&&***name)) {
            let index = pool.open(name).expect("listed");
            assert_eq!(index.len().expect("a count"), MANY as u64, "round {round}");
        }
    }
    assert!(cut_off > 0, "every restore was faster than its kill");
    let (status, out) = run(&arguments);
    assert_eq!(status, Some(0), "{out}");
    is_whole(&Pool::connect(&to).open().expect("joins"), MANY);
    let (status, out) = run(&arguments);
    assert_eq!(status, Some(2), "{out}");
    has(&out, &["not empty"]);
}
