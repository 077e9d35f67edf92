//! The cell service of an owner node: cuts cells of fingerprint tables out of the partitions that
//! the node owns.
//!
//! A partition is owned by one node at a time and moves as a whole. Its record in the directory on
//! memory node 0 names the owner, its incarnation, the high-water mark (`lines`: all granted cells
//! lie below) and the segments. The calls:
//!
//! - **cells** (index, size, count): cells with images only within the node's room for them
//!   (`image_room.rs`); picks a partition of the index (`choose`), cuts cells below
//!   the end of its segments, or takes another segment first, writes the directory record, and only
//!   then answers. An empty answer means full.
//! - **adopt** (partition, moves, lines, index): becomes the owner of a partition. Takes zeroed
//!   segments for all lines that were ever granted, writes the record, then serves it. Repeated, it
//!   answers again; without room it answers false.
//! - **release** (partitions): grants no more cells of them. Their segments stay here until the
//!   directory names another owner with a later move, because clients may still use them until
//!   then.
//! - **flush**: answers when the calls before it are done. A claimant sends it to every owner
//!   first, so that no adoption which a former claimant has asked for is still under way.
//! - **cell at** (line): the cell with an image that this owner has cut there, for a garbage
//!   collection that finds the line lost.
//! - **stretch**: bare memory for designs that lay out their own tables. It never comes back.
//!
//! Invariants.
//!
//! - *Directory first.* The record lists a segment, and a mark above a cell, before a client gets
//!   the cell. So a crash after the WRITE loses the cells of one answer (until garbage collection
//!   finds them), and never grants a cell twice.
//! - *One index per partition.* A partition has the cells of one index, except those marked
//!   [`ANY_INDEX`], so that all of it is free again when the index is dropped. The mark goes down
//!   to 0 in the directory before the lines are zeroed. A crash in between is harmless: the next
//!   owner serves the partition from other, zeroed segments.
//! - *Zero.* A fresh cell is all zero: segments are zeroed when they are taken (`segments.rs`), and
//!   when an index is gone.
//! - A torn directory record (the owner died while writing) still tells number, owner and mark:
//!   each is one word.
//!
//! The services of a node run one call at a time, and the lock of the state is held for bookkeeping
//! only, never over a verb. A copy of the partition is changed, published, and then stored: an
//! error leaves the former state in force.

use std::sync::Mutex;

use dmtree_fabric::{
    Endpoint, Error, GlobalAddr, Member, NodeId, Result, Role, Service, ServiceId,
};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::catalog::live_indexes;
use crate::ids::{
    COMPUTE_PARTITIONS, LINE, MEMORY_PARTITIONS, PARTITIONS, SEGMENTS, TABLE_LINES, TableId,
    segment_bytes, segment_of, segment_start,
};
use crate::image_room::ImageRoom;
use crate::layout::{ANY_INDEX, DIRECTORY_BYTES, NO_INDEX, Partition, compute_base};
use crate::segments::{SegmentSpace, zero};
use crate::wire::{self, Half, LONGEST_CALL_NS, Quarter, Word, call_within, locked};

/// Cells of tables, on every compute and every memory node.
pub(crate) const CELL_SERVICE: ServiceId = ServiceId(0x11);
/// The head of a request: the size of cells in lines, and their number. The number of their index
/// follows.
type Head = (u8, Quarter);
/// Instead of a size and a number of cells: a stretch of bare memory.
const STRETCH: Head = (0, Quarter(0));
/// Instead of a size and a number of cells: become the owner of a partition.
const ADOPT: Head = (0, Quarter(1));
/// Instead of a size and a number of cells: grant no more cells of these partitions.
const RELEASE: Head = (0, Quarter(2));
/// Instead of a size and a number of cells: answer when the calls before this one are done.
const FLUSH: Head = (0, Quarter(3));
/// Instead of a size and a number of cells: tell the cell with an image that holds a line.
const CELL_AT: Head = (0, Quarter(4));

/// The arguments of [`STRETCH`]. The answer is the offset of the stretch, and its bytes.
#[derive(Serialize, Deserialize)]
struct Stretch {
    #[serde(with = "fixint::le")]
    bytes: u64,
    #[serde(with = "fixint::le")]
    least: u64,
}

