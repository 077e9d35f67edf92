//! Slices of the key space: ranges of keys, in key order, that have as many loaded records each.
//! A stream of a slice draws keys in it and nowhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::inserts::InsertCounter;
use crate::keys::{KeyForm, KeySpace};
use crate::permute::Permutation;
use crate::rng::Seed;
use crate::spec::WorkloadSpec;

/// All slices, with the loaded records in the order of their keys.
#[derive(Debug)]
pub(crate) struct Slices {
    keys: KeySpace,
    order: Vec<u64>,
    /// The rank of the first key of every slice but the first.
    bounds: Vec<u64>,
}

impl WorkloadSpec {
    /// Refuses slices in which some operation has no keys, without preparing anything.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check_slices(&self) -> Result<()> {
        let slices = self.slices;
        let mix = self.workload.mix();
        let why = match &self.keys {
            _ if slices == 1 => return Ok(()),
            KeyForm::File(_) | KeyForm::Sosd(_) => {
                "the keys of a file have no slices: give a computed key form such as hashed24"
                    .to_owned()
            }
            KeyForm::Shifting(_) if mix.insert + mix.read_absent > 0 => {
                "new and absent keys of the form shifting lie in no slice of the loaded ones: give another key form, or a workload without them".to_owned()
            }
            KeyForm::Sequential | KeyForm::Sequential24 | KeyForm::DbBench if mix.insert + mix.read_absent > 0 => {
                "new and absent keys in the order of their numbers lie in no slice but the last: give another key form, or a workload without them".to_owned()
            }
            _ if slices == 0 || u64::from(slices) > self.records.max(1) => format!(
                "{slices} slices of {} records: give 1 to as many slices as there are records",
                self.records
            ),
            _ => return Ok(()),
        };
        Err(Error::new(why))
    }
}

impl Slices {
    pub(crate) fn new(keys: &KeySpace, records: u64, slices: u32) -> Self {
        let mut order: Vec<u64> = (0..records).collect();
        order.sort_by_cached_key(|&record| keys.rank(record));
        let slices = u64::from(slices);
        let first = |slice: u64| keys.rank(order[(records * slice / slices) as usize]);
        Self { keys: keys.clone(), bounds: (1..slices).map(first).collect(), order }
    }

    /// The positions of a slice in the order of keys.
    fn positions(&self, slice: u32) -> (u64, u64) {
        let (n, slices) = (self.order.len() as u64, self.bounds.len() as u64 + 1);
        let start = n * u64::from(slice) / slices;
        (start, n * (u64::from(slice) + 1) / slices - start)
    }

    /// Whether the key of a record, loaded or not, lies in a slice.
    fn has(&self, slice: u32, record: u64) -> bool {
        let rank = self.keys.rank(record);
        self.bounds.partition_point(|first| *first <= rank) == slice as usize
    }
}

/// What the streams of one slice share, or all streams where the key space is not cut.
#[derive(Debug)]
pub(crate) struct Side {
    slices: Option<(Arc<Slices>, u32)>,
    pub(crate) inserts: InsertCounter,
    delete_order: Permutation,
    deletes: AtomicU64,
}

impl Side {
    /// The whole key space, with `n` loaded records.
    pub(crate) fn whole(n: u64, capacity: u64, seed: Seed) -> Self {
        Self {
            slices: None,
            inserts: InsertCounter::new(n, capacity),
            delete_order: Permutation::new(n, seed),
            deletes: AtomicU64::new(0),
        }
    }

    /// One slice.
    pub(crate) fn of(slices: &Arc<Slices>, slice: u32, whole: Self, seed: Seed) -> Self {
        let (own, (_, len)) = (slices.clone(), slices.positions(slice));
        Self {
            inserts: whole.inserts.only(Box::new(move |record| own.has(slice, record))),
            delete_order: Permutation::new(len, seed.numbered("slice", u64::from(slice))),
            slices: Some((slices.clone(), slice)),
            ..whole
        }
    }

    /// The loaded records of this slice, if it is one, in the order of their keys.
    pub(crate) fn loaded(&self) -> Option<&[u64]> {
        let (slices, slice) = self.slices.as_ref()?;
        let (start, len) = slices.positions(*slice);
        Some(&slices.order[start as usize..(start + len) as usize])
    }

    /// A drawn record, where this side has it: a loaded one is folded into the slice.
    pub(crate) fn fold(&self, record: u64) -> u64 {
        match &self.slices {
            Some((slices, slice)) if record < slices.order.len() as u64 => {
                let (start, len) = slices.positions(*slice);
                slices.order[(start + record % len) as usize]
            }
            // Inserted records are those of this side already.
            _ => record,
        }
    }

    /// A number from which [`KeySpace::absent`] makes a key of this side.
    pub(crate) fn absent(&self, keys: &KeySpace, record: u64) -> u64 {
        match &self.slices {
            None => record,
            Some((slices, slice)) => {
                let n = slices.order.len() as u64;
                let numbers = (0..).map(|i| record + i * n);
                let mut own = numbers.filter(|r| slices.has(*slice, keys.absent_number(*r)));
                own.next().unwrap_or(record)
            }
        }
    }

    /// The next loaded record to delete; each is returned once.
    pub(crate) fn take_delete(&self, n: u64) -> Option<u64> {
        let n = self.slices.as_ref().map_or(n, |(slices, slice)| slices.positions(*slice).1);
        let step = |count| (count < n).then_some(count + 1);
        let at = self.deletes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok()?;
        Some(self.fold(self.delete_order.apply(at)))
    }
}
