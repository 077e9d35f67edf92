//! Writes that outlive their owner: records of the log before an acknowledgement, edits of the
//! manifest before anything is freed because of them.
//!
//! Log and manifest have one writer at a time each, whichever client of the owner comes first; the
//! others look again until what they wait for is there. A client that fails, or is dropped, leaves
//! its step to the next one, which repeats it.

use dmtree_fabric::{Error, ErrorKind, Result, WaitReason};
use dmtree_parts::BatchWrite;
use dmtree_pool::{BLOCK_MAX_BYTES, BlockPtr};

use crate::client::Client;
use crate::key::Seq;
use crate::log::{Group, Origin, check_record, pairs, record_bytes};
use crate::manifest::{Roll, Step};
use crate::mutants::Mutant;
use crate::recorder::{Recorder, Taken};
use crate::shard::Shard;
use crate::write::Writes;

/// The longest pause of a client that waits for a step of another one, ns.
const LONGEST_NS: u64 = 50_000;

/// A step of the log or of the manifest; dropped before its end, it is in doubt.
struct Unfinished<F: Fn()>(Option<F>);

impl<F: Fn()> Drop for Unfinished<F> {
    fn drop(&mut self) {
        if let Some(in_doubt) = self.0.take() {
            in_doubt();
        }
    }
}

/// What a client does for writes that outlive their owner.
pub(crate) struct Durability<'c>(pub(crate) &'c Client);

