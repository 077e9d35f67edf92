//! An inner node as cached: keys, and what a look-up needs of a child in one line of memory.

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::cpu::prefetch;

use crate::keys::KeyArray;
use crate::slots::Slots;
use crate::sync::{AtomicBool, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// Fingerprints in the line of a record; those of a larger leaf go on in the lines behind it.
const BESIDE_RECORD: usize = 32;

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
    /// Where the record is in the image of the node, for indexes with unsorted records: less than
    /// [`MOST_PLACES`].
    pub place: Option<u8>,
}

/// Places of a node.
pub const MOST_PLACES: usize = 127;

impl Record {
    /// A record without a version and without a place.
    pub fn new(child: GlobalAddr, generation: u16, table: u64, capacity: u16, fence: u32) -> Self {
        Self { child, generation, table, capacity, fence, version: 0, place: None }
    }

    /// The same at a place.
    #[must_use]
    pub fn at_place(self, place: usize) -> Self {
        Self { place: u8::try_from(place).ok().filter(|_| place < MOST_PLACES), ..self }
    }

    /// The same with a version.
    #[must_use]
    pub fn with_version(self, version: u32) -> Self {
        Self { version, ..self }
    }
}

/// A line of memory. That of a record has the record in its first half, with a bit that says
/// whether the mirror is filled, how far scans reach, a place and a count of uses, and fingerprints
/// in the second half.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// The bit of word 3 that says whether the mirror is filled.
const FILLED: u64 = 1 << 32;
/// Where word 3 says how many slots of the child a scan has found to be in reach; 0: not yet.
const REACH_AT: u32 = 33;
/// Most slots of a child.
const MOST_REACH: u64 = 0xff;
/// Where word 3 has one more than the place of the record; 0: it has none.
const PLACE_AT: u32 = 41;
/// Where word 3 counts the uses of the child.
const USES_AT: u32 = 48;
/// The most that it counts.
const MOST_USES: u64 = u64::MAX >> USES_AT;

impl Line {
    fn of(r: &Record) -> Self {
        let lengths = u64::from(r.generation) | u64::from(r.capacity) << 16;
        let words = [
            r.child.bits(),
            r.table,
            lengths | u64::from(r.fence) << 32,
            u64::from(r.version) | r.place.map_or(0, |place| u64::from(place) + 1) << PLACE_AT,
            0,
            0,
            0,
            0,
        ];
        Self(words.map(AtomicU64::new))
    }

    fn copy(&self) -> Self {
        Self(self.0.each_ref().map(|word| AtomicU64::new(word.load(Relaxed))))
    }

    fn set_fence(&self, fence: u32) {
        let lengths = u64::from(self.0[2].load(Relaxed) as u32);
        self.0[2].store(lengths | u64::from(fence) << 32, Relaxed);
    }

    #[inline]
    fn record(&self) -> Record {
        let [child, table, lengths, version, ..] = &self.0;
        let (child, table) = (child.load(Relaxed), table.load(Relaxed));
        let (lengths, version) = (lengths.load(Relaxed), version.load(Relaxed));
        Record {
            child: GlobalAddr::from_bits(child),
            table,
            generation: lengths as u16,
            capacity: (lengths >> 16) as u16,
            fence: (lengths >> 32) as u32,
            version: version as u32,
            place: ((version >> PLACE_AT) as u8 & MOST_PLACES as u8).checked_sub(1),
        }
    }

    #[inline]
    fn capacity(&self) -> usize {
        usize::from((self.0[2].load(Relaxed) >> 16) as u16)
    }

    /// Whether both are of the same child in the same generation and version, and of as many slots.
    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        let identity = |line: &Self| {
            let [child, lengths, version] = [0, 2, 3].map(|i| line.0[i].load(Relaxed));
            (child, lengths as u32, version as u32)
        };
        identity(self) == identity(other)
    }

    #[inline]
    fn is_filled(&self) -> bool {
        self.0[3].load(Relaxed) & FILLED != 0
    }

    fn reach(&self) -> usize {
        (self.0[3].load(Relaxed) >> REACH_AT & MOST_REACH) as usize
    }

    fn uses(&self) -> u64 {
        self.0[3].load(Relaxed) >> USES_AT
    }

    /// Changes the count of uses, and returns the former one.
    fn count_uses(&self, change: impl Fn(u64) -> u64) -> u64 {
        let counted = self.0[3].fetch_update(Relaxed, Relaxed, |word| {
            let uses = change(word >> USES_AT).min(MOST_USES);
            Some(word & !(MOST_USES << USES_AT) | uses << USES_AT)
        });
        counted.unwrap_or_default() >> USES_AT
    }
}

