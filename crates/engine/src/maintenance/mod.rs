//! Maintenance: work that no operation waits for, in bounded pieces, called by clients between
//! their operations.
//!
//! One call does the first of these that is due:
//!
//! 1. begin a sweep, when a death has been handled since the last one;
//! 2. one chore of the queue: merge, publish a missing record, unlink a relocated tombstone,
//!    recover an abandoned lock, inspect a leaf again, continue a sweep, a piece of the garbage
//!    collection;
//! 3. build tables that readers have found unbuilt;
//! 4. write leaves back, so that the log has room;
//! 5. take images that are beyond a room that has become smaller;
//! 6. reclaim: move objects from the limbo list to the free lists;
//! 7. give an image to a leaf that is used much, or take one from a leaf that is not.
//!
//! A chore is one operation with a pin of its own. It is idempotent and checks its premises anew,
//! since any client may have done the work meanwhile. Chores that the next operation on the same
//! leaf would queue again (merges) are forgotten on an error; the others are kept, because no other
//! client knows of them. `Begun` covers a caller that drops the future in the middle: the chore
//! returns to the queue.
//!
//! R allows a missing record only as long as a chore will add it, so publishing is the chore that
//! restores R in full. While its record is added the child stays locked, so that it cannot be
//! merged away in between.
//!
//! Reclamation is not an operation of the index: it waits for every running operation to end, and
//! would wait for itself.
//!
//! The queue is volatile. After a crash of the node the sweep that follows its death finds missing
//! records, unbuilt tables and abandoned locks, and the garbage collection finds tombstones that
//! its queue was to unlink.

mod admission;
#[cfg(test)]
mod admission_tests;
mod gc;
#[cfg(test)]
mod gc_tests;
mod mark;
mod shrink;
#[cfg(test)]
mod shrink_tests;
mod sweep;

pub(crate) use admission::{Admission, Uses};
pub(crate) use gc::{Collection, GcRun};
pub(crate) use shrink::{CacheBudget, Shrink};
pub(crate) use sweep::Sweep;

use dmtree_fabric::{OpKind, OpOutcome, Result};
use dmtree_parts::Work;
use dmtree_parts::op::reclaim_when_due;

use crate::change::{Merge, unlink};
use crate::inner::{InnerLocks, InnerMerge, Records};
use crate::leaf::Leaves;
use crate::learned::Trainer;
use crate::lock::LeafLocks;
use crate::log::{Cut, WriteLog};
use crate::recovery::{LeafRecovery, recover_lock};
use crate::router::Router;
use crate::{Chore, Client, Mark, Unlock, is_away};

/// Tables that one call of maintenance builds at most.
const BUILDS: u32 = 8;

pub(crate) async fn maintain(c: &Client) -> Result<Work> {
    Sweep(c).begin();
    match c.node.maintenance.pop() {
        // The limbo list waits for every operation to end, so emptying it is not an operation
        // itself.
        Some(Chore::Gc) => return Box::pin(Collection(c).chore()).await,
        Some(chore) => return do_one(c, chore).await,
        None => {}
    }
    if c.node.is_build_due() {
        return build_some(c).await;
    }
    if c.node.is_cut_due() && Cut(c).piece().await? == Work::Some {
        return Ok(Work::Some);
    }
    if c.node.budget.is_due() {
        if Shrink(c).piece().await? == Work::Some {
            return Ok(Work::Some);
        }
    } else if c.node.is_admission_due() && !c.node.pool.reclaimer().reclaim_due() {
        return Uses(c).admit_one().await;
    }
    reclaim_when_due(&c.ep, &c.node.pool).await
}

/// Builds tables that readers have found unbuilt. A leaf that cannot be reached, or a stale
/// route, is forgotten: the next reader queues it again.
async fn build_some(c: &Client) -> Result<Work> {
    let scope = c.ep.begin(OpKind::Maintain);
    let builds = async {
        for _ in 0..BUILDS {
            let Some(route) = c.node.pop_build() else { break };
            Mark::BuildNoted.hit();
            c.ep.renew_deadline();
            match Box::pin(LeafRecovery(c).help_route(&route)).await {
                Err(e) if !is_away(&e) => return Err(e),
                _ => {}
            }
        }
        Ok(Work::Some)
    };
    let pin = c.pin()?;
    let built = builds.await;
    pin.end();
    let built = built?;
    scope.end(OpOutcome::Other);
    Ok(built)
}

