//! Reading the rings: what the memory nodes have of a leaf.
//!
//! The heads of all rings are in one list, from the word behind the root word on. The records of a
//! leaf are in rings on the memory node of the leaf. A *scan* READs every ring of a memory node
//! whole, and keeps the newest record of each slot. Records that do not count are sorted out at
//! their leaf (G1).
//!
//! A scan tells the records of a leaf if none was added since it began. That is so
//!
//! - under the lock of the leaf, for a scan that began behind it ([`Since::Now`]);
//! - for a leaf that a dead node has locked, when that node was revoked before the scan began
//!   ([`Since::Dead`]): it has written nothing since, nor has any other node;
//! - for a leaf with an unbuilt table, when this node had known the owner of the cell before the
//!   scan began ([`Since::Unbuilt`]). A partition is given to its next owner when every operation
//!   under the former one has ended, so records of those are in the scan; and under the next owner
//!   no client writes to the leaf before its table is built.
//!
//! The last two share one scan among all repairs after a death: before it begins the node learns
//! the owners of all cells. The number of the membership's
//! state tells whether a kept scan is one of the present state.
//!
//! The memory of rings and heads lasts as long as the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, GlobalAddr, NodeId, Result, Role, Step};
use dmtree_pool::{KnownTables, TableId};

use super::record::{HEAD_BYTES, Record, RingHead, count_of};
use super::ring::Layout;
use crate::format::{Place, SlotState, check_whole, slot, u64_at};
use crate::leaf::LeafCopy;
use crate::{Client, Mark, Mutant, Route};

/// Bytes of one READ of a ring.
const READ_BYTES: u64 = 32 << 10;
/// Rings of an index at most.
const MOST_RINGS: usize = 1 << 20;

/// Since when the records of a leaf are what they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// Since this client has the lock.
    Now,
    /// Since its lock holder, a dead node, was revoked.
    Dead,
    /// Since the cell of its table, which is here, has its owner.
    Unbuilt(TableId, GlobalAddr),
}

/// What a record leaves of a slot.
#[derive(Debug)]
struct Newest {
    count: u32,
    entry: Vec<u8>,
}

/// The newest record of each slot, by leaf and generation.
type Records = BTreeMap<(u64, u16), BTreeMap<usize, Newest>>;

/// What the rings had.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The number of the membership's state, and the owners of tables, as this node knew them
    /// before.
    epoch: u64,
    known: KnownTables,
    records: Records,
}

/// The effect of records on a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overlaid {
    /// The largest count that the leaf or a record has.
    pub count: u32,
    /// Some slot is another one now.
    pub has_changed: bool,
}

impl Scan {
    fn tells(&self, since: Since, epoch: u64) -> bool {
        self.epoch == epoch
            && match since {
                Since::Now => false,
                Since::Dead => true,
                Since::Unbuilt(table, at) => self.known.has(table, at),
            }
    }

    /// Lays the valid records of a leaf over its bytes, which reach to the count word.
    pub(crate) fn overlay(&self, c: &Client, route: &Route, bytes: &mut [u8]) -> Overlaid {
        let (g, Route { leaf, generation, capacity, .. }) = (c.node.g, *route);
        let word = u64_at(bytes, count_at(c, capacity));
        let floor = match c.node.has(Mutant::LogOldRecords) {
            false => count_of(leaf, generation, word),
            true => 0,
        };
        let mut done = Overlaid { count: floor, has_changed: false };
        let records = self.records.get(&(leaf.bits(), generation)).into_iter().flatten();
        for (i, newest) in records.filter(|(i, newest)| newest.count > floor && **i < capacity) {
            let place = Place { leaf, slot: *i };
            let Some(s) = slot::check(&g, place, &newest.entry) else { continue };
            // Of a free slot word0 counts alone.
            let len = if s.state == SlotState::Free { 8 } else { newest.entry.len() };
            let old = &mut bytes[g.slot_at(*i)..][..len];
            done.has_changed |= *old != newest.entry[..len];
            old.copy_from_slice(&newest.entry[..len]);
            done.count = done.count.max(newest.count);
        }
        done
    }
}

/// Where the count word of a leaf is.
pub(super) fn count_at(c: &Client, capacity: usize) -> usize {
    c.node.o.count_at(capacity)
}

/// Reads rings.
#[derive(Clone, Copy)]
pub(crate) struct Replay<'c>(pub &'c Client);

