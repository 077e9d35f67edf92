//! The cell service of a home node: cuts cells of fingerprint tables out of the partitions that live there.

use std::sync::{Arc, Mutex};

use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, Member, NodeId, Result, Role, RpcFuture, RpcHandler,
    ServiceId,
};

use crate::chunks::{ChunkService, RunRequest};
use crate::ids::{
    COMPUTE_PARTITIONS, MEMORY_PARTITIONS, PARTITIONS, SEGMENTS, TableId, segment_bytes,
    segment_of, segment_start,
};
use crate::layout::{ChunkUse, Partition, compute_base};
use crate::wire::{Fields, LONGEST_CALL_NS, call_within, locked};

/// Cells of tables, on every compute and every memory node.
pub(crate) const CELL_SERVICE: ServiceId = ServiceId(0x11);
/// Instead of a size and a number of cells: a stretch of bare memory.
const STRETCH: (u8, u16) = (0, 0);
/// Instead of a size and a number of cells: take a partition over.
const ADOPT: (u8, u16) = (0, 1);
/// Instead of a size and a number of cells: grant no more cells of these partitions.
const RELEASE: (u8, u16) = (0, 2);
/// Instead of a size and a number of cells: answer when whatever was asked for before has been done.
const SETTLE: (u8, u16) = (0, 3);
/// Most cells of one call.
pub(crate) const MAX_CELLS: u16 = 256;

/// The node a partition lives on at first.
pub(crate) fn first_home(partition: u16, compute_nodes: u16, memory_nodes: u16) -> NodeId {
    match partition.checked_sub(COMPUTE_PARTITIONS) {
        None => NodeId::compute(partition % compute_nodes),
        Some(p) => NodeId::memory(p % memory_nodes),
    }
}

/// How many nodes of a side are homes at all.
pub(crate) fn homes_of(side: Role, compute_nodes: u16, memory_nodes: u16) -> u16 {
    match side {
        Role::Compute => compute_nodes.min(COMPUTE_PARTITIONS),
        Role::Memory => memory_nodes.min(MEMORY_PARTITIONS),
    }
}

/// Where a home takes segments from. All of it is zero when taken, and none of it comes back.
pub(crate) enum Space {
    /// The rest of a compute node's region: next byte, end.
    Region(Mutex<(u64, u64)>),
    /// Chunks of a memory node: rests of chunks taken before.
    Chunks { service: Arc<ChunkService>, chunk_bytes: u64, rests: Mutex<Vec<(u64, u64)>> },
}

impl Space {
    pub(crate) fn region(bytes: u64) -> Self {
        Self::Region(Mutex::new((compute_base(), bytes)))
    }

    async fn take(&self, ep: &Endpoint, bytes: u64) -> Result<Option<u64>> {
        match self {
            Self::Region(rest) => {
                let mut rest = locked(rest);
                Ok(cut(&mut rest, bytes))
            }
            Self::Chunks { service, chunk_bytes, rests } => {
                if let Some(at) = locked(rests).iter_mut().find_map(|r| cut(r, bytes)) {
                    return Ok(Some(at));
                }
                let count = bytes.div_ceil(*chunk_bytes) as u32;
                let (used_for, owner) = (ChunkUse::Tables, ep.node());
                let r =
                    RunRequest { used_for, kind: 0, index: 0, object_bytes: 0, count, least: 0 };
                let Some(at) = service.take(ep, owner, 0, r).await? else { return Ok(None) };
                let end = at + u64::from(count) * chunk_bytes;
                let mut rests = locked(rests);
                rests.retain(|(next, end)| next < end);
                rests.push((at + bytes, end));
                Ok(Some(at))
            }
        }
    }
}

fn cut(rest: &mut (u64, u64), bytes: u64) -> Option<u64> {
    let at = rest.0;
    (at + bytes <= rest.1).then(|| rest.0 += bytes)?;
    Some(at)
}

struct State {
    partitions: Vec<Partition>,
    cursor: usize,
}

/// The service.
pub(crate) struct HomeService {
    me: Member,
    space: Space,
    state: Mutex<State>,
}

