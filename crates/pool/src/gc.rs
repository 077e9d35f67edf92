//! Finding memory that nobody holds: what dead nodes held, what dropped operations had taken, chunks whose grant was never heard of.
//!
//! At any time a piece of memory is *reachable* in the index, *listed* by a living node (free, fresh, in stock, in quarantine, or kept
//! unlinked for later), *in the hands* of a running operation, or lost. A census tells them apart while all of that changes:
//!
//! 1. It reads what was ever handed out: chunk records, marks of table partitions. What is handed out later is none of its business.
//! 2. Every living node opens a *window* (`notes.rs`): from now on it notes whatever crosses its lists, in either direction.
//! 3. A barrier: every operation that ran then has ended. So whatever is in somebody's hands from now on has been noted, or will be
//!    before the operation ends.
//! 4. The index *marks* what is reachable, by cursors: what it misses because it moves was granted, or retired, since the window opened.
//! 5. A second barrier ends the operations that were in the middle of unlinking something. Then every node says what it has noted and
//!    what it lists: what is neither marked, nor noted, nor listed, is lost. Nobody living can get hold of it any more, except by
//!    taking a dead node's lock over; so the index does that first where there is one, and
//! 6. after a third barrier what was noted meanwhile is left out. The rest is retired: readers with old addresses may still look at it.
//!
//! A node that joins has no window, and takes only what is handed out later; should it retire something, it is asked, has no window, and
//! the census fails. So it does when a node dies. Both may be repeated: a census changes nothing before its last step.

use dmtree_fabric::{Endpoint, ErrorKind, GlobalAddr, Member, Nanos, NodeId, Result, ShadowState};

use crate::arena::{ArenaKey, Grant};
use crate::catalog::counted_word;
use crate::chunks::ask_list;
use crate::gc_log::{Span, Told, WINDOW_HELD_NS, ask_close, ask_collect, ask_hold, ask_open};
use crate::ids::{LINE, TableId};
use crate::layout::{ANY_INDEX, ChunkUse, EPOCH_WORD, first_node};
use crate::membership_agent::not_now;
use crate::node::PoolNode;
use crate::ranges::Ranges;
use crate::reassign::DirectoryEntry;
use crate::reclaim::Retired;

/// How long a census that is wanted by itself waits for another one, ns.
const AWAITED_NS: u64 = 4 * WINDOW_HELD_NS;

/// Sets of spans.
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

/// A run of chunks that an index had got before the census began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    node: NodeId,
    offset: u64,
    chunks: u32,
    /// Nothing for blocks.
    arena: Option<ArenaKey>,
}

/// A census under way.
#[derive(Debug)]
pub struct Gc {
    number: u64,
    /// The barrier that is waited for.
    stamp: u64,
    /// When the windows were opened, or held longer.
    held_at: Nanos,
    index: u32,
    /// Those that had come to their ends when it began.
    deaths: u64,
    members: Vec<Member>,
    runs: Vec<Run>,
    /// Partitions and their lines; without those in which other indexes may have cells.
    lines: Vec<(u16, u64)>,
}

/// What nobody holds.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    /// Objects.
    pub objects: Vec<(ArenaKey, GlobalAddr)>,
    /// Space for blocks: address, bytes.
    pub space: Vec<(GlobalAddr, u64)>,
    /// Table cells, each named as one of a single line; two lost lines in a row may have been one cell.
    pub lines: Vec<TableId>,
}

impl Lost {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.space.is_empty() && self.lines.is_empty()
    }
}

impl PoolNode {
    /// Steps 1 and 2. The caller runs no operation, here and in [`PoolNode::is_past`].
    ///
    /// # Errors
    /// `Busy` while a death, a move or another census is under way; those of the fabric.
    pub async fn begin_gc(&self, ep: &Endpoint, index: u32) -> Result<Gc> {
        if !self.is_settled() {
            return Err(not_now("a death or a move is under way".to_owned()));
        }
        if self.has_window(ep.now()) {
            return Err(not_now("another census is under way".to_owned()));
        }
        // What a memory node that is away holds may be the way to what others hold.
        self.view.check_memory().map_err(|e| not_now(e.to_string()))?;
        let (deaths, members) = (self.deaths(), self.windows()?);
        let before = self.runs_of(ep, index).await?;
        let seen = self.read_directory(ep, false).await?;
        if let Some(s) = seen.iter().find(|s| s.torn) {
            return Err(not_now(format!("{} writes its directory record", s.partition.owner)));
        }
        let number = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
        let (lines, held_at) = (Vec::new(), ep.now());
        let mut gc = Gc { number, stamp: 0, held_at, index, deaths, members, runs: before, lines };
        let begun = self.open_windows(ep, &mut gc, &seen).await;
        match begun {
            Ok(()) => Ok(gc),
            Err(e) => {
                // Windows that stay open would refuse others for a while.
                self.end_gc(ep, gc).await;
                Err(e)
            }
        }
    }

