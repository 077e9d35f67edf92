//! The log of writes to leaves with images: a write is durable when its record is on a memory node,
//! and the records of many clients take one WRITE.
//!
//! Each compute node has a *ring* of records for each of some groups of its clients on each memory
//! node, for the leaves there: so the loss of a memory node costs its leaves, and no others. A
//! write to a leaf with an image appends what its slot becomes; the leaf at the memory node stays
//! as it is, and is *behind* its image. So what the memory nodes have of a leaf is the leaf
//! overlaid with its records. Where the image cannot be used (its owner is new, or a writer has
//! died) the leaf is made from that, under its lock (`replay.rs`).
//!
//! Invariants; DESIGN section 12 has the arguments:
//!
//! - **G1 (valid).** A record counts if the leaf is alive in the generation of the record, and the
//!   record's count is above the leaf's. The count of a record is the write count of the leaf's
//!   table behind the write, so counts of a generation ascend in the order of the lock. Whatever
//!   rewrites a leaf in place raises its count behind the WRITE: a split, a merge, a repair, a
//!   write-back.
//! - **G2 (overlay).** Lock free: the leaf, overlaid with the newest valid record of each slot, is
//!   the image.
//! - **G3 (cut).** A place in a ring is used again when no record that was there is valid.
//! - **G4 (log, then image).** A record is durable before its slot is written to the image.
//! - **G5 (behind).** Lock free, and the table does not say *behind*: no record of the leaf counts.
//! - **G6 (logged).** Lock free, and a live slot of the image does not say *logged*: no record of
//!   the slot counts.
//!
//! - `record.rs`: byte maps. `ring.rs`: a ring as its node knows it. `append.rs`: the way of a
//!   write into the ring. `balance.rs`: which updates go past it. `cut.rs`: leaves are written
//!   back, so that places can be used again. `replay.rs`: rings are read.
//!
//! A crash of a compute node leaves its rings. Survivors read them whenever a leaf has to be made
//! anew, and the next incarnation of the node goes on in them.

mod append;
mod balance;
mod cut;
mod record;
mod replay;
mod ring;
#[cfg(test)]
mod tests;

pub(crate) use append::Appends;
pub(crate) use balance::Balance;
pub(crate) use cut::Cut;
pub(crate) use replay::{Overlaid, Replay, Scan, Since};
pub(crate) use ring::{LEAST_RECORDS, Layout};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{GlobalAddr, NodeId};
use dmtree_parts::fifo_mutex::FifoMutexes;

use crate::Options;
use ring::{Named, Ring};

/// A leaf with a table that was written so often moves to a new place, where counts begin anew.
pub(crate) const MOST_WRITES: u32 = u32::MAX - (1 << 20);

/// The ring of a group of clients of this node on a memory node.
#[derive(Debug)]
struct LogGroup {
    /// One client at a time opens the ring, or WRITEs what waits.
    turn: Arc<FifoMutexes>,
    state: Mutex<GroupState>,
}

#[derive(Debug)]
enum GroupState {
    /// Nothing was written yet, or there was no room for it: writes go through to the leaves until
    /// this time.
    Closed(u64),
    Open(Box<Ring>),
}

/// Names a ring of a node: the memory node, and the group of clients.
type RingName = (NodeId, usize);

/// The rings of this compute node, and what it has read of all rings.
#[derive(Debug)]
pub(crate) struct WriteLog {
    layout: Layout,
    /// Groups of clients.
    groups: usize,
    rings: Mutex<BTreeMap<RingName, Arc<LogGroup>>>,
    is_cut_due: AtomicBool,
    /// The ring that is cut next.
    next_cut: AtomicUsize,
    /// What the rings of each memory node had, for repairs after a death: until the sweep behind it
    /// has ended.
    kept: Mutex<BTreeMap<NodeId, Arc<Scan>>>,
    /// One client at a time reads rings.
    scans: Arc<FifoMutexes>,
    /// Which leaves are updated past the log.
    pub balance: Balance,
}

impl WriteLog {
    /// Of an index with these options, if they ask for one.
    pub fn of(o: &Options) -> Option<Self> {
        (o.log_kib > 0).then(|| Self {
            layout: Layout::of(o),
            groups: o.log_groups as usize,
            rings: Mutex::default(),
            is_cut_due: AtomicBool::new(false),
            next_cut: AtomicUsize::new(0),
            kept: Mutex::default(),
            scans: FifoMutexes::new(1),
            balance: Balance::new(o.log_past),
        })
    }

    /// Whether leaves have to be written back: a load.
    pub fn is_cut_due(&self) -> bool {
        self.is_cut_due.load(Ordering::Relaxed)
    }

    /// Drops what was read of rings: as many bytes as all rings.
    pub fn forget_scans(&self) {
        locked(&self.kept).clear();
    }

    fn ring(&self, name: RingName) -> Arc<LogGroup> {
        let new = || {
            let (turn, state) = (FifoMutexes::new(1), Mutex::new(GroupState::Closed(0)));
            Arc::new(LogGroup { turn, state })
        };
        locked(&self.rings).entry(name).or_insert_with(new).clone()
    }

    /// The memory node has what records of this node say of a leaf, up to a count.
    fn written_back(&self, leaf: (GlobalAddr, u16), count: u32) {
        let rings = locked(&self.rings);
        let there = rings.iter().filter(|((home, _), _)| *home == leaf.0.node());
        there.for_each(|(_, group)| _ = group.with(|ring| ring.written_back(leaf, count)));
    }

    /// Some leaves that keep the oldest segments of a ring from being used again, of one ring after
    /// the other.
    fn claim(&self, most: usize) -> Vec<Claimed> {
        let rings = locked(&self.rings);
        let first = self.next_cut.fetch_add(1, Ordering::Relaxed) % rings.len().max(1);
        let mut in_turn = rings.values().skip(first).chain(rings.values().take(first));
        let mut is_due = false;
        let some = in_turn.find_map(|group| {
            let due = |ring: &mut Ring| ring.is_cut_due().then(|| ring.claim(most));
            let leaves = group.with(due).flatten()?;
            is_due = true;
            (!leaves.is_empty()).then_some((group, leaves))
        });
        self.is_cut_due.store(is_due, Ordering::Relaxed);
        let claimed = |(group, leaves): (&Arc<LogGroup>, Vec<Named>)| {
            let of = |named| Claimed { named, group: group.clone() };
            leaves.into_iter().map(of).collect()
        };
        some.map(claimed).unwrap_or_default()
    }
}

/// A leaf that a client writes back; released when it is not.
struct Claimed {
    named: Named,
    group: Arc<LogGroup>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.group.with(|ring| ring.release(&self.named));
    }
}

impl LogGroup {
    /// Does something with the ring, if it is open.
    fn with<T>(&self, f: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        match &mut *locked(&self.state) {
            GroupState::Open(ring) => Some(f(ring)),
            GroupState::Closed(_) => None,
        }
    }

    fn is_to_open(&self, now: u64) -> bool {
        matches!(*locked(&self.state), GroupState::Closed(until) if until <= now)
    }
}
