//! Traces from files: one or several, plain or gzipped, whole or not.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use dmtree_workload::TraceError;
use dmtree_workload::trace::{Action, Fields, Record, TraceCounts, TraceOp, TraceReader, shard};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A load and a run as the client prints them, written by hand: status lines, odd values, all
/// operations.
const SMALL: &str = include_str!("data/small.trace");

fn file(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn gzipped(content: &[u8]) -> Vec<u8> {
    let mut zip = GzEncoder::new(Vec::new(), Compression::default());
    zip.write_all(content).unwrap();
    zip.finish().unwrap()
}

fn read(content: &[u8]) -> Result<TraceCounts, TraceError> {
    let mut reader = TraceReader::from_reader("t", std::io::Cursor::new(content.to_vec()))?;
    reader.try_for_each(|op| op.map(drop))?;
    Ok(reader.counts())
}

fn operations(text: &str) -> Vec<TraceOp> {
    let reader = TraceReader::from_reader("t", std::io::Cursor::new(text.to_owned())).unwrap();
    reader.map(Result::unwrap).collect()
}

/// The values of the keys at the end.
fn replay(ops: impl IntoIterator<Item = TraceOp>) -> BTreeMap<Vec<u8>, Record> {
    let mut store = BTreeMap::new();
    for op in ops {
        let current = store.remove(&op.key);
        if let Some(record) = op.action.apply(current) {
            store.insert(op.key, record);
        }
    }
    store
}

#[test]
fn the_small_trace_is_read_whole() {
    let counts = read(SMALL.as_bytes()).unwrap();
    let due =
        TraceCounts { reads: 5, inserts: 6, updates: 4, scans: 2, deletes: 2, client_lines: 33 };
    assert_eq!(counts, due);
    assert_eq!(counts.operations(), 19);
    let ops = operations(SMALL);
    let store = replay(ops.clone());
    assert_eq!(store.len(), 5);
    let merged = &store[&b"user1000385178204227360"[..]];
    assert_eq!(merged.0[&0], b"one ] two [ three");
    assert_eq!(merged.0[&1], b" new = value ");
    assert_eq!(merged.0[&2], b"");
    let again = &store[&b"user2408371864701034737"[..]];
    assert_eq!(again.0, BTreeMap::from([(0, b"back".to_vec())]));
    assert!(
        ops.iter()
            .any(|op| op.action == Action::Scan { count: 17, fields: Fields::Some(vec![0, 2]) })
    );
}

#[test]
fn several_files_plain_and_gzipped_are_one_trace() {
    let dir = tempfile::tempdir().unwrap();
    let half = SMALL.match_indices('\n').nth(30).unwrap().0 + 1;
    let (one, two) = SMALL.as_bytes().split_at(half);
    // Concatenated members, as `cat a.gz b.gz` makes them; names do not matter.
    let (start, end) = two.split_at(two.iter().position(|&b| b == b'\n').unwrap() + 1);
    let members = [gzipped(start), gzipped(end)].concat();
    let paths = [file(dir.path(), "one", one), file(dir.path(), "two.txt", &members)];
    let ours: Vec<_> = TraceReader::open(&paths).unwrap().map(Result::unwrap).collect();
    let whole = operations(SMALL);
    assert_eq!(ours, whole);
    // Reversed, they are another trace.
    let other: Vec<_> =
        TraceReader::open(&[&paths[1], &paths[0]]).unwrap().map(Result::unwrap).collect();
    assert_ne!(other, whole);
}

#[test]
fn errors_say_file_and_line_and_end_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let good = file(dir.path(), "good", b"DELETE t a\nDELETE t b\n");
    let bad = file(dir.path(), "bad.gz", &gzipped(b"DELETE t c\n\nwhat is this\nDELETE t d\n"));
    let mut reader = TraceReader::open(&[&good, &bad, &good]).unwrap();
    assert!((0..3).all(|_| reader.next().unwrap().is_ok()));
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!((&error.file, error.line), (&bad, 3));
    assert!(error.to_string().contains("bad.gz, line 3: neither an operation"), "{error}");
    assert!(reader.next().is_none() && reader.next().is_none());
    let missing = TraceReader::open(&[good.clone(), dir.path().join("none")]).unwrap_err();
    assert!(missing.to_string().contains("none: cannot open"), "{missing}");
    assert!(TraceReader::open(&[dir.path()]).unwrap_err().to_string().contains("a directory"));
    assert!(TraceReader::open::<&Path>(&[]).is_err());
}

