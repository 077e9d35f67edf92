//! The limbo list: what was unlinked waits until every operation that ran at that time has ended.
//!
//! *Calls in order.* [`PoolNode::retire`] notes an item as fresh. A round ([`Reclaimer::reclaim`]),
//! one client at a time:
//!
//! 1. counts the fresh items, adds 1 to the global epoch on memory node 0, and stamps those items
//!    with the sum;
//! 2. asks every member for the smallest epoch in which an operation runs there (`epoch.rs`);
//! 3. releases what is stamped that early or earlier to the free lists, and logs it for garbage
//!    collection first.
//!
//! *Claim.* An item that leaves the limbo list is held by no running operation of any member.
//!
//! *Argument.* Its unlinking verb was awaited before [`PoolNode::retire`]. A reclaimer counts the
//! items that are there, and only then adds 1 to the global epoch; the items get the sum, `s`, as
//! their stamp. So the word shows `s` or more only after every one of them was unlinked. An
//! operation's slot holds an epoch that its node knew when the operation began, and a node knows
//! only what the word has shown. Hence **a slot that holds `s` or more belongs to an operation that
//! began after the unlinking**: it cannot have found the item. The item is released when every
//! member, asked after the unlinking, has answered that its smallest running slot is `s` or more,
//! or that nothing runs. An operation that such a scan did not see announced itself after the scan
//! (both sides have a sequentially consistent barrier between announcement and first READ, and
//! before the scan), so it began after the unlinking too. A slot may hold an older epoch than its
//! operation deserves; that delays, and never harms.
//!
//! *Members that do not answer* stop reclamation, with an error, until they answer or their access
//! is revoked. Then the result of their operations reaches no client, and no verb of theirs
//! executes.
//!
//! *Crashes and drops.* A future dropped before the sum is known moves nothing. A node that dies
//! takes its limbo list along: garbage collection finds the items.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, GlobalAddr, Member, Result, WaitReason};

use crate::arena::{ArenaKey, Grant};
use crate::epoch::ask_epoch;
use crate::gc_log::{GcLog, Span};
use crate::ids::{BlockPtr, TableId};
use crate::layout::{EPOCH_WORD, first_node};
use crate::node::PoolNode;
use crate::obtain::Turn;
use crate::pieces::Piece;
use crate::wire::locked;

/// So many fresh items are worth a round of questions.
const DUE_ITEMS: u64 = 64;
/// So many fresh bytes are, too.
const DUE_BYTES: u64 = 4 << 20;

/// Something unlinked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retired {
    Object(ArenaKey, Grant),
    Block(u32, BlockPtr),
    Table(u32, TableId),
    /// Space for blocks of an index that was on no list: address, bytes.
    Space(u32, GlobalAddr, u64),
}

impl Retired {
    pub(crate) fn index(&self) -> u32 {
        match *self {
            Self::Object(key, _) => key.index,
            Self::Block(index, _) | Self::Table(index, _) | Self::Space(index, ..) => index,
        }
    }

    pub(crate) fn span(&self) -> Span {
        match *self {
            Self::Object(key, g) => Span::object(g.addr, u64::from(key.object_bytes)),
            Self::Block(_, b) => Span::block(b),
            Self::Table(_, t) => Span::table(t),
            Self::Space(_, at, bytes) => Span::Bytes(at.bits(), bytes),
        }
    }

    /// The same for another node; blocks as the space that they take of whole chunks or of a shared
    /// one.
    pub(crate) fn as_piece(&self, chunk_bytes: u64) -> Option<Piece> {
        match *self {
            Self::Object(key, g) => Some(Piece::Object(key, g)),
            Self::Block(index, b) => {
                let bytes = u64::from(b.plausible()?.capacity());
                let whole = bytes.next_multiple_of(chunk_bytes);
                let bytes = if bytes > chunk_bytes { whole } else { bytes };
                Some(Piece::Space(index, b.addr(), bytes))
            }
            Self::Table(index, t) => Some(Piece::Cell(index, t)),
            Self::Space(index, at, bytes) => Some(Piece::Space(index, at, bytes)),
        }
    }
}

#[derive(Debug)]
struct Stamped {
    stamp: u64,
    items: Vec<(Retired, u64)>,
}

#[derive(Debug, Default)]
struct LimboEntries {
    /// Not stamped yet, in the order of retirement.
    fresh: Vec<(Retired, u64)>,
    stamped: VecDeque<Stamped>,
}

/// One node's retired memory.
#[derive(Debug, Default)]
pub(crate) struct LimboList {
    limbo_entries: Mutex<LimboEntries>,
    fresh: AtomicU64,
    fresh_bytes: AtomicU64,
    /// Items ever released.
    released: AtomicU64,
    /// A client found the pool full since the last round.
    pressure: AtomicBool,
    pub(crate) turn: FifoMutex,
}

