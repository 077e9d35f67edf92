//! A ring of the log, as the compute node that appends to it knows it.
//!
//! The ring has [`SEGMENTS`] segments, which are filled one after the other. Records that are not
//! on the memory node yet wait in a queue of stretches; one client at a time WRITEs the first
//! stretch, and what it had is then durable. A WRITE that has failed, or that a dropped client has
//! left, is repeated: the same bytes at the same place, so a late one changes nothing. While the
//! WRITE of a dropped client may still land, its segment is in doubt, and is not used again.
//!
//! The ring remembers the leaves that its records name, each at the segment of its oldest record
//! that may count. A segment is used again when no leaf is left there (G3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dmtree_fabric::GlobalAddr;

use super::record::{RECORD_HEAD, Record};
use crate::{Options, Route};

/// Segments of a ring.
pub(super) const SEGMENTS: usize = 8;
/// A leaf is to have so many records in a ring when it is written back: to WRITE all of it costs a
/// memory node as many bytes as about twenty records.
const RECORDS_PER_LEAF: u64 = 16;
/// Records of the smallest segment: a group of writers.
pub(crate) const LEAST_RECORDS: u64 = 16;

/// Sizes of the rings of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of a record.
    pub record: usize,
    /// Bytes of a segment, a whole number of records.
    pub segment: u64,
}

impl Layout {
    /// Of the log that some options ask for, which may be too small.
    pub fn of(o: &Options) -> Self {
        let record = RECORD_HEAD + o.geometry().entry();
        let ring = u64::from(o.log_kib) * 1024 / u64::from(o.log_groups.max(1));
        let share = ring / SEGMENTS as u64;
        Self { record, segment: share - share % record as u64 }
    }

    /// Bytes of a ring.
    pub fn bytes(&self) -> u64 {
        self.segment * SEGMENTS as u64
    }

    /// Bytes of the smallest log of one group.
    pub fn least_bytes(&self) -> u64 {
        LEAST_RECORDS * self.record as u64 * SEGMENTS as u64
    }
}

/// Records behind each other that are not durable yet.
#[derive(Debug)]
struct Stretch {
    segment: usize,
    /// Offset in the segment.
    at: u64,
    bytes: Vec<u8>,
}

/// Records that their holder is to WRITE: the first bytes of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub segment: usize,
    pub at: GlobalAddr,
    pub len: usize,
}

/// A leaf that records of the ring name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub leaf: GlobalAddr,
    pub generation: u16,
    /// As the last write knew it; `None` of a former incarnation's records.
    pub route: Option<Route>,
    /// The segment of its oldest record that may count.
    segment: usize,
    /// The count of its newest record.
    pub newest: u32,
    /// A client writes it back.
    is_claimed: bool,
}

#[derive(Debug, Default)]
struct Segment {
    /// Leaves with their oldest record here.
    leaves: BTreeSet<u64>,
    /// WRITEs of dropped clients that may still land here.
    in_doubt: u32,
}

/// A ring.
#[derive(Debug)]
pub(super) struct Ring {
    layout: Layout,
    at: GlobalAddr,
    segments: [Segment; SEGMENTS],
    current: usize,
    /// Bytes of the current segment that have records.
    filled: u64,
    /// Leaves that are behind since the current segment was begun.
    newly_behind: u64,
    /// Leaves of the second segment ahead when the current one was begun.
    second_had: usize,
    lap: u32,
    queue: VecDeque<Stretch>,
    /// Memory of a stretch, for the next one.
    spare: Vec<u8>,
    appended: u64,
    durable: u64,
    leaves: BTreeMap<u64, Named>,
}

impl Ring {
    /// A new ring.
    pub fn new(layout: Layout, at: GlobalAddr) -> Self {
        Self {
            layout,
            at,
            segments: Default::default(),
            current: 0,
            filled: 0,
            newly_behind: 0,
            second_had: 0,
            lap: 1,
            queue: VecDeque::new(),
            spare: Vec::new(),
            appended: 0,
            durable: 0,
            leaves: BTreeMap::new(),
        }
    }

