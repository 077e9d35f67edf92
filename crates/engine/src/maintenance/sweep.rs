//! The sweep after a death: one pass over the whole tree for locks of dead clients, unbuilt tables
//! and missing records that no operation has met.
//!
//! Every node sweeps when a death has been handled completely, one bottom node per call of
//! maintenance:
//!
//! 1. At the beginning: the root word, when it names a root that forwards to another one (a bulk
//!    load that has committed); in lock-word mode all lock words, by one node.
//! 2. The inner nodes above, from the top level down: an abandoned lock is taken over, and the
//!    right sibling's record is added when it is missing.
//! 3. The leaves of the bottom node, as READ now: lock and table by `help_route`, which repairs an
//!    abandoned lock and builds an unbuilt table. Each node looks at the leaves with tables that it
//!    owns; one node looks at those with tables on memory nodes.
//! 4. Each leaf's right sibling: when the leaf ends at another key than its record implies, the
//!    missing record becomes a chore.
//!
//! A leaf that cannot be decided now (its owner is away, or a live client has locked an unbuilt
//! table) becomes a chore and is inspected again. A leaf on a lost memory node is passed over.
//!
//! After the sweep F holds for every leaf of a live owner, R holds up to queued chores, and no lock
//! of the dead client is left that any client could wait for. Then one node queues the garbage
//! collection.
//!
//! The sweep changes memory only through recovery routines, each of which may be repeated. When the
//! sweeping node dies, its death begins another sweep, which covers its leaves under their new
//! owners.

use std::sync::Arc;

use dmtree_fabric::trace::{Event, report};
use dmtree_fabric::{GlobalAddr, NodeId, Result, Role};
use dmtree_parts::cache::CachedNode;

use crate::inner::Records;
use crate::leaf::{Blocks, NodeHeader};
use crate::recovery::{InnerRecovery, Inspected, LeafRecovery, WordRecovery};
use crate::router::{InnerRead, Router, route_of};
use crate::{Chore, Client, Mark, Route, is_away};

/// Sweeps the tree after a death.
#[derive(Clone, Copy)]
pub(crate) struct Sweep<'c>(pub &'c Client);

