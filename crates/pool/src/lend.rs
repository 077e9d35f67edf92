//! Free memory goes from node to node. A node that leaves hands in what it has free; a node with a
//! surplus of objects deposits it; a node that finds the pool full borrows from the others.
//!
//! **Hand in** ([`Supply::hand_in`], before a node leaves): rounds of reclamation until the limbo
//! list is empty or time is up, and then: take everything off the lists, list it as pending, send
//! it in messages to the memory nodes that own the bytes (cells to memory node 0). **Surplus**
//! ([`Supply::deposit_surplus`], after a round): the same for the objects of an arena beyond two
//! chunks' worth, one message at a time. **Borrow** ([`Supply::borrow`], in a full pool): asks
//! every living compute node in turn; the lender gives half of what it has free of the kind, else
//! all its space for blocks, and what waits on its limbo list ([`Supply::lend`]). Retired items
//! go to the limbo list of the borrower anew.
//!
//! Invariants.
//!
//! - *One list.* Every free address is on one list: a node's, or the deposits of a memory node. A
//!   piece leaves a list before it is sent, and comes to a list after it has arrived.
//! - *Logged.* Whatever leaves or comes to a list is logged for garbage collection before it is
//!   gone, respectively as it comes. On its way it belongs to a running operation
//!   ([`PoolNode::begin_transfer`]), for which the barriers of garbage collection wait, and a
//!   deposit counts as pending until nothing of its call executes any more.
//! - *Generations go with the address*: a free object carries the last generation that was granted
//!   there.
//! - *A loan of limbo items is sound*, because the borrower stamps them later than their unlinking;
//!   the lender takes them out under the turn of its rounds, which stamp items by their number.
//!
//! Crashes and lost answers. A deposit with unknown effect stays pending here while this node
//! lives, so it is never both listed as lost and used. One that had no effect goes back to the
//! lists. What a memory node or a lender grants to a call that ends without an answer is lost until
//! garbage collection finds it; so is what a dying node still held.

use std::sync::atomic::Ordering;

use dmtree_fabric::{Effect, Endpoint, ErrorKind, GlobalAddr, NodeId, Result};

use crate::arena::Arena;
use crate::chunks::{ReturnedRun, ask_deposit, ask_deposited, return_run};
use crate::epoch::ask_epoch;
use crate::gc_log::Span;
use crate::gc_log::ask_lend;
use crate::obtain::Supply;
use crate::obtain::Turn;
use crate::pieces::{MAX_PIECES, Piece, Wanted};
use crate::reclaim::Retired;
use crate::transit::InTransit;
use crate::wire::locked;

/// Rounds of questions to one node that has more than a message holds.
const MAX_ROUNDS: usize = 4;
/// A node keeps free objects of so many chunks of an arena.
const KEPT_CHUNKS: u64 = 2;
/// How often a leaving node tries to reclaim what operations may still read.
const MAX_DRAINS: usize = 100;
/// Pause between two of these rounds, ns.
const DRAIN_PAUSE_NS: u64 = 5_000_000;

/// What another node has lent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lent {
    pieces: usize,
    /// Some of it is what was wanted.
    pub(crate) met: bool,
    /// Some of it is free.
    came: bool,
}

