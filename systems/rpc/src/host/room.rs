//! The memory of a tree on its memory node: runs of chunks, cut into leaves and blocks.
//!
//! Leaves stay leaves: a READ of a client that is late meets a leaf. Blocks come back and are used
//! again at once: only cores of this node read them, under the latch of the leaf that names them.

use std::sync::Mutex;

use dmtree_fabric::NodeId;
use dmtree_fabric::sync::locked;
use dmtree_pool::{BLOCK_CLASSES, BlockPtr, block_class_bytes, block_class_of};

/// Free memory.
pub(crate) struct Room {
    node: NodeId,
    rest: Mutex<Rest>,
}

struct Rest {
    /// The uncut rest of the last run.
    fresh: (u64, u64),
    /// Free blocks by class.
    free: Vec<Vec<u64>>,
    /// Leaves that were taken and never named.
    leaves: Vec<u64>,
}

impl Room {
    pub(crate) fn new(node: NodeId) -> Self {
        let free = vec![Vec::new(); usize::from(BLOCK_CLASSES)];
        Self { node, rest: Mutex::new(Rest { fresh: (0, 0), free, leaves: Vec::new() }) }
    }

    /// Adds a run; what is left of the last one becomes blocks.
    pub(crate) fn add(&self, (at, bytes): (u64, u64)) {
        let mut rest = locked(&self.rest);
        let (mut from, end) = std::mem::replace(&mut rest.fresh, (at, at + bytes));
        for class in (0..BLOCK_CLASSES).rev() {
            let size = u64::from(block_class_bytes(class));
            while end - from >= size {
                rest.free[usize::from(class)].push(from);
                from += size;
            }
        }
    }

    /// A leaf of so many bytes; `None`: there is no room.
    pub(crate) fn take_leaf(&self, bytes: u64) -> Option<u64> {
        let mut rest = locked(&self.rest);
        rest.leaves.pop().or_else(|| rest.cut(bytes))
    }

    /// A leaf that nothing has named.
    pub(crate) fn give_back_leaf(&self, at: u64) {
        locked(&self.rest).leaves.push(at);
    }

    /// A block for so many bytes; `None`: there is no room.
    pub(crate) fn take_block(&self, bytes: u32) -> Option<BlockPtr> {
        let class = block_class_of(bytes)?;
        let mut rest = locked(&self.rest);
        let freed = rest.free[usize::from(class)].pop();
        let at = freed.or_else(|| rest.cut(block_class_bytes(class).into()))?;
        Some(BlockPtr::new(self.node, at, class))
    }

    /// A block that nothing names any more.
    pub(crate) fn give_back(&self, block: BlockPtr) {
        locked(&self.rest).free[usize::from(block.class())].push(block.addr().offset());
    }
}

impl Rest {
    fn cut(&mut self, bytes: u64) -> Option<u64> {
        let (at, end) = self.fresh;
        (end - at >= bytes).then(|| {
            self.fresh.0 += bytes;
            at
        })
    }
}
