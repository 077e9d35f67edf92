//! Checkpoints: what a restored pool has, what a checkpoint taken under load has, and what is
//! refused.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree::{
    CheckpointSeries, Error, ErrorKind, Index, LoadOrder, Options, Pool, Result, WrittenCheckpoint,
};
use tempfile::TempDir;

use crate::durable::SmallDevice;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn durable(path: &Path) -> Pool {
    Pool::embedded().memory("64MiB").durable(path).open().expect("opened")
}

fn in_memory() -> Pool {
    Pool::embedded().memory("64MiB").open().expect("opened")
}

fn contents(index: &Index) -> Pairs {
    index.scan(..).pairs().collect::<Result<_>>().expect("a scan")
}

fn all(pool: &Pool) -> BTreeMap<String, (Options, Pairs)> {
    let index = |name: String| {
        let index = pool.open(&name).expect("it is there");
        (name, (index.options(), contents(&index)))
    };
    pool.list().expect("names").into_iter().map(index).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, says: &[&str]) {
    let e = result.expect_err("it is refused");
    assert_eq!(e.kind(), kind, "{e}");
    says.iter().for_each(|what| assert!(e.to_string().contains(what), "{what:?} in {e}"));
}

/// Three indexes: of many pairs, of few large ones, and of none.
fn fill(pool: &Pool) {
    let numbers = pool.create("numbers", Options::default()).expect("new");
    let pairs = (0..3000u32).map(|i| (i.to_be_bytes().to_vec(), i.to_string().into_bytes()));
    numbers.load(pairs, LoadOrder::Sorted).expect("loaded");
    (0..3000u32).step_by(7).for_each(|i| {
        numbers.delete(i.to_be_bytes()).expect("deleted");
    });
    let options = Options::default().key_inline_bytes(8).value_inline_bytes(0);
    let large = pool.create("large \u{fc}", options).expect("new");
    for i in 0..5u8 {
        large.put(vec![i; 1024], vec![i; 1 << 20]).expect("put");
    }
    large.put([0], []).expect("put");
    pool.create("empty", Options::default()).expect("new");
}

fn checkpoint(dir: &Path) -> (PathBuf, Pool) {
    let pool = durable(&dir.join("journal"));
    fill(&pool);
    let at = dir.join("checkpoint");
    pool.checkpoint(&at).expect("written");
    (at, pool)
}

#[test]
fn a_checkpoint_comes_back() {
    let dir = TempDir::new().expect("a directory");
    let (at, pool) = checkpoint(dir.path());
    let wanted = all(&pool);
    pool.open("numbers").expect("there").put("later", "than the checkpoint").expect("put");
    let restored = in_memory();
    let size = restored.restore(&at).expect("restored");
    assert_eq!((size.indexes, size.pairs), (3, 3000 - 429 + 6));
    assert_eq!(all(&restored), wanted);
    // A durable pool has all of it when it is opened again.
    let path = dir.path().join("another");
    let again = durable(&path);
    again.restore(&at).expect("restored");
    again.open("empty").expect("there").put("more", "").expect("put");
    drop(again);
    let again = durable(&path);
    assert_eq!(again.open("empty").expect("there").len().expect("a count"), 1);
    again.open("empty").expect("there").delete("more").expect("deleted");
    assert_eq!(all(&again), wanted);
}