impl HomeService {
    /// The service of a node of a new pool.
    pub(crate) fn new(me: Member, compute_nodes: u16, memory_nodes: u16, space: Space) -> Self {
        let homed = |p: &u16| first_home(*p, compute_nodes, memory_nodes) == me.node;
        let partitions = (0..PARTITIONS).filter(homed).map(|p| Partition::new(p, me)).collect();
        Self { me, space, state: Mutex::new(State { partitions, cursor: 0 }) }
    }

    /// The service of a node that joins later: the home of nothing yet.
    pub(crate) fn empty(me: Member, space: Space) -> Self {
        Self { me, space, state: Mutex::new(State { partitions: Vec::new(), cursor: 0 }) }
    }

    /// Makes this node the home of a partition: zeroed segments for all its cells, then the directory. False: no room. Asked
    /// again, it says so again.
    async fn adopt(&self, ep: &Endpoint, number: u16, moves: u32, lines: u64) -> Result<bool> {
        let known = |s: &State| s.partitions.iter().position(|p| p.number == number);
        let mut p = {
            let s = locked(&self.state);
            known(&s).map_or_else(|| Partition::new(number, self.me), |i| s.partitions[i].clone())
        };
        p.moves = p.moves.max(moves);
        p.lines = p.lines.max(lines);
        while segment_start(p.grown()) < p.lines {
            let grown = p.grown();
            let Some(at) = self.space.take(ep, segment_bytes(grown)).await? else {
                return Ok(false);
            };
            p.segments[grown] = GlobalAddr::new(self.me.node, at).bits();
        }
        self.publish(ep, &p).await?;
        let mut s = locked(&self.state);
        match known(&s) {
            Some(i) => s.partitions[i] = p,
            None => s.partitions.push(p),
        }
        Ok(true)
    }

    /// Forgets partitions: another node is to be their home.
    fn release(&self, numbers: &[u16]) {
        let mut s = locked(&self.state);
        s.partitions.retain(|p| !numbers.contains(&p.number));
        s.cursor = 0;
    }

    async fn publish(&self, ep: &Endpoint, p: &Partition) -> Result<()> {
        let bytes = p.encode();
        let mut buf = ep.buf(bytes.len() as u32).await?;
        buf.copy_from_slice(&bytes);
        ep.write(Partition::record(p.number), buf).await.map(|_| ())
    }

    /// Cuts up to `count` cells, and smaller ones of what is left at the end of a segment. It fills a segment before it goes on to the
    /// next partition, so that partitions grow evenly and a small pool does not open them all. An empty answer: full.
    async fn cells(&self, ep: &Endpoint, lines: u8, count: u16) -> Result<Vec<TableId>> {
        let mut out = Vec::new();
        let (n, first) = {
            let s = locked(&self.state);
            (s.partitions.len(), s.cursor)
        };
        // (A node that has joined late may be the home of nothing.)
        for step in 0..n {
            let i = (first + step) % n;
            let wanted = usize::from(count) - of_size(&out, lines);
            match self.cut_from(ep, i, lines, wanted, &mut out).await {
                Ok(()) => {}
                // What is published already is granted; the error shows again on the next call.
                Err(_) if !out.is_empty() => return Ok(out),
                Err(e) => return Err(e),
            }
            let mut s = locked(&self.state);
            let done = of_size(&out, lines) == usize::from(count);
            let more = done && !s.partitions[i].is_exhausted();
            s.cursor = if more { i } else { (i + 1) % n };
            if done {
                break;
            }
        }
        Ok(out)
    }

    async fn cut_from(
        &self,
        ep: &Endpoint,
        i: usize,
        lines: u8,
        wanted: usize,
        out: &mut Vec<TableId>,
    ) -> Result<()> {
        let mut p = locked(&self.state).partitions[i].clone();
        let mut cells = p.cut(lines, wanted);
        if cells.is_empty() {
            let grown = p.grown();
            if grown == SEGMENTS {
                return Ok(());
            }
            let Some(at) = self.space.take(ep, segment_bytes(grown)).await? else {
                return Ok(());
            };
            let base = GlobalAddr::new(self.me.node, at).bits();
            // The segment stays with the partition even if the record cannot be written now.
            locked(&self.state).partitions[i].segments[grown] = base;
            p.segments[grown] = base;
            cells = p.cut(lines, wanted);
        }
        // The directory knows a cell before anybody gets it.
        self.publish(ep, &p).await?;
        locked(&self.state).partitions[i] = p;
        out.append(&mut cells);
        Ok(())
    }

