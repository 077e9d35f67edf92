//! Verbs on tables and leaf locks.
//!
//! A lock is a word that is 0 or 1. With [`Locks::Table`] it is the last word of the table, so a
//! WRITE of the table unlocks, because the words of a WRITE land in ascending order. With
//! [`Locks::Leaf`] it is behind the leaf on the memory node.
//!
//! Order of a write: CAS lock: 0 -> 1, repeated; READ table, in the same chain where round trips
//! are combined. If the table's version differs from the record's, WRITE lock 0, and the same with
//! a fresh route. Then an insert WRITEs the entry before the table, and the table unlocks; an
//! update WRITEs the entry and then lock 0.
//!
//! Invariants: under the lock the table is exact. A fingerprint never names an entry that is not
//! written, because the entry comes first. After an error with an unknown effect the lock stays
//! held: a WRITE may still be in flight, and must not land under the next holder.
//!
//! A lock names no holder. A crash of the holder leaves it held for ever; later writers time out.

use dmtree_fabric::verb::{cas, read, write as write_verb, write_word};
use dmtree_fabric::{Buf, Effect, Error, GlobalAddr, Result, Stage, Step};

use crate::client::{FpTree, Route};
use crate::entry::Entries;
use crate::format::table::{self, Table};
use crate::options::Locks;
use crate::route::Routes;

/// A leaf that this client has locked, with its exact table.
pub(crate) struct Locked {
    pub route: Route,
    pub table: Table,
}

/// Locks of leaves, with their tables.
pub(crate) struct LeafLocks<'c>(pub(crate) &'c FpTree);

