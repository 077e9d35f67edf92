//! The appends of a compute node that are not accepted yet, over all parts of the journal.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Error, Result};

use crate::Ticket;
use crate::sender::Entry;

/// The appends that are under way.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    state: Mutex<State>,
    news: WaitQueue,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Those that are neither accepted nor settled.
    open: BTreeMap<u64, Open>,
}

/// An append.
#[derive(Debug, Default)]
struct Open {
    /// Records that are not accepted.
    left: usize,
    /// Records in an attempt that is under way.
    on_their_way: usize,
    failure: Option<Error>,
    is_given_up: bool,
}

impl Appends {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An append of so many records.
    pub(crate) fn begin(&self, records: usize) -> u64 {
        let mut state = self.state();
        state.last += 1;
        let ticket = state.last;
        if records > 0 {
            state.open.insert(ticket, Open { left: records, ..Open::default() });
        }
        ticket
    }

    pub(crate) fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        match self.state().open.get(&ticket.0) {
            None => Ok(true),
            Some(Open { failure: Some(e), .. }) => Err(e.clone()),
            Some(_) => Ok(false),
        }
    }

    /// As [`crate::Journal::settle`].
    pub(crate) fn settle(&self, ticket: Ticket) -> bool {
        let mut state = self.state();
        let Some(open) = state.open.get_mut(&ticket.0) else { return true };
        open.is_given_up = true;
        let has_ended = open.on_their_way == 0;
        if has_ended {
            state.open.remove(&ticket.0);
        }
        has_ended
    }

    pub(crate) fn news(&self) -> &WaitQueue {
        &self.news
    }

    /// An attempt begins with these records: those that were given up are not part of it.
    pub(crate) fn depart(&self, batch: &mut Vec<Entry>) {
        let mut state = self.state();
        batch.retain(|entry| match state.open.get_mut(&entry.ticket) {
            Some(open) if !open.is_given_up => {
                open.on_their_way += 1;
                true
            }
            _ => false,
        });
    }

    /// An attempt has ended, and there will be another.
    pub(crate) fn stay(&self, batch: &[Entry]) {
        let mut state = self.state();
        for entry in batch {
            if let Some(open) = state.open.get_mut(&entry.ticket) {
                open.on_their_way -= 1;
            }
        }
    }

    /// The last attempt with these records has ended: they are accepted, or have failed.
    pub(crate) fn end(&self, batch: Vec<Entry>, failure: impl Fn(&Entry) -> Option<Error>) {
        let mut state = self.state();
        for entry in batch {
            let Some(open) = state.open.get_mut(&entry.ticket) else { continue };
            open.on_their_way -= 1;
            match failure(&entry) {
                Some(e) => _ = open.failure.get_or_insert(e),
                None => open.left -= 1,
            }
            if open.left == 0 {
                state.open.remove(&entry.ticket);
            }
        }
        drop(state);
        self.news.wake_all();
    }
}