    /// A stretch of this compute node's table memory: up to `bytes`, at least `least`. Whole lines, so that segments stay
    /// aligned. `None`: no such room.
    fn stretch(&self, bytes: u64, least: u64) -> Option<(u64, u64)> {
        let Space::Region(rest) = &self.space else { return None };
        let mut rest = locked(rest);
        let left = (rest.1 - rest.0) & !63;
        let granted = bytes.checked_next_multiple_of(64)?.min(left);
        if granted == 0 || granted < least {
            return None;
        }
        cut(&mut rest, granted).map(|at| (at, granted))
    }

    async fn answer(&self, ep: &Endpoint, request: &[u8]) -> Result<Vec<u8>> {
        let mut f = Fields(request);
        let (lines, count) = (f.u8()?, f.u16()?);
        if (lines, count) == STRETCH {
            // 0 is no stretch's offset: full.
            let (at, bytes) = self.stretch(f.u64()?, f.u64()?).unwrap_or((0, 0));
            return Ok([at.to_le_bytes(), bytes.to_le_bytes()].concat());
        }
        if (lines, count) == ADOPT {
            let (number, moves, lines) = (f.u16()?, f.u32()?, f.u64()?);
            if number >= PARTITIONS || lines > segment_start(SEGMENTS) {
                return Err(Error::invalid(format!(
                    "there is no partition {number} of {lines} lines"
                )));
            }
            return Ok(vec![u8::from(self.adopt(ep, number, moves, lines).await?)]);
        }
        if (lines, count) == RELEASE {
            let mut numbers = Vec::new();
            while !f.0.is_empty() {
                numbers.push(f.u16()?);
            }
            self.release(&numbers);
            return Ok(Vec::new());
        }
        if (lines, count) == SETTLE {
            return Ok(Vec::new());
        }
        if !(1..=4).contains(&lines) || count == 0 || count > MAX_CELLS {
            return Err(Error::invalid(format!(
                "{count} cells of {lines} lines: a call grants 1 to {MAX_CELLS} cells of 1 to 4 lines"
            )));
        }
        let cells = self.cells(ep, lines, count).await?;
        Ok(cells.iter().flat_map(|t| t.bits().to_le_bytes()).collect())
    }
}

impl RpcHandler for HomeService {
    fn call<'a>(&'a self, ep: &'a Endpoint, _from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(self.answer(ep, request))
    }
}

impl Partition {
    fn is_exhausted(&self) -> bool {
        self.lines == segment_start(self.grown())
    }

    /// Cuts cells from the segments that are there; a cell never straddles two. What is too short for one at the end of a segment is
    /// a smaller one, beside those that are wanted.
    fn cut(&mut self, lines: u8, wanted: usize) -> Vec<TableId> {
        let mut out = Vec::new();
        let mut cut = 0;
        let end = segment_start(self.grown());
        while cut < wanted {
            let mut first = self.lines;
            let segment_end = segment_start(segment_of(first) + 1);
            if first + u64::from(lines) > segment_end {
                first = segment_end;
            }
            if first + u64::from(lines) > end {
                break;
            }
            if first > self.lines {
                out.push(TableId::new(self.number, (first - self.lines) as u8, self.lines));
            }
            out.push(TableId::new(self.number, lines, first));
            cut += 1;
            self.lines = first + u64::from(lines);
        }
        out
    }
}

fn of_size(cells: &[TableId], lines: u8) -> usize {
    cells.iter().filter(|t| t.lines() == lines).count()
}

/// Asks a home for up to `count` cells of `lines` lines, beside which smaller ones may come; empty: it is full.
pub(crate) async fn ask_cells(
    ep: &Endpoint,
    home: NodeId,
    lines: u8,
    count: u16,
) -> Result<Vec<TableId>> {
    let mut request = vec![lines];
    request.extend(count.to_le_bytes());
    let reply = call_within(ep, LONGEST_CALL_NS, home, CELL_SERVICE, &request).await?;
    let mut f = Fields(&reply);
    let mut out = Vec::new();
    while !f.0.is_empty() {
        let t = TableId::from_bits(f.u64()?);
        let many = t.lines() == lines && of_size(&out, lines) >= usize::from(count);
        if t.place().is_none() || t.lines() > lines || many {
            return Err(Error::corrupt(format!("{home} granted {t:?}, which cannot exist")));
        }
        out.push(t);
    }
    Ok(out)
}

