//! On-chip memory of the memory nodes. It is small, and its words are locks, and their tags name
//! the holders: so it belongs to one index at a time, the first that claims it.
//!
//! The claim is a compare-and-swap of one word on memory node 0 (0, or 1 + the index's id). The
//! claim of an index that is not in the catalog any more may be taken over by a second
//! compare-and-swap; its winner clears the words. Ids are never given again, so a claim never
//! revives.

use dmtree_fabric::{Endpoint, GlobalAddr, NodeId, Result};

use crate::catalog::Catalog;
use crate::layout::{ON_CHIP_WORD, first_node};

/// Bytes of on-chip memory that one READ covers.
const PIECE: u64 = 4096;

impl Catalog<'_> {
    /// Gives the on-chip memory of all memory nodes, zero, to an index; false when there is none,
    /// or another index has it. That of an index that was dropped is free again.
    pub async fn claim_chips(self, ep: &Endpoint, index: u32) -> Result<bool> {
        let bytes = u64::from(ep.caps().on_chip_bytes) / 8 * 8;
        if bytes == 0 {
            return Ok(false);
        }
        let (word, ours) = (first_node(ON_CHIP_WORD), u64::from(index) + 1);
        let was = ep.cas(word, 0, ours).await?;
        if was == 0 || was == ours {
            return Ok(true);
        }
        let all = self.list_indexes(ep).await?;
        if all.iter().any(|e| u64::from(e.id) + 1 == was) || ep.cas(word, was, ours).await? != was {
            return Ok(false);
        }
        for m in 0..self.0.memory_nodes() {
            self.clear_on_chip(ep, NodeId::memory(m as u16), bytes).await?;
        }
        Ok(true)
    }

    /// Clears locks that were held when the index was dropped. They are touched by atomics only.
    async fn clear_on_chip(self, ep: &Endpoint, node: NodeId, bytes: u64) -> Result<()> {
        for from in (0..bytes).step_by(PIECE as usize) {
            let at = GlobalAddr::on_chip(node, from);
            let len = PIECE.min(bytes - from);
            let words = ep.read(at, len as u32).await?;
            for i in (0..len as usize / 8).filter(|i| words.word(*i) != 0) {
                ep.cas(at.plus(8 * i as u64), words.word(i), 0).await?;
            }
        }
        Ok(())
    }
}
