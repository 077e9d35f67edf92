//! Leaves. A leaf, and likewise its synonym, has a head and `span` sorted entries, with versions in
//! its lines (`parts::lines`), and behind them the lock. It is written whole.
//!
//! | part | fields |
//! |---|---|
//! | head | version 1 or 2, synonym 8 |
//! | entry | version 1 or 2, key, value |
//! | end | to a multiple of 8; lock 8, in `lock_bytes` |
//!
//! The entries of a leaf are those up to the first with a key that is not above the one before. (As
//! published the key zero is no entry, which no client may use then.) Addresses are multiples of 8;
//! the low bits of the word of the synonym say more: that the first slot has an entry, and that the
//! leaf has moved to another directory. A leaf of zeros is an empty one.
//!
//! In the steps towards CHIME a leaf is a hopscotch table (`parts::hopscotch`); its link is the
//! synonym, with the same bit for a leaf that has moved. With `vacancy` a word before the lock has
//! two maps of 31 bits: of the leaf, and above it of the synonym.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::bytes::{get_u64, put_u64};
use dmtree_parts::hopscotch::{Layout, Part, Table};
use dmtree_parts::lines::Lines;

use crate::leaf::Node;
use crate::options::Options;

/// In the word of the synonym: the first slot has an entry.
const USED: u64 = 1;
/// The leaf has moved to another directory.
pub const MOVED: u64 = 2;
/// The bits of that word that are no address.
pub const FLAGS: u64 = 7;
/// Bits of the vacancy map of a leaf; that of its synonym is above it.
pub const MAP_BITS: usize = 31;

/// Sizes that the options determine.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Slots of a leaf.
    pub span: usize,
    /// Hopscotch leaves; otherwise leaves are sorted.
    pub table: Option<Table>,
    /// Leaves have a vacancy word before the lock.
    pub has_vacancy: bool,
    /// The lines of a leaf.
    pub lines: Lines,
    lock_bytes: usize,
    /// Leaves begin at multiples of this.
    unit: u64,
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        let (key, value) = (o.key_bytes as usize, o.value_bytes as usize);
        let (span, version) = (o.span as usize, o.version_bytes as usize);
        let (head, entry) = (version + 8, version + key + value);
        let lines = Lines { version, head, entry, group: span, entries: span };
        let near = Some(o.neighbourhood as usize).filter(|near| *near > 0);
        let layout = Layout {
            key,
            value,
            span,
            neighbourhood: near,
            replicas: near.filter(|_| o.replicas),
            fences: false,
            version,
            buckets: MAP_BITS,
        };
        let table = near.map(|_| Table::new(&layout));
        let lines = table.as_ref().map_or(lines, |table| table.leaf);
        let (unit, lock_bytes) = (if o.aligned { 64 } else { 8 }, o.lock_bytes as usize);
        Self { key, value, span, table, has_vacancy: o.vacancy, lines, lock_bytes, unit }
    }

    /// Bytes of a leaf as it is READ and written.
    pub fn raw_bytes(&self) -> usize {
        self.lines.raw_bytes()
    }

    /// Where the lock is; the vacancy word is before it.
    pub fn lock_at(&self) -> u64 {
        self.raw_bytes().next_multiple_of(8) as u64 + if self.has_vacancy { 8 } else { 0 }
    }

    /// The parts of a leaf that a reader of a key READs; of all keys without one.
    pub fn parts(&self, key: Option<&[u8]>) -> Vec<Part> {
        match (&self.table, key) {
            (Some(table), Some(key)) => table.parts(table.home(key), table.near),
            _ => std::iter::once(0..self.lines.bytes()).collect(),
        }
    }

    /// The raw bytes of a part.
    pub fn raw(&self, part: &Part) -> std::ops::Range<usize> {
        self.lines.raw(part.clone())
    }

    /// An empty leaf of the kind that the index has.
    pub fn empty_node(&self) -> Node<'_> {
        match &self.table {
            Some(table) => Node::Hopscotch(table.empty_leaf()),
            None => Node::Sorted(self.empty()),
        }
    }

    /// A leaf of which nothing was READ.
    pub fn unread(&self) -> Node<'_> {
        match &self.table {
            Some(table) => Node::Hopscotch(table.unread()),
            None => Node::Sorted(self.empty()),
        }
    }

    /// Bytes from a leaf to the next.
    pub fn stride(&self) -> u64 {
        (self.lock_at() + self.lock_bytes as u64).next_multiple_of(self.unit)
    }

    /// An empty leaf.
    pub fn empty(&self) -> Leaf<'_> {
        Leaf { g: self, plain: vec![0; self.lines.bytes()] }
    }
}

