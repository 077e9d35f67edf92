//! The compute node's cache of inner nodes, with mirrors of fingerprint tables, under one byte
//! budget.
//!
//! Cached nodes are immutable once inserted and are replaced whole; readers take no lock. Each
//! level is a two-step directory: pages of nodes in key order under a top array. A mirror is a copy
//! of a child's fingerprints; it is read without a lock or a checksum and is only ever a hint. When
//! the budget is spent, nodes are visited in the order of their insertion with a second chance for
//! those used since; first their mirrors go, then they.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::prefetch;

use crate::contract::CacheStats;
use crate::hash::positions;
use crate::keys::KeyArray;
use crate::sync::{AtomicBool, AtomicU64, EpochCell, EpochOption, Mutex, Reading, reading};

/// Levels a tree can have: a fan-out of 8 at half fill reaches 10^9 leaves with 15.
pub const MAX_LEVELS: usize = 16;
/// Keys that are looked up in step.
const TOGETHER: usize = 16;
/// Nodes of one page of a directory; a page is split at twice as many.
const PAGE_NODES: usize = 48;

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
    mirror_words: u32,
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
    /// How many children.
    pub fn len(&self) -> usize {
        self.children
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.children == 0
    }
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
    fn mirror_at(&self, i: usize) -> usize {
        self.filled_words() + self.records[i].mirror_at as usize
    }

    /// The fingerprints of child `i` as mirrored: calls `f` with each slot that has `fp` until it
    /// says false. `None` when there is no mirror.
    pub fn mirror_slots(&self, i: usize, fp: u8, mut f: impl FnMut(usize) -> bool) -> Option<()> {
        let r = reading();
        let mirrors = self.mirrors.read(&r)?;
        if !mirrors.is_filled(i) {
            return None;
        }
        let r = &self.records[i];
        let at = self.mirror_at(i);
        let mut stop = false;
        for (w, word) in
            mirrors.words[at..at + usize::from(r.capacity).div_ceil(8)].iter().enumerate()
        {
            positions(&word.load(Relaxed).to_le_bytes(), fp, |b| {
                stop = !f(w * 8 + b);
                !stop
            });
            if stop {
                break;
            }
        }
        Some(())
    }

    /// How many slots child `i` uses according to its mirror.
    pub fn mirror_live(&self, i: usize) -> Option<u32> {
        let mut free = 0;
        self.mirror_slots(i, 0, |_| {
            free += 1;
            true
        })?;
        Some(u32::from(self.records[i].capacity) - free)
    }
}

type Nodes = Vec<Arc<CachedNode>>;

#[derive(Debug)]
struct PageDir {
    keys: KeyArray,
    nodes: Nodes,
}

impl PageDir {
    fn new(nodes: Nodes) -> Self {
        Self { keys: KeyArray::new(nodes.iter().map(|n| n.lo())), nodes }
    }
}

#[derive(Debug)]
struct TopDir {
    /// Lower bound of each page; the first is empty.
    keys: KeyArray,
    pages: Vec<Arc<EpochCell<PageDir>>>,
}

#[derive(Debug)]
struct Level {
    top: EpochCell<TopDir>,
    changing: Mutex<()>,
}

impl Level {
    fn new() -> Self {
        let page = Arc::new(EpochCell::new(PageDir::new(Vec::new())));
        let top = TopDir { keys: KeyArray::new([&[][..]].into_iter()), pages: vec![page] };
        Self { top: EpochCell::new(top), changing: Mutex::new(()) }
    }

    /// The last node that begins at or below `key`.
    fn node<'r>(&'r self, key: &[u8], r: &'r Reading) -> Option<&'r Arc<CachedNode>> {
        let top = self.top.read(r);
        let page = top.pages[top.keys.floor(key)?].read(r);
        Some(&page.nodes[page.keys.floor(key)?])
    }

    /// The last node that begins below `key`, for descending walks.
    fn below(&self, key: Option<&[u8]>) -> Option<Arc<CachedNode>> {
        let r = reading();
        let top = self.top.read(&r);
        let mut page = top.keys.below(key)?;
        loop {
            let nodes = top.pages[page].read(&r);
            if let Some(at) = nodes.keys.below(key) {
                return Some(nodes.nodes[at].clone());
            }
            page = page.checked_sub(1)?;
        }
    }

