//! The compute node's cache of inner nodes, with mirrors of fingerprint tables, under one byte
//! budget.
//!
//! Cached nodes are immutable once inserted and are replaced whole; readers take no lock. Each
//! level is a two-step directory: pages of nodes in key order under a top array. A mirror is a copy
//! of a child's fingerprints beside the child's record, so that both are one line of memory. It is
//! read without a lock or a checksum and is only ever a hint. When the budget is spent, nodes are
//! visited in the order of their insertion with a second chance for those used since.

mod directory;
mod node;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dmtree_fabric::cpu::prefetch;

use crate::contract::CacheStats;
use crate::sync::{AtomicU64, Mutex, Reading, reading};
use directory::Level;
pub use node::{CachedNode, ChildKeys, MOST_PLACES, NodeParts, Record};

/// Levels a tree can have: a fan-out of 8 at half fill reaches 10^9 leaves with 15.
pub const MAX_LEVELS: usize = 16;
/// Keys that are looked up in step.
const TOGETHER: usize = 16;

/// The cache of one index on one compute node.
#[derive(Debug)]
pub struct NodeCache {
    levels: Vec<Level>,
    /// Nodes of this level have mirrors.
    mirrored: Option<u8>,
    budget: AtomicU64,
    used: AtomicU64,
    mirror_bytes: AtomicU64,
    nodes: AtomicU64,
    evictions: AtomicU64,
    next_stamp: AtomicU64,
    /// Nodes in order of insertion, with their levels.
    clock: Mutex<VecDeque<(u8, Arc<CachedNode>)>>,
}

impl NodeCache {
    /// An empty cache of `budget` bytes, with mirrors of the children of one level's nodes.
    pub fn new(budget: u64, mirrored: Option<u8>) -> Self {
        Self {
            levels: (0..MAX_LEVELS).map(|_| Level::new()).collect(),
            mirrored,
            budget: AtomicU64::new(budget),
            used: AtomicU64::new(0),
            mirror_bytes: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            next_stamp: AtomicU64::new(1),
            clock: Mutex::default(),
        }
    }