fn header(what: (u8, u16)) -> Vec<u8> {
    let mut request = vec![what.0];
    request.extend(what.1.to_le_bytes());
    request
}

/// Makes a node the home of a partition of which `lines` lines were granted; false: it has no room.
pub(crate) async fn ask_adopt(
    ep: &Endpoint,
    longest_ns: u64,
    home: NodeId,
    number: u16,
    moves: u32,
    lines: u64,
) -> Result<bool> {
    let mut request = header(ADOPT);
    request.extend(number.to_le_bytes());
    request.extend(moves.to_le_bytes());
    request.extend(lines.to_le_bytes());
    let reply = call_within(ep, longest_ns, home, CELL_SERVICE, &request).await?;
    Ok(Fields(&reply).u8()? == 1)
}

/// Makes a node grant no more cells of some partitions.
pub(crate) async fn ask_release(
    ep: &Endpoint,
    longest_ns: u64,
    home: NodeId,
    numbers: &[u16],
) -> Result<()> {
    let mut request = header(RELEASE);
    request.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    call_within(ep, longest_ns, home, CELL_SERVICE, &request).await.map(|_| ())
}

/// Returns when a home has done what anybody asked it for before.
pub(crate) async fn ask_settle(ep: &Endpoint, longest_ns: u64, home: NodeId) -> Result<()> {
    call_within(ep, longest_ns, home, CELL_SERVICE, &header(SETTLE)).await.map(|_| ())
}

/// The error of whoever needs a table whose home is gone.
#[cold]
pub(crate) fn homeless(number: u16, home: Member) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the tables of partition {number} are between homes ({home} was the last): try again"
        ),
    )
}

/// Asks a compute node for a stretch of its table memory; `None`: it has no room.
pub(crate) async fn ask_stretch(
    ep: &Endpoint,
    home: NodeId,
    bytes: u64,
    least: u64,
) -> Result<Option<(GlobalAddr, u64)>> {
    let mut request = vec![STRETCH.0];
    request.extend(STRETCH.1.to_le_bytes());
    request.extend(bytes.to_le_bytes());
    request.extend(least.to_le_bytes());
    let reply = call_within(ep, LONGEST_CALL_NS, home, CELL_SERVICE, &request).await?;
    let mut f = Fields(&reply);
    let (at, granted) = (f.u64()?, f.u64()?);
    if at == 0 {
        return Ok(None);
    }
    if at < compute_base() || at >= GlobalAddr::MAX_OFFSET || granted < least {
        return Err(Error::corrupt(format!(
            "{home} granted {granted} bytes at {at:#x}, which cannot be"
        )));
    }
    Ok(Some((GlobalAddr::new(home, at), granted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cells_of_all_sizes_lie_in_one_segment_each(cuts in proptest::collection::vec((1u8..=4, 1usize..20), 1..60)) {
            let mut p = Partition::new(3, Member { node: NodeId::compute(3), incarnation: 1 });
            let mut end = 0;
            for (lines, wanted) in cuts {
                let cells = p.cut(lines, wanted);
                if cells.is_empty() {
                    let grown = p.grown();
                    p.segments[grown] = GlobalAddr::new(p.home.node, 1024 << grown).bits();
                }
                let right = of_size(&cells, lines);
                prop_assert!(right <= wanted && (right > 0 || cells.is_empty()));
                for t in cells {
                    let (partition, segment, _) = t.place().expect("inside one segment");
                    prop_assert!(partition == 3 && segment < p.grown());
                    prop_assert_eq!(t.first_line(), end, "no line is nobody's");
                    prop_assert!(t.lines() <= lines);
                    end = t.first_line() + u64::from(t.lines());
                    prop_assert!(end <= p.lines, "below the mark");
                }
            }
            prop_assert_eq!(Partition::decode(&p.encode(), 3), Ok(Some(p.clone())));
            prop_assert!(Partition::decode(&p.encode(), 4).is_err());
        }
    }
}
