//! The event queue: a calendar of narrow buckets with a heap for later events. Events come out by
//! time, and those of one time in insertion order, so that a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Picos;

/// Width of a slot, as a power of two of picoseconds: 65.5 ns, about ten events at full load.
const SLOT_SHIFT: u32 = 16;
const SLOTS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

struct Entry<T> {
    at: Picos,
    order: u64,
    event: T,
    next: u32,
}

/// A queue of events.
pub(super) struct Wheel<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    heads: Vec<u32>,
    /// One bit for each slot that is not empty.
    marks: [u64; SLOTS / 64],
    /// One bit for each word of `marks` that is not zero.
    marked: u64,
    /// Number of the slot being emptied; everything earlier is gone.
    slot: u64,
    /// Its events, latest first.
    now: Vec<(Picos, u64, T)>,
    /// Events put into it since. A heap, for the adversarial mode puts thousands into one slot.
    late: BinaryHeap<Reverse<(Picos, u64, T)>>,
    far: BinaryHeap<Reverse<(Picos, u64, T)>>,
    order: u64,
}

impl<T: Copy + Ord> Wheel<T> {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            heads: vec![NONE; SLOTS],
            marks: [0; SLOTS / 64],
            marked: 0,
            slot: 0,
            now: Vec::new(),
            late: BinaryHeap::new(),
            far: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Puts an event in. One before the present slot's time comes out next.
    pub(super) fn push(&mut self, at: Picos, event: T) {
        let order = self.order;
        self.order += 1;
        let slot = at >> SLOT_SHIFT;
        if slot <= self.slot {
            self.late.push(Reverse((at, order, event)));
        } else if slot - self.slot < SLOTS as u64 {
            self.link(slot, Entry { at, order, event, next: NONE });
        } else {
            self.far.push(Reverse((at, order, event)));
        }
    }

    fn link(&mut self, slot: u64, mut entry: Entry<T>) {
        let place = slot as usize % SLOTS;
        entry.next = self.heads[place];
        let number = if self.free == NONE {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let number = self.free;
            self.free = std::mem::replace(&mut self.entries[number as usize], entry).next;
            // The free list runs through the same field; the entry just stored has its own.
            number
        };
        self.heads[place] = number;
        self.marks[place / 64] |= 1 << (place % 64);
        self.marked |= 1 << (place / 64);
    }

    /// Makes the next slot the present one when that is empty; true when there are new events in
    /// it.
    #[inline]
    pub(super) fn refill(&mut self) -> bool {
        self.now.is_empty() && self.late.is_empty() && {
            self.advance();
            !self.now.is_empty()
        }
    }

    /// The events of the next two slots that have any, in no order.
    pub(super) fn upcoming(&self) -> [impl Iterator<Item = T>; 2] {
        let first = self.mark_after(self.slot);
        let second = first.and_then(|slot| self.mark_after(slot));
        [first, second].map(|slot| self.linked(slot))
    }

    fn linked(&self, slot: Option<u64>) -> impl Iterator<Item = T> {
        let mut number = slot.map_or(NONE, |slot| self.heads[slot as usize % SLOTS]);
        std::iter::from_fn(move || {
            let entry = self.entries.get(number as usize)?;
            number = entry.next;
            Some(entry.event)
        })
    }

    /// When the next event is due.
    pub(super) fn next_at(&mut self) -> Option<Picos> {
        self.refill();
        let late = self.late.peek().map(|Reverse((at, ..))| *at);
        self.now.last().map(|(at, ..)| *at).into_iter().chain(late).min()
    }

    /// The next event, if it is due at `until` or before.
    pub(super) fn pop(&mut self, until: Picos) -> Option<(Picos, T)> {
        self.refill();
        let first = self.now.last().map(|(at, order, _)| (*at, *order));
        let late = self.late.peek().map(|Reverse((at, order, _))| (*at, *order));
        let is_late = late.is_some_and(|late| first.is_none_or(|first| late < first));
        if (if is_late { late } else { first })?.0 > until {
            return None;
        }
        let (at, _, event) =
            if is_late { self.late.pop().map(|Reverse(next)| next) } else { self.now.pop() }?;
        Some((at, event))
    }