/// One chore, as an operation of its own.
async fn do_one(c: &Client, chore: Chore) -> Result<Work> {
    let is_training = matches!(chore, Chore::Train(_));
    let scope = c.ep.begin(if is_training { OpKind::Train } else { OpKind::Maintain });
    // The next delete finds a merge again, and the next searches a training; nothing finds the
    // other chores again.
    let is_found = is_training || matches!(chore, Chore::Merge(_) | Chore::MergeInner(..));
    let pin = c.pin()?;
    let begun = c.begun((!is_found).then(|| chore.clone()));
    let did = match chore {
        Chore::Train(key) => train(c, key).await,
        chore => work(c, chore).await.map(|()| OpOutcome::Other),
    };
    pin.end();
    match did {
        Err(e) => begun.failed(e),
        Ok(outcome) => {
            begun.done();
            scope.end(outcome);
            Ok(Work::Some)
        }
    }
}

/// Looks after the models of a key.
async fn train(c: &Client, key: Vec<u8>) -> Result<OpOutcome> {
    let Some(models) = &c.node.models else { return Ok(OpOutcome::Shared) };
    let trained = Box::pin(Trainer(c, models).run(&key)).await?;
    if let Some(next) = trained.next {
        c.node.push_chore(Chore::Train(next));
    }
    Ok(if trained.is_here { OpOutcome::Other } else { OpOutcome::Shared })
}

/// A sweep has ended: few repairs are left. One of those that are left reads the rings of the log
/// again.
fn swept(c: &Client) {
    c.node.log.iter().for_each(WriteLog::forget_scans);
    if c.node.pool.membership().is_first() {
        c.node.push_chore(Chore::Gc);
    }
}

async fn work(c: &Client, chore: Chore) -> Result<()> {
    match chore {
        Chore::Sweep(from) => {
            match Box::pin(Sweep(c).node(&from, true)).await? {
                Some(next) => c.node.push_chore(Chore::Sweep(next)),
                None => swept(c),
            }
            Ok(())
        }
        Chore::Gc | Chore::Train(_) => Ok(()),
        Chore::Inspect(route) => Box::pin(Sweep(c).leaf(&route)).await.map(|_| ()),
        Chore::RecoverLock(h) => Box::pin(recover_lock(c, h)).await,
        Chore::Merge(key) => Box::pin(Merge::of_key(c, &key)).await,
        Chore::MergeInner(key, level) => Box::pin(InnerMerge::of_key(c, &key, level)).await,
        Chore::Publish(key) => publish(c, key).await,
        Chore::PublishInner(low, level, child) => {
            let Some(n) = InnerLocks(c).lock(level, &low).await? else { return Ok(()) };
            // The node stays locked while its record is added: it cannot be merged away
            // meanwhile.
            let there = n.addr == child.addr && n.ver.generation == child.generation;
            let done = match there {
                true => Records(c).publish_inner(level, low, child).await,
                false => Ok(()),
            };
            c.unlock(n).await?;
            done
        }
        Chore::Unlink { lo, route } => {
            if !unlink(c, &lo, &route).await? {
                c.node.push_chore(Chore::Unlink { lo, route });
            }
            Ok(())
        }
    }
}

/// Trains models for all keys, as far as that is possible now: the rest is a chore.
pub(crate) async fn train_all(c: &Client) {
    let Some(models) = &c.node.models else { return };
    let mut next = Some(Vec::new());
    while let Some(key) = next {
        let scope = c.ep.begin(OpKind::Train);
        let Ok(pin) = c.pin() else { return };
        let trained = Box::pin(Trainer(c, models).run(&key)).await;
        pin.end();
        next = trained.map(|trained| trained.next).unwrap_or_else(|_| {
            c.node.push_chore(Chore::Train(key));
            None
        });
        scope.end(OpOutcome::Other);
    }
}

/// Adds the record of the leaf that covers a key.
async fn publish(c: &Client, key: Vec<u8>) -> Result<()> {
    let from = Router(c).fresh_route(&key).await?;
    let Some(found) = Router(c).walk_route(&key, &from).await? else {
        c.node.push_chore(Chore::Publish(key));
        return Ok(());
    };
    let copy = Leaves(c).read(found.leaf, found.capacity).await?;
    let low = Leaves(c).low_of(&copy).await?;
    // The leaf stays locked while its record is added: it cannot be merged away meanwhile.
    let Some(l) = LeafLocks(c).lock(&found).await? else {
        // The leaf has changed meanwhile, which says nothing about its record.
        c.node.push_chore(Chore::Publish(key));
        return Ok(());
    };
    let published = Records(c).publish(&low, &found.child()).await;
    c.unlock(l).await?;
    published
}
