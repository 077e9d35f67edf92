//! How a compute node gets memory from its pool.
//!
//! An allocation ([`Supply::obtain`]) takes, in this order, and each time only if the former
//! failed:
//!
//! 1. a piece that is here: no verb, no await;
//! 2. after waiting for the turn of this arena, space or owner: what another client has added
//!    meanwhile;
//! 3. a run of chunks, or deposits, from the wanted memory node, then from the memory nodes in
//!    turn;
//! 4. what a round of reclamation frees here, and chunks from idle ones that it returns;
//! 5. memory that other compute nodes lend (`lend.rs`), also when only a whole chunk of it helps.
//!
//! After that the pool is full: the error names the nodes and how many bytes wait for running
//! operations.

use std::sync::atomic::{AtomicUsize, Ordering};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Error, GlobalAddr, NodeId, Result, Role, ShadowState, WaitReason};

use crate::chunks::{Granted, RunRequest, ask_run};
use crate::gc_log::Span;
use crate::node::PoolNode;
use crate::wire::locked;

/// Answers with deposits that may be in vain: other clients may take them as soon as they are here.
const MAX_RETURNED: usize = 8;
/// A full node is asked again after so many requests: it may have got chunks back.
const ASK_AGAIN: usize = 64;

/// A source of pieces: takes chunks from memory nodes and hands out pieces of them.
pub(crate) trait Source {
    type Item;
    /// Takes a piece that is here already, of one memory node or of any.
    fn take(&self, only: Option<usize>) -> Option<Self::Item>;
    /// Adds a run and takes its first piece in one step, so that no other client empties it in
    /// between.
    fn add(&self, node: usize, offset: u64) -> Option<Self::Item>;
    /// The run to ask for.
    fn request(&self) -> RunRequest;
    /// The turns of clients and of memory nodes.
    fn turns(&self) -> &Turns;
}

/// The turns at a source: of the clients that ask, and of the memory nodes that are asked.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Held by the one client that asks.
    pub(crate) asking: FifoMutex,
    /// The node to ask next, for turns.
    pub(crate) cursor: AtomicUsize,
}

impl Turns {
    pub(crate) fn starting_at(node: usize) -> Self {
        Self { asking: FifoMutex::new(), cursor: AtomicUsize::new(node) }
    }
}

/// A turn, passed on when dropped, also with a dropped future.
pub(crate) struct Turn<'t>(&'t FifoMutex);

impl<'t> Turn<'t> {
    pub(crate) async fn acquire(t: &'t FifoMutex, ep: &Endpoint, why: WaitReason) -> Result<Self> {
        t.acquire(ep, why).await?;
        Ok(Self(t))
    }

    pub(crate) fn try_acquire(t: &'t FifoMutex) -> Option<Self> {
        // Lazily: a turn that was made and dropped would release what another client holds.
        t.try_acquire().then(|| Self(t))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The result of asking a memory node.
enum Refill<T> {
    Item(Option<T>),
    /// Something came that other clients have taken already.
    Again,
}

/// Memory that a node takes from memory nodes and from other nodes, and hands in.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'n>(pub(crate) &'n PoolNode);

impl Supply<'_> {
    /// Takes a piece of `source`, from a chunk that is here, else from a new one. A wanted memory
    /// node comes before what is here.
    pub(crate) async fn obtain<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        near: Option<NodeId>,
    ) -> Result<S::Item> {
        let near = near
            .filter(|n| n.role() == Role::Memory && self.0.shape.is_open(n.index()))
            .map(NodeId::index);
        match self.take(source, near) {
            Some(item) => Ok(item),
            // Boxed, being rare and large.
            None => Box::pin(self.obtain_more(ep, source, near)).await,
        }
    }

