//! Failures of a command, and their exit status.

use std::fmt;
use std::path::Path;

use dmtree_fabric::ErrorKind;

/// Exit status for an interrupt.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Why a command has failed. Displays as one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The input cannot be used; nothing was changed.
    Input(String),
    /// A result is wrong, or an operation failed.
    Violation(String),
    /// The user has interrupted the command.
    Interrupted,
}

/// Result type of commands.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Bad input.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    /// What a layer below refuses: its input, or a node, pool or port that is not there.
    pub fn refused(e: impl fmt::Display) -> Self {
        Self::Input(e.to_string())
    }

    /// A mismatch or violation.
    pub fn violation(message: impl Into<String>) -> Self {
        Self::Violation(message.into())
    }

    /// A file that cannot be read or written.
    pub fn file(what: &str, path: &Path, e: &std::io::Error) -> Self {
        Self::Input(format!("cannot {what} {}: {e}", path.display()))
    }

    /// The exit status; that of a success is 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Violation(_) => 1,
            Self::Interrupted => EXIT_INTERRUPTED,
        }
    }

    /// The same failure with its place.
    #[must_use]
    pub fn context(self, at: &str) -> Self {
        match self {
            Self::Input(m) => Self::Input(format!("{at}: {m}")),
            Self::Violation(m) => Self::Violation(format!("{at}: {m}")),
            Self::Interrupted => Self::Interrupted,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(m) | Self::Violation(m) => f.write_str(m),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<dmtree_fabric::Error> for Failure {
    fn from(e: dmtree_fabric::Error) -> Self {
        match e.kind() {
            ErrorKind::InvalidArgument
            | ErrorKind::Full
            | ErrorKind::Unsupported
            | ErrorKind::Incompatible => Self::Input(e.to_string()),
            _ => Self::Violation(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_map_to_statuses() {
        use dmtree_fabric::Error;
        assert_eq!(Failure::from(Error::invalid("x")).exit_code(), 2);
        assert_eq!(Failure::from(Error::full("x")).exit_code(), 2);
        assert_eq!(Failure::from(Error::corrupt("x")).exit_code(), 1);
        assert_eq!(Failure::Interrupted.exit_code(), 130);
        assert_eq!(Failure::input("bad").context("line 3").to_string(), "line 3: bad");
    }
}
