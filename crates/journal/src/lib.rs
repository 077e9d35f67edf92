//! What lasts of a pool.
//!
//! A journal is a key-value engine that gets the effect of every write before the write becomes
//! visible in the pool's memory. Opening a pool again reads the journal's pairs in key order and
//! loads them. Log, files and compaction are the engine's.
//!
//! - *Records are effects.* A compare-and-set that succeeds is a put. A write that is refused has
//!   no record.
//! - *Order.* An append is made under the lock of the key's leaf. So the journal has the records of
//!   one key in the order in which their effects are visible.
//! - *Before visible.* A write waits until its records are accepted at the level of the pool, and
//!   makes its effect visible then. So whatever has been read is as durable as the level says.
//! - *After a failed append* the effect of the write is unknown: the journal may have the record.
//!   Memory stays as it is. The record is the last one of its key, because its writer has the lock,
//!   so that opening the pool again shows the write as one that took effect late.
//! - *A journal that has failed* accepts nothing until it has been opened again.
//! - *An append ends before its lock is released*, also one that was given up at a deadline or with
//!   a dropped future ([`Append`]). A record that came later could overtake one of the next holder.
//!
//! A journal is a directory (`DirectoryJournal`), or several parts of one, each served by a
//! journal node of the pool ([`JournalService`], [`ShardedJournal`]).
//!
//! | level | an accepted record survives |
//! |---|---|
//! | [`Level::Process`] | the death of the process at once; a loss of power after `sync_every` |
//! | [`Level::Sync`] | a loss of power |

mod appends;
#[cfg(feature = "durable")]
mod committer;
#[cfg(feature = "durable")]
mod directory;
#[cfg(feature = "durable")]
mod durable;
#[cfg(feature = "durable")]
mod engine;
mod merge;
#[cfg(feature = "durable")]
mod node;
mod protocol;
mod sender;
mod service;
mod shards;
#[cfg(feature = "durable")]
mod staging;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Endpoint, Error, Result, WaitReason};

#[cfg(feature = "durable")]
pub use crate::durable::DirectoryJournal;
#[cfg(feature = "durable")]
pub use crate::node::JournalNode;
pub use crate::protocol::JOURNAL_SERVICE;
pub use crate::service::JournalService;
pub use crate::shards::{SenderFuture, ShardedJournal};

/// Between two looks at whether an append that was given up has ended.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// When a record counts as accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The operating system has it. It is on the device within this time; `None` never asks the
    /// device.
    Process {
        /// Longest time until it is on the device.
        sync_every: Option<Duration>,
    },
    /// It is on the device.
    Sync,
}

impl Default for Level {
    fn default() -> Self {
        Self::Process { sync_every: Some(Duration::from_millis(100)) }
    }
}

/// The effect of a write on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'r> {
    /// The key has this value.
    Put {
        /// The key.
        key: &'r [u8],
        /// Its value.
        value: &'r [u8],
    },
    /// The key is gone.
    Delete {
        /// The key.
        key: &'r [u8],
    },
}

impl<'r> Record<'r> {
    /// Its key.
    pub fn key(&self) -> &'r [u8] {
        match *self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// An append, for asking whether it is accepted. A later one has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The number of an index in its journal. No other index ever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexNumber(pub u32);

/// An index that a journal has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownIndex {
    /// Its number.
    pub number: IndexNumber,
    /// Its name in the pool.
    pub name: String,
    /// What it was created with, as the pool has encoded it.
    pub options: Vec<u8>,
}

/// A pair that a journal has.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Pairs in key order; an error ends them.
pub type Pairs = Box<dyn Iterator<Item = Result<Pair>> + Send>;

/// A journal. Another engine is another implementation.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends records of one index. The order of calls is the order of records of one key. A crash
    /// leaves all of them or none in a journal of one directory; of one with several parts each
    /// record counts by itself.
    ///
    /// # Errors
    /// `Full` when the device is full; `Closed` when the journal has failed before. The records may
    /// be in the journal nevertheless.
    fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Result<Ticket>;

    /// Whether an append is accepted at the journal's level.
    ///
    /// # Errors
    /// The journal has failed, and does not say whether it has the records.
    fn is_accepted(&self, ticket: Ticket) -> Result<bool>;

    /// Wakes its listeners whenever more is accepted, and when the journal fails.
    fn news(&self) -> &WaitQueue;

    /// Gives an append up: what of it is not on its way yet is never sent. Whether it has ended,
    /// so that nothing of it is appended later than this. Asked again until that is so.
    fn settle(&self, ticket: Ticket) -> bool {
        // It was appended when its call returned.
        let _ = ticket;
        true
    }

    /// Whether threads of its own work appends off, so that a thread may block until one has ended.
    /// Without them a dropped append may take effect after its lock was released.
    fn has_threads(&self) -> bool {
        true
    }

    /// Why appends wait, if it is known.
    fn trouble(&self) -> Option<Error> {
        None
    }

    /// Adds an index that has no name yet: no cut has it, and it is gone when the journal is opened
    /// again.
    ///
    /// # Errors
    /// As [`Journal::append`].
    fn create(&self) -> Result<IndexNumber>;

    /// The same with a number that another part of the journal has chosen. What it has under this
    /// number is a creation that was cut off, and goes.
    ///
    /// # Errors
    /// As [`Journal::append`].
    fn create_numbered(&self, index: IndexNumber) -> Result<()>;

    /// Names indexes, with the options that each was created with, all or none of them, durably:
    /// with everything that was appended to them. Another index of such a name is left by
    /// a creator that died before other nodes could open it: it goes.
    ///
    /// # Errors
    /// As [`Journal::append`].
    fn name(&self, indexes: &[KnownIndex]) -> Result<()>;

    /// Removes an index and its pairs, durably. Appends to it fail from now on.
    ///
    /// # Errors
    /// As [`Journal::append`].
    fn remove(&self, index: IndexNumber) -> Result<()>;

    /// Removes all pairs of an index.
    ///
    /// # Errors
    /// As [`Journal::append`].
    fn clear(&self, index: IndexNumber) -> Result<()>;

    /// Empties a part of a journal of several, and gives it these indexes: what else it lacks is
    /// appended again.
    ///
    /// # Errors
    /// `Unsupported` for a journal of one directory; as [`Journal::append`].
    fn refill(&self, part: u16, indexes: &[KnownIndex]) -> Result<()> {
        let _ = (part, indexes);
        Err(Error::unsupported("the journal has one part"))
    }

    /// The indexes as a part has them that is not this one.
    ///
    /// # Errors
    /// As [`Journal::indexes`].
    fn indexes_beside(&self, part: u16) -> Result<Vec<KnownIndex>> {
        let _ = part;
        self.indexes()
    }

    /// The part that has the records of a key.
    fn part_of(&self, key: &[u8]) -> u16 {
        let _ = key;
        0
    }

    /// The indexes that it has now.
    ///
    /// # Errors
    /// The journal cannot be read.
    fn indexes(&self) -> Result<Vec<KnownIndex>> {
        Ok(self.cut()?.indexes().to_vec())
    }

    /// What it has now.
    ///
    /// # Errors
    /// The journal cannot be read.
    fn cut(&self) -> Result<Box<dyn Cut>>;
}

