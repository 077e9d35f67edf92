//! Writes of a key.
//!
//! A write is in the MemTable of its owner when it returns, and nowhere else; with a log, its
//! record is on a memory node (`durable.rs`). It holds a mutex of its key from before its number is
//! drawn, so that versions of a key have the order of their writes, and a conditional write sees
//! the one before. Whether a key is there follows from MemTables and indexes alone where an index
//! has a record for each entry.

use dmtree_fabric::{OpOutcome, Result, Stage, WaitReason};
use dmtree_parts::{BatchWrite, Outcome, Write};

use crate::bloom;
use crate::calls::{Answer, Asked, Calls, What, unexpected};
use crate::client::{Client, not_open};
use crate::durable::Durability;
use crate::key::Tag;
use crate::log::Origin;
use crate::memtable::Number;
use crate::read::{Reads, Wanted};
use crate::shard::{Shard, Switch};
use crate::turns::Held;
use crate::work::Background;

/// A pause of a writer that finds level 0 long, ns.
const SLOW_NS: u64 = 1_000_000;

/// A pause of a writer that waits for others to store their versions, ns.
pub(crate) const VISIBLE_NS: u64 = 100;

/// Writes of keys.
pub(crate) struct Writes<'c>(pub(crate) &'c Client);

impl Writes<'_> {
    /// Writes a key.
    pub(crate) async fn write_key(
        &self,
        user: &[u8],
        w: Write<'_>,
    ) -> Result<(Outcome, OpOutcome)> {
        self.0.ep.stage_cost(Stage::Operation, 1);
        let router = self.0.node.made(&self.0.ep).await?;
        if self.0.node.o.any_node {
            let what = What::Write { key: user, w };
            return match Calls(self.0).ask_owner(router, router.range(user), &what).await? {
                Asked::Here(shard, origin) => self.write_in(&shard, user, w, origin).await,
                Asked::There(Answer::Wrote(outcome)) => Ok((outcome, OpOutcome::Other)),
                Asked::There(_) => Err(unexpected()),
            };
        }
        let own = router.shard(user, &self.0.node.o, self.0.node.pool.cn())?;
        let shard = router.shards[own].get().ok_or_else(not_open)?;
        self.write_in(&shard, user, w, None).await
    }

    /// The same of a key of a shard of this node; with the name of the write, if another node has
    /// asked for it.
    pub(crate) async fn write_in(
        &self,
        shard: &Shard,
        user: &[u8],
        w: Write<'_>,
        origin: Option<Origin>,
    ) -> Result<(Outcome, OpOutcome)> {
        if self.was_taken(shard, origin).await? {
            return Ok((Outcome::Done, OpOutcome::Hit));
        }
        let turn = self.0.node.turns.take(&self.0.ep, [bloom::hash(user)]).await?;
        let mut old = Vec::new();
        let wanted = match w {
            Write::Put(_) => None,
            Write::CompareAndSet { .. } => Some(Wanted::Value),
            Write::Insert(_) | Write::Update(_) | Write::Delete => Some(Wanted::Presence),
        };
        let mut is_there = true;
        if let Some(wanted) = wanted {
            // The writer before has this key's turn no more, so its number is visible; or, with a
            // log, its version is there, and is waited for before it is told of.
            let view = shard.view();
            let newest =
                shard.recorder.as_ref().map_or(view.newest(&self.0.node.o), |_| Tag::NEWEST);
            is_there = Reads(self.0).find(&view, (user, newest), wanted, &mut old).await?;
            if let Some(refused) = w.refused(is_there.then_some(&old[..])) {
                drop(turn);
                if let Some(recorder) = &shard.recorder {
                    Durability(self.0).settle((shard, recorder), view.drawn()).await?;
                }
                Reads(self.0).may_answer(shard)?;
                return Ok(refused);
            }
        }
        self.store_all(shard, &[(user, w.value())], (turn, origin)).await?;
        let counted = if is_there { OpOutcome::Hit } else { OpOutcome::InsertPlain };
        Ok((Outcome::Done, counted))
    }

    /// Whether a write took effect before, at an owner that did not say so.
    pub(crate) async fn was_taken(&self, shard: &Shard, origin: Option<Origin>) -> Result<bool> {
        let (Some(recorder), Some(origin)) = (&shard.recorder, origin) else { return Ok(false) };
        let Some(seq) = recorder.taken(origin) else { return Ok(false) };
        Durability(self.0).settle((shard, recorder), seq).await.map(|()| true)
    }

    /// Stores versions of keys with one number, and waits until it is visible.
    pub(crate) async fn store_all(
        &self,
        shard: &Shard,
        batch: &[BatchWrite<'_>],
        (turn, origin): (Held<'_>, Option<Origin>),
    ) -> Result<()> {
        let Some(recorder) = &shard.recorder else { return self.store(shard, batch).await };
        let seq = Durability(self.0).take((shard, recorder), batch, origin).await?;
        // The next writer of the key joins the group.
        drop(turn);
        Durability(self.0).settle((shard, recorder), seq).await
    }

    /// Stores versions of keys with one number; `None` is a deletion.
    pub(crate) async fn store(&self, shard: &Shard, batch: &[BatchWrite<'_>]) -> Result<()> {
        let _queueing = match self.0.node.o.queue {
            true => {
                let why = WaitReason { what: "the queue of writers", at: 0 };
                self.0.ep.stage_cost(Stage::LocalQueue, 1);
                shard.queue.acquire(&self.0.ep, why).await?;
                Some(Turn(shard))
            }
            false => None,
        };
        loop {
            if let Some(number) = shard.draw() {
                self.charge_put(batch.len() as u32);
                self.0.ep.point().await;
                for (i, (user, value)) in batch.iter().enumerate() {
                    if i > 0 {
                        self.0.ep.point().await;
                    }
                    number.put(user, *value);
                }
                return self.visible(shard, number).await;
            }
            self.switch(shard).await?;
        }
    }

    /// Waits until a number is visible: until the writers with lower numbers have stored theirs.
    async fn visible(&self, shard: &Shard, number: Number) -> Result<()> {
        let (seq, o) = (number.seq(), &self.0.node.o);
        if o.defects.incomplete {
            return Ok(());
        }
        let table = number.table();
        drop(number);
        // As published a writer does not ask whether readers know of its MemTable.
        let visible = || match o.defects.early_switch {
            true => table.visible(),
            false => shard.view().visible(o),
        };
        while visible() < seq {
            self.0.ep.check_deadline("writes with lower numbers", seq)?;
            self.0.ep.sleep(VISIBLE_NS).await;
        }
        Ok(())
    }

    /// The cost of insertions, and of the lines that the threads of the shard share.
    pub(crate) fn charge_put(&self, entries: u32) {
        self.0.ep.stage_cost(Stage::MemTablePut, entries);
        let threads = match self.0.threads.get() {
            0 => self.0.node.writes(self.0.ep.thread()),
            known if !self.0.puts.get().is_multiple_of(1024) => known,
            _ => self.0.node.writes(self.0.ep.thread()),
        };
        self.0.threads.set(threads);
        self.0.puts.set(self.0.puts.get() + 1);
        let shards = self.0.node.router.get().map_or(1, |router| router.shards.len().max(1));
        let others = threads.div_ceil(shards as u32).saturating_sub(1);
        self.0.ep.stage_cost(Stage::SharedLine, others);
    }

    /// Gets the writers of a shard another MemTable.
    pub(crate) async fn switch(&self, shard: &Shard) -> Result<()> {
        match shard.switch() {
            Switch::Stalled => Box::pin(Background(self.0).wait_for_room(shard)).await,
            switched => {
                if self.0.node.o.defects.early_switch {
                    self.0.ep.point().await;
                    shard.catch_up();
                }
                self.0.node.signal.raise();
                match switched {
                    Switch::Slow => self.0.ep.sleep(SLOW_NS).await,
                    _ => self.0.ep.yield_now().await,
                }
                Ok(())
            }
        }
    }
}

/// A writer's turn in the queue of a shard.
struct Turn<'s>(&'s Shard);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.queue.release();
    }
}
