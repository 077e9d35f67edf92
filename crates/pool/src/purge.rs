//! The purge of dropped indexes: their memory becomes free.
//!
//! Memory belongs to its index until no node can access it for that index any more. Any compute
//! node may purge, between its operations ([`Catalog::purge_dropped`]):
//!
//! 1. It READs the chunk records, and then the catalog. The dropped indexes are those in state
//!    `Dropped`, and those that have chunks and are not listed: their creations were given up. The
//!    number of an index is registered before its first chunk is granted, and is never given again.
//! 2. Every member *closes the gate* of the index (`gates.rs`): no operation of it begins there.
//! 3. A barrier, as in `reclaim.rs`: every operation that ran then has ended, with its verbs.
//! 4. Every member *forgets* the index: free lists, fresh ranges, what waits on the limbo list,
//!    what is pending.
//! 5. A second barrier: pieces that were on their way between holders have arrived. (Such a
//!    transfer is announced, too.)
//! 6. If the members are still those of step 2, every memory node *purges*: it drops the deposits
//!    of the index, erases the records of its runs, heads first, and marks the chunks free.
//! 7. The slots of the catalog are freed. Only then do owners of tables free the partitions of the
//!    index (`owners.rs`), because it is not listed any more.
//!
//! *Claim.* No verb for the index executes at a chunk that was purged. The operations of members
//! have ended, and none begins. A node that has died executes no verb any more, since its death is
//! complete (the membership is settled). A node that joins after step 2 reads the catalog after the
//! drop, and an index that is opened from an older entry finds its gate closed, or is not found
//! when its opener reads the catalog again. Late calls of the chunk service (a return or deposit
//! with a lost answer) name the index, and the service compares it with that of the chunk.
//!
//! *What stays.* Runs of memory nodes' own services (`holder.rs`). An index that a member has
//! opened without a gate stays whole, with its slot, as long as that member has clients of it.
//!
//! Crashes. Every step may be repeated, also by another node at the same time: a closed gate stays
//! closed, and a memory node that has purged finds nothing more. A purge that is cut short leaves
//! chunks that the next one finds.

use std::collections::BTreeSet;
use std::sync::Weak;

use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, Member, NodeId, Result, Role, Service, ServiceId,
    ShadowState,
};
use serde::{Deserialize, Serialize};

use crate::catalog::Catalog;
use crate::catalog::{IndexEntry, IndexState, all_indexes};
use crate::chunks::ask_purge;
use crate::layout::{ChunkUse, EPOCH_WORD, first_node};
use crate::mutants::Mutant;
use crate::node::PoolNode;
use crate::obtain::Turn;
use crate::wire::{self, Half, LONGEST_CALL_NS, call_within, locked};

/// Purges, on every compute node.
pub(crate) const PURGE_SERVICE: ServiceId = ServiceId(0x14);
/// Longest wait for operations of other clients, ns.
const WAITS_NS: u64 = 2_000_000_000;

/// A call of the service, for an index.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Call {
    Close(Half),
    Forget(Half),
}

/// Dropped indexes.
struct Dropped {
    indexes: BTreeSet<u32>,
    /// Those that have a slot of the catalog.
    entries: Vec<IndexEntry>,
    /// With the bytes of each.
    runs: Vec<(u32, GlobalAddr, u64)>,
}

