//! The error type of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use dmtree_fabric::suggest;

/// An error in a workload, a key file, a trace or a stored record. Displays as one line: the cause,
/// and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    message: String,
    source: Option<std::io::Error>,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), source: None }
    }

    /// Refuses a name; `valid` are those that there are, with commas between them.
    pub(crate) fn unknown(what: &str, name: &str, valid: &str) -> Self {
        Error::new(suggest::unknown(what, name, &valid.split(", ").collect::<Vec<_>>()))
    }

    pub(crate) fn io(what: &str, path: &Path, source: std::io::Error) -> Self {
        let message = format!("cannot {what} {}: {source}", path.display());
        Error { message, source: Some(source) }
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
