//! The cache of inner nodes of a compute node. Its index is a radix tree itself ("SMART", OSDI'23,
//! section 4.3).
//!
//! An entry is a copy of a node's slots under the node's *prefix*, the bytes that all keys of the
//! node share. The prefix never changes while the node is in use, so an entry is never under a
//! wrong prefix; only its slots become stale. A lookup takes the deepest entry on a key's path that
//! has a slot for the key's next byte. A slot that is missing in a copy proves nothing; the lookup
//! then uses an entry further up.
//!
//! One lock protects the index. It is held for a walk of a few steps, and never over an await.
//! Eviction is first in, first out.

use std::collections::VecDeque;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use dmtree_fabric::GlobalAddr;
use dmtree_parts::CacheStats;
use dmtree_parts::keys::common;

use crate::format::node::slot_at;
use crate::format::slot::Slot;

/// Bytes of a path that one record holds.
const MAX_PATH: usize = 7;
/// Charges as published: for an entry without its slots, for a record, and for its entry in the
/// child list of its parent.
const ENTRY_BYTES: u64 = 9;
const RECORD_BYTES: u64 = 1;
const CHILD_BYTES: u64 = 17;
const ROOT: u32 = 0;

/// A record of the index: bytes of a path, the entry that is cached where they end, and the
/// records below.
#[derive(Debug)]
struct Record<S, N> {
    path_len: u8,
    path: [u8; MAX_PATH],
    parent: u32,
    /// Of the entry; 0 without an entry.
    stamp: u32,
    /// The cached node.
    node: Option<N>,
    /// Its slots by number, up to the last one in use.
    slots: Box<[S]>,
    children: Vec<(u8, u32)>,
}

impl<S, N> Default for Record<S, N> {
    fn default() -> Self {
        let (path_len, path, parent, stamp) = (0, [0; MAX_PATH], 0, 0);
        let (node, slots, children) = (None, Box::default(), Vec::new());
        Self { path_len, path, parent, stamp, node, slots, children }
    }
}

impl<S, N> Record<S, N> {
    fn path(&self) -> &[u8] {
        &self.path[..usize::from(self.path_len)]
    }

    fn set_path(&mut self, path: &[u8]) {
        self.path = [0; MAX_PATH];
        self.path[..path.len()].copy_from_slice(path);
        self.path_len = path.len() as u8;
    }

    fn child(&self, byte: u8) -> Option<u32> {
        self.children.iter().find(|(b, _)| *b == byte).map(|(_, r)| *r)
    }
}

/// Identifies an entry as it was at lookup. A replaced or dropped entry has another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId {
    record: u32,
    stamp: u32,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The slot.
    pub slot: Slot,
    /// Where it is.
    pub at: GlobalAddr,
    /// The node that has it.
    pub node: GlobalAddr,
    /// The position behind the slot's byte.
    pub next: usize,
    /// The entry.
    pub entry: EntryId,
}

/// A copied-out cached node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its prefix.
    pub prefix: Vec<u8>,
    /// Where it is.
    pub node: GlobalAddr,
    /// Its slots by number.
    pub slots: Vec<Slot>,
    /// The entry.
    pub entry: EntryId,
}

#[derive(Debug)]
struct Index<S, N> {
    records: Vec<Record<S, N>>,
    unused: Vec<u32>,
    /// Entries in order of insertion; some have been dropped since.
    queue: VecDeque<EntryId>,
    next_stamp: u32,
    entries: u64,
    used_bytes: u64,
    evictions: u64,
    /// `None`: the index is charged. Otherwise each entry is charged this many bytes of prefix.
    flat_key_bytes: Option<u64>,
}

/// The cache of one index on one compute node. `S` is a slot, with an unused slot as default; `N`
/// identifies a node.
#[derive(Debug)]
pub struct PrefixCache<S = Slot, N = GlobalAddr> {
    index: RwLock<Index<S, N>>,
    budget: u64,
}

impl<S, N> Index<S, N> {
    fn new(flat_key_bytes: Option<u64>) -> Self {
        Self {
            records: vec![Record::default()],
            unused: Vec::new(),
            queue: VecDeque::new(),
            next_stamp: 1,
            entries: 0,
            used_bytes: 0,
            evictions: 0,
            flat_key_bytes,
        }
    }

    fn at(&self, r: u32) -> &Record<S, N> {
        &self.records[r as usize]
    }