impl Supply<'_> {
    /// Takes a free piece that is on no other list.
    pub(crate) fn put_piece(self, piece: Piece) {
        self.0.gc_log.add(|| piece.span());
        let fits = match piece {
            Piece::Object(key, g) => {
                let inside = self.0.shape.holds(g.addr, u64::from(key.object_bytes)).is_some();
                if inside {
                    self.0.arena(key).put(g);
                }
                inside
            }
            Piece::Fresh(key, at, bytes) => {
                let inside = bytes > 0 && self.0.shape.holds(at, bytes).is_some();
                if inside {
                    self.0.arena(key).put_fresh(at, bytes);
                }
                inside
            }
            Piece::Space(index, at, bytes) => {
                let layout = self.0.shape.holds(at, bytes.max(1));
                layout.is_some_and(|l| self.0.space(index).adopt(&l, at.offset(), bytes))
            }
            Piece::Cell(index, t) => self.0.images().put_table(index, t),
        };
        if !fits {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns idle chunks to their memory nodes; `keep` of each space stay. A chunk that is not
    /// returned is lost until garbage collection.
    pub(crate) async fn return_idle(self, ep: &Endpoint, keep: usize) -> Result<()> {
        let spaces: Vec<_> = locked(&self.0.blocks).values().cloned().collect();
        let mut outcome = Ok(());
        let place = |node: usize, offset| GlobalAddr::new(NodeId::memory(node as u16), offset);
        let first = |node, offset, count| {
            let bytes = u64::from(count) * self.0.shape.chunk_bytes;
            self.0.gc_log.pend(None, &[Span::Bytes(place(node, offset).bits(), bytes)]);
        };
        let whole = spaces.iter().flat_map(|s| {
            let runs = s.take_whole(keep, first).into_iter();
            runs.map(|(node, offset, count)| {
                (node, ReturnedRun { index: s.index(), offset, count })
            })
        });
        for (node, run) in whole {
            let in_transit = InTransit(ep, &self.0.gc_log, place(node, run.offset).bits());
            let returned = return_run(ep, NodeId::memory(node as u16), run).await;
            if returned.as_ref().is_err_and(|e| e.effect() == Effect::Unknown) {
                // The call may be carried out later: the chunk stays pending for as long as this
                // node lives.
                std::mem::forget(in_transit);
            }
            outcome = outcome.and(returned);
        }
        outcome
    }

    /// Hands in all that is free here, before this node leaves: retired memory as soon as the
    /// operations that may read it have ended, and whole chunks. Garbage collection finds what a
    /// hand-in that is cut short leaves.
    pub async fn hand_in(self, ep: &Endpoint) -> Result<()> {
        for _ in 0..MAX_DRAINS {
            // The agent goes on meanwhile: other nodes wait for its acknowledgements, and the lease
            // must hold.
            if let Err(e) = self.0.membership().membership_step(ep).await
                && e.kind() == ErrorKind::Revoked
            {
                return Err(e);
            }
            // While a dying node may still read, no retired memory comes free. What is free already
            // is handed in all the same.
            let reclaimed = self.0.reclaimer().reclaim_all(ep).await;
            if reclaimed.is_ok() && self.0.limbo_list.waiting().0 == 0 {
                break;
            }
            ep.sleep(DRAIN_PAUSE_NS).await;
        }
        let _transfer = self.0.begin_transfer();
        loop {
            let pieces = self.take_free();
            if pieces.is_empty() {
                return Ok(());
            }
            self.deposit_all(ep, &pieces).await?;
        }
    }

    /// Deposits what this node has free of an arena beyond a few chunks' worth: other nodes would
    /// take new chunks for it.
    pub(crate) async fn deposit_surplus(self, ep: &Endpoint) -> Result<()> {
        let arenas: Vec<_> = locked(&self.0.arenas).values().cloned().collect();
        let most = |a: &Arena| {
            let of_chunk = self.0.shape.chunk_bytes / u64::from(a.key().object_bytes.max(64));
            (KEPT_CHUNKS * of_chunk).max(1) as usize
        };
        for arena in arenas {
            for layout in self.0.shape.layouts() {
                let m = layout.node.index();
                while arena.has_surplus(m, most(&arena)) {
                    // A message at a time: what a dropped future has not sent is still on its list.
                    let _transfer = self.0.begin_transfer();
                    let mut pieces = Vec::new();
                    arena.take_surplus(m, most(&arena), &mut pieces);
                    self.pend(&pieces);
                    self.deposit(ep, layout.node, &pieces).await?;
                }
            }
        }
        Ok(())
    }

    /// Deposits pieces that are pending already.
    async fn deposit_all(self, ep: &Endpoint, pieces: &[Piece]) -> Result<()> {
        for layout in self.0.shape.layouts() {
            let m = layout.node.index();
            let here: Vec<_> = pieces.iter().filter(|p| p.holder() == m).copied().collect();
            for some in here.chunks(MAX_PIECES) {
                ep.renew_deadline();
                self.deposit(ep, layout.node, some).await?;
            }
        }
        Ok(())
    }

    /// Lists pieces as pending, in groups of one message each.
    fn pend(self, pieces: &[Piece]) {
        for m in self.0.shape.layouts().iter().map(|l| l.node.index()) {
            let here = pieces.iter().filter(|p| p.holder() == m).map(Piece::span);
            let here: Vec<_> = here.collect();
            here.chunks(MAX_PIECES).for_each(|some| self.0.gc_log.pend(None, some));
        }
    }

    async fn deposit(self, ep: &Endpoint, to: NodeId, pieces: &[Piece]) -> Result<()> {
        let place = pieces[0].span().place();
        let in_transit = InTransit(ep, &self.0.gc_log, place);
        let done = ask_deposit(ep, to, pieces).await;
        match done.as_ref().map_err(dmtree_fabric::Error::effect) {
            // The call may be carried out later: the pieces stay pending for as long as this node
            // lives.
            Err(Effect::Unknown) => std::mem::forget(in_transit),
            Err(_) => pieces.iter().for_each(|p| self.put_piece(*p)),
            Ok(()) => {}
        }
        done
    }

    /// Takes free pieces off the lists of this node, and lists them as pending, in groups of one
    /// message each.
    fn take_free(self) -> Vec<Piece> {
        let mut out = Vec::new();
        let arenas: Vec<_> = locked(&self.0.arenas).values().cloned().collect();
        arenas.iter().for_each(|a| a.take_free(1, &mut out));
        let spaces: Vec<_> = locked(&self.0.blocks).values().cloned().collect();
        spaces.iter().for_each(|s| s.take_free(1, 0, &mut out));
        self.0.tables.take_free(None, 1, &mut out);
        self.pend(&out);
        out
    }

    /// What this node lends to another that has no room: half of what it has free, and what waits
    /// on its limbo list. The flag of a piece tells whether operations may still read it.
    pub(crate) fn lend(self, wanted: Wanted) -> Vec<(Piece, bool)> {
        let mut free = Vec::new();
        match wanted {
            Wanted::Objects(key) => self.0.arena(key).take_free(2, &mut free),
            Wanted::Space(index, least) => self.0.space(index).take_free(2, least, &mut free),
            Wanted::Cells(index, lines) => {
                self.0.tables.take_free(Some((index, lines)), 2, &mut free);
            }
        }
        if free.is_empty() && !matches!(wanted, Wanted::Cells(..)) {
            // Space of one chunk may lie with several nodes: brought together it is a chunk again,
            // which may become anything.
            let spaces: Vec<_> = locked(&self.0.blocks).values().cloned().collect();
            spaces.iter().for_each(|s| s.take_free(1, 0, &mut free));
        }
        // A message holds no more.
        for piece in free.drain(free.len().min(MAX_PIECES)..) {
            self.put_piece(piece);
        }
        free.iter().for_each(|p| self.0.gc_log.add(|| p.span()));
        let mut out: Vec<_> = free.into_iter().map(|p| (p, false)).collect();
        // A round of reclamation stamps items by their number.
        if let Some(_turn) = Turn::try_acquire(&self.0.limbo_list.turn) {
            let chunk = self.0.shape.chunk_bytes;
            let piece = |r: &Retired| r.as_piece(chunk).filter(|p| wanted.is_met_by(p));
            let most = MAX_PIECES - out.len();
            for (item, _) in self.0.limbo_list.take_out(most, |r| piece(r).is_some()) {
                self.0.gc_log.add(|| item.span());
                out.extend(piece(&item).map(|p| (p, true)));
            }
        }
        out
    }

    /// Asks the other nodes for free memory, when this one has none and no memory node has a chunk.
    /// True when some has come that may help at once; retired memory is on this node's limbo list
    /// then.
    pub(crate) async fn borrow(self, ep: &Endpoint, wanted: Wanted) -> bool {
        let mut came = false;
        for peer in self.peers() {
            for _ in 0..MAX_ROUNDS {
                let lent = self.borrow_from(ep, peer, wanted).await;
                if lent.met {
                    return true;
                }
                came |= lent.came;
                if lent.pieces < MAX_PIECES {
                    break;
                }
            }
        }
        came
    }

    /// The other compute nodes that are worth a call.
    pub(crate) fn peers(self) -> Vec<NodeId> {
        let is_peer = |n: &NodeId| *n != self.0.cn && self.0.view.is_worth_asking(*n);
        let members = self.0.fabric.members().unwrap_or_default();
        members.into_iter().filter(is_peer).collect()
    }

    /// Asks one of them, which lends half of what it has.
    pub(crate) async fn borrow_from(self, ep: &Endpoint, peer: NodeId, wanted: Wanted) -> Lent {
        let mut lent = Lent::default();
        let _transfer = self.0.begin_transfer();
        // A peer that does not answer lends nothing.
        for (piece, retired) in ask_lend(ep, peer, wanted).await.unwrap_or_default() {
            lent.pieces += 1;
            lent.met |= !retired && wanted.is_met_by(&piece) && !wanted.is_by_chunks(&piece);
            lent.came |= !retired;
            match retired {
                false => self.put_piece(piece),
                true => self.retire_piece(piece),
            }
        }
        lent
    }

    /// Whether a living node does not answer. It may hold memory that this node lacks, which comes
    /// back when it answers, or after its death.
    pub async fn is_any_silent(self, ep: &Endpoint) -> bool {
        let Ok(members) = self.0.fabric.members() else { return false };
        for peer in members.into_iter().filter(|n| *n != self.0.cn) {
            if self.0.view.is_worth_asking(peer)
                && ask_epoch(ep, peer, 0).await.is_err()
                && self.0.view.is_worth_asking(peer)
            {
                return true;
            }
        }
        false
    }

    /// A living node that has been silent for longer than this, ns, is cut off from this one: two
    /// leases.
    pub fn longest_silence_ns(self) -> u64 {
        self.0.membership().lease_ns().saturating_mul(2)
    }

    /// Takes over an item that another node has retired: it waits here as if it had been unlinked
    /// now.
    fn retire_piece(self, piece: Piece) {
        self.0.gc_log.add(|| piece.span());
        let (item, bytes) = match piece {
            Piece::Object(key, g) => (Retired::Object(key, g), u64::from(key.object_bytes)),
            Piece::Space(index, at, bytes) => (Retired::Space(index, at, bytes), bytes),
            Piece::Cell(index, t) => (Retired::Table(index, t), u64::from(t.lines()) * 64),
            // Fresh memory was never granted, so it is never retired.
            Piece::Fresh(..) => return self.put_piece(piece),
        };
        self.0.limbo_list.push(item, bytes);
    }

    /// Takes deposited table cells of this size, if there are any.
    pub(crate) async fn take_left_cells(self, ep: &Endpoint, index: u32, lines: u8) -> Result<()> {
        let _transfer = self.0.begin_transfer();
        let cells = ask_deposited(ep, NodeId::memory(0), Wanted::Cells(index, lines)).await?;
        cells.into_iter().for_each(|c| self.put_piece(c));
        Ok(())
    }
}

impl Wanted {
    fn is_met_by(self, piece: &Piece) -> bool {
        match (self, piece) {
            (Self::Objects(key), Piece::Object(of, _)) => key == *of,
            (Self::Objects(_) | Self::Space(..), Piece::Space(..)) => true,
            (Self::Cells(index, lines), Piece::Cell(of, t)) => index == *of && t.lines() == lines,
            _ => false,
        }
    }

    /// Whether a piece helps only as a part of a whole chunk.
    fn is_by_chunks(self, piece: &Piece) -> bool {
        match (self, piece) {
            (Self::Space(index, least), Piece::Space(of, _, bytes)) => {
                index != *of || *bytes < least
            }
            (Self::Objects(_), Piece::Space(..)) => true,
            _ => false,
        }
    }
}
