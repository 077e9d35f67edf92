//! A MemTable: the newest versions of keys, in a concurrent skip list.
//!
//! A table owns an interval of sequence numbers. A writer draws a number with one fetch-and-add; a
//! number beyond the interval is none, and the writer switches to another table. So intervals of
//! tables are disjoint, and a newer table has newer versions only. Sealing shrinks the interval to
//! the numbers that were drawn: the next table begins behind them.
//!
//! *Completion.* A number is complete when its versions are in the list, or never will be (its
//! [`Number`] was dropped). The contiguous prefix of complete numbers only grows: what it covers is
//! visible. A batch has one number for all of its versions. A sealed table with a complete prefix
//! has no writer any more.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_skiplist::SkipMap;

use crate::key::{InternalKey, Pair, Probe, Seq, Tag, Versioned};
use crate::log::Record;

/// Added to the counter of a sealed table: no writer draws below the interval's end any more.
const SEALED: u64 = 1 << 62;
/// Bytes of a skip list's node beside key and value, about.
pub(crate) const NODE_BYTES: u64 = 64;

/// What the MemTables of a node have together.
#[derive(Debug)]
pub(crate) struct Room {
    most: u64,
    held: AtomicU64,
}

impl Room {
    /// For so many bytes.
    pub(crate) fn of(most: u64) -> Arc<Self> {
        Arc::new(Self { most, held: AtomicU64::new(0) })
    }

    /// Whether no write has room.
    pub(crate) fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.most
    }
}

/// A MemTable.
pub(crate) struct MemTable {
    /// The first number of its interval.
    pub(crate) first: Seq,
    room: u64,
    byte_budget: u64,
    /// How many numbers were drawn, or more.
    drawn: AtomicU64,
    /// How many numbers the interval has.
    end: AtomicU64,
    complete: Box<[AtomicU64]>,
    /// So many numbers are complete without a gap.
    prefix: AtomicU64,
    bytes: AtomicU64,
    room_of_node: Arc<Room>,
    versions: SkipMap<InternalKey, Box<[u8]>>,
}

impl std::fmt::Debug for MemTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemTable({} to {})", self.first, self.first + self.assigned())
    }
}

/// A drawn number; dropped, it is complete.
pub(crate) struct Number {
    table: Arc<MemTable>,
    index: u64,
}

impl Number {
    pub(crate) fn seq(&self) -> Seq {
        self.table.first + self.index
    }

    /// The table of its interval.
    pub(crate) fn table(&self) -> Arc<MemTable> {
        self.table.clone()
    }

    /// Stores a version with this number; `None` is a deletion.
    pub(crate) fn put(&self, user: &[u8], value: Option<&[u8]>) {
        let tag = Tag::new(self.seq(), value.is_some());
        let value = value.unwrap_or_default();
        self.table.count(user, value);
        self.table.versions.insert(InternalKey { user: user.into(), tag }, value.into());
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let (word, bit) = (self.index / 64, self.index % 64);
        self.table.complete[word as usize].fetch_or(1 << bit, Ordering::SeqCst);
        self.table.advance();
    }
}

impl Drop for MemTable {
    fn drop(&mut self) {
        self.room_of_node.held.fetch_sub(self.held_bytes(), Ordering::Relaxed);
    }
}

impl MemTable {
    /// An empty table with an interval of so many numbers, and room for so many bytes.
    pub(crate) fn new(
        first: Seq,
        (entries, byte_budget): (u64, u64),
        room: &Arc<Room>,
    ) -> Arc<Self> {
        let words = entries.div_ceil(64);
        room.held.fetch_add(8 * words, Ordering::Relaxed);
        Arc::new(Self {
            first,
            room: entries,
            byte_budget,
            drawn: AtomicU64::new(0),
            end: AtomicU64::new(entries),
            complete: (0..words).map(|_| AtomicU64::new(0)).collect(),
            prefix: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            room_of_node: room.clone(),
            versions: SkipMap::new(),
        })
    }