    /// The ring of a former incarnation of this node, with its segments. Every record may count;
    /// appends begin behind the newest one.
    pub fn adopted(layout: Layout, at: GlobalAddr, bytes: &[u8]) -> Self {
        let mut this = Self::new(layout, at);
        let records = || {
            let whole = bytes.chunks_exact(layout.record).enumerate();
            whole.filter_map(|(i, bytes)| {
                let segment = i as u64 * layout.record as u64 / layout.segment;
                Some((i, segment as usize, Record::read(at, bytes)?))
            })
        };
        let Some((_, last, newest)) = records().max_by_key(|(i, _, r)| (r.lap, *i)) else {
            return this;
        };
        (this.current, this.lap, this.filled) = (last, newest.lap, layout.segment);
        // From the oldest segment on.
        let age = |segment: &usize| (segment + SEGMENTS - last - 1) % SEGMENTS;
        let mut all: Vec<_> = records().map(|(_, segment, r)| (segment, r)).collect();
        all.sort_by_key(|(segment, _)| age(segment));
        for (segment, r) in all {
            this.name(Named {
                leaf: r.leaf,
                generation: r.generation,
                route: None,
                segment,
                newest: r.count,
                is_claimed: false,
            });
        }
        this
    }

    /// A record of this leaf is in a segment.
    fn name(&mut self, new: Named) {
        let of = new.leaf.bits();
        match self.leaves.get_mut(&of) {
            Some(known) if known.generation == new.generation => {
                known.newest = known.newest.max(new.newest);
                known.route = new.route.or(known.route);
            }
            Some(known) if known.generation > new.generation => {}
            known => {
                if let Some(former) = known {
                    self.segments[former.segment].leaves.remove(&of);
                }
                self.segments[new.segment].leaves.insert(of);
                self.leaves.insert(of, new);
            }
        }
    }

    fn forget(&mut self, leaf: u64) {
        if let Some(gone) = self.leaves.remove(&leaf) {
            self.segments[gone.segment].leaves.remove(&leaf);
        }
    }

    /// Appends the record of a write to a slot. Returns up to where the ring must be durable for
    /// it; `None` when the ring is full. `blindly`, with a mutant only, uses a segment again as it
    /// is.
    pub fn append(
        &mut self,
        (route, slot): (&Route, usize),
        count: u32,
        entry: &[u8],
        blindly: bool,
    ) -> Option<u64> {
        let bytes = self.layout.record as u64;
        if self.filled + bytes > self.layout.segment {
            let next = (self.current + 1) % SEGMENTS;
            if !(self.is_free(next) || blindly) {
                return None;
            }
            (self.current, self.filled, self.newly_behind) = (next, 0, 0);
            self.second_had = self.segments[(next + 2) % SEGMENTS].leaves.len();
            self.lap = self.lap.wrapping_add(u32::from(next == 0));
        }
        let (segment, at) = (self.current, self.filled);
        if self.queue.back().is_none_or(|last| last.segment != segment) {
            let bytes = std::mem::take(&mut self.spare);
            self.queue.push_back(Stretch { segment, at, bytes });
        }
        let stretch = self.queue.back_mut()?;
        let Route { leaf, generation, .. } = *route;
        let record = Record { leaf, generation, slot, count, lap: self.lap, entry };
        record.put(self.at, &mut stretch.bytes);
        self.filled += bytes;
        self.appended += bytes;
        let (route, newest, is_claimed) = (Some(*route), count, false);
        self.name(Named { leaf, generation, route, segment, newest, is_claimed });
        Some(self.appended)
    }

    /// Whether the ring takes the record of a write to a leaf that is not behind, and that has to
    /// be written back for it. A burst has half of the ring. Writes that last longer leave so few
    /// leaves behind that each gets many records.
    pub fn takes_leaves(&self) -> bool {
        let records = self.layout.segment / self.layout.record as u64;
        let is_empty = |i: usize| self.segments[(self.current + i) % SEGMENTS].leaves.is_empty();
        self.newly_behind < records.div_ceil(RECORDS_PER_LEAF) || (1..=SEGMENTS / 2).all(is_empty)
    }

    /// The last record names a leaf that was not behind.
    pub fn leaves_behind(&mut self) {
        self.newly_behind += 1;
    }

    fn is_free(&self, segment: usize) -> bool {
        let Segment { leaves, in_doubt } = &self.segments[segment];
        leaves.is_empty()
            && *in_doubt == 0
            && self.queue.iter().all(|stretch| stretch.segment != segment)
    }

    pub fn is_durable(&self, until: u64) -> bool {
        self.durable >= until
    }

    /// What is to be WRITTEN next.
    pub fn next_group(&self) -> Option<Group> {
        let Stretch { segment, at, bytes } = self.queue.front()?;
        let at = self.at.plus(*segment as u64 * self.layout.segment + at);
        Some(Group { segment: *segment, at, len: bytes.len() })
    }

    /// The bytes of a group.
    pub fn bytes_of(&self, group: &Group) -> &[u8] {
        self.queue.front().map_or(&[], |first| &first.bytes[..group.len])
    }