/// Ends the threads of a test, however it ends.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads put number after number, each one when the former is acknowledged, into two indexes:
/// a checkpoint with one of them has all before it.
#[test]
fn a_checkpoint_under_load_is_closed() {
    const KEYS: u64 = 7;
    let dir = TempDir::new().expect("a directory");
    let pool = durable(&dir.path().join("journal"));
    let indexes = ["a", "b"].map(|name| pool.create(name, Options::default()).expect("new"));
    let (next, ends) = (Mutex::new(0u64), AtomicBool::new(false));
    let put = || {
        let mut number = next.lock().expect("no panic");
        let index = &indexes[(*number % KEYS % 2) as usize];
        index.put([(*number % KEYS) as u8], number.to_be_bytes()).expect("put");
        *number += 1;
    };
    std::thread::scope(|threads| {
        let _ends = Ends(&ends);
        for _ in 0..2 {
            threads.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    put();
                }
            });
        }
        for round in 0..20 {
            let acknowledged = *next.lock().expect("no panic");
            let at = dir.path().join(format!("checkpoint-{round}"));
            pool.checkpoint(&at).expect("written");
            let restored = in_memory();
            restored.restore(&at).expect("restored");
            let values = all(&restored).into_values().flat_map(|(_, pairs)| pairs.into_values());
            let number = |value: Vec<u8>| u64::from_be_bytes(value.try_into().expect("8 bytes"));
            let mut found: Vec<_> = values.map(number).collect();
            found.sort_unstable();
            let end = found.last().map_or(0, |last| last + 1);
            assert!(end >= acknowledged, "{acknowledged} were acknowledged: {end}");
            assert_eq!(found, (end.saturating_sub(KEYS)..end).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_damaged_checkpoint_is_refused_whole() {
    let dir = TempDir::new().expect("a directory");
    let (at, _pool) = checkpoint(dir.path());
    let target = in_memory();
    let refused = |kind, says: &[&str]| {
        refused(target.restore(&at), kind, says);
        assert_eq!(target.list().expect("names"), [""; 0]);
    };
    let (manifest, file) = (at.join("MANIFEST.json"), at.join("index-0-shard-0-0.parquet"));
    let (text, bytes) = (fs::read_to_string(&manifest).unwrap(), fs::read(&file).unwrap());

    fs::remove_file(&file).unwrap();
    refused(ErrorKind::Corrupt, &["index-0-shard-0-0.parquet", "missing"]);
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    refused(ErrorKind::Corrupt, &["bytes, and MANIFEST.json says"]);
    let mut other = bytes.clone();
    other[bytes.len() / 2] ^= 1;
    fs::write(&file, &other).unwrap();
    refused(ErrorKind::Corrupt, &["XXH3"]);
    fs::write(&file, &bytes).unwrap();

    fs::write(&manifest, &text[..text.len() - 2]).unwrap();
    refused(ErrorKind::Corrupt, &["MANIFEST.json"]);
    fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 2, \"more\": 3")).unwrap();
    refused(ErrorKind::Incompatible, &["format 2", "format 1"]);
    fs::write(&manifest, text.replace("index-0-shard", "../index-0-shard")).unwrap();
    refused(ErrorKind::Corrupt, &["no name of a file"]);
    // The manifest names a file twice, and another one not.
    fs::write(&manifest, text.replace("\"rows\": 2571", "\"rows\": 2572")).unwrap();
    refused(ErrorKind::Corrupt, &["2571 different keys"]);
    fs::remove_file(&manifest).unwrap();
    refused(ErrorKind::NotFound, &["no MANIFEST.json", "not finished"]);
    fs::write(&manifest, &text).unwrap();
    target.restore(&at).expect("restored");
}

#[test]
fn what_cannot_be_written_or_loaded_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let (at, pool) = checkpoint(dir.path());
    refused(pool.checkpoint(&at), ErrorKind::Exists, &["has files"]);
    let file = at.join("MANIFEST.json");
    refused(pool.checkpoint(&file), ErrorKind::InvalidArgument, &["MANIFEST.json"]);
    let other = in_memory();
    refused(other.checkpoint(dir.path().join("x")), ErrorKind::Unsupported, &["durable", "export"]);
    assert!(!dir.path().join("x").exists());
    other.create("one", Options::default()).expect("new");
    refused(other.restore(&at), ErrorKind::Exists, &["not empty", "\"one\""]);
    refused(other.restore(dir.path().join("x")), ErrorKind::NotFound, &["MANIFEST.json"]);
    assert_eq!(other.list().expect("names"), ["one"]);
    let small = Pool::embedded().memory("4MiB").open().expect("opened");
    refused(small.restore(&at), ErrorKind::Full, &["4 MiB", "give it about"]);
    assert_eq!(small.list().expect("names"), [""; 0]);
}

/// Every index that can be opened while a checkpoint is restored, and while a file is imported into
/// a new index, is whole.
#[test]
fn an_index_that_can_be_opened_is_whole() {
    const PAIRS: u64 = 40_000;
    let dir = TempDir::new().expect("a directory");
    let pool = durable(&dir.path().join("journal"));
    for name in ["a", "b"] {
        let pairs = (0..PAIRS).map(|i| (i.to_be_bytes().to_vec(), vec![7; 24]));
        let index = pool.create(name, Options::default()).expect("new");
        index.load(pairs, LoadOrder::Sorted).expect("loaded");
    }
    let (at, file) = (dir.path().join("checkpoint"), dir.path().join("a.jsonl"));
    pool.checkpoint(&at).expect("written");
    pool.open("a").expect("there").export(&file).expect("exported");
    let target = in_memory();
    let (ends, mut found) = (AtomicBool::new(false), 0);
    std::thread::scope(|threads| {
        let _ends = Ends(&ends);
        threads.spawn(|| {
            target.restore(&at).expect("restored");
            target.import_into_new("c", &[&file]).expect("imported");
            ends.store(true, Ordering::Relaxed);
        });
        while !ends.load(Ordering::Relaxed) || found < 3 {
            let names = target.list().expect("names");
            found = 0;
            for name in names.iter().filter(|name| !name.starts_with('(')) {
                let index = target.open(name).expect("listed");
                assert_eq!(index.len().expect("a count"), PAIRS, "of {name}");
                found += 1;
            }
        }
    });
}