    fn at_mut(&mut self, r: u32) -> &mut Record<S, N> {
        &mut self.records[r as usize]
    }

    /// A new record, child of `parent` under `byte`.
    fn add(&mut self, parent: u32, byte: u8, path: &[u8]) -> u32 {
        let r = self.unused.pop().unwrap_or_else(|| {
            self.records.push(Record::default());
            self.records.len() as u32 - 1
        });
        self.at_mut(r).set_path(path);
        self.at_mut(r).parent = parent;
        self.at_mut(parent).children.push((byte, r));
        r
    }

    /// The record where a prefix ends. Creates it, and the records that lead to it, if they are
    /// missing.
    fn place(&mut self, prefix: &[u8]) -> u32 {
        let (mut r, mut rest) = (ROOT, prefix);
        loop {
            let path = self.at(r).path();
            let common = common(path, rest);
            if common < path.len() {
                r = self.cut(r, common);
            }
            rest = &rest[common..];
            let Some((byte, behind)) = rest.split_first() else { return r };
            r = match self.at(r).child(*byte) {
                Some(child) => {
                    rest = behind;
                    child
                }
                None => {
                    let take = behind.len().min(MAX_PATH);
                    let new = self.add(r, *byte, &behind[..take]);
                    self.charge(CHILD_BYTES + RECORD_BYTES + take as u64);
                    rest = behind;
                    new
                }
            };
        }
    }

    /// More bytes of the index itself.
    fn charge(&mut self, bytes: u64) {
        if self.flat_key_bytes.is_none() {
            self.used_bytes += bytes;
        }
    }

    /// Splits `r`: puts a record in front of it with the first `n` bytes of its path. Returns the
    /// new record.
    fn cut(&mut self, r: u32, n: usize) -> u32 {
        let path = self.at(r).path().to_vec();
        let parent = self.at(r).parent;
        if r == ROOT {
            // The root has no path.
            return r;
        }
        let byte = self.at(parent).children.iter().find(|(_, c)| *c == r).map_or(0, |(b, _)| *b);
        self.at_mut(parent).children.retain(|(_, c)| *c != r);
        let front = self.add(parent, byte, &path[..n]);
        self.at_mut(front).children.push((path[n], r));
        self.at_mut(r).parent = front;
        self.at_mut(r).set_path(&path[n + 1..]);
        // One byte of the path moves into the child list.
        self.charge(CHILD_BYTES + RECORD_BYTES - 1);
        front
    }

    fn entry_bytes(&self, slots: usize) -> u64 {
        ENTRY_BYTES + 8 * slots as u64 + self.flat_key_bytes.unwrap_or(0)
    }

    /// Drops an entry if it is still the same, and the records that then lead to no entry.
    fn drop_entry(&mut self, id: EntryId) -> bool {
        if self.at(id.record).stamp != id.stamp || id.stamp == 0 {
            return false;
        }
        let record = self.at_mut(id.record);
        record.stamp = 0;
        record.node = None;
        let slots = std::mem::take(&mut record.slots);
        self.used_bytes -= self.entry_bytes(slots.len());
        self.entries -= 1;
        let mut r = id.record;
        while r != ROOT && self.at(r).stamp == 0 && self.at(r).children.is_empty() {
            let (parent, path) = (self.at(r).parent, self.at(r).path().len());
            self.at_mut(parent).children.retain(|(_, c)| *c != r);
            *self.at_mut(r) = Record::default();
            self.unused.push(r);
            if self.flat_key_bytes.is_none() {
                self.used_bytes -= CHILD_BYTES + RECORD_BYTES + path as u64;
            }
            r = parent;
        }
        true
    }
}

impl<S: Copy + Default + PartialEq, N: Copy> PrefixCache<S, N> {
    /// An empty cache of `budget` bytes. With `flat_key_bytes` every entry is charged this many
    /// bytes of prefix, and the index is not charged.
    pub fn new(budget: u64, flat_key_bytes: Option<u64>) -> Self {
        Self { index: RwLock::new(Index::new(flat_key_bytes)), budget }
    }

    fn read(&self) -> RwLockReadGuard<'_, Index<S, N>> {
        self.index.read().expect("no panic under this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index<S, N>> {
        self.index.write().expect("no panic under this lock")
    }

