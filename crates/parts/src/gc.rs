//! The garbage collection of an index: finds memory that failed compute nodes held, or that dropped
//! operations had allocated, while all clients work.
//!
//! `dmtree_pool::Gc` tells lost memory from memory in use. A [`Collector`] knows what is reachable,
//! and what a lost object needs before it is free. Phases, in order:
//!
//! 1. *Starting*: operations that ran at the beginning end. From then on every operation logs what
//!    it takes and gives back (the GC log).
//! 2. *Marking*: a cursor visits what is in the index throughout.
//! 3. *Draining*: a barrier; operations that ran during the marking end. Lost is what is not
//!    marked, on no list, and not in the log.
//! 4. *Checking*: the lost objects are checked one after the other.
//! 5. *Sweeping*: a barrier, and the log is read once more. Objects that appear there are in use;
//!    the others are retired.
//!
//! Each step is one bounded piece, so maintenance can interleave it with other work. Every step
//! renews the hold of this node on the pool's collection (`hold_gc`); a membership change, or
//! another node's collection, ends this one.
//!
//! The state is in the memory of one compute node. A crash loses it, and a later collection starts
//! again: until phase 5 nothing has changed but locks that a collector has taken over.

use dmtree_fabric::{Endpoint, Result};
use dmtree_pool::{ArenaKey, Gc, Grant, Held, Lost, PoolNode};

use crate::contract::{Found, Root};

/// Pause between two checks whether the operations have ended, ns.
const PAUSE_NS: u64 = 50_000;
/// Steps of one call of maintenance.
const STEPS_PER_CALL: u32 = 16;

/// A collection in progress: `P` is a position of the marking, `N` what the index notes besides.
#[derive(Debug)]
pub struct Run<P, N> {
    /// The pool's part.
    pub gc: Gc,
    phase: Phase<P>,
    /// Marked memory.
    pub live: Held,
    /// Memory that no holder is known of.
    pub lost: Lost,
    /// Lost objects that are free unless the GC log has them, with the largest generation that they
    /// may have had.
    pub objects: Vec<(ArenaKey, Grant)>,
    /// What was found so far.
    pub found: Found,
    /// What the index notes.
    pub own: N,
}

#[derive(Debug)]
enum Phase<P> {
    Starting,
    Marking(P),
    Draining,
    /// Lost object number `.0` is next.
    Checking(usize),
    Sweeping,
}

/// Outcome of a step.
enum Progress {
    Continue,
    Wait,
    Done,
}

impl<P, N: Default> Run<P, N> {
    fn of(gc: Gc) -> Self {
        let (live, lost, objects, found, own) = Default::default();
        Self { gc, phase: Phase::Starting, live, lost, objects, found, own }
    }
}

/// The collection of an index.
pub type RunOf<C> = Run<<C as Collector>::Position, <C as Collector>::Notes>;

/// A client of an index that collects.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Collector: Sized {
    /// A position of the marking.
    type Position: Clone;
    /// What the index notes.
    type Notes: Default;

    /// The client's endpoint, the pool, and the index.
    fn place(&self) -> (&Endpoint, &PoolNode, Root);
    /// Whether the operations have ended that ran before the last barrier.
    async fn is_past(&self, gc: &Gc) -> Result<bool> {
        let (ep, pool, _) = self.place();
        pool.collection().is_past(ep, gc).await
    }
    /// Where the marking begins.
    async fn first(&self) -> Result<Self::Position>;
    /// Marks a piece; returns where the next one begins.
    async fn mark(
        &self,
        from: Self::Position,
        run: &mut RunOf<Self>,
    ) -> Result<Option<Self::Position>>;
    /// Finds what is lost.
    async fn find_lost(&self, run: &mut RunOf<Self>) -> Result<()>;
    /// Checks lost object number `i`; false when there are no more.
    async fn check_lost(&self, run: &mut RunOf<Self>, i: usize) -> Result<bool>;
    /// Retires what the GC log does not name. It runs as an operation: a collection that another
    /// node has begun meanwhile waits for it.
    async fn take_lost(&self, run: &mut RunOf<Self>) -> Result<()>;
    /// Notes in the pool that the collection is done.
    async fn note_done(&self, _gc: &Gc) -> Result<()> {
        Ok(())
    }

    /// Runs a whole collection.
    async fn collect(&self, gc: Gc) -> Result<Found> {
        let (ep, pool, _) = self.place();
        let mut run = Run::of(gc);
        let found = loop {
            match step(self, &mut run).await {
                Ok(Progress::Continue) => {}
                Ok(Progress::Wait) => ep.sleep(PAUSE_NS).await,
                Ok(Progress::Done) => break self.note_done(&run.gc).await.map(|()| run.found),
                Err(e) => break Err(e),
            }
        };
        pool.collection().end_gc(ep, run.gc).await;
        found
    }

    /// Runs some steps of a collection that was kept, or of a new one. Returns what is to be kept;
    /// `None` when it is done.
    async fn collect_some(
        &self,
        kept: Option<Box<RunOf<Self>>>,
    ) -> Result<Option<Box<RunOf<Self>>>> {
        let (ep, pool, root) = self.place();
        let mut run = match kept {
            Some(run) => run,
            None => {
                ep.renew_deadline();
                Box::new(Run::of(pool.collection().begin_gc(ep, root.index).await?))
            }
        };
        for _ in 0..STEPS_PER_CALL {
            match step(self, &mut run).await {
                Ok(Progress::Continue) => {}
                Ok(Progress::Wait) => {
                    ep.sleep(PAUSE_NS).await;
                    break;
                }
                Ok(Progress::Done) => {
                    let noted = self.note_done(&run.gc).await;
                    pool.collection().end_gc(ep, run.gc).await;
                    return noted.map(|()| None);
                }
                Err(e) => {
                    pool.collection().end_gc(ep, run.gc).await;
                    return Err(e);
                }
            }
        }
        Ok(Some(run))
    }
}

/// One bounded step.
async fn step<C: Collector>(c: &C, run: &mut RunOf<C>) -> Result<Progress> {
    let (ep, pool, _) = c.place();
    ep.renew_deadline();
    pool.collection().hold_gc(ep, &mut run.gc).await?;
    match &run.phase {
        Phase::Starting | Phase::Draining | Phase::Sweeping if !c.is_past(&run.gc).await? => {
            return Ok(Progress::Wait);
        }
        Phase::Starting => run.phase = Phase::Marking(c.first().await?),
        Phase::Marking(from) => {
            let from = from.clone();
            match c.mark(from, run).await? {
                Some(next) => run.phase = Phase::Marking(next),
                None => {
                    pool.collection().raise_barrier(ep, &mut run.gc).await?;
                    run.phase = Phase::Draining;
                }
            }
        }
        Phase::Draining => {
            c.find_lost(run).await?;
            run.phase = Phase::Checking(0);
        }
        Phase::Checking(i) => {
            let i = *i;
            if c.check_lost(run, i).await? {
                run.phase = Phase::Checking(i + 1);
            } else {
                pool.collection().raise_barrier(ep, &mut run.gc).await?;
                run.phase = Phase::Sweeping;
            }
        }
        Phase::Sweeping => {
            c.take_lost(run).await?;
            return Ok(Progress::Done);
        }
    }
    Ok(Progress::Continue)
}
