//! Lookups of the sound SMART in the node cache.

use dmtree_pool::Grant;

use super::format::head::NodeType;
use super::format::slot::{Slot, Symbol};
use crate::cache::{EntryId, PrefixCache};

/// Nodes with their generations.
pub(crate) type NodeCache = PrefixCache<Slot, Grant>;

/// A cached node at which a descent may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The node.
    pub node: Grant,
    /// Bytes of its prefix.
    pub len: usize,
    /// The number of slots it has at least.
    pub kind: NodeType,
    /// The entry.
    pub entry: EntryId,
}

/// The slot of the deepest cached node that leads on towards a key, and the length of that node's
/// prefix.
pub(crate) fn next_slot(cache: &NodeCache, key: &[u8]) -> Option<(Slot, usize)> {
    let mut found = None;
    cache.on_path(key, |_, _, slots, len| {
        let symbol = Symbol::of(key, len);
        let slot = slots.iter().find(|s| s.is(symbol) && s.has_child());
        found = slot.map(|s| (*s, len)).or(found);
    });
    found
}

/// The deepest cached node on a key's path.
pub(crate) fn start(cache: &NodeCache, key: &[u8]) -> Option<Start> {
    let mut found = None;
    cache.on_path(key, |entry, node, slots, len| {
        found = Some(Start { node, len, kind: NodeType::fitting(slots.len()), entry });
    });
    found
}
