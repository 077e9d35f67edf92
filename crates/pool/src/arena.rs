//! Type-stable arenas: objects of one index, kind and size. An address never becomes anything
//! else.
//!
//! A compute node's share of an arena has, for every memory node, a list of reusable objects with
//! the last generation of each, and fresh ranges that no object has used yet. [`Arena::put`] takes
//! an object back, [`Source::take`] grants one, the memory nodes in turn; [`Source::add`] adds a
//! chunk and takes its first object in one step.
//!
//! Invariants.
//!
//! - *Type.* Arena memory stays of its kind and size until its index is purged. So a stale READ or
//!   compare-and-swap on an address meets an object of the same kind, and only the generation tells
//!   them apart.
//! - *Generations grow.* A fresh object has generation 1; a reusable one is granted with its last
//!   generation plus 1. The list is a queue, oldest first, so that generations of all addresses are
//!   used up evenly and late. An object with the largest generation of the pool's width is set
//!   aside and counted (`worn_out`): the next grant would repeat one.
//! - *One list.* An address is on the list of one node or in one deposit. So no two nodes grant the
//!   same generation of it.
//! - *Zero.* A fresh object is all zero. A reused one is as it was left.
//!
//! All is volatile bookkeeping under one lock, held for a few instructions. What a node that dies
//! had on these lists is found by garbage collection, which takes a generation above any that may
//! have been written.

use std::collections::VecDeque;
use std::sync::Mutex;

use dmtree_fabric::{GlobalAddr, NodeId};

use crate::chunks::RunRequest;
use crate::gc_log::Span;
use crate::layout::ChunkUse;
use crate::marks::Mark;
use crate::obtain::{Source, Turns};
use crate::pieces::{MAX_PIECES, Piece};
use crate::usage::ArenaUsage;
use crate::wire::locked;

/// Names an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaKey {
    /// The index.
    pub index: u32,
    /// What the objects are, to the index.
    pub kind: u8,
    /// Bytes of an object; rounded up to whole lines of 64.
    pub object_bytes: u32,
}

/// An object that was granted, or that was read back and unlinked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Where it is.
    pub addr: GlobalAddr,
    /// Which generation of that address: at least 1, and larger than any granted there before.
    pub generation: u16,
}

#[derive(Debug, Default)]
struct PerNode {
    /// Reusable objects with the last generation of each, oldest first: so addresses wear out late.
    free: VecDeque<Grant>,
    /// Never granted yet: next byte, end.
    fresh: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct ArenaState {
    nodes: Vec<PerNode>,
    turn: usize,
    chunks: u64,
    worn_out: u64,
}

impl ArenaState {
    /// What is here of a memory node of the pool.
    fn at(&mut self, node: usize) -> &mut PerNode {
        if node >= self.nodes.len() {
            self.nodes.resize_with(node + 1, PerNode::default);
        }
        &mut self.nodes[node]
    }
}

/// One compute node's share of an arena.
#[derive(Debug)]
pub struct Arena {
    key: ArenaKey,
    chunk_bytes: u64,
    max_generation: u16,
    state: Mutex<ArenaState>,
    turns: Turns,
}

impl Arena {
    pub(crate) fn new(
        key: ArenaKey,
        nodes: usize,
        chunk_bytes: u64,
        max_generation: u16,
        start: usize,
    ) -> Self {
        let nodes = (0..nodes).map(|_| PerNode::default()).collect();
        Self {
            key,
            chunk_bytes,
            max_generation,
            state: Mutex::new(ArenaState { nodes, turn: 0, chunks: 0, worn_out: 0 }),
            turns: Turns::starting_at(start),
        }
    }

    /// Which arena; `object_bytes` as rounded.
    pub fn key(&self) -> ArenaKey {
        self.key
    }

    fn object(&self) -> u64 {
        u64::from(self.key.object_bytes)
    }

    /// Takes an object of the pool back. One with no generation left is set aside.
    pub(crate) fn put(&self, g: Grant) {
        let mut s = locked(&self.state);
        if g.generation >= self.max_generation {
            Mark::WornOut.hit();
            s.worn_out += 1;
        } else {
            let n = s.at(g.addr.node().index());
            debug_assert!(
                n.free.back().is_none_or(|last| last.addr != g.addr),
                "L: {} is on a free list twice",
                g.addr
            );
            n.free.push_back(g);
        }
    }

