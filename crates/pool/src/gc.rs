//! Garbage collection (GC) of memory that no node holds: what dead nodes held, what dropped
//! operations had taken, chunks with a grant that never arrived. A mark phase that runs while all
//! clients work.
//!
//! At any time a piece of memory is *reachable* in the index, *listed* by a living node (free,
//! fresh, cached, on the limbo list, or kept unlinked for later), *in the hands* of a running
//! operation, or lost. A collection tells them apart:
//!
//! 1. It reads what was ever handed out: chunk records, high-water marks of table partitions. Later
//!    grants do not count.
//! 2. Every living node opens a *window* (`gc_log.rs`): from now on it logs whatever crosses its
//!    lists, in either direction.
//! 3. A barrier: every operation that ran then has ended. So whatever is in the hands of an
//!    operation from now on has been logged, or will be before the operation ends.
//! 4. The index *marks* what is reachable, by cursors. What a cursor misses because it moves was
//!    granted, or retired, since the windows opened.
//! 5. A second barrier ends the operations that were unlinking something. Then every node reports
//!    its log and its lists. What is neither marked, nor logged, nor listed is lost. No living node
//!    can get hold of it any more, except by taking over a lock of a dead node; so the index
//!    recovers those locks first.
//! 6. After a third barrier, what was logged meanwhile is left out. The rest is retired like
//!    anything unlinked: readers with old addresses may still look at it.
//!
//! A barrier is an addition to the global epoch, after which every member reports a later epoch for
//! its oldest running operation, as for reclamation (`reclaim.rs`).
//!
//! A node that joins has no window, and takes only later grants. Should it retire something, it is
//! asked, has no window, and the collection fails. It fails as well when a member dies, and does
//! not begin while a memory node is away: what that node holds may be the only way to memory of
//! others. Every failure is harmless, and the collection may be repeated: it changes nothing before
//! its last step. A collector that crashes leaves windows open; each is replaced by the next
//! collection after 250 ms, or closes itself when its log is too long.
//!
//! Two invariants make the result sound. Nothing is both lost and held: memory crosses a list only
//! under the window's log, or belongs to an operation for which the barriers wait. And a lost
//! object comes back with a generation above any that may have been written there, so no stale
//! compare-and-swap can succeed on its next grant.

use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, Member, Nanos, NodeId, Result, Role, ShadowState,
};

use crate::arena::{ArenaKey, Grant};
use crate::catalog::{counted_word, live_indexes};
use crate::chunks::ask_list;
use crate::gc_log::{Call, Span, Told, WINDOW_HELD_NS, ask_collect, tell};
use crate::ids::{LINE, TableId};
use crate::layout::{ANY_INDEX, ChunkUse, EPOCH_WORD, first_node};
use crate::node::PoolNode;
use crate::owners::ask_cell_at;
use crate::ranges::Ranges;
use crate::reassign::DirectoryEntry;
use crate::reclaim::Retired;

/// How long a collection that must run waits for another one, ns.
const AWAITED_NS: u64 = 4 * WINDOW_HELD_NS;

/// Spans that are held: marked, logged or listed.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Bytes of memory nodes, by packed address.
    pub bytes: Ranges,
    /// Lines of table partitions.
    pub lines: Ranges,
    /// Spans that were added although a part of them was there.
    pub twice: Vec<Span>,
}

impl Held {
    /// Adds a span.
    pub fn add(&mut self, span: Span) {
        let fresh = match span {
            Span::Bytes(start, len) => self.bytes.insert(start, len),
            Span::Lines(start, len) => self.lines.insert(start, len),
        };
        if !fresh {
            self.twice.push(span);
        }
    }

    /// How many of its ranges share something with those of another set.
    pub fn overlaps(&self, other: &Self) -> usize {
        let bytes = self.bytes.iter().filter(|(start, len)| other.bytes.meets(*start, *len));
        let lines = self.lines.iter().filter(|(start, len)| other.lines.meets(*start, *len));
        bytes.count() + lines.count()
    }

    /// Whether a part of a span is in it.
    pub fn has(&self, span: Span) -> bool {
        match span {
            Span::Bytes(start, len) => self.bytes.meets(start, len),
            Span::Lines(start, len) => self.lines.meets(start, len),
        }
    }
}

/// A run of chunks that was granted to an index before the collection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    node: NodeId,
    offset: u64,
    chunks: u32,
    /// `None` for blocks.
    arena: Option<ArenaKey>,
}

/// A garbage collection under way.
#[derive(Debug)]
pub struct Gc {
    number: u64,
    /// The epoch of the last barrier.
    stamp: u64,
    /// When the windows were opened or last held.
    held_at: Nanos,
    index: u32,
    /// Deaths that were complete when it began.
    deaths: u64,
    members: Vec<Member>,
    runs: Vec<Run>,
    /// Partitions and their high-water marks, except those in which other indexes may have cells.
    lines: Vec<(u16, u64)>,
}