impl Replay<'_> {
    /// The heads of all rings on a memory node.
    pub(super) async fn rings(self, home: NodeId) -> Result<Vec<RingHead>> {
        let c = self.0;
        c.ep.step(Step::Structure);
        let mut at = GlobalAddr::from_bits(c.ep.read(c.node.root.aux(), 8).await?.word(0));
        let (mut rings, mut passed) = (Vec::new(), 0);
        while !at.is_null() {
            let broken = || Error::corrupt(format!("{at} is no head of a ring of the log"));
            passed += 1;
            if at.node().role() != Role::Memory || passed > MOST_RINGS {
                return Err(broken());
            }
            let bytes = c.ep.read(at, HEAD_BYTES as u32).await?;
            let head = bytes.extract(|b| RingHead::read(at, b)).ok_or_else(broken)?;
            if head.ring.node() == home {
                rings.push(head);
            }
            at = head.next;
        }
        Ok(rings)
    }

    /// The bytes of a ring.
    pub(super) async fn bytes(self, ring: GlobalAddr) -> Result<Vec<u8>> {
        let (c, end) = (self.0, Layout::of(&self.0.node.o).bytes());
        let mut bytes = Vec::with_capacity(end as usize);
        for at in (0..end).step_by(READ_BYTES as usize) {
            c.ep.step(Step::Structure);
            let some = c.ep.read(ring.plus(at), READ_BYTES.min(end - at) as u32).await?;
            some.extract(|b| bytes.extend_from_slice(b));
        }
        Ok(bytes)
    }

    /// The records that tell what became of a leaf since then.
    pub(crate) async fn records(self, leaf: GlobalAddr, since: Since) -> Result<Arc<Scan>> {
        let (c, log, home) = (self.0, &self.0.node.log, leaf.node());
        let none = || Error::corrupt("an index without a log has no records");
        let log = log.as_ref().ok_or_else(none)?;
        // Not a quiescent section: the owner of the cell must stay.
        let _turn = log.scans.lock(&c.ep, 0).await?;
        let epoch = || c.node.pool.membership().epoch();
        if let Some(kept) = locked(&log.kept).get(&home)
            && kept.tells(since, epoch())
        {
            Mark::LogScanKept.hit();
            return Ok(kept.clone());
        }
        if matches!(since, Since::Unbuilt(..)) {
            // This scan is to tell of the leaves of all partitions that have a new owner.
            c.node.pool.learn_tables(&c.ep).await?;
        }
        let (epoch, known) = (epoch(), c.node.pool.known_tables());
        let mut records = Records::new();
        if !c.node.has(Mutant::LogForgotten) {
            for head in self.rings(home).await? {
                let bytes = self.bytes(head.ring).await?;
                self.collect(head.ring, &bytes, &mut records);
            }
        }
        let scan = Arc::new(Scan { epoch, known, records });
        locked(&log.kept).insert(home, scan.clone());
        Ok(scan)
    }

    fn collect(self, ring: GlobalAddr, bytes: &[u8], records: &mut Records) {
        let record = Layout::of(&self.0.node.o).record;
        for r in bytes.chunks_exact(record).filter_map(|bytes| Record::read(ring, bytes)) {
            let slots = records.entry((r.leaf.bits(), r.generation)).or_default();
            let new = || Newest { count: r.count, entry: r.entry.to_vec() };
            let newest = slots.entry(r.slot).or_insert_with(new);
            if newest.count < r.count {
                *newest = new();
            }
        }
    }

    /// A locked leaf, of memory nodes alone: for a client that cannot have its image.
    pub(crate) async fn leaf(self, route: &Route) -> Result<LeafCopy> {
        Mark::LogLeafMade.hit();
        let scan = self.records(route.leaf, Since::Now).await?;
        self.overlaid(route, &scan).await
    }

    /// A leaf that no client changes, as the memory nodes have it.
    pub(crate) async fn overlaid(self, route: &Route, scan: &Scan) -> Result<LeafCopy> {
        let c = self.0;
        let (g, Route { leaf, generation, capacity, .. }) = (&c.node.g, *route);
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(leaf, count_at(c, capacity) as u32 + 8).await?;
        let overlaid = bytes.check(|b| {
            let mut all = b.to_vec();
            scan.overlay(c, route, &mut all);
            let header = check_whole(g, leaf, &all, (capacity, false));
            let is_of =
                header.is_some_and(|h| h.slots == capacity && h.ver.generation == generation);
            if is_of { Ok(all) } else { Err(()) }
        });
        let Ok((all, bytes)) = overlaid else {
            return Err(Error::corrupt(format!("leaf {leaf} and its records are no leaf")));
        };
        let bytes = bytes.amended(|b| b.copy_from_slice(&all));
        Ok(LeafCopy::whole(g, leaf, capacity, bytes))
    }
}
