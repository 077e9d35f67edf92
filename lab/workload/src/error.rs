//! The error type of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An unknown name.
    UnknownName,
    /// A number or text outside of the permitted values.
    BadValue,
    /// A file of keys that cannot be used.
    KeyFile,
    /// A file that cannot be read.
    Io,
    /// A line of an operation trace that is neither an operation nor a line of the client.
    Trace,
    /// Bytes that are no encoded record.
    Record,
}

/// An error in a workload, a key file, a trace or a stored record. Displays as one line: the cause,
/// and what to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<std::io::Error>,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn bad_value(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::BadValue, message)
    }

    pub(crate) fn unknown(what: &str, name: &str, valid: &str) -> Self {
        Error::new(ErrorKind::UnknownName, format!("unknown {what} {name:?}: give one of {valid}"))
    }

    pub(crate) fn io(what: &str, path: &Path, source: std::io::Error) -> Self {
        Error {
            kind: ErrorKind::Io,
            message: format!("cannot {what} {}: {source}", path.display()),
            source: Some(source),
        }
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// The place and reason at which reading an operation trace stopped. Reading does not continue
/// after an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The file, or the name that was given for a stream.
    pub file: PathBuf,
    /// The line, counted from 1 in that file; 0 when the file could not be opened.
    pub line: u64,
    /// The reason.
    pub why: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.file.display(), self.why)
        } else {
            write!(f, "{}, line {}: {}", self.file.display(), self.line, self.why)
        }
    }
}

impl std::error::Error for TraceError {}

impl From<TraceError> for Error {
    fn from(e: TraceError) -> Self {
        Error::new(ErrorKind::Trace, e.to_string())
    }
}