    /// As [`PoolNode::begin_gc`], once another census has ended, or has given no sign of itself
    /// for a while.
    ///
    /// # Errors
    /// As [`PoolNode::begin_gc`].
    pub async fn next_gc(&self, ep: &Endpoint, index: u32) -> Result<Gc> {
        let until = ep.now().saturating_add(AWAITED_NS);
        let mut pause = ep.backoff("another census", first_node(EPOCH_WORD));
        loop {
            ep.renew_deadline();
            match self.begin_gc(ep, index).await {
                Err(e) if e.kind() == ErrorKind::Busy && ep.now() < until => pause.step().await?,
                begun => return begun,
            }
        }
    }

    async fn open_windows(
        &self,
        ep: &Endpoint,
        gc: &mut Gc,
        seen: &[DirectoryEntry],
    ) -> Result<()> {
        for m in &gc.members {
            match m.node == self.cn {
                true => self.open_window(gc.number, ep.now())?,
                false => ask_open(ep, m.node, gc.number).await?,
            }
        }
        // A run that was given back before a window was open has not been noted: it is nobody's here.
        let index = gc.index;
        let runs = self.runs_of(ep, index).await?;
        gc.runs.retain(|r| runs.contains(r));
        // An index that took a cell before the windows were open is in the catalog by now.
        let alone = self.list_indexes(ep).await?.iter().all(|e| e.id == index);
        let mark = |s: &DirectoryEntry| (s.partition.number, s.partition.lines);
        let counts = |s: &&DirectoryEntry| match s.partition.index {
            ANY_INDEX => alone,
            owner => owner == index,
        };
        gc.lines = seen.iter().filter(counts).map(mark).collect();
        self.raise_barrier(ep, gc).await
    }

    /// A sign of a census that goes on: other censuses wait for it. Costs nothing most of the time.
    ///
    /// # Errors
    /// `Busy` when another census has taken its place; those of the fabric.
    pub async fn hold_gc(&self, ep: &Endpoint, gc: &mut Gc) -> Result<()> {
        let now = ep.now();
        if now.saturating_sub(gc.held_at) < WINDOW_HELD_NS / 4 {
            return Ok(());
        }
        gc.held_at = now;
        // The first member decides between censuses.
        match gc.members.first() {
            Some(m) if m.node == self.cn => self.hold_window(gc.number, now),
            Some(m) => ask_hold(ep, m.node, gc.number).await,
            None => Ok(()),
        }
    }

    /// Who runs operations, or may.
    fn windows(&self) -> Result<Vec<Member>> {
        let all = self.fabric.members()?.into_iter();
        let generation =
            |node| Member { node, incarnation: self.fabric.incarnation(node).unwrap_or(0) };
        Ok(all.map(generation).filter(|m| !self.view.is_revoked(*m)).collect())
    }

