//! A client: one fabric slot. Reads and writes of a key.
//!
//! A write is in the MemTable of its owner when it returns, and nowhere else; with a log, its
//! record is on a memory node (`durable.rs`). It holds a mutex of its key from before its number is
//! drawn, so that versions of a key have the order of their writes, and a conditional write sees
//! the one before. Whether a key is there follows from MemTables and indexes alone where an index
//! has a record for each entry.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dmtree_fabric::{Endpoint, Error, OpOutcome, Result, Stage, WaitReason};
use dmtree_parts::{BatchWrite, Outcome, SnapshotId, Write};

use crate::bloom;
use crate::fetch::{Fetch, InUse};
use crate::format::Format;
use crate::forward::{Answer, Asked, What, unexpected};
use crate::key::Tag;
use crate::log::Origin;
use crate::memtable::Number;
use crate::mutants::Mutant;
use crate::node::DlsmNode;
use crate::shard::{Shard, Switch, View};
use crate::table::{Found, Opened, Table};
use crate::turns::Held;

/// A pause of a writer that finds level 0 long, ns.
const SLOW_NS: u64 = 1_000_000;

/// A pause of a writer that waits for others to store their versions, ns.
pub(crate) const VISIBLE_NS: u64 = 100;

/// A client of the index. [`dmtree_parts::RangeIndex`] documents its operations.
pub struct Dlsm {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<DlsmNode>,
    /// How many threads of its node write, as far as it knows; 0 before its first write.
    threads: Cell<u32>,
    puts: Cell<u32>,
    /// Names it to other nodes, and so many operations of it were for them.
    pub(crate) session: u64,
    pub(crate) operations: Cell<u64>,
}

/// Clients of this process.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

impl std::fmt::Debug for Dlsm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dlsm({:?})", self.ep)
    }
}

/// How much a read wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Whether the key is there.
    Presence,
    /// Its value, too.
    Value,
}