    /// A sealed table with what a log had of an interval.
    pub(crate) fn logged(
        (first, last): (Seq, Seq),
        records: Vec<Record>,
        room: &Arc<Room>,
    ) -> Arc<Self> {
        let numbers = last + 1 - first;
        let table = Self::new(first, (0, 0), room);
        [&table.drawn, &table.end, &table.prefix]
            .into_iter()
            .zip([SEALED, numbers, numbers])
            .for_each(|(to, n)| to.store(n, Ordering::SeqCst));
        for Record { seq, writes, .. } in records {
            for (user, value) in writes {
                let tag = Tag::new(seq, value.is_some());
                let value = value.unwrap_or_default();
                table.count(&user, &value);
                table.versions.insert(InternalKey { user: user.into(), tag }, value.into());
            }
        }
        table
    }

    /// Counts the bytes of a version.
    fn count(&self, user: &[u8], value: &[u8]) {
        let bytes = user.len() as u64 + value.len() as u64 + 8 + NODE_BYTES;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.room_of_node.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Draws a number; `None` when the table takes no more.
    pub(crate) fn draw(self: &Arc<Self>) -> Option<Number> {
        if self.bytes() >= self.byte_budget || self.room_of_node.is_full() {
            return None;
        }
        let index = self.drawn.fetch_add(1, Ordering::SeqCst);
        (index < self.room).then(|| Number { table: self.clone(), index })
    }

    /// No number is drawn from now on. Called once, under the lock of the shard. Returns the first
    /// number of the next table.
    pub(crate) fn seal(&self) -> Seq {
        let drawn = self.drawn.fetch_add(SEALED, Ordering::SeqCst);
        let end = drawn.min(self.room);
        self.end.store(end, Ordering::SeqCst);
        self.first + end
    }

    /// How many of its numbers are drawn.
    pub(crate) fn assigned(&self) -> u64 {
        self.drawn.load(Ordering::SeqCst).min(self.end.load(Ordering::SeqCst))
    }

    /// The last number before which, itself included, all are complete.
    pub(crate) fn visible(&self) -> Seq {
        self.first + self.prefix.load(Ordering::SeqCst) - 1
    }

    fn has_completed(&self, numbers: u64) -> bool {
        self.prefix.load(Ordering::SeqCst) >= numbers
    }

    /// Whether it is sealed and has no writer.
    pub(crate) fn is_complete(&self) -> bool {
        self.drawn.load(Ordering::SeqCst) >= SEALED
            && self.has_completed(self.end.load(Ordering::SeqCst))
    }

    /// Bytes of its versions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.bytes() + 8 * self.complete.len() as u64
    }

