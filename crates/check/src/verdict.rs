//! The result of a run.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

use serde::Serialize;

use crate::fault::Happened;
use crate::log::{Log, Wrong};

/// A failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The history is not linearizable.
    History(Wrong),
    /// A read returned bytes that no write stored as one value.
    Torn {
        /// The reader.
        client: u32,
        /// The bytes that it read.
        what: String,
    },
    /// An operation failed without a fault that explains it.
    Failed {
        /// Its client.
        client: u32,
        /// The operation.
        what: String,
        /// The kind of the error.
        kind: String,
        /// The error.
        why: String,
    },
    /// Code panicked.
    Panic {
        /// The client, when it was one.
        client: Option<u32>,
        /// Message and place.
        what: String,
    },
    /// No client can continue.
    Stalled(String),
    /// The bound of a phase has passed.
    Hung {
        /// The phase.
        phase: &'static str,
        /// The operations that have not returned.
        open: Vec<String>,
    },
    /// An operation that no fault touches took too long.
    Slow {
        /// Its client.
        client: u32,
        /// The operation, and how long it took.
        what: String,
    },
    /// A node lost its membership without a fault that explains it.
    Expelled(String),
    /// The fabric's sanitizer reports an illegal verb.
    Access(String),
    /// The structure is broken after the last operation.
    Structure(String),
}

impl Finding {
    /// Its kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::History(Wrong::Order { .. }) => "history",
            Self::History(Wrong::Answer { .. }) => "answer",
            Self::Torn { .. } => "torn",
            Self::Failed { .. } => "failed",
            Self::Panic { .. } => "panic",
            Self::Stalled(_) => "stalled",
            Self::Hung { .. } => "hung",
            Self::Slow { .. } => "slow",
            Self::Expelled(_) => "expelled",
            Self::Access(_) => "access",
            Self::Structure(_) => "structure",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::History(wrong) => wrong.fmt(f),
            Self::Torn { client, what } => write!(f, "client {client}: {what}"),
            Self::Failed { client, what, kind, why } => {
                write!(f, "client {client}: {what} failed ({kind}): {why}")
            }
            Self::Panic { client: Some(client), what } => {
                write!(f, "client {client}: panic: {what}")
            }
            Self::Panic { client: None, what } => write!(f, "panic: {what}"),
            Self::Stalled(why) => f.write_str(why),
            Self::Hung { phase, open } => {
                write!(f, "the {phase} phase does not end; running: {}", open.join("; "))
            }
            Self::Slow { client, what } => write!(f, "client {client}: {what}"),
            Self::Expelled(why) | Self::Access(why) => f.write_str(why),
            Self::Structure(why) => write!(f, "afterwards: {why}"),
        }
    }
}

/// Operations that the availability check has judged during a fault, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Gets.
    pub gets: u64,
    /// Updates and compare-and-sets.
    pub writes: u64,
}

/// A run and its result.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first failure; `None` when all is well.
    pub finding: Option<Finding>,
    /// The faults of the case that have occurred.
    pub happened: Vec<Happened>,
    /// Operations that failed because of a fault.
    pub excused: u64,
    /// Operations during a fault that does not touch their leaf, and that ended within their bound.
    pub available: Judged,
    /// Operations that clients did.
    pub operations: u64,
    /// A digest of every verb and every answer: the same case gives the same.
    pub trace_hash: u64,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// All operations.
    pub log: Log,
}

impl Verdict {
    /// Of a run that shows nothing but this.
    pub(crate) fn of(finding: Finding) -> Self {
        Self { finding: Some(finding), ..Self::default() }
    }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics of this process for the verdict instead of printing them. For a program that only
/// checks.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        LAST_PANIC.with(|last| *last.borrow_mut() = Some(text));
    }));
}

/// The message of a caught panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = LAST_PANIC.with(|last| last.borrow_mut().take()) {
        return text;
    }
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
}
