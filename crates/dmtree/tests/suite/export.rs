//! Indexes as files, and back; what is refused of a file, and that nothing is stored then.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dmtree::{Error, ErrorKind, Index, LoadOrder, Options, Pool};
use proptest::prelude::*;
use tempfile::TempDir;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

const FORMATS: [&str; 2] = ["jsonl", "parquet"];

fn pool() -> Pool {
    Pool::embedded().memory("64MiB").open().expect("a pool")
}

fn index(pool: &Pool, name: &str, pairs: &Pairs) -> Index {
    let options = Options::default().key_inline_bytes(16).value_inline_bytes(32);
    let index = pool.create(name, options).expect("a new index");
    let pairs = pairs.iter().map(|(k, v)| (k.clone(), v.clone()));
    index.load(pairs, LoadOrder::Sorted).expect("loaded");
    index
}

fn contents(index: &Index) -> Pairs {
    index.scan(..).pairs().collect::<Result<_, _>>().expect("a scan")
}

fn numbered(n: u32) -> Pairs {
    (0..n).map(|i| (i.to_be_bytes().to_vec(), format!("value {i}").into_bytes())).collect()
}

fn refused<T>(result: Result<T, Error>, kind: ErrorKind, says: &[&str]) {
    let e = result.err().expect("it is refused");
    assert_eq!(e.kind(), kind, "{e}");
    says.iter().for_each(|what| assert!(e.to_string().contains(what), "{what:?} in {e}"));
}

fn file(dir: &TempDir, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("written");
    path
}

fn pair_strategy() -> impl Strategy<Value = Pairs> {
    let key = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..40),
        proptest::collection::vec(0u8..2, 1000..1024)
    ];
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        proptest::collection::vec(any::<u8>(), 3000..5000)
    ];
    proptest::collection::btree_map(key, value, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn what_is_exported_comes_back(pairs in pair_strategy(), others in pair_strategy()) {
        let dir = TempDir::new().expect("a directory");
        let pool = pool();
        let (a, b) = (index(&pool, "a", &pairs), index(&pool, "b", &others));
        for format in FORMATS {
            let [of_a, of_b] = ["a", "b"].map(|n| dir.path().join(format!("{n}.{format}")));
            prop_assert_eq!(a.export(&of_a).expect("exported"), pairs.len() as u64);
            b.export(&of_b).expect("exported");
            let (copy, loaded) =
                pool.import_into_new(&format!("copy {format}"), &[&of_a]).expect("imported");
            prop_assert_eq!(loaded.pairs, pairs.len() as u64);
            prop_assert_eq!(loaded.leaves > 0, !pairs.is_empty(), "whole leaves");
            prop_assert_eq!(copy.options(), a.options());
            prop_assert_eq!(contents(&copy), pairs.clone());
            // Merged, into an empty index and into one with keys: the last file's values stay.
            let mut both = pairs.clone();
            both.extend(others.clone());
            let merged = index(&pool, &format!("merged {format}"), &Pairs::new());
            let loaded = merged.import(&[&of_a, &of_b]).expect("imported");
            prop_assert_eq!(loaded.pairs, both.len() as u64);
            prop_assert_eq!(contents(&merged), both.clone());
            copy.import(&[&of_b]).expect("imported");
            prop_assert_eq!(contents(&copy), both);
            copy.import_unsorted(&[&of_b, &of_a]).expect("imported");
            let mut other_way = others.clone();
            other_way.extend(pairs.clone());
            prop_assert_eq!(contents(&copy), other_way);
            copy.shape().expect("whole");
        }
    }
}

/// Nothing of a file that is cut off anywhere is stored, and no change of a byte stores what is not
/// said to be wrong and is no pair of the file's form.
#[test]
fn a_damaged_file_is_refused_whole() {
    let dir = TempDir::new().expect("a directory");
    let pool = pool();
    let pairs = numbered(40);
    let whole = index(&pool, "whole", &pairs);
    for format in FORMATS {
        let path = dir.path().join(format!("whole.{format}"));
        whole.export(&path).expect("exported");
        let bytes = fs::read(&path).expect("read");
        let damaged = dir.path().join(format!("damaged.{format}"));
        let empty = index(&pool, &format!("empty {format}"), &Pairs::new());
        // A Parquet file takes long to open: every third byte.
        let step = if format == "parquet" { 3 } else { 1 };
        // The end of the last line is no part of it.
        for cut in (0..bytes.len() - 1).step_by(step) {
            fs::write(&damaged, &bytes[..cut]).expect("written");
            match empty.import(&[&damaged]) {
                // A file of nothing has no pairs and no first line.
                Ok(loaded) => assert_eq!((loaded.pairs, format), (0, "jsonl"), "cut at {cut}"),
                Err(e) => assert!(e.to_string().contains("damaged"), "{e}"),
            }
            assert!(contents(&empty).is_empty(), "cut at {cut}");
        }
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            fs::write(&damaged, &changed).expect("written");
            // It may have become another file of pairs; it is no panic.
            if empty.import(&[&damaged]).is_ok() {
                for key in contents(&empty).keys() {
                    empty.delete(key).expect("deleted");
                }
            }
            assert!(contents(&empty).is_empty(), "changed at {at}");
        }
    }
}

