//! Cells with images as a compute node uses them: how much room its indexes have for them in its
//! own region (`image_room.rs`), and how a room that became smaller is kept.
//!
//! [`ImageCells::give`] withholds the free cells of this node at once, and from then on each one
//! that comes back. The index takes leaves their images ([`ImageCells::excess_in_use`] says of how
//! many bytes). Free cells at other nodes are asked for ([`ImageCells::recall`]).

use dmtree_fabric::Endpoint;

use crate::gc_log::Span;
use crate::ids::{TABLE_LINES, TableId};
use crate::image_room::cell_bytes;
use crate::node::PoolNode;
use crate::pieces::Wanted;

/// Times that one node is asked for its free cells: it has none left before that.
const MOST_ROUNDS: u32 = 16;

/// The cells with images of a compute node.
#[derive(Clone, Copy)]
pub struct ImageCells<'p>(pub(crate) &'p PoolNode);

impl ImageCells<'_> {
    /// Gives an index room for so many bytes of cells with images on this node: with more lines
    /// than [`TABLE_LINES`]. An index has none before. When more is granted, nothing more is until
    /// enough has come back.
    pub fn give(self, index: u32, bytes: u64) {
        self.0.owners.images().give(index, bytes);
        // There may be more than when this owner had no cell.
        self.0.tables.reopen();
        self.withhold_free(index);
    }

    /// Withholds the free cells of this node, as many as there are beyond the room.
    fn withhold_free(self, index: u32) {
        let mut free = Vec::new();
        self.0.tables.take_images(self.0.cn(), index, &mut free);
        for t in free {
            self.0.gc_log.add(|| Span::table(t));
            self.put_table(index, t);
        }
    }

    /// Bytes of the cells with images that this node has granted to an index: with a leaf, on a
    /// limbo list, or free at any node. They grow within the room only.
    pub fn bytes(self, index: u32) -> u64 {
        self.0.owners.images().bytes(index)
    }

    /// Whether more is granted to an index than there is room.
    pub fn has_excess(self, index: u32) -> bool {
        self.0.owners.images().excess(index) > 0
    }

    /// Bytes beyond the room of cells that leaves still have, or other nodes: those that wait here
    /// until no operation can hold them come back by themselves.
    pub fn excess_in_use(self, index: u32) -> u64 {
        match self.0.owners.images().excess(index) {
            0 => 0,
            excess => excess.saturating_sub(self.leaving_bytes(index)),
        }
    }

    fn leaving_bytes(self, index: u32) -> u64 {
        let mut leaving = self.0.limbo_list.tables(index);
        let pending = self.0.gc_log.pending_of(index).into_iter();
        leaving.extend(pending.filter_map(Span::as_table));
        let own = leaving.into_iter().filter(|t| self.is_own(*t));
        own.map(|t| cell_bytes(t.lines())).sum()
    }

    /// Whether a cell has an image in this node's region.
    pub fn is_own(self, t: TableId) -> bool {
        t.lines() > TABLE_LINES && self.0.owners.serves(t)
    }

    /// Takes a cell that is on no list; false when no such cell can exist.
    pub(crate) fn put_table(self, index: u32, t: TableId) -> bool {
        let is_withheld = self.is_own(t) && self.0.owners.images().withholds(index, t);
        is_withheld || self.0.tables.put(index, t)
    }

    /// Asks other nodes for free cells of an index with so many lines, and takes what nodes that
    /// have left had of them, while more is granted than there is room. Cells of other owners stay
    /// here for later leaves.
    pub async fn recall(self, ep: &Endpoint, index: u32, lines: u8) {
        let supply = self.0.supply();
        // A grant that was under way when the room became smaller has brought cells since.
        self.withhold_free(index);
        // Without an answer they are still there, or lost until a garbage collection.
        let _ = supply.take_left_cells(ep, index, lines).await;
        // Cells of any owner come, half of what a node has each time. Two nodes that both want
        // theirs give the others to each other, so there is an end to it.
        for peer in supply.peers() {
            for _ in 0..MOST_ROUNDS {
                if !self.has_excess(index) {
                    return;
                }
                if !supply.borrow_from(ep, peer, Wanted::Cells(index, lines)).await.met {
                    break;
                }
            }
        }
    }
}
