//! Point writes: put, insert and update share one descent, which ends at the key's leaf or at the
//! place where a new leaf belongs.
//!
//! Order of a write:
//! 1. With combining or hand-over, the write joins the writers of its key on this compute node: it
//!    leads a batch, follows in one, or gets a leaf lock handed over (`Sharing`). A follower
//!    returns the leader's outcome, and posts no verb.
//! 2. `start` takes the deepest cached slot, or READs the root slot.
//! 3. The descent READs nodes and, at the end, a leaf. With locked nodes (ART) it holds the lock of
//!    the node that has the current slot, one at a time.
//! 4. An empty slot is filled (`insert.rs`), another key's leaf or a node with another prefix is
//!    split (`split.rs`), and the key's own leaf is updated (`update.rs`).
//! 5. The value is fixed as late as possible ([`Job::latest`]), after the lock is taken. With
//!    closed batches this closes the batch.
//!
//! Invariants: a client holds at most one table lock; a leaf that was written for the key and not
//! linked is in [`Job::leaf`], and serves the next attempt. After an error a WRITE may still be in
//! flight, so its memory is not used again.
//!
//! A crash loses the memory of a leaf that was not linked. It leaves node and leaf locks held; as
//! published no client recovers them.

use dmtree_fabric::{Error, OpOutcome, Result};
use dmtree_parts::combine::{Intent, LeaderGuard, Turn};
use dmtree_parts::delegation::{Entered, QueueGuard, Side};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::op::{ABSENT, Written};
use dmtree_parts::{Outcome, Write};

use crate::cursor::Cursors;
use crate::cursor::parts_at;
use crate::format::{byte_at, leaf};
use crate::index::Smart;
use crate::insert::Inserts;
use crate::lock::Held;
use crate::lock::Locks;
use crate::split::Splits;
use crate::update::Updates;

/// How a write shares its verbs or its lock with other writers of this compute node.
pub(crate) enum Sharing {
    /// The write shares nothing.
    None,
    /// As published: the write takes the value of the writer that came last.
    Window(QueueGuard),
    /// The write takes the last value that joined before the batch was closed.
    Group(LeaderGuard),
    /// The lock of the leaf passes from one writer to the next; `true`: this writer has inherited
    /// it.
    Handover(QueueGuard, bool),
}

/// A write in progress.
pub(crate) struct Job<'a> {
    pub key: &'a [u8],
    pub w: Write<'a>,
    /// The value to write.
    pub value: Vec<u8>,
    pub sharing: Sharing,
    /// The lock of the node that has the current slot of the descent.
    pub held: Option<Held>,
    /// The leaf that was written for the key and that no slot names yet.
    pub leaf: Option<dmtree_fabric::GlobalAddr>,
}

impl<'a> Job<'a> {
    fn new(key: &'a [u8], w: Write<'a>, value: &[u8], sharing: Sharing) -> Self {
        Self { key, w, value: value.to_vec(), sharing, held: None, leaf: None }
    }

    /// Fixes the value: called directly before it is written.
    pub fn latest(&mut self) {
        match &mut self.sharing {
            Sharing::Window(guard) => guard.latest(&mut self.value),
            Sharing::Group(lease) => lease.close(&mut self.value),
            Sharing::None | Sharing::Handover(..) => {}
        }
    }

    /// Whether other writers could join until now. They may have begun after the key was searched.
    fn could_be_joined(&mut self) -> bool {
        match &mut self.sharing {
            Sharing::Group(lease) => lease.close_only(),
            _ => false,
        }
    }

    pub fn is_update(&self) -> bool {
        matches!(self.w, Write::Update(_))
    }
}

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Smart);