/// The arguments of [`ADOPT`].
#[derive(Serialize, Deserialize)]
struct Adopt {
    #[serde(with = "fixint::le")]
    number: u16,
    #[serde(with = "fixint::le")]
    moves: u32,
    #[serde(with = "fixint::le")]
    lines: u64,
    #[serde(with = "fixint::le")]
    index: u32,
}

/// An index opens another partition of an owner while it has less than this part of those that are
/// free there.
const OPEN_ONE_OF: usize = 16;
/// The owner reads the catalog once for so many segments and partitions that it opens.
const LOOK_EVERY: u32 = 64;
/// One call zeroes this many bytes, and the remainder of its last partition.
const FORGET_BYTES: u64 = 1 << 20;
/// Most cells of one call.
pub(crate) const MAX_CELLS: u16 = 256;

/// The first owner of a partition.
pub(crate) fn first_owner(partition: u16, compute_nodes: u16, memory_nodes: u16) -> NodeId {
    match partition.checked_sub(COMPUTE_PARTITIONS) {
        None => NodeId::compute(partition % compute_nodes),
        Some(p) => NodeId::memory(p % memory_nodes),
    }
}

/// How many nodes of a side own partitions at all.
pub(crate) fn owners_of(side: Role, compute_nodes: u16, memory_nodes: u16) -> u16 {
    match side {
        Role::Compute => compute_nodes.min(COMPUTE_PARTITIONS),
        Role::Memory | Role::Journal => memory_nodes.min(MEMORY_PARTITIONS),
    }
}

/// The index of cells, and their lines.
pub(crate) type CellSize = (u32, u8);

struct OwnerState {
    partitions: Vec<Partition>,
    /// Partitions that were released, with their segments, until the directory names their next
    /// owner.
    released: Vec<Partition>,
    /// Segments and partitions opened since the last read of the catalog.
    opened: u32,
}

/// The service.
pub(crate) struct OwnerService {
    me: Member,
    space: SegmentSpace,
    images: ImageRoom,
    state: Mutex<OwnerState>,
}

impl OwnerService {
    /// The service of a node. A compute node owns its share in its first incarnation; a later one
    /// joins, and owns nothing yet.
    pub(crate) fn new(
        me: Member,
        compute_nodes: u16,
        memory_nodes: u16,
        space: SegmentSpace,
    ) -> Self {
        let has_share = me.node.role() == Role::Memory || me.incarnation <= 1;
        let owned = |p: &u16| has_share && first_owner(*p, compute_nodes, memory_nodes) == me.node;
        let partitions = (0..PARTITIONS).filter(owned).map(|p| Partition::new(p, me)).collect();
        let state = OwnerState { partitions, released: Vec::new(), opened: 0 };
        Self { me, space, images: ImageRoom::default(), state: Mutex::new(state) }
    }

    /// How many partitions the node owns.
    pub(crate) fn partitions(&self) -> u64 {
        locked(&self.state).partitions.len() as u64
    }

    /// Whether a cell lies in a partition that the node owns.
    pub(crate) fn serves(&self, t: TableId) -> bool {
        let number = t.partition();
        locked(&self.state).partitions.iter().any(|p| Some(p.number) == number)
    }

    /// The room for images on this node.
    pub(crate) fn images(&self) -> &ImageRoom {
        &self.images
    }

