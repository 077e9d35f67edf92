//! A shard: a tree of its own, in the memory of its owner.
//!
//! What readers see is a [`View`]: the active MemTable, those that wait for their flush, and the
//! tables. It is replaced whole, under the lock of [`State`]; a reader only copies the pointer. A
//! view is in place before writers use a MemTable that it names, so that a write that was
//! acknowledged is in every later view. The last holder of a table frees it: counts say when, so
//! that runs of a simulator repeat.
//!
//! Flushes may end in any order. They enter level 0 in the order of their MemTables: of those that
//! wait, the oldest ones leave, as long as they are flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{NodeId, Result};
use dmtree_parts::SnapshotTable;
use dmtree_pool::BlockPtr;

use crate::key::{Seq, Tag};
use crate::manifest::{Roll, name_of};
use crate::memtable::{MemTable, Number, Room};
use crate::options::Options;
use crate::recorder::Recorder;
use crate::table::Table;
use crate::version::{LEVELS, Pick, Version};

/// What a reader sees.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) active: Arc<MemTable>,
    /// MemTables that wait for their flush, newest first.
    pub(crate) immutables: Vec<Arc<MemTable>>,
    pub(crate) version: Arc<Version>,
}

impl View {
    /// The number up to which all numbers are complete: what a reader of this view sees. A write
    /// returns when its number is visible, so the order of numbers is that of effects.
    pub(crate) fn visible(&self, o: &Options) -> Seq {
        if o.defects.incomplete {
            return self.drawn();
        }
        let unfinished = self.immutables.iter().rev().find(|table| !table.is_complete());
        unfinished.unwrap_or(&self.active).visible()
    }

    /// The last number that was drawn.
    pub(crate) fn drawn(&self) -> Seq {
        self.active.first + self.active.assigned() - 1
    }

    /// The number of a snapshot of now.
    pub(crate) fn snapshot(&self, o: &Options) -> Seq {
        self.visible(o) + u64::from(o.defects.next_number)
    }

    /// The tag with which a read finds the newest version that it may see.
    pub(crate) fn newest(&self, o: &Options) -> Tag {
        if o.defects.incomplete { Tag::NEWEST } else { Tag::up_to(self.visible(o)) }
    }
}

/// What is behind the lock of a shard.
#[derive(Debug, Default)]
struct State {
    /// By the first number of their MemTable: flushes that run, and those that have ended, with
    /// their table if there is one.
    flushing: BTreeSet<Seq>,
    flushed: BTreeMap<Seq, Option<Arc<Table>>>,
    /// Tables that a compaction reads.
    busy: BTreeSet<u64>,
    /// Where the next compaction of each level goes on.
    from: [Vec<u8>; LEVELS],
    tables: u64,
}

/// The open snapshots of a compute node, by the number of each.
pub(crate) type Snapshots = SnapshotTable<Seq>;

/// A shard.
#[derive(Debug)]
pub(crate) struct Shard {
    /// The memory node that its tables are near.
    pub(crate) home: NodeId,
    o: Arc<Options>,
    room: Arc<Room>,
    view: Mutex<Arc<View>>,
    /// The MemTable that writers use, as published: it may be no part of the view yet.
    early: Mutex<Arc<MemTable>>,
    state: Mutex<State>,
    snapshots: Arc<Snapshots>,
    /// What is kept of it on memory nodes, if anything is.
    pub(crate) recorder: Option<Recorder>,
    /// The client that gives the log another block.
    pub(crate) growth: FifoMutex,
    /// Writers, where they queue.
    pub(crate) queue: FifoMutex,
    /// The last flush or compaction has found no memory; before this time none tries again. 0: it
    /// has found some.
    full_until: AtomicU64,
}

/// Why a writer cannot have another MemTable now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// It can: try again.
    Done,
    /// The same, after a pause: level 0 is long.
    Slow,
    /// MemTables wait for their flush, level 0 is too long, or other shards have all the room.
    Stalled,
}

/// A MemTable that a client flushes; dropped before the end, another one may.
pub(crate) struct Flush<'s> {
    shard: &'s Shard,
    pub(crate) table: Arc<MemTable>,
    pub(crate) oldest: Seq,
}

/// Tables that a client merges; dropped before the end, another one may.
pub(crate) struct Compaction<'s> {
    shard: &'s Shard,
    pub(crate) pick: Pick,
    pub(crate) oldest: Seq,
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        locked(&self.shard.state).flushing.remove(&self.table.first);
    }
}

impl Drop for Compaction<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.shard.state);
        self.pick.inputs().for_each(|table| _ = state.busy.remove(&table.number));
    }
}

