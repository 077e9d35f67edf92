//! Indexes as files that other programs read, and back.
//!
//! An export is a scan that is written down: every pair was current at some instant while it ran, a
//! key that is there throughout is not missed, and each key is there once, in order. It is no
//! snapshot.
//!
//! | name ends with | what it is |
//! |---|---|
//! | `.jsonl`, `.ndjson` | a JSON object a line, with bytes as base64 (`json_lines.rs`) |
//! | `.parquet` | columns `key` and `value`, with the feature `parquet` (`parquet.rs`) |
//!
//! Files are written whole or not at all (`file.rs`). They are read twice: the first pass finds
//! everything that is wrong with them, before the second one stores a pair. Both directions hold a
//! few MiB, whatever the size of the file (`tests/memory.rs`).

mod file;
mod import;
mod json_lines;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
pub(crate) mod parquet;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use dmtree_fabric::{Error, Result};
use dmtree_parts::Loaded;
use serde::{Deserialize, Serialize};

pub(crate) use file::{Shared, WholeFile};
pub(crate) use import::{Merged, import_into_new};

use crate::{Index, Options};

/// What a file says of the index that it was exported from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Its name.
    pub index: String,
    /// What it was created with.
    pub options: Options,
}

/// A form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    JsonLines,
    Parquet,
}

impl Format {
    /// By the end of a file's name.
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("jsonl" | "ndjson") => Ok(Self::JsonLines),
            Some("parquet") => Ok(Self::Parquet),
            _ => Err(Error::invalid(format!(
                "{}: the name says no format: let it end with .jsonl or .parquet",
                path.display()
            ))),
        }
    }
}

/// Takes pairs in key order.
pub(crate) trait PairWriter {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Writes what ends a file.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Gives pairs in the order of a file.
trait PairReader: Send {
    /// The next pair, into these; false at the end. What is wrong is said with its line or row.
    fn next(&mut self, pair: &mut Pair) -> Result<bool>;
    /// The line or row of the last pair.
    fn place(&self) -> String;
}

/// A pair in memory that is used again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pair {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Index {
    /// Writes all pairs to a file: Parquet (feature `parquet`) when its name ends with `.parquet`,
    /// JSON lines when it ends with `.jsonl`. Returns their number.
    ///
    /// Every pair was current at some instant of the export, and a key that is there throughout is
    /// not missed. It is **not a snapshot**. The file appears when it is complete.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("users.jsonl");
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// let users = pool.create("users", dmtree::Options::default())?;
    /// users.put("ada", "1815")?;
    /// users.export(&file)?;
    /// let (copy, loaded) = pool.import_into_new("copy", &[&file])?;
    /// assert_eq!(loaded.pairs, 1);
    /// assert_eq!(copy.get("ada")?.as_deref(), Some(&b"1815"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a name of another form and a file that cannot be written, `Exists` for
    /// one that is there, `Busy` for one that another export is writing, `Full` when the device is
    /// full, `Unsupported` for Parquet without the feature; those of a scan.
    pub fn export(&self, to: impl AsRef<Path>) -> Result<u64> {
        let to = to.as_ref();
        let format = Format::of(to)?;
        let file = WholeFile::create(to)?;
        let head = Head { index: self.name().to_owned(), options: self.options() };
        let pairs = self.export_to(file.writer(), format, &head).map_err(|e| at(to, e))?;
        file.publish()?;
        Ok(pairs)
    }

    /// Stores the pairs of files that [`Index::export`] or another program has written: Parquet
    /// with the columns `key` and `value`, or JSON lines. An empty index gets whole leaves, as by
    /// [`Index::load`]; into any other the pairs are put. Several files are merged; of equal keys
    /// that of the last file stays.
    ///
    /// Nothing is stored when a file has anything wrong.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) names the file and the
    /// line or row: keys that do not ascend, keys and values out of range, lines and columns of
    /// another form, a truncated file. Those of [`Index::load`] and [`Index::write_batch`]: some
    /// pairs may be stored then.
    pub fn import(&self, files: &[impl AsRef<Path>]) -> Result<Loaded> {
        import::import(self, files)
    }

    /// As [`Index::import`], for files with keys in any order: the pairs are put in the order of
    /// the files, and of equal keys the last stays.
    pub fn import_unsorted(&self, files: &[impl AsRef<Path>]) -> Result<Loaded> {
        import::import_unsorted(self, files)
    }

    fn export_to(
        &self,
        to: impl Write + Send + 'static,
        format: Format,
        head: &Head,
    ) -> Result<u64> {
        let mut writer: Box<dyn PairWriter> = match format {
            Format::JsonLines => Box::new(json_lines::Writer::new(to, head)?),
            Format::Parquet => parquet::writer(to, head)?,
        };
        let (mut pairs, mut scan) = (0, self.scan(..).pairs());
        while let Some((key, value)) = scan.next_ref()? {
            writer.pair(key, value)?;
            pairs += 1;
        }
        writer.finish()?;
        Ok(pairs)
    }
}

/// An error with the file that it is about.
fn at(path: &Path, e: Error) -> Error {
    e.context(path.display().to_string())
}

/// Something is wrong with a line or row.
fn wrong(place: impl Display, what: impl Display) -> Error {
    Error::invalid(format!("{place}: {what}"))
}