/// Lines of a child with so many slots.
fn lines_for(capacity: usize) -> usize {
    1 + capacity.saturating_sub(BESIDE_RECORD).div_ceil(size_of::<Line>())
}

#[derive(Debug)]
enum Children {
    /// Without mirrors.
    Plain(Box<[Record]>),
    /// Each begins a number of lines behind the one before.
    Mirrored(Box<[Line]>),
}

/// An inner node as cached: immutable but for its mirrors. The fields that a look-up needs come
/// first.
#[derive(Debug)]
#[repr(C)]
pub struct CachedNode {
    /// The lower fences of the children and, if there is one, the upper fence of the node: one
    /// search finds the child and says whether the key is covered.
    pub(super) keys: KeyArray,
    children: Children,
    /// How many children.
    count: u16,
    /// Lines of each child, with mirrors.
    lines: u8,
    pub(super) used: AtomicBool,
    pub(super) gone: AtomicBool,
    /// Its generation.
    pub generation: u16,
    /// Where it is.
    pub addr: GlobalAddr,
    /// Unique among all cached nodes: says which copy a route came from.
    pub stamp: u64,
    lo: Box<[u8]>,
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

impl CachedNode {
    pub(super) fn new<'a>(
        parts: NodeParts<'a, impl Iterator<Item = &'a [u8]> + Clone>,
        stamp: u64,
        has_mirrors: bool,
    ) -> Self {
        let records = parts.records;
        let count = records.len() as u16;
        let most = records.iter().map(|r| usize::from(r.capacity)).max().unwrap_or(0);
        let lines = lines_for(most);
        let children = if has_mirrors {
            let mut all = Vec::with_capacity(records.len() * lines);
            for record in &records {
                all.push(Line::of(record));
                all.resize_with(all.len() + lines - 1, Line::default);
            }
            Children::Mirrored(all.into())
        } else {
            Children::Plain(records.into())
        };
        Self {
            keys: KeyArray::new(parts.keys.chain(parts.hi)),
            children,
            count,
            lines: lines as u8,
            used: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            generation: parts.generation,
            addr: parts.addr,
            stamp,
            lo: parts.lo.into(),
        }
    }

    /// The same node with one more child, which takes the keys from `low` on over from child
    /// `from`. Mirrors are copied. `None` where it has to be made anew from its parts.
    pub(super) fn with_child(
        &self,
        from: usize,
        (low, tag): (&[u8], u32),
        child: &Record,
        stamp: u64,
    ) -> Option<Self> {
        let (lines, at) = (usize::from(self.lines), from + 1);
        if lines_for(usize::from(child.capacity)) > lines {
            return None;
        }
        let keys = self.keys.with(at, low)?;
        let child = Record { fence: self.record(from).fence, ..*child };
        let children = match &self.children {
            Children::Plain(old) => {
                let (before, behind) = old.split_at(at);
                let mut all = [before, &[child], behind].concat();
                all[from].fence = tag;
                Children::Plain(all.into())
            }
            Children::Mirrored(old) => {
                let (before, behind) = old.split_at(at * lines);
                let mut all = Vec::with_capacity(old.len() + lines);
                all.extend(before.iter().map(Line::copy));
                all[from * lines].set_fence(tag);
                all.push(Line::of(&child));
                all.resize_with((at + 1) * lines, Line::default);
                all.extend(behind.iter().map(Line::copy));
                Children::Mirrored(all.into())
            }
        };
        Some(Self {
            keys,
            children,
            count: self.count + 1,
            lines: self.lines,
            used: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            generation: self.generation,
            addr: self.addr,
            stamp,
            lo: self.lo.clone(),
        })
    }

    /// What a node of so many children with keys of this length counts at most, with the mirrors of
    /// leaves of 32 slots.
    pub fn most_bytes(children: usize, key_bytes: usize) -> u64 {
        let lines = children * size_of::<Line>();
        let keys = KeyArray::most_bytes(children + 1, key_bytes) + key_bytes;
        (size_of::<Self>() + 2 * size_of::<usize>() + lines + keys) as u64
    }

