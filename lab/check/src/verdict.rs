//! The result of a run.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::Serialize;

use crate::fault::Happened;
use crate::log::{Log, Wrong};

/// A failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The history is not linearizable.
    History(Wrong),
    /// Anything else: its kind, the client that it has met, if it was one, and its description.
    ///
    /// Kinds: `torn` (bytes that no write stored as one value), `failed` (an operation, without a
    /// fault that explains it), `panic`, `stalled` (no client can continue), `hung` (the bound of a
    /// phase has passed), `slow` (an operation that no fault touches), `expelled` (a node, without
    /// a fault that explains it), `access` (an illegal verb, as the sanitizer reports it),
    /// `structure` (broken after the last operation), `repeat` (two runs of the case differ).
    Other(&'static str, Option<u32>, String),
}

impl Finding {
    /// Its kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::History(Wrong::Order { .. }) => "history",
            Self::History(Wrong::Answer { .. }) => "answer",
            Self::Other(kind, ..) => kind,
        }
    }

    /// Code panicked.
    pub(crate) fn panic(client: Option<u32>, text: &str) -> Self {
        Self::Other("panic", client, format!("panic: {text}"))
    }

    /// The structure is broken, or could not be looked at.
    pub(crate) fn structure(why: impl fmt::Display) -> Self {
        Self::Other("structure", None, format!("afterwards: {why}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::History(wrong) => wrong.fmt(f),
            Self::Other(_, Some(client), what) => write!(f, "client {client}: {what}"),
            Self::Other(_, None, what) => f.write_str(what),
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
    /// Compares the run with another one of the same case. A run is a function of its case alone:
    /// without that, no failure can be replayed.
    pub fn compare(&mut self, again: &Self) {
        if self.trace_hash == again.trace_hash && self.log == again.log {
            return;
        }
        let mut pairs = self.log.records().iter().zip(again.log.records());
        let first = pairs.position(|(a, b)| a != b).map_or_else(
            || "their verbs differ, and no answer does".to_owned(),
            |n| {
                let (a, b) = (&self.log.records()[n], &again.log.records()[n]);
                format!("operation {n} was {a:?} and then {b:?}")
            },
        );
        let repeat = || Finding::Other("repeat", None, format!("two runs differ: {first}"));
        self.finding.get_or_insert_with(repeat);
    }
}

/// Longest pause between two ticks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

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

/// Runs what may panic; the message of a panic is its error.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let kept = LAST_PANIC.with(|last| last.borrow_mut().take());
        let text = kept.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
    })
}

/// Runs `work` on so many threads, by number, and calls `tick` at intervals until all have ended.
/// The message of a panic is an error.
pub fn on_threads<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    tick: &mut dyn FnMut(),
) -> Vec<Result<T, String>> {
    std::thread::scope(|scope| {
        let work = &work;
        let run = |number| scope.spawn(move || caught(|| work(number)));
        let running: Vec<_> = (0..threads).map(run).collect();
        let mut pause = Duration::from_millis(1);
        while running.iter().any(|thread| !thread.is_finished()) {
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            tick();
        }
        running.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    })
}