impl Durability<'_> {
    /// Takes a write of several keys with one number, and logs it; it is visible once
    /// [`Durability::settle`] has returned.
    ///
    /// # Errors
    /// `Full`, without effect; `InvalidArgument` for more than a block of the log has; those of the
    /// fabric.
    pub(crate) async fn take(
        &self,
        (shard, recorder): (&Shard, &Recorder),
        batch: &[BatchWrite<'_>],
        origin: Option<Origin>,
    ) -> Result<Seq> {
        let pairs = pairs(batch)?;
        check_record(&pairs)?;
        self.0.ep.point().await;
        loop {
            match recorder.take(shard, (batch, &pairs), origin) {
                Taken::As(seq) => {
                    Writes(self.0).charge_put(batch.len() as u32);
                    return Ok(seq);
                }
                Taken::NoNumber => Writes(self.0).switch(shard).await?,
                Taken::NoBlock => {
                    Box::pin(self.grow_log((shard, recorder), record_bytes(&pairs))).await?;
                }
                Taken::Unnamed(edit) => Box::pin(self.keep((shard, recorder), edit)).await?,
            }
        }
    }

    /// Waits until all writes up to a number are logged and visible.
    ///
    /// # Errors
    /// Those of the fabric: the writes may be logged later.
    pub(crate) async fn settle(
        &self,
        (shard, recorder): (&Shard, &Recorder),
        seq: Seq,
    ) -> Result<()> {
        let what = "the log, for writes with lower numbers";
        let mut backoff = self.0.ep.backoff_within(what, recorder.head, LONGEST_NS);
        while shard.view().visible(&self.0.node.o) < seq {
            if let Some(group) = recorder.begin_group() {
                self.write_group(recorder, group).await.map_err(Error::effect_unknown)?;
                continue;
            }
            backoff.step().await?;
        }
        Ok(())
    }

    /// WRITEs a group.
    async fn write_group(&self, recorder: &Recorder, group: Group) -> Result<()> {
        let early = self.0.node.mutants.has(Mutant::AcknowledgeEarly);
        if early {
            recorder.end_group(&group, true);
        }
        let mut unfinished = Unfinished((!early).then_some(|| recorder.end_group(&group, false)));
        self.0.ep.write_bytes(group.at, &group.bytes).await?;
        if unfinished.0.take().is_some() {
            recorder.end_group(&group, true);
        }
        Ok(())
    }

    /// Gives the log another block, with room for a record of so many bytes at least; 0: ahead.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub(crate) async fn grow_log(&self, kept: (&Shard, &Recorder), bytes: usize) -> Result<()> {
        let (shard, recorder) = kept;
        let why = WaitReason { what: "another block of the log", at: 0 };
        shard.growth.acquire(&self.0.ep, why).await?;
        let _turn = Unfinished(Some(|| _ = shard.growth.release()));
        let edit = match recorder.room(bytes) {
            // Another client has given it one meanwhile.
            Some(edit) if bytes > 0 => edit,
            Some(_) if !recorder.wants_block() => return Ok(()),
            _ => {
                let bytes = self.0.node.o.log_bytes.max(bytes as u32);
                recorder.add_block(self.block(shard, bytes).await?)
            }
        };
        self.keep(kept, edit).await
    }

    async fn block(&self, shard: &Shard, bytes: u32) -> Result<BlockPtr> {
        self.0.node.take_block(&self.0.ep, bytes, shard.home).await
    }

    /// Waits until the manifest has an edit.
    ///
    /// # Errors
    /// `Full`; `Contended` when another take-over has changed the word; those of the fabric.
    pub(crate) async fn keep(
        &self,
        (shard, recorder): (&Shard, &Recorder),
        edit: u64,
    ) -> Result<()> {
        let mut backoff = self.0.ep.backoff_within("the manifest", recorder.head, LONGEST_NS);
        while recorder.durable() < edit {
            let Some(step) = recorder.begin_step()? else {
                backoff.step().await?;
                continue;
            };
            let mut unfinished = Unfinished(Some(|| recorder.step_in_doubt()));
            match step {
                Step::Append { at, bytes, upto } => {
                    self.0.ep.write_bytes(at, &bytes).await?;
                    unfinished.0.take();
                    recorder.appended(bytes.len(), upto);
                }
                Step::Roll(begun) => {
                    self.roll(shard, recorder, begun).await?;
                    unfinished.0.take();
                    recorder.rolled();
                }
            }
        }
        Ok(())
    }

    /// Writes a new segment of the manifest, and has the word of the range name it.
    async fn roll(&self, shard: &Shard, recorder: &Recorder, begun: Option<Roll>) -> Result<()> {
        let mut bytes = self.0.node.o.manifest_bytes;
        let roll = loop {
            if let Some(roll) = &begun {
                break roll.clone();
            }
            let place = self.block(shard, bytes).await?;
            match shard.new_segment(recorder, place, |client| self.0.node.is_gone(client))? {
                Ok(roll) => break roll,
                Err(needed) => {
                    self.0.node.give_back([place]);
                    if needed > BLOCK_MAX_BYTES as usize {
                        return Err(Error::full(format!(
                            "a shard's manifest of {needed} bytes is over a block: create the \
                             index with larger tables (table_bytes), or more shards"
                        )));
                    }
                    bytes = (2 * needed).min(BLOCK_MAX_BYTES as usize) as u32;
                }
            }
        };
        let word = recorder.head.plus(8);
        let (before, new) = (roll.before, roll.place.bits());
        if self.0.node.mutants.has(Mutant::SegmentEarly) {
            self.0.ep.cas(word, before, new).await?;
        }
        self.0.ep.write_bytes(roll.place.addr(), &roll.bytes).await?;
        let found = self.0.ep.cas(word, before, new).await?;
        match found == before || found == new {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Contended,
                "the manifest of a range was changed by another take-over: try again",
            )),
        }
    }

    /// Keeps what is due of a shard: records, edits, a block of the log ahead, blocks that go back.
    /// Whether there was anything.
    ///
    /// # Errors
    /// Those of the fabric; what is due stays due.
    pub(crate) async fn keep_up(&self, kept: (&Shard, &Recorder)) -> Result<bool> {
        let (_, recorder) = kept;
        // Records of writers that were dropped hold up the flush of their MemTable.
        if let Some(group) = recorder.begin_group() {
            self.write_group(recorder, group).await?;
            return Ok(true);
        }
        if recorder.wants_block() && self.0.node.o.log {
            self.grow_log(kept, 0).await?;
            return Ok(true);
        }
        let was_due = !recorder.is_kept();
        self.free(recorder);
        self.keep(kept, recorder.last_edit()).await?;
        self.free(recorder);
        Ok(was_due)
    }

    /// Gives back the blocks that an edit on the memory node has freed.
    pub(crate) fn free(&self, recorder: &Recorder) {
        self.0.node.give_back(recorder.freed());
    }
}