/// Memory that no node holds.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    /// Objects.
    pub objects: Vec<(ArenaKey, GlobalAddr)>,
    /// Space for blocks: address, bytes.
    pub space: Vec<(GlobalAddr, u64)>,
    /// Table cells, each named as one of a single line; two lost lines in a row may have been one
    /// cell.
    pub lines: Vec<TableId>,
}

/// Garbage collections, and the lists that they ask for.
#[derive(Clone, Copy, Debug)]
pub struct GarbageCollection<'n>(pub(crate) &'n PoolNode);

impl GarbageCollection<'_> {
    /// Steps 1 and 2. The caller runs no operation, here and in [`GarbageCollection::is_past`].
    ///
    /// # Errors
    /// `Busy` while a death, a move or another collection is under way; those of the fabric.
    pub async fn begin_gc(self, ep: &Endpoint, index: u32) -> Result<Gc> {
        if !self.0.membership().has_settled_membership() {
            return Err(Error::busy("a death or a move is under way"));
        }
        if self.0.gc_log.is_held(ep.now()) {
            return Err(Error::busy("another garbage collection is under way"));
        }
        // Memory on a node that is away may be the only way to memory of the others.
        self.0.view.check_memory().map_err(|e| Error::busy(e.to_string()))?;
        let (deaths, members) = (self.0.membership().deaths(), self.windows()?);
        let before = self.runs_of(ep, index).await?;
        let seen = self.0.partitions().read_directory(ep, false).await?;
        if let Some(s) = seen.iter().find(|s| s.torn) {
            return Err(Error::busy(format!("{} writes its directory record", s.partition.owner)));
        }
        let number = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
        let (lines, held_at) = (Vec::new(), ep.now());
        let mut gc = Gc { number, stamp: 0, held_at, index, deaths, members, runs: before, lines };
        let begun = self.open_windows(ep, &mut gc, &seen).await;
        match begun {
            Ok(()) => Ok(gc),
            Err(e) => {
                // Windows that stay open would refuse other collections for a while.
                self.end_gc(ep, gc).await;
                Err(e)
            }
        }
    }

    /// As [`GarbageCollection::begin_gc`], once another collection has ended, or has not held its
    /// windows for a while.
    pub async fn next_gc(self, ep: &Endpoint, index: u32) -> Result<Gc> {
        let until = ep.now().saturating_add(AWAITED_NS);
        let mut pause = ep.backoff("another garbage collection", first_node(EPOCH_WORD));
        loop {
            ep.renew_deadline();
            match self.begin_gc(ep, index).await {
                Err(e) if e.kind() == ErrorKind::Busy && ep.now() < until => pause.step().await?,
                begun => return begun,
            }
        }
    }

    async fn open_windows(self, ep: &Endpoint, gc: &mut Gc, seen: &[DirectoryEntry]) -> Result<()> {
        for m in &gc.members {
            match m.node == self.0.cn {
                true => self.0.gc_log.begin(gc.number, ep.now())?,
                false => tell(ep, m.node, Call::Open, gc.number).await?,
            }
        }
        // A run that was returned before a window opened was not logged: it does not count.
        let index = gc.index;
        let runs = self.runs_of(ep, index).await?;
        gc.runs.retain(|r| runs.contains(r));
        // An index that took a cell before the windows opened is in the catalog by now.
        let alone = live_indexes(ep).await?.iter().all(|id| *id == index);
        let mark = |s: &DirectoryEntry| (s.partition.number, s.partition.lines);
        let counts = |s: &&DirectoryEntry| match s.partition.index {
            ANY_INDEX => alone,
            owner => owner == index,
        };
        gc.lines = seen.iter().filter(counts).map(mark).collect();
        self.raise_barrier(ep, gc).await
    }

    /// Holds the windows of a collection that goes on: others wait for it. Free most of the time.
    ///
    /// # Errors
    /// `Busy` when another collection has taken its place; those of the fabric.
    pub async fn hold_gc(self, ep: &Endpoint, gc: &mut Gc) -> Result<()> {
        let now = ep.now();
        if now.saturating_sub(gc.held_at) < WINDOW_HELD_NS / 4 {
            return Ok(());
        }
        gc.held_at = now;
        // The first member decides between collections.
        match gc.members.first() {
            Some(m) if m.node == self.0.cn => self.0.gc_log.hold(gc.number, now),
            Some(m) => tell(ep, m.node, Call::Hold, gc.number).await,
            None => Ok(()),
        }
    }

    /// The members that run operations, or may.
    pub(crate) fn windows(self) -> Result<Vec<Member>> {
        let all = self.0.fabric.members()?.into_iter();
        let member =
            |node| Member { node, incarnation: self.0.fabric.incarnation(node).unwrap_or(0) };
        Ok(all.map(member).filter(|m| !self.0.view.is_revoked(*m)).collect())
    }

    async fn runs_of(self, ep: &Endpoint, index: u32) -> Result<Vec<Run>> {
        let mut out = Vec::new();
        for layout in self.0.shape.layouts() {
            let records = self.0.chunk_records(ep, layout.node).await?;
            for (i, r) in records.iter().enumerate() {
                let Some(r) = r.filter(|r| r.index == index && r.run > 0) else { continue };
                let key = ArenaKey { index, kind: r.kind, object_bytes: r.object_bytes };
                let arena = match r.used_for {
                    // Memory of a bump allocator stays allocated as long as the index exists.
                    ChunkUse::Arena if u64::from(r.object_bytes) < LINE => continue,
                    ChunkUse::Arena => Some(key),
                    ChunkUse::Blocks => None,
                    ChunkUse::Tables => continue,
                };
                let offset = layout.chunk(i as u32);
                out.push(Run { node: layout.node, offset, chunks: r.run, arena });
            }
        }
        Ok(out)
    }

    /// Another barrier: see [`GarbageCollection::is_past`].
    pub async fn raise_barrier(self, ep: &Endpoint, gc: &mut Gc) -> Result<()> {
        gc.stamp = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
        Ok(())
    }

    /// Whether every operation that ran when the last barrier was raised has ended.
    ///
    /// # Errors
    /// `Busy` when a node has joined or died since the collection began; those of the fabric.
    pub async fn is_past(self, ep: &Endpoint, gc: &Gc) -> Result<bool> {
        self.check_gc(gc)?;
        Ok(self.0.reclaimer().oldest_running(ep, gc.stamp).await? >= gc.stamp)
    }

    fn check_gc(self, gc: &Gc) -> Result<()> {
        match self.0.membership().has_settled_membership() && self.windows()? == gc.members {
            true => Ok(()),
            false => Err(Error::busy("a node has joined or died during a garbage collection")),
        }
    }

    /// What the nodes have logged since the collection began, or what lies on their lists, or both.
    pub async fn collect(self, ep: &Endpoint, gc: &Gc, what: Told) -> Result<Held> {
        let gone =
            |m: &Member| Error::busy(format!("{m} has no window of this garbage collection"));
        let mut held = Held::default();
        for m in &gc.members {
            ep.renew_deadline();
            let spans = match m.node == self.0.cn {
                true => self.report(gc.number, what),
                false => ask_collect(ep, m.node, gc.number, what).await?,
            };
            spans.ok_or_else(|| gone(m))?.into_iter().for_each(|s| held.add(s));
        }
        // The node that deposits or takes a piece logs it.
        for layout in self.0.shape.layouts().iter().filter(|_| what != Told::GcLog) {
            ep.renew_deadline();
            let spans = ask_list(ep, layout.node, gc.number).await?;
            spans.into_iter().for_each(|s| held.add(s));
        }
        if what != Told::GcLog {
            // Deposits that have made a whole chunk belong to the memory node again. (A node to
            // which the chunk was granted since has logged that.)
            let now = self.runs_of(ep, gc.index).await?;
            for r in gc.runs.iter().filter(|r| !now.contains(r)) {
                let bytes = u64::from(r.chunks) * self.0.shape.chunk_bytes;
                held.bytes.insert(GlobalAddr::new(r.node, r.offset).bits(), bytes);
            }
        }
        self.check_gc(gc)?;
        Ok(held)
    }

    /// What is in none of these sets.
    pub fn lost(self, gc: &Gc, held: &[&Held]) -> Lost {
        let mut lost = Lost::default();
        let has = |span: Span| held.iter().any(|h| h.has(span));
        for run in &gc.runs {
            let at = GlobalAddr::new(run.node, run.offset);
            let bytes = u64::from(run.chunks) * self.0.shape.chunk_bytes;
            match run.arena {
                Some(key) => {
                    let size = u64::from(key.object_bytes);
                    let all = (0..bytes / size.max(1)).map(|i| at.plus(i * size));
                    let free = all.filter(|at| !has(Span::object(*at, size)));
                    lost.objects.extend(free.map(|at| (key, at)));
                }
                None if run.chunks > 1 => {
                    if !has(Span::Bytes(at.bits(), bytes)) {
                        lost.space.push((at, bytes));
                    }
                }
                None => {
                    let mut gaps = vec![(at.bits(), bytes)];
                    for h in held {
                        let cut = |(start, len)| h.bytes.gaps(start, len);
                        gaps = gaps.into_iter().flat_map(cut).collect();
                    }
                    let space = |(start, len)| (GlobalAddr::from_bits(start), len);
                    lost.space.extend(gaps.into_iter().map(space));
                }
            }
        }
        for (partition, lines) in &gc.lines {
            let span = |first| Span::lines(*partition, first, 1);
            let free = (0..*lines).filter(|first| !has(span(*first)));
            lost.lines.extend(free.map(|first| TableId::new(*partition, 1, first)));
        }
        self.adopt(&lost);
        lost
    }

    /// What was free on a dead node's list is not free memory to a sanitizer any more: its next
    /// user may have to write there before it is granted.
    fn adopt(self, lost: &Lost) {
        let objects = lost.objects.iter().map(|(key, at)| (*at, u64::from(key.object_bytes)));
        let all = objects.chain(lost.space.iter().copied());
        all.for_each(|(at, bytes)| self.0.allocation_event(at, bytes, ShadowState::Plain));
    }

    /// Whether the generations of a lost object are used up: its address is of no use then.
    pub fn is_worn_out(self, key: ArenaKey, generation: u16) -> bool {
        !self.0.arena(key).has_generations_left(generation)
    }

    /// Takes a lost object, with the largest generation that it may have had; 0 when it was never
    /// written.
    pub fn retire_lost(self, key: ArenaKey, g: Grant) {
        self.0.retire(&self.0.arena(key), g);
    }

    /// The cell with an image that holds a lost line, by the owner of the line; `None` when the
    /// owner has cut none there, and knows of no former owner's.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn image_cell(
        self,
        ep: &Endpoint,
        owner: NodeId,
        line: TableId,
    ) -> Result<Option<TableId>> {
        match owner.role() {
            Role::Compute => ask_cell_at(ep, owner, line).await,
            Role::Memory | Role::Journal => Ok(None),
        }
    }

    /// Takes lost space for blocks.
    pub fn retire_space(self, gc: &Gc, at: GlobalAddr, bytes: u64) {
        self.0.gc_log.add(|| Span::Bytes(at.bits(), bytes));
        self.0.limbo_list.push(Retired::Space(gc.index, at, bytes), bytes);
    }

    /// Whether nodes have died, or left, since the last collection of an index, given its root
    /// word: they may have held memory of it.
    pub async fn has_uncounted_deaths(self, ep: &Endpoint, root: GlobalAddr) -> Result<bool> {
        // No collection can run while a memory node is away.
        let may = self.0.view.check_memory().is_ok();
        Ok(may && self.counted_deaths(ep, root).await? < self.0.membership().deaths())
    }

    /// How many deaths the garbage collections of an index have counted, given its root word.
    pub async fn counted_deaths(self, ep: &Endpoint, root: GlobalAddr) -> Result<u64> {
        ep.cas(counted_word(root), 0, 0).await
    }

    /// Records that the collection of an index is complete: it has found what the nodes held that
    /// were dead when it began.
    pub async fn note_counted(self, ep: &Endpoint, gc: &Gc, root: GlobalAddr) -> Result<()> {
        let word = counted_word(root);
        let mut known = self.counted_deaths(ep, root).await?;
        while known < gc.deaths {
            let was = ep.cas(word, known, gc.deaths).await?;
            if was == known {
                break;
            }
            known = was;
        }
        Ok(())
    }

    /// Ends the collection, whatever its result. A window that stays open because its node was not
    /// reached is replaced by the next collection, or closes itself when its log is too long.
    pub async fn end_gc(self, ep: &Endpoint, gc: Gc) {
        for m in &gc.members {
            match m.node == self.0.cn {
                true => self.0.gc_log.end(gc.number),
                false => _ = tell(ep, m.node, Call::Close, gc.number).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_with_two_holders_are_reported() {
        let (mut a, mut b) = (Held::default(), Held::default());
        a.add(Span::Bytes(1024, 64));
        a.add(Span::lines(1, 10, 2));
        assert!(a.twice.is_empty() && a.has(Span::Bytes(1080, 64)) && !a.has(Span::Bytes(1088, 8)));
        assert!(a.has(Span::lines(1, 11, 1)) && !a.has(Span::lines(2, 10, 2)));
        b.add(Span::Bytes(1000, 24));
        assert_eq!(a.overlaps(&b), 0);
        b.add(Span::Bytes(1080, 100));
        b.add(Span::lines(1, 11, 4));
        assert_eq!((a.overlaps(&b), b.overlaps(&a)), (2, 2));
        b.add(Span::Bytes(1179, 2));
        assert_eq!(b.twice, [Span::Bytes(1179, 2)], "one byte of it was there");
    }
}
