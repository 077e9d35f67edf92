//! What the operations of several indexes count alike, and how they make room.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::{Endpoint, ErrorKind, OpKind, OpOutcome, Result};
use dmtree_pool::PoolNode;

use crate::contract::{CacheStats, Outcome, Work};

/// The outcome of a write, and how it counts.
pub type Written = (Outcome, OpOutcome);

/// A value was replaced.
pub const UPDATED: Written = (Outcome::Done, OpOutcome::Hit);
/// The key is not there.
pub const ABSENT: Written = (Outcome::NotFound, OpOutcome::Absent);
/// A key is new, in a leaf with room for it.
pub const INSERTED: Written = (Outcome::Done, OpOutcome::InsertPlain);
/// A key is new, and a leaf or a node was divided for it.
pub const SPLIT: Written = (Outcome::Done, OpOutcome::InsertSplit);

/// The lookups of a compute node that its cache served, and those that it did not.
#[derive(Debug, Default)]
pub struct Lookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Lookups {
    /// Counts a lookup that the cache served.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lookup that the cache did not serve.
    pub fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// The statistics of a cache with its lookups.
    pub fn added_to(&self, cache: CacheStats) -> CacheStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheStats { hits: of(&self.hits), misses: of(&self.misses), ..cache }
    }
}

/// The cache hits of a client, which it adds to those of its compute node now and then: clients
/// need not share a counter for every operation.
#[derive(Debug)]
pub struct Hits {
    node: Arc<Lookups>,
    count: Cell<u64>,
    /// So many are added at a time.
    period: Cell<u64>,
}

impl Hits {
    /// Of a client of this compute node.
    pub fn new(node: &Arc<Lookups>) -> Self {
        Self { node: node.clone(), count: Cell::new(0), period: Cell::new(256) }
    }

    /// Counts a lookup that the cache served. True for the last one of a period: a caller that
    /// takes samples takes this one.
    #[inline]
    pub fn count(&self) -> bool {
        self.count.set(self.count.get() + 1);
        let is_last = self.count.get() == self.period.get();
        if is_last {
            self.node.hits.fetch_add(self.count.replace(0), Ordering::Relaxed);
        }
        is_last
    }

    /// An access that is no lookup of its own: the period ends one hit sooner. True for the last
    /// one of a period; then the caller sets the next one.
    #[inline]
    pub fn pass(&self) -> bool {
        self.period.set(self.period.get() - 1);
        self.period.get() == self.count.get()
    }

    /// The next period has so many hits, one at least.
    pub fn set_period(&self, hits: u64) {
        self.period.set(self.count.get() + hits.max(1));
    }
}

impl Drop for Hits {
    fn drop(&mut self) {
        self.node.hits.fetch_add(self.count.get(), Ordering::Relaxed);
    }
}

/// The outcome to count for an operation: `plain`, or `Retried` if a step was repeated.
pub fn counted(plain: OpOutcome, retried: &Cell<bool>) -> OpOutcome {
    match plain {
        OpOutcome::InsertSplit | OpOutcome::Shared => plain,
        _ if retried.get() => OpOutcome::Retried,
        _ => plain,
    }
}

/// Makes retired memory free when that is due. Until a member that does not answer answers again or
/// is revoked, everything stays on the limbo list.
pub async fn reclaim_when_due(ep: &Endpoint, pool: &PoolNode) -> Result<Work> {
    if pool.reclaimer().reclaim_due() {
        let scope = ep.begin(OpKind::Maintain);
        let reclaimed = pool.reclaimer().reclaim(ep).await;
        scope.end(OpOutcome::Other);
        reclaimed.map(|_| ()).or_else(|e| match e.kind() {
            ErrorKind::Unreachable => Ok(()),
            _ => Err(e),
        })?;
    }
    Ok(Work::None)
}

/// Makes retired memory free, as far as no operation can hold it. Returns whether there was any.
pub async fn reclaim_for_room(ep: &Endpoint, pool: &PoolNode) -> Result<bool> {
    let scope = ep.begin(OpKind::Maintain);
    let freed = pool.reclaimer().reclaim_for_room(ep).await;
    scope.end(OpOutcome::Other);
    match freed {
        // A long operation holds everything that waits: the pool is full for now.
        Err(e) if e.kind() == ErrorKind::TimedOut => Ok(false),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hits and accesses that are no lookups end a period together; hits alone are counted.
    #[test]
    fn a_period_of_hits_and_other_accesses() {
        let lookups = Arc::<Lookups>::default();
        let counted = || lookups.added_to(CacheStats::default()).hits;
        let hits = Hits::new(&lookups);
        hits.set_period(3);
        assert_eq!([hits.pass(), hits.count(), hits.pass()], [false, false, true]);
        hits.set_period(2);
        assert_eq!(([hits.pass(), hits.count()], counted()), ([false, true], 2));
        hits.set_period(1);
        assert!(hits.pass());
        hits.set_period(1);
        assert_eq!((hits.count(), counted()), (true, 3));
        drop(hits);
        assert_eq!(counted(), 3);
    }
}
