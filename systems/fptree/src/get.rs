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

use dmtree_fabric::{OpOutcome, Result};
use dmtree_parts::combine::{Intent, Turn};
use dmtree_parts::hash::KeyHash;

use crate::client::FpTree;
use crate::entry::Entries;
use crate::entry::Found;
use crate::lock::LeafLocks;
use crate::route::Routes;

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c FpTree);

impl Reads<'_> {
    /// A read that may share its READ, or that of another reader.
    pub(crate) async fn get_shared(
        &self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        let hash = KeyHash::of(key);
        let mut leader = None;
        if self.0.node.o.delegation {
            let readers = &self.0.node.readers;
            match readers.turn(&self.0.ep, (key, hash), &Intent::Read, out, || ()).await? {
                Turn::Shared(shared) => return Ok((shared?.found(), OpOutcome::Shared)),
                Turn::Own(own) => leader = own,
            }
        }
        if let Some(leader) = &mut leader {
            self.0.ep.point().await;
            leader.close(out);
        }
        let found = self.get_alone(key, hash, out).await;
        if let Some(leader) = leader {
            leader.finish_read(&self.0.ep, found.clone(), out).await;
        }
        found.map(|found| self.0.read_by_itself(found))
    }

    async fn get_alone(&self, key: &[u8], hash: KeyHash, out: &mut Vec<u8>) -> Result<bool> {
        let fp = hash.fingerprint();
        let mut stale = Routes(self.0).staleness();
        let (mut route, mirrored) = match Routes(self.0).cached_route(key, fp) {
            Some(found) => found,
            None => (Routes(self.0).missed_route(key).await?, None),
        };
        if let Some(slots) = mirrored {
            match Entries(self.0).find_entry(&route, slots, key, out).await? {
                Found::Hit(_) => return Ok(true),
                Found::None => {}
                Found::Stale => route = Routes(self.0).fresh_route(key, &route, &mut stale).await?,
            }
        }
        loop {
            let table = LeafLocks(self.0).read_table(&route).await?;
            if table.version == u64::from(route.version) {
                Routes(self.0).fill_mirror(key, &route, &table);
                match Entries(self.0).find_entry(&route, table.slots(fp), key, out).await? {
                    Found::Hit(_) => return Ok(true),
                    Found::None => {
                        out.clear();
                        return Ok(false);
                    }
                    Found::Stale => {}
                }
            }
            route = Routes(self.0).fresh_route(key, &route, &mut stale).await?;
        }
    }
}
