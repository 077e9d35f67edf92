//! The operations of one client.

use std::sync::Arc;

use crate::inserts::{InsertCounter, Ticket};
use crate::mix::OpKind;
use crate::plan::{LOADED, Plan};
use crate::rng::{Rng, Seed};

/// One operation. Keys and values are in the stream's buffers, and last until the next operation is
/// requested.
///
/// `record` is the number of the operation's record, for checks; for an absent key, the record that
/// the key was derived from. [`Plan::value`] makes the same value again from `version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are described above
pub enum Op<'a> {
    /// Search a stored key, unless the workload has already deleted it.
    Read { record: u64, key: &'a [u8] },
    /// Search a key that was never stored.
    ReadAbsent { record: u64, key: &'a [u8] },
    /// Insert a new key.
    Insert { record: u64, key: &'a [u8], version: u32, value: &'a [u8] },
    /// Write to a stored key.
    Update { record: u64, key: &'a [u8], version: u32, value: &'a [u8] },
    /// Remove a stored key; no other delete has the same record.
    Delete { record: u64, key: &'a [u8] },
    /// Read up to `len` entries in ascending order from this key on, including it.
    Scan { record: u64, key: &'a [u8], len: u32 },
    /// Search a key, then write to it.
    ReadModifyWrite { record: u64, key: &'a [u8], version: u32, value: &'a [u8] },
}

impl<'a> Op<'a> {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Read { .. } => OpKind::Read,
            Op::ReadAbsent { .. } => OpKind::ReadAbsent,
            Op::Insert { .. } => OpKind::Insert,
            Op::Update { .. } => OpKind::Update,
            Op::Delete { .. } => OpKind::Delete,
            Op::Scan { .. } => OpKind::Scan,
            Op::ReadModifyWrite { .. } => OpKind::ReadModifyWrite,
        }
    }

    /// Its key; for a scan, the start key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Op::Read { key, .. }
            | Op::ReadAbsent { key, .. }
            | Op::Insert { key, .. }
            | Op::Update { key, .. }
            | Op::Delete { key, .. }
            | Op::Scan { key, .. }
            | Op::ReadModifyWrite { key, .. } => key,
        }
    }

    /// The number of its record.
    #[must_use]
    pub fn record(&self) -> u64 {
        match *self {
            Op::Read { record, .. }
            | Op::ReadAbsent { record, .. }
            | Op::Insert { record, .. }
            | Op::Update { record, .. }
            | Op::Delete { record, .. }
            | Op::Scan { record, .. }
            | Op::ReadModifyWrite { record, .. } => record,
        }
    }

    /// The value that it writes, if any.
    #[must_use]
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Op::Insert { value, .. }
            | Op::Update { value, .. }
            | Op::ReadModifyWrite { value, .. } => Some(value),
            _ => None,
        }
    }
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// Every loaded record was deleted.
    Deletes,
    /// There are no more keys to insert: the key file, or the short random keys, are exhausted.
    Inserts,
}

/// The operations of one client, one after the other. Allocates only until its buffers have reached
/// the longest key and value.
///
/// A request for the next operation marks the one before as done: from then on an insert counts as
/// stored, and `latest` may read it. A client with several operations in flight takes one stream
/// for each.
#[derive(Debug)]
pub struct OpStream {
    plan: Arc<Plan>,
    slice: usize,
    kinds: Rng,
    records: Rng,
    lengths: Rng,
    versions: Rng,
    key: Vec<u8>,
    value: Vec<u8>,
    under_way: Option<Ticket>,
    exhausted: Option<Exhausted>,
}

impl OpStream {
    pub(crate) fn new(plan: Arc<Plan>, slice: usize, seed: Seed) -> Self {
        OpStream {
            slice,
            kinds: seed.child("kinds").rng(),
            records: seed.child("records").rng(),
            lengths: seed.child("scan lengths").rng(),
            versions: seed.child("versions").rng(),
            key: Vec::with_capacity(plan.keys().max_len()),
            value: Vec::with_capacity(plan.spec().value_size.max() as usize),
            plan,
            under_way: None,
            exhausted: None,
        }
    }

    /// The next operation; `None`, then and ever after, when the workload is exhausted: see
    /// [`OpStream::exhausted`].
    #[allow(clippy::should_implement_trait)] // an iterator could not lend its buffers
    pub fn next(&mut self) -> Option<Op<'_>> {
        self.acknowledge();
        if self.exhausted.is_some() {
            return None;
        }
        let kind = self.plan.workload().mix().draw(&mut self.kinds);
        let record = match kind {
            OpKind::Insert => match self.inserts().take() {
                Some(ticket) => {
                    self.under_way = Some(ticket);
                    self.inserts().record(ticket)
                }
                None => return self.end(Exhausted::Inserts),
            },
            OpKind::Delete => match self.plan.take_delete(self.slice) {
                Some(record) => record,
                None => return self.end(Exhausted::Deletes),
            },
            _ => match self.plan.chooser() {
                Some(chooser) => {
                    let side = self.plan.side(self.slice);
                    side.fold(chooser.draw(&mut self.records, &side.inserts))
                }
                // Only a plan of inserts has no chooser.
                None => return self.end(Exhausted::Inserts),
            },
        };
        if kind == OpKind::ReadAbsent {
            let keys = self.plan.keys();
            keys.absent(self.plan.side(self.slice).absent(keys, record), &mut self.key);
            return Some(Op::ReadAbsent { record, key: &self.key });
        }
        self.plan.key(record, &mut self.key);
        let version = match kind {
            OpKind::Insert | OpKind::Update | OpKind::ReadModifyWrite => {
                // Never the loaded version.
                let version = self.versions.next_u32().max(LOADED + 1);
                self.plan.value(record, &self.key, version, &mut self.value);
                version
            }
            _ => LOADED,
        };
        let (key, value) = (self.key.as_slice(), self.value.as_slice());
        Some(match kind {
            OpKind::Read => Op::Read { record, key },
            OpKind::ReadAbsent => Op::ReadAbsent { record, key },
            OpKind::Insert => Op::Insert { record, key, version, value },
            OpKind::Update => Op::Update { record, key, version, value },
            OpKind::Delete => Op::Delete { record, key },
            OpKind::Scan => {
                Op::Scan { record, key, len: self.plan.scans().draw(&mut self.lengths) }
            }
            OpKind::ReadModifyWrite => Op::ReadModifyWrite { record, key, version, value },
        })
    }

    /// Marks the last operation as done, without a request for another one. Call it when a run
    /// ends.
    pub fn acknowledge(&mut self) {
        if let Some(ticket) = self.under_way.take() {
            self.inserts().acknowledge(ticket);
        }
    }

    /// Why the stream has ended, if it has.
    #[must_use]
    pub fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    fn inserts(&self) -> &InsertCounter {
        &self.plan.side(self.slice).inserts
    }

    fn end(&mut self, why: Exhausted) -> Option<Op<'_>> {
        self.exhausted = Some(why);
        None
    }
}
