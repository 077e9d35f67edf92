//! The operations of one client.

use std::sync::Arc;

use crate::inserts::Ticket;
use crate::mix::{OpKind, Phase};
use crate::plan::{LOADED, Plan};
use crate::rng::{Rng, Seed};
use crate::slices::Side;

/// One operation. Keys and values are in the stream's buffers, and last until the next operation is
/// requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op<'a> {
    /// Its kind. A read of a stored key finds it unless the workload has already deleted it; no two
    /// deletes have the same record.
    pub kind: OpKind,
    /// The number of its record, for checks; for an absent key, the record that the key was derived
    /// from.
    pub record: u64,
    /// Its key; for a scan, the start key, which is included; for a pass, nothing.
    pub key: &'a [u8],
    /// The version of its value, from which [`Plan::value`] makes the same value again.
    pub version: u32,
    /// The value that it writes; empty where it writes none.
    pub value: &'a [u8],
    /// The most entries of a scan, or of this part of a pass; 0 for another kind.
    pub len: u32,
}

/// Entries of one operation of a pass.
const PASS_ENTRIES: u32 = 10_000;

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
    /// Operations so far.
    drawn: u64,
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
        // Each phase draws numbers of its own.
        let workload = &plan.spec.workload;
        let seed = if workload.phase.is_some() { seed.child(workload.name()) } else { seed };
        OpStream {
            slice,
            drawn: 0,
            kinds: seed.child("kinds").rng(),
            records: seed.child("records").rng(),
            lengths: seed.child("scan lengths").rng(),
            versions: seed.child("versions").rng(),
            key: Vec::with_capacity(plan.keys.max_len()),
            value: Vec::with_capacity(plan.spec.value_size.max() as usize),
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
        let kind = self.kind();
        let record = match kind {
            OpKind::Insert => match self.side().inserts.take() {
                Some(ticket) => {
                    self.under_way = Some(ticket);
                    self.side().inserts.record(ticket)
                }
                None => return self.end(Exhausted::Inserts),
            },
            OpKind::Delete => match self.side().take_delete(self.plan.spec.records) {
                Some(record) => record,
                None => return self.end(Exhausted::Deletes),
            },
            _ => match &self.plan.chooser {
                Some(chooser) => {
                    let side = &self.plan.sides[self.slice];
                    side.fold(chooser.draw(&mut self.records, &side.inserts))
                }
                // Only a plan of inserts has no chooser.
                None => return self.end(Exhausted::Inserts),
            },
        };
        let (mut version, mut value, mut len) = (LOADED, &[][..], 0);
        if kind == OpKind::Pass {
            self.key.clear();
        } else if kind == OpKind::ReadAbsent {
            let keys = &self.plan.keys;
            keys.absent(self.plan.sides[self.slice].absent(keys, record), &mut self.key);
        } else {
            self.plan.key(record, &mut self.key);
        }
        match kind {
            OpKind::Insert | OpKind::Update | OpKind::ReadModifyWrite | OpKind::Put => {
                // Never the loaded version.
                version = self.versions.next_u32().max(LOADED + 1);
                self.plan.value(record, &self.key, version, &mut self.value);
                value = &self.value;
            }
            OpKind::Scan => len = self.plan.scans.draw(&mut self.lengths),
            OpKind::Pass => len = PASS_ENTRIES,
            OpKind::Read | OpKind::ReadAbsent | OpKind::Delete | OpKind::Get => {}
        }
        Some(Op { kind, record, key: &self.key, version, value, len })
    }

    /// The kind of the next operation.
    fn kind(&mut self) -> OpKind {
        let workload = &self.plan.spec.workload;
        self.drawn += 1;
        match workload.phase {
            Some(Phase::Mixed(reads)) if (self.drawn - 1) % 100 < u64::from(reads) => OpKind::Get,
            Some(Phase::Mixed(_)) => OpKind::Put,
            _ => workload.mix().draw(&mut self.kinds),
        }
    }

    /// Marks the last operation as done, without a request for another one. Call it when a run
    /// ends.
    pub fn acknowledge(&mut self) {
        if let Some(ticket) = self.under_way.take() {
            self.side().inserts.acknowledge(ticket);
        }
    }

    /// Why the stream has ended, if it has.
    pub fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted
    }

    fn side(&self) -> &Side {
        &self.plan.sides[self.slice]
    }

    fn end(&mut self, why: Exhausted) -> Option<Op<'_>> {
        self.exhausted = Some(why);
        None
    }
}