    /// Replaces all nodes that begin inside the new one's range by it; returns the removed ones.
    fn insert(&self, node: &Arc<CachedNode>) -> Nodes {
        let _changing = self.changing.lock().expect("no panic under this lock");
        let r = reading();
        let top = self.top.read(&r);
        let first = top.keys.floor(node.lo()).expect("the first page begins at the bottom");
        let mut gone = Nodes::new();
        let mut last = first;
        for page in first..top.pages.len() {
            if page > first && node.hi().is_some_and(|hi| top.keys.get(page) >= hi) {
                break;
            }
            last = page;
        }
        for page in first..=last {
            let old = top.pages[page].read(&r);
            let mut nodes: Nodes = Vec::with_capacity(old.nodes.len() + 1);
            for n in &old.nodes {
                let inside = n.lo() >= node.lo() && node.hi().is_none_or(|hi| n.lo() < hi);
                if inside { gone.push(n.clone()) } else { nodes.push(n.clone()) }
            }
            if page == first {
                let at = nodes.partition_point(|n| n.lo() < node.lo());
                nodes.insert(at, node.clone());
            }
            if nodes.len() > 2 * PAGE_NODES {
                self.split_page(top, page, nodes);
            } else {
                top.pages[page].replace(PageDir::new(nodes));
            }
        }
        gone
    }

    fn split_page(&self, top: &TopDir, page: usize, mut nodes: Nodes) {
        let upper = nodes.split_off(nodes.len() / 2);
        let mut keys: Vec<Vec<u8>> = top.keys.iter().map(<[u8]>::to_vec).collect();
        keys.insert(page + 1, upper[0].lo().to_vec());
        let mut pages = top.pages.clone();
        pages[page] = Arc::new(EpochCell::new(PageDir::new(nodes)));
        pages.insert(page + 1, Arc::new(EpochCell::new(PageDir::new(upper))));
        let keys = KeyArray::new(keys.iter().map(Vec::as_slice));
        self.top.replace(TopDir { keys, pages });
    }

    /// Removes exactly this copy; false when it is not there (any more).
    fn remove(&self, node: &CachedNode) -> bool {
        let _changing = self.changing.lock().expect("no panic under this lock");
        let r = reading();
        let top = self.top.read(&r);
        let Some(page) = top.keys.floor(node.lo()) else { return false };
        let old = top.pages[page].read(&r);
        let Some(at) = old.nodes.iter().position(|n| n.stamp == node.stamp) else { return false };
        let mut nodes = old.nodes.clone();
        nodes.remove(at);
        top.pages[page].replace(PageDir::new(nodes));
        true
    }
}

