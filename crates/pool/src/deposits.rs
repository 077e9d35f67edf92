//! The deposits of a memory node: free memory that no compute node holds. Objects keep the last
//! generation of their address; space for blocks is kept as extents by index; table cells of all
//! nodes lie on memory node 0.
//!
//! A compute node deposits what its lists hold when it leaves, and the surplus of an arena after
//! reclamation (`lend.rs`). The chunk service answers the next request of the same index and kind
//! with deposits before it takes a chunk: at most one chunk's worth, and never more than one
//! message holds.
//!
//! Invariants. A piece is on the list of one compute node or in one deposit, never in both: it is
//! deposited after it has left the list, and handed out by removal. Pieces are checked against the
//! layout (inside one chunk of this node, not free already), because they come from outside;
//! implausible ones are refused. Space that makes up a whole chunk belongs to no index any more:
//! [`Deposits::take_whole`] takes it out, and the chunk service frees the chunk.
//!
//! Deposits are volatile, as the chunk states are. A call that deposits may be carried out although
//! its sender has not seen the answer; the sender then keeps the pieces listed as pending for as
//! long as it lives, so garbage collection takes them for held. A hand-out with a lost answer is
//! lost memory, until garbage collection finds it.

use std::collections::{BTreeMap, VecDeque};

use dmtree_fabric::GlobalAddr;

use crate::arena::{ArenaKey, Grant};
use crate::extents::Extents;
use crate::gc_log::Span;
use crate::ids::TableId;
use crate::layout::NodeLayout;
use crate::pieces::{MAX_PIECES, Piece, Wanted};

#[derive(Debug, Default)]
struct Objects {
    /// With the last generation of each, oldest first.
    free: VecDeque<Grant>,
    /// Never granted: next byte, end.
    fresh: Vec<(u64, u64)>,
}

/// The deposits of one memory node.
#[derive(Debug, Default)]
pub(crate) struct Deposits {
    arenas: BTreeMap<ArenaKey, Objects>,
    spaces: BTreeMap<u32, Extents>,
    /// By index and lines.
    cells: BTreeMap<(u32, u8), Vec<TableId>>,
}

impl Deposits {
    /// Adds a piece of this memory node; false, and nothing changes, for an implausible one.
    pub(crate) fn put(&mut self, piece: Piece, layout: &NodeLayout) -> bool {
        let inside = |at: GlobalAddr, bytes: u64| {
            let first = layout.chunk_of(at.offset());
            let last = layout.chunk_of(at.offset().saturating_add(bytes).saturating_sub(1));
            at.node() == layout.node && bytes > 0 && first.is_some() && first == last
        };
        match piece {
            Piece::Object(key, g) if inside(g.addr, u64::from(key.object_bytes)) => {
                self.arenas.entry(key).or_default().free.push_back(g);
            }
            Piece::Fresh(key, at, bytes) if key.object_bytes > 0 && inside(at, bytes) => {
                let range = (at.offset(), at.offset() + bytes);
                self.arenas.entry(key).or_default().fresh.push(range);
            }
            Piece::Space(index, at, bytes) if inside(at, bytes) => {
                let space = self.spaces.entry(index).or_default();
                return space.put(at.offset(), bytes, layout.chunk0, layout.chunk_bytes);
            }
            Piece::Cell(index, t) if layout.node.index() == 0 && t.place().is_some() => {
                self.cells.entry((index, t.lines())).or_default().push(t);
            }
            _ => return false,
        }
        true
    }

    /// Takes out the chunks that are free as a whole, with the index of each: they belong to it no
    /// more.
    pub(crate) fn take_whole(&mut self, chunk_bytes: u64) -> Vec<(u32, u64)> {
        let whole = self.spaces.iter_mut().map(|(index, s)| (*index, s.take_whole(chunk_bytes, 0)));
        whole.flat_map(|(index, all)| all.into_iter().map(move |at| (index, at))).collect()
    }

    /// Drops the deposits of an index.
    pub(crate) fn forget_index(&mut self, index: u32) {
        self.arenas.retain(|key, _| key.index != index);
        self.spaces.remove(&index);
        self.cells.retain(|(of, _), _| *of != index);
    }

    /// Takes out pieces of the wanted kind, at most as much as a chunk holds.
    pub(crate) fn take(&mut self, wanted: Wanted, layout: &NodeLayout) -> Vec<Piece> {
        match wanted {
            Wanted::Objects(key) => self.take_objects(key, layout),
            Wanted::Space(index, least) => {
                let Some(space) = self.spaces.get_mut(&index) else { return Vec::new() };
                let all = space.take_chunk(least, layout.chunk0, layout.chunk_bytes);
                let piece = |(at, len)| Piece::Space(index, GlobalAddr::new(layout.node, at), len);
                all.into_iter().map(piece).collect()
            }
            Wanted::Cells(index, lines) => {
                let Some(cells) = self.cells.get_mut(&(index, lines)) else { return Vec::new() };
                let first = cells.len().saturating_sub(CELLS_AT_A_TIME);
                let out = cells.drain(first..).map(|t| Piece::Cell(index, t)).collect();
                if cells.is_empty() {
                    self.cells.remove(&(index, lines));
                }
                out
            }
        }
    }

