//! Which leaves have images: those that the clients of this node use, as far as cells with images
//! in this node's region go.
//!
//! *Sampling.* One of several accesses of a client counts a use of its leaf, in the line of the
//! leaf's mirror. A leaf without an image becomes a candidate at every [`CANDIDATE`]th use. A scan
//! has one access of each leaf that it READs: an image takes one READ from the memory node, for a
//! leaf of a scan as for a get.
//!
//! *One piece of maintenance* is for one candidate: with a free cell the leaf is relocated to it;
//! else a victim is relocated to a plain cell, and the candidate comes again. The cell of the
//! victim is free when every operation that ran has ended, as any retired cell.
//!
//! *Victims* are leaves with an image in this node's region that its clients use far less than the
//! candidate. The hand of a clock finds them and halves the uses of the leaves that it passes.
//! Other nodes' images are left alone: their uses are not known here, and two nodes that use
//! different leaves would evict each other's for ever.
//!
//! Both moves are relocations (`change/relocate.rs`), which say what a crash leaves. Between two
//! moves there is no state but a free cell. A candidate that is forgotten comes again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmtree_fabric::{OpKind, OpOutcome, Result, Stage, golden_hash};
use dmtree_parts::Work;
use dmtree_parts::cache::CachedNode;
use dmtree_parts::sync::reading;

use crate::change::Relocation;
use crate::leaf::{CellKind, Images};
use crate::lock::LeafLocks;
use crate::router::route_of;
use crate::{Client, Mark, Route, Unlock, is_away};

/// A leaf without an image is a candidate at each multiple of so many uses.
pub(super) const CANDIDATE: u64 = 8;
/// A victim has at most one part in so many of the candidate's uses.
const VICTIM_PART: u64 = 4;
/// One of so many accesses is a sample, on average...
const SAMPLE_ONE_OF: u64 = 32;
/// ... or of one part in so many of the cached inner nodes: a small tree is learned as fast.
const NODES_PART: u64 = 8;
/// Candidates that wait.
const MOST_CANDIDATES: usize = 64;
/// Bottom nodes that the hand passes for one candidate.
const MOST_PASSED: usize = 32;
/// Evictions until the first of their cells is free. Then a reclamation is due.
const MOST_EVICTIONS: u32 = 16;

/// What a compute node knows for the choice of its images.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    state: Mutex<State>,
    waiting: AtomicU32,
    samples: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Lower fences of leaves.
    candidates: VecDeque<Box<[u8]>>,
    /// The hand has come down to this key; `None`: it is at the right end.
    hand: Option<Vec<u8>>,
    /// What the pool had released, and the evictions since.
    evictions: (u64, u32),
}

impl Admission {
    /// Whether leaves wait for an image: a load.
    pub(crate) fn is_due(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Accesses up to the next sample of a client, where so many inner nodes are cached.
    pub(crate) fn period(&self, nodes: u64) -> u64 {
        let mean = (nodes / NODES_PART).clamp(1, SAMPLE_ONE_OF);
        let drawn = golden_hash(self.samples.fetch_add(1, Ordering::Relaxed)) >> 32;
        1 + drawn % (2 * mean - 1)
    }

    fn push(&self, key: &[u8]) {
        let mut state = self.state.lock().expect("no panic under this lock");
        let is_known = state.candidates.iter().any(|known| **known == *key);
        if state.candidates.len() < MOST_CANDIDATES && !is_known {
            state.candidates.push_back(key.into());
            self.waiting.store(state.candidates.len() as u32, Ordering::Relaxed);
        }
    }

    fn evicted(&self) {
        self.state.lock().expect("no panic under this lock").evictions.1 += 1;
    }

    fn pop(&self) -> Option<Box<[u8]>> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let key = state.candidates.pop_front();
        self.waiting.store(state.candidates.len() as u32, Ordering::Relaxed);
        key
    }
}

/// Uses of leaves by the clients of a node.
#[derive(Clone, Copy)]
pub(crate) struct Uses<'c>(pub &'c Client);

