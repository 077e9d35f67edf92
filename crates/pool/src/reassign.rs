//! New owners for table partitions: of a dead node, of one that leaves, for one that joins.
//!
//! One claimant at a time does this, after every living node has drained: no operation uses the
//! partitions any more. For a death ([`Partitions::reassign`]) and for a planned move
//! ([`Partitions::carry_out`]) alike:
//!
//! 1. *Flush*: every living owner answers once. So nothing that a former claimant has asked for is
//!    still under way.
//! 2. READ the directory, then the catalog. In this order, because what the directory names and the
//!    catalog does not was dropped; such a partition moves without its cells.
//! 3. For a move: *release* at the present owner, then READ the record again, which may have grown
//!    meanwhile.
//! 4. *Adopt* at the next owner: the wanted one, else the living owner with the fewest partitions,
//!    else a memory node. The new owner takes zeroed segments for all granted lines and writes the
//!    record with one more move.
//!
//! Nothing of the old owner is read. Its tables are built again from the leaves by the first
//! operations that need them.
//!
//! Invariants. A partition has one owner, and its moves only grow. The high-water mark never falls
//! below a granted cell (for a torn record the larger of both images counts), except when the index
//! of the partition is gone. Every step may be repeated: a partition that names a living owner in
//! its record is left alone.
//!
//! Crashes. The claimant may die at any verb; the next claimant starts at step 1 with whatever the
//! directory says. An owner that dies while it writes a record leaves it torn:
//! [`Partition::remains`] still tells number, owner and mark, and the death of that owner moves the
//! partition. A released partition that found no other owner goes back to its owner as it was
//! (`OwnerService::adopt`). Between two owners, clients get `Unreachable` and retry.

use std::collections::BTreeMap;

use dmtree_fabric::trace::{Event, report};
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Member, MemberPhase, MembershipState, Move, NodeId, Result, Role,
};

use crate::catalog::live_indexes;
use crate::ids::{COMPUTE_PARTITIONS, PARTITIONS};
use crate::layout::{DIRECTORY, DIRECTORY_BYTES, Partition, first_node};
use crate::node::PoolNode;
use crate::owners::{ask_adopt, ask_flush, ask_release, first_owner};

/// Partitions of one READ of the directory.
const STEP: u16 = 64;
/// A node that owns no partition takes so many of those that were never opened and have
/// lost their first owner.
pub(crate) const UNOPENED_SHARE: usize = 8;

/// A directory record, as far as it can be read.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryEntry {
    pub(crate) partition: Partition,
    pub(crate) torn: bool,
}

/// Whether the death of a compute node is complete, so that no claimant will give its partitions
/// another owner.
pub(crate) fn is_over(state: &MembershipState, owner: Member) -> bool {
    owner.node.role() == Role::Compute && state.phase(owner) == Some(MemberPhase::Gone)
}

fn report_owner(p: &Partition, owner: NodeId) {
    report(Event::Move, || format!("partition {} goes from {} to {owner}", p.number, p.owner.node));
}

/// Owners of fingerprint tables, and new owners when one dies or leaves.
#[derive(Clone, Copy, Debug)]
pub struct Partitions<'n>(pub(crate) &'n PoolNode);

