//! The expected results of scans: the loaded keys in order, as hashes.

use std::sync::Arc;

use dmtree_workload::{Load, LoadOrder, Plan};
use xxhash_rust::xxh3::xxh3_64;

/// Most records that are kept in order. With more records, scans are checked for order and values
/// only.
pub const MAX_RECORDS: u64 = 16_000_000;

/// The loaded records in the order of their keys.
#[derive(Debug)]
pub struct Oracle {
    /// By position, if scans are checked.
    hashes: Vec<u64>,
    /// Position to record.
    records: Vec<u32>,
    /// Record to position, if scans are checked.
    positions: Vec<u32>,
}

impl Oracle {
    /// Sorts the records of a plan; `None` when there are too many. `scans`: scans will be checked,
    /// too.
    pub fn new(plan: &Plan, scans: bool) -> Option<Arc<Self>> {
        if plan.spec.records > MAX_RECORDS {
            return None;
        }
        let load: Load = plan.load(LoadOrder::Sorted);
        let n = plan.spec.records as usize;
        let for_scans = if scans { n } else { 0 };
        let (mut hashes, mut records) = (Vec::with_capacity(for_scans), Vec::with_capacity(n));
        let mut positions = vec![0u32; for_scans];
        let mut key = Vec::new();
        for (at, record) in load.records(0..plan.spec.records).enumerate() {
            records.push(record as u32);
            if scans {
                plan.key(record, &mut key);
                hashes.push(xxh3_64(&key));
                positions[record as usize] = at as u32;
            }
        }
        Some(Arc::new(Self { hashes, records, positions }))
    }

    /// Whether it can check scans.
    pub fn knows_scans(&self) -> bool {
        !self.positions.is_empty()
    }

    /// The record at a position of the key order.
    pub fn record_at(&self, position: usize) -> u64 {
        u64::from(self.records[position])
    }

    /// Starts the check of an ascending scan from the key of a record. `grows`: other keys may be
    /// present, too.
    pub fn check(&self, record: u64, grows: bool) -> Option<Check<'_>> {
        // A key that was inserted during the run has no position here.
        let position = *self.positions.get(usize::try_from(record).ok()?)?;
        Some(Check { oracle: self, next: position as usize, grows })
    }
}

/// The check of a scan.
#[derive(Debug)]
pub struct Check<'o> {
    oracle: &'o Oracle,
    next: usize,
    grows: bool,
}

impl Check<'_> {
    /// Checks the next returned key: it is stored, and no loaded key was passed over.
    pub fn key(&mut self, key: &[u8]) -> Result<(), String> {
        let hash = xxh3_64(key);
        let hashes = &self.oracle.hashes;
        if hashes.get(self.next) == Some(&hash) {
            self.next += 1;
            return Ok(());
        }
        let ahead = &hashes[self.next.min(hashes.len())..(self.next + 256).min(hashes.len())];
        match ahead.iter().position(|h| *h == hash) {
            Some(missed) => {
                self.next += missed + 1;
                Err(format!("it misses {missed} stored keys before {}", shown(key)))
            }
            None if self.grows => Ok(()),
            None => Err(format!("it returns {}, which was never stored there", shown(key))),
        }
    }

    /// Checks the end of the scan after `last`: no stored key is missing there; `exhausted`: the
    /// index has reported that nothing follows.
    pub fn end(&self, plan: &Plan, last: Option<&[u8]>, exhausted: bool) -> Result<(), String> {
        let Some(record) = self.oracle.records.get(self.next) else { return Ok(()) };
        let mut due = Vec::new();
        plan.key(u64::from(*record), &mut due);
        if exhausted {
            return Err(format!("it ends although {} is stored behind", shown(&due)));
        }
        match last {
            Some(last) if due.as_slice() <= last => {
                Err(format!("it ends behind {} without having returned it", shown(&due)))
            }
            _ => Ok(()),
        }
    }
}

/// A key for a message.
pub fn shown(key: &[u8]) -> String {
    let cut = &key[..key.len().min(48)];
    let more = if key.len() > cut.len() { "..." } else { "" };
    format!("\"{}{more}\"", cut.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_workload::WorkloadSpec;

    fn sorted(plan: &Plan) -> Vec<(u64, Vec<u8>)> {
        let mut keys: Vec<(u64, Vec<u8>)> = (0..plan.spec.records)
            .map(|r| {
                let mut key = Vec::new();
                plan.key(r, &mut key);
                (r, key)
            })
            .collect();
        keys.sort_by(|a, b| a.1.cmp(&b.1));
        keys
    }

    #[test]
    fn misses_and_strangers_are_seen() {
        let plan = WorkloadSpec { records: 1000, ..Default::default() }.build().unwrap();
        let oracle = Oracle::new(&plan, true).unwrap();
        let keys = sorted(&plan);
        assert_eq!(oracle.record_at(17), keys[17].0);
        let start = keys[100].0;

        let mut good = oracle.check(start, false).unwrap();
        for (_, key) in &keys[100..150] {
            good.key(key).unwrap();
        }
        good.end(&plan, Some(&keys[149].1), false).unwrap();
        assert!(good.end(&plan, Some(&keys[149].1), true).is_err(), "keys follow");

        let mut miss = oracle.check(start, true).unwrap();
        miss.key(&keys[100].1).unwrap();
        assert!(miss.key(&keys[103].1).unwrap_err().contains("misses 2"));

        let mut stranger = oracle.check(start, false).unwrap();
        assert!(stranger.key(b"never").unwrap_err().contains("never stored"));
        let mut grown = oracle.check(start, true).unwrap();
        grown.key(b"new").unwrap();
        assert!(grown.end(&plan, Some(&keys[100].1), false).is_err(), "keys[100] is missing");

        let mut last = oracle.check(keys[999].0, false).unwrap();
        last.key(&keys[999].1).unwrap();
        last.end(&plan, Some(&keys[999].1), true).unwrap();
        assert!(oracle.check(1000, true).is_none(), "inserted in the run");
    }
}