impl Uses<'_> {
    /// A lookup that the cache has served, for a point operation.
    #[inline]
    pub(crate) fn looked_up(self, found: (&CachedNode, usize)) {
        if self.0.hits.count() {
            self.sample(found);
        }
    }

    /// Leaves of a node that a scan READs together.
    pub(crate) fn scanned(self, node: &CachedNode, leaves: Range<usize>) {
        if self.0.node.admission.is_none() {
            return;
        }
        for i in leaves {
            if self.0.hits.pass() {
                self.sample((node, i));
            }
        }
    }

    /// An access that was chosen as a sample.
    #[cold]
    fn sample(self, (node, i): (&CachedNode, usize)) {
        let c = self.0;
        let Some(admission) = &c.node.admission else { return };
        c.hits.set_period(admission.period(c.node.cache.nodes()));
        let uses = node.add_uses(i, 1);
        if uses.is_multiple_of(CANDIDATE) && !route_of(&node.record(i)).is_imaged() {
            admission.push(node.keys().get(i));
        }
    }

    /// One candidate. What cannot be reached now is forgotten.
    pub(crate) async fn admit_one(self) -> Result<Work> {
        let c = self.0;
        let Some(key) = c.node.admission.as_ref().and_then(Admission::pop) else {
            return Ok(Work::None);
        };
        let scope = c.ep.begin(OpKind::Maintain);
        let pin = c.pin()?;
        let done = Box::pin(self.admit(&key)).await;
        pin.end();
        match done {
            Err(e) if !is_away(&e) => return Err(e),
            _ => scope.end(OpOutcome::Other),
        }
        Ok(Work::Some)
    }

    async fn admit(self, key: &[u8]) -> Result<()> {
        let c = self.0;
        let known = c.node.cache.lookup(1, key);
        let Some((route, uses)) = known.map(|(node, i)| (route_of(&node.record(i)), node.uses(i)))
        else {
            return Ok(());
        };
        if route.is_imaged() || uses < CANDIDATE {
            return Ok(());
        }
        let (pool, index) = (&c.node.pool, c.node.root.index);
        let Some(lines) = c.node.imaged_lines(route.capacity) else { return Ok(()) };
        let Some(cell) = pool.alloc_own_table(&c.ep, index, lines).await? else {
            return self.evict(route.capacity, uses / VICTIM_PART).await;
        };
        let locked = LeafLocks(c).lock(&route).await;
        let locked = locked.inspect_err(|_| pool.give_back_table(index, cell))?;
        let Some(l) = locked else {
            pool.give_back_table(index, cell);
            return Ok(());
        };
        if let Some(l) = Relocation::run(c, l, (route.capacity, CellKind::Taken(cell))).await? {
            return c.unlock(l).await;
        }
        Mark::ImageAdmitted.hit();
        // What is known of its uses was of the leaf that it was.
        if let Some((node, i)) = c.node.cache.find(1, key, &reading()) {
            node.add_uses(i, uses);
        }
        Ok(())
    }

    /// Takes the image from a leaf of a capacity with at most so many uses.
    async fn evict(self, capacity: usize, most: u64) -> Result<()> {
        let c = self.0;
        let Some(route) = self.victim(capacity, most) else { return Ok(()) };
        let Some(l) = LeafLocks(c).try_lock(&route).await? else { return Ok(()) };
        if Images(c).take(l).await? {
            Mark::ImageEvicted.hit();
            c.node.admission.iter().for_each(Admission::evicted);
        }
        Ok(())
    }

    /// The next leaf of a capacity that the hand meets with an image of this node and at most so
    /// many uses. (A candidate of another capacity could not have its cell.)
    fn victim(self, capacity: usize, most: u64) -> Option<Route> {
        let (c, admission) = (self.0, self.0.node.admission.as_ref()?);
        let mut state = admission.state.lock().expect("no panic under this lock");
        let released = c.node.pool.reclaimer().released();
        if state.evictions.0 != released {
            state.evictions = (released, 0);
        }
        if state.evictions.1 >= MOST_EVICTIONS {
            c.node.pool.reclaimer().press_reclaim();
            return None;
        }
        for _ in 0..MOST_PASSED {
            let node = c.node.cache.pass_below(1, state.hand.as_deref());
            let lo = node.as_ref().map(|node| node.lo().to_vec());
            state.hand = lo.filter(|lo| !lo.is_empty());
            let victim = node.and_then(|node| self.pass(&node, capacity, most));
            if victim.is_some() {
                return victim;
            }
            if state.hand.is_none() {
                // Leaves of a small tree are passed once for one candidate.
                break;
            }
        }
        None
    }

    /// The hand passes one node.
    fn pass(self, node: &CachedNode, capacity: usize, most: u64) -> Option<Route> {
        let (pool, me) = (&self.0.node.pool, self.0.ep.node());
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        let mut victim = None;
        for i in 0..node.len() {
            let (route, uses) = (route_of(&node.record(i)), node.halve_uses(i));
            let is_own = || pool.resolve_cached(route.table).is_some_and(|at| at.node() == me);
            let may_go = uses <= most && route.capacity == capacity && route.is_imaged();
            if victim.is_none() && may_go && is_own() {
                victim = Some(route);
            }
        }
        victim
    }
}