    /// The first bytes of the queue are durable.
    pub fn written(&mut self, group: &Group) {
        self.durable += group.len as u64;
        if let Some(first) = self.queue.front_mut() {
            first.bytes.drain(..group.len);
            first.at += group.len as u64;
            if first.bytes.is_empty() {
                self.spare = self.queue.pop_front().map_or(Vec::new(), |first| first.bytes);
            }
        }
    }

    /// The WRITE of a group was dropped.
    pub fn in_doubt(&mut self, segment: usize) {
        self.segments[segment].in_doubt += 1;
    }

    /// It cannot land any more.
    pub fn settled(&mut self, segment: usize) {
        self.segments[segment].in_doubt -= 1;
    }

    /// Whether leaves have to be written back: see [`Self::overdue`].
    pub fn is_cut_due(&self) -> bool {
        self.overdue().next().is_some()
    }

    /// The leaves that keep the next segment from being used again, and as many of the one behind
    /// it as its share: it is to be free when the current segment is full. Evenly, because the
    /// rings of all nodes fill at about the same time, and write-backs all at once would hold up
    /// the writes between them.
    fn overdue(&self) -> impl Iterator<Item = &u64> {
        let [next, second] = [1, 2].map(|i| &self.segments[(self.current + i) % SEGMENTS].leaves);
        let left = self.layout.segment.saturating_sub(self.filled);
        let later = (self.second_had as u64 * left).div_ceil(self.layout.segment) as usize;
        let now = second.len().saturating_sub(later);
        next.iter().chain(second.iter().take(now))
    }

    /// Some leaves that are to be written back now, and that no other client writes back. Those of
    /// younger segments wait: the later a leaf is written back, the more writes that covers. They
    /// are the caller's until they are written back, or released.
    pub fn claim(&mut self, most: usize) -> Vec<Named> {
        let all = self.overdue().filter_map(|of| self.leaves.get(of));
        let some: Vec<_> = all.filter(|named| !named.is_claimed).take(most).copied().collect();
        for named in &some {
            self.set_claimed(named, true);
        }
        some
    }

    /// A leaf was not written back.
    pub fn release(&mut self, named: &Named) {
        self.set_claimed(named, false);
    }

    fn set_claimed(&mut self, named: &Named, is_claimed: bool) {
        let known = self.leaves.get_mut(&named.leaf.bits());
        if let Some(known) = known.filter(|known| known.generation == named.generation) {
            known.is_claimed = is_claimed;
        }
    }

