//! One error type for the fabric and everything above it: a kind to branch on, a context to read,
//! and whether the effect of a failed write is known.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Result of anything that may touch the fabric.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed something that cannot be right.
    InvalidArgument,
    /// No memory is left where it was needed; stored data stays usable.
    Full,
    /// Other clients held a needed lock or resource until the deadline passed.
    Contended,
    /// The deadline passed.
    TimedOut,
    /// A node cannot be reached.
    Unreachable,
    /// This node, or the target, has lost its membership.
    Revoked,
    /// Remote bytes that no correct execution leaves behind.
    Corrupt,
    /// Versions, formats or options that do not fit together.
    Incompatible,
    /// The fabric or the index cannot do this.
    Unsupported,
    /// Something with this name exists already.
    Exists,
    /// Nothing with this name exists.
    NotFound,
    /// Too much is in flight; try again later.
    Busy,
    /// The index, session or pool was closed.
    Closed,
}

/// After a failed write: may it have happened?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// It did not and will not happen.
    None,
    /// It may have happened, or may still happen.
    Unknown,
}

/// An error with a kind, an effect and a one-line context that names a way out.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    message: String,
    trail: Vec<String>,
}

impl Error {
    /// A new error without effect.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::None,
            message: message.into(),
            trail: Vec::new(),
        }))
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// What the system says of a file: `Full` for a device without room, `NotFound`, or else
    /// `InvalidArgument`.
    pub fn file(what: &str, e: &std::io::Error) -> Self {
        use std::io::ErrorKind::{NotFound, QuotaExceeded, StorageFull};
        let kind = match e.kind() {
            StorageFull | QuotaExceeded => ErrorKind::Full,
            NotFound => ErrorKind::NotFound,
            _ => ErrorKind::InvalidArgument,
        };
        Self::new(kind, format!("cannot {what}: {e}"))
    }

    /// An [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// A [`ErrorKind::Full`].
    pub fn full(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Full, message)
    }

    /// A [`ErrorKind::TimedOut`].
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TimedOut, message)
    }

    /// An [`ErrorKind::Unreachable`].
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, message)
    }

    /// A [`ErrorKind::Revoked`].
    pub fn revoked(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Revoked, message)
    }

    /// An [`ErrorKind::Incompatible`].
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Incompatible, message)
    }

    /// An [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// An [`ErrorKind::Exists`].
    pub fn exists(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exists, message)
    }

    /// A [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// A [`ErrorKind::Busy`].
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Busy, message)
    }

    /// A [`ErrorKind::Closed`].
    pub fn closed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, message)
    }

    /// The same error, saying that a write may have happened.
    #[must_use]
    pub fn effect_unknown(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// The same error, of a write that had not begun to change anything.
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.0.effect = Effect::None;
        self
    }

    /// The same error with one more line on where it arose.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.0.trail.push(context.into());
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a write may have happened.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Whether the same call may succeed later without any intervention.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Contended | ErrorKind::TimedOut | ErrorKind::Unreachable | ErrorKind::Busy
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.trail.iter().rev() {
            write!(f, "{line}: ")?;
        }
        f.write_str(&self.0.message)?;
        if self.0.effect == Effect::Unknown {
            f.write_str(" (the effect is unknown: it may have happened)")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}, effect {:?}: {}", self.0.kind, self.0.effect, self.0.message)?;
        for line in &self.0.trail {
            writeln!(f, "  in {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// An [`Error`] in transit to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    kind: ErrorKind,
    effect: Effect,
    message: String,
}

impl Failure {
    /// The same with a message of so many bytes at most.
    pub(crate) fn cut(&self, most: usize) -> Self {
        let message = self.message[..self.message.floor_char_boundary(most)].to_string();
        Self { message, ..self.clone() }
    }
}

impl From<&Error> for Failure {
    fn from(e: &Error) -> Self {
        let plain = Error::new(e.kind(), "");
        let mut message = e.to_string();
        if e.effect() == Effect::Unknown {
            let tail = plain.effect_unknown().to_string();
            message.truncate(message.len() - tail.len());
        }
        Self { kind: e.kind(), effect: e.effect(), message }
    }
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Self {
        let e = Self::new(f.kind, f.message);
        if f.effect == Effect::Unknown { e.effect_unknown() } else { e }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_context_and_effect() {
        let e = Error::timed_out("no answer from mn0 within 10 ms").context("put").effect_unknown();
        assert_eq!(
            e.to_string(),
            "put: no answer from mn0 within 10 ms (the effect is unknown: it may have happened)"
        );
        assert!(e.is_retryable() && e.effect() == Effect::Unknown);
        assert_eq!(size_of::<Error>(), 8);
    }
}