impl Catalog<'_> {
    /// Gives the chunks of indexes that the catalog does not list back to their memory nodes; how
    /// many chunks. Call it between operations: the caller's own running operation counts, too.
    ///
    /// # Errors
    /// `Busy` while a death or a move is under way, or a member has opened such an index without a
    /// gate; `TimedOut` when operations do not end; those of the fabric. What is left is found by
    /// the next purge.
    pub async fn purge_dropped(self, ep: &Endpoint) -> Result<u64> {
        let mut dropped = self.dropped(ep).await?;
        let mut freed = 0;
        if dropped.indexes.is_empty() {
            return Ok(freed);
        }
        if !self.0.membership().has_settled_membership() {
            return Err(Error::busy("a death or a move is under way"));
        }
        let members = self.0.collection().windows()?;
        // An index that cannot be purged does not keep the others.
        let mut trouble = Ok(());
        for index in std::mem::take(&mut dropped.indexes) {
            match self.tell_all(ep, &members, Call::Close(Half(index))).await {
                Ok(()) => _ = dropped.indexes.insert(index),
                Err(e) => trouble = Err(e),
            }
        }
        dropped.runs.retain(|(index, ..)| dropped.indexes.contains(index));
        dropped.entries.retain(|entry| dropped.indexes.contains(&entry.id));
        self.await_operations(ep).await?;
        for index in &dropped.indexes {
            self.tell_all(ep, &members, Call::Forget(Half(*index))).await?;
        }
        self.await_operations(ep).await?;
        if !self.0.membership().has_settled_membership()
            || self.0.collection().windows()? != members
        {
            return Err(Error::busy("a node has joined or died during a purge"));
        }
        for (_, at, bytes) in &dropped.runs {
            self.0.allocation_event(*at, *bytes, ShadowState::Freed);
        }
        for layout in self.0.shape.layouts() {
            for index in &dropped.indexes {
                ep.renew_deadline();
                match ask_purge(ep, layout.node, *index).await {
                    Ok(chunks) => freed += chunks,
                    Err(e) => trouble = Err(e),
                }
            }
        }
        if trouble.is_ok() {
            for entry in &dropped.entries {
                self.free_slot(ep, entry).await?;
            }
        }
        trouble.map(|()| freed)
    }

    /// Step 1.
    async fn dropped(self, ep: &Endpoint) -> Result<Dropped> {
        let mut runs = Vec::new();
        for layout in self.0.shape.layouts() {
            if self.0.view.check_presence(layout.node).is_err() {
                continue;
            }
            ep.renew_deadline();
            let records = self.0.chunk_records(ep, layout.node).await?;
            for (i, record) in records.iter().enumerate() {
                let of_index = |r: &crate::ChunkRecord| {
                    r.run > 0 && r.used_for != ChunkUse::Tables && r.owner.role() == Role::Compute
                };
                let Some(r) = record.filter(of_index) else { continue };
                let at = GlobalAddr::new(layout.node, layout.chunk(i as u32));
                runs.push((r.index, at, u64::from(r.run) * layout.chunk_bytes));
            }
        }
        let mut entries = all_indexes(ep).await?;
        let listed: BTreeSet<u32> = entries.iter().map(|entry| entry.id).collect();
        entries.retain(|entry| entry.state == IndexState::Dropped);
        let mut indexes: BTreeSet<u32> = entries.iter().map(|entry| entry.id).collect();
        runs.retain(|(index, ..)| indexes.contains(index) || !listed.contains(index));
        indexes.extend(runs.iter().map(|(index, ..)| *index));
        Ok(Dropped { indexes, entries, runs })
    }

    async fn tell_all(self, ep: &Endpoint, members: &[Member], call: Call) -> Result<()> {
        for m in members {
            ep.renew_deadline();
            let told = match m.node == self.0.cn {
                true => self.purge_step(call),
                false => tell(ep, m.node, call).await,
            };
            told.map_err(|e| e.context(format!("a purge asks {m}")))?;
        }
        Ok(())
    }

    /// Waits until every operation that runs now has ended.
    async fn await_operations(self, ep: &Endpoint) -> Result<()> {
        if self.0.has(Mutant::PurgeAtOnce) {
            return Ok(());
        }
        let stamp = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
        let until = ep.now().saturating_add(WAITS_NS);
        let mut pause = ep.backoff("operations that may use a dropped index", GlobalAddr::NULL);
        while self.0.reclaimer().oldest_running(ep, stamp).await? < stamp {
            if ep.now() >= until {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "operations have not ended for {} ms: a purge of dropped indexes is left to the next one",
                        WAITS_NS / 1_000_000
                    ),
                ));
            }
            ep.renew_deadline();
            pause.step().await?;
        }
        Ok(())
    }

    fn purge_step(self, call: Call) -> Result<()> {
        match call {
            Call::Close(Half(index)) => self.0.gates.close(index),
            Call::Forget(Half(index)) => self.forget_index(index),
        }
    }

    /// Forgets all memory of an index: no operation of it runs, and none begins.
    fn forget_index(self, index: u32) -> Result<()> {
        // A round of reclamation stamps items by their number.
        let _turn = Turn::try_acquire(&self.0.limbo_list.turn)
            .ok_or_else(|| Error::busy("a round of reclamation is under way"))?;
        drop(self.0.limbo_list.take_out(usize::MAX, |item| item.index() == index));
        locked(&self.0.arenas).retain(|key, _| key.index != index);
        locked(&self.0.blocks).remove(&index);
        self.0.tables.forget_index(index);
        self.0.gc_log.unpend_index(index);
        self.0.supply().found_room();
        Ok(())
    }
}

async fn tell(ep: &Endpoint, to: NodeId, call: Call) -> Result<()> {
    call_within(ep, LONGEST_CALL_NS, to, PURGE_SERVICE, &wire::encode(&call)).await.map(drop)
}

/// Answers purgers. Weak: a service that held its node would keep the node's fabric alive.
pub(crate) struct PurgeService(pub(crate) Weak<PoolNode>);

impl Service for PurgeService {
    async fn answer(&self, _: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let node = self.0.upgrade().ok_or_else(|| Error::invalid("the node is gone"))?;
        let mut rest = request;
        let call = wire::take_call("the purge of dropped indexes", &mut rest)?;
        wire::ends(rest)?;
        node.catalog().purge_step(call).map(|()| Vec::new())
    }
}
