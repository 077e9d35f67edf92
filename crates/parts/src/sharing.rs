//! Read delegation and write combining as an option of published designs: as published, in windows
//! that close too late ([`crate::delegation`]), or in batches that are closed when their verb is
//! posted ([`crate::combine`]).
//!
//! The design supplies the operation itself; only the first of the operations that share executes
//! it. A write takes its value as late as possible ([`Sharing::latest`]): under its lock, directly
//! before its WRITE.
//!
//! The module posts no verbs. Its state is local, and a crash of the compute node loses it together
//! with the clients.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, OpOutcome, Result};

use crate::combine::{Combiner, Intent, LeaderGuard, Turn};
use crate::contract::{Outcome, Write};
use crate::delegation::{Entered, LocalTable, QueueGuard, Side};
use crate::hash::KeyHash;

/// Entries of the tables. (The published table has 4 Mi. If two keys meet in one entry, they only
/// miss a chance to share.)
const PLACES: usize = 16_384;
/// Most readers of one batch, as published.
const READERS: u32 = 8;

/// What the clients of one compute node share operations by.
#[derive(Debug)]
pub struct Sharers {
    delegation: bool,
    combining: bool,
    closed_batches: bool,
    local: Arc<LocalTable>,
    readers: Arc<Combiner>,
    writers: Arc<Combiner>,
}

/// The outcome of an operation, and how it is counted.
pub type Counted<T> = (T, OpOutcome);

/// How a write shares its WRITE with other writers of this compute node.
#[derive(Debug)]
pub enum Sharing {
    /// The write shares nothing.
    None,
    /// As published: it takes the value of the writer that came last.
    Window(QueueGuard),
    /// It takes the last value that joined before the batch was closed.
    Group(LeaderGuard),
}

impl Sharing {
    /// Fixes the value.
    pub fn latest(&mut self, value: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Window(guard) => guard.latest(value),
            Self::Group(leader) => leader.close(value),
        }
    }

    /// Closes the batch; whether other writers could join until now. They may have begun after the
    /// key was searched.
    fn could_be_joined(&mut self) -> bool {
        match self {
            Self::Group(leader) => leader.close_only(),
            Self::None | Self::Window(_) => false,
        }
    }
}

/// A write in progress that may share its WRITE.
pub struct SharedWrite<'w> {
    /// The key.
    pub key: &'w [u8],
    /// The write.
    pub write: &'w Write<'w>,
    /// How it shares its WRITE.
    pub sharing: &'w mut Sharing,
    value: Vec<u8>,
}

impl<'w> SharedWrite<'w> {
    /// A write of a key, as [`Sharers::write`] executes it.
    pub fn new(key: &'w [u8], write: &'w Write<'w>, sharing: &'w mut Sharing) -> Self {
        let value = write.value().unwrap_or_default().to_vec();
        Self { key, write, sharing, value }
    }

    /// The value, fixed.
    pub fn value(&mut self) -> &[u8] {
        self.sharing.latest(&mut self.value);
        &self.value
    }
}

impl Sharers {
    /// Those of a compute node.
    pub fn new(delegation: bool, combining: bool, closed_batches: bool) -> Arc<Self> {
        let places = |on: bool| if on { PLACES } else { 1 };
        let in_windows = !closed_batches && (delegation || combining);
        Arc::new(Self {
            delegation,
            combining,
            closed_batches,
            local: LocalTable::new(places(in_windows)),
            readers: Combiner::new(places(closed_batches && delegation), READERS),
            writers: Combiner::new(places(closed_batches && combining), u32::MAX),
        })
    }

    /// A read of a key into an empty `out`, by `find` or by another reader. Returns whether the key
    /// is present.
    ///
    /// # Errors
    /// Those of `find`; `TimedOut` at the deadline of the operation.
    pub async fn read(
        &self,
        ep: &Endpoint,
        key: &[u8],
        out: &mut Vec<u8>,
        find: impl AsyncFnOnce(&mut Vec<u8>) -> Result<bool>,
    ) -> Result<Counted<bool>> {
        let alone = |found| (found, if found { OpOutcome::Hit } else { OpOutcome::Absent });
        let key_hash = (key, KeyHash::of(key));
        match (self.delegation, self.closed_batches) {
            (false, _) => find(out).await.map(alone),
            (true, false) => {
                let guard = match self.local.enter(ep, key_hash, Side::Read, None).await? {
                    Entered::Alone => None,
                    Entered::Winner(guard) => Some(guard),
                    Entered::Follower(guard) => {
                        let found = guard.result(out);
                        guard.publish(None);
                        return Ok((found, OpOutcome::Shared));
                    }
                };
                let found = find(out).await?;
                if let Some(guard) = guard {
                    ep.point().await;
                    guard.publish(Some((found, out)));
                }
                Ok(alone(found))
            }
            (true, true) => {
                let turn = self.readers.turn(ep, key_hash, &Intent::Read, out, || ()).await?;
                let mut leader = match turn {
                    Turn::Shared(shared) => return Ok((shared?.found(), OpOutcome::Shared)),
                    Turn::Own(leader) => leader,
                };
                if let Some(leader) = &mut leader {
                    ep.point().await;
                    leader.close(out);
                }
                let found = find(out).await;
                if let Some(leader) = leader {
                    leader.finish_read(ep, found.clone(), out).await;
                }
                found.map(alone)
            }
        }
    }

    /// A write of a key with a value, by `change` or by another writer. `change` may be called
    /// twice: the second time for writers that have joined after it had begun to find the key
    /// absent.
    ///
    /// # Errors
    /// Those of `change`; `TimedOut` at the deadline of the operation.
    pub async fn write(
        &self,
        ep: &Endpoint,
        (key, w): (&[u8], &Write<'_>),
        change: impl AsyncFn(&mut Sharing) -> Result<Counted<Outcome>>,
    ) -> Result<Counted<Outcome>> {
        let key_hash = (key, KeyHash::of(key));
        let mut sharing = match w.intent().filter(|_| self.combining) {
            None => Sharing::None,
            Some(intent) if self.closed_batches => {
                let turn = self.writers.turn(ep, key_hash, &intent, &mut Vec::new(), || ()).await?;
                match turn {
                    Turn::Shared(shared) => return Ok((shared?.wrote(), OpOutcome::Shared)),
                    Turn::Own(leader) => leader.map_or(Sharing::None, Sharing::Group),
                }
            }
            Some(intent) => {
                let value = Some(intent.value());
                match self.local.enter(ep, key_hash, Side::Write, value).await? {
                    Entered::Alone => Sharing::None,
                    Entered::Winner(guard) => Sharing::Window(guard),
                    Entered::Follower(guard) => {
                        guard.publish(None);
                        return Ok((Outcome::Done, OpOutcome::Shared));
                    }
                }
            }
        };
        let mut written = change(&mut sharing).await;
        if matches!(written, Ok((Outcome::NotFound, _))) && sharing.could_be_joined() {
            // The absence may be older than a member of the batch.
            written = change(&mut sharing).await;
        }
        match sharing {
            Sharing::None => {}
            Sharing::Window(guard) => {
                ep.point().await;
                if matches!(written, Ok((Outcome::Done, _))) {
                    guard.publish(None);
                }
            }
            Sharing::Group(mut leader) => {
                leader.close_only();
                leader.finish_write(ep, written.as_ref().map(|w| w.0).map_err(Clone::clone)).await;
            }
        }
        written
    }
}
