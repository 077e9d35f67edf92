//! Point reads.
//!
//! Order:
//! 1. The mirror of the leaf's table (or the table itself, if this node is its owner) names slots;
//!    the client READs their entries one by one. An entry of the record's version with the whole
//!    key is the answer, current when it was sampled.
//! 2. Otherwise READ table at its owner, and READ the entries that it names. Only the table at its
//!    owner proves an absence, at the time when the table was sampled.
//! 3. If the table or an entry has another version than the record, the client gets a fresh route,
//!    and repeats step 2.
//!
//! Invariant: (leaf, version) identifies one key range for ever, so a table and an entry of the
//! record's version belong to the leaf that covers the key.
//!
//! With delegation, readers of one key on a compute node share a READ; the leader closes its batch
//! before the first verb. A read changes nothing but the cache, so a crash leaves nothing behind.

use dmtree_fabric::{OpKind, OpOutcome, Result, Stage};
use dmtree_parts::combine::{Arrival, BatchResult, Intent, LeaderGuard};
use dmtree_parts::hash::KeyHash;

use crate::client::FpTree;
use crate::entry::Found;

impl FpTree {
    pub(crate) async fn get_op(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.check_key(key)?;
        let hash = KeyHash::of(key);
        let scope = self.ep.begin(OpKind::Get);
        self.retried.set(false);
        out.clear();
        let (found, outcome) = if self.node.o.delegation {
            self.get_shared(key, hash, out).await?
        } else {
            let found = self.get_alone(key, hash, out).await?;
            (found, self.outcome(if found { OpOutcome::Hit } else { OpOutcome::Absent }))
        };
        scope.end(outcome);
        Ok(found)
    }

    async fn get_shared(
        &self,
        key: &[u8],
        hash: KeyHash,
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let arrival = self.node.readers.arrive(key, hash, &Intent::Read);
        self.ep.point().await;
        let lease = match arrival {
            Arrival::Join(group) => {
                let shared = group.share(&self.ep, out).await?;
                let found = matches!(shared, BatchResult::Found(true));
                return Ok((found, OpOutcome::Shared));
            }
            Arrival::Lead(mut lease) => {
                lease.begin(&self.ep).await?;
                self.ep.point().await;
                lease.close(out);
                Some(lease)
            }
            Arrival::Alone => None,
        };
        let result = self.get_alone(key, hash, out).await;
        if let Some(lease) = lease {
            self.ep.point().await;
            finish_read(lease, &result, out);
        }
        let found = result?;
        Ok((found, self.outcome(if found { OpOutcome::Hit } else { OpOutcome::Absent })))
    }

    async fn get_alone(&self, key: &[u8], hash: KeyHash, out: &mut Vec<u8>) -> Result<bool> {
        let fp = hash.fingerprint();
        let mut stale = self.staleness();
        let (mut route, mirrored) = match self.cached_route(key, fp) {
            Some(found) => found,
            None => (self.missed_route(key).await?, None),
        };
        if let Some(slots) = mirrored {
            match self.find_entry(&route, slots, key, out).await? {
                Found::Hit(_) => return Ok(true),
                Found::None => {}
                Found::Stale => route = self.fresh_route(key, &route, &mut stale).await?,
            }
        }
        loop {
            let table = self.read_table(&route).await?;
            if table.version == u64::from(route.version) {
                self.fill_mirror(key, &route, &table);
                match self.find_entry(&route, table.slots(fp), key, out).await? {
                    Found::Hit(_) => return Ok(true),
                    Found::None => {
                        out.clear();
                        return Ok(false);
                    }
                    Found::Stale => {}
                }
            }
            route = self.fresh_route(key, &route, &mut stale).await?;
        }
    }
}

fn finish_read(lease: LeaderGuard, result: &Result<bool>, value: &[u8]) {
    let shared = match result {
        Ok(found) => Ok(BatchResult::Found(*found)),
        Err(e) => Err(e.clone()),
    };
    lease.finish(&shared, Some(value));
}