    /// The same where no piece was here.
    async fn obtain_more<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        near: Option<usize>,
    ) -> Result<S::Item> {
        let why = WaitReason { what: "a chunk", at: u64::from(source.request().index) };
        let _turn = Turn::acquire(&source.turns().asking, ep, why).await?;
        if let Some(item) = self.take(source, near) {
            return Ok(item);
        }
        let mut trouble = None;
        if let Some(n) = near {
            if !self.is_likely_full(n)
                && let Some(item) = self.refill_from(ep, source, n, &mut trouble).await
            {
                return Ok(item);
            }
            if let Some(item) = self.take(source, None) {
                return Ok(item);
            }
        }
        if let Some(item) = self.refill_any(ep, source, &mut trouble).await {
            return Ok(item);
        }
        // All full: limbo items or idle chunks of this node may still help.
        self.0.limbo_list.press();
        let freed = Box::pin(self.0.reclaimer().reclaim_all(ep)).await;
        if let Some(item) = self.take(source, None) {
            return Ok(item);
        }
        if freed.is_ok()
            && let Some(item) = self.refill_any(ep, source, &mut trouble).await
        {
            return Ok(item);
        }
        // Other nodes may have free what this node lacks.
        if let Some(wanted) = source.request().instead()
            && Box::pin(self.borrow(ep, wanted)).await
        {
            if let Some(item) = source.take(None) {
                return Ok(item);
            }
            self.return_idle(ep, 0).await?;
            if let Some(item) = self.refill_any(ep, source, &mut trouble).await {
                return Ok(item);
            }
        }
        Err(trouble.unwrap_or_else(|| self.full(source.request())))
    }

    /// Takes a piece of this memory node, of a chunk that is here or of one that it has now.
    pub(crate) async fn obtain_at_once<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        of: NodeId,
    ) -> Result<S::Item> {
        if let Some(item) = self.take(source, Some(of.index())) {
            return Ok(item);
        }
        let full = || self.full(source.request());
        let _turn = Turn::try_acquire(&source.turns().asking).ok_or_else(full)?;
        let mut trouble = None;
        let item = self.refill_from(ep, source, of.index(), &mut trouble).await;
        item.ok_or_else(|| trouble.unwrap_or_else(full))
    }

    /// Takes a piece that is here, of a memory node that is present.
    fn take<S: Source>(self, source: &S, only: Option<usize>) -> Option<S::Item> {
        if self.0.view.check_memory().is_ok() {
            return source.take(only);
        }
        let present = |n: &usize| self.0.view.check_presence(NodeId::memory(*n as u16)).is_ok();
        match only {
            Some(n) => present(&n).then(|| source.take(only)).flatten(),
            None => {
                let first = source.turns().cursor.load(Ordering::Relaxed);
                let open = self.0.shape.open();
                let turns = (0..open.len()).map(|k| open[(first + k) % open.len()].node.index());
                let mut there = { turns }.filter(present);
                there.find_map(|n| source.take(Some(n)))
            }
        }
    }

    async fn refill_any<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        trouble: &mut Option<Error>,
    ) -> Option<S::Item> {
        let open = self.0.shape.open();
        let first = source.turns().cursor.load(Ordering::Relaxed);
        for turn in (0..open.len()).map(|k| (first + k) % open.len()) {
            let n = open[turn].node.index();
            if let Some(item) = self.refill_from(ep, source, n, trouble).await {
                source.turns().cursor.store(turn + 1, Ordering::Relaxed);
                return Some(item);
            }
        }
        None
    }

    /// Saves a call for every request near a node that is full while others are not.
    fn is_likely_full(self, node: usize) -> bool {
        let mut found_full = locked(&self.0.found_full);
        let Some(left) = found_full.get_mut(&node) else { return false };
        *left -= 1;
        if *left == 0 {
            found_full.remove(&node);
        }
        true
    }

    /// Asks one memory node. One that cannot be reached counts as full, as long as another one
    /// helps.
    async fn refill_from<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        node: usize,
        trouble: &mut Option<Error>,
    ) -> Option<S::Item> {
        for _ in 0..MAX_RETURNED {
            match self.ask_one(ep, source, node).await {
                Ok(Refill::Again) => {}
                Ok(Refill::Item(item)) => return item,
                Err(e) => {
                    trouble.get_or_insert(e);
                    return None;
                }
            }
        }
        None
    }

    async fn ask_one<S: Source>(
        self,
        ep: &Endpoint,
        source: &S,
        node: usize,
    ) -> Result<Refill<S::Item>> {
        let transfer = self.0.begin_transfer();
        let number = NodeId::memory(node as u16);
        let layout =
            self.0.shape.layout(node).ok_or_else(|| {
                Error::not_found(format!("{number} is no memory node of this pool"))
            })?;
        let granted = ask_run(ep, &layout, self.0.incarnation, source.request()).await?;
        match granted {
            Granted::Run(offset) => {
                locked(&self.0.found_full).remove(&node);
                let bytes = u64::from(source.request().count) * self.0.shape.chunk_bytes;
                let run = GlobalAddr::new(number, offset);
                self.0.allocation_event(run, bytes, ShadowState::Plain);
                // It may have been deposited when a garbage collection began.
                self.0.gc_log.add(|| Span::Bytes(run.bits(), bytes));
                Ok(Refill::Item(source.add(node, offset)))
            }
            Granted::Pieces(pieces) => {
                locked(&self.0.found_full).remove(&node);
                pieces.into_iter().for_each(|p| self.put_piece(p));
                drop(transfer);
                // Another client may have been faster.
                Ok(source.take(Some(node)).map_or(Refill::Again, |i| Refill::Item(Some(i))))
            }
            Granted::Nothing => {
                // The lack of a long run says nothing about single chunks.
                if source.request().count == 1 {
                    locked(&self.0.found_full).insert(node, ASK_AGAIN);
                }
                Ok(Refill::Item(None))
            }
        }
    }

    /// Memory nodes have free chunks again: each is asked.
    pub(crate) fn found_room(self) {
        locked(&self.0.found_full).clear();
    }

    fn full(self, r: RunRequest) -> Error {
        let open = self.0.shape.open();
        let names: Vec<_> = open.iter().take(8).map(|l| l.node.to_string()).collect();
        let more = open.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (verb, noun) = if open.len() == 1 { ("is", "node") } else { ("are", "nodes") };
        let bytes: u64 = open.iter().map(|l| l.region_bytes).sum();
        let mib = bytes as f64 / f64::from(1 << 20);
        let chunks = match r.count {
            1 => "no free chunk".to_owned(),
            n => format!("no {n} free chunks in a row"),
        };
        let waiting = match self.0.limbo_list.waiting().1 {
            0 => String::new(),
            n => format!("; {n} bytes wait for running operations to end"),
        };
        Error::full(format!(
            "memory {noun} {}{more} {verb} full ({mib} MiB, {chunks}{waiting}): delete keys, add a memory node, or create the pool with more memory",
            names.join(", ")
        ))
    }
}
