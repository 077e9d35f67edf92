//! Tags of locks, and locks that a client has taken over for a repair.
//!
//! The releases of a lock that was taken over are awaited; an owner that is away leaves an
//! abandoned lock.

use std::cell::Cell;

use dmtree_fabric::verb::{cas, write as write_verb};
use dmtree_fabric::{Buf, Endpoint, GlobalAddr, Result, Step};

use crate::format::{BODY_AT, LockTag, Table, Ver, View};
use crate::leaf::image_at;
use crate::lock::{TableLocks, WordLocks};
use crate::{Client, DmNode, Route};

/// The tags of a client: node 16, incarnation 16, client 16, acquisition 16 bits.
pub(crate) struct Tags {
    base: u64,
    acquisitions: Cell<u16>,
}

impl Tags {
    pub fn new(ep: &Endpoint, node: &DmNode) -> Self {
        let incarnation = node.pool.fabric().incarnation(ep.node()).unwrap_or(0) as u16;
        // The upper half of a lock word's tags is for changes of whole leaves.
        let client = node.next_client() & if node.has_tables() { u16::MAX } else { 0x7fff };
        let holder = u64::from(ep.node().bits()) << 32 | u64::from(incarnation) << 16;
        let base = (holder | u64::from(client)) << 16;
        Self { base, acquisitions: Cell::new(0) }
    }

    /// The number of the client on its node.
    pub fn client(&self) -> usize {
        (self.base >> 16 & 0xffff) as usize
    }

    /// A tag that this client never used before, except by wrap-around of its counter; never 0.
    #[inline]
    pub fn next(&self) -> LockTag {
        let n = self.acquisitions.get().wrapping_add(1);
        self.acquisitions.set(n);
        LockTag(self.base | u64::from(n))
    }
}

/// An abandoned lock, or that of an unbuilt table, that is this operation's now.
pub(crate) struct TakenLock {
    pub route: Route,
    pub at: GlobalAddr,
    pub tag: LockTag,
    /// The table as it was; none for a lock word.
    pub table: Option<View>,
}

impl TakenLock {
    /// Whether the table says that its leaf is a tombstone with nothing left to do but to retire
    /// it.
    pub fn is_closed(&self) -> bool {
        self.table.as_ref().is_some_and(|view| is_closed(view, self.route.leaf))
    }

    /// Unlocks.
    pub async fn give_back(self, c: &Client) -> Result<()> {
        let done = c.ep.cas(self.at, self.tag.0, 0).await.map(|_| ());
        c.unlocked(self.tag, done)
    }

    /// Unlocks behind the WRITE of the table, if there is one: F holds again before the lock is
    /// free. The image comes before the table.
    pub async fn unlock_with(
        self,
        c: &Client,
        table: &mut Table,
        image: Option<Buf>,
    ) -> Result<()> {
        let Self { route, at, tag, table: was } = self;
        if was.is_none() {
            c.ep.step(Step::Lock);
            let done = c.ep.cas(at, tag.0, 0).await.map(|_| ());
            return c.unlocked(tag, done);
        }
        let body = TableLocks(c).body(table, route.table).await?;
        c.ep.step(Step::Table);
        if let Some(image) = image {
            let image = write_verb(image_at(at, route.capacity), image);
            let list = (image, write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
            let done = c.ep.chain(list).await.map(|_| ());
            return c.unlocked(tag, done);
        }
        let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
        let done = c.ep.chain(list).await.map(|_| ());
        c.unlocked(tag, done)
    }

    /// Unlocks a tombstone for good. False when another client will retire the leaf.
    pub async fn close(self, c: &Client) -> Result<bool> {
        let Self { route, at, tag, table } = self;
        if table.is_none() {
            return WordLocks(c).close(at, tag).await;
        }
        let body = TableLocks(c).body(&mut closed(&route), route.table).await?;
        let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
        let done = c.ep.chain(list).await.map(|_| ());
        c.unlocked(tag, done).map(|()| true)
    }
}

/// The table of a tombstone that nothing is left to do for but to retire it.
pub(crate) fn closed(route: &Route) -> Table {
    let ver = Ver { generation: route.generation, range: 0 };
    let mut table = Table::new(route.leaf, ver, 0, route.capacity);
    table.closed = true;
    table
}

/// Whether this is such a table of a leaf.
pub(crate) fn is_closed(view: &View, leaf: GlobalAddr) -> bool {
    matches!(view, View::Whole(t) if t.closed && t.leaf == leaf)
}
