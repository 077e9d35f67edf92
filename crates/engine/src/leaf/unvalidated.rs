//! Headers as a crash may have left them.
//!
//! A WRITE that was cut half way leaves words, each of them old or new. Two kinds of fields can be
//! told whatever the checksum says:
//!
//! - fields that are constant in a generation: the id (table, slots, level) and the lower fence;
//! - fields that are one word: h0's version and modes, `next`, the forwarding pointer.
//!
//! The upper fence is neither. It counts only when the checksum holds (`whole`); otherwise recovery
//! takes the right sibling's lower fence, which R makes equal to it.
//!
//! A header may also be that of a freed or reused address. `Validation::Unvalidated` marks READs of
//! blocks that such a header names: the bytes may be another object's, and an error of the checks
//! means only that.
//!
//! Recovery, sweeps, the mark phase and stall diagnosis use these headers. Operations use checked
//! ones.

use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_pool::TableId;

use crate::client::Client;
use crate::format::leaf::{FenceArea, check_header};
use crate::format::{Geometry, Ver, u64_at};
use crate::node::DmNode;

/// A header, perhaps torn.
#[derive(Clone, Debug)]
pub(crate) struct Unvalidated {
    /// The checksum holds: the upper fence counts, too.
    pub whole: bool,
    pub ver: Ver,
    pub table: TableId,
    pub slots: usize,
    pub level: u8,
    pub lo: FenceArea,
    pub hi: FenceArea,
    pub next: GlobalAddr,
    pub forward: GlobalAddr,
}

impl Unvalidated {
    /// READs a header without asking for its checksum.
    pub async fn read(c: &Client, addr: GlobalAddr) -> Result<Self> {
        let g = c.node.g;
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(addr, g.header() as u32).await?;
        Ok(bytes.extract(|b| Self::of(&g, addr, b)))
    }

    pub fn of(g: &Geometry, addr: GlobalAddr, bytes: &[u8]) -> Self {
        let id = u64_at(bytes, 8);
        Self {
            whole: check_header(g, addr, bytes).is_some(),
            ver: Ver::from_bits(u64_at(bytes, 0) as u32 >> 8),
            table: TableId::from_bits(id & 0xffff_ffff_ffff),
            slots: (id >> 48 & 0xff) as usize,
            level: (id >> 56) as u8,
            lo: FenceArea::lo_of(g, bytes),
            hi: FenceArea::hi_of(g, bytes),
            next: GlobalAddr::from_bits(u64_at(bytes, g.next_at())),
            forward: GlobalAddr::from_bits(u64_at(bytes, g.forward_at())),
        }
    }

    /// Whether this is the header of a leaf of some capacity that exists.
    pub fn is_leaf(&self, node: &DmNode) -> bool {
        self.level == 0 && node.is_capacity(self.slots)
    }
}
