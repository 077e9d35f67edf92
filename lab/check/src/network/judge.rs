//! The observations of the clients of a simulated network, and a check that they are possible.
//!
//! Words are judged as histories (`history.rs`), those of one writer by the promise of an error,
//! too: a failed write took effect before the failure, or never. A successor of the writer takes
//! the word over once the membership says that no verb of its predecessor executes any more.

use std::collections::{BTreeMap, BTreeSet};

use dmtree_fabric::{Effect, Error, GlobalAddr};

use crate::history::{Event, Op, Swap, check_key};

/// Words that clients write, each value once, and read. All are absent at first.
#[derive(Debug, Default)]
pub(super) struct Words {
    words: BTreeMap<GlobalAddr, Vec<Op>>,
    /// Calls and returns so far.
    ticks: u64,
    last: u64,
}

impl Words {
    /// A value that no other write has.
    pub(super) fn value(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A read begins; returns its time, in the order of all calls and returns.
    pub(super) fn begin(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// The word was read. One that was never written is absent.
    pub(super) fn found(&mut self, word: GlobalAddr, call: u64, value: u64) {
        let (ret, event) = (Some(self.begin()), Event::Get((value != 0).then_some(value)));
        self.words.entry(word).or_default().push(Op { call, ret, event });
    }

    /// A write or a swap begins, as it is if it takes effect; the time of its call names it. Its
    /// outcome is unknown until it ends.
    pub(super) fn call(&mut self, word: GlobalAddr, event: Event) -> u64 {
        let call = self.begin();
        self.words.entry(word).or_default().push(Op { call, ret: None, event });
        call
    }

    /// A write ends; `None` when it had no effect.
    fn ret(&mut self, word: GlobalAddr, call: u64, event: Option<Event>) {
        let now = self.begin();
        let ops = self.words.entry(word).or_default();
        let Some(at) = ops.iter().rposition(|op| op.call == call) else { return };
        match event {
            Some(event) => ops[at] = Op { call, ret: Some(now), event },
            None => _ = ops.remove(at),
        }
    }

    /// The writer of a word has written, or failed.
    pub(super) fn written(
        &mut self,
        (word, call): (GlobalAddr, u64),
        value: u64,
        done: &Result<(), Error>,
    ) {
        let event = match done {
            Ok(()) => Some(Event::Put(value)),
            Err(e) if e.effect() == Effect::None => None,
            Err(_) => Some(Event::Tried(value)),
        };
        self.ret(word, call, event);
    }

    /// The word has another writer from now on: no write that runs takes effect any more.
    pub(super) fn taken_over(&mut self, word: GlobalAddr) {
        let now = self.begin();
        let ops = self.words.entry(word).or_default();
        for op in ops.iter_mut().filter(|op| op.ret.is_none()) {
            if let Event::Put(v) = op.event {
                (op.ret, op.event) = (Some(now), Event::Tried(v));
            }
        }
    }

    /// A compare-and-swap of a word that all write has ended: with the value that it found, or an
    /// error.
    pub(super) fn swapped(
        &mut self,
        (word, call): (GlobalAddr, u64),
        (old, new): (u64, u64),
        done: &Result<u64, Error>,
    ) {
        match done {
            Ok(was) => self.ret(word, call, Some(swap(old, new, *was))),
            Err(e) if e.effect() == Effect::None => self.ret(word, call, None),
            Err(_) => {}
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut words = self.words.iter();
        words.try_for_each(|(word, ops)| {
            check_key(ops, None).map_err(|v| format!("the word {word}: {v}"))
        })
    }
}

/// A swap of `old` to `new` that found `was`.
pub(super) fn swap(old: u64, new: u64, was: u64) -> Event {
    match was {
        _ if old == 0 => Event::Insert(new, was == 0),
        0 => Event::CompareAndSet(old, new, Swap::NotFound),
        was if was == old => Event::CompareAndSet(old, new, Swap::Done),
        _ => Event::CompareAndSet(old, new, Swap::Mismatch),
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