    /// The memory node has what records of a leaf say, up to a count.
    pub fn written_back(&mut self, (leaf, generation): (GlobalAddr, u16), count: u32) {
        let of = self.leaves.get(&leaf.bits());
        if of.is_some_and(|named| named.generation == generation && named.newest <= count) {
            self.forget(leaf.bits());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_pool::TableId;
    use proptest::prelude::*;

    const ENTRY: usize = 40;

    fn layout() -> Layout {
        let record = RECORD_HEAD + ENTRY;
        Layout { record, segment: 4 * record as u64 }
    }

    fn route(leaf: u64) -> Route {
        let leaf = GlobalAddr::from_bits(0x1_0000 + leaf * 64);
        Route { leaf, generation: 1, table: TableId::from_bits(1), capacity: 32, fence: 0 }
    }

    /// A ring, and what its memory has.
    struct Both(Ring, Vec<u8>);

    impl Both {
        fn new() -> Self {
            let at = GlobalAddr::from_bits(0x4000);
            Self(Ring::new(layout(), at), vec![0; layout().bytes() as usize])
        }

        fn append(&mut self, leaf: u64, count: u32) -> Option<u64> {
            self.0.append((&route(leaf), 3), count, &[leaf as u8; ENTRY], false)
        }

        fn write(&mut self) {
            while let Some(group) = self.0.next_group() {
                let at = (group.at.bits() - self.0.at.bits()) as usize;
                self.1[at..at + group.len].copy_from_slice(self.0.bytes_of(&group));
                self.0.written(&group);
            }
        }

        fn again(&self) -> Ring {
            Ring::adopted(layout(), self.0.at, &self.1)
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_until_its_oldest_leaves_are_written_back() {
        let mut r = Both::new();
        for n in 0..4 * SEGMENTS as u64 {
            let until = r.append(n, 1).expect("room");
            assert!(!r.0.is_durable(until));
            r.write();
            assert!(r.0.is_durable(until));
        }
        assert!(r.append(99, 1).is_none() && r.0.is_cut_due());
        let oldest = r.0.claim(4);
        assert_eq!(
            oldest.iter().map(|named| named.leaf).collect::<Vec<_>>(),
            [0, 1, 2, 3].map(|n| route(n).leaf)
        );
        assert_eq!(r.0.claim(1)[0].leaf, route(4).leaf, "the others are claimed");
        for named in &oldest[..3] {
            r.0.written_back((named.leaf, 1), 1);
        }
        assert!(r.append(99, 1).is_none(), "one is left");
        r.0.written_back((oldest[3].leaf, 1), 0);
        assert!(r.append(99, 1).is_none(), "it has a newer record");
        r.0.release(&oldest[3]);
        assert_eq!(r.0.claim(1)[0].leaf, oldest[3].leaf);
        r.0.in_doubt(0);
        r.0.written_back((oldest[3].leaf, 1), 1);
        assert!(r.append(99, 1).is_none(), "a dropped WRITE may land");
        r.0.settled(0);
        assert!(r.append(99, 1).is_some());
    }

    #[test]
    fn a_burst_has_half_of_a_ring_and_lasting_writes_leave_few_leaves_behind() {
        let mut r = Both::new();
        let behind = |r: &mut Ring, n| {
            let takes = r.takes_leaves();
            r.append((&route(n), 3), 1, &[0; ENTRY], false).expect("room");
            r.leaves_behind();
            takes
        };
        assert!((0..17).all(|n| behind(&mut r.0, n)), "half of the ring, and one of a segment");
        assert!(!behind(&mut r.0, 17));
        (0..3).for_each(|n| _ = r.append(n, 2).expect("room"));
        assert!(behind(&mut r.0, 18), "the first one of the next segment");
        (0..17).for_each(|n| r.0.written_back((route(n).leaf, 1), 2));
        assert!((20..22).all(|n| behind(&mut r.0, n)), "a half is free");
    }

    #[test]
    fn leaves_are_due_evenly_while_a_segment_fills() {
        let mut r = Both::new();
        (0..24).for_each(|n| _ = r.append(n, 1).expect("room"));
        assert!(!r.0.is_cut_due(), "two segments are free ahead");
        for n in 1..=4 {
            r.append(23 + n, 1).expect("room");
            assert_eq!(r.0.overdue().count() as u64, n);
        }
        let claimed = r.0.claim(9);
        assert_eq!(claimed.len(), 4, "those of the oldest segment alone");
        claimed.iter().for_each(|named| r.0.written_back((named.leaf, 1), 1));
        assert!(!r.0.is_cut_due());
    }

    #[test]
    fn a_group_that_is_repeated_has_the_same_bytes_at_the_same_place() {
        let mut r = Both::new();
        r.append(1, 1).expect("room");
        let first = r.0.next_group().expect("one waits");
        let bytes = r.0.bytes_of(&first).to_vec();
        r.append(2, 1).expect("room");
        let again = r.0.next_group().expect("both wait");
        assert!(again.at == first.at && r.0.bytes_of(&again).starts_with(&bytes));
        assert_eq!(r.0.bytes_of(&first), bytes);
        r.0.written(&first);
        let rest = r.0.next_group().expect("the second");
        assert_eq!(rest.at, first.at.plus(bytes.len() as u64));
    }

    proptest! {
        /// The next incarnation finds every leaf that is not written back, and goes on behind the
        /// newest record.
        #[test]
        fn an_adopted_ring_names_the_leaves_of_the_former_one(steps in proptest::collection::vec((0u64..12, any::<bool>()), 1..200)) {
            let mut r = Both::new();
            let mut counts = BTreeMap::new();
            for (leaf, cuts) in steps {
                let count = counts.entry(leaf).or_insert(0);
                *count += 1;
                if r.append(leaf, *count).is_none() {
                    *count -= 1;
                }
                r.write();
                if cuts {
                    for named in r.0.claim(2) {
                        r.0.written_back((named.leaf, 1), named.newest);
                    }
                }
            }
            let again = r.again();
            for (leaf, named) in &r.0.leaves {
                prop_assert_eq!(again.leaves[leaf].newest, named.newest);
                let age = |ring: &Ring, segment: usize| (segment + SEGMENTS - ring.current - 1) % SEGMENTS;
                let (old, new) = (age(&r.0, named.segment), age(&again, again.leaves[leaf].segment));
                prop_assert!(new <= old, "not younger than it was");
            }
            prop_assert_eq!((again.current, again.lap), (r.0.current, r.0.lap));
        }
    }
}
