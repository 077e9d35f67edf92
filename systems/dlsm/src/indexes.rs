//! Which tables have their indexes and filters in the memory of the node, within a part of its
//! budget.
//!
//! A new table has both. Where all do not fit, tables give up their indexes, and, when no index is
//! left, their filters: one after the other, with a second chance for those that were used since
//! the last look. An index that was given up is READ by the page. Once its pages have cost as many
//! bytes as the index has, a worker READs the whole of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dmtree_fabric::sync::locked;

use crate::table::{Part, Table};

/// The indexes and filters of a node.
#[derive(Debug)]
pub(crate) struct Indexes {
    most: u64,
    held: AtomicU64,
    /// Its tables, in the order in which they are looked at.
    ring: Mutex<VecDeque<Weak<Table>>>,
    wanted: Mutex<VecDeque<Weak<Table>>>,
}

impl Indexes {
    /// Within so many bytes.
    pub(crate) fn within(most: u64) -> Self {
        let (ring, wanted) = Default::default();
        Self { most, held: AtomicU64::new(0), ring, wanted }
    }

    /// A new table, with its index and filter. Others may lose theirs.
    pub(crate) fn add(self: &Arc<Self>, table: &Arc<Table>) {
        table.count_in(self);
        locked(&self.ring).push_back(Arc::downgrade(table));
        self.shrink();
    }

    /// A table has other bytes in memory than before.
    pub(crate) fn changed(&self, (before, now): (u64, u64)) {
        self.held.fetch_add(now, Ordering::SeqCst);
        self.held.fetch_sub(before, Ordering::SeqCst);
    }

    /// Gives parts of tables up until the rest fits.
    pub(crate) fn shrink(&self) {
        let is_over = || self.held.load(Ordering::SeqCst) > self.most;
        // The last holder of a table may be this look at it.
        let mut seen = Vec::new();
        let mut ring = locked(&self.ring);
        for part in [Part::Index, Part::Filter] {
            // All may have been used: the second look finds none that was.
            for _ in 0..2 * ring.len() {
                if !is_over() {
                    break;
                }
                let Some(next) = ring.pop_front() else { break };
                let Some(table) = next.upgrade() else { continue };
                if table.has(part) && !table.was_used() {
                    table.give_up(part);
                }
                ring.push_back(next);
                seen.push(table);
            }
        }
        drop(ring);
    }

    /// A table's index is worth its bytes.
    pub(crate) fn want(&self, table: &Arc<Table>) {
        let mut wanted = locked(&self.wanted);
        if !wanted.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(table))) {
            wanted.push_back(Arc::downgrade(table));
        }
    }

    /// The next table that gets its index back.
    pub(crate) fn wanted(&self) -> Option<Arc<Table>> {
        let mut wanted = locked(&self.wanted);
        std::iter::from_fn(|| wanted.pop_front()).find_map(|table| table.upgrade())
    }
}
