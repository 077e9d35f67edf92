//! The calls of a simulated network, and what their callers heard of them.

use std::collections::BTreeSet;

/// Calls, each with a number of its own.
#[derive(Debug, Default)]
pub(super) struct Calls {
    next: u64,
    /// Calls that a handler has begun.
    begun: BTreeSet<u64>,
    /// Calls that failed without effect.
    failed: BTreeSet<u64>,
    pub(super) wrong: Option<String>,
}

impl Calls {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A handler begins.
    pub(super) fn begin(&mut self, number: u64) {
        if !self.begun.insert(number) {
            self.wrong = Some(format!("call {number} was executed twice"));
        }
        if self.failed.contains(&number) {
            self.wrong = Some(format!("call {number} was executed after it had failed"));
        }
    }

    /// The caller got its answer.
    pub(super) fn answered(&mut self, number: u64) {
        if !self.begun.contains(&number) {
            self.wrong = Some(format!("call {number} was answered and never executed"));
        }
    }

    /// The caller got an error without effect.
    pub(super) fn refused(&mut self, number: u64) {
        self.failed.insert(number);
        if self.begun.contains(&number) {
            self.wrong = Some(format!("call {number} was executed and failed without an effect"));
        }
    }
}
