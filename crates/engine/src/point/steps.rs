//! The decisions of point operations, without their verbs: what the next step is, given what the
//! last one has found.
//!
//! Two drivers execute the steps. `get.rs` and `put.rs` post the verbs and may wait; `direct.rs`
//! executes them on memory of this process and hands an operation that must wait over, with the
//! state of its steps. So the order of the steps and what a result means stand here once.
//!
//! *Writes*, under the leaf's lock, where the table is exact (F): each slot with the key's
//! fingerprint is READ until one has the key. Then the write is refused, or it frees the slot,
//! replaces its entry, or fills a free slot. By F a key without such a slot is absent.
//!
//! *Reads*, against a table that was exact at some instant of the operation: a live entry of the
//! route's generation is the answer (P). When no candidate has the key and each carries the table's
//! version, the key was absent at that instant. A candidate of another version proves nothing: the
//! key may have moved.

use dmtree_fabric::OpOutcome;
use dmtree_parts::slots::Slots;
use dmtree_parts::{Outcome, Write};
use dmtree_pool::BlockPtr;

use crate::format::Table;
use crate::leaf::Probe;
use crate::point::Answer;
use crate::router::MAX_CANDIDATES;
use crate::{KeyHash, Mark, Route};

/// An entry found under the lock.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    pub slot: usize,
    pub block: BlockPtr,
    /// Its checksum: what a shadow names.
    pub crc: u32,
}

/// A point write under its leaf's lock.
pub(crate) struct PointWrite<'w> {
    pub key: &'w [u8],
    pub hash: KeyHash,
    pub write: Write<'w>,
    /// The value found.
    pub old: Vec<u8>,
    present: Option<Present>,
    /// No slot below this one has the key.
    from: usize,
}

/// What a point write does next.
pub(crate) enum Next {
    /// READ this slot.
    Probe(usize),
    /// Nothing: it is refused.
    Refuse(Outcome, OpOutcome),
    /// Free the slot of this entry.
    Free(Present),
    /// Replace this entry.
    Replace(Present),
    /// Fill a free slot.
    Fill,
}

impl<'w> PointWrite<'w> {
    /// `old`: memory for the value that is found.
    #[inline]
    pub fn new(key: &'w [u8], hash: KeyHash, write: Write<'w>, old: Vec<u8>) -> Self {
        Self { key, hash, write, old, present: None, from: 0 }
    }

    /// Whether the key was found.
    #[inline]
    pub fn is_present(&self) -> bool {
        self.present.is_some()
    }

    /// The next step. Asked twice, it is the same.
    #[inline]
    pub fn next(&self, table: &Table) -> Next {
        if self.present.is_none()
            && let Some(slot) = table.slots(self.hash.fingerprint()).from(self.from).next()
        {
            return Next::Probe(slot);
        }
        let old = self.present.is_some().then_some(&self.old[..]);
        if let Some((outcome, counted)) = self.write.refused(old) {
            return Next::Refuse(outcome, counted);
        }
        match (self.write.value(), self.present) {
            (None, Some(present)) => Next::Free(present),
            (Some(_), Some(present)) => Next::Replace(present),
            (Some(_), None) => Next::Fill,
            (None, None) => unreachable!("a delete of an absent key is refused"),
        }
    }

    /// The whole leaf was READ.
    pub fn saw_all(&mut self, present: Option<Present>) {
        (self.present, self.from) = (present, usize::MAX);
    }

    /// The slot of [`Next::Probe`] was READ.
    #[inline]
    pub fn saw(&mut self, slot: usize, probe: &Probe) {
        match *probe {
            Probe::Hit { block, crc, .. } => self.present = Some(Present { slot, block, crc }),
            Probe::Other { .. } => self.from = slot + 1,
        }
    }
}

/// The slots of an exact table that may have a key; `None` for too many.
#[inline]
pub(crate) fn candidates(table: &Table, hash: KeyHash) -> Option<Slots> {
    let slots = table.slots(hash.fingerprint());
    slots.are_at_most(MAX_CANDIDATES).then_some(slots)
}

/// What one candidate of an exact table says of the key: an answer, or nothing.
#[inline]
pub(crate) fn verdict(probe: &Probe, route: &Route, table: &Table) -> Option<Answer> {
    if probe.is_hit_of(route.generation) {
        return Some(Answer::Found);
    }
    // The same version throughout: the key did not move, so if the table named it, it was deleted
    // since.
    if probe.ver() != table.ver {
        Mark::GetVersion.hit();
        return Some(Answer::Stale);
    }
    None
}