    /// Shows every cached node on a key's path, from the shortest prefix on: its entry, the node,
    /// its slots, and the length of its prefix.
    pub fn on_path(&self, key: &[u8], mut see: impl FnMut(EntryId, N, &[S], usize)) {
        let index = self.read();
        let (mut r, mut i) = (ROOT, 0);
        loop {
            let record = index.at(r);
            if !key[i..].starts_with(record.path()) {
                return;
            }
            i += record.path().len();
            if let (Some(node), 1..) = (record.node, record.stamp) {
                see(EntryId { record: r, stamp: record.stamp }, node, &record.slots, i);
            }
            match key.get(i).and_then(|byte| record.child(*byte)) {
                Some(child) => (r, i) = (child, i + 1),
                None => return,
            }
        }
    }

    /// Stores (or replaces) the copy of a node: its slots by number.
    pub fn insert(&self, prefix: &[u8], node: N, slots: &[S]) {
        let used = slots.iter().rposition(|s| *s != S::default()).map_or(0, |last| last + 1);
        let mut index = self.write();
        let r = index.place(prefix);
        let old = index.at(r);
        if old.stamp != 0 {
            index.used_bytes -= index.entry_bytes(old.slots.len());
            index.entries -= 1;
        }
        let stamp = index.next_stamp;
        index.next_stamp = stamp.wrapping_add(1).max(1);
        let record = index.at_mut(r);
        (record.stamp, record.node, record.slots) = (stamp, Some(node), slots[..used].into());
        index.used_bytes += index.entry_bytes(used);
        index.entries += 1;
        index.queue.push_back(EntryId { record: r, stamp });
        if index.queue.len() as u64 > 2 * index.entries + 16 {
            let mut queue = std::mem::take(&mut index.queue);
            queue.retain(|id| index.at(id.record).stamp == id.stamp);
            index.queue = queue;
        }
        while index.used_bytes > self.budget
            && let Some(oldest) = index.queue.pop_front()
        {
            if index.drop_entry(oldest) {
                index.evictions += 1;
            }
        }
    }

    /// Drops exactly this entry, which is stale.
    pub fn remove(&self, id: EntryId) {
        self.write().drop_entry(id);
    }

    /// Statistics; the index adds hits and misses.
    pub fn stats(&self) -> CacheStats {
        let index = self.read();
        CacheStats {
            budget_bytes: self.budget,
            used_bytes: index.used_bytes,
            nodes: index.entries,
            evictions: index.evictions,
            ..CacheStats::default()
        }
    }
}

impl PrefixCache {
    /// The deepest cached slot on a key's path.
    pub fn lookup(&self, key: &[u8]) -> Option<Found> {
        let mut found = None;
        self.on_path(key, |entry, node, slots, len| {
            let Some(byte) = key.get(len) else { return };
            let mut slots = slots.iter().enumerate();
            let slot = slots.find(|(_, s)| !s.is_empty() && s.partial() == *byte);
            if let Some((n, slot)) = slot {
                let at = slot_at(node, n);
                found = Some(Found { slot: *slot, at, node, next: len + 2, entry });
            }
        });
        found
    }

    /// The entry of a node on a key's path.
    pub fn entry_of(&self, key: &[u8], node: GlobalAddr) -> Option<EntryId> {
        let mut found = None;
        self.on_path(key, |entry, n, _, _| found = found.or((n == node).then_some(entry)));
        found
    }

    /// The deepest cached node on a key's path, copied out.
    pub fn deepest(&self, key: &[u8]) -> Option<Copied> {
        let mut found = None;
        self.on_path(key, |entry, node, slots, len| {
            let prefix = key[..len].to_vec();
            found = Some(Copied { prefix, node, slots: slots.to_vec(), entry });
        });
        found
    }

    /// The copy of the node `node`; its prefix begins with `prefix`. `None` when there is no copy.
    pub fn copy_below(&self, prefix: &[u8], node: GlobalAddr) -> Option<Copied> {
        let index = self.read();
        let (mut r, mut rest, mut whole) = (ROOT, prefix, Vec::new());
        loop {
            let record = index.at(r);
            let path = record.path();
            let common = common(path, rest);
            if common < path.len().min(rest.len()) {
                return None;
            }
            whole.extend_from_slice(path);
            rest = &rest[common..];
            if rest.is_empty() && record.stamp != 0 {
                let entry = EntryId { record: r, stamp: record.stamp };
                let slots = record.slots.to_vec();
                return (record.node == Some(node)).then_some(Copied {
                    prefix: whole,
                    node,
                    slots,
                    entry,
                });
            }
            let (byte, child) = match (rest.split_first(), &record.children[..]) {
                (Some((byte, behind)), _) => {
                    rest = behind;
                    (*byte, record.child(*byte)?)
                }
                (None, [(byte, child)]) => (*byte, *child),
                // Nodes between the two are not cached.
                (None, _) => return None,
            };
            whole.push(byte);
            r = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn addr(n: u64) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(0), (n + 1) * 4096)
    }

