//! Pairs as Parquet: two columns of bytes, `key` and `value`.
//!
//! Rows are in key order and marked as sorted. A group ends after 131 072 rows or 16 MiB. Pages are
//! compressed with Snappy. The metadata of a file has the index's name and options
//! ([`Head`], as JSON) under [`HEAD`].
//!
//! A file of another program has two columns of these names among others, BINARY and without nulls;
//! they may be declared optional, as several writers do.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dmtree_fabric::{Error, Result};
use parquet::basic::{Compression, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::{Head, Pair, PairReader, PairWriter, wrong};

/// Where the metadata of a file has its [`Head`].
const HEAD: &str = "dmtree.export.1";
/// What comes before the version in it.
const HEAD_OF_ANY_VERSION: &str = "dmtree.export.";
const SCHEMA: &str = "message pairs { required binary key; required binary value; }";
const COLUMNS: [&str; 2] = ["key", "value"];

const GROUP_ROWS: usize = 131_072;
const GROUP_BYTES: usize = 16 << 20;
/// What the memory of a group grows by.
const STEP_BYTES: usize = 1 << 20;
/// Rows that are read at a time: with values of 1 MiB they are 32 MiB.
const READ_ROWS: usize = 32;

/// A column of a row group that is gathered.
#[derive(Default)]
struct Column {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Column {
    fn push(&mut self, value: &[u8]) {
        // A vector that doubles would take three times its bytes for a moment.
        if self.bytes.capacity() - self.bytes.len() < value.len() {
            self.bytes.reserve_exact(value.len().max(STEP_BYTES));
        }
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    fn take(&mut self) -> Vec<ByteArray> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let mut from = 0;
        let value = |end| ByteArray::from(bytes.slice(std::mem::replace(&mut from, end)..end));
        std::mem::take(&mut self.ends).into_iter().map(value).collect()
    }
}

struct Writer<W: Write + Send> {
    to: SerializedFileWriter<W>,
    columns: [Column; 2],
}

/// Writes a file.
pub(crate) fn writer(to: impl Write + Send + 'static, head: &Head) -> Result<Box<dyn PairWriter>> {
    let schema = parse_message_type(SCHEMA).expect("it is a schema");
    let to =
        SerializedFileWriter::new(to, Arc::new(schema), properties(head)).map_err(unwritten)?;
    Ok(Box::new(Writer { to, columns: Default::default() }))
}

fn properties(head: &Head) -> WriterPropertiesPtr {
    let head = serde_json::to_string(head).expect("plain fields have a text");
    let by_key = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        // Keys are all different.
        .set_column_dictionary_enabled(ColumnPath::from("key"), false)
        .set_sorting_columns(Some(vec![by_key]))
        .set_key_value_metadata(Some(vec![KeyValue::new(HEAD.to_owned(), head)]))
        .set_created_by(concat!("dmtree ", env!("CARGO_PKG_VERSION")).to_owned());
    Arc::new(properties.build())
}

impl<W: Write + Send> Writer<W> {
    fn end_group(&mut self) -> Result<(), ParquetError> {
        if self.columns[0].ends.is_empty() {
            return Ok(());
        }
        let mut group = self.to.next_row_group()?;
        for column in &mut self.columns {
            let mut to = group.next_column()?.expect("the schema has two columns");
            to.typed::<ByteArrayType>().write_batch(&column.take(), None, None)?;
            to.close()?;
        }
        group.close().map(drop)
    }
}

impl<W: Write + Send> PairWriter for Writer<W> {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let [keys, values] = &mut self.columns;
        keys.push(key);
        values.push(value);
        if keys.ends.len() == GROUP_ROWS || keys.bytes.len() + values.bytes.len() >= GROUP_BYTES {
            self.end_group().map_err(unwritten)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.end_group().map_err(unwritten)?;
        self.to.finish().map_err(unwritten)?;
        self.to.inner_mut().flush().map_err(|e| Error::file("write it", &e))
    }
}

/// Rows of one column, a few at a time.
struct Rows {
    column: ColumnReaderImpl<ByteArrayType>,
    values: Vec<ByteArray>,
    levels: Vec<i16>,
}

struct Reader {
    file: SerializedFileReader<File>,
    columns: [usize; 2],
    next_group: usize,
    rows: Option<[Rows; 2]>,
    /// Of the rows in memory.
    at: usize,
    /// Of all rows, how many were read.
    row: u64,
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<(Box<dyn PairReader>, Option<Head>)> {
    let file = File::open(path).map_err(|e| Error::file("open it", &e))?;
    let bytes = file.metadata().map_err(|e| Error::file("open it", &e))?.len();
    let file = guarded(|| SerializedFileReader::new(file))?;
    let columns = columns(&file)?;
    check_places(&file, bytes)?;
    let head = head(&file)?;
    let reader = Reader { file, columns, next_group: 0, rows: None, at: 0, row: 0 };
    Ok((Box::new(reader), head))
}

fn columns(file: &SerializedFileReader<File>) -> Result<[usize; 2]> {
    let schema = file.metadata().file_metadata().schema_descr();
    let find = |name: &str| {
        let found = schema.columns().iter().position(|c| c.path().parts() == [name]);
        let at = found.ok_or_else(|| {
            Error::invalid(format!("it has no column {name:?}: it needs `key` and `value`, BINARY"))
        })?;
        let column = schema.column(at);
        if column.physical_type() != Physical::BYTE_ARRAY || column.max_rep_level() > 0 {
            return Err(Error::invalid(format!(
                "its column {name:?} is of type {}, and must be BINARY",
                column.physical_type()
            )));
        }
        Ok(at)
    };
    Ok([find(COLUMNS[0])?, find(COLUMNS[1])?])
}

/// The reader of the library trusts the metadata: it must name places inside of the file.
fn check_places(file: &SerializedFileReader<File>, bytes: u64) -> Result<()> {
    for (number, group) in file.metadata().row_groups().iter().enumerate() {
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let end = u64::try_from(start)
                .ok()
                .zip(u64::try_from(column.compressed_size()).ok())
                .and_then(|(start, size)| start.checked_add(size));
            if end.is_none_or(|end| end > bytes) || column.num_values() < 0 {
                return Err(Error::invalid(format!(
                    "its metadata is damaged: row group {number} lies outside of the file"
                )));
            }
        }
    }
    Ok(())
}

/// Calls the library on bytes that nothing vouches for: where it panics, the file is damaged.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(unread),
        Err(_) => Err(Error::invalid("cannot read it: it is damaged")),
    }
}