#[test]
fn a_damaged_gzip_is_an_error_not_a_short_trace() {
    let whole = gzipped(SMALL.repeat(50).as_bytes());
    assert_eq!(read(&whole).unwrap().operations(), 19 * 50);
    let error = read(&whole[..whole.len() - 20]).unwrap_err();
    assert!(error.line > 0 && error.why.contains("cannot read on"), "{error}");
    let mut flipped = whole.clone();
    let end = flipped.len() - 6;
    flipped[end] ^= 1;
    assert!(read(&flipped).is_err());
    assert!(read(&[0x1F, 0x8B]).is_err());
}

#[test]
fn lines_are_bounded_and_the_last_needs_no_newline() {
    assert_eq!(read(b"").unwrap(), TraceCounts::default());
    assert_eq!(read(b"DELETE t a").unwrap().deletes, 1);
    assert_eq!(read(b"DELETE t a\r\nDELETE t b\r\n\r\n").unwrap().deletes, 2);
    assert!(read(b"INSERT t a [ field0=cut o").is_err());
    let long = format!("DELETE t a\nDELETE t {}\n", "k".repeat(91));
    let open = |limit| {
        TraceReader::from_reader("t", std::io::Cursor::new(long.clone()))
            .unwrap()
            .with_line_limit(limit)
    };
    assert_eq!(open(100).filter(Result::is_ok).count(), 2);
    let error = open(99).find_map(Result::err).unwrap();
    assert_eq!(error.line, 2);
    assert!(error.why.contains("longer than 99 bytes"), "{error}");
    // Without a newline, no more than the limit is buffered.
    let endless = TraceReader::from_reader("t", std::io::repeat(b'x').take(1 << 30))
        .unwrap()
        .with_line_limit(1 << 16);
    assert!(endless.map(Result::unwrap_err).next().unwrap().why.contains("longer than"));
}

#[test]
fn two_tables_are_refused() {
    let error = read(b"DELETE t a\nDELETE u a\n").unwrap_err();
    assert_eq!(error.line, 2);
    assert!(error.why.contains("table \"u\" after table \"t\""), "{error}");
}

#[test]
fn threads_keep_the_order_of_each_key() {
    let mut text = String::new();
    for i in 0..3000 {
        let key = i * 7919 % 100;
        text += &match i % 10 {
            9 => format!("DELETE t user{key}\n"),
            0..4 => format!("INSERT t user{key} [ field0=v{i} ]\n"),
            _ => format!("UPDATE t user{key} [ field{}=v{i} ]\n", i % 4),
        };
    }
    let ops = operations(&text);
    let due = replay(ops.clone());
    for threads in [1, 2, 7, 64] {
        let mut lists = vec![Vec::new(); threads];
        ops.iter().for_each(|op| lists[shard(&op.key, threads)].push(op.clone()));
        // The threads one after the other, last first. The order does not matter, because each key
        // belongs to one thread.
        assert_eq!(replay(lists.into_iter().rev().flatten()), due);
    }
    // Keys spread over threads, and the mapping is frozen.
    let mut load = [0; 8];
    (0..8000).for_each(|i| load[shard(format!("user{i}").as_bytes(), 8)] += 1);
    assert!(load.iter().all(|l| (850..1150).contains(l)), "{load:?}");
    assert_eq!([1, 2, 3, 4].map(|i| shard(format!("user{i}").as_bytes(), 1000)), FROZEN);
    assert_eq!(shard(b"user1", 0), 0);
}
const FROZEN: [usize; 4] = [937, 533, 837, 707];

proptest! {
    // A fixed seed, so that a failure repeats.
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn any_bytes_are_read_or_refused(content: Vec<u8>, zip: bool, junk: Vec<u8>) {
        let mut bytes = if zip { gzipped(&content) } else { content };
        bytes.extend(junk);
        let _ = read(&bytes);
    }

    #[test]
    fn a_trace_cut_or_changed_anywhere_never_panics(at in 0..SMALL.len(), byte: u8, cut: bool) {
        let mut bytes = SMALL.as_bytes().to_vec();
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        let _ = read(&bytes);
    }
}

/// `DMTREE_TRACE_DIR` may name a directory of traces; each must be readable to its end.
#[test]
fn traces_of_the_directory_are_read_whole() {
    let Some(dir) = std::env::var_os("DMTREE_TRACE_DIR") else { return };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let mut reader = TraceReader::open(&[&path]).unwrap();
        let mut encoded = Vec::new();
        for op in &mut reader {
            if let Action::Insert(record) | Action::Update(record) = op.unwrap().action {
                record.encode(&mut encoded);
                assert_eq!(Record::decode(&encoded).unwrap(), record);
            }
        }
        // Shown by `--no-capture`.
        writeln!(std::io::stdout(), "{}: {:?}", path.display(), reader.counts()).unwrap();
        assert!(reader.counts().operations() > 0, "{}", path.display());
    }
}