    fn slots(bytes: &[u8]) -> Vec<Slot> {
        let of = |b: &u8| Slot::leaf(*b, 57, addr(1000 + u64::from(*b))).expect("an address");
        bytes.iter().map(of).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(Vec<u8>, Vec<u8>),
        Remove(Vec<u8>),
        Lookup(Vec<u8>),
    }

    fn bytes(longest: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 1..longest)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (bytes(14), proptest::collection::btree_set(0u8..3, 0..3))
                .prop_map(|(p, s)| Step::Insert(p, s.into_iter().collect())),
            bytes(14).prop_map(Step::Remove),
            bytes(20).prop_map(Step::Lookup),
        ]
    }

    proptest! {
        /// Compares with a model: a map from prefixes to copies.
        #[test]
        fn finds_the_deepest_copy_with_a_slot(steps in proptest::collection::vec(step(), 1..120), flat: bool) {
            let flat = flat.then_some(24);
            let cache = PrefixCache::new(u64::MAX, flat);
            let mut model: BTreeMap<Vec<u8>, (GlobalAddr, Vec<u8>)> = BTreeMap::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(prefix, has) => {
                        cache.insert(&prefix, addr(n as u64), &slots(&has));
                        model.insert(prefix, (addr(n as u64), has));
                    }
                    Step::Remove(prefix) => {
                        let known = model.remove(&prefix);
                        if let Some((node, _)) = known {
                            let copied = cache.copy_below(&prefix, node).expect("cached");
                            prop_assert_eq!(&copied.prefix, &prefix);
                            cache.remove(copied.entry);
                            cache.remove(copied.entry);
                        }
                    }
                    Step::Lookup(key) => {
                        let wanted = (1..key.len()).rev().find_map(|n| {
                            let (node, has) = model.get(&key[..n])?;
                            let i = has.iter().position(|b| *b == key[n])?;
                            Some((*node, i, n))
                        });
                        let found = cache.lookup(&key).map(|f| {
                            assert_eq!(f.slot.partial(), key[f.next - 2]);
                            (f.node, f.at, f.next)
                        });
                        prop_assert_eq!(found, wanted.map(|(node, i, n)| (node, slot_at(node, i), n + 2)));
                    }
                }
                prop_assert_eq!(cache.stats().nodes, model.len() as u64);
            }
            for (prefix, (node, _)) in &model {
                cache.remove(cache.copy_below(prefix, *node).expect("cached").entry);
            }
            let s = cache.stats();
            prop_assert_eq!((s.nodes, s.used_bytes), (0, 0));
        }
    }

    #[test]
    fn the_budget_holds_and_the_oldest_goes_first() {
        let cache = PrefixCache::new(2_000, None);
        for n in 0..200u64 {
            let prefix = n.to_be_bytes();
            cache.insert(&prefix, addr(n), &slots(&[1, 2, 3]));
            assert!(cache.stats().used_bytes <= 2_000, "{:?}", cache.stats());
        }
        let has = |n: u64| {
            let key = [&n.to_be_bytes()[..], &[2]].concat();
            cache.lookup(&key).is_some()
        };
        assert!(has(199) && !has(0) && cache.stats().evictions > 100);
        assert_eq!(
            cache.read().records.len() - cache.read().unused.len() - 1,
            cache.stats().nodes as usize + 1
        );
    }

    /// Nodes between a slot and a cached node are not cached. The copy must not be taken for the
    /// slot's child.
    #[test]
    fn a_copy_further_down_is_no_child() {
        let cache = PrefixCache::new(1 << 20, None);
        cache.insert(b"abcd", addr(1), &slots(b"x"));
        assert_eq!(cache.copy_below(b"ab", addr(1)).expect("cached").prefix, b"abcd");
        assert_eq!(cache.copy_below(b"ab", addr(2)), None);
        cache.insert(b"abde", addr(2), &slots(b"y"));
        assert_eq!(cache.copy_below(b"ab", addr(1)), None, "two ways down");
        assert_eq!(cache.copy_below(b"abc", addr(1)).expect("cached").prefix, b"abcd");
    }
}