impl LimboList {
    /// Takes items out, for another node. The caller has the turn: a round stamps by number.
    pub(crate) fn take_out(
        &self,
        most: usize,
        which: impl Fn(&Retired) -> bool,
    ) -> Vec<(Retired, u64)> {
        let mut limbo_entries = locked(&self.limbo_entries);
        let mut left = most;
        let mut wanted = |(item, _): &mut (Retired, u64)| {
            let take = left > 0 && which(item);
            left -= usize::from(take);
            take
        };
        let fresh: Vec<_> = limbo_entries.fresh.extract_if(.., &mut wanted).collect();
        let mut out = Vec::new();
        for s in &mut limbo_entries.stamped {
            out.extend(s.items.extract_if(.., &mut wanted));
        }
        limbo_entries.stamped.retain(|s| !s.items.is_empty());
        self.fresh.fetch_sub(fresh.len() as u64, Ordering::Relaxed);
        self.fresh_bytes.fetch_sub(fresh.iter().map(|(_, b)| b).sum(), Ordering::Relaxed);
        out.extend(fresh);
        out
    }

    pub(crate) fn push(&self, item: Retired, bytes: u64) {
        let mut limbo_entries = locked(&self.limbo_entries);
        limbo_entries.fresh.push((item, bytes));
        self.fresh.fetch_add(1, Ordering::Relaxed);
        self.fresh_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The pool is full: the next round is due at once.
    pub(crate) fn press(&self) {
        self.pressure.store(true, Ordering::Relaxed);
    }

    /// The spans that wait.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let limbo_entries = locked(&self.limbo_entries);
        let stamped = limbo_entries.stamped.iter().flat_map(|s| &s.items);
        limbo_entries.fresh.iter().chain(stamped).map(|(item, _)| item.span()).collect()
    }

    /// The table cells of an index that wait.
    pub(crate) fn tables(&self, index: u32) -> Vec<TableId> {
        let limbo_entries = locked(&self.limbo_entries);
        let stamped = limbo_entries.stamped.iter().flat_map(|s| &s.items);
        let cells = limbo_entries.fresh.iter().chain(stamped).filter_map(|(item, _)| match item {
            Retired::Table(of, t) if *of == index => Some(*t),
            _ => None,
        });
        cells.collect()
    }

    /// Items and bytes that wait.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let limbo_entries = locked(&self.limbo_entries);
        let stamped = limbo_entries.stamped.iter().flat_map(|s| &s.items);
        let all = limbo_entries.fresh.iter().chain(stamped);
        all.fold((0, 0), |(n, bytes), (_, b)| (n + 1, bytes + b))
    }

    fn stamp(&self, count: usize, stamp: u64) {
        let mut limbo_entries = locked(&self.limbo_entries);
        let items: Vec<_> = limbo_entries.fresh.drain(..count).collect();
        let bytes = items.iter().map(|(_, b)| b).sum();
        let newest = limbo_entries.stamped.back().map(|s| s.stamp);
        debug_assert!(newest.is_none_or(|n| n < stamp), "stamp {stamp} after {newest:?}");
        self.fresh.fetch_sub(count as u64, Ordering::Relaxed);
        self.fresh_bytes.fetch_sub(bytes, Ordering::Relaxed);
        limbo_entries.stamped.push_back(Stamped { stamp, items });
    }

    /// Takes out everything stamped `oldest` or earlier, and logs it under the lock.
    fn release(&self, oldest: u64, gc_log: &GcLog) -> Vec<(Retired, u64)> {
        let mut limbo_entries = locked(&self.limbo_entries);
        let n = limbo_entries.stamped.iter().take_while(|s| s.stamp <= oldest).count();
        let out: Vec<_> = limbo_entries.stamped.drain(..n).flat_map(|s| s.items).collect();
        out.iter().for_each(|(item, _)| gc_log.add(|| item.span()));
        self.released.fetch_add(out.len() as u64, Ordering::Relaxed);
        out
    }
}

/// The result of a round of reclamation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Objects put on free lists (or set aside, worn out).
    pub objects: u64,
    /// Blocks made free.
    pub blocks: u64,
    /// Table cells put on free lists.
    pub tables: u64,
    /// Bytes of all of these.
    pub bytes: u64,
    /// Items that still wait for running operations.
    pub waiting: u64,
}

/// Reclamation of what was retired.
#[derive(Clone, Copy, Debug)]
pub struct Reclaimer<'n>(pub(crate) &'n PoolNode);

