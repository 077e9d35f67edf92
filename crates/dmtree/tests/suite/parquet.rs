//! Parquet files of other programs, and ours in the hands of another program.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use dmtree::{ErrorKind, Index, Options, Pool};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

fn index() -> (Pool, Index) {
    let pool = Pool::embedded().memory("64MiB").open().expect("a pool");
    let index = pool.create("pairs", Options::default()).expect("a new index");
    (pool, index)
}

/// What another program writes: one row group a slice; `None` is a null.
type Rows<'r> = &'r [(Option<&'r str>, Option<&'r str>)];

fn written(to: &Path, schema: &str, groups: &[Rows<'_>]) {
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let file = File::create(to).expect("made");
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, schema.clone(), properties).expect("begun");
    for rows in groups {
        let mut group = writer.next_row_group().expect("a group");
        for field in schema.get_fields() {
            let mut column = group.next_column().expect("written").expect("a column");
            let cells: Vec<Option<&str>> = match field.name() {
                "key" => rows.iter().map(|(k, _)| *k).collect(),
                "value" => rows.iter().map(|(_, v)| *v).collect(),
                _ => {
                    let numbers: Vec<i64> = (0..rows.len() as i64).collect();
                    column.typed::<Int64Type>().write_batch(&numbers, None, None).expect("written");
                    column.close().expect("closed");
                    continue;
                }
            };
            let levels: Vec<i16> = cells.iter().map(|c| i16::from(c.is_some())).collect();
            let values: Vec<ByteArray> =
                cells.iter().flatten().map(|c| ByteArray::from(*c)).collect();
            let levels = field.is_optional().then_some(&levels[..]);
            column.typed::<ByteArrayType>().write_batch(&values, levels, None).expect("written");
            column.close().expect("closed");
        }
        group.close().expect("closed");
    }
    writer.close().expect("closed");
}

const OPTIONAL: &str =
    "message m { required int64 n; optional binary value; optional binary key (UTF8); }";

#[test]
fn columns_of_another_program_are_found_by_name() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("theirs.parquet");
    let (_pool, index) = index();
    let first: Vec<String> = (0..100).map(|n| format!("a{n:03}")).collect();
    let first: Vec<_> = first.iter().map(|k| (Some(&k[..]), Some("x"))).collect();
    written(&path, OPTIONAL, &[&first, &[], &[(Some("b"), Some("")), (Some("c"), Some("z"))]]);
    assert_eq!(index.import(&[&path]).expect("imported").pairs, 102);
    assert_eq!(index.get("a063").expect("read").as_deref(), Some(&b"x"[..]));
    assert_eq!(index.get("b").expect("read").as_deref(), Some(&b""[..]));
}

#[test]
fn rows_that_are_wrong_are_named() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("theirs.parquet");
    let (_pool, index) = index();
    let fine = (Some("a"), Some("x"));
    let long = "k".repeat(1025);
    let cases: [(&str, &[Rows<'_>], &str); 8] = [
        (OPTIONAL, &[&[fine], &[(Some("b"), None)]], "row 2: its value is null"),
        (OPTIONAL, &[&[fine, (None, Some("x"))]], "row 2: its key is null"),
        (
            OPTIONAL,
            &[&[fine], &[(Some("c"), Some("")), (Some("b"), Some(""))]],
            "row 3: its key is",
        ),
        (OPTIONAL, &[&[fine, fine]], "row 2: its key is not above"),
        (OPTIONAL, &[&[fine, (Some(&long), Some(""))]], "row 2: a key of 1025 bytes"),
        (OPTIONAL, &[&[(Some(""), Some(""))]], "row 1: "),
        ("message m { required binary key; required int64 n; }", &[&[fine]], "no column \"value\""),
        (
            "message m { required int64 key1; required binary value; }",
            &[&[fine]],
            "no column \"key\"",
        ),
    ];
    for (schema, groups, says) in cases {
        written(&path, schema, groups);
        let e = index.import(&[&path]).expect_err(says);
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains(says), "{says:?} in {e}");
        assert!(e.to_string().contains("theirs.parquet"), "{e}");
        assert!(index.scan(..).pairs().next().is_none(), "{says}");
    }
    fs::write(&path, b"PAR1 no more than that PAR1").expect("written");
    index.import(&[&path]).expect_err("it is none");
}

/// Groups are cut, rows are in order, and say so.
#[test]
fn an_export_says_how_it_is_sorted() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("ours.parquet");
    let (_pool, index) = index();
    let pairs = (0..140_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 8]));
    index.load(pairs, dmtree::LoadOrder::Sorted).expect("loaded");
    assert_eq!(index.export(&path).expect("exported"), 140_000);
    let file = SerializedFileReader::new(File::open(&path).expect("there")).expect("Parquet");
    let rows: Vec<i64> = file.metadata().row_groups().iter().map(|g| g.num_rows()).collect();
    assert_eq!(rows, [131_072, 140_000 - 131_072]);
    for group in file.metadata().row_groups() {
        let sorted = group.sorting_columns().expect("it is said");
        assert_eq!((sorted.len(), sorted[0].column_idx, sorted[0].descending), (1, 0, false));
        assert!(group.columns().iter().all(|c| c.compression().to_string().starts_with("SNAPPY")));
    }
    another_program_reads(&path);
}

/// `pyarrow` finds the rows, where Python has it.
fn another_program_reads(path: &Path) {
    const SCRIPT: &str = "
import sys
try:
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit(77)
table = parquet.read_table(sys.argv[1])
assert table.column_names == ['key', 'value'], table.column_names
keys, values = table.column('key').to_pylist(), table.column('value').to_pylist()
assert keys == [n.to_bytes(4, 'big') for n in range(140000)], keys[:3]
assert set(values) == {bytes([7] * 8)}, values[:3]
";
    let python = std::env::var("DMTREE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    match Command::new(&python).args(["-c", SCRIPT]).arg(path).output() {
        Ok(o) if o.status.success() => {}
        Ok(o) if o.status.code() == Some(77) => {
            eprintln!("SKIPPED: {python} has no pyarrow: no other program has read the export");
        }
        Ok(o) => panic!("{}", String::from_utf8_lossy(&o.stderr)),
        Err(e) => eprintln!("SKIPPED: no {python} ({e}): no other program has read the export"),
    }
}