impl Partitions<'_> {
    /// Gives new owners to the partitions of a dead node.
    pub(crate) async fn reassign(self, ep: &Endpoint, dead: Member) -> Result<()> {
        self.flush_owners(ep).await?;
        let gone = |owner: Member| owner == dead;
        let seen = self.directory(ep).await?;
        // After the directory: what it names and the catalog does not was dropped.
        let indexes = live_indexes(ep).await?;
        let mut load = self.load(&seen);
        for s in seen.iter().filter(|s| gone(s.partition.owner)) {
            let p = s.partition.clone().emptied_unless(&indexes);
            self.give_owner(ep, &p, None, &mut load).await?;
        }
        let stuck = seen.iter().find(|s| s.torn && !gone(s.partition.owner));
        match stuck {
            // Its owner is writing it, or is dying.
            Some(s) => {
                Err(Error::busy(format!("{} writes its directory record", s.partition.owner)))
            }
            None => Ok(()),
        }
    }

    /// Carries out a planned move.
    pub(crate) async fn carry_out(self, ep: &Endpoint, p: &Move) -> Result<()> {
        self.flush_owners(ep).await?;
        let seen = self.directory(ep).await?;
        let indexes = live_indexes(ep).await?;
        let mut load = self.load(&seen);
        let to = p.to.filter(|to| self.0.membership().living().contains(to));
        for number in &p.partitions {
            let found = seen.iter().find(|s| s.partition.number == *number);
            let fresh =
                DirectoryEntry { partition: Partition::new(*number, self.0.view.me), torn: false };
            let s = found.cloned().unwrap_or(fresh);
            let owner = s.partition.owner;
            let is_living = self.0.membership().living().contains(&owner);
            let answers = is_living || owner.node.role() == Role::Memory;
            // The death of an owner that has died meanwhile moves the partition.
            let dies = !answers && !is_over(&self.0.view.state(), owner);
            if found.is_some() && (dies || Some(owner) == to) {
                continue;
            }
            if found.is_some() && answers {
                match ask_release(ep, self.0.membership().call_ns(), owner.node, &[*number]).await {
                    // Partitions of a lost memory node stay there.
                    Err(e) if !is_living && e.kind() == ErrorKind::Unreachable => continue,
                    released => released?,
                }
                match p.to {
                    // The owner leaves: it would give the partition away again.
                    None => _ = load.remove(&owner),
                    Some(_) if is_living => {
                        *load.entry(owner).or_default() += usize::from(PARTITIONS);
                    }
                    Some(_) => {}
                }
            }
            let again = self.directory_at(ep, *number).await?;
            let partition = match again {
                Some(again) if again.index == s.partition.index => {
                    let lines = again.lines.max(s.partition.lines);
                    Partition { lines, ..s.partition }.emptied_unless(&indexes)
                }
                // Its owner has given it to another index meanwhile.
                Some(again) => again,
                None => s.partition,
            };
            self.give_owner(ep, &partition, to, &mut load).await?;
        }
        Ok(())
    }

    /// Proposes that this node's share of the partitions moves here.
    ///
    /// # Errors
    /// Those of the fabric; `Revoked`. While another move is under way nothing happens: true when
    /// there is nothing to propose.
    pub async fn take_share(self, ep: &Endpoint) -> Result<bool> {
        let seen = self.directory(ep).await?;
        let living = self.0.membership().living();
        let mut owners: BTreeMap<Member, Vec<u16>> =
            living.iter().map(|m| (*m, Vec::new())).collect();
        for s in &seen {
            if let Some(of) = owners.get_mut(&s.partition.owner) {
                of.push(s.partition.number);
            }
        }
        let all: usize = owners.values().map(Vec::len).sum();
        let share = all / living.len().max(1);
        let mut mine = owners.remove(&self.0.view.me).map_or(0, |m| m.len());
        let mut wanted = Vec::new();
        while mine < share {
            let Some(from) =
                owners.values_mut().max_by_key(|of| of.len()).filter(|o| o.len() > share)
            else {
                break;
            };
            wanted.extend(from.pop());
            mine += 1;
        }
        let opened: Vec<u16> = seen.iter().map(|s| s.partition.number).collect();
        if mine == 0 {
            wanted.extend(self.unowned_partitions(&opened).take(UNOPENED_SHARE));
        }
        if wanted.is_empty() {
            return Ok(true);
        }
        self.0.membership().plan(ep, wanted, Some(self.0.view.me)).await?;
        Ok(false)
    }

    /// Gives ranges of indexes to other nodes, and proposes that other nodes become the owners of
    /// this node's partitions; true when it has none.
    pub async fn hand_over(self, ep: &Endpoint) -> Result<bool> {
        self.0.services().give_ranges(ep).await?;
        let seen = self.directory(ep).await?;
        let mine = seen.iter().filter(|s| s.partition.owner == self.0.view.me);
        let mine: Vec<u16> = mine.map(|s| s.partition.number).collect();
        if mine.is_empty() {
            return Ok(true);
        }
        self.0.membership().plan(ep, mine, None).await?;
        Ok(false)
    }

    /// Returns when no owner is carrying out a request of a former claimant.
    async fn flush_owners(self, ep: &Endpoint) -> Result<()> {
        for owner in self.0.membership().living() {
            self.0.membership().renew(ep).await?;
            ask_flush(ep, self.0.membership().call_ns(), owner.node).await?;
        }
        Ok(())
    }

    /// Partitions per living owner.
    fn load(self, seen: &[DirectoryEntry]) -> BTreeMap<Member, usize> {
        let mut load: BTreeMap<Member, usize> =
            self.0.membership().living().into_iter().map(|m| (m, 0)).collect();
        for s in seen {
            if let Some(n) = load.get_mut(&s.partition.owner) {
                *n += 1;
            }
        }
        load
    }

    /// Finds an owner for a partition: the one wanted, else the living node with the fewest that
    /// has room, else a memory node.
    async fn give_owner(
        self,
        ep: &Endpoint,
        p: &Partition,
        to: Option<Member>,
        load: &mut BTreeMap<Member, usize>,
    ) -> Result<()> {
        self.0.membership().renew(ep).await?;
        ep.renew_deadline();
        let mut order: Vec<(usize, Member)> = load.iter().map(|(m, n)| (*n, *m)).collect();
        order.sort();
        let compute = to.into_iter().chain(order.into_iter().map(|(_, m)| m));
        for owner in compute {
            self.0.membership().renew(ep).await?;
            if ask_adopt(ep, self.0.membership().call_ns(), owner.node, p).await? {
                *load.entry(owner).or_default() += 1;
                report_owner(p, owner.node);
                return Ok(());
            }
        }
        let memory = self.0.shape.founded.iter().map(|l| l.node);
        let mut memory: Vec<NodeId> =
            memory.filter(|n| self.0.view.check_presence(*n).is_ok()).collect();
        // The memory node that serves it already comes first: it has the memory.
        memory.sort_by_key(|m| *m != p.owner.node);
        for owner in memory {
            if ask_adopt(ep, self.0.membership().call_ns(), owner, p).await? {
                report_owner(p, owner);
                return Ok(());
            }
        }
        Err(dmtree_fabric::Error::full(format!(
            "no node has room for the tables of partition {} ({} lines): add a compute node",
            p.number, p.lines
        )))
    }

    /// All records that have been written.
    async fn directory(self, ep: &Endpoint) -> Result<Vec<DirectoryEntry>> {
        self.read_directory(ep, true).await
    }

    /// The same; the caller renews its lease on the way if it `keeps` one.
    pub(crate) async fn read_directory(
        self,
        ep: &Endpoint,
        keeps: bool,
    ) -> Result<Vec<DirectoryEntry>> {
        let mut out = Vec::new();
        for first in (0..PARTITIONS).step_by(usize::from(STEP)) {
            if keeps {
                self.0.membership().renew(ep).await?;
            }
            let count = STEP.min(PARTITIONS - first);
            let at = first_node(DIRECTORY + u64::from(first) * DIRECTORY_BYTES);
            let bytes = ep.read(at, u32::from(count) * DIRECTORY_BYTES as u32).await?;
            let records: Vec<(u16, Result<Option<Partition>, Partition>)> = bytes.extract(|b| {
                let records = b.chunks_exact(DIRECTORY_BYTES as usize).zip(first..);
                let decode =
                    |(b, n)| (n, Partition::decode(b, n).map_err(|()| Partition::remains(b, n)));
                records.map(decode).collect()
            });
            for (number, record) in records {
                match record {
                    Ok(Some(partition)) => out.push(DirectoryEntry { partition, torn: false }),
                    Ok(None) => {}
                    Err(_) => out.extend(self.torn_record(ep, number).await?),
                }
            }
        }
        Ok(out)
    }

    /// A record that was torn when it was read: its owner may only have been writing it.
    async fn torn_record(self, ep: &Endpoint, number: u16) -> Result<Option<DirectoryEntry>> {
        for pause in [0, 1_000, 10_000, 100_000] {
            ep.sleep(pause).await;
            let bytes = ep.read(Partition::record(number), DIRECTORY_BYTES as u32).await?;
            if let Ok(p) = bytes.extract(|b| Partition::decode(b, number)) {
                return Ok(p.map(|partition| DirectoryEntry { partition, torn: false }));
            }
            if pause == 100_000 {
                let partition = bytes.extract(|b| Partition::remains(b, number));
                return Ok(Some(DirectoryEntry { partition, torn: true }));
            }
        }
        Ok(None)
    }

    async fn directory_at(self, ep: &Endpoint, number: u16) -> Result<Option<Partition>> {
        let bytes = ep.read(Partition::record(number), DIRECTORY_BYTES as u32).await?;
        Ok(bytes.extract(|b| Partition::decode(b, number)).ok().flatten())
    }

    /// Partitions that were never opened and have lost their first owner.
    pub(crate) fn unowned_partitions(self, opened: &[u16]) -> impl Iterator<Item = u16> {
        let (c, m) = (self.0.shape.compute_nodes, self.0.shape.founded.len() as u16);
        let state = self.0.view.state();
        let gone = move |p: &u16| {
            let first = Member { node: first_owner(*p, c, m), incarnation: 1 };
            state.phase(first).is_some_and(|s| s == MemberPhase::Gone)
        };
        (0..COMPUTE_PARTITIONS).filter(|p| !opened.contains(p)).filter(gone)
    }
}