    /// Makes the next slot that has events the present one. Out of line: most calls find an event.
    #[inline(never)]
    fn advance(&mut self) {
        let near = self.mark_after(self.slot);
        let far = self.far.peek().map(|Reverse((at, _, _))| at >> SLOT_SHIFT);
        let Some(slot) = [near, far].into_iter().flatten().min() else { return };
        self.slot = slot;
        if near == Some(slot) {
            let place = slot as usize % SLOTS;
            let mut number = std::mem::replace(&mut self.heads[place], NONE);
            self.marks[place / 64] &= !(1 << (place % 64));
            if self.marks[place / 64] == 0 {
                self.marked &= !(1 << (place / 64));
            }
            while number != NONE {
                let e = &mut self.entries[number as usize];
                self.now.push((e.at, e.order, e.event));
                let next = std::mem::replace(&mut e.next, self.free);
                self.free = number;
                number = next;
            }
        }
        while let Some(Reverse(event)) = self.far.peek()
            && event.0 >> SLOT_SHIFT == slot
        {
            self.now.push(*event);
            self.far.pop();
        }
        self.now.sort_unstable_by_key(|(at, order, _)| Reverse((*at, *order)));
    }

    /// The first slot after another one that has events in the calendar.
    fn mark_after(&self, slot: u64) -> Option<u64> {
        let first = (slot + 1) as usize % SLOTS;
        let word = first / 64;
        let upper = self.marks[word] & (u64::MAX << (first % 64));
        let place = if upper != 0 {
            word * 64 + upper.trailing_zeros() as usize
        } else {
            // The words from the next one on; the last of them is the first word again.
            let ahead = self.marked.rotate_right(word as u32 + 1);
            if ahead == 0 {
                return None;
            }
            let word = (word + 1 + ahead.trailing_zeros() as usize) % 64;
            word * 64 + self.marks[word].trailing_zeros() as usize
        };
        Some(slot + 1 + ((place + SLOTS - first) % SLOTS) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    /// Against a plain sorted list, with times near, equal, far and in the past.
    #[test]
    fn events_come_out_in_order() {
        let mut random = SplitMix64::seed_from_u64(7);
        let mut draw = move || random.next_u64();
        let mut wheel = Wheel::new();
        let mut model: Vec<(Picos, u64)> = Vec::new();
        let mut now = 0;
        for order in 0..200_000u64 {
            let ahead = match draw() % 8 {
                0 => 0,
                1..=4 => draw() % 100_000,
                5 | 6 => draw() % 100_000_000,
                _ => draw() % 3_000_000_000,
            };
            wheel.push(now + ahead, order);
            model.push((now + ahead, order));
            if draw() % 4 == 0 || order > 100_000 {
                model.sort_unstable();
                for _ in 0..draw() % 5 {
                    if model.is_empty() {
                        break;
                    }
                    let due = model.remove(0);
                    now = now.max(due.0);
                    assert_eq!(wheel.next_at(), Some(due.0));
                    assert_eq!(wheel.pop(u64::MAX), Some(due));
                }
                if model.len() > 300 {
                    let limit = model[250].0;
                    for due in model.drain(..250) {
                        assert_eq!(wheel.pop(limit), Some(due));
                    }
                    now = now.max(limit);
                }
            }
        }
        model.sort_unstable();
        for due in model {
            assert_eq!(wheel.pop(u64::MAX), Some(due));
        }
        assert!(wheel.pop(u64::MAX).is_none());
    }

    #[test]
    fn nothing_comes_out_before_its_time() {
        let mut wheel = Wheel::new();
        wheel.push(1 << 40, 1u64);
        assert_eq!(wheel.pop((1 << 40) - 1), None);
        assert_eq!(wheel.pop(1 << 40), Some((1 << 40, 1)));
    }
}
