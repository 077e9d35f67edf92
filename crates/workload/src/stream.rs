//! One client's operations.

use std::sync::Arc;

use crate::inserts::Ticket;
use crate::mix::OpKind;
use crate::plan::{LOADED, Plan};
use crate::rng::{Rng, Seed};

/// One operation. Keys and values are in the stream's buffers and last until the next one is asked
/// for.
///
/// `record` is the number of the record it is about, for checks; of an absent key, the record that
/// the key was derived from. `version` is what [`Plan::value`] needs to make the same value again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are described above
pub enum Op<'a> {
    /// Search a key that is stored, unless the workload also deletes and already did.
    Read { record: u64, key: &'a [u8] },
    /// Search a key that was never stored.
    ReadAbsent { record: u64, key: &'a [u8] },
    /// Insert a new key.
    Insert { record: u64, key: &'a [u8], version: u32, value: &'a [u8] },
    /// Write to a key that is stored.
    Update { record: u64, key: &'a [u8], version: u32, value: &'a [u8] },
    /// Remove a key that is stored; no other delete has the same record.
    Delete { record: u64, key: &'a [u8] },
    /// Read up to `len` entries in ascending order, from this key on, itself included.
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

    /// The key it is about, or starts at.
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

    /// The number of the record it is about.
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

    /// The value it writes, if it writes one.
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
    /// There are no more keys to insert: the key file, or short random keys, are used up.
    Inserts,
}

/// The operations of one client, one after the other. Allocates only until its buffers have reached
/// the longest key and value.
///
/// Asking for the next operation says that the one before is done: an insert counts as stored from
/// then on, and `latest` may read it. A client with several operations under way takes one stream
/// for each.
#[derive(Debug)]
pub struct OpStream {
    plan: Arc<Plan>,
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
    pub(crate) fn new(plan: Arc<Plan>, seed: Seed) -> Self {
        OpStream {
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

    /// The next operation; `None`, then and ever after, when the workload is used up: see
    /// [`OpStream::exhausted`].
    #[allow(clippy::should_implement_trait)] // an iterator could not lend its buffers
    pub fn next(&mut self) -> Option<Op<'_>> {
        self.acknowledge();
        if self.exhausted.is_some() {
            return None;
        }
        let kind = self.plan.workload().mix().draw(&mut self.kinds);
        let record = match kind {
            OpKind::Insert => match self.plan.inserts().take() {
                Some(ticket) => {
                    self.under_way = Some(ticket);
                    self.plan.inserts().record(ticket)
                }
                None => return self.end(Exhausted::Inserts),
            },
            OpKind::Delete => match self.plan.take_delete() {
                Some(record) => record,
                None => return self.end(Exhausted::Deletes),
            },
            _ => match self.plan.chooser() {
                Some(chooser) => chooser.draw(&mut self.records, self.plan.inserts()),
                // Only a plan of inserts has no chooser.
                None => return self.end(Exhausted::Inserts),
            },
        };
        if kind == OpKind::ReadAbsent {
            self.plan.keys().absent(record, &mut self.key);
            return Some(Op::ReadAbsent { record, key: &self.key });
        }
        self.plan.key(record, &mut self.key);
        let version = match kind {
            OpKind::Insert | OpKind::Update | OpKind::ReadModifyWrite => {
                // Never the loaded one.
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

    /// Says that the last operation is done, without asking for another; call it when a run ends.
    pub fn acknowledge(&mut self) {
        if let Some(ticket) = self.under_way.take() {
            self.plan.inserts().acknowledge(ticket);
        }
    }

    /// Why there is nothing left to do, if there is not.
    #[must_use]
    pub fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    fn end(&mut self, why: Exhausted) -> Option<Op<'_>> {
        self.exhausted = Some(why);
        None
    }
}