    /// Makes this node the owner of a partition: zeroed segments for all its cells, then the
    /// directory. False: no room. Idempotent. A partition that this node has released, and that no
    /// other node has served since (its moves tell), comes back as it was.
    async fn adopt(&self, ep: &Endpoint, wanted: Partition) -> Result<bool> {
        let number = wanted.number;
        let known = |s: &OwnerState| s.partitions.iter().position(|p| p.number == number);
        let mut p = {
            let mut s = locked(&self.state);
            let mine = known(&s).map(|i| s.partitions[i].clone());
            let back = s.released.iter().position(|p| p.number == number);
            let back = back.map(|i| s.released.swap_remove(i));
            let fresh = || Partition::new(number, self.me);
            match (mine, back) {
                (Some(p), _) => p,
                (None, Some(p)) if p.moves + 1 == wanted.moves && p.index == wanted.index => p,
                (None, back) => {
                    back.iter().for_each(|p| self.free_segments(p));
                    fresh()
                }
            }
        };
        p.moves = p.moves.max(wanted.moves);
        p.lines = p.lines.max(wanted.lines);
        p.index = wanted.index;
        while segment_start(p.grown()) < p.lines {
            let grown = p.grown();
            let Some(at) = self.room(ep, number, segment_bytes(grown)).await? else {
                // No client has seen the segments taken so far: they are free again.
                if !locked(&self.state).partitions.iter().any(|p| p.number == number) {
                    self.free_segments(&p);
                }
                return Ok(false);
            };
            p.segments[grown] = GlobalAddr::new(self.me.node, at).bits();
        }
        debug_assert_eq!(p.owner, self.me, "a node adopts for itself");
        debug_assert!(p.lines >= wanted.lines && p.moves >= wanted.moves, "marks only grow");
        self.publish(ep, &p).await?;
        let mut s = locked(&self.state);
        match known(&s) {
            Some(i) => s.partitions[i] = p,
            None => s.partitions.push(p),
        }
        Ok(true)
    }

    /// Stops serving partitions: another node is to own them.
    fn release(&self, numbers: &[u16]) {
        let mut s = locked(&self.state);
        let gone = |p: &mut Partition| numbers.contains(&p.number);
        let gone: Vec<_> = s.partitions.extract_if(.., gone).collect();
        s.released.extend(gone);
        numbers.iter().for_each(|number| self.images.forget(*number));
    }

    /// Memory for a segment of a partition. When there is none, segments of partitions that have
    /// moved away may be there.
    async fn room(&self, ep: &Endpoint, partition: u16, bytes: u64) -> Result<Option<u64>> {
        self.free_released(ep).await?;
        self.space.take(ep, partition, bytes).await
    }

    /// Segments of released partitions are free when the directory names another owner with a later
    /// move: the claimant writes that after every client has stopped using them.
    async fn free_released(&self, ep: &Endpoint) -> Result<()> {
        let released: Vec<_> =
            locked(&self.state).released.iter().map(|p| (p.number, p.moves)).collect();
        for (number, moves) in released {
            let bytes = ep.read(Partition::record(number), DIRECTORY_BYTES as u32).await?;
            let Ok(Some(now)) = bytes.extract(|b| Partition::decode(b, number)) else { continue };
            if now.owner == self.me || now.moves <= moves {
                continue;
            }
            let mut s = locked(&self.state);
            let at = s.released.iter().position(|p| p.number == number);
            let gone = at.map(|i| s.released.swap_remove(i));
            drop(s);
            gone.iter().for_each(|p| self.free_segments(p));
        }
        Ok(())
    }

    fn free_segments(&self, p: &Partition) {
        for (j, base) in p.segments[..p.grown()].iter().enumerate() {
            let at = GlobalAddr::from_bits(*base).offset();
            self.space.give_back(p.number, at, segment_bytes(j));
        }
    }

    async fn publish(&self, ep: &Endpoint, p: &Partition) -> Result<()> {
        ep.write_bytes(Partition::record(p.number), &p.encode()).await
    }

