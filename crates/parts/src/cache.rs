//! The compute node's cache of inner nodes, with mirrors of fingerprint tables, under one byte
//! budget.
//!
//! Cached nodes are immutable once inserted and are replaced whole; readers take no lock. Each
//! level is a two-step directory: pages of nodes in key order under a top array. A mirror is a copy
//! of a child's fingerprints; it is read without a lock or a checksum and is only ever a hint. When
//! the budget is spent, nodes are visited in the order of their insertion with a second chance for
//! those used since; first their mirrors go, then they.

mod directory;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::prefetch;

use crate::contract::CacheStats;
use crate::keys::KeyArray;
use crate::slots::Slots;
use crate::sync::{AtomicBool, AtomicU64, EpochOption, Mutex, Reading, reading};
use directory::Level;

/// Levels a tree can have: a fan-out of 8 at half fill reaches 10^9 leaves with 15.
pub const MAX_LEVELS: usize = 16;
/// Keys that are looked up in step.
const TOGETHER: usize = 16;

/// A child as a parent's record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it is.
    pub child: GlobalAddr,
    /// Its generation: grows each time the address is reused.
    pub generation: u16,
    /// Its table's id (leaves), 0 otherwise.
    pub table: u64,
    /// Its slots.
    pub capacity: u16,
    /// Tag of its upper fence, as the parent implies it.
    pub fence: u32,
    /// Its key range, for indexes that count ranges per child; 0 for others.
    pub version: u32,
    /// Where its mirror begins, in words.
    mirror_at: u32,
}

impl Record {
    /// A record; the cache places its mirror.
    pub fn new(child: GlobalAddr, generation: u16, table: u64, capacity: u16, fence: u32) -> Self {
        Self { child, generation, table, capacity, fence, version: 0, mirror_at: 0 }
    }

    /// The same with a version.
    #[must_use]
    pub fn with_version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Whether both name the same child in the same generation and version.
    pub fn same_child(&self, other: &Self) -> bool {
        (self.child, self.generation, self.version)
            == (other.child, other.generation, other.version)
    }
}

/// An inner node as cached. The fields that a lookup needs come first.
#[derive(Debug)]
#[repr(C)]
pub struct CachedNode {
    /// The lower fences of the children and, if there is one, the upper fence of the node: one
    /// search finds the child and says whether the key is covered.
    keys: KeyArray,
    records: Box<[Record]>,
    mirrors: EpochOption<Mirrors>,
    used: AtomicBool,
    gone: AtomicBool,
    /// Its generation.
    pub generation: u16,
    mirror_words: u16,
    /// Words of each mirror if all have the same, so that a mirror is found without its record; 0
    /// otherwise.
    mirror_stride: u16,
    /// Where it is.
    pub addr: GlobalAddr,
    /// Unique among all cached nodes: says which copy a route came from.
    pub stamp: u64,
    lo: Box<[u8]>,
}

/// The lower fences of a node's children.
#[derive(Clone, Copy, Debug)]
pub struct ChildKeys<'n> {
    keys: &'n KeyArray,
    children: usize,
}

impl<'n> ChildKeys<'n> {
    /// The lower fence of child `i`.
    pub fn get(&self, i: usize) -> &'n [u8] {
        self.keys.get(i)
    }
    /// The child with the last fence that is at most `key`.
    pub fn floor(&self, key: &[u8]) -> Option<usize> {
        Some(self.keys.floor(key)?.min(self.children.checked_sub(1)?))
    }
    /// The child with the last fence below `key`; the last child when `None`.
    pub fn below(&self, key: Option<&[u8]>) -> Option<usize> {
        Some(self.keys.below(key)?.min(self.children.checked_sub(1)?))
    }
}

/// First one bit per record that says whether its mirror is filled, then the mirrors.
#[derive(Debug)]
struct Mirrors {
    words: Box<[AtomicU64]>,
}

impl Mirrors {
    fn is_filled(&self, i: usize) -> bool {
        self.words[i / 64].load(Relaxed) & (1 << (i % 64)) != 0
    }

