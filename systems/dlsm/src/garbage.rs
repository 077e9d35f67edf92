//! Memory of tables that nothing reads any more, by what has allocated it: the owner frees its own,
//! and tells memory nodes of theirs in batches.
//!
//! A batch is complete before it is sent, and has a number: a memory node that has taken a batch
//! takes it no second time, so that it may be repeated.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dmtree_fabric::NodeId;
use dmtree_fabric::sync::locked;

use crate::table::{Extent, Maker, Meta};

/// Extents of a batch.
pub(crate) const BATCH: usize = 1024;

#[derive(Debug, Default)]
struct Lists {
    own: Vec<Extent>,
    theirs: BTreeMap<NodeId, Vec<Extent>>,
    /// The batch that is on its way to each memory node.
    sent: BTreeMap<NodeId, (u64, Vec<Extent>)>,
    batches: u64,
}

/// What a compute node has to give back.
#[derive(Debug, Default)]
pub(crate) struct Garbage(Mutex<Lists>);

/// Memory that is about to be freed; what is not taken from it stays garbage.
pub(crate) struct Own<'g>(&'g Garbage, Vec<Extent>);

impl Own<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.1.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.1)
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        locked(&self.0.0).own.append(&mut self.1);
    }
}

impl Garbage {
    /// A table is gone.
    pub(crate) fn add(&self, meta: &Meta) {
        let mut lists = locked(&self.0);
        for extent in meta.extents() {
            match meta.maker {
                Maker::Owner => lists.own.push(*extent),
                Maker::Memory => {
                    lists.theirs.entry(extent.at().node()).or_default().push(*extent);
                }
            }
        }
    }

    /// What the owner has allocated.
    pub(crate) fn take_own(&self) -> Own<'_> {
        Own(self, std::mem::take(&mut locked(&self.0).own))
    }

    /// The batch to send next: one that was not acknowledged, or a new one.
    pub(crate) fn batch(&self) -> Option<(NodeId, u64, Vec<Extent>)> {
        let mut lists = locked(&self.0);
        if let Some((node, (number, batch))) = lists.sent.first_key_value() {
            return Some((*node, *number, batch.clone()));
        }
        let (node, waiting) = lists.theirs.iter_mut().find(|(_, its)| !its.is_empty())?;
        let (node, n) = (*node, waiting.len().min(BATCH));
        let batch: Vec<_> = waiting.drain(..n).collect();
        lists.batches += 1;
        let number = lists.batches;
        lists.sent.insert(node, (number, batch.clone()));
        Some((node, number, batch))
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        let lists = locked(&self.0);
        lists.own.is_empty() && lists.sent.is_empty() && lists.theirs.values().all(Vec::is_empty)
    }

    /// The memory node has taken it.
    pub(crate) fn acknowledged(&self, node: NodeId, number: u64) {
        let mut lists = locked(&self.0);
        if lists.sent.get(&node).is_some_and(|(sent, _)| *sent == number) {
            lists.sent.remove(&node);
        }
    }
}