/// What a journal has at one place of its order of appends: every append before it and none behind
/// it, over all indexes. An append that has returned is in every later cut. So of two writes, one
/// of which was acknowledged before the other was called, a cut with the later has the earlier,
/// too.
pub trait Cut: Send + fmt::Debug {
    /// Its number: a later cut of the same journal has no smaller one.
    fn number(&self) -> u64;

    /// The indexes.
    fn indexes(&self) -> &[KnownIndex];

    /// The pairs of an index in key order.
    ///
    /// # Errors
    /// The journal cannot be read.
    fn pairs(&self, index: IndexNumber) -> Result<Pairs>;
}

/// A journal, as one index uses it.
#[derive(Clone, Debug)]
pub struct IndexJournal {
    journal: Arc<dyn Journal>,
    index: IndexNumber,
}

impl IndexJournal {
    /// The part of `index`.
    pub fn new(journal: Arc<dyn Journal>, index: IndexNumber) -> Self {
        Self { journal, index }
    }

    /// The number of its index.
    pub fn number(&self) -> IndexNumber {
        self.index
    }

    /// Appends records. Their effects must not be visible before they are accepted: they may be
    /// lost. The caller keeps the locks under which it decided them until the append has ended.
    ///
    /// # Errors
    /// As [`Journal::append`]; the effect is unknown.
    pub fn append(&self, records: &[Record<'_>]) -> Result<Append<'_>> {
        let journal = &*self.journal;
        let ticket = journal.append(self.index, records).map_err(|e| e.effect_unknown())?;
        Ok(Append { journal, ticket, has_ended: false })
    }

    /// Removes all pairs.
    ///
    /// # Errors
    /// As [`Journal::clear`].
    pub fn clear(&self) -> Result<()> {
        self.journal.clear(self.index)
    }
}

/// An append that is under way. Dropped, it has ended: nothing of it is appended from then on.
#[derive(Debug)]
pub struct Append<'j> {
    journal: &'j dyn Journal,
    ticket: Ticket,
    has_ended: bool,
}

impl Append<'_> {
    /// Whether it is accepted, without a wait.
    ///
    /// # Errors
    /// As [`Journal::is_accepted`]; the effect is unknown.
    pub fn is_accepted(&mut self) -> Result<bool> {
        let accepted = self.journal.is_accepted(self.ticket).map_err(|e| e.effect_unknown())?;
        self.has_ended |= accepted;
        Ok(accepted)
    }

    /// Waits until it is accepted.
    ///
    /// # Errors
    /// As [`Journal::is_accepted`], and `TimedOut` at the operation's deadline, when nothing of it
    /// is on its way any more; the effect is unknown.
    pub async fn accepted(mut self, ep: &Endpoint) -> Result<()> {
        let waited = self.wait(ep).await;
        while waited.is_err() && !self.has_ended {
            self.has_ended = self.journal.settle(self.ticket);
            if !self.has_ended {
                ep.sleep(SETTLE_PAUSE.as_nanos() as u64).await;
            }
        }
        waited
    }

    async fn wait(&mut self, ep: &Endpoint) -> Result<()> {
        let why = WaitReason { what: "the journal to accept a write", at: self.ticket.0 };
        while !self.is_accepted()? {
            let listener = self.journal.news().listen();
            if self.is_accepted()? {
                break;
            }
            listener.wait(ep, why).await.map_err(|e| match self.journal.trouble() {
                Some(trouble) => e.context(trouble.to_string()).effect_unknown(),
                None => e.effect_unknown(),
            })?;
        }
        Ok(())
    }
}

impl Drop for Append<'_> {
    /// Of a future that is dropped: its locks are released next.
    fn drop(&mut self) {
        while !self.has_ended {
            self.has_ended = self.journal.settle(self.ticket) || !self.journal.has_threads();
            if !self.has_ended {
                pause();
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing polls a dropped future")]
fn pause() {
    std::thread::sleep(SETTLE_PAUSE);
}
