//! Point writes: put, insert, update.
//!
//! Verbs in order: CAS lock and READ table (`lock.rs`); READ of the entries with the key's
//! fingerprint; for an update WRITE entry and unlock; for an insert WRITE entry and then WRITE
//! table, which unlocks; for an insert into a full leaf the split (`split.rs`). The linearization
//! point of an update is the WRITE of the entry, that of an insert the WRITE of the table.
//!
//! Invariants: under the lock the table's version equals the record's, so the leaf covers the key
//! and its table is exact. The value of a batch is fixed, and the batch closed, directly before the
//! value is copied into an image ([`seal`]).
//!
//! A crash between the CAS and the unlock leaves the leaf locked. An entry that was written without
//! its table is invisible to point operations, because no fingerprint names it.

use dmtree_fabric::{Error, OpOutcome, Result, Stage};
use dmtree_parts::combine::{LeaderGuard, Turn};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::op::{INSERTED, UPDATED, Written};
use dmtree_parts::{Outcome, Write};

use crate::client::FpTree;
use crate::entry::Entries;
use crate::entry::Found;
use crate::lock::LeafLocks;
use crate::lock::Locked;
use crate::split::Splits;

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c FpTree);

impl Writes<'_> {
    /// A write that may share its WRITE, or that of another writer.
    pub(crate) async fn write_shared(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let hash = KeyHash::of(key);
        let mut leader = None;
        if let Some(intent) = w.intent().filter(|_| self.0.node.o.combining) {
            let (writers, none) = (&self.0.node.writers, &mut Vec::new());
            match writers.turn(&self.0.ep, (key, hash), &intent, none, || ()).await? {
                Turn::Shared(shared) => return self.follow(hash, shared?.wrote()).await,
                Turn::Own(own) => leader = own,
            }
        }
        let written = self.write_alone(key, hash, w, &mut leader).await;
        if let Some(leader) = leader {
            let outcome = written.as_ref().map(|w| w.0).map_err(Clone::clone);
            leader.finish_write(&self.0.ep, outcome).await;
        }
        written
    }

    /// As published, followers continue one after another, each by the thread of the one before,
    /// and all threads poll the ticket that is served.
    async fn follow(&self, hash: KeyHash, outcome: Outcome) -> Result<Written> {
        let turn = self.0.node.releases.lock_polled(&self.0.ep, hash.0).await?;
        self.0.ep.stage_cost(Stage::LocalQueue, 1);
        self.0.ep.stage_cost(Stage::PolledLine, turn.threads_waiting() as u32);
        self.0.ep.sleep(0).await;
        drop(turn);
        Ok((outcome, OpOutcome::Shared))
    }

    async fn write_alone(
        &self,
        key: &[u8],
        hash: KeyHash,
        w: Write<'_>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        let l = LeafLocks(self.0).lock_leaf(key).await?;
        let mut value = self.0.value.take();
        value.clear();
        let written = self.write_locked(l, (key, hash), w, lease, &mut value).await;
        self.0.value.replace(value);
        written
    }

    async fn write_locked(
        &self,
        l: Locked,
        (key, hash): (&[u8], KeyHash),
        w: Write<'_>,
        lease: &mut Option<LeaderGuard>,
        value: &mut Vec<u8>,
    ) -> Result<Written> {
        let fp = hash.fingerprint();
        let found = Entries(self.0).find_entry(&l.route, l.table.slots(fp), key, value).await;
        let found = LeafLocks(self.0).under(&l.route, found).await?;
        if matches!(found, Found::Stale) {
            let e = format!("an entry of locked leaf {} has a wrong version", l.route.leaf);
            return LeafLocks(self.0).fail_at(&l.route, Error::corrupt(e)).await;
        }
        let old = matches!(found, Found::Hit(_)).then_some(&value[..]);
        if let Some(refused) = w.refused(old) {
            value.clear();
            seal(lease, value);
            LeafLocks(self.0).unlock(&l).await?;
            return Ok(refused);
        }
        value.clear();
        value.extend_from_slice(w.value().expect("only deletes have no value"));
        match found {
            Found::Hit(slot) => {
                seal(lease, value);
                let entry = Entries(self.0).entry_image(&l.route, key, value).await;
                let entry = LeafLocks(self.0).under(&l.route, entry).await?;
                LeafLocks(self.0)
                    .write_updated(&l.route, slot, entry)
                    .await
                    .map_err(Error::effect_unknown)?;
                Ok(UPDATED)
            }
            _ => match l.table.free_slot() {
                Some(slot) => self.insert_locked(l, slot, (key, fp), value, lease).await,
                // Boxed because it is rare and large.
                None => Box::pin(Splits(self.0).split(l, (key, fp), value, lease)).await,
            },
        }
    }

    async fn insert_locked(
        &self,
        l: Locked,
        slot: usize,
        (key, fp): (&[u8], u8),
        value: &mut Vec<u8>,
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        let Locked { route, mut table } = l;
        table.set(slot, fp);
        seal(lease, value);
        let entry = LeafLocks(self.0)
            .under(&route, Entries(self.0).entry_image(&route, key, value).await)
            .await?;
        let image =
            LeafLocks(self.0).under(&route, LeafLocks(self.0).table_image(&table).await).await?;
        let written = LeafLocks(self.0).write_inserted(&route, slot, entry, image).await;
        written.map_err(Error::effect_unknown)?;
        Ok(INSERTED)
    }
}

/// Closes the batch: the value to write becomes that of the last follower. Later writers form the
/// next batch.
pub(crate) fn seal(lease: &mut Option<LeaderGuard>, value: &mut Vec<u8>) {
    if let Some(lease) = lease {
        lease.close(value);
    }
}
