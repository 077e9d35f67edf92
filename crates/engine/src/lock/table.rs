//! Locks of leaves in their tables.

use dmtree_fabric::verb::{cas, read, write as write_verb};
use dmtree_fabric::{Buf, GlobalAddr, Result, Role, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_pool::TableId;

use crate::client::{Client, Route, is_away};
use crate::format::Ver;
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::lock::{Contenders, HeldLock, Lockable};
use crate::marks::Mark;
use crate::mutants::Mutant;

/// Result of confirming a route at its table's owner.
pub(crate) enum Confirmed {
    /// The lock was free: the table is exact.
    Exact(Table),
    /// The lock was free, and the table was never written since its cell was zeroed: its owner is
    /// new.
    Unbuilt,
    /// No table can be read: its owner is away, or the cell holds no (whole) table.
    Odd,
    /// Another client holds the lock.
    Locked,
}

/// Locks of leaves in their tables.
#[derive(Clone, Copy)]
pub(crate) struct TableLocks<'c>(pub &'c Client);

impl TableLocks<'_> {
    /// `[CAS lock 0->0, READ table]`: when the lock was free at the CAS, the table is exact at that
    /// instant or at a later one of this operation.
    pub(crate) async fn confirm(self, table: TableId, capacity: usize) -> Result<Confirmed> {
        let c = self.0;
        // The owner is dead or cannot be reached: the leaf answers instead.
        let at = match c.node.pool.resolve(&c.ep, table).await {
            Ok(at) => at,
            Err(e) if is_away(&e) => return Ok(Confirmed::Odd),
            Err(e) => return Err(e),
        };
        let mut backoff = c.ep.backoff("table being written", at);
        loop {
            let len = Table::body_len(capacity);
            c.ep.step(Step::Table);
            let got = match c.node.has(Mutant::ConfirmWithoutCas) {
                false => c.cas_and_read(at, (0, 0), at.plus(BODY_AT as u64), len).await,
                true => {
                    c.ep.batch((read(at, 8), read(at.plus(BODY_AT as u64), len as u32)))
                        .await
                        .map(|(lock, bytes)| (lock.word(0), bytes))
                }
            };
            let (was, bytes) = match got {
                Ok(got) => got,
                Err(e) if is_away(&e) && !c.node.has(Mutant::OwnerIsNeeded) => {
                    Mark::OwnerAway.hit();
                    return Ok(Confirmed::Odd);
                }
                Err(e) => return Err(e),
            };
            if was != 0 && !c.node.has(Mutant::ConfirmWhileLocked) {
                return Ok(Confirmed::Locked);
            }
            match bytes.extract(|b| Table::view(table, capacity, b)) {
                View::Whole(t) => return Ok(Confirmed::Exact(t)),
                View::Unbuilt => return Ok(Confirmed::Unbuilt),
                // A writer locked and wrote between the two verbs, or the cell has another capacity
                // or owner now.
                View::Torn if backoff.steps() >= 3 => return Ok(Confirmed::Odd),
                View::Torn => backoff.step().await?,
            }
            c.op.retried.set(true);
        }
    }

    /// `doubt`: an earlier try with this tag may have succeeded.
    pub(crate) async fn try_cell(
        self,
        (route, fifo_guard): (&Route, &FifoGuard),
        at: GlobalAddr,
        tag: LockTag,
        doubt: bool,
    ) -> Result<Tried> {
        let c = self.0;
        let len = Table::body_len(route.capacity);
        c.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let body = at.plus(BODY_AT as u64);
        let (was, body, said) = match Contenders(c).stamps_at(route, at, fifo_guard) {
            None => {
                let (was, body) = c.try_for(lock, (at, 0), body, len).await?;
                (was, body, None)
            }
            Some(words) => {
                let (was, body, said) =
                    Contenders(c).try_and_read_stamps(lock, at, (body, len), words).await?;
                (was, body, Some(said))
            }
        };
        if was != 0 && !(doubt && was == tag.0) {
            Mark::LockHeld.hit();
            return Ok(Tried::Busy(was));
        }
        Contenders(c).took(route, said.as_ref());
        // This operation holds the lock: no other client writes this table now, so a torn one is
        // not a table of this leaf.
        let mut table = c.spare_table();
        let is_whole = body.extract(|b| table.load(route.table, route.capacity, b));
        if is_whole && (route.matches(&table) || c.node.has(Mutant::LockAnyTable)) {
            return Ok(Tried::Got(table));
        }
        c.keep_table(table);
        let other = match body.extract(|b| Table::view(route.table, route.capacity, b)) {
            View::Unbuilt => Tried::Unbuilt,
            _ => {
                Mark::LockStale.hit();
                Tried::Stale
            }
        };
        self.free(route, at, tag, None).await?;
        Ok(other)
    }

    /// Unlocks a leaf with an unchanged table.
    pub(crate) async fn free(
        self,
        route: &Route,
        at: GlobalAddr,
        tag: LockTag,
        fifo_guard: Option<FifoGuard>,
    ) -> Result<()> {
        let c = self.0;
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let hook = c.leaf_hook.watch(lock, fifo_guard);
        let done = c.ep.release(cas(at, tag.0, 0), hook).await;
        c.released(tag, done)
    }

    /// The owner did not answer: whether the table is closed is unknown. When the owner is dead its
    /// cells are gone, and zero at the next owner, where no client finds this leaf alive; else
    /// closing is repeated.
    pub(crate) async fn close_again(
        self,
        tag: LockTag,
        route: &Route,
        at: GlobalAddr,
    ) -> Result<()> {
        let c = self.0;
        let mut backoff = c.ep.backoff("the owner of a closed table", at);
        loop {
            match c.node.pool.resolve(&c.ep, route.table).await {
                Ok(now) if now == at => {}
                Err(e) if !is_away(&e) => return Err(e),
                _ => return Ok(()),
            }
            let mut table = Table::new(
                route.leaf,
                Ver { generation: route.generation, range: 0 },
                0,
                route.capacity,
            );
            table.closed = true;
            let was = match c.ep.cas(at, tag.0, tag.0).await {
                Ok(was) => was,
                Err(e) if is_away(&e) => {
                    c.ep.sleep(100_000).await;
                    backoff.step().await?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            if was != tag.0 {
                return Ok(());
            }
            let body = self.body(&mut table, route.table).await?;
            let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
            match c.ep.chain(list).await {
                Err(e) if is_away(&e) => backoff.step().await?,
                other => return other.map(|_| ()),
            }
        }
    }

    pub(crate) async fn body(self, table: &mut Table, id: TableId) -> Result<Buf> {
        let mut body = self.0.ep.buf(Table::body_len(table.fps().len()) as u32).await?;
        table.body(id, &mut body);
        Ok(body)
    }
}

pub(crate) fn is_memory(at: GlobalAddr) -> bool {
    at.node().role() == Role::Memory
}

pub(crate) enum Tried {
    Got(Box<Table>),
    Stale,
    /// The cell was never written since it was zeroed: its owner is new.
    Unbuilt,
    Busy(u64),
}