    /// Takes memory of the pool that no object has used yet.
    pub(crate) fn put_fresh(&self, at: GlobalAddr, bytes: u64) {
        if bytes >= self.object() {
            let fresh = (at.offset(), at.offset() + bytes);
            locked(&self.state).at(at.node().index()).fresh.push(fresh);
        }
    }

    /// Whether more than so many reusable objects of a memory node are here.
    pub(crate) fn has_surplus(&self, node: usize, most: usize) -> bool {
        locked(&self.state).nodes.get(node).is_some_and(|n| n.free.len() > most)
    }

    /// Takes out reusable objects of a memory node, as many as a message holds, until half of
    /// `most` are left.
    pub(crate) fn take_surplus(&self, node: usize, most: usize, out: &mut Vec<Piece>) {
        let mut s = locked(&self.state);
        let Some(n) = s.nodes.get_mut(node) else { return };
        let count = n.free.len().saturating_sub(most / 2).min(MAX_PIECES);
        out.extend(n.free.drain(..count).map(|g| Piece::Object(self.key, g)));
    }

    /// Takes out one part in `parts` of what is free here, rounded up.
    pub(crate) fn take_free(&self, parts: usize, out: &mut Vec<Piece>) {
        let mut s = locked(&self.state);
        for (n, node) in s.nodes.iter_mut().enumerate() {
            let count = node.free.len().div_ceil(parts);
            out.extend(node.free.drain(..count).map(|g| Piece::Object(self.key, g)));
            let first = node.fresh.len() - node.fresh.len().div_ceil(parts);
            for (at, end) in node.fresh.drain(first..) {
                let begin = GlobalAddr::new(NodeId::memory(n as u16), at);
                out.push(Piece::Fresh(self.key, begin, end - at));
            }
        }
    }

    /// The free memory here.
    pub(crate) fn list(&self, out: &mut Vec<Span>) {
        let s = locked(&self.state);
        for (n, node) in s.nodes.iter().enumerate() {
            out.extend(node.free.iter().map(|g| Span::object(g.addr, self.object())));
            let base = |at: u64| GlobalAddr::new(NodeId::memory(n as u16), at).bits();
            out.extend(node.fresh.iter().map(|(at, end)| Span::Bytes(base(*at), end - at)));
        }
    }

    /// Whether an object with this last generation can be granted again.
    pub(crate) fn has_generations_left(&self, generation: u16) -> bool {
        generation < self.max_generation
    }

    /// The memory that it holds on this node.
    pub fn usage(&self) -> ArenaUsage {
        let s = locked(&self.state);
        let chunk_bytes = s.chunks * self.chunk_bytes;
        ArenaUsage { key: self.key, chunk_bytes, worn_out: s.worn_out }
    }
}

impl PerNode {
    fn take(&mut self, node: usize, object: u64) -> Option<Grant> {
        if let Some(g) = self.free.pop_front() {
            Mark::Reused.hit();
            return Some(Grant { addr: g.addr, generation: g.generation + 1 });
        }
        let (at, end) = self.fresh.last_mut()?;
        debug_assert!(*at + object <= *end, "fresh memory at {at:#x} is too short");
        let addr = GlobalAddr::new(NodeId::memory(node as u16), *at);
        *at += object;
        if *at + object > *end {
            self.fresh.pop();
        }
        Some(Grant { addr, generation: 1 })
    }
}

impl Source for Arena {
    type Item = Grant;

    fn take(&self, only: Option<usize>) -> Option<Grant> {
        let mut s = locked(&self.state);
        let object = self.object();
        if let Some(n) = only {
            return s.nodes.get_mut(n)?.take(n, object);
        }
        let (count, first) = (s.nodes.len(), s.turn);
        let turns = (0..count).map(|k| (first + k) % count);
        let (n, g) = turns.filter_map(|n| Some((n, s.nodes[n].take(n, object)?))).next()?;
        s.turn = (n + 1) % count;
        Some(g)
    }

    fn add(&self, node: usize, offset: u64) -> Option<Grant> {
        let mut s = locked(&self.state);
        s.chunks += 1;
        let n = s.at(node);
        n.fresh.push((offset, offset + self.chunk_bytes));
        n.take(node, self.object())
    }

    fn request(&self) -> RunRequest {
        let ArenaKey { index, kind, object_bytes } = self.key;
        RunRequest { used_for: ChunkUse::Arena, kind, index, object_bytes, count: 1, least: 0 }
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }
}