fn head(file: &SerializedFileReader<File>) -> Result<Option<Head>> {
    let metadata = file.metadata().file_metadata().key_value_metadata();
    let ours = |entry: &&KeyValue| entry.key.starts_with(HEAD_OF_ANY_VERSION);
    let Some(entry) = metadata.and_then(|all| all.iter().find(ours)) else { return Ok(None) };
    if entry.key != HEAD {
        return Err(Error::incompatible(format!(
            "it has metadata {:?}, and this release reads {HEAD:?}",
            entry.key
        )));
    }
    let text = entry.value.as_deref().unwrap_or_default();
    let head = serde_json::from_str(text);
    head.map(Some).map_err(|e| Error::invalid(format!("its metadata {HEAD:?}: {e}")))
}

impl Rows {
    /// Reads the next rows, at most [`READ_ROWS`]: how many there are.
    fn read(&mut self) -> Result<(usize, usize), ParquetError> {
        self.values.clear();
        self.levels.clear();
        let levels = Some(&mut self.levels);
        let (rows, values, _) =
            self.column.read_records(READ_ROWS, levels, None, &mut self.values)?;
        Ok((rows, values))
    }
}

impl Reader {
    /// Reads more rows; false at the end of the file.
    fn read(&mut self) -> Result<bool> {
        loop {
            if let Some(rows) = &mut self.rows {
                let mut counts = [0; 2];
                for (i, column) in rows.iter_mut().enumerate() {
                    let (rows, values) = guarded(|| column.read())
                        .map_err(|e| e.context(format!("row {}", self.row + 1)))?;
                    if values < rows {
                        let is_null = column.levels.iter().position(|level| *level == 0);
                        let row = self.row + 1 + is_null.unwrap_or(0) as u64;
                        let what = format!("its {} is null", COLUMNS[i]);
                        return Err(wrong(format_args!("row {row}"), what));
                    }
                    counts[i] = rows;
                }
                if counts[0] != counts[1] {
                    return Err(wrong(self.place(), "its columns have different lengths"));
                }
                if counts[0] > 0 {
                    self.at = 0;
                    return Ok(true);
                }
            }
            if self.next_group == self.file.num_row_groups() {
                return self.end();
            }
            self.rows = Some(guarded(|| self.open_group())?);
            self.next_group += 1;
        }
    }

    fn end(&mut self) -> Result<bool> {
        let rows = self.file.metadata().file_metadata().num_rows();
        if u64::try_from(rows) != Ok(self.row) {
            let what = format!("it has {} rows, and its metadata says {rows}", self.row);
            return Err(Error::invalid(what));
        }
        self.rows = None;
        Ok(false)
    }

    fn open_group(&self) -> Result<[Rows; 2], ParquetError> {
        let group = self.file.get_row_group(self.next_group)?;
        let open = |at| match group.get_column_reader(at)? {
            ColumnReader::ByteArrayColumnReader(column) => {
                Ok(Rows { column, values: Vec::new(), levels: Vec::new() })
            }
            _ => Err(ParquetError::General("a column changes its type".into())),
        };
        Ok([open(self.columns[0])?, open(self.columns[1])?])
    }
}

impl PairReader for Reader {
    fn next(&mut self, pair: &mut Pair) -> Result<bool> {
        let in_memory = self.rows.as_ref().map_or(0, |rows| rows[0].values.len());
        if self.at == in_memory && !self.read()? {
            return Ok(false);
        }
        let [keys, values] = self.rows.as_ref().expect("rows were read");
        for (to, from) in [(&mut pair.key, keys), (&mut pair.value, values)] {
            to.clear();
            to.extend_from_slice(from.values[self.at].data());
        }
        self.at += 1;
        self.row += 1;
        Ok(true)
    }

    fn place(&self) -> String {
        format!("row {}", self.row)
    }
}

fn unwritten(e: ParquetError) -> Error {
    match e {
        ParquetError::External(e) if e.is::<std::io::Error>() => {
            Error::file("write it", e.downcast_ref().expect("it is one"))
        }
        e => Error::invalid(format!("cannot write it: {e}")),
    }
}

fn unread(e: ParquetError) -> Error {
    Error::invalid(format!("cannot read it: {e}"))
}