impl Dlsm {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<DlsmNode>) -> Self {
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        let number = u64::from(CLIENTS.fetch_add(1, Ordering::Relaxed));
        let session = node.me >> 32 << 32 | number;
        let (threads, puts, operations) = Default::default();
        Self { ep, node, threads, puts, session, operations }
    }

    /// The shard of a key; `None` while there is none.
    async fn shard_of(&self, user: &[u8]) -> Result<Option<Arc<Shard>>> {
        let node = &self.node;
        let Some(router) = node.opened(&self.ep).await? else { return Ok(None) };
        let own = router.shard(user, &node.o, node.pool.cn())?;
        Ok(router.shards[own].get())
    }

    /// Reads a key. Returns whether it is there; its value is in `out` then.
    pub(crate) async fn read(&self, user: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.ep.stage_cost(Stage::Operation, 1);
        out.clear();
        if self.node.o.any_node {
            let Some(router) = self.node.opened(&self.ep).await? else { return Ok(false) };
            let what = What::Get { key: user };
            return match self.ask_owner(router, router.range(user), &what).await? {
                Asked::Here(shard, _) => self.read_in(&shard, user, out).await,
                Asked::There(Answer::Value(value)) => {
                    out.extend_from_slice(value.as_deref().unwrap_or_default());
                    Ok(value.is_some())
                }
                Asked::There(_) => Err(unexpected()),
            };
        }
        let Some(shard) = self.shard_of(user).await? else { return Ok(false) };
        self.read_in(&shard, user, out).await
    }

    /// The same of a key of a shard of this node.
    pub(crate) async fn read_in(
        &self,
        shard: &Shard,
        user: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let view = shard.view();
        let newest = match self.node.mutants.has(Mutant::ReadUnlogged) {
            true => Tag::NEWEST,
            false => view.newest(&self.node.o),
        };
        let found = self.find(&view, (user, newest), Wanted::Value, out).await?;
        if !found {
            out.clear();
        }
        self.may_answer(shard)?;
        Ok(found)
    }

    /// Fails when this node may be fenced: another one may have taken the shard over.
    pub(crate) fn may_answer(&self, shard: &Shard) -> Result<()> {
        match shard.recorder.is_some() && !self.node.mutants.has(Mutant::NoLease) {
            true => self.node.pool.check_lease_untouched(&self.ep),
            false => Ok(()),
        }
    }

    /// Whether the newest version of a key up to a tag is a value.
    async fn find(
        &self,
        view: &View,
        (user, newest): (&[u8], Tag),
        wanted: Wanted,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        for table in [&view.active].into_iter().chain(&view.immutables) {
            self.ep.stage_cost(Stage::MemTableProbe, 1);
            if let Some(tag) = table.get(user, newest, out) {
                return Ok(tag.is_value());
            }
        }
        let hash = bloom::hash(user);
        for table in view.version.candidates(user) {
            self.ep.stage_cost(Stage::TableProbe, 1);
            if !table.may_have(hash) {
                continue;
            }
            self.ep.stage_cost(Stage::TableProbe, 1);
            let table = self.opened(table, (user, newest)).await?;
            let found = match table.find(user, newest) {
                Found::Nothing => None,
                Found::Version(tag, unit) => {
                    let needs_value =
                        wanted == Wanted::Value && (tag.is_value() || self.node.o.reads_deletions);
                    if needs_value {
                        self.unit(&table, unit..unit + 1, (user, newest), out).await?;
                    }
                    Some(tag)
                }
                Found::Somewhere(units) => self.unit(&table, units, (user, newest), out).await?,
            };
            if let Some(tag) = found {
                return Ok(tag.is_value());
            }
        }
        Ok(false)
    }

    /// A table with the records around a key: its index, or a page of it, which is READ.
    async fn opened(&self, table: &Arc<Table>, version: (&[u8], Tag)) -> Result<Opened> {
        let node = &self.node;
        if let Some(index) = table.index() {
            node.lookups.count_hit();
            return Ok(Opened { table: table.clone(), index });
        }
        node.lookups.count_miss();
        let _in_use = InUse(&self.ep, table);
        let (index, is_worth_it) = table.page(&node.remote(&self.ep), version).await?;
        if is_worth_it {
            node.indexes.want(table);
            node.signal.raise();
        }
        Ok(Opened { table: table.clone(), index })
    }

    /// READs units of a table, and finds a version there.
    async fn unit(
        &self,
        table: &Opened,
        units: std::ops::Range<usize>,
        (user, newest): (&[u8], Tag),
        out: &mut Vec<u8>,
    ) -> Result<Option<Tag>> {
        let places: Vec<_> = units.clone().map(|unit| table.unit(unit)).collect();
        let _in_use = InUse(&self.ep, &table.table);
        let read = self.node.remote(&self.ep).fetch(&places).await?;
        let (mut found, mut passed): (Option<Tag>, u32) = (None, 0);
        for (unit, bytes) in units.zip(&read) {
            table.decode(unit..unit + 1, bytes, &mut |its, tag, value| {
                passed += 1;
                if found.is_none() && its == user && tag <= newest {
                    found = Some(tag);
                    out.clear();
                    out.extend_from_slice(value);
                }
            })?;
        }
        if let Format::Blocks(_) = table.table.meta.format {
            self.ep.stage_cost(Stage::IterEntry, passed);
        }
        Ok(found)
    }

    /// Writes a key.
    pub(crate) async fn write_key(
        &self,
        user: &[u8],
        w: Write<'_>,
    ) -> Result<(Outcome, OpOutcome)> {
        self.ep.stage_cost(Stage::Operation, 1);
        let router = self.node.made(&self.ep).await?;
        if self.node.o.any_node {
            let what = What::Write { key: user, w };
            return match self.ask_owner(router, router.range(user), &what).await? {
                Asked::Here(shard, origin) => self.write_in(&shard, user, w, origin).await,
                Asked::There(Answer::Wrote(outcome)) => Ok((outcome, OpOutcome::Other)),
                Asked::There(_) => Err(unexpected()),
            };
        }
        let own = router.shard(user, &self.node.o, self.node.pool.cn())?;
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
        let turn = self.node.turns.take(&self.ep, [bloom::hash(user)]).await?;
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
            let newest = shard.recorder.as_ref().map_or(view.newest(&self.node.o), |_| Tag::NEWEST);
            is_there = self.find(&view, (user, newest), wanted, &mut old).await?;
            if let Some(refused) = w.refused(is_there.then_some(&old[..])) {
                drop(turn);
                if let Some(recorder) = &shard.recorder {
                    self.settle((shard, recorder), view.drawn()).await?;
                }
                self.may_answer(shard)?;
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
        self.settle((shard, recorder), seq).await.map(|()| true)
    }

    /// Stores versions of keys with one number, and waits until it is visible.
    pub(crate) async fn store_all(
        &self,
        shard: &Shard,
        batch: &[BatchWrite<'_>],
        (turn, origin): (Held<'_>, Option<Origin>),
    ) -> Result<()> {
        let Some(recorder) = &shard.recorder else { return self.store(shard, batch).await };
        let seq = self.take((shard, recorder), batch, origin).await?;
        // The next writer of the key joins the group.
        drop(turn);
        self.settle((shard, recorder), seq).await
    }

    /// Stores versions of keys with one number; `None` is a deletion.
    pub(crate) async fn store(&self, shard: &Shard, batch: &[BatchWrite<'_>]) -> Result<()> {
        let _queueing = match self.node.o.queue {
            true => {
                let why = WaitReason { what: "the queue of writers", at: 0 };
                self.ep.stage_cost(Stage::LocalQueue, 1);
                shard.queue.acquire(&self.ep, why).await?;
                Some(Turn(shard))
            }
            false => None,
        };
        loop {
            if let Some(number) = shard.draw() {
                self.charge_put(batch.len() as u32);
                self.ep.point().await;
                for (i, (user, value)) in batch.iter().enumerate() {
                    if i > 0 {
                        self.ep.point().await;
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
        let (seq, o) = (number.seq(), &self.node.o);
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
            self.ep.check_deadline("writes with lower numbers", seq)?;
            self.ep.sleep(VISIBLE_NS).await;
        }
        Ok(())
    }

    /// The cost of insertions, and of the lines that the threads of the shard share.
    pub(crate) fn charge_put(&self, entries: u32) {
        self.ep.stage_cost(Stage::MemTablePut, entries);
        let threads = match self.threads.get() {
            0 => self.node.writes(self.ep.thread()),
            known if !self.puts.get().is_multiple_of(1024) => known,
            _ => self.node.writes(self.ep.thread()),
        };
        self.threads.set(threads);
        self.puts.set(self.puts.get() + 1);
        let shards = self.node.router.get().map_or(1, |router| router.shards.len().max(1));
        let others = threads.div_ceil(shards as u32).saturating_sub(1);
        self.ep.stage_cost(Stage::SharedLine, others);
    }

    /// Reads a key at a snapshot.
    pub(crate) async fn read_at(
        &self,
        s: SnapshotId,
        user: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let number = self.node.snapshots.note(s)?;
        out.clear();
        let Some(shard) = self.shard_of(user).await? else { return Ok(false) };
        let newest = (user, Tag::up_to(number));
        let found = self.find(&shard.view(), newest, Wanted::Value, out).await?;
        if !found {
            out.clear();
        }
        Ok(found)
    }

    /// Gets the writers of a shard another MemTable.
    pub(crate) async fn switch(&self, shard: &Shard) -> Result<()> {
        match shard.switch() {
            Switch::Stalled => Box::pin(self.wait_for_room(shard)).await,
            switched => {
                if self.node.o.defects.early_switch {
                    self.ep.point().await;
                    shard.catch_up();
                }
                self.node.signal.raise();
                match switched {
                    Switch::Slow => self.ep.sleep(SLOW_NS).await,
                    _ => self.ep.yield_now().await,
                }
                Ok(())
            }
        }
    }
}

/// A shard that its node has not opened.
#[cold]
pub(crate) fn not_open() -> Error {
    Error::closed("the shard of a key is not open")
}

/// A writer's turn in the queue of a shard.
struct Turn<'s>(&'s Shard);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.queue.release();
    }
}