/// The plain bytes of a leaf.
#[derive(Clone, Debug)]
pub struct Leaf<'g> {
    g: &'g Geometry,
    plain: Vec<u8>,
}

impl Leaf<'_> {
    /// Takes the raw bytes of a part; false for a mix of several WRITEs.
    pub fn take(&mut self, part: Part, raw: &[u8]) -> bool {
        self.g.lines.decode(part, raw, &mut self.plain).is_some()
    }

    /// The word of its synonym, with what its low bits say.
    pub fn link(&self) -> u64 {
        get_u64(&self.plain, self.g.lines.version)
    }

    /// Sets that word.
    pub fn set_link(&mut self, word: u64) {
        put_u64(&mut self.plain, self.g.lines.version, word);
    }

    /// Where its synonym is; null without one.
    pub fn synonym(&self) -> GlobalAddr {
        GlobalAddr::from_bits(self.link() & !FLAGS)
    }

    /// Links a synonym.
    pub fn set_synonym(&mut self, at: GlobalAddr) {
        self.set_link(self.link() & FLAGS | at.bits());
    }

    fn key_at(&self, i: usize) -> usize {
        self.g.lines.entry_at(i) + self.g.lines.version
    }

    /// The key in a slot.
    pub fn key(&self, i: usize) -> &[u8] {
        &self.plain[self.key_at(i)..self.key_at(i) + self.g.key]
    }

    /// The value in a slot.
    pub fn value(&self, i: usize) -> &[u8] {
        let at = self.key_at(i) + self.g.key;
        &self.plain[at..at + self.g.value]
    }

    /// The number of its entries.
    pub fn len(&self) -> usize {
        if self.link() & USED == 0 {
            return 0;
        }
        (1..self.g.span).find(|i| self.key(*i) <= self.key(i - 1)).unwrap_or(self.g.span)
    }

    /// Whether it has no free slot.
    pub fn is_full(&self) -> bool {
        self.len() == self.g.span
    }

    /// Its last key.
    pub fn last(&self) -> Option<&[u8]> {
        Some(self.key(self.len().checked_sub(1)?))
    }

    /// Its entries.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|i| (self.key(i), self.value(i)))
    }

    /// The slot of a key; without it, the slot that it would take.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        for i in 0..self.len() {
            match self.key(i).cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(i),
                std::cmp::Ordering::Greater => return Err(i),
            }
        }
        Err(self.len())
    }

    /// Sets the value in a slot.
    pub fn set_value(&mut self, i: usize, value: &[u8]) {
        let at = self.key_at(i) + self.g.key;
        self.plain[at..at + self.g.value].copy_from_slice(value);
    }

    /// Sets the key and the value in a slot.
    fn put(&mut self, i: usize, key: &[u8], value: &[u8]) {
        let at = self.key_at(i);
        self.plain[at..at + self.g.key].copy_from_slice(key);
        self.set_value(i, value);
    }

    /// Adds an entry that it has not; there is a free slot. Entries behind it move, with their
    /// versions: all are raised when the leaf is written.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        let (count, at) = (self.len(), self.find(key).unwrap_or_else(|at| at));
        let (from, entry) = (self.g.lines.entry_at(at), self.g.lines.entry);
        self.plain.copy_within(from..from + (count - at) * entry, from + entry);
        self.put(at, key, value);
        self.end_at(count + 1);
    }

    /// Takes the last entry out.
    pub fn pop(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let last = self.len().checked_sub(1)?;
        let pair = (self.key(last).to_vec(), self.value(last).to_vec());
        self.end_at(last);
        Some(pair)
    }

    /// The first `count` slots have entries; the next one repeats the key before it.
    fn end_at(&mut self, count: usize) {
        let used = if count > 0 { USED } else { 0 };
        self.set_link(self.link() & !USED | used);
        if (1..self.g.span).contains(&count) {
            let (from, to) = (self.key_at(count - 1), self.key_at(count));
            self.plain.copy_within(from..from + self.g.key, to);
        }
    }

    /// Raises its version, and makes the bytes of a WRITE.
    pub fn seal(&mut self, raw: &mut [u8]) {
        self.g.lines.raise_node(&mut self.plain);
        self.g.lines.encode(0..self.plain.len(), &self.plain, raw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn sizes_are_the_published_ones() {
        let size = |key_bytes, span, lock_bytes| {
            let o = Options { key_bytes, span, lock_bytes, ..Options::published() };
            let g = Geometry::new(&o);
            (g.lines.bytes(), g.raw_bytes(), g.lock_at(), g.stride())
        };
        assert_eq!(size(24, 8, 64), (273, 277, 280, 344));
        assert_eq!(size(24, 16, 64), (537, 545, 552, 616));
        assert_eq!(size(8, 8, 64), (145, 147, 152, 216));
        assert_eq!(size(8, 16, 16), (281, 285, 288, 304));
        let aligned = Geometry::new(&Options { aligned: true, ..Options::published() });
        assert_eq!(aligned.stride(), 384);
    }

    fn whole<'g>(g: &'g Geometry, raw: &[u8]) -> Option<Leaf<'g>> {
        let mut leaf = g.empty();
        leaf.take(0..g.lines.bytes(), raw).then_some(leaf)
    }

    proptest! {
        #[test]
        fn a_leaf_is_a_sorted_map(
            version_bytes in 1u32..3, span in 4u32..20,
            steps in prop::collection::vec((any::<[u8; 2]>(), any::<bool>()), 0..80),
        ) {
            let o = Options { key_bytes: 2, value_bytes: 1, span, version_bytes, ..Options::published() };
            let g = Geometry::new(&o);
            let (mut leaf, mut model) = (g.empty(), BTreeMap::new());
            leaf.set_synonym(GlobalAddr::from_bits(0x1230));
            for (n, (key, pops)) in steps.into_iter().enumerate() {
                // Few keys, the lowest of all among them.
                let key = [key[0] % 4, key[1] % 8];
                if pops {
                    prop_assert_eq!(leaf.pop().map(|(k, _)| k), model.pop_last().map(|(k, _): ([u8; 2], u8)| k.to_vec()));
                } else if let Ok(slot) = leaf.find(&key) {
                    leaf.set_value(slot, &[n as u8]);
                    model.insert(key, n as u8);
                } else if !leaf.is_full() {
                    leaf.insert(&key, &[n as u8]);
                    model.insert(key, n as u8);
                }
                let mut raw = vec![0; g.raw_bytes()];
                leaf.seal(&mut raw);
                leaf = whole(&g, &raw).expect("whole");
                let held: Vec<_> = leaf.pairs().map(|(k, v)| (k.to_vec(), v[0])).collect();
                let wanted: Vec<_> = model.iter().map(|(k, v)| (k.to_vec(), *v)).collect();
                prop_assert_eq!(held, wanted);
            }
            prop_assert_eq!((leaf.synonym().bits(), leaf.link() & MOVED), (0x1230, 0));
        }

        #[test]
        fn garbage_is_refused_or_harmless(raw: Vec<u8>, span in 4u32..20) {
            let g = Geometry::new(&Options { span, ..Options::published() });
            if let Some(leaf) = whole(&g, &raw) {
                prop_assert!(leaf.pairs().count() <= g.span);
                let _ = (leaf.synonym(), leaf.find(&[1; 24]));
            }
        }
    }
}
