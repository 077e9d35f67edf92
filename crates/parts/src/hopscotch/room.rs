//! Hopscotch: how a key finds a slot in its neighbourhood, and where a leaf is divided when it
//! finds none.
//!
//! The first free slot from the home on is moved towards the home: the key that can fill it from
//! farthest away moves there, and leaves its own slot free, until that one is in the neighbourhood.
//! "Farthest first" is an invariant of the protocol: a key that moves is never replaced by one of
//! the same home, so a reader that misses it finds a bitmap that does not fit.

use dmtree_fabric::{Error, Result};

use super::{Leaf, Table};
use crate::blink::upper;

/// How a key finds room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Keys that move, in order: from, to.
    pub moves: Vec<(usize, usize)>,
    /// The slot of the key.
    pub slot: usize,
    /// How many slots from the home on are touched.
    pub reach: usize,
}

impl Table {
    /// Room for a key of this home; `offsets` says how far each slot is behind the home of its
    /// occupant, `None` for a free slot. A slot that was not READ has an occupant that cannot move.
    pub fn room(&self, offsets: &[Option<usize>], home: usize) -> Option<Room> {
        let mut offsets = offsets.to_vec();
        let mut free = (0..self.span).find(|d| offsets[self.slot(home, *d)].is_none())?;
        let (reach, mut moves) = (free + 1, Vec::new());
        while free >= self.near {
            let farthest = (1..self.near).rev().find_map(|back| {
                let from = self.slot(home, free - back);
                let offset = offsets[from].filter(|offset| offset + back < self.near)?;
                Some((back, from, offset))
            });
            let (back, from, offset) = farthest?;
            let to = self.slot(home, free);
            (offsets[to], offsets[from]) = (Some(offset + back), None);
            moves.push((from, to));
            free -= back;
        }
        Some(Room { moves, slot: self.slot(home, free), reach })
    }
}

/// Where a leaf is divided: keys from this one on move.
pub struct Division<'g> {
    /// What stays.
    pub left: Leaf<'g>,
    /// What moves, in the same slots.
    pub right: Leaf<'g>,
    /// The lower fence key of the right leaf: the key behind the last one that stays.
    pub separator: Vec<u8>,
    /// The slot of the new key, and whether it is in the right leaf.
    pub slot: (usize, bool),
}

impl<'g> Leaf<'g> {
    /// By slot, how far it is behind the home of its occupant.
    pub fn offsets(&self) -> Vec<Option<usize>> {
        let of = |i| match (self.has(i), self.is_used(i)) {
            (false, _) => Some(self.g.near),
            (true, used) => used.then(|| self.offset(i)),
        };
        (0..self.g.span).map(of).collect()
    }

    /// Puts a key into its room.
    pub fn put_into(&mut self, room: &Room, key: &[u8], value: &[u8]) {
        room.moves.iter().for_each(|(from, to)| self.relocate(*from, *to));
        self.fill(room.slot, key, value);
    }

    /// All pairs with a new one, in order.
    fn pairs_with(&self, key: &[u8], value: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let of = |i: usize| (self.key(i).to_vec(), self.value(i).to_vec());
        let mut all: Vec<_> = self.used().map(of).chain([(key.to_vec(), value.to_vec())]).collect();
        all.sort();
        all
    }

    /// Puts a new key into a sorted leaf with a free slot.
    pub fn insert_sorted(&mut self, key: &[u8], value: &[u8]) {
        let all = self.pairs_with(key, value);
        self.set_sorted(all.iter().map(|(k, v)| (&k[..], &v[..])));
    }

    /// Divides a leaf without room for a new key, and puts the key into its half.
    ///
    /// # Errors
    /// `Corrupt` for a leaf that cannot be divided, which only damaged bytes can be.
    pub fn divide(self, key: &[u8], value: &[u8]) -> Result<Division<'g>> {
        if !self.g.hopscotch {
            return self.divide_sorted(key, value);
        }
        let (home, offsets) = (self.g.home(key), self.offsets());
        let mut keys: Vec<(&[u8], Option<usize>)> =
            self.used().map(|i| (self.key(i), Some(i))).chain([(key, None)]).collect();
        keys.sort_unstable();
        let without = |gone: &dyn Fn(usize) -> bool| {
            let mut left = offsets.clone();
            (0..left.len()).filter(|i| gone(*i)).for_each(|i| left[i] = None);
            self.g.room(&left, home)
        };
        // The keys that would each leave enough room if their slot were free; and the new one.
        let critical: Vec<usize> = (0..keys.len())
            .filter(|n| keys[*n].1.is_none_or(|slot| without(&|i| i == slot).is_some()))
            .collect();
        let wanted = critical[critical.len() / 2];
        let mut order: Vec<usize> = (1..keys.len()).collect();
        order.sort_by_key(|n| n.abs_diff(wanted));
        for first in order {
            let separator = next(keys[first - 1].0);
            let moves = |slot: usize| self.is_used(slot) && self.key(slot) >= keys[first].0;
            let is_right = key >= keys[first].0;
            let room = without(&|i| moves(i) != is_right);
            if let (Some(room), true) = (room, upper(&separator).is_some()) {
                let moved: Vec<usize> = self.used().filter(|i| moves(*i)).collect();
                return Ok(self.divided(separator, &moved, is_right, &room, (key, value)));
            }
        }
        Err(Error::corrupt("a leaf with keys that cannot be divided"))
    }

    fn divided(
        &self,
        separator: Vec<u8>,
        moved: &[usize],
        is_right: bool,
        room: &Room,
        (key, value): (&[u8], &[u8]),
    ) -> Division<'g> {
        let (mut left, mut right) = (self.clone(), self.g.empty_leaf());
        for i in moved {
            right.fill(*i, self.key(*i), self.value(*i));
            left.clear(*i);
        }
        let half = if is_right { &mut right } else { &mut left };
        half.put_into(room, key, value);
        Division { left, right, separator, slot: (room.slot, is_right) }
    }

    fn divide_sorted(mut self, key: &[u8], value: &[u8]) -> Result<Division<'g>> {
        let all = self.pairs_with(key, value);
        let stay = all.len() / 2;
        let place = all.iter().position(|(k, _)| k == key).unwrap_or(0);
        let separator = next(&all[stay - 1].0);
        let mut right = self.g.empty_leaf();
        self.set_sorted(all[..stay].iter().map(|(k, v)| (&k[..], &v[..])));
        right.set_sorted(all[stay..].iter().map(|(k, v)| (&k[..], &v[..])));
        let slot = if place < stay { (place, false) } else { (place - stay, true) };
        Ok(Division { left: self, right, separator, slot })
    }
}

/// The key behind a key; behind the last one itself.
pub fn next(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (raised, over) = byte.overflowing_add(1);
        *byte = raised;
        if !over {
            return next;
        }
    }
    vec![0xff; key.len()]
}