    fn advance(&self) {
        loop {
            let at = self.prefix.load(Ordering::SeqCst);
            let Some(word) = self.complete.get((at / 64) as usize) else { return };
            let run = (word.load(Ordering::SeqCst) >> (at % 64)).trailing_ones();
            if run == 0 {
                return;
            }
            // Another writer may have advanced it: either way it is looked at again.
            let next = at + u64::from(run);
            let _ = self.prefix.compare_exchange(at, next, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The newest version of a key up to a tag. The value goes to `out`.
    pub(crate) fn get(&self, user: &[u8], newest: Tag, out: &mut Vec<u8>) -> Option<Tag> {
        let probe: &dyn Versioned = &Probe(user, newest);
        let entry = self.versions.lower_bound(Bound::Included(probe))?;
        let key = entry.key();
        if *key.user != *user {
            return None;
        }
        out.clear();
        out.extend_from_slice(entry.value());
        Some(key.tag)
    }

    /// So many versions behind a place, in the direction of a scan.
    pub(crate) fn page(
        &self,
        from: Bound<(&[u8], Tag)>,
        reverse: bool,
        versions: usize,
    ) -> Vec<Pair> {
        let probe = |(user, tag)| Probe(user, tag);
        let probe = match from {
            Bound::Included(at) => Bound::Included(probe(at)),
            Bound::Excluded(at) => Bound::Excluded(probe(at)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let probe = match &probe {
            Bound::Included(p) => Bound::Included(p as &dyn Versioned),
            Bound::Excluded(p) => Bound::Excluded(p as &dyn Versioned),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut entry = match (reverse, probe) {
            (false, Bound::Unbounded) => self.versions.front(),
            (true, Bound::Unbounded) => self.versions.back(),
            (false, probe) => self.versions.lower_bound(probe),
            (true, probe) => self.versions.upper_bound(probe),
        };
        let mut out = Vec::new();
        while let Some(at) = entry {
            if out.len() == versions {
                break;
            }
            let (key, value) = (at.key(), at.value());
            out.push(Pair { user: key.user.to_vec(), tag: key.tag, value: value.to_vec() });
            entry = if reverse { at.prev() } else { at.next() };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_complete_without_gaps() {
        let table = MemTable::new(1, (130, u64::MAX), &Room::of(u64::MAX));
        let mut numbers: Vec<_> = (0..130).map(|_| table.draw()).collect();
        assert!(table.draw().is_none());
        let first = numbers[0].take();
        numbers.into_iter().flatten().for_each(|n| n.put(b"k", Some(b"v")));
        assert!(!table.has_completed(1) && !table.is_complete());
        // Dropped without a version: complete, too.
        drop(first);
        assert!(table.has_completed(130) && !table.is_complete(), "it is not sealed");
        assert_eq!(table.seal(), 131);
        assert!(table.is_complete());
    }

    #[test]
    fn sealing_shrinks_the_interval() {
        let table = MemTable::new(10, (100, u64::MAX), &Room::of(u64::MAX));
        let open = table.draw().expect("room");
        table.draw().expect("room").put(b"k", None);
        assert_eq!(table.seal(), 12);
        assert!(table.draw().is_none() && !table.is_complete());
        open.put(b"k", Some(b"old"));
        drop(open);
        assert!(table.is_complete());
        let mut out = Vec::new();
        assert_eq!(table.get(b"k", Tag::NEWEST, &mut out), Some(Tag::new(11, false)));
        assert_eq!(table.get(b"k", Tag::up_to(10), &mut out), Some(Tag::new(10, true)));
        assert_eq!(out, b"old");
        assert_eq!(table.get(b"k", Tag::up_to(9), &mut out), None);
        assert_eq!(table.get(b"j", Tag::NEWEST, &mut out), None);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let table = MemTable::new(1, (1000, 500), &Room::of(u64::MAX));
        let stored =
            std::iter::from_fn(|| table.draw()).take(100).map(|n| n.put(b"k", Some(&[0; 100])));
        assert_eq!(stored.count(), 3);
    }

    #[test]
    fn pages_go_both_ways() {
        let table = MemTable::new(1, (100, u64::MAX), &Room::of(u64::MAX));
        for key in [b"a", b"b", b"b", b"c"] {
            table.draw().expect("room").put(key, Some(key));
        }
        let keys = |from, reverse| {
            let page = table.page(from, reverse, 3);
            page.iter().map(|p| (p.user[0], p.tag.seq())).collect::<Vec<_>>()
        };
        let b = Tag::new(3, true);
        assert_eq!(keys(Bound::Unbounded, false), [(b'a', 1), (b'b', 3), (b'b', 2)]);
        assert_eq!(keys(Bound::Excluded((b"b", b)), false), [(b'b', 2), (b'c', 4)]);
        assert_eq!(keys(Bound::Unbounded, true), [(b'c', 4), (b'b', 2), (b'b', 3)]);
        assert_eq!(keys(Bound::Excluded((b"b", b)), true), [(b'a', 1)]);
    }
}
