//! Journals in directories: what comes back, and what is refused.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_journal::{DirectoryJournal, IndexNumber, Journal, KnownIndex, Level, Pair, Record};
use tempfile::TempDir;

const PROCESS: Level = Level::Process { sync_every: None };

fn open(path: &Path, level: Level) -> DirectoryJournal {
    DirectoryJournal::open(path, level).expect("opened")
}

fn pairs(journal: &dyn Journal, index: IndexNumber) -> Vec<Pair> {
    journal.cut().expect("a cut").pairs(index).expect("there").collect::<Result<_>>().expect("read")
}

fn create(journal: &dyn Journal, name: &str, options: &str) -> IndexNumber {
    let number = journal.create().expect("a number");
    let (name, options) = (name.to_owned(), options.as_bytes().to_vec());
    journal.name(&[KnownIndex { number, name, options }]).expect("named");
    number
}

fn put<'r>(key: &'r [u8], value: &'r [u8]) -> Record<'r> {
    Record::Put { key, value }
}

fn refused(path: &Path, kind: ErrorKind, says: &[&str]) -> Error {
    let e = DirectoryJournal::open(path, PROCESS).expect_err("it is refused");
    assert_eq!(e.kind(), kind, "{e}");
    says.iter().for_each(|what| assert!(e.to_string().contains(what), "{what:?} in {e}"));
    e
}

#[test]
fn records_come_back_in_key_order() {
    let dir = TempDir::new().expect("a directory");
    for level in [PROCESS, Level::default(), Level::Sync] {
        let path = dir.path().join(format!("{level:?}"));
        let journal = open(&path, level);
        let (a, b) = (create(&journal, "a", "{}"), create(&journal, "b", "[1]"));
        journal.append(a, &[put(b"two", b"2")]).unwrap();
        journal.append(a, &[put(b"one", b"1"), put(b"three", b"3"), put(b"one", b"")]).unwrap();
        journal.append(a, &[Record::Delete { key: b"two" }]).unwrap();
        journal.append(b, &[put(b"x", &[7; 100_000])]).unwrap();
        drop(journal);
        let journal = open(&path, level);
        let cut = journal.cut().unwrap();
        let known = cut.indexes();
        let said: Vec<_> = known
            .iter()
            .map(|k| (k.number, &k.name[..], std::str::from_utf8(&k.options).expect("text")))
            .collect();
        assert_eq!(said, [(a, "a", "{}"), (b, "b", "[1]")]);
        assert_eq!(
            pairs(&journal, a),
            [(b"one".to_vec(), vec![]), (b"three".to_vec(), b"3".to_vec())]
        );
        assert_eq!(pairs(&journal, b), [(b"x".to_vec(), vec![7; 100_000])]);
        journal.clear(b).unwrap();
        journal.append(b, &[put(b"y", b"")]).unwrap();
        assert_eq!(pairs(&journal, b), [(b"y".to_vec(), vec![])]);
    }
}

