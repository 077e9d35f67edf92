//! The observations of the clients of a simulated network, and a check that they are possible.
//!
//! *Words of one writer* are judged by the promise of an error: a failed write took effect before
//! the failure, or never. So the word has, from then on, one of its possible values of that time,
//! until its writer writes again. A successor of the writer takes the word over once the membership
//! says that no verb of its predecessor executes any more, and judges the same.
//!
//! *Shared words* are judged as histories (`history.rs`).

use std::collections::BTreeSet;

use crate::history::{Event, History, Op, Swap};

/// A word of one writer at a time.
#[derive(Clone, Debug)]
pub(super) struct OwnWord {
    may_be: BTreeSet<u64>,
    next: u64,
}

impl OwnWord {
    pub(super) fn new() -> Self {
        Self { may_be: BTreeSet::from([0]), next: 1 }
    }

    /// A value is about to be written.
    pub(super) fn begin(&mut self) -> u64 {
        let value = self.next;
        self.next += 1;
        self.may_be.insert(value);
        value
    }

    /// A value of a process that is not the writer any more: no read may find it.
    pub(super) fn stray(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The value was written.
    pub(super) fn written(&mut self, value: u64) {
        self.may_be = BTreeSet::from([value]);
    }

    /// The value was not written, and will not be.
    pub(super) fn not_written(&mut self, value: u64) {
        self.may_be.remove(&value);
    }

    /// The word was read by its writer.
    pub(super) fn found(&mut self, value: u64) -> Result<(), String> {
        if !self.may_be.contains(&value) {
            let may_be: Vec<String> = self.may_be.iter().map(u64::to_string).collect();
            return Err(format!("found {value}, where only {} can be", may_be.join(" or ")));
        }
        self.may_be = BTreeSet::from([value]);
        Ok(())
    }
}

/// Words that all write, by compare-and-swap of values that are written once.
#[derive(Debug)]
pub(super) struct SharedWords {
    history: History,
    next: u64,
}

impl SharedWords {
    pub(super) fn new() -> Self {
        Self { history: History::default(), next: 1 }
    }

    /// A value that no other write has.
    pub(super) fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn push(&mut self, word: u64, call: u64, ret: Option<u64>, event: Event) {
        self.history.push(&word.to_be_bytes(), Op { call, ret, event });
    }

    /// The word was read. One that was never written is absent.
    pub(super) fn found(&mut self, word: u64, call: u64, ret: u64, value: u64) {
        self.push(word, call, Some(ret), Event::Get((value != 0).then_some(value)));
    }

    /// A swap of `old` to `new`; `was` is the value that the verb found, if it is known.
    pub(super) fn swapped(
        &mut self,
        word: u64,
        (call, ret): (u64, u64),
        (old, new): (u64, u64),
        was: Option<u64>,
    ) {
        let event = match (old, was) {
            (0, Some(was)) => Event::Insert(new, was == 0),
            (0, None) => Event::Insert(new, true),
            (_, None) => Event::CompareAndSet(old, new, Swap::Done),
            (_, Some(0)) => Event::CompareAndSet(old, new, Swap::NotFound),
            (_, Some(was)) if was == old => Event::CompareAndSet(old, new, Swap::Done),
            (_, Some(_)) => Event::CompareAndSet(old, new, Swap::Mismatch),
        };
        self.push(word, call, was.map(|_| ret), event);
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.history.check().map_err(|(word, v)| format!("shared word {word:?}: {v}"))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_failed_does_not_happen_later() {
        let mut word = OwnWord::new();
        let first = word.begin();
        word.written(first);
        let second = word.begin();
        assert_eq!(word.found(first), Ok(()), "it failed, and was not written");
        assert!(word.found(second).is_err(), "it was written later");
        let third = word.begin();
        assert_eq!(word.found(third), Ok(()), "it failed, and was written before");
        assert!(word.found(first).is_err());
    }
}
