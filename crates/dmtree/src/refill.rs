//! Refilling a part of the journal that lacks acknowledged writes, from memory.
//!
//! 1. The part is emptied, and gets its indexes again.
//! 2. Every compute node acknowledges that its writes wait for the part, and that those that did
//!    not have ended (`dmtree_pool`'s `begin_refill`).
//! 3. Every pair of the part is compared with the value that was read, and set to it. That is a
//!    write like others: under the leaf's lock, with its record. So the part has the records of a
//!    key in the order in which their effects are visible, whatever is written meanwhile. A pair
//!    that has changed was appended by the write that changed it, or is read again.
//! 4. The membership ends the gap, when the journal node was there all the time.
//!
//! Any step may be the last one: the gap stays, and another refill begins at the first step.

use std::collections::BTreeSet;

use dmtree_fabric::{Error, NodeId, Result};
use dmtree_journal::{Journal, KnownIndex};
use dmtree_pool::IndexState;

use crate::{Batch, Index, Outcome, Pool};

/// How long operations of other compute nodes may take to end, ns.
const OPERATIONS_END_WITHIN_NS: u64 = 30_000_000_000;
/// Pairs that are written together.
const TOGETHER: usize = 256;

/// What a refill has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refilled {
    /// Indexes.
    pub indexes: u64,
    /// Pairs of the part.
    pub pairs: u64,
}

impl Pool {
    /// The parts of the pool's journal that lack acknowledged writes, as far as this process knows:
    /// their journal nodes were away while writes went on, or have begun lost directories anew.
    ///
    /// # Errors
    /// `Revoked` when this process has lost its membership.
    pub fn journal_gaps(&self) -> Result<Vec<u16>> {
        let gaps = self.inner().incarnation().cluster.compute_node(0)?.journal().journal_gaps();
        Ok(gaps.into_iter().map(|node| node.index() as u16).collect())
    }

    /// Writes a part of the journal that lacks acknowledged writes anew, from memory, while the
    /// pool is in use. `dmtree journal refill` is this.
    ///
    /// # Errors
    /// `NotFound` for a part that lacks nothing; `Unreachable` while its journal node is away;
    /// `Busy` when that was away meanwhile, or another process refills it; `Unsupported` for a pool
    /// without journal nodes. The part has its gap in all of these cases.
    pub fn refill_journal(&self, part: u16) -> Result<Refilled> {
        let durable = self.inner().durable.as_ref();
        let journal = durable.map(|durable| durable.journal()).ok_or_else(no_journal)?;
        let node = NodeId::journal(part);
        if !self.journal_gaps()?.contains(&part) {
            return Err(Error::not_found(format!("part {part} of the journal lacks nothing")));
        }
        let known = self.known_indexes(&*journal, part)?;
        journal.refill(part, &known)?;
        self.inner().begin_refill(node, OPERATIONS_END_WITHIN_NS)?;
        let mut done = Refilled::default();
        for known in &known {
            match self.open(&known.name) {
                Ok(index) => done.pairs += rewrite(&index, |key| journal.part_of(key) == part)?,
                // It was dropped meanwhile.
                Err(e) if e.kind() == crate::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            }
            done.indexes += 1;
        }
        let before: BTreeSet<_> = known.iter().map(|known| known.number).collect();
        let now = self.known_indexes(&*journal, part)?;
        if let Some(new) = now.iter().find(|known| !before.contains(&known.number)) {
            let name = &new.name;
            return Err(Error::busy(format!(
                "the index {name:?} was created meanwhile: refill the part again"
            )));
        }
        self.inner().end_refill(node)?;
        Ok(done)
    }

    /// The indexes of the pool, as the journal knows them without this part.
    fn known_indexes(&self, journal: &dyn Journal, part: u16) -> Result<Vec<KnownIndex>> {
        let entries = self.inner().entries()?;
        let ready = entries.into_iter().filter(|e| e.state == IndexState::Ready);
        let ready: BTreeSet<String> = ready.map(|e| e.name).collect();
        let mut known = journal.indexes_beside(part)?;
        known.retain(|known| ready.contains(&known.name));
        if known.len() < ready.len() {
            return Err(Error::corrupt(
                "the other parts of the journal do not have all indexes of the pool: export these, \
                 and import them into a new one",
            ));
        }
        Ok(known)
    }
}

/// Writes the pairs of a part as they are; how many.
fn rewrite(index: &Index, is_in_part: impl Fn(&[u8]) -> bool) -> Result<u64> {
    let (mut pairs, mut together) = (0, Vec::with_capacity(TOGETHER));
    for pair in index.scan(..).pairs() {
        let pair = pair?;
        if is_in_part(&pair.0) {
            pairs += 1;
            together.push(pair);
        }
        if together.len() == TOGETHER {
            write_together(index, &mut together)?;
        }
    }
    write_together(index, &mut together)?;
    Ok(pairs)
}

fn write_together(index: &Index, pairs: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
    let mut batch = Batch::new();
    for (key, value) in pairs.iter() {
        batch.compare_and_set(key, value, value);
    }
    let written = index.write_batch(&batch)?;
    for ((key, _), outcome) in pairs.drain(..).zip(written) {
        if outcome? == Outcome::Mismatch {
            write_one(index, &key)?;
        }
    }
    Ok(())
}

/// Writes a key as it is. One that is gone needs no record.
fn write_one(index: &Index, key: &[u8]) -> Result<()> {
    while let Some(value) = index.get(key)? {
        if index.compare_and_set(key, &value, &value)? != Outcome::Mismatch {
            break;
        }
    }
    Ok(())
}

fn no_journal() -> Error {
    Error::unsupported("the pool has no journal nodes: found it with `dmtree memnode --journal N`")
}