    fn take_objects(&mut self, key: ArenaKey, layout: &NodeLayout) -> Vec<Piece> {
        let Some(objects) = self.arenas.get_mut(&key) else { return Vec::new() };
        let most = (layout.chunk_bytes / u64::from(key.object_bytes.max(64))).max(1) as usize;
        let count = objects.free.len().min(most).min(MAX_PIECES - 1);
        let mut out: Vec<_> = objects.free.drain(..count).map(|g| Piece::Object(key, g)).collect();
        if let Some((at, end)) = objects.fresh.pop() {
            out.push(Piece::Fresh(key, GlobalAddr::new(layout.node, at), end - at));
        }
        if objects.free.is_empty() && objects.fresh.is_empty() {
            self.arenas.remove(&key);
        }
        out
    }

    /// All deposits.
    pub(crate) fn spans(&self, layout: &NodeLayout) -> Vec<Span> {
        let at = |offset| GlobalAddr::new(layout.node, offset).bits();
        let mut out = Vec::new();
        for (key, objects) in &self.arenas {
            let bytes = u64::from(key.object_bytes);
            out.extend(objects.free.iter().map(|g| Span::object(g.addr, bytes)));
            out.extend(
                objects.fresh.iter().map(|(first, end)| Span::Bytes(at(*first), end - first)),
            );
        }
        for space in self.spaces.values() {
            out.extend(space.all().map(|(offset, len)| Span::Bytes(at(offset), len)));
        }
        out.extend(self.cells.values().flatten().map(|t| Span::table(*t)));
        out
    }
}

/// Most cells of one answer.
const CELLS_AT_A_TIME: usize = 64;

#[cfg(test)]
mod tests {
    use dmtree_fabric::NodeId;

    use super::*;

    const CHUNK: u64 = 64 << 10;

    fn layout() -> NodeLayout {
        NodeLayout::new(NodeId::memory(0), 2 << 20, CHUNK)
    }

    fn at(chunk: u32, offset: u64) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(0), layout().chunk(chunk) + offset)
    }

    #[test]
    fn deposits_are_handed_out_once() {
        let (mut d, l) = (Deposits::default(), layout());
        let key = ArenaKey { index: 1, kind: 2, object_bytes: 1024 };
        let other = ArenaKey { index: 2, ..key };
        let object = Piece::Object(key, Grant { addr: at(0, 0), generation: 7 });
        let fresh = Piece::Fresh(key, at(0, 4096), CHUNK - 4096);
        assert!(d.put(object, &l) && d.put(fresh, &l));
        assert_eq!(d.spans(&l), [object.span(), fresh.span()]);
        assert!(d.take(Wanted::Objects(other), &l).is_empty());
        assert_eq!(d.take(Wanted::Objects(key), &l), [object, fresh]);
        assert!(d.take(Wanted::Objects(key), &l).is_empty() && d.spans(&l).is_empty());
        let cell = Piece::Cell(4, TableId::new(3, 2, 10));
        assert!(d.put(cell, &l) && d.take(Wanted::Cells(4, 1), &l).is_empty());
        assert_eq!(d.take(Wanted::Cells(4, 2), &l), [cell]);
    }

    #[test]
    fn space_comes_back_chunk_by_chunk_and_a_whole_chunk_belongs_to_no_index() {
        let (mut d, l) = (Deposits::default(), layout());
        let space = |chunk, offset, len| Piece::Space(4, at(chunk, offset), len);
        for p in [space(0, 0, 64), space(1, 0, 128), space(1, 1024, 4096)] {
            assert!(d.put(p, &l));
        }
        assert!(!d.put(space(1, 0, 64), &l), "free already");
        assert!(!d.put(space(1, 0, 2 * CHUNK), &l), "no piece of one chunk");
        assert!(d.take(Wanted::Space(4, 8192), &l).is_empty());
        assert_eq!(d.take(Wanted::Space(4, 1024), &l), [space(1, 0, 128), space(1, 1024, 4096)]);
        assert!(d.put(space(0, 64, CHUNK - 64), &l));
        assert_eq!(d.take_whole(CHUNK), [(4, l.chunk(0))]);
        assert!(d.spans(&l).is_empty());
    }
}
