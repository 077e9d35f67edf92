//! Maintenance of an index on a compute node: work that no operation waits for, in bounded pieces.
//!
//! Operations push chores, and maintenance pops them. The counter beside the queue lets an
//! operation see with one load that there is nothing to do; it lags behind by at most the holder of
//! the queue's mutex. A chore that was begun and does not end, because it fails or because its
//! caller drops it, returns to the queue ([`Begun`]).
//!
//! All of this is volatile. After a crash of the node the sweep or the garbage collection that
//! follows its death finds the work again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_pool::PoolNode;

use crate::contract::Work;

/// Chores that wait. Further ones are forgotten when another client will find them again.
const MOST: usize = 1024;

/// What becomes of a chore in a queue that has it already, or is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is added all the same.
    Always,
    /// It is added to a full queue.
    Once,
    /// It is forgotten: the next client that meets the same object adds it again.
    IfRoom,
}

/// A piece of maintenance.
pub trait Chore: PartialEq {
    /// How the queue treats it.
    fn keep(&self) -> Keep;
}

/// The maintenance of a compute node; `G` is a garbage collection between two calls.
#[derive(Debug)]
pub struct Maintenance<C, G> {
    chores: Mutex<VecDeque<C>>,
    waiting: AtomicU32,
    gc: Mutex<Option<Box<G>>>,
    /// Deaths after which this node has swept.
    swept: AtomicU64,
}

impl<C, G> Default for Maintenance<C, G> {
    fn default() -> Self {
        let (chores, waiting, gc, swept) = Default::default();
        Self { chores, waiting, gc, swept }
    }
}

impl<C: Chore, G> Maintenance<C, G> {
    /// Whether chores wait: a load.
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How many chores wait, by their names.
    pub fn waiting(&self, name: impl Fn(&C) -> &'static str) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for chore in self.chores.lock().expect("no panic under this lock").iter() {
            *counts.entry(name(chore)).or_insert(0) += 1;
        }
        counts
    }

    /// Adds a chore.
    pub fn push(&self, chore: C) {
        let mut chores = self.chores.lock().expect("no panic under this lock");
        let is_wanted = match chore.keep() {
            Keep::Always => true,
            Keep::Once => !chores.contains(&chore),
            Keep::IfRoom => chores.len() < MOST && !chores.contains(&chore),
        };
        if is_wanted {
            chores.push_back(chore);
            self.waiting.store(chores.len() as u32, Ordering::Relaxed);
        }
    }

    /// Takes the first chore.
    pub fn pop(&self) -> Option<C> {
        if !self.any() {
            return None;
        }
        let mut chores = self.chores.lock().expect("no panic under this lock");
        let chore = chores.pop_front();
        self.waiting.store(chores.len() as u32, Ordering::Relaxed);
        chore
    }

    /// Takes the garbage collection in progress.
    pub fn take_gc(&self) -> Option<Box<G>> {
        self.gc.lock().expect("no panic under this lock").take()
    }

    /// Keeps a garbage collection for the next call.
    pub fn keep_gc(&self, gc: Box<G>) {
        *self.gc.lock().expect("no panic under this lock") = Some(gc);
    }

    /// Whether deaths have been handled completely since the last sweep: loads.
    pub fn is_sweep_due(&self, pool: &PoolNode) -> bool {
        self.swept.load(Ordering::Relaxed) < pool.membership().deaths()
    }

    /// The same, for the client that begins a sweep then: the next one is due after further deaths.
    pub fn begin_sweep(&self, pool: &PoolNode) -> bool {
        let deaths = pool.membership().deaths();
        self.swept.fetch_max(deaths, Ordering::Relaxed) < deaths
    }
}

/// The shared state of a compute node that has a maintenance queue.
pub trait Maintained {
    /// Its chores.
    type Chore: Chore;

    /// Adds a chore to the queue.
    fn push_chore(&self, chore: Self::Chore);

    /// A chore has begun; `None` for one that another client would find again.
    fn begun(&self, chore: impl Into<Option<Self::Chore>>) -> Begun<'_, Self> {
        Begun { node: self, chore: chore.into() }
    }
}

/// A chore that has begun. Dropped before it is done, it returns to the queue.
#[must_use = "the chore returns to the queue at once"]
pub struct Begun<'n, N: Maintained + ?Sized> {
    node: &'n N,
    chore: Option<N::Chore>,
}

impl<N: Maintained + ?Sized> Begun<'_, N> {
    /// The work has ended.
    pub fn done(mut self) {
        self.chore = None;
    }

    /// The work has failed. A chore that has met corrupt memory would meet it again, and is
    /// forgotten. A node that is dead or cut off is no error: the chore may succeed later.
    pub fn failed(self, e: Error) -> Result<Work> {
        match e.kind() {
            ErrorKind::Unreachable => return Ok(Work::None),
            ErrorKind::Corrupt => self.done(),
            _ => {}
        }
        Err(e)
    }

    /// The same for a garbage collection, which is started again when another node's, or a death,
    /// has ended it.
    pub fn gc_failed(self, e: Error) -> Result<Work> {
        match e.kind() {
            ErrorKind::Busy | ErrorKind::TimedOut => Ok(Work::None),
            _ => self.failed(e),
        }
    }
}

impl<N: Maintained + ?Sized> Drop for Begun<'_, N> {
    fn drop(&mut self) {
        if let Some(chore) = self.chore.take() {
            self.node.push_chore(chore);
        }
    }
}