    async fn runs_of(&self, ep: &Endpoint, index: u32) -> Result<Vec<Run>> {
        let mut out = Vec::new();
        for layout in &self.shape.memory {
            let records = self.chunk_records(ep, layout.node).await?;
            for (i, r) in records.iter().enumerate() {
                let Some(r) = r.filter(|r| r.index == index && r.run > 0) else { continue };
                let key = ArenaKey { index, kind: r.kind, object_bytes: r.object_bytes };
                let arena = match r.used_for {
                    // What a bump allocator has cut lives as long as the index.
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

    /// Another barrier: see [`PoolNode::is_past`].
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn raise_barrier(&self, ep: &Endpoint, gc: &mut Gc) -> Result<()> {
        gc.stamp = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
        Ok(())
    }

    /// Whether every operation that ran when the last barrier was raised has ended.
    ///
    /// # Errors
    /// `Busy` when somebody has joined or died since the census began; those of the fabric.
    pub async fn is_past(&self, ep: &Endpoint, gc: &Gc) -> Result<bool> {
        self.check_gc(gc)?;
        Ok(self.oldest_running(ep, gc.stamp).await? >= gc.stamp)
    }

    fn check_gc(&self, gc: &Gc) -> Result<()> {
        match self.is_settled() && self.windows()? == gc.members {
            true => Ok(()),
            false => Err(not_now("somebody has joined or died during a census".to_owned())),
        }
    }

    /// What the nodes have noted since the census began, or what lies on their lists, or both.
    ///
    /// # Errors
    /// As [`PoolNode::is_past`].
    pub async fn collect(&self, ep: &Endpoint, gc: &Gc, what: Told) -> Result<Held> {
        let gone = |m: &Member| not_now(format!("{m} knows nothing of a census"));
        let mut held = Held::default();
        for m in &gc.members {
            ep.renew_deadline();
            let spans = match m.node == self.cn {
                true => self.report(gc.number, what),
                false => ask_collect(ep, m.node, gc.number, what).await?,
            };
            spans.ok_or_else(|| gone(m))?.into_iter().for_each(|s| held.add(s));
        }
        // What comes or goes there is noted by the node that leaves or takes it.
        for layout in self.shape.memory.iter().filter(|_| what != Told::GcLog) {
            ep.renew_deadline();
            let spans = ask_list(ep, layout.node, gc.number).await?;
            spans.into_iter().for_each(|s| held.add(s));
        }
        if what != Told::GcLog {
            // Deposits that have made a whole chunk are the memory node's. (A node to which it was granted since has noted that.)
            let now = self.runs_of(ep, gc.index).await?;
            for r in gc.runs.iter().filter(|r| !now.contains(r)) {
                let bytes = u64::from(r.chunks) * self.shape.chunk_bytes;
                held.bytes.insert(GlobalAddr::new(r.node, r.offset).bits(), bytes);
            }
        }
        self.check_gc(gc)?;
        Ok(held)
    }

    /// What is in none of these sets.
    pub fn lost(&self, gc: &Gc, held: &[&Held]) -> Lost {
        let mut lost = Lost::default();
        let has = |span: Span| held.iter().any(|h| h.has(span));
        for run in &gc.runs {
            let at = GlobalAddr::new(run.node, run.offset);
            let bytes = u64::from(run.chunks) * self.shape.chunk_bytes;
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

    /// What was free on a dead node's list is free no more: whoever takes it may have to write there first.
    fn adopt(&self, lost: &Lost) {
        let objects = lost.objects.iter().map(|(key, at)| (*at, u64::from(key.object_bytes)));
        let all = objects.chain(lost.space.iter().copied());
        all.for_each(|(at, bytes)| self.allocation_event(at, bytes, ShadowState::Plain));
    }

    /// Whether a lost object is of any use: an address whose lives are used up is not.
    pub fn is_worn_out(&self, key: ArenaKey, generation: u16) -> bool {
        !self.arena(key).has_lives_left(generation)
    }

    /// Takes a lost object: the largest life that it may have had; 0 when it was never written.
    pub fn retire_lost(&self, key: ArenaKey, g: Grant) {
        self.retire(&self.arena(key), g);
    }

    /// Takes lost space for blocks.
    pub fn retire_space(&self, gc: &Gc, at: GlobalAddr, bytes: u64) {
        self.gc_log.add(|| Span::Bytes(at.bits(), bytes));
        self.limbo_list.push(Retired::Space(gc.index, at, bytes), bytes);
    }

    /// Whether nodes have died, or left, since the last census of an index, given its root word: they may have held memory of it.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn has_uncounted_deaths(&self, ep: &Endpoint, root: GlobalAddr) -> Result<bool> {
        // No census can be made while a memory node is away.
        let may = self.view.check_memory().is_ok();
        Ok(may && self.counted_deaths(ep, root).await? < self.deaths())
    }

    /// How many deaths the garbage collections of an index have counted, given its root word.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn counted_deaths(&self, ep: &Endpoint, root: GlobalAddr) -> Result<u64> {
        ep.cas(counted_word(root), 0, 0).await
    }

    /// The census of an index has come to its end: what those held who were dead when it began has been found.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn note_counted(&self, ep: &Endpoint, gc: &Gc, root: GlobalAddr) -> Result<()> {
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

    /// The census is over, whatever it came to. A window that stays open because its node did not hear of this is closed by the next
    /// census, or when it is too large.
    pub async fn end_gc(&self, ep: &Endpoint, gc: Gc) {
        for m in &gc.members {
            if m.node == self.cn {
                self.close_window(gc.number);
            } else if ask_close(ep, m.node, gc.number).await.is_err() {
                continue;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_hold_is_told() {
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