    fn set_filled(&self, i: usize) {
        if !self.is_filled(i) {
            self.words[i / 64].fetch_or(1 << (i % 64), Relaxed);
        }
    }
}

impl CachedNode {
    /// The lower fence.
    pub fn lo(&self) -> &[u8] {
        &self.lo
    }
    /// The upper fence.
    pub fn hi(&self) -> Option<&[u8]> {
        (self.keys.len() > self.records.len()).then(|| self.keys.get(self.records.len()))
    }
    /// The lower fences of the children.
    pub fn keys(&self) -> ChildKeys<'_> {
        ChildKeys { keys: &self.keys, children: self.records.len() }
    }
    /// The children, in key order.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
    /// The node is used: its second chance.
    fn use_again(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Whether it is still in the cache.
    pub fn is_cached(&self) -> bool {
        !self.gone.load(Relaxed)
    }

    /// Whether the node covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.lo <= *key && self.hi().is_none_or(|hi| key < hi)
    }

    fn node_bytes(&self) -> u64 {
        (size_of::<Self>()
            + self.lo.len()
            + self.keys.memory_bytes()
            + self.records.len() * size_of::<Record>()
            + 2 * size_of::<usize>()) as u64
    }

    fn mirror_bytes(&self) -> u64 {
        (self.mirror_words as usize + self.filled_words()) as u64 * 8 + 48
    }

    /// Words of the bits that say which mirrors are filled.
    fn filled_words(&self) -> usize {
        self.records.len().div_ceil(64)
    }

    /// Where the mirror of child `i` begins.
    #[inline]
    fn mirror_at(&self, i: usize) -> usize {
        let at = match usize::from(self.mirror_stride) {
            0 => self.records[i].mirror_at as usize,
            stride => i * stride,
        };
        self.filled_words() + at
    }

    /// The slots of child `i` that have `fp` according to its mirror; `None` when there is none.
    #[inline]
    pub fn mirror_slots(&self, i: usize, fp: u8, r: &Reading) -> Option<Slots> {
        let mirrors = self.mirrors.read(r)?;
        if !mirrors.is_filled(i) {
            return None;
        }
        let capacity = usize::from(self.records[i].capacity);
        let words = &mirrors.words[self.mirror_at(i)..][..capacity.div_ceil(8)];
        Some(Slots::with_in_words(words.iter().map(|word| word.load(Relaxed)), capacity, fp))
    }

    /// How many slots child `i` uses according to its mirror.
    pub fn mirror_live(&self, i: usize) -> Option<u32> {
        let free = self.mirror_slots(i, 0, &reading())?.len();
        Some(u32::from(self.records[i].capacity) - free as u32)
    }
}

/// The fields of a node to be cached.
#[derive(Debug)]
pub struct NodeParts<'a, K> {
    /// Its address.
    pub addr: GlobalAddr,
    /// Its generation.
    pub generation: u16,
    /// Its lower fence.
    pub lo: &'a [u8],
    /// Its upper fence.
    pub hi: Option<&'a [u8]>,
    /// Lower fences of the children, ascending strictly, below the upper fence.
    pub keys: K,
    /// The children, in the same order.
    pub records: Vec<Record>,
}

/// The cache of one index on one compute node.
#[derive(Debug)]
pub struct NodeCache {
    levels: Vec<Level>,
    budget: u64,
    used: AtomicU64,
    mirror_bytes: AtomicU64,
    nodes: AtomicU64,
    evictions: AtomicU64,
    mirror_evictions: AtomicU64,
    next_stamp: AtomicU64,
    /// Nodes in order of insertion, with their levels.
    clock: Mutex<VecDeque<(u8, Arc<CachedNode>)>>,
}