impl LeafLocks<'_> {
    pub(crate) fn lock_addr(&self, r: &Route) -> GlobalAddr {
        match self.0.node.o.locks {
            Locks::Table => r.table.plus(table::lock_at(r.capacity) as u64),
            Locks::Leaf => r.leaf.plus(self.0.node.g.leaf_bytes(r.capacity) as u64),
        }
    }

    /// READs a table until it is whole; a lock holder may be writing it.
    pub(crate) async fn read_table(&self, r: &Route) -> Result<Table> {
        let mut backoff = self.0.ep.backoff("table being written", r.table);
        loop {
            self.0.ep.step(Step::Table);
            let bytes = self.0.ep.read(r.table, table::bytes(r.capacity) as u32).await?;
            self.0.ep.stage_cost(Stage::FingerprintScan, 1);
            if let Some(t) = bytes.extract(|b| Table::parse(r.capacity, b)) {
                return Ok(t);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// Takes a leaf's lock and READs its table.
    async fn acquire(&self, r: &Route) -> Result<Table> {
        let (lock, len) = (self.lock_addr(r), table::bytes(r.capacity) as u32);
        let together = self.0.node.o.round_trip_combining && self.0.node.o.locks == Locks::Table;
        // As published: without a pause between attempts.
        let mut backoff = self.0.ep.backoff_within("lock of a leaf", lock, 0);
        self.0.ep.step(Step::Lock);
        let first = loop {
            if together {
                let (was, bytes) = self.0.ep.chain((cas(lock, 0, 1), read(r.table, len))).await?;
                if was == 0 {
                    self.0.ep.stage_cost(Stage::FingerprintScan, 1);
                    break bytes.extract(|b| Table::parse(r.capacity, b));
                }
            } else if self.0.ep.cas(lock, 0, 1).await? == 0 {
                break None;
            }
            self.0.retried.set(true);
            backoff.step().await?;
        };
        match first {
            Some(t) => Ok(t),
            // Not READ yet, or the last holder's WRITE had not landed completely.
            None => self.under(r, self.read_table(r).await).await,
        }
    }

    /// Locks the leaf of a key; its record has the leaf's present version.
    pub(crate) async fn lock_leaf(&self, key: &[u8]) -> Result<Locked> {
        let mut route = Routes(self.0).route(key).await?;
        let mut stale = Routes(self.0).staleness();
        loop {
            let table = self.acquire(&route).await?;
            if table.version == u64::from(route.version) {
                return Ok(Locked { route, table });
            }
            self.unlock_at(&route, false).await?;
            route = Routes(self.0).fresh_route(key, &route, &mut stale).await?;
        }
    }

    /// Frees the lock of a leaf that was not changed.
    pub(crate) async fn unlock(&self, l: &Locked) -> Result<()> {
        self.unlock_at(&l.route, self.0.node.o.round_trip_combining).await
    }

    /// `detached`: the WRITE is not awaited.
    async fn unlock_at(&self, r: &Route, detached: bool) -> Result<()> {
        let lock = self.lock_addr(r);
        if detached {
            self.0.ep.detach(write_word(lock, 0), None);
            return Ok(());
        }
        self.0.ep.step(Step::Lock);
        self.0.ep.write_word(lock, 0).await
    }

    /// Handles an error under the lock. If nothing was changed the lock is freed. Otherwise it
    /// stays held, because a WRITE may still land, and must not land under the next holder.
    pub(crate) async fn fail_at<T>(&self, r: &Route, e: Error) -> Result<T> {
        if e.effect() == Effect::None {
            self.unlock_at(r, false).await?;
        }
        Err(e)
    }

    /// The result of a step under the lock; an error is handled.
    pub(crate) async fn under<T>(&self, r: &Route, step: Result<T>) -> Result<T> {
        match step {
            Err(e) => self.fail_at(r, e).await,
            done => done,
        }
    }

    /// A table's image, unlocked.
    pub(crate) async fn table_image(&self, t: &Table) -> Result<Buf> {
        let mut image = self.0.ep.buf(table::bytes(t.fps().len()) as u32).await?;
        t.encode(&mut image);
        Ok(image)
    }

    /// WRITEs the table of a locked leaf, and frees the lock, in the same verb or in the next one.
    pub(crate) async fn write_table_and_unlock(&self, r: &Route, image: Buf) -> Result<()> {
        self.0.ep.step(Step::Table);
        self.0.ep.write(r.table, image).await?;
        if self.0.node.o.locks == Locks::Leaf {
            self.unlock_at(r, self.0.node.o.round_trip_combining).await?;
        }
        Ok(())
    }

    /// WRITEs an entry and then the table that names it, and unlocks. The entry comes first, so
    /// that a fingerprint never names an unwritten entry.
    pub(crate) async fn write_inserted(
        &self,
        r: &Route,
        slot: usize,
        entry: Buf,
        table: Buf,
    ) -> Result<()> {
        let one_node = r.table.node() == r.leaf.node() && self.0.node.o.locks == Locks::Table;
        if self.0.node.o.round_trip_combining && one_node {
            let entry = write_verb(Entries(self.0).entry_addr(r.leaf, slot), entry);
            self.0.ep.step(Step::Entry);
            return self.0.ep.chain((entry, write_verb(r.table, table))).await.map(|_| ());
        }
        Entries(self.0).write_entry(r.leaf, slot, entry).await?;
        self.write_table_and_unlock(r, table).await
    }

    /// WRITEs an entry that the table already names, and unlocks.
    pub(crate) async fn write_updated(&self, r: &Route, slot: usize, entry: Buf) -> Result<()> {
        let (lock, rtc) = (self.lock_addr(r), self.0.node.o.round_trip_combining);
        if rtc && lock.node() == r.leaf.node() {
            let entry = write_verb(Entries(self.0).entry_addr(r.leaf, slot), entry);
            self.0.ep.step(Step::Entry);
            return self.0.ep.chain((entry, write_word(lock, 0))).await.map(|_| ());
        }
        Entries(self.0).write_entry(r.leaf, slot, entry).await?;
        self.unlock_at(r, rtc).await
    }
}
