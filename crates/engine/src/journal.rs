//! The journal of a durable index (`dmtree-journal`): the effect of a write is appended, and
//! accepted, before it is visible.
//!
//! Under the leaf's lock, when everything is decided that decides the write, and as the last step
//! before the WRITE that commits it: the entry or the freed slot of a point write, the image of a
//! split with its pending pair, the entries of a round of a batch. A load appends its leaves as it
//! builds them, waits for all of them before it commits, and clears the index's journal when it
//! fails: the index was empty, and is locked.
//!
//! What moves pairs and changes none (merges, relocations, recovery) appends nothing. A write that
//! its caller drops after the append may take effect in the journal alone; nothing else was
//! acknowledged for the key, because the write has the lock.

use dmtree_fabric::Result;
use dmtree_journal::{Append, IndexJournal, Record};

use crate::Client;

/// The journal of a client's index.
#[derive(Clone, Copy)]
pub(crate) struct Journaled<'c>(pub &'c Client);

/// The effect of a write of a value, or of a delete.
pub(crate) fn effect<'r>(key: &'r [u8], value: Option<&'r [u8]>) -> Record<'r> {
    match value {
        Some(value) => Record::Put { key, value },
        None => Record::Delete { key },
    }
}

impl<'c> Journaled<'c> {
    fn journal(self) -> Option<&'c IndexJournal> {
        self.0.node.journal.get()
    }

    /// Appends effects and waits until they are accepted.
    pub(crate) async fn append(self, effects: &[Record<'_>]) -> Result<()> {
        match self.begin(effects)? {
            Some(append) => append.accepted(&self.0.ep).await,
            None => Ok(()),
        }
    }

    /// Appends effects; the caller waits for the append before it makes them visible.
    pub(crate) fn begin(self, effects: &[Record<'_>]) -> Result<Option<Append<'c>>> {
        match self.journal() {
            Some(journal) if !effects.is_empty() => journal.append(effects).map(Some),
            _ => Ok(None),
        }
    }

    /// Appends an effect that is accepted at once. `false`: it must be waited for, or has failed;
    /// a second append of it says so.
    #[inline]
    pub(crate) fn append_at_once(self, key: &[u8], value: Option<&[u8]>) -> bool {
        match self.journal() {
            None => true,
            Some(journal) => Self::try_append(journal, effect(key, value)),
        }
    }

    #[inline(never)]
    fn try_append(journal: &IndexJournal, effect: Record<'_>) -> bool {
        let appended = journal.append(&[effect]);
        appended.and_then(|mut append| append.is_accepted()).unwrap_or(false)
    }

    /// A load has failed.
    pub(crate) fn clear(self) -> Result<()> {
        self.journal().map_or(Ok(()), IndexJournal::clear)
    }

    /// Whether effects are appended.
    pub(crate) fn is_on(self) -> bool {
        self.journal().is_some()
    }
}