impl Shard {
    /// With numbers up to `last` in tables, or in what a log had: a MemTable that waits for its
    /// flush.
    pub(crate) fn new(
        (o, room): (&Arc<Options>, &Arc<Room>),
        home: NodeId,
        (version, logged, last): (Version, Option<Arc<MemTable>>, Seq),
        snapshots: &Arc<Snapshots>,
        recorder: Option<Recorder>,
    ) -> Self {
        let tables = version.tables().map(|table| table.number).max().unwrap_or(0);
        let active = MemTable::new(last + 1, (o.memtable_entries, o.memtable_bytes), room);
        let immutables = logged.into_iter().collect();
        let view = View { active: active.clone(), immutables, version: version.into() };
        Self {
            recorder,
            home,
            o: o.clone(),
            room: room.clone(),
            view: Mutex::new(view.into()),
            early: Mutex::new(active),
            state: Mutex::new(State { tables, ..State::default() }),
            snapshots: snapshots.clone(),
            growth: FifoMutex::new(),
            queue: FifoMutex::new(),
            full_until: AtomicU64::new(0),
        }
    }

    /// What a reader sees now.
    pub(crate) fn view(&self) -> Arc<View> {
        locked(&self.view).clone()
    }

    /// Whether nothing reads its tables; the caller alone has the shard.
    pub(crate) fn is_unread(&self) -> bool {
        let version = &self.view().version;
        let alone = |table: &Arc<Table>| Arc::strong_count(table) == 1;
        Arc::strong_count(version) == 1 && version.tables().all(alone)
    }

    fn early(&self) -> Arc<MemTable> {
        locked(&self.early).clone()
    }

    fn install(&self, view: View) {
        // The view before may be the last holder of tables: they go outside of the lock.
        let before = std::mem::replace(&mut *locked(&self.view), view.into());
        drop(before);
    }

    /// Draws a number for a write; `None` when the active MemTable takes none.
    pub(crate) fn draw(&self) -> Option<Number> {
        match self.o.defects.early_switch {
            true => self.early().draw(),
            false => self.view().active.draw(),
        }
    }

    /// Makes another MemTable the active one, if the present one takes no more numbers.
    pub(crate) fn switch(&self) -> Switch {
        let state = locked(&self.state);
        let view = self.view();
        let flushed = view.version.levels[0].len();
        if self.room.is_full() && self.early().assigned() == 0 {
            return Switch::Stalled;
        }
        if self.is_fresh(&view.active) {
            return Switch::Done;
        }
        if view.immutables.len() >= self.o.immutables as usize
            || flushed >= self.o.level0_stop as usize
        {
            return Switch::Stalled;
        }
        let next = self.replace_active(&view);
        if !self.o.defects.early_switch {
            self.install_active(&view, next);
        }
        drop(state);
        if flushed >= self.o.level0_slow as usize { Switch::Slow } else { Switch::Done }
    }

    /// Whether a MemTable takes numbers: another writer has switched.
    fn is_fresh(&self, active: &MemTable) -> bool {
        let early = self.early();
        let is_latest = early.first == active.first;
        let full = active.assigned() >= self.o.memtable_entries
            || active.bytes() >= self.o.memtable_bytes
            || self.room.is_full();
        !(is_latest && full)
    }

    fn replace_active(&self, view: &View) -> Arc<MemTable> {
        let o = &self.o;
        let of = (o.memtable_entries, o.memtable_bytes);
        let next = MemTable::new(view.active.seal(), of, &self.room);
        *locked(&self.early) = next.clone();
        next
    }

    fn install_active(&self, view: &View, next: Arc<MemTable>) {
        let mut immutables = vec![view.active.clone()];
        immutables.extend(view.immutables.iter().cloned());
        let view = View { active: next, immutables, version: view.version.clone() };
        self.install(view);
    }

    /// What the active MemTable has waits for its flush: a shard without a writer goes away.
    pub(crate) fn seal(&self) {
        let _state = locked(&self.state);
        let view = self.view();
        if view.active.assigned() > 0 {
            let next = self.replace_active(&view);
            self.install_active(&view, next);
        }
    }

    /// As published: readers learn late of the MemTable that writers use.
    pub(crate) fn catch_up(&self) {
        let _state = locked(&self.state);
        let (view, early) = (self.view(), self.early());
        if early.first != view.active.first {
            self.install_active(&view, early);
        }
    }

    /// The oldest snapshot. One that is taken later has a number above all that is flushed, or
    /// sealed, now.
    fn oldest(&self) -> Seq {
        self.snapshots.notes(|| ()).0.into_iter().min().unwrap_or(Seq::MAX)
    }

