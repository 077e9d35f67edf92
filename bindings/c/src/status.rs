//! What a call returns, and the message of the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dmtree::{Error, ErrorKind, Outcome, Result};

/// What a call has done, or why it has failed. Errors are negative.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It took effect, or the key is there.
    Ok = 0,
    /// Nothing was changed: the key exists (insert).
    Exists = 1,
    /// The key is absent. Nothing was changed, but by `dmtree_replace`: it was absent before.
    Absent = 2,
    /// Nothing was changed: the value differs (compare-and-set).
    Mismatch = 3,
    /// A scan has no further pair.
    End = 4,
    /// An argument cannot be right.
    InvalidArgument = -1,
    /// No memory is left where it was needed; stored data stays usable.
    Full = -2,
    /// Other clients held a needed lock or resource until the deadline passed.
    Contended = -3,
    /// The deadline passed.
    TimedOut = -4,
    /// A node cannot be reached.
    Unreachable = -5,
    /// This node, or the target, has lost its membership.
    Revoked = -6,
    /// Bytes that no correct execution leaves behind.
    Corrupt = -7,
    /// Versions, formats or options that do not fit together.
    Incompatible = -8,
    /// The pool or the index cannot do this.
    Unsupported = -9,
    /// An index of this name exists already.
    NameExists = -10,
    /// No index of this name exists.
    NameNotFound = -11,
    /// Too much is in flight, or another process has it open; try again later.
    Busy = -12,
    /// The handle was closed, or is none.
    Closed = -13,
    /// A defect of the library: it panicked. The handles of the call are best closed.
    Panicked = -14,
    /// Another error: the message says which.
    Other = -15,
}

/// Whether a write that failed may have happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It did not and will not happen.
    None = 0,
    /// It may have happened, or may still happen.
    Unknown = 1,
}

impl From<ErrorKind> for Status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument => Self::InvalidArgument,
            ErrorKind::Full => Self::Full,
            ErrorKind::Contended => Self::Contended,
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Revoked => Self::Revoked,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::Incompatible => Self::Incompatible,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Exists => Self::NameExists,
            ErrorKind::NotFound => Self::NameNotFound,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::Closed => Self::Closed,
            _ => Self::Other,
        }
    }
}

impl From<Outcome> for Status {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Ok,
            Outcome::Exists => Self::Exists,
            Outcome::NotFound => Self::Absent,
            Outcome::Mismatch => Self::Mismatch,
        }
    }
}

struct LastError {
    message: CString,
    effect: Effect,
}

thread_local! {
    static LAST: RefCell<LastError> =
        RefCell::new(LastError { message: CString::default(), effect: Effect::None });
}

/// The status of an error, which becomes the thread's last one.
pub(crate) fn failed(e: &Error) -> Status {
    let effect = match e.effect() {
        dmtree::Effect::None => Effect::None,
        dmtree::Effect::Unknown => Effect::Unknown,
    };
    note(&e.to_string(), effect);
    e.kind().into()
}

fn note(message: &str, effect: Effect) {
    let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = LastError { message, effect });
}

/// Runs a call: its errors and its panics become a status.
pub(crate) fn call(body: impl FnOnce() -> Result<Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(e)) => failed(&e),
        Err(_) => {
            note("a defect of the library: it panicked", Effect::Unknown);
            Status::Panicked
        }
    }
}

/// The message of the last call of this thread that failed: a text that ends with a zero byte, and
/// stays until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().message.as_ptr())
}

/// Whether the last write of this thread that failed may have happened.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_last_effect() -> Effect {
    LAST.with(|last| last.borrow().effect)
}

/// The version of the library: a text that ends with a zero byte, and stays.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