    /// The cached node that covers `key` on `level`, and the number of the child that covers the
    /// key. No lock, no allocation.
    #[inline]
    pub fn find<'r>(
        &'r self,
        level: u8,
        key: &[u8],
        r: &'r Reading,
    ) -> Option<(&'r CachedNode, usize)> {
        let (node, i) = self.at(level, key, r)?;
        node.use_again();
        Some((node, i))
    }

    #[inline]
    fn at<'r>(&'r self, level: u8, key: &[u8], r: &'r Reading) -> Option<(&'r CachedNode, usize)> {
        let node = self.levels[usize::from(level)].slot(key, r)?.read(r);
        Some((node, node.child_of(key)?))
    }

    /// As [`NodeCache::find`], for a caller that keeps the node.
    pub fn lookup(&self, level: u8, key: &[u8]) -> Option<(Arc<CachedNode>, usize)> {
        let r = reading();
        let node = self.levels[usize::from(level)].slot(key, &r)?.keep(&r);
        let i = node.child_of(key)?;
        node.use_again();
        Some((node, i))
    }

    /// The child that covers `key`, for a caller that does not use it: the node stays no longer for
    /// that.
    pub fn peek(&self, level: u8, key: &[u8]) -> Option<Record> {
        let r = reading();
        let (node, i) = self.at(level, key, &r)?;
        Some(node.record(i))
    }

    /// [`NodeCache::find`] of several keys: while one search waits for memory, that of the next
    /// ones is on its way. `f` gets the number of each key, and its node and child if they are
    /// cached.
    pub fn lookup_many<'r>(
        &'r self,
        level: u8,
        keys: &[&[u8]],
        r: &'r Reading,
        mut f: impl FnMut(usize, Option<(&'r CachedNode, usize)>),
    ) {
        let level = &self.levels[usize::from(level)];
        for (round, keys) in keys.chunks(TOGETHER).enumerate() {
            let mut found: [Option<(&CachedNode, usize)>; TOGETHER] = [None; TOGETHER];
            for (found, key) in found.iter_mut().zip(keys) {
                *found = level.slot(key, r).map(|slot| (slot.read(r), 0));
                found.iter().for_each(|(node, _)| prefetch(*node));
            }
            found.iter().flatten().for_each(|(node, _)| node.prefetch_keys());
            for (found, key) in found.iter_mut().zip(keys) {
                let Some((node, _)) = *found else { continue };
                *found = node.child_of(key).map(|i| (node, i));
                found.iter().for_each(|(node, i)| node.prefetch_child(*i));
            }
            for (i, found) in found[..keys.len()].iter().enumerate() {
                found.iter().for_each(|(node, _)| node.use_again());
                f(round * TOGETHER + i, *found);
            }
        }
    }

    /// The cached node of `level` that covers the largest key below `key` (below the right end when
    /// `None`).
    pub fn lookup_below(&self, level: u8, key: Option<&[u8]>) -> Option<Arc<CachedNode>> {
        let node = self.levels[usize::from(level)].below(key)?;
        node.used.store(true, Relaxed);
        let reaches = match (node.hi(), key) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(hi), Some(key)) => key <= hi,
        };
        reaches.then_some(node)
    }

    /// The last cached node of `level` that begins below `key` (the last of all when `None`), for a
    /// caller that passes over all of them: it stays no longer for that.
    pub fn pass_below(&self, level: u8, key: Option<&[u8]>) -> Option<Arc<CachedNode>> {
        self.levels[usize::from(level)].below(key)
    }

    /// Inserts (or replaces) a node. Mirrors of children that stay the same are carried over.
    pub fn insert<'a>(
        &self,
        level: u8,
        parts: NodeParts<'a, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Arc<CachedNode> {
        let stamp = self.next_stamp.fetch_add(1, Relaxed);
        let node = CachedNode::new(parts, stamp, self.mirrored == Some(level));
        self.put(level, Arc::new(node), None)
    }

    /// Replaces a node by the same one with one more child, which takes the keys from `low` on over
    /// from child `from`: then that one ends at `low`, by its tag, and the new one where it ended.
    /// `None`, and nothing changes, where the node has to be inserted whole.
    pub fn insert_child(
        &self,
        level: u8,
        (old, from): (&CachedNode, usize),
        low: (&[u8], u32),
        child: &Record,
    ) -> Option<Arc<CachedNode>> {
        let stamp = self.next_stamp.fetch_add(1, Relaxed);
        let node = old.with_child(from, low, child, stamp)?;
        Some(self.put(level, Arc::new(node), Some(old.stamp)))
    }

    /// Puts a node in the place of those that begin inside its range. It has the mirrors of the one
    /// with the stamp `of`.
    fn put(&self, level: u8, node: Arc<CachedNode>, of: Option<u64>) -> Arc<CachedNode> {
        self.used.fetch_add(node.node_bytes() + node.mirror_bytes(), Relaxed);
        self.mirror_bytes.fetch_add(node.mirror_bytes(), Relaxed);
        self.nodes.fetch_add(1, Relaxed);
        let gone = self.levels[usize::from(level)].insert(&node);
        for old in &gone {
            if of != Some(old.stamp) {
                node.carry_mirrors(old);
            }
            self.dropped(old);
        }
        self.remember(level, &node);
        self.make_room();
        node
    }

    /// Queues a node for eviction. Nodes that left by themselves are dropped from the queue when
    /// they are as many as the others.
    fn remember(&self, level: u8, node: &Arc<CachedNode>) {
        let mut clock = self.clock.lock().expect("no panic under this lock");
        clock.push_back((level, node.clone()));
        if clock.len() as u64 > 2 * self.nodes.load(Relaxed) + 16 {
            clock.retain(|(_, n)| !n.gone.load(Relaxed));
        }
    }

    /// Bookkeeping for a node that left its directory.
    fn dropped(&self, node: &CachedNode) {
        if !node.gone.swap(true, Relaxed) {
            self.nodes.fetch_sub(1, Relaxed);
            self.used.fetch_sub(node.node_bytes() + node.mirror_bytes(), Relaxed);
            self.mirror_bytes.fetch_sub(node.mirror_bytes(), Relaxed);
        }
    }

    /// Drops exactly this copy: it is stale.
    pub fn invalidate(&self, level: u8, node: &CachedNode) {
        if self.levels[usize::from(level)].remove(node) {
            self.dropped(node);
        }
    }

    fn make_room(&self) {
        // Two rounds give every node its second chance; a cache that is still over its budget holds
        // only nodes in use now.
        let mut visits = 2 * self.nodes.load(Relaxed) + 2;
        while self.used.load(Relaxed) > self.budget.load(Relaxed) && visits > 0 {
            visits -= 1;
            let Some((level, node)) =
                self.clock.lock().expect("no panic under this lock").pop_front()
            else {
                return;
            };
            if node.gone.load(Relaxed) {
                continue;
            }
            if node.used.swap(false, Relaxed) {
                self.clock.lock().expect("no panic under this lock").push_back((level, node));
            } else if self.levels[usize::from(level)].remove(&node) {
                self.dropped(&node);
                self.evictions.fetch_add(1, Relaxed);
            }
        }
    }

    /// Whether hardly anything of the budget is left: 1 %, or no room for one more node of
    /// `node_bytes`.
    pub fn is_short_of(&self, node_bytes: u64) -> bool {
        let (used, budget) = (self.used.load(Relaxed), self.budget.load(Relaxed));
        used * 100 > budget * 99 || used + node_bytes > budget
    }

    /// Another budget from now on; what is beyond it leaves at once.
    pub fn set_budget(&self, budget: u64) {
        self.budget.store(budget, Relaxed);
        self.make_room();
        // Those that lookups have used since have had two chances.
        while self.used.load(Relaxed) > budget && self.drop_first() {}
    }

    /// Drops the first node of the queue; false when there is none.
    fn drop_first(&self) -> bool {
        let first = self.clock.lock().expect("no panic under this lock").pop_front();
        let Some((level, node)) = first else { return false };
        if self.levels[usize::from(level)].remove(&node) {
            self.dropped(&node);
            self.evictions.fetch_add(1, Relaxed);
        }
        true
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed)
    }

    /// Drops everything.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.clock.lock().expect("no panic under this lock"));
        for (level, node) in all {
            self.invalidate(level, &node);
        }
    }

    /// Numbers for stats; hits and misses are the index's to add.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            budget_bytes: self.budget.load(Relaxed),
            used_bytes: self.used.load(Relaxed),
            nodes: self.nodes.load(Relaxed),
            mirror_bytes: self.mirror_bytes.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            ..CacheStats::default()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
