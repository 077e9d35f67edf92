//! Traces from files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use xxhash_rust::xxh3::xxh3_64;

use super::formats::{Format, Parser};
use super::parse::{Action, TraceOp};
use crate::error::TraceError;

/// The longest line, bytes: 16 MiB.
pub const MAX_LINE: usize = 16 << 20;

/// Buffer per open file, bytes.
const BUFFER: usize = 64 << 10;

/// Number of operations of each kind, and number of skipped lines of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are described above
pub struct TraceCounts {
    pub reads: u64,
    pub inserts: u64,
    pub updates: u64,
    pub scans: u64,
    pub deletes: u64,
    pub client_lines: u64,
}

impl TraceCounts {
    /// All operations.
    pub fn operations(&self) -> u64 {
        self.reads + self.inserts + self.updates + self.scans + self.deletes
    }

    fn add(&mut self, action: &Action) {
        match action {
            Action::Read(_) => self.reads += 1,
            Action::Insert(_) => self.inserts += 1,
            Action::Update(_) => self.updates += 1,
            Action::Scan { .. } => self.scans += 1,
            Action::Delete => self.deletes += 1,
        }
    }
}

/// The operations of one or more files, one after the other. Plain and gzipped files (recognized by
/// their first bytes, not their names) may be mixed. Memory does not grow with the files. Reading
/// ends after an error.
pub struct TraceReader {
    waiting: std::vec::IntoIter<PathBuf>,
    now: Option<Source>,
    /// The table of the first operation.
    table: Option<Vec<u8>>,
    line: Vec<u8>,
    limit: usize,
    format: Format,
    counts: TraceCounts,
}

struct Source {
    name: PathBuf,
    from: Box<dyn BufRead + Send>,
    line: u64,
    parser: Parser,
}

impl std::fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let now = self.now.as_ref().map(|s| (&s.name, s.line));
        write!(f, "TraceReader({now:?}, {:?}, {:?})", self.waiting.as_slice(), self.counts)
    }
}

impl TraceReader {
    /// Reads these files in this order as one trace.
    ///
    /// # Errors
    /// No files, or one that cannot be opened: an error now is better than one after an hour of
    /// replay.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, TraceError> {
        let paths: Vec<PathBuf> = paths.iter().map(|p| p.as_ref().to_path_buf()).collect();
        if paths.is_empty() {
            return Err(failed(
                Path::new("trace"),
                0,
                "no trace files were given: name at least one".to_owned(),
            ));
        }
        for path in &paths {
            let dir = File::open(path).and_then(|file| file.metadata()).map(|meta| meta.is_dir());
            match dir {
                Ok(false) => {}
                Ok(true) => {
                    return Err(failed(path, 0, "a directory: name the files in it".to_owned()));
                }
                Err(e) => return Err(failed(path, 0, format!("cannot open the trace: {e}"))),
            }
        }
        Ok(TraceReader::over(paths, None))
    }

    /// Reads a stream as a trace, plain or gzipped; `name` is for messages.
    ///
    /// # Errors
    /// The first bytes of the stream cannot be read.
    pub fn from_reader(name: &str, from: impl Read + Send + 'static) -> Result<Self, TraceError> {
        let name = PathBuf::from(name);
        match unzipped(from) {
            Ok(from) => {
                let parser = Parser::new(Format::default());
                let now = Some(Source { name, from, line: 0, parser });
                Ok(TraceReader::over(Vec::new(), now))
            }
            Err(e) => Err(failed(&name, 0, format!("cannot read the trace: {e}"))),
        }
    }

    fn over(waiting: Vec<PathBuf>, now: Option<Source>) -> Self {
        TraceReader {
            waiting: waiting.into_iter(),
            now,
            table: None,
            line: Vec::new(),
            limit: MAX_LINE,
            format: Format::default(),
            counts: TraceCounts::default(),
        }
    }

    /// Sets the form, before anything is read; the default is that of the YCSB client.
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self.now.iter_mut().for_each(|source| source.parser = Parser::new(format));
        self
    }

    /// Sets the longest line, bytes; the default is [`MAX_LINE`].
    pub fn with_line_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Counts of what was read so far.
    pub fn counts(&self) -> TraceCounts {
        self.counts
    }

    fn advance(&mut self) -> Result<Option<TraceOp>, TraceError> {
        loop {
            let Some(source) = &mut self.now else {
                let Some(name) = self.waiting.next() else { return Ok(None) };
                let opened = File::open(&name).and_then(unzipped);
                let from =
                    opened.map_err(|e| failed(&name, 0, format!("cannot open the trace: {e}")))?;
                let parser = Parser::new(self.format);
                self.now = Some(Source { name, from, line: 0, parser });
                continue;
            };
            self.line.clear();
            // Of an endless line no more than the limit is buffered.
            let mut bounded = source.from.by_ref().take(self.limit as u64 + 1);
            let more = bounded.read_until(b'\n', &mut self.line);
            source.line += 1;
            let fail = |why| Err(failed(&source.name, source.line, why));
            let number = source.line;
            match more {
                Ok(0) => {
                    self.now = None;
                    continue;
                }
                Ok(_) if self.line.last() == Some(&b'\n') => _ = self.line.pop(),
                Ok(read) if read > self.limit => {
                    return fail(format!("longer than {} bytes: is this a trace?", self.limit));
                }
                Ok(_) => {}
                Err(e) => return fail(format!("cannot read on: {e}")),
            }
            match source.parser.line(&self.line, number) {
                Ok(None) => self.counts.client_lines += 1,
                Ok(Some(op)) => {
                    let table = self.table.get_or_insert_with(|| op.table.clone());
                    if *table != op.table {
                        return fail(format!(
                            "table {:?} after table {:?}: an index has one key space, so replay each table by itself",
                            String::from_utf8_lossy(&op.table),
                            String::from_utf8_lossy(table)
                        ));
                    }
                    self.counts.add(&op.action);
                    return Ok(Some(op));
                }
                Err(why) => return fail(why),
            }
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceOp, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.now = None;
            self.waiting = Vec::new().into_iter();
        }
        next.transpose()
    }
}

fn failed(file: &Path, line: u64, why: String) -> TraceError {
    TraceError { file: file.to_path_buf(), line, why }
}

/// The text of a stream that may be gzipped.
fn unzipped(mut from: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    const GZIP: [u8; 2] = [0x1F, 0x8B];
    const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
    let mut start = Vec::with_capacity(ZSTD.len());
    from.by_ref().take(ZSTD.len() as u64).read_to_end(&mut start)?;
    if start == ZSTD {
        return Err(io::Error::other("it is packed by zstd: unpack it with zstd -d"));
    }
    let zipped = start.starts_with(&GZIP);
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(from));
    Ok(if zipped {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
    } else {
        Box::new(whole)
    })
}

/// The thread, of `threads`, that runs the operations on `key`: always the same one, on every
/// machine, so that their order is that of the trace. A scan belongs to the thread of its start
/// key.
pub fn shard(key: &[u8], threads: usize) -> usize {
    let wide = u128::from(xxh3_64(key)) * threads.max(1) as u128;
    (wide >> 64) as usize
}
