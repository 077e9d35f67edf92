//! An index that this process has opened: what all its handles share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dmtree_engine::{DmNode, Options};
use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_pool::IndexEntry;

use crate::async_client::Door;
use crate::pool::locked;
use crate::tally::{Tally, TallySum};

pub(crate) struct OpenIndex {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) options: Options,
    /// One for every compute node.
    pub(crate) nodes: Vec<Arc<DmNode>>,
    /// The index was removed from the pool.
    pub(crate) dropped: AtomicBool,
    next_node: AtomicUsize,
    tallies: Mutex<Tallies>,
    /// The workers that default async clients share.
    pub(crate) door: Mutex<Weak<Door>>,
}

#[derive(Default)]
struct Tallies {
    /// Of sessions that have ended.
    ended: TallySum,
    live: Vec<Arc<Tally>>,
}

impl OpenIndex {
    pub(crate) fn new(entry: &IndexEntry, options: Options, nodes: Vec<Arc<DmNode>>) -> Self {
        Self {
            id: entry.id,
            name: entry.name.clone(),
            options,
            nodes,
            dropped: AtomicBool::new(false),
            next_node: AtomicUsize::new(0),
            tallies: Mutex::default(),
            door: Mutex::default(),
        }
    }

    /// The compute node of the next session, round robin.
    pub(crate) fn next_node(&self) -> usize {
        self.next_node.fetch_add(1, Ordering::Relaxed) % self.nodes.len()
    }

    /// Refuses operations on an index that was removed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(self.closed());
        }
        Ok(())
    }

    #[cold]
    fn closed(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!("the index {:?} was removed from its pool", self.name),
        )
    }

    /// A session begins.
    pub(crate) fn enlist(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        locked(&self.tallies).live.push(tally.clone());
        tally
    }

    /// A session ends: what it counted stays.
    pub(crate) fn retire(&self, tally: &Arc<Tally>) {
        let mut tallies = locked(&self.tallies);
        tallies.live.retain(|t| !Arc::ptr_eq(t, tally));
        tallies.ended.add(tally);
    }

    /// What all sessions have counted, and how many are there now.
    pub(crate) fn counted(&self) -> (TallySum, usize) {
        let tallies = locked(&self.tallies);
        let mut sum = tallies.ended.clone();
        tallies.live.iter().for_each(|t| sum.add(t));
        (sum, tallies.live.len())
    }
}