/// The fields of a node to be cached.
#[derive(Debug)]
pub struct NodeParts<'a> {
    /// Its address.
    pub addr: GlobalAddr,
    /// Its generation.
    pub generation: u16,
    /// Its lower fence.
    pub lo: &'a [u8],
    /// Its upper fence.
    pub hi: Option<&'a [u8]>,
    /// Lower fences of the children, ascending strictly, below the upper fence.
    pub keys: KeyArray,
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
        let node = self.levels[usize::from(level)].node(key, &r)?;
        let i = node.keys.floor(key).filter(|i| *i < node.records.len())?;
        Some(f(node, i))
    }

    /// [`NodeCache::lookup`] of several keys: while one search waits for memory, that of the next
    /// ones is on its way. `f` gets the number of each key, and its node and child if they are
    /// cached.
    pub fn lookup_many(
        &self,
        level: u8,
        keys: &[&[u8]],
        mut f: impl FnMut(usize, Option<(&Arc<CachedNode>, usize)>),
    ) {
        let (r, level) = (reading(), &self.levels[usize::from(level)]);
        for (round, keys) in keys.chunks(TOGETHER).enumerate() {
            let mut found: [Option<(&Arc<CachedNode>, usize)>; TOGETHER] = [None; TOGETHER];
            for (found, key) in found.iter_mut().zip(keys) {
                *found = level.node(key, &r).map(|node| (node, 0));
                found.iter().for_each(|(node, _)| prefetch(&***node));
            }
            for (node, _) in found.iter().flatten() {
                node.keys.prefetch();
                node.mirrors.read(&r).into_iter().for_each(prefetch);
            }
            for (found, key) in found.iter_mut().zip(keys) {
                let Some((node, _)) = *found else { continue };
                let child = node.keys.floor(key).filter(|i| *i < node.records.len());
                *found = child.map(|i| (node, i));
                child.iter().for_each(|i| prefetch(&node.records[*i]));
            }
            for (node, i) in found.iter().flatten() {
                if let Some(mirrors) = node.mirrors.read(&r) {
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
    pub fn insert(&self, level: u8, parts: NodeParts<'_>) -> Arc<CachedNode> {
        let mut words = 0;
        let mut records = parts.records;
        for r in &mut records {
            r.mirror_at = words;
            words += u32::from(r.capacity).div_ceil(8);
        }
        let node = Arc::new(CachedNode {
            addr: parts.addr,
            generation: parts.generation,
            stamp: self.next_stamp.fetch_add(1, Relaxed),
            lo: parts.lo.into(),
            keys: KeyArray::new(parts.keys.iter().chain(parts.hi)),
            records: records.into(),
            mirror_words: words,
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

    fn carry_mirrors(&self, old: &CachedNode, new: &CachedNode) {
        if old.mirrors.read(&reading()).is_none() {
            return;
        }
        let mut fps = [0u8; 256];
        for (i, r) in new.records.iter().enumerate() {
            let j = old.keys.floor(new.keys.get(i)).filter(|j| *j < old.records.len());
            let Some(j) = j else { continue };
            if !old.records[j].same_child(r) {
                continue;
            }
            let n = usize::from(r.capacity).min(fps.len());
            if self.mirror_copy(old, j, &mut fps[..n]) {
                self.fill_mirror(new, i, &fps[..n]);
            }
        }
    }

    fn mirror_copy(&self, node: &CachedNode, i: usize, out: &mut [u8]) -> bool {
        let r = reading();
        let Some(mirrors) = node.mirrors.read(&r) else { return false };
        if !mirrors.is_filled(i) {
            return false;
        }
        let at = node.mirror_at(i);
        for (chunk, word) in out.chunks_mut(8).zip(&mirrors.words[at..]) {
            let bytes = word.load(Relaxed).to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        true
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
        if node.gone.load(Relaxed) {
            return;
        }
        let r = reading();
        if node.mirrors.read(&r).is_none() {
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
                    return;
                }
                self.make_room();
            }
        }
        let Some(mirrors) = node.mirrors.read(&r) else { return };
        let at = node.mirror_at(i);
        for (chunk, word) in fps.chunks(8).zip(&mirrors.words[at..]) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
        mirrors.words[i / 64].fetch_or(1 << (i % 64), Relaxed);
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
mod tests {
    use super::*;

    fn put(cache: &NodeCache, lo: u32, hi: u32, children: &[u32]) -> Arc<CachedNode> {
        let keys: Vec<_> = children.iter().map(|k| k.to_be_bytes()).collect();
        let records = children
            .iter()
            .map(|k| Record::new(GlobalAddr::from_bits(u64::from(*k) << 8), 1, 7, 32, 0))
            .collect();
        let (lo, hi) = (lo.to_be_bytes(), hi.to_be_bytes());
        let keys = KeyArray::new(keys.iter().map(|k| &k[..]));
        let addr = GlobalAddr::from_bits(64);
        cache.insert(1, NodeParts { addr, generation: 1, lo: &lo, hi: Some(&hi), keys, records })
    }

    fn child(cache: &NodeCache, key: u32) -> Option<u64> {
        cache.lookup(1, &key.to_be_bytes(), |n, i| n.records()[i].child.bits() >> 8)
    }

    #[test]
    fn finds_the_covering_child_and_nothing_else() {
        let cache = NodeCache::new(1 << 20);
        for i in if cfg!(miri) { 110..130 } else { 0..1000u32 } {
            put(&cache, i * 100, i * 100 + 90, &[i * 100, i * 100 + 50]);
        }
        assert_eq!(child(&cache, 12_349), Some(12_300));
        assert_eq!(child(&cache, 12_350), Some(12_350));
        assert_eq!(child(&cache, 12_395), None, "between two cached nodes");
        let below = cache.lookup_below(1, Some(&12_300u32.to_be_bytes()));
        assert!(below.is_none(), "the node before ends at 12290");
        let below = cache.lookup_below(1, Some(&12_310u32.to_be_bytes())).expect("cached");
        assert_eq!(below.lo(), 12_300u32.to_be_bytes());
    }

    /// Digest 8.5 #20 and #21: a newer image always replaces an older one, and a removed node is
    /// not counted twice.
    #[test]
    fn a_newer_image_replaces_the_covered_nodes_and_keeps_mirrors() {
        let cache = NodeCache::new(1 << 20);
        let old = put(&cache, 0, 100, &[0, 50]);
        cache.fill_mirror(&old, 1, &[9; 32]);
        put(&cache, 100, 200, &[100]);
        let new = put(&cache, 0, 200, &[0, 50, 70, 100]);
        assert_eq!(cache.stats().nodes, 1);
        assert_eq!(new.mirror_live(1), Some(32), "the mirror of an unchanged child is kept");
        assert_eq!(new.mirror_live(2), None);
        cache.invalidate(1, &old);
        assert_eq!(child(&cache, 75), Some(70), "dropping an old copy leaves the new one");
        cache.invalidate(1, &new);
        let s = cache.stats();
        assert_eq!((s.nodes, s.used_bytes, s.mirror_bytes), (0, 0, 0));
    }

    /// A replaced node stayed in memory until the budget was spent, uncounted: endless refreshes
    /// leaked memory.
    #[test]
    fn replaced_nodes_are_let_go_of() {
        let cache = NodeCache::new(1 << 20);
        let first = Arc::downgrade(&put(&cache, 0, 100, &[0]));
        // Memory comes free when the readers that may have it have ended, and a while later.
        for _ in 0..if cfg!(miri) { 400 } else { 10_000 } {
            put(&cache, 0, 100, &[0]);
            if first.strong_count() == 0 {
                break;
            }
        }
        assert_eq!(cache.stats().nodes, 1);
        assert_eq!(first.strong_count(), 0);
        assert!(cache.clock.lock().unwrap().len() <= 19);
    }

    #[test]
    fn the_budget_holds_mirrors_go_first() {
        let one = NodeCache::new(1 << 20);
        let node = put(&one, 0, 100, &[0, 50]);
        let size = node.node_bytes();
        let cache = NodeCache::new(size * 3 + node.mirror_bytes());
        let nodes: Vec<_> =
            (0..3).map(|i| put(&cache, i * 100, i * 100 + 100, &[i * 100])).collect();
        nodes.iter().for_each(|n| cache.fill_mirror(n, 0, &[1; 32]));
        for i in 3..50 {
            put(&cache, i * 100, i * 100 + 100, &[i * 100]);
            assert!(cache.stats().used_bytes <= size * 3 + node.mirror_bytes());
        }
        let s = cache.stats();
        assert!(s.mirror_evictions > 0 && s.evictions > 0 && s.nodes >= 2, "{s:?}");
    }

    #[test]
    fn readers_and_writers_together() {
        let cache = NodeCache::new(40_000);
        let rounds = if cfg!(miri) { 8 } else { 5_000 };
        std::thread::scope(|s| {
            for t in 0..2u32 {
                let cache = &cache;
                s.spawn(move || {
                    for i in 0..rounds {
                        let at = (i * 7 + t * 3) % 300 * 100;
                        let node = put(cache, at, at + 100, &[at, at + 40]);
                        cache.fill_mirror(&node, 0, &[t as u8 + 1; 32]);
                    }
                });
                s.spawn(move || {
                    for i in 0..rounds {
                        let key = (i * 13 + t) % 30_000;
                        if let Some(c) = child(cache, key) {
                            let base = u64::from(key / 100 * 100);
                            assert!(c == base || c == base + 40);
                        }
                    }
                });
            }
        });
        cache.clear();
        let s = cache.stats();
        assert_eq!((s.nodes, s.used_bytes, s.mirror_bytes), (0, 0, 0));
    }
}