impl NodeCache {
    /// An empty cache of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self {
            levels: (0..MAX_LEVELS).map(|_| Level::new()).collect(),
            budget,
            used: AtomicU64::new(0),
            mirror_bytes: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            mirror_evictions: AtomicU64::new(0),
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
    fn at<'r>(
        &'r self,
        level: u8,
        key: &[u8],
        r: &'r Reading,
    ) -> Option<(&'r Arc<CachedNode>, usize)> {
        let node = self.levels[usize::from(level)].node(key, r)?;
        let i = node.keys.floor(key).filter(|i| *i < node.records.len())?;
        Some((node, i))
    }

    /// Looks for the cached node that covers `key` on `level`, and calls `f` with it and the number
    /// of the child that covers the key. No lock, no allocation.
    pub fn lookup<R>(
        &self,
        level: u8,
        key: &[u8],
        f: impl FnOnce(&Arc<CachedNode>, usize) -> R,
    ) -> Option<R> {
        self.peek(level, key, |node, i| {
            node.use_again();
            f(node, i)
        })
    }

    /// [`NodeCache::lookup`] by a caller that does not use the result: the node stays no longer for
    /// it.
    pub fn peek<R>(
        &self,
        level: u8,
        key: &[u8],
        f: impl FnOnce(&Arc<CachedNode>, usize) -> R,
    ) -> Option<R> {
        let r = reading();
        let (node, i) = self.at(level, key, &r)?;
        Some(f(node, i))
    }

    /// [`NodeCache::lookup`] of several keys: while one search waits for memory, that of the next
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
                *found = level.node(key, r).map(|node| (&**node, 0));
                found.iter().for_each(|(node, _)| prefetch(*node));
            }
            for (node, _) in found.iter().flatten() {
                node.keys.prefetch();
                node.mirrors.read(r).into_iter().for_each(prefetch);
            }
            for (found, key) in found.iter_mut().zip(keys) {
                let Some((node, _)) = *found else { continue };
                let child = node.keys.floor(key).filter(|i| *i < node.records.len());
                *found = child.map(|i| (node, i));
                child.iter().for_each(|i| prefetch(&node.records[*i]));
            }
            for (node, i) in found.iter().flatten() {
                if let Some(mirrors) = node.mirrors.read(r) {
                    prefetch(&mirrors.words[node.mirror_at(*i)]);
                }
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

    /// Inserts (or replaces) a node. Mirrors of children that stay the same are carried over.
    pub fn insert<'a>(
        &self,
        level: u8,
        parts: NodeParts<'a, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Arc<CachedNode> {
        let mut words = 0;
        let mut records = parts.records;
        for r in &mut records {
            r.mirror_at = words;
            words += u32::from(r.capacity).div_ceil(8);
        }
        let first = records.first().map_or(0, |r| r.capacity);
        let is_even = records.iter().all(|r| r.capacity == first);
        let node = Arc::new(CachedNode {
            addr: parts.addr,
            generation: parts.generation,
            stamp: self.next_stamp.fetch_add(1, Relaxed),
            lo: parts.lo.into(),
            keys: KeyArray::new(parts.keys.chain(parts.hi)),
            records: records.into(),
            mirror_words: words as u16,
            mirror_stride: if is_even { first.div_ceil(8) } else { 0 },
            mirrors: EpochOption::empty(),
            used: AtomicBool::new(true),
            gone: AtomicBool::new(false),
        });
        self.used.fetch_add(node.node_bytes(), Relaxed);
        self.nodes.fetch_add(1, Relaxed);
        let gone = self.levels[usize::from(level)].insert(&node);
        for old in &gone {
            self.carry_mirrors(old, &node);
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

    /// Copies the mirrors of children that stay the same. In both nodes the children are in key
    /// order.
    fn carry_mirrors(&self, old: &CachedNode, new: &CachedNode) {
        let r = reading();
        let Some(from) = old.mirrors.read(&r) else { return };
        let mut next = 0;
        for (i, record) in new.records.iter().enumerate() {
            let same = |o: &Record| o.same_child(record) && o.capacity == record.capacity;
            let Some(ahead) = old.records[next..].iter().position(same) else { continue };
            let j = next + ahead;
            next = j + 1;
            if !from.is_filled(j) {
                continue;
            }
            let Some(to) = self.mirrors_of(new, &r) else { return };
            let words = usize::from(record.capacity).div_ceil(8);
            let from = &from.words[old.mirror_at(j)..][..words];
            for (to, from) in to.words[new.mirror_at(i)..][..words].iter().zip(from) {
                to.store(from.load(Relaxed), Relaxed);
            }
            to.set_filled(i);
        }
    }

    /// Bookkeeping for a node that left its directory.
    fn dropped(&self, node: &CachedNode) {
        if !node.gone.swap(true, Relaxed) {
            self.nodes.fetch_sub(1, Relaxed);
            self.used.fetch_sub(node.node_bytes(), Relaxed);
            self.drop_mirrors(node);
        }
    }

    fn drop_mirrors(&self, node: &CachedNode) -> bool {
        let had = node.mirrors.clear();
        if had {
            self.used.fetch_sub(node.mirror_bytes(), Relaxed);
            self.mirror_bytes.fetch_sub(node.mirror_bytes(), Relaxed);
        }
        had
    }

    /// Drops exactly this copy: it is stale.
    pub fn invalidate(&self, level: u8, node: &CachedNode) {
        if self.levels[usize::from(level)].remove(node) {
            self.dropped(node);
        }
    }

    /// Stores the fingerprints of child `i`. A hint: racing calls may mix.
    pub fn fill_mirror(&self, node: &CachedNode, i: usize, fps: &[u8]) {
        let r = reading();
        let Some(mirrors) = self.mirrors_of(node, &r) else { return };
        let at = node.mirror_at(i);
        for (chunk, word) in fps.chunks(8).zip(&mirrors.words[at..]) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let fps = u64::from_le_bytes(bytes);
            // Most fills change nothing, and would take the line from other threads.
            if word.load(Relaxed) != fps {
                word.store(fps, Relaxed);
            }
        }
        mirrors.set_filled(i);
    }

    /// The mirrors of a node, made where there are none; `None` for a node that is gone, and where
    /// there is no room.
    fn mirrors_of<'r>(&self, node: &'r CachedNode, r: &'r Reading) -> Option<&'r Mirrors> {
        if node.gone.load(Relaxed) {
            return None;
        }
        if node.mirrors.read(r).is_none() {
            let words = node.filled_words() + node.mirror_words as usize;
            let words = (0..words).map(|_| AtomicU64::new(0)).collect();
            // Counted before another thread can drop it.
            self.used.fetch_add(node.mirror_bytes(), Relaxed);
            self.mirror_bytes.fetch_add(node.mirror_bytes(), Relaxed);
            if !node.mirrors.set_if_empty(Mirrors { words }) {
                self.used.fetch_sub(node.mirror_bytes(), Relaxed);
                self.mirror_bytes.fetch_sub(node.mirror_bytes(), Relaxed);
            } else {
                if node.gone.load(Relaxed) {
                    self.drop_mirrors(node);
                    return None;
                }
                self.make_room();
            }
        }
        node.mirrors.read(r)
    }

    /// Notes one fingerprint of child `i`, when it is mirrored.
    pub fn note_fingerprint(&self, node: &CachedNode, i: usize, slot: usize, fp: u8) {
        let r = reading();
        let Some(mirrors) = node.mirrors.read(&r) else { return };
        let word = &mirrors.words[node.mirror_at(i) + slot / 8];
        let shift = slot % 8 * 8;
        let _ = word.fetch_update(Relaxed, Relaxed, |w| {
            Some(w & !(0xff << shift) | u64::from(fp) << shift)
        });
    }

    fn make_room(&self) {
        // Two rounds give every node its second chance; a cache that is still over its budget holds
        // only nodes in use now.
        let mut visits = 2 * self.nodes.load(Relaxed) + 2;
        while self.used.load(Relaxed) > self.budget && visits > 0 {
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
            } else if self.drop_mirrors(&node) {
                self.mirror_evictions.fetch_add(1, Relaxed);
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
        let used = self.used.load(Relaxed);
        used * 100 > self.budget * 99 || used + node_bytes > self.budget
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
            budget_bytes: self.budget,
            used_bytes: self.used.load(Relaxed),
            nodes: self.nodes.load(Relaxed),
            mirror_bytes: self.mirror_bytes.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            mirror_evictions: self.mirror_evictions.load(Relaxed),
            hits: 0,
            misses: 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
