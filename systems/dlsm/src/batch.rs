//! Atomic batches: writes of keys of one shard, with one number and one record of the log.

use std::collections::BTreeMap;

use dmtree_fabric::{Error, Result};
use dmtree_parts::BatchWrite;

use crate::bloom;
use crate::calls::{Answer, Asked, Calls, What, unexpected};
use crate::client::not_open;
use crate::format::entry_bytes;
use crate::log::Origin;
use crate::shard::Shard;
use crate::write::Writes;

impl Writes<'_> {
    /// Writes several keys at one instant.
    ///
    /// # Errors
    /// `InvalidArgument` for keys of several shards, and for more bytes than a MemTable has.
    pub(crate) async fn write_batch_op(&self, batch: &[BatchWrite<'_>]) -> Result<()> {
        // Of writes of a key the last one counts.
        let mut last: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        batch.iter().for_each(|(key, value)| _ = last.insert(key, *value));
        let batch: Vec<BatchWrite<'_>> = last.into_iter().collect();
        let bytes: usize = batch.iter().map(|(k, v)| entry_bytes(k, v.unwrap_or_default())).sum();
        let most = self.0.node.o.memtable_bytes;
        if bytes as u64 > most {
            return Err(Error::invalid(format!(
                "a batch of {bytes} bytes is over memtable_bytes, which is {most}: divide it"
            )));
        }
        let Some((first, _)) = batch.first() else { return Ok(()) };
        let router = self.0.node.made(&self.0.ep).await?;
        let (o, me) = (&self.0.node.o, self.0.node.pool.cn());
        if o.any_node {
            // Its one shard has all keys.
            return match Calls(self.0).ask_owner(router, 0, &What::Batch(batch.clone())).await? {
                Asked::Here(shard, origin) => self.write_batch_in(&shard, &batch, origin).await,
                Asked::There(Answer::Done) => Ok(()),
                Asked::There(_) => Err(unexpected()),
            };
        }
        let own = router.shard(first, o, me)?;
        for (key, _) in &batch {
            if router.shard(key, o, me)? != own {
                return Err(Error::invalid("a batch has keys of several shards: divide it"));
            }
        }
        let shard = router.shards[own].get().ok_or_else(not_open)?;
        self.write_batch_in(&shard, &batch, None).await
    }

    /// The same in a shard of this node.
    pub(crate) async fn write_batch_in(
        &self,
        shard: &Shard,
        batch: &[BatchWrite<'_>],
        origin: Option<Origin>,
    ) -> Result<()> {
        if self.was_taken(shard, origin).await? {
            return Ok(());
        }
        let hashes = batch.iter().map(|(key, _)| bloom::hash(key));
        let turns = self.0.node.turns.take(&self.0.ep, hashes).await?;
        self.store_all(shard, batch, (turns, origin)).await
    }
}