    /// Cuts up to `count` cells for an index, and smaller ones of what is left at the end of a
    /// segment. An empty answer: full, or no room for images of this index.
    async fn cells(&self, ep: &Endpoint, of: CellSize, count: u16) -> Result<Vec<TableId>> {
        let reserved = self.images.reserve(of, count);
        let (lines, count) = (of.1, reserved.count);
        let mut out = reserved.withheld();
        let (mut tried, mut may_look) = (Vec::new(), true);
        while of_size(&out, lines) < usize::from(count) {
            let wanted = usize::from(count) - of_size(&out, lines);
            let Some(at) = self.pick(ep, of, &tried, &mut may_look).await? else { break };
            match self.cut_from(ep, at, of, wanted, &mut out).await {
                Ok(Cut::Some) => {}
                Ok(Cut::None) => tried.push(at),
                Ok(Cut::Full) if may_look => tried.push(at),
                Ok(Cut::Full) => break,
                // Published cells are granted; the error shows again on the next call.
                Err(_) if !out.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        reserved.grant(&out);
        Ok(out)
    }

    /// The partition to cut cells of an index from, by its number: one of its own that has lines
    /// left, else a new or a larger one.
    async fn pick(
        &self,
        ep: &Endpoint,
        of: CellSize,
        tried: &[u16],
        may_look: &mut bool,
    ) -> Result<Option<u16>> {
        let place = |s: &OwnerState| choose(&s.partitions, of, tried);
        let (choice, many) = {
            let mut s = locked(&self.state);
            let choice = place(&s);
            s.opened += u32::from(matches!(choice, Choice::Opens(_)));
            (choice, s.opened >= LOOK_EVERY)
        };
        let needs = matches!(choice, Choice::None) || many || !tried.is_empty();
        if matches!(choice, Choice::Has(_)) || !needs || !std::mem::take(may_look) {
            return Ok(choice.number());
        }
        locked(&self.state).opened = 0;
        self.forget_dropped(ep).await?;
        Ok(place(&locked(&self.state)).number())
    }

    /// Frees the partitions of indexes that were purged: no operation looks for their tables.
    async fn forget_dropped(&self, ep: &Endpoint) -> Result<()> {
        let owned = |p: &&Partition| !matches!(p.index, NO_INDEX | ANY_INDEX);
        let owned: Vec<_> = locked(&self.state).partitions.iter().filter(owned).cloned().collect();
        if owned.is_empty() {
            return Ok(());
        }
        let there = live_indexes(ep).await?;
        let mut zeroed = 0;
        for mut p in owned.into_iter().filter(|p| !there.contains(&p.index)) {
            if zeroed >= FORGET_BYTES {
                break;
            }
            // The directory first: lines above its mark belong to no index, so a crash here loses
            // nothing.
            let used = p.lines;
            (p.lines, p.index) = (0, NO_INDEX);
            self.images.forget(p.number);
            self.publish(ep, &p).await?;
            for j in 0..p.grown() {
                let lines = used.saturating_sub(segment_start(j)) * LINE;
                let bytes = lines.min(segment_bytes(j));
                zero(ep, GlobalAddr::from_bits(p.segments[j]), bytes).await?;
                zeroed += bytes;
            }
            self.with(p.number, |now| *now = p);
        }
        Ok(())
    }

    /// Changes a partition, if it is still this node's.
    fn with(&self, number: u16, change: impl FnOnce(&mut Partition)) {
        let mut s = locked(&self.state);
        s.partitions.iter_mut().find(|p| p.number == number).map(change);
    }

    /// Cuts cells of a partition; a free partition becomes the index's.
    async fn cut_from(
        &self,
        ep: &Endpoint,
        number: u16,
        (index, lines): CellSize,
        wanted: usize,
        out: &mut Vec<TableId>,
    ) -> Result<Cut> {
        let (found, free) = {
            let s = locked(&self.state);
            let free = s.partitions.iter().filter(|p| p.index == NO_INDEX).count();
            (s.partitions.iter().find(|p| p.number == number).cloned(), free)
        };
        let Some(mut p) = found else { return Ok(Cut::None) };
        if p.index != index {
            // The last free one is shared by all indexes, and so is one that has another index's
            // cells.
            p.index = if p.index == NO_INDEX && free > 1 { index } else { ANY_INDEX };
        }
        let mut cells = p.cut(lines, wanted);
        while cells.is_empty() {
            let grown = p.grown();
            if grown == SEGMENTS {
                return Ok(Cut::None);
            }
            let Some(at) = self.room(ep, number, segment_bytes(grown)).await? else {
                // There is no smaller segment than a first one.
                return Ok(if grown == 0 { Cut::Full } else { Cut::None });
            };
            let base = GlobalAddr::new(self.me.node, at).bits();
            // The segment stays with the partition even if the record cannot be written now.
            self.with(number, |p| p.segments[grown] = base);
            p.segments[grown] = base;
            cells = p.cut(lines, wanted);
        }
        let is_covered = |t: &TableId| t.first_line() + u64::from(t.lines()) <= p.lines;
        debug_assert!(cells.iter().all(is_covered), "cells above the mark of partition {number}");
        // The directory covers a cell before a client gets it: a reader refuses ids above the mark.
        self.publish(ep, &p).await?;
        self.with(number, |now| *now = p);
        let cut = if cells.is_empty() { Cut::None } else { Cut::Some };
        out.append(&mut cells);
        Ok(cut)
    }
}

impl Service for OwnerService {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let mut rest = request;
        let head: Head = wire::take(&mut rest)?;
        match head {
            STRETCH => {
                let Stretch { bytes, least } = wire::decode(rest)?;
                // 0 is no stretch's offset: full.
                let (at, bytes) = self.space.stretch(bytes, least).unwrap_or((0, 0));
                Ok(wire::encode(&(Word(at), Word(bytes))))
            }
            ADOPT => {
                let Adopt { number, moves, lines, index } = wire::decode(rest)?;
                if number >= PARTITIONS || lines > segment_start(SEGMENTS) {
                    let text = format!("there is no partition {number} of {lines} lines");
                    return Err(Error::invalid(text));
                }
                let wanted = Partition { moves, lines, index, ..Partition::new(number, self.me) };
                Ok(wire::encode(&self.adopt(ep, wanted).await?))
            }
            RELEASE => {
                let numbers = wire::decode_list(rest)?;
                self.release(&numbers.iter().map(|Quarter(n)| *n).collect::<Vec<_>>());
                Ok(Vec::new())
            }
            FLUSH => wire::ends(rest).map(|()| Vec::new()),
            CELL_AT => {
                let Word(line) = wire::decode(rest)?;
                let cell = self.images.cell_at(TableId::from_bits(line));
                Ok(wire::encode(&Word(cell.unwrap_or(TableId::NONE).bits())))
            }
            (lines @ 1.., Quarter(count @ 1..=MAX_CELLS)) => {
                let Half(index) = wire::decode(rest)?;
                let cells = self.cells(ep, (index, lines), count).await?;
                Ok(wire::with_list(&(), cells.iter().map(|t| Word(t.bits()))))
            }
            (lines, Quarter(count)) => Err(Error::invalid(format!(
                "{count} cells of {lines} lines: a call grants 1 to {MAX_CELLS} cells"
            ))),
        }
    }
}

impl Partition {
    /// Whether a cell can be cut from the segments that are there.
    fn has(&self, lines: u8) -> bool {
        self.next_place(lines).is_some()
    }