#[test]
fn a_removed_index_is_gone_and_its_number_too() {
    let dir = TempDir::new().expect("a directory");
    let journal = open(dir.path(), PROCESS);
    let a = create(&journal, "a", "");
    journal.append(a, &[put(b"k", b"v")]).unwrap();
    journal.remove(a).unwrap();
    let e = journal.append(a, &[put(b"k", b"v")]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    let b = create(&journal, "a", "");
    assert_ne!(a, b);
    drop(journal);
    let journal = open(dir.path(), PROCESS);
    assert_eq!(journal.cut().unwrap().indexes().len(), 1);
    assert!(pairs(&journal, b).is_empty());
    assert!(journal.cut().unwrap().pairs(a).is_err());
}

/// What is accepted at the level `Sync` is on the device, and the appends of many threads need few
/// syncs.
#[test]
#[expect(clippy::disallowed_methods, reason = "real threads and a real device")]
fn appends_are_accepted_in_groups() {
    let dir = TempDir::new().expect("a directory");
    let journal = open(dir.path(), Level::Sync);
    let index = create(&journal, "a", "");
    std::thread::scope(|scope| {
        for n in 0..8u8 {
            let journal = &journal;
            scope.spawn(move || {
                for i in 0..50u8 {
                    let ticket = journal.append(index, &[put(&[n, i], b"v")]).unwrap();
                    let until = Instant::now() + Duration::from_secs(30);
                    while !journal.is_accepted(ticket).unwrap() {
                        assert!(Instant::now() < until, "it is accepted at last");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(pairs(&journal, index).len(), 400);
}

#[test]
fn a_directory_is_one_process_s_and_a_journal_s() {
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let journal = open(&at("j"), PROCESS);
    let number = std::process::id().to_string();
    refused(&at("j"), ErrorKind::Busy, &["j: process ", &number, " has it open"]);
    drop(journal);
    drop(open(&at("j"), PROCESS));
    fs::create_dir(at("other")).unwrap();
    fs::write(at("other/photo.png"), "").unwrap();
    refused(&at("other"), ErrorKind::InvalidArgument, &["photo.png", "is no journal"]);
    fs::write(at("file"), "").unwrap();
    refused(&at("file"), ErrorKind::InvalidArgument, &["cannot make the directory"]);
    let mark = at("j").join("dmtree-journal.json");
    for other in ["1", "3"] {
        fs::write(&mark, format!("{{\"format\":{other},\"engine\":\"fjall\"}}")).unwrap();
        let words = format!("it has format {other}, and this release opens format 2");
        refused(&at("j"), ErrorKind::Incompatible, &[&words]);
    }
    fs::write(&mark, "{\"format\":2,\"engine\":\"rocksdb\"}").unwrap();
    refused(&at("j"), ErrorKind::Incompatible, &["rocksdb", "fjall"]);
    fs::write(&mark, "{\"form").unwrap();
    refused(&at("j"), ErrorKind::Corrupt, &["dmtree-journal.json"]);
}

/// No damage to the engine's files is a panic; a log that is cut off has its first records.
#[test]
fn damage_is_an_error_or_a_shorter_log() {
    let dir = TempDir::new().expect("a directory");
    let whole = dir.path().join("whole");
    let journal = open(&whole, PROCESS);
    let index = create(&journal, "a", "");
    for i in 0..20u8 {
        journal.append(index, &[put(&[i + 1], &[i; 10])]).unwrap();
    }
    drop(journal);
    let mut files = Vec::new();
    list(&whole, &mut files);
    let damage = |n: usize, file: &Path| {
        let bytes = fs::read(file).unwrap();
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        for at in (0..used).step_by(used / 3 + 1) {
            let copy = dir.path().join(format!("copy {n} {at}"));
            copied(&whole, &copy);
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            fs::write(copy.join(file.strip_prefix(&whole).unwrap()), damaged).unwrap();
            if let Ok(journal) = DirectoryJournal::open(&copy, PROCESS)
                && let Ok(pairs) = journal.cut().and_then(|cut| cut.pairs(index))
            {
                pairs.for_each(drop);
            }
            fs::remove_dir_all(copy).unwrap();
        }
    };
    // It waits for the disk most of the time.
    std::thread::scope(|scope| {
        for (n, file) in files.iter().enumerate() {
            let damage = &damage;
            scope.spawn(move || damage(n, file));
        }
    });
}

fn list(dir: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copied(&path, &to);
        } else {
            fs::copy(path, to).unwrap();
        }
    }
}

/// Threads append number after number, each one after the former is accepted: a cut with one of
/// them has all before it, over both indexes, and a cut does not change.
#[test]
#[expect(clippy::disallowed_methods, reason = "real threads")]
fn a_cut_has_what_was_accepted_before_what_it_has() {
    const KEYS: u64 = 7;
    let dir = TempDir::new().expect("a directory");
    let journal = open(dir.path(), PROCESS);
    let indexes = [create(&journal, "a", ""), create(&journal, "b", "")];
    let next = Mutex::new(0u64);
    let append = || {
        let mut number = next.lock().expect("no panic");
        let key = [(*number % KEYS) as u8];
        let index = indexes[(*number % KEYS % 2) as usize];
        journal.append(index, &[put(&key, &number.to_be_bytes())]).expect("appended");
        *number += 1;
        *number
    };
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| while append() < 20_000 {});
        }
        for _ in 0..50 {
            let appended = *next.lock().expect("no panic");
            let cut = journal.cut().expect("a cut");
            let numbers = || -> Vec<u64> {
                let pairs = indexes.iter().flat_map(|i| cut.pairs(*i).expect("there"));
                let number = |pair: Result<Pair>| pair.expect("read").1.try_into().expect("8");
                let mut numbers: Vec<_> = pairs.map(number).map(u64::from_be_bytes).collect();
                numbers.sort_unstable();
                numbers
            };
            let found = numbers();
            let last = found.last().map_or(0, |last| last + 1);
            assert!(last >= appended, "{appended} were accepted before a cut of {last}");
            assert_eq!(found, (last.saturating_sub(KEYS)..last).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(numbers(), found, "it has changed");
        }
    });
}

/// What a process that is killed has appended at the level `Process` is there for the next one: the
/// directory is copied while it is open.
#[test]
fn what_is_staged_survives_the_process() {
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let journal = open(&at("0"), PROCESS);
    let (a, b) = (create(&journal, "a", ""), create(&journal, "b", ""));
    let removed = create(&journal, "c", "");
    journal.append(removed, &[put(b"k", b"gone")]).unwrap();
    journal.append(a, &[put(b"k", b"1"), put(b"l", b"1")]).unwrap();
    journal.append(b, &[put(b"k", b"2")]).unwrap();
    journal.append(a, &[put(b"k", b"3"), Record::Delete { key: b"l" }]).unwrap();
    copied(&at("0"), &at("1"));
    journal.remove(removed).unwrap();
    // A record that is too long to be staged comes behind those that are.
    journal.append(b, &[put(b"k", &vec![8; 5 << 20])]).unwrap();
    journal.append(b, &[put(b"l", b"9")]).unwrap();
    copied(&at("0"), &at("2"));
    drop(journal);
    for level in [PROCESS, Level::Sync, PROCESS] {
        let first = open(&at("1"), level);
        assert_eq!(pairs(&first, a), [(b"k".to_vec(), b"3".to_vec())]);
        assert_eq!(pairs(&first, b), [(b"k".to_vec(), b"2".to_vec())]);
        assert_eq!(pairs(&first, removed), [(b"k".to_vec(), b"gone".to_vec())]);
        let second = open(&at("2"), level);
        assert_eq!(pairs(&second, a), [(b"k".to_vec(), b"3".to_vec())]);
        let of_b = [(b"k".to_vec(), vec![8; 5 << 20]), (b"l".to_vec(), b"9".to_vec())];
        assert_eq!(pairs(&second, b), of_b);
        assert!(second.cut().unwrap().pairs(removed).is_err());
    }
}

/// More is appended than the staging has room for: the engine takes it meanwhile.
#[test]
fn many_appends_wait_for_the_engine() {
    let dir = TempDir::new().expect("a directory");
    let journal = open(dir.path(), PROCESS);
    let index = create(&journal, "a", "");
    for n in 0..40_000u32 {
        journal.append(index, &[put(&(n % 1000).to_be_bytes(), &[n as u8; 1000])]).unwrap();
    }
    drop(journal);
    let journal = open(dir.path(), PROCESS);
    let found = pairs(&journal, index);
    assert_eq!(found.len(), 1000);
    let is_last = |(i, (_, value)): (usize, &Pair)| value[0] == (39_000 + i) as u8;
    assert!(found.iter().enumerate().all(is_last));
}