#[test]
fn lines_that_are_wrong_are_named() {
    let dir = TempDir::new().expect("a directory");
    let pool = pool();
    let empty = index(&pool, "empty", &Pairs::new());
    let line = |key: &str| format!("{{\"key\":\"{key}\",\"value\":\"\"}}\n");
    let long = "QUFB".repeat(400);
    let cases = [
        (format!("{}{}", line("YQ=="), line("YQ==")), "line 2: its key is not above"),
        (format!("{}\n\n{}", line("Yg=="), line("YQ==")), "line 4: its key is not above"),
        (format!("{}nonsense\n", line("YQ==")), "line 2: "),
        (format!("{}{{\"key\":\"Yg==\"}}\n", line("YQ==")), "line 2: neither"),
        (line("Y"), "line 1: the key is no base64"),
        (line(""), "line 1: "),
        (line(&long), "line 1: a key of 1200 bytes is over the limit"),
        (format!("{}{{\"pairs\":3}}\n", line("YQ==")), "line 2: there are 1 pairs before it"),
        ("{\"dmtree_export\":2}\n".to_owned(), "version 2"),
        ("{\"dmtree_export\":1,\"index\":5}\n".to_owned(), "line 1: "),
        (" ".repeat(3_000_000), "line 1: it has over"),
    ];
    for (text, says) in cases {
        let path = file(&dir, "bad.jsonl", &text);
        let e = empty.import(&[&path]).expect_err(says);
        assert!(e.to_string().contains(says), "{says:?} in {e}");
        assert!(e.to_string().contains("bad.jsonl"), "{e}");
        assert!(contents(&empty).is_empty(), "{says}");
    }
    let spaced = " {\"value\" : \"\", \"comment\":1, \"key\": \"YQ==\"}";
    let path = file(&dir, "other.jsonl", spaced);
    empty.import(&[&path]).expect("another program's line");
    assert_eq!(contents(&empty), Pairs::from([(b"a".to_vec(), Vec::new())]));
    refused(
        pool.import_into_new("new", &[&path]),
        ErrorKind::InvalidArgument,
        &["other.jsonl", "does not say what options"],
    );
    refused(pool.open("new"), ErrorKind::NotFound, &[]);
}

#[test]
fn a_new_index_that_cannot_be_filled_is_gone() {
    let dir = TempDir::new().expect("a directory");
    let pool = pool();
    let path = dir.path().join("some.jsonl");
    index(&pool, "some", &numbered(10)).export(&path).expect("exported");
    let mut text = fs::read_to_string(&path).expect("read");
    text = text.replace("\"key\":\"AAAABQ==\"", "\"key\":\"AAAAAA==\"");
    fs::write(&path, text).expect("written");
    refused(
        pool.import_into_new("new", &[&path]),
        ErrorKind::InvalidArgument,
        &["line 7: its key is not above"],
    );
    refused(pool.open("new"), ErrorKind::NotFound, &[]);
    refused(pool.import_into_new("some", &[&path]), ErrorKind::Exists, &["some"]);
}

#[test]
fn files_are_written_whole_and_by_one_export() {
    let dir = TempDir::new().expect("a directory");
    let pool = pool();
    let some = index(&pool, "some", &numbered(10));
    let to = |name: &str| dir.path().join(name);
    refused(some.export(to("x.csv")), ErrorKind::InvalidArgument, &["x.csv", ".jsonl"]);
    refused(some.export(to("no/x.jsonl")), ErrorKind::NotFound, &["no/x.jsonl"]);
    let path = file(&dir, "there.jsonl", "mine");
    refused(some.export(&path), ErrorKind::Exists, &["there.jsonl", "remove it"]);
    assert_eq!(fs::read_to_string(&path).expect("read"), "mine");
    // Another export holds the file.
    let part = fs::File::create(to("busy.jsonl.part")).expect("made");
    part.lock().expect("locked");
    refused(some.export(to("busy.jsonl")), ErrorKind::Busy, &["another export"]);
    assert!(to("busy.jsonl.part").exists());
    // It has ended without its file: what it has left is written over.
    drop(part);
    fs::write(to("busy.jsonl.part"), vec![b'x'; 100_000]).expect("written");
    assert_eq!(some.export(to("busy.jsonl")).expect("exported"), 10);
    assert!(!to("busy.jsonl.part").exists());
    let other = index(&pool, "other", &Pairs::new());
    assert_eq!(other.import(&[to("busy.jsonl")]).expect("imported").pairs, 10);
    refused(other.import(&[to("none.jsonl")]), ErrorKind::NotFound, &["none.jsonl"]);
    let none: [&Path; 0] = [];
    refused(other.import(&none), ErrorKind::InvalidArgument, &["no file"]);
}

/// A scan that fails leaves no file.
#[test]
fn an_export_that_fails_leaves_nothing() {
    let dir = TempDir::new().expect("a directory");
    let pool = pool();
    let some = index(&pool, "some", &numbered(10));
    pool.drop_index("some").expect("dropped");
    let path = dir.path().join("some.jsonl");
    refused(some.export(&path), ErrorKind::Closed, &[]);
    assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
}
