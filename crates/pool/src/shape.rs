//! The geometry of a pool, as one compute node knows it. It begins as the pool config says, and
//! grows by memory nodes that are added.
//!
//! An added memory node is *known* first: addresses there are accepted. It is *open* when every
//! compute node knows it: from then on it is allocated from (`growth.rs`). What was founded never
//! changes and is read without a lock.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::{GlobalAddr, Role};

use crate::layout::NodeLayout;
use crate::options::PoolOptions;

/// An added memory node.
#[derive(Clone, Copy, Debug)]
struct Added {
    layout: NodeLayout,
    is_open: bool,
}

/// The geometry.
#[derive(Debug)]
pub(crate) struct Shape {
    /// The memory nodes that the pool was founded with, by number.
    pub(crate) founded: Box<[NodeLayout]>,
    has_added: AtomicBool,
    added: RwLock<Vec<Added>>,
    pub(crate) compute_nodes: u16,
    pub(crate) compute_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) max_generation: u16,
}

impl Shape {
    /// The geometry that follows from options, with memory nodes of these layouts.
    pub(crate) fn new(options: &PoolOptions, founded: Vec<NodeLayout>) -> Self {
        Self {
            founded: founded.into(),
            has_added: AtomicBool::new(false),
            added: RwLock::default(),
            compute_nodes: options.compute_nodes,
            compute_bytes: options.chosen_compute_bytes(),
            chunk_bytes: options.chosen_chunk_bytes(),
            max_generation: ((1u32 << options.generation_bits) - 1) as u16,
        }
    }

    /// Looks at the added memory nodes; without a lock while there are none.
    fn of_added<T: Default>(&self, look: impl FnOnce(&[Added]) -> T) -> T {
        match self.has_added.load(Ordering::Acquire) {
            true => look(&self.added.read().unwrap_or_else(|e| e.into_inner())),
            false => T::default(),
        }
    }

    fn added(&self) -> Vec<Added> {
        self.of_added(<[Added]>::to_vec)
    }

    /// The layout of a known memory node.
    pub(crate) fn layout(&self, number: usize) -> Option<NodeLayout> {
        match self.founded.get(number) {
            Some(layout) => Some(*layout),
            None => self.of_added(|added| {
                added.iter().map(|a| a.layout).find(|l| l.node.index() == number)
            }),
        }
    }

    /// The layouts of all known memory nodes.
    pub(crate) fn layouts(&self) -> Vec<NodeLayout> {
        self.founded.iter().copied().chain(self.added().iter().map(|a| a.layout)).collect()
    }

    /// The memory nodes that are allocated from.
    pub(crate) fn open(&self) -> Vec<NodeLayout> {
        let added = self.added();
        let added = added.iter().filter(|a| a.is_open).map(|a| a.layout);
        self.founded.iter().copied().chain(added).collect()
    }

    /// Whether a memory node is allocated from.
    pub(crate) fn is_open(&self, number: usize) -> bool {
        let is_it = |a: &Added| a.is_open && a.layout.node.index() == number;
        number < self.founded.len() || self.of_added(|added| added.iter().any(is_it))
    }

    /// Adds a memory node, unless it is known. It is not allocated from yet.
    #[cfg(feature = "tcp")]
    pub(crate) fn add(&self, layout: NodeLayout) {
        let mut added = self.added.write().unwrap_or_else(|e| e.into_inner());
        if added.iter().all(|a| a.layout.node != layout.node) {
            added.push(Added { layout, is_open: false });
            added.sort_by_key(|a| a.layout.node);
        }
        self.has_added.store(true, Ordering::Release);
    }

    /// A known memory node is allocated from.
    #[cfg(feature = "tcp")]
    pub(crate) fn set_open(&self, number: usize) {
        let mut added = self.added.write().unwrap_or_else(|e| e.into_inner());
        for a in added.iter_mut().filter(|a| a.layout.node.index() == number) {
            a.is_open = true;
        }
    }

    /// The layout of the memory node that `addr` names, when the bytes lie inside its chunks.
    pub(crate) fn holds(&self, addr: GlobalAddr, bytes: u64) -> Option<NodeLayout> {
        if addr.node().role() != Role::Memory
            || addr.space() != 0
            || !addr.offset().is_multiple_of(64)
        {
            return None;
        }
        let layout = self.layout(addr.node().index())?;
        layout.chunk_of(addr.offset())?;
        layout.chunk_of(addr.offset() + bytes - 1)?;
        Some(layout)
    }
}