    /// Whether nothing is to be flushed or merged.
    pub(crate) fn is_settled(&self) -> bool {
        let state = locked(&self.state);
        let view = self.view();
        let picked = view.version.pick(&self.o, &state.busy, &state.from);
        let is_kept = self.recorder.as_ref().is_none_or(Recorder::is_settled);
        view.immutables.is_empty() && state.busy.is_empty() && picked.is_none() && is_kept
    }

    /// Begins the flush of the oldest MemTable that waits for one.
    pub(crate) fn begin_flush(&self) -> Option<Flush<'_>> {
        let mut state = locked(&self.state);
        let view = self.view();
        let mut waiting = view.immutables.iter().rev();
        let table = waiting.find(|table| {
            let begun = state.flushing.contains(&table.first);
            !begun && !state.flushed.contains_key(&table.first) && table.is_complete()
        })?;
        state.flushing.insert(table.first);
        let oldest = self.oldest();
        Some(Flush { shard: self, table: table.clone(), oldest })
    }

    /// A number for a new table.
    pub(crate) fn next_number(&self) -> u64 {
        let mut state = locked(&self.state);
        state.tables += 1;
        state.tables
    }

    /// A MemTable is flushed: into a table, unless all that it had was needless.
    pub(crate) fn end_flush(&self, flush: &Flush<'_>, table: Option<Arc<Table>>) {
        let mut state = locked(&self.state);
        state.flushed.insert(flush.table.first, table);
        let mut view = View::clone(&self.view());
        let mut version = Version::clone(&view.version);
        let (mut added, mut flushed) = (Vec::new(), 0);
        while let Some(oldest) = view.immutables.last() {
            let Some(table) = state.flushed.remove(&oldest.first) else { break };
            flushed = oldest.visible();
            view.immutables.pop();
            if let Some(table) = table {
                added.push(table.meta.clone());
                version.add(0, table, self.o.defects.unordered);
            }
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| flushed > 0) {
            recorder.edit(0, (added, Vec::new()), flushed);
        }
        view.version = version.into();
        self.install(view);
        self.full_until.store(0, Ordering::Relaxed);
    }

    /// Begins the compaction that is most in need.
    pub(crate) fn begin_compaction(&self) -> Option<Compaction<'_>> {
        let mut state = locked(&self.state);
        let pick = self.view().version.pick(&self.o, &state.busy, &state.from)?;
        pick.inputs().for_each(|table| _ = state.busy.insert(table.number));
        if let Some(last) = pick.upper.last().filter(|_| pick.level > 0) {
            state.from[pick.level] = last.smallest().to_vec();
        }
        let oldest = self.oldest();
        Some(Compaction { shard: self, pick, oldest })
    }

    /// Its tables take the place of the ones that were merged.
    pub(crate) fn end_compaction(&self, done: &Compaction<'_>, tables: Vec<Arc<Table>>) {
        let _state = locked(&self.state);
        let pick = &done.pick;
        let view = View::clone(&self.view());
        let mut version = Version::clone(&view.version);
        version.remove(pick.level, &pick.upper);
        version.remove(pick.level + 1, &pick.lower);
        if let Some(recorder) = &self.recorder {
            let added = tables.iter().map(|table| table.meta.clone()).collect();
            let removed = pick.inputs().map(|table| name_of(&table.meta)).collect();
            recorder.edit(pick.level + 1, (added, removed), 0);
        }
        tables.into_iter().for_each(|table| version.add(pick.level + 1, table, false));
        self.full_until.store(0, Ordering::Relaxed);
        self.install(View { version: version.into(), ..view });
    }

    /// A new segment of the manifest, in a block, with the tables of this instant; the number of
    /// bytes that it needs if it does not fit.
    ///
    /// # Errors
    /// `Corrupt`: it cannot be encoded.
    pub(crate) fn new_segment(
        &self,
        recorder: &Recorder,
        place: BlockPtr,
        is_gone: impl Fn(u64) -> bool,
    ) -> Result<Result<Roll, usize>> {
        let _state = locked(&self.state);
        let metas = |tables: &Vec<Arc<Table>>| tables.iter().map(|t| t.meta.clone()).collect();
        let levels = self.view().version.levels.iter().map(metas).collect();
        recorder.new_segment(place, levels, is_gone)
    }

    /// Whether a flush or a compaction has found no memory, and it is too early for another one.
    pub(crate) fn is_full(&self, now: u64) -> bool {
        now < self.full_until.load(Ordering::Relaxed)
    }

    /// A flush or a compaction has found no memory.
    pub(crate) fn set_full(&self, until: u64) {
        self.full_until.store(until.max(1), Ordering::Relaxed);
    }
}