    /// The first line of the next cell; a cell never straddles two segments.
    fn next_place(&self, lines: u8) -> Option<u64> {
        let (lines, mut first) = (u64::from(lines), self.lines);
        // The first segments are smaller than a cell with an image.
        while first + lines > segment_start(segment_of(first) + 1) {
            first = segment_start(segment_of(first) + 1);
        }
        (first + lines <= segment_start(self.grown())).then_some(first)
    }

    /// Cuts cells from the segments that are there. What is too short for one at the end of a
    /// segment is smaller ones, beside those that are wanted.
    fn cut(&mut self, lines: u8, wanted: usize) -> Vec<TableId> {
        let mut out = Vec::new();
        for _ in 0..wanted {
            let Some(first) = self.next_place(lines) else { break };
            let rest = first - self.lines;
            if rest > 0 && lines <= TABLE_LINES {
                out.push(TableId::new(self.number, rest as u8, self.lines));
            } else {
                out.extend((self.lines..first).map(|line| TableId::new(self.number, 1, line)));
            }
            out.push(TableId::new(self.number, lines, first));
            self.lines = first + u64::from(lines);
        }
        out
    }
}

/// The result of cutting cells from one partition.
enum Cut {
    Some,
    /// Nothing: it cannot grow.
    None,
    /// Nothing, and no other one can grow either.
    Full,
}

/// Where cells for an index come from.
enum Choice {
    /// A partition that has lines left.
    Has(u16),
    /// A free one, or one that has to grow.
    Opens(u16),
    None,
}

impl Choice {
    fn number(&self) -> Option<u16> {
        match self {
            Self::Has(p) | Self::Opens(p) => Some(*p),
            Self::None => None,
        }
    }
}

/// A partition belongs to one index, so that all of it is free again when the index is gone. An
/// index opens more of them, so that they can move to several owners, as long as it has few of what
/// is left. The last free one of an owner is for all indexes that come later.
fn choose(partitions: &[Partition], (index, lines): CellSize, tried: &[u16]) -> Choice {
    let is_left = |p: &&Partition| !tried.contains(&p.number);
    let of = |owner: u32| partitions.iter().filter(move |p| p.index == owner && is_left(p));
    let smallest =
        |owner: u32| of(owner).filter(|p| p.grown() < SEGMENTS).min_by_key(|p| p.grown());
    if let Some(p) = of(index).find(|p| p.has(lines)) {
        return Choice::Has(p.number);
    }
    let (own, free) = (of(index).count(), of(NO_INDEX).count());
    let opens = free > 1 && own * OPEN_ONE_OF < free;
    if let Some(p) = of(NO_INDEX).next().filter(|_| opens) {
        return Choice::Opens(p.number);
    }
    if let Some(p) = smallest(index) {
        return Choice::Opens(p.number);
    }
    if let Some(p) = of(ANY_INDEX).find(|p| p.has(lines)) {
        return Choice::Has(p.number);
    }
    let last = of(NO_INDEX).next().or_else(|| smallest(ANY_INDEX));
    let all = || partitions.iter().filter(is_left);
    let last = last.or_else(|| all().filter(|p| p.grown() < SEGMENTS).min_by_key(|p| p.grown()));
    last.map_or(Choice::None, |p| Choice::Opens(p.number))
}

fn of_size(cells: &[TableId], lines: u8) -> usize {
    cells.iter().filter(|t| t.lines() == lines).count()
}

/// Asks an owner for up to `count` cells of `lines` lines, beside which smaller ones may come;
/// empty: it is full.
pub(crate) async fn ask_cells(
    ep: &Endpoint,
    owner: NodeId,
    (index, lines): CellSize,
    count: u16,
) -> Result<Vec<TableId>> {
    let head: Head = (lines, Quarter(count));
    let request = wire::encode(&(head, Half(index)));
    let reply = call_within(ep, LONGEST_CALL_NS, owner, CELL_SERVICE, &request).await?;
    let mut out = Vec::new();
    for Word(bits) in wire::decode_list(&reply)? {
        let t = TableId::from_bits(bits);
        let many = t.lines() == lines && of_size(&out, lines) >= usize::from(count);
        if t.place().is_none() || t.lines() > lines || many {
            return Err(Error::corrupt(format!("{owner} granted {t:?}, which cannot exist")));
        }
        out.push(t);
    }
    Ok(out)
}

/// Makes a node the next owner of a partition, as its record describes it; false: it has no room.
pub(crate) async fn ask_adopt(
    ep: &Endpoint,
    longest_ns: u64,
    owner: NodeId,
    p: &Partition,
) -> Result<bool> {
    let Partition { number, moves, lines, index, .. } = *p;
    let request = wire::encode(&(ADOPT, Adopt { number, moves: moves + 1, lines, index }));
    let reply = call_within(ep, longest_ns, owner, CELL_SERVICE, &request).await?;
    wire::decode(&reply)
}

/// Makes a node grant no more cells of some partitions.
pub(crate) async fn ask_release(
    ep: &Endpoint,
    longest_ns: u64,
    owner: NodeId,
    numbers: &[u16],
) -> Result<()> {
    let request = wire::with_list(&RELEASE, numbers.iter().map(|n| Quarter(*n)));
    call_within(ep, longest_ns, owner, CELL_SERVICE, &request).await.map(|_| ())
}

/// Returns when an owner has carried out every call that came before this one.
pub(crate) async fn ask_flush(ep: &Endpoint, longest_ns: u64, owner: NodeId) -> Result<()> {
    call_within(ep, longest_ns, owner, CELL_SERVICE, &wire::encode(&FLUSH)).await.map(|_| ())
}

/// Asks a compute node for the cell with an image that it has cut around a line; `None` when it
/// has cut none there.
pub(crate) async fn ask_cell_at(
    ep: &Endpoint,
    owner: NodeId,
    line: TableId,
) -> Result<Option<TableId>> {
    let request = wire::encode(&(CELL_AT, Word(line.bits())));
    let reply = call_within(ep, LONGEST_CALL_NS, owner, CELL_SERVICE, &request).await?;
    let Word(bits) = wire::decode(&reply)?;
    let cell = Some(TableId::from_bits(bits)).filter(|t| *t != TableId::NONE);
    match cell {
        Some(t) if t.place().is_none() || !t.holds(line) => {
            Err(Error::corrupt(format!("{owner} says that {t:?} is around {line:?}")))
        }
        cell => Ok(cell),
    }
}

/// The error of an operation that needs a table without a present owner.
#[cold]
pub(crate) fn unowned(number: u16, owner: Member) -> Error {
    Error::unreachable(format!(
        "the tables of partition {number} are between owners ({owner} was the last): try again"
    ))
}

/// Asks a compute node for a stretch of its table memory; `None`: it has no room.
pub(crate) async fn ask_stretch(
    ep: &Endpoint,
    owner: NodeId,
    bytes: u64,
    least: u64,
) -> Result<Option<(GlobalAddr, u64)>> {
    let request = wire::encode(&(STRETCH, Stretch { bytes, least }));
    let reply = call_within(ep, LONGEST_CALL_NS, owner, CELL_SERVICE, &request).await?;
    let (Word(at), Word(granted)) = wire::decode(&reply)?;
    if at == 0 {
        return Ok(None);
    }
    if at < compute_base() || at >= GlobalAddr::MAX_OFFSET || granted < least {
        return Err(Error::corrupt(format!(
            "{owner} granted {granted} bytes at {at:#x}, which cannot be"
        )));
    }
    Ok(Some((GlobalAddr::new(owner, at), granted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The cost of a call on a simulated fabric follows from its length.
    #[test]
    fn calls_have_their_lengths() {
        let adopt = Adopt { number: 1, moves: 300, lines: 7, index: u32::MAX };
        let head: Head = (4, Quarter(MAX_CELLS));
        assert_eq!(wire::encode(&(head, Half(1))).len(), 7);
        assert_eq!(wire::encode(&(ADOPT, adopt)).len(), 21);
        assert_eq!(wire::encode(&(STRETCH, Stretch { bytes: 1, least: 1 << 40 })).len(), 19);
        assert_eq!(wire::with_list(&RELEASE, [Quarter(1), Quarter(300)]).len(), 7);
    }

    /// Cuts cells of these sizes and numbers.
    fn cut_all(cuts: Vec<(u8, usize)>) -> Result<(), TestCaseError> {
        let mut p = Partition::new(3, Member { node: NodeId::compute(3), incarnation: 1 });
        let mut end = 0;
        for (lines, wanted) in cuts {
            let mut cells = p.cut(lines, wanted);
            while cells.is_empty() && p.grown() < 12 {
                let grown = p.grown();
                p.segments[grown] = GlobalAddr::new(p.owner.node, 1024 << grown).bits();
                cells = p.cut(lines, wanted);
            }
            let right = of_size(&cells, lines);
            prop_assert!(right <= wanted && (right > 0 || cells.is_empty()));
            for t in cells {
                let (partition, segment, _) = t.place().expect("inside one segment");
                prop_assert!(partition == 3 && segment < p.grown());
                prop_assert_eq!(t.first_line(), end, "no line is left out");
                prop_assert!(t.lines() <= lines);
                end = t.first_line() + u64::from(t.lines());
                prop_assert!(end <= p.lines, "below the mark");
            }
        }
        prop_assert_eq!(Partition::decode(&p.encode(), 3), Ok(Some(p.clone())));
        prop_assert!(Partition::decode(&p.encode(), 4).is_err());
        Ok(())
    }

    /// The rest of a segment is cut into cells of several sizes before the next one is used.
    #[test]
    fn a_large_cell_behind_the_rest_of_a_segment() {
        cut_all(vec![(1, 1), (3, 5), (2, 1), (33, 1), (33, 1)]).expect("cells");
    }

    proptest! {
        #[test]
        fn cells_of_all_sizes_lie_in_one_segment_each(cuts in proptest::collection::vec((prop_oneof![1u8..=4, 20u8..=90], 1usize..20), 1..60)) {
            cut_all(cuts)?;
        }
    }
}