impl Writes<'_> {
    /// A write that may share its verbs or its lock, or those of another writer.
    pub(crate) async fn write_shared(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let (o, value) = (&self.0.node.o, w.value().expect("only deletes have no value"));
        match w.intent() {
            Some(intent) if o.combining && o.closed_batches => {
                self.write_in_group(key, w, &intent).await
            }
            Some(_) if o.combining => self.write_in_window(key, w, value).await,
            Some(_) if o.rear_lock => self.write_handing_over(key, w, value).await,
            _ => self.write_alone(&mut Job::new(key, w, value, Sharing::None)).await,
        }
    }

    /// As published: a writer that is in the queue when another one releases is reported as
    /// written.
    async fn write_in_window(&self, key: &[u8], w: Write<'_>, value: &[u8]) -> Result<Written> {
        let hash = KeyHash::of(key);
        let table = &self.0.node.local;
        match table.enter(&self.0.ep, (key, hash), Side::Write, Some(value)).await? {
            Entered::Alone => self.write_alone(&mut Job::new(key, w, value, Sharing::None)).await,
            Entered::Follower(guard) => {
                guard.publish(None);
                Ok((Outcome::Done, OpOutcome::Shared))
            }
            Entered::Winner(guard) => {
                let mut job = Job::new(key, w, value, Sharing::Window(guard));
                let written = self.write_alone(&mut job).await?;
                self.0.ep.point().await;
                if let Sharing::Window(guard) = job.sharing
                    && written.0 == Outcome::Done
                {
                    guard.publish(None);
                }
                Ok(written)
            }
        }
    }

    /// Batches that are closed when the value is taken.
    async fn write_in_group(
        &self,
        key: &[u8],
        w: Write<'_>,
        intent: &Intent<'_>,
    ) -> Result<Written> {
        let (writers, none) = (&self.0.node.writers, &mut Vec::new());
        let key_hash = (key, KeyHash::of(key));
        let sharing = match writers.turn(&self.0.ep, key_hash, intent, none, || ()).await? {
            Turn::Shared(shared) => return Ok((shared?.wrote(), OpOutcome::Shared)),
            Turn::Own(None) => Sharing::None,
            Turn::Own(Some(leader)) => Sharing::Group(leader),
        };
        let mut job = Job::new(key, w, intent.value(), sharing);
        let written = self.write_alone(&mut job).await;
        job.latest();
        if let Sharing::Group(leader) = job.sharing {
            let outcome = written.as_ref().map(|w| w.0).map_err(Clone::clone);
            leader.finish_write(&self.0.ep, outcome).await;
        }
        written
    }

    /// The lock of a leaf passes from one writer of the key to the next.
    async fn write_handing_over(&self, key: &[u8], w: Write<'_>, value: &[u8]) -> Result<Written> {
        let hash = KeyHash::of(key);
        let sharing =
            match self.0.node.local.enter(&self.0.ep, (key, hash), Side::Write, None).await? {
                Entered::Alone => Sharing::None,
                Entered::Winner(guard) => Sharing::Handover(guard, false),
                Entered::Follower(guard) => Sharing::Handover(guard, true),
            };
        self.write_alone(&mut Job::new(key, w, value, sharing)).await
    }

    pub(crate) async fn write_alone(&self, job: &mut Job<'_>) -> Result<Written> {
        let mut result = self.descend(job).await;
        if matches!(result, Ok((Outcome::NotFound, _))) && job.could_be_joined() {
            // The absence may be older than a member of the batch, so the search is repeated for
            // all.
            result = self.descend(job).await;
        }
        if let Some(held) = job.held.take() {
            Locks(self.0).unlock(held).await?;
        }
        // After an error the WRITE may still be in flight, so the leaf is not used again.
        if let (Some(leaf), Ok(_)) = (job.leaf.take(), &result) {
            self.0.spare_leaves.give_back(leaf);
        }
        result
    }

    /// Descends to the key's leaf, or to the place where it belongs.
    async fn descend(&self, job: &mut Job<'_>) -> Result<Written> {
        let key = job.key;
        let mut c = Cursors(self.0).start(key).await?;
        if !self.0.node.o.lock_free && !job.is_update() {
            job.held = Some(Locks(self.0).lock(c.node).await?);
        }
        loop {
            let cached = c.cached.is_some();
            let done = if c.slot.is_empty() {
                match job.is_update() {
                    true => Some(ABSENT),
                    false => Inserts(self.0).fill_slot(job, &mut c).await?,
                }
            } else if c.slot.is_leaf() {
                let any = !self.0.node.o.in_place;
                let Some(image) = Cursors(self.0).read_leaf(&mut c, any).await? else { continue };
                match leaf::check(&self.0.node.g, &image) {
                    Some(l) if l.key == key => Updates(self.0).found(job, &mut c, image).await?,
                    _ if job.is_update() => {
                        Cursors(self.0).is_final(&mut c, cached).await?.then_some(ABSENT)
                    }
                    Some(l) => Splits(self.0).split_leaf(job, &mut c, l).await?,
                    None => return Err(Error::corrupt("a leaf that was whole is not")),
                }
            } else {
                let Some(n) = Cursors(self.0).read_node(&mut c, key).await? else { continue };
                match parts_at(&n, key) {
                    Some(_) if job.is_update() => {
                        Cursors(self.0).is_final(&mut c, cached).await?.then_some(ABSENT)
                    }
                    Some(at) => Splits(self.0).split_header(job, &mut c, &n, at).await?,
                    None => {
                        if let Some(held) = job.held.take() {
                            Locks(self.0).unlock(held).await?;
                            job.held = Some(Locks(self.0).lock(n.at).await?);
                        }
                        match n.find(byte_at(key, n.header.discriminates())) {
                            Some((i, word)) => {
                                c.descend(&n, i, word);
                                None
                            }
                            None if job.is_update() => Some(ABSENT),
                            None => Inserts(self.0).add_slot(job, &mut c, n).await?,
                        }
                    }
                }
            };
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }
}
