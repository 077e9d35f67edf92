//! Writes in a full pool: before a write fails with `Full`, the client looks for memory that others
//! hold back.
//!
//! In this order, with a retry of the write after each step that has freed memory:
//!
//! 1. Maintenance of this node: chores that free objects, then a round of reclamation.
//! 2. A garbage collection, when a node has died or left since the last one. A live node that does
//!    not answer is waited for: it answers, or is dead when its lease has ended. One client of a
//!    node collects at a time. A collection that does not end in time is kept, and the next such
//!    write goes on with it.
//! 3. A purge of indexes that were dropped.
//! 4. For a new value of an existing key: the reserved memory. The old value's block is retired by
//!    the same write, so the reserve fills again.
//!
//! The write itself is repeated from its beginning. All memory of a change is taken before its
//! commit, so a write that has failed with `Full` has had no effect.
//!
//! The time is bounded by one time-out of an operation, whatever holds the collection up. Errors of
//! the search are not errors of the write: the caller gets the original `Full`.
//!
//! In a batch a write is repeated only when no later write of the batch has the same key, which
//! keeps their order.

use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::{Effect, Error, ErrorKind, Result};
use dmtree_parts::op::reclaim_for_room;
use dmtree_parts::{Outcome, Work, Write};

use crate::maintenance::{Collection, maintain};
use crate::point::{DirectGet, DirectWrite, Reads, Writes};
use crate::{Client, HashedKey, KeyHash};

/// Pieces of maintenance that a write in a full pool executes.
const PIECES: usize = 256;

/// Where a write in a full pool looks for memory.
enum Search {
    Maintenance,
    Collection,
    Purge,
}

/// One client of a node collects at a time; the flag is also cleared when its caller drops it.
struct Counting<'a>(&'a AtomicBool);

impl<'a> Counting<'a> {
    fn begin(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::Relaxed)).then(|| Self(flag))
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Whether a write has found no memory. A full device of a journal is none of the pool's.
fn is_without_room(e: &Error) -> bool {
    e.kind() == ErrorKind::Full && e.effect() == Effect::None
}

/// A write that is tried again in a full pool as long as memory can be freed.
pub(crate) async fn write_with_room(
    c: &Client,
    begun: DirectWrite<'_, '_>,
    key: HashedKey<'_>,
    w: Write<'_>,
) -> Result<Outcome> {
    let pool = &c.node.pool;
    // Any client may free memory after the write has found the pool full.
    let mut released = pool.reclaimer().released();
    let mut full = match Writes(c).rest(begun, key, w).await {
        Err(e) if is_without_room(&e) => e,
        done => return done,
    };
    for search in [Search::Maintenance, Search::Collection, Search::Purge] {
        let found = match search {
            Search::Maintenance => Box::pin(make_free(c)).await,
            Search::Collection => Box::pin(collect_lost(c)).await,
            Search::Purge => {
                Box::pin(pool.catalog().purge_dropped(&c.ep)).await.map(|chunks| chunks > 0)
            }
        };
        let before = std::mem::replace(&mut released, pool.reclaimer().released());
        // A node that does not report its epoch keeps freed memory from being used; that is no
        // error of this write.
        if released != before || found.unwrap_or(false) {
            full = match Box::pin(Writes(c).rest(DirectWrite::Posted, key, w)).await {
                Err(e) if is_without_room(&e) => e,
                done => return done,
            };
        }
    }
    Box::pin(replace(c, key.0, w, full)).await
}

/// Retries those of several writes that have found the pool full, except where a later one has
/// written the same key.
pub(crate) async fn write_rest_with_room(
    c: &Client,
    writes: &[(&[u8], Write<'_>)],
    outcomes: &mut [Result<Outcome>],
) {
    for (i, outcome) in outcomes.iter_mut().enumerate() {
        let is_full = outcome.as_ref().is_err_and(is_without_room);
        let (key, w) = writes[i];
        if is_full && writes[i + 1..].iter().all(|(later, _)| *later != key) {
            let (hash, posted) = (KeyHash::of(key), DirectWrite::Posted);
            c.spare.set(false);
            *outcome = Box::pin(write_with_room(c, posted, (key, hash), w)).await;
        }
    }
}

/// A new value for an existing key may use reserved memory: the old value's memory will be free
/// soon.
async fn replace(c: &Client, key: &[u8], w: Write<'_>, full: Error) -> Result<Outcome> {
    let may =
        matches!(w, Write::Put(_) | Write::Update(_) | Write::CompareAndSet { new: Some(_), .. });
    let hash = KeyHash::of(key);
    if !may || !Reads(c).rest(DirectGet::Posted, (key, hash), &mut Vec::new()).await? {
        return Err(full);
    }
    c.spare.set(true);
    let done = Writes(c).rest(DirectWrite::Posted, (key, hash), w).await;
    c.spare.set(false);
    done
}

/// Executes waiting maintenance, so that freed memory can be reused; returns whether any came
/// free.
async fn make_free(c: &Client) -> Result<bool> {
    for _ in 0..PIECES {
        if maintain(c).await? == Work::None {
            break;
        }
    }
    reclaim_for_room(&c.ep, &c.node.pool).await
}

/// Finds memory of nodes that have died, or left, since the last garbage collection; returns
/// whether there may be room now. A live node that does not answer is waited for: it answers
/// again, or is dead when its lease has ended.
async fn collect_lost(c: &Client) -> Result<bool> {
    let pool = &c.node.pool;
    let root = c.node.root.word;
    let mut pause = c.ep.backoff("a garbage collection after a death", root);
    let mut was_due = false;
    // A collection renews the deadline with each of its steps: the caller waits for at most one
    // time-out of an operation, whatever holds the collection up.
    let begun = c.ep.now();
    let until = begun.saturating_add(c.node.o.timeout_ms.saturating_mul(1_000_000));
    let patient_until = begun.saturating_add(pool.supply().longest_silence_ns()).min(until);
    loop {
        let waits = c.ep.now() < patient_until && pool.supply().is_any_silent(&c.ep).await;
        let is_due = waits
            || !pool.membership().has_settled_membership()
            || pool.collection().has_uncounted_deaths(&c.ep, root).await?;
        if !is_due {
            break;
        }
        if c.ep.now() >= until {
            return Ok(was_due);
        }
        was_due = true;
        let counting = Counting::begin(&c.node.counting);
        if !waits && pool.membership().has_settled_membership() && counting.is_some() {
            match Collection(c).run_until(until).await {
                Ok(()) => break,
                // Another node has begun a collection, or a death has: that one comes first.
                Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {}
                Err(e) => return Err(e),
            }
        }
        drop(counting);
        pause.step().await?;
    }
    if was_due {
        reclaim_for_room(&c.ep, &c.node.pool).await?;
    }
    // Memory that another node has found can be borrowed, also when it was found before this
    // node has asked.
    let counted = pool.collection().counted_deaths(&c.ep, root).await?;
    Ok(c.node.counted.swap(counted, Ordering::Relaxed) != counted || was_due)
}