fn keeping(keep: usize, place: &Path) -> CheckpointSeries {
    CheckpointSeries::new(place, NonZeroUsize::new(keep).expect("not zero"))
}

/// The last ones of a series stay; what was not finished goes with the older ones.
#[test]
fn a_series_keeps_its_last_checkpoints() {
    let dir = TempDir::new().expect("a directory");
    let (place, pool) = (dir.path().join("series"), durable(&dir.path().join("journal")));
    let (series, index) = (keeping(2, &place), pool.create("a", Options::default()).expect("new"));
    assert_eq!(series.list().expect("none"), [""; 0].map(PathBuf::from));
    let write = |number: u64| -> WrittenCheckpoint {
        index.put("number", number.to_be_bytes()).expect("put");
        series.write(&pool).expect("written")
    };
    let at = |number: u64| place.join(format!("{number:06}"));
    for number in 1..=2 {
        let written = write(number);
        assert_eq!((written.at, written.removed), (at(number), vec![]));
    }
    // A writer that was killed, and what is no part of the series.
    fs::create_dir(at(3)).expect("made");
    fs::write(at(3).join("index-0-shard-0-0.parquet"), "cut off").expect("written");
    for other in ["notes", "0004", "0000004"] {
        fs::create_dir(place.join(other)).expect("made");
    }
    let written = write(4);
    assert_eq!((written.at, written.removed), (at(4), vec![at(1)]));
    assert_eq!(series.list().expect("two"), [at(2), at(4)], "number 3 is no checkpoint");
    let written = write(5);
    assert_eq!((written.at, written.removed), (at(5), vec![at(2), at(3)]));
    assert_eq!(series.list().expect("two"), [at(4), at(5)]);
    for number in 4..=5u64 {
        let restored = in_memory();
        restored.restore(at(number)).expect("restored");
        let found = restored.open("a").expect("there").get("number").expect("a get");
        assert_eq!(found, Some(number.to_be_bytes().to_vec()));
    }
    // A removal that was cut off behind the manifest is ended by the next.
    fs::remove_file(at(4).join("MANIFEST.json")).expect("removed");
    assert_eq!(series.list().expect("one"), [at(5)]);
    assert_eq!(write(6).removed, [at(4)]);
    for other in ["notes", "0004", "0000004"] {
        assert!(place.join(other).exists());
    }
    let last = place.join("999999");
    fs::create_dir(&last).expect("made");
    refused(series.write(&pool), ErrorKind::Full, &["last number", "another place"]);
}

/// Two writers of one series take different numbers.
#[test]
fn writers_of_one_series_take_different_numbers() {
    let dir = TempDir::new().expect("a directory");
    let (place, pool) = (dir.path().join("series"), durable(&dir.path().join("journal")));
    pool.create("a", Options::default()).expect("new").put("key", "value").expect("put");
    let series = keeping(100, &place);
    let written = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..5 {
                    let at = series.write(&pool).expect("written").at;
                    written.lock().expect("no panic").push(at);
                }
            });
        }
    });
    let mut written = written.into_inner().expect("no panic");
    written.sort_unstable();
    assert_eq!(written, (1..=20).map(|n| place.join(format!("{n:06}"))).collect::<Vec<_>>());
    assert_eq!(series.list().expect("all"), written);
}

/// What cannot be written takes no number and removes nothing.
#[test]
fn a_series_of_a_pool_that_is_not_durable_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let (series, pool) = (keeping(1, dir.path()), durable(&dir.path().join("journal")));
    series.write(&pool).expect("written");
    refused(series.write(&in_memory()), ErrorKind::Unsupported, &["not durable"]);
    assert_eq!(series.list().expect("one"), [dir.path().join("000001")]);
    assert!(!dir.path().join("000002").exists());
}

/// On a device that gets full there is no manifest, so that what is there is no checkpoint.
#[test]
fn a_checkpoint_that_finds_no_room_is_none() {
    let Some(device) = SmallDevice::new(1) else {
        eprintln!("SKIPPED: no small file system can be mounted here (it takes root)");
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let pool = durable(&dir.path().join("journal"));
    let index = pool.create("noise", Options::default()).expect("new");
    let mut noise = 1u64;
    for i in 0..100u64 {
        let mut draw = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 33) as u8
        };
        let value: Vec<u8> = (0..40_000).map(|_| draw()).collect();
        index.put(i.to_be_bytes(), value).expect("put");
    }
    let at = device.0.path().join("checkpoint");
    refused(pool.checkpoint(&at), ErrorKind::Full, &["checkpoint"]);
    refused(in_memory().restore(&at), ErrorKind::NotFound, &["not finished"]);
    assert_eq!(index.len().expect("a count"), 100, "the pool goes on");
}
