//! New homes for table partitions: of a dead node, of one that leaves, for one that joins.
//!
//! One claimant at a time does this, after everybody has stopped using the partitions. A new home takes zeroed segments for all
//! cells that were granted and writes the directory record; tables are built again from the leaves by whoever needs them. So
//! nothing of the old home is read, and every step may be repeated: a partition that has a living home is left alone.

use std::collections::BTreeMap;

use dmtree_fabric::{Endpoint, ErrorKind, Member, Move, NodeId, Result, Role};

use crate::catalog::live_indexes;
use crate::ids::PARTITIONS;
use crate::layout::{DIRECTORY, DIRECTORY_BYTES, Partition, first_node};
use crate::membership_agent::not_now;
use crate::node::PoolNode;
use crate::owners::{ask_adopt, ask_release, ask_settle};
use crate::shares::{UNOPENED_SHARE, is_over};

/// Partitions of one READ of the directory.
const STEP: u16 = 64;

/// A directory record, as far as it can be read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) partition: Partition,
    pub(crate) torn: bool,
}

impl PoolNode {
    /// Gives new homes to the partitions of a dead node.
    pub(crate) async fn reassign(&self, ep: &Endpoint, dead: Member) -> Result<()> {
        self.settle_owners(ep).await?;
        let gone = |owner: Member| owner == dead;
        let seen = self.directory(ep).await?;
        // Behind the directory: what it names and the catalog does not was dropped.
        let indexes = live_indexes(ep).await?;
        let mut load = self.load(&seen);
        for s in seen.iter().filter(|s| gone(s.partition.owner)) {
            let p = s.partition.clone().emptied_unless(&indexes);
            self.give_owner(ep, &p, None, &mut load).await?;
        }
        let stuck = seen.iter().find(|s| s.torn && !gone(s.partition.owner));
        match stuck {
            // Its home is at work on it, or is dying.
            Some(s) => Err(not_now(format!("{} writes its directory record", s.partition.owner))),
            None => Ok(()),
        }
    }

    /// Carries out a planned move.
    pub(crate) async fn carry_out(&self, ep: &Endpoint, p: &Move) -> Result<()> {
        self.settle_owners(ep).await?;
        let seen = self.directory(ep).await?;
        let indexes = live_indexes(ep).await?;
        let mut load = self.load(&seen);
        let to = p.to.filter(|to| self.living().contains(to));
        for number in &p.partitions {
            let found = seen.iter().find(|s| s.partition.number == *number);
            let fresh = Seen { partition: Partition::new(*number, self.view.me), torn: false };
            let s = found.cloned().unwrap_or(fresh);
            let owner = s.partition.owner;
            let lives = self.living().contains(&owner);
            let answers = lives || owner.node.role() == Role::Memory;
            // A home that has died meanwhile is the business of its death.
            let dies = !answers && !is_over(&self.view.state(), owner);
            if found.is_some() && (dies || Some(owner) == to) {
                continue;
            }
            if found.is_some() && answers {
                match ask_release(ep, self.call_ns(), owner.node, &[*number]).await {
                    // What a lost memory node served stays there.
                    Err(e) if !lives && e.kind() == ErrorKind::Unreachable => continue,
                    released => released?,
                }
                if lives {
                    *load.entry(owner).or_default() += usize::from(PARTITIONS);
                }
            }
            let again = self.directory_at(ep, *number).await?;
            let partition = match again {
                Some(again) if again.index == s.partition.index => {
                    let lines = again.lines.max(s.partition.lines);
                    Partition { lines, ..s.partition }.emptied_unless(&indexes)
                }
                // Its home has used it for another index meanwhile.
                Some(again) => again,
                None => s.partition,
            };
            self.give_owner(ep, &partition, to, &mut load).await?;
        }
        Ok(())
    }