impl Sweep<'_> {
    /// Sweeps the whole tree, every leaf of it, at once.
    ///
    /// # Errors
    /// Those of the fabric; a leaf on a lost memory node is passed over.
    pub async fn all(self) -> Result<()> {
        let mut from = Vec::new();
        loop {
            self.0.ep.renew_deadline();
            let _pin = self.0.pin()?;
            match self.node(&from, false).await? {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Whether a death has been handled completely since this node swept last; if so a sweep
    /// begins.
    pub(crate) fn begin(self) {
        if self.0.node.maintenance.begin_sweep(&self.0.node.pool) {
            report(Event::Repair, || "a sweep begins: a death is complete".to_owned());
            self.0.node.push_chore(Chore::Sweep(Vec::new()));
        }
    }

    /// One bottom node, and on the way the inner nodes above it; returns the key at which to
    /// continue.
    pub(crate) async fn node(self, from: &[u8], own: bool) -> Result<Option<Vec<u8>>> {
        let c = self.0;
        if from.is_empty() {
            self.root().await?;
            if !c.node.has_tables() && (!own || c.node.pool.membership().is_first()) {
                WordRecovery(c).sweep().await?;
            }
        }
        let top = self.top_level().await?;
        for level in (1..=top).rev() {
            self.inner(from, level).await?;
        }
        let node = self.present_node(from).await?;
        for (i, r) in node.records().enumerate() {
            c.ep.renew_deadline();
            let route = route_of(&r);
            if own && !self.sweeps_leaf(&route).await {
                continue;
            }
            if c.node.has_tables() && !self.leaf(&route).await? {
                continue;
            }
            match self.right(route.leaf, node.child_hi(i)).await {
                // A lost leaf; with a table the check above has met the loss already.
                Err(e) if is_away(&e) && !c.node.has_tables() => {}
                swept => swept?,
            }
        }
        Ok(node.hi().map(<[u8]>::to_vec))
    }

    /// The bottom node that covers a key, with its present leaves. A cached one may be stale.
    pub(crate) async fn present_node(self, key: &[u8]) -> Result<Arc<CachedNode>> {
        let c = self.0;
        let node = Router(c).descend(key, 1).await?;
        match Router(c).read_inner(node.addr, Some(node.generation), Some(1)).await? {
            InnerRead::Whole(copy) => Ok(copy.node),
            _ => {
                c.node.cache.invalidate(1, &node);
                Router(c).descend(key, 1).await
            }
        }
    }

    async fn sweeps_leaf(self, route: &Route) -> bool {
        if !self.0.node.has_tables() {
            return self.0.node.pool.membership().is_first();
        }
        let owner = self.0.node.pool.resolve(&self.0.ep, route.table).await;
        owner.is_ok_and(|at| self.sweeps_for(at.node()))
    }

    /// One leaf: its lock and its table. Maintenance checks an undecided leaf again. False when the
    /// leaf is lost.
    pub(crate) async fn leaf(self, route: &Route) -> Result<bool> {
        match LeafRecovery(self.0).help_route(route).await {
            Ok(Inspected::Done) => return Ok(true),
            Ok(Inspected::Open) => {}
            // The leaf is lost, or something else that its repair needs is away.
            Err(e) if is_away(&e) => match NodeHeader::read(self.0, route.leaf).await {
                Err(e) if is_away(&e) => return Ok(false),
                _ => {}
            },
            Err(e) => return Err(e),
        }
        Mark::SweepAgain.hit();
        self.0.node.push_chore(Chore::Inspect(*route));
        Ok(true)
    }

    /// Whether this node sweeps the leaves with tables on a given node: those that it owns itself,
    /// and one node for all those on memory nodes. (When that one dies its death begins another
    /// sweep, of another one.)
    fn sweeps_for(self, owner: NodeId) -> bool {
        match owner.role() {
            Role::Compute => owner == self.0.ep.node(),
            Role::Memory | Role::Journal => self.0.node.pool.membership().is_first(),
        }
    }

    /// An old root that forwards to another one: the root of a load.
    pub(crate) async fn root(self) -> Result<()> {
        loop {
            let root = Router(self.0).read_root().await?;
            let h = NodeHeader::read(self.0, root).await?;
            if h.forward.is_null() || h.forward == root {
                return Ok(());
            }
            Mark::RecoverRoot.hit();
            self.0.ep.cas(self.0.node.root.word, root.bits(), h.forward.bits()).await?;
            self.0.ep.check_deadline("the root", root.bits())?;
        }
    }

    pub(crate) async fn top_level(self) -> Result<u8> {
        let root = Router(self.0).read_root().await?;
        Ok(NodeHeader::read(self.0, root).await?.level)
    }

    /// The node of a level that covers a key: its lock, and the record of its right sibling.
    async fn inner(self, key: &[u8], level: u8) -> Result<()> {
        let c = self.0;
        let Some(node) = Router(c).descend_to(key, level).await? else { return Ok(()) };
        InnerRecovery(c).help(node.addr).await?;
        let h = NodeHeader::read(c, node.addr).await?;
        if !h.forward.is_null() || h.ver.generation != node.generation {
            c.node.cache.invalidate(level, &node);
            return Ok(());
        }
        if h.next.is_null() {
            return Ok(());
        }
        let n = NodeHeader::read(c, h.next).await?;
        let Some(low) = Blocks(c).fence_key(&n.lo).await? else { return Ok(()) };
        // A bulk load that has not ended names its root here, which is no sibling.
        if n.level != level || !n.forward.is_null() || !n.whole || n.lo == h.lo {
            return Ok(());
        }
        let parent = Router(c).descend_to(&low, level + 1).await?;
        let named = parent
            .is_some_and(|p| p.keys().floor(&low).is_some_and(|i| p.record(i).child == h.next));
        if named {
            return Ok(());
        }
        Mark::RecoverPublish.hit();
        Records(c).publish_inner(level, low, n.child(h.next)).await
    }

    /// The right sibling of a leaf has a record: otherwise the parent level continues at another
    /// key than the leaf's end.
    pub(crate) async fn right(self, leaf: GlobalAddr, high: Option<&[u8]>) -> Result<()> {
        let h = NodeHeader::read(self.0, leaf).await?;
        if !h.whole || !h.forward.is_null() || h.next.is_null() {
            return Ok(());
        }
        let hi = Blocks(self.0).fence_key(&h.hi).await?;
        if hi.as_deref() == high {
            return Ok(());
        }
        if let Some(hi) = hi {
            self.0.node.push_chore(Chore::Publish(hi));
        }
        Ok(())
    }
}