    /// The lower fence.
    pub fn lo(&self) -> &[u8] {
        &self.lo
    }
    /// The upper fence.
    pub fn hi(&self) -> Option<&[u8]> {
        (self.keys.len() > self.len()).then(|| self.keys.get(self.len()))
    }
    /// The upper fence of a child.
    pub fn child_hi(&self, i: usize) -> Option<&[u8]> {
        (self.keys.len() > i + 1).then(|| self.keys.get(i + 1))
    }
    /// The lower fences of the children.
    pub fn keys(&self) -> ChildKeys<'_> {
        ChildKeys { keys: &self.keys, children: self.len() }
    }
    /// How many children.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Child `i`, in key order.
    #[inline]
    pub fn record(&self, i: usize) -> Record {
        match &self.children {
            Children::Plain(records) => records[i],
            Children::Mirrored(lines) => lines[i * usize::from(self.lines)].record(),
        }
    }

    /// Whether this holds for the place, the child and the generation of each record.
    #[inline]
    pub fn all_children(&self, mut f: impl FnMut(Option<u8>, GlobalAddr, u16) -> bool) -> bool {
        match &self.children {
            Children::Plain(all) => all.iter().all(|r| f(r.place, r.child, r.generation)),
            Children::Mirrored(lines) => lines.chunks_exact(usize::from(self.lines)).all(|lines| {
                let r = lines[0].record();
                f(r.place, r.child, r.generation)
            }),
        }
    }

    /// Whether child `i` is this one, in this generation.
    #[inline]
    pub fn has_child(&self, i: usize, child: GlobalAddr, generation: u16) -> bool {
        match &self.children {
            Children::Plain(all) => (all[i].child, all[i].generation) == (child, generation),
            Children::Mirrored(lines) => {
                let [at, _, lengths, ..] = &lines[i * usize::from(self.lines)].0;
                (at.load(Relaxed), lengths.load(Relaxed) as u16) == (child.bits(), generation)
            }
        }
    }

    /// The children, in key order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = Record> + '_ {
        (0..self.len()).map(|i| self.record(i))
    }

    /// The child that covers a key; `None` where the node does not reach it.
    #[inline]
    pub(super) fn child_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.floor(key).filter(|i| *i < self.len())
    }

    /// The node is used: its second chance.
    #[inline]
    pub(super) fn use_again(&self) {
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

    /// What it counts in the cache's budget, without mirrors.
    pub(super) fn node_bytes(&self) -> u64 {
        (size_of::<Self>()
            + self.lo.len()
            + self.keys.memory_bytes()
            + self.len() * size_of::<Record>()
            + 2 * size_of::<usize>()) as u64
    }

    /// What its mirrors count.
    pub(super) fn mirror_bytes(&self) -> u64 {
        match &self.children {
            Children::Plain(_) => 0,
            Children::Mirrored(lines) => {
                (size_of_val(&**lines) - self.len() * size_of::<Record>()) as u64
            }
        }
    }

    /// The line of child `i`, if the node has mirrors, and the lines behind it.
    #[inline]
    fn lines_of(&self, i: usize) -> Option<(&Line, &[Line])> {
        let Children::Mirrored(lines) = &self.children else { return None };
        lines[i * usize::from(self.lines)..][..usize::from(self.lines)].split_first()
    }

    /// The words of the mirror of child `i`.
    fn mirror<'n>(line: &'n Line, behind: &'n [Line]) -> impl Iterator<Item = &'n AtomicU64> {
        line.0[4..].iter().chain(behind.iter().flat_map(|line| &line.0))
    }

    /// Child `i`, and its slots that have `fp` according to its mirror; `None` for them when there
    /// is none.
    #[inline(always)]
    pub fn record_with_slots(&self, i: usize, fp: u8) -> (Record, Option<Slots>) {
        let Children::Mirrored(lines) = &self.children else { return (self.record(i), None) };
        let line = &lines[i * usize::from(self.lines)];
        let record = line.record();
        if !line.is_filled() {
            return (record, None);
        }
        if usize::from(record.capacity) == BESIDE_RECORD {
            let [_, _, _, _, a, b, c, d] = &line.0;
            let words = [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed), d.load(Relaxed)];
            return (record, Some(Slots::with_in_32(words, fp)));
        }
        (record, self.slots_of_lines(i, fp))
    }

    /// [`CachedNode::record_with_slots`] of a child with another number of slots than a line has.
    #[inline(never)]
    fn slots_of_lines(&self, i: usize, fp: u8) -> Option<Slots> {
        let (line, behind) = self.lines_of(i)?;
        let capacity = line.capacity();
        let words = Self::mirror(line, behind).take(capacity.div_ceil(8));
        Some(Slots::with_in_words(words.map(|word| word.load(Relaxed)), capacity, fp))
    }

    /// How many of the first slots of child `i` a scan needs, as a scan has found it last, or as
    /// the mirror says: a hint. `None` without either.
    pub fn reach(&self, i: usize) -> Option<usize> {
        let (line, _) = self.lines_of(i)?;
        if line.reach() > 0 {
            return Some(line.reach());
        }
        let (record, free) = self.record_with_slots(i, 0);
        Some(free?.end_of_others(usize::from(record.capacity)))
    }

    /// A scan has found that it needs so many slots of child `i`.
    pub fn note_reach(&self, i: usize, slots: usize) {
        let slots = (slots as u64).min(MOST_REACH);
        if let Some((line, _)) = self.lines_of(i)
            && line.reach() as u64 != slots
        {
            let _ = line.0[3].fetch_update(Relaxed, Relaxed, |word| {
                Some(word & !(MOST_REACH << REACH_AT) | slots << REACH_AT)
            });
        }
    }

    /// Uses of child `i` that were counted, where the node has mirrors; none else.
    pub fn uses(&self, i: usize) -> u64 {
        self.lines_of(i).map_or(0, |(line, _)| line.uses())
    }

    /// Counts more uses of child `i`, where the node has mirrors. Returns how many it has now.
    pub fn add_uses(&self, i: usize, more: u64) -> u64 {
        let Some((line, _)) = self.lines_of(i) else { return 0 };
        (line.count_uses(|uses| uses + more) + more).min(MOST_USES)
    }

    /// Halves the uses of child `i`, and returns how many it had.
    pub fn halve_uses(&self, i: usize) -> u64 {
        match self.lines_of(i) {
            // Most have none, and their lines stay with other threads.
            Some((line, _)) if line.uses() > 0 => line.count_uses(|uses| uses / 2),
            _ => 0,
        }
    }

    /// Stores the fingerprints of child `i`, where the node has mirrors. A hint: racing calls may
    /// mix.
    pub fn fill_mirror(&self, i: usize, fps: &[u8]) {
        let Some((line, behind)) = self.lines_of(i) else { return };
        // Most fills change nothing, and would take the line from other threads.
        let fill = |word: &AtomicU64, fps: &[u8; 8]| {
            let fps = u64::from_le_bytes(*fps);
            if word.load(Relaxed) != fps {
                word.store(fps, Relaxed);
            }
        };
        let (words, rest) = fps.as_chunks();
        if let ([.., a, b, c, d], [w, x, y, z]) = (&line.0, words) {
            [(a, w), (b, x), (c, y), (d, z)].into_iter().for_each(|(word, fps)| fill(word, fps));
        } else {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            let last = (!rest.is_empty()).then_some(&last);
            let lines = Self::mirror(line, behind);
            lines.zip(words.iter().chain(last)).for_each(|(word, fps)| fill(word, fps));
        }
        if !line.is_filled() {
            line.0[3].fetch_or(FILLED, Relaxed);
        }
    }

    /// Notes one fingerprint of child `i`, where the node has mirrors.
    pub fn note_fingerprint(&self, i: usize, slot: usize, fp: u8) {
        let Some((line, behind)) = self.lines_of(i) else { return };
        let Some(word) = Self::mirror(line, behind).nth(slot / 8) else { return };
        let shift = slot % 8 * 8;
        let _ = word.fetch_update(Relaxed, Relaxed, |w| {
            Some(w & !(0xff << shift) | u64::from(fp) << shift)
        });
    }

    /// Copies the mirrors and uses of children that stay the same from an older image. In both the
    /// children are in key order.
    pub(super) fn carry_mirrors(&self, old: &Self) {
        let (Children::Mirrored(from), Children::Mirrored(to)) = (&old.children, &self.children)
        else {
            return;
        };
        let mut old = from.chunks_exact(usize::from(old.lines));
        for to in to.chunks_exact(usize::from(self.lines)) {
            let mut ahead = old.clone();
            let Some(from) = ahead.find(|from| from[0].is_same(&to[0])) else { continue };
            old = ahead;
            to[0].count_uses(|uses| uses.max(from[0].uses()));
            if from[0].is_filled() {
                let carry = |(to, from): (&AtomicU64, &AtomicU64)| {
                    to.store(from.load(Relaxed), Relaxed);
                };
                to[0].0[4..].iter().zip(&from[0].0[4..]).for_each(carry);
                let behind = to[1..].iter().zip(&from[1..]);
                behind.for_each(|(to, from)| to.0.iter().zip(&from.0).for_each(carry));
                to[0].0[3].fetch_or(FILLED, Relaxed);
            }
        }
    }

    /// The node's keys are on their way.
    pub(super) fn prefetch_keys(&self) {
        self.keys.prefetch();
    }

    /// Child `i` is on its way, with its mirror.
    pub(super) fn prefetch_child(&self, i: usize) {
        match &self.children {
            Children::Plain(records) => prefetch(&records[i]),
            Children::Mirrored(lines) => prefetch(&lines[i * usize::from(self.lines)]),
        }
    }
}