    /// Asks for this node's share of the partitions.
    ///
    /// # Errors
    /// Those of the fabric; `Fenced`. While another move is under way nothing happens: true when there is nothing to ask for.
    pub async fn take_share(&self, ep: &Endpoint) -> Result<bool> {
        let seen = self.directory(ep).await?;
        let living = self.living();
        let mut owners: BTreeMap<Member, Vec<u16>> =
            living.iter().map(|m| (*m, Vec::new())).collect();
        for s in &seen {
            if let Some(of) = owners.get_mut(&s.partition.owner) {
                of.push(s.partition.number);
            }
        }
        let all: usize = owners.values().map(Vec::len).sum();
        let share = all / living.len().max(1);
        let mut mine = owners.remove(&self.view.me).map_or(0, |m| m.len());
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
            wanted.extend(self.abandoned_locks(&opened).take(UNOPENED_SHARE));
        }
        if wanted.is_empty() {
            return Ok(true);
        }
        self.plan(ep, wanted, Some(self.view.me)).await?;
        Ok(false)
    }

    /// Asks that others become the homes of this node's partitions; true when it has none.
    ///
    /// # Errors
    /// As [`PoolNode::take_share`].
    pub async fn hand_over(&self, ep: &Endpoint) -> Result<bool> {
        let seen = self.directory(ep).await?;
        let mine = seen.iter().filter(|s| s.partition.owner == self.view.me);
        let mine: Vec<u16> = mine.map(|s| s.partition.number).collect();
        if mine.is_empty() {
            return Ok(true);
        }
        self.plan(ep, mine, None).await?;
        Ok(false)
    }

    /// Returns when no home is in the middle of something that a former claimant has asked for.
    async fn settle_owners(&self, ep: &Endpoint) -> Result<()> {
        for owner in self.living() {
            self.renew(ep).await?;
            ask_settle(ep, self.call_ns(), owner.node).await?;
        }
        Ok(())
    }

    /// Partitions per living home.
    fn load(&self, seen: &[Seen]) -> BTreeMap<Member, usize> {
        let mut load: BTreeMap<Member, usize> = self.living().into_iter().map(|m| (m, 0)).collect();
        for s in seen {
            if let Some(n) = load.get_mut(&s.partition.owner) {
                *n += 1;
            }
        }
        load
    }

    /// Finds a home for a partition: the one wanted, else the living node with the fewest that has room, else a memory node.
    async fn give_owner(
        &self,
        ep: &Endpoint,
        p: &Partition,
        to: Option<Member>,
        load: &mut BTreeMap<Member, usize>,
    ) -> Result<()> {
        self.renew(ep).await?;
        ep.renew_deadline();
        let mut order: Vec<(usize, Member)> = load.iter().map(|(m, n)| (*n, *m)).collect();
        order.sort();
        let compute = to.into_iter().chain(order.into_iter().map(|(_, m)| m));
        for owner in compute {
            self.renew(ep).await?;
            if ask_adopt(ep, self.call_ns(), owner.node, p).await? {
                *load.entry(owner).or_default() += 1;
                return Ok(());
            }
        }
        let memory = self.shape.memory.iter().map(|l| l.node);
        let mut memory: Vec<NodeId> =
            memory.filter(|n| self.view.check_presence(*n).is_ok()).collect();
        // The memory node that serves it already comes first: it has the memory.
        memory.sort_by_key(|m| *m != p.owner.node);
        for owner in memory {
            if ask_adopt(ep, self.call_ns(), owner, p).await? {
                return Ok(());
            }
        }
        Err(dmtree_fabric::Error::new(
            ErrorKind::Full,
            format!(
                "no node has room for the tables of partition {} ({} lines): add a compute node",
                p.number, p.lines
            ),
        ))
    }

    /// All records that somebody has written.
    async fn directory(&self, ep: &Endpoint) -> Result<Vec<Seen>> {
        self.read_directory(ep, true).await
    }

    /// The same for somebody who keeps no lease, unless `keeps`.
    pub(crate) async fn read_directory(&self, ep: &Endpoint, keeps: bool) -> Result<Vec<Seen>> {
        let mut out = Vec::new();
        for first in (0..PARTITIONS).step_by(usize::from(STEP)) {
            if keeps {
                self.renew(ep).await?;
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
                    Ok(Some(partition)) => out.push(Seen { partition, torn: false }),
                    Ok(None) => {}
                    Err(_) => out.extend(self.torn_record(ep, number).await?),
                }
            }
        }
        Ok(out)
    }

    /// A record that was torn when it was read: its home may only have been writing it.
    async fn torn_record(&self, ep: &Endpoint, number: u16) -> Result<Option<Seen>> {
        for pause in [0, 1_000, 10_000, 100_000] {
            ep.sleep(pause).await;
            let bytes = ep.read(Partition::record(number), DIRECTORY_BYTES as u32).await?;
            if let Ok(p) = bytes.extract(|b| Partition::decode(b, number)) {
                return Ok(p.map(|partition| Seen { partition, torn: false }));
            }
            if pause == 100_000 {
                let partition = bytes.extract(|b| Partition::remains(b, number));
                return Ok(Some(Seen { partition, torn: true }));
            }
        }
        Ok(None)
    }

    async fn directory_at(&self, ep: &Endpoint, number: u16) -> Result<Option<Partition>> {
        let bytes = ep.read(Partition::record(number), DIRECTORY_BYTES as u32).await?;
        Ok(bytes.extract(|b| Partition::decode(b, number)).ok().flatten())
    }
}