impl Reclaimer<'_> {
    /// Whether a round of reclamation is worth its verbs now. Cheap: two loads.
    pub fn reclaim_due(self) -> bool {
        let q = &self.0.limbo_list;
        q.fresh.load(Ordering::Relaxed) >= DUE_ITEMS
            || q.fresh_bytes.load(Ordering::Relaxed) >= DUE_BYTES
            || q.pressure.load(Ordering::Relaxed)
    }

    /// Makes a round due: a caller waits for what was retired.
    pub fn press_reclaim(self) {
        self.0.limbo_list.press();
    }

    /// How many items this node has ever released from its limbo list: when the number has grown,
    /// something came free.
    pub fn released(self) -> u64 {
        self.0.limbo_list.released.load(Ordering::Relaxed)
    }

    /// One round: stamps what was retired, asks every compute node what runs, and frees what no
    /// operation can hold any more. Call it between operations: the caller's own running operation
    /// counts too. It does nothing while another client of this node runs a round.
    ///
    /// # Errors
    /// Those of the fabric: while a member does not answer, nothing is released until it answers or
    /// its access is revoked.
    pub async fn reclaim(self, ep: &Endpoint) -> Result<Reclaimed> {
        let Some(turn) = Turn::try_acquire(&self.0.limbo_list.turn) else {
            return Ok(Reclaimed::default());
        };
        let out = self.round(ep, &turn).await?;
        if out.blocks > 0 {
            self.0.supply().return_idle(ep, 1).await?;
        }
        drop(turn);
        if out.objects > 0 {
            // Objects that are not deposited stay here.
            let _ = self.0.supply().deposit_surplus(ep).await;
        }
        Ok(out)
    }

    /// The same for a full pool: waits for its turn, and keeps no idle chunk.
    pub(crate) async fn reclaim_all(self, ep: &Endpoint) -> Result<()> {
        let why = WaitReason { what: "another client's reclamation", at: 0 };
        let turn = Turn::acquire(&self.0.limbo_list.turn, ep, why).await?;
        let round = self.round(ep, &turn).await;
        drop(turn);
        self.0.supply().return_idle(ep, 0).await?;
        round.map(|_| ())
    }

    /// After a `Full`, between operations: rounds until something was freed (true: try again) or
    /// nothing is in limbo (false: the pool is full indeed). An operation that is slow elsewhere
    /// can hold back all that was retired meanwhile.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; those of the fabric.
    pub async fn reclaim_for_room(self, ep: &Endpoint) -> Result<bool> {
        let mut pause = ep.backoff("operations that hold retired memory", GlobalAddr::NULL);
        let before = self.released();
        loop {
            let waits = self.0.limbo_list.waiting().0 > 0;
            self.reclaim_all(ep).await?;
            if self.released() != before {
                return Ok(true);
            }
            if !waits {
                return Ok(false);
            }
            pause.step().await?;
        }
    }

    async fn round(self, ep: &Endpoint, _turn: &Turn<'_>) -> Result<Reclaimed> {
        let q = &self.0.limbo_list;
        q.pressure.store(false, Ordering::Relaxed);
        let fresh = locked(&q.limbo_entries).fresh.len();
        if fresh > 0 {
            // Nothing moves before the sum is known, so a future dropped here loses nothing. Only
            // the holder of the turn stamps: the first `fresh` items are those that were there
            // before the addition.
            let before = ep.faa(first_node(EPOCH_WORD), 1).await?;
            q.stamp(fresh, before.wrapping_add(1));
        }
        let newest = locked(&q.limbo_entries).stamped.back().map(|s| s.stamp);
        let Some(newest) = newest else { return Ok(Reclaimed::default()) };
        let oldest = self.oldest_running(ep, newest).await?;
        let mut out = Reclaimed::default();
        for (item, bytes) in q.release(oldest, &self.0.gc_log) {
            out.bytes += bytes;
            match item {
                Retired::Object(key, g) => {
                    out.objects += 1;
                    self.0.take_back(&self.0.arena(key), g);
                }
                Retired::Space(index, at, bytes) => {
                    out.blocks += 1;
                    self.0.take_space(index, at, bytes);
                }
                Retired::Block(index, b) => {
                    out.blocks += 1;
                    self.0.give_back_block(index, b);
                }
                Retired::Table(index, t) => {
                    out.tables += 1;
                    self.0.give_back_table(index, t);
                }
            }
        }
        out.waiting = q.waiting().0;
        Ok(out)
    }

    /// Tells every member the epoch, and returns the smallest one in which an operation runs.
    pub(crate) async fn oldest_running(self, ep: &Endpoint, epoch: u64) -> Result<u64> {
        let mut oldest = self.0.epochs.adopt(epoch);
        for node in self.0.fabric.members()?.into_iter().filter(|n| *n != self.0.cn) {
            // A revoked node's operations have no effect any more: their results reach no client,
            // and no verb of theirs executes.
            let incarnation = self.0.fabric.incarnation(node).unwrap_or(0);
            let is_revoked = || self.0.view.is_revoked(Member { node, incarnation });
            if is_revoked() {
                continue;
            }
            match ask_epoch(ep, node, epoch).await {
                Ok(e) => oldest = oldest.min(e),
                Err(_) if is_revoked() || !self.0.fabric.members()?.contains(&node) => {}
                Err(e) => return Err(e.context(format!("asking {node} what it still reads"))),
            }
        }
        Ok(oldest)
    }
}
