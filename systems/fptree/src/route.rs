//! Finds the leaf of a key: the cache of bottom inner nodes, and the descent over the memory nodes
//! that fills it.
//!
//! A route from the cache costs no verb. A descent READs the root node (its address is kept, or
//! READ from the root pointer), and one node per level. Only bottom nodes are cached.
//!
//! Invariants: a record is a hint that its version confirms: it holds if table and entries have the
//! same version. A node keeps its address and its lower fence key, so right links lead on from a
//! node that was split after the route was made. A stale record is replaced by a READ of its bottom
//! node; if that does not help, by a descent from the root, which is repeated with pauses until the
//! client that divided the leaf has published the new record.
//!
//! Routes change nothing in the index, so a crash leaves nothing behind.

use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step, Verified};
use dmtree_parts::blink::upper;
use dmtree_parts::cache::{CachedNode, NodeParts, Record};
use dmtree_parts::slots::Slots;
use dmtree_parts::sync::reading;

use crate::client::{FpTree, Route};
use crate::format::inner::Inner;
use crate::format::table;
use crate::format::table::Table;

/// The level of cached nodes: their children are leaves.
pub(crate) const BOTTOM: u8 = 1;
/// A bound that no tree reaches.
const MAX_LEVELS: usize = 24;

/// The route of child `i` of a bottom node.
fn route_of(node: &CachedNode, i: usize, cached: bool) -> Route {
    let r = node.record(i);
    Route {
        leaf: r.child,
        table: GlobalAddr::from_bits(r.table),
        capacity: usize::from(r.capacity),
        version: r.version,
        bottom: node.addr,
        cached,
    }
}

/// How often the present operation has found its record stale; selects the next step.
pub(crate) struct Staleness<'e> {
    backoff: dmtree_fabric::Backoff<'e>,
    times: u32,
}

/// The way to a leaf.
pub(crate) struct Routes<'c>(pub(crate) &'c FpTree);

impl<'c> Routes<'c> {
    pub(crate) fn staleness(&self) -> Staleness<'c> {
        let backoff = self.0.ep.backoff("the new record of a leaf", self.0.node.root.word);
        Staleness { backoff, times: 0 }
    }

    /// The route of a key from the cache alone, and the slots that a mirror of its table has for a
    /// fingerprint; `None` for the slots without a mirror. No verb, no lock, no allocation.
    pub(crate) fn cached_route(&self, key: &[u8], fp: u8) -> Option<(Route, Option<Slots>)> {
        let mirrors = self.0.node.o.mirrors && fp != 0;
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        let (route, mirrored) = {
            let r = reading();
            let (node, i) = self.0.node.cache.find(BOTTOM, key, &r)?;
            (route_of(node, i, true), node.record_with_slots(i, fp).1.filter(|_| mirrors))
        };
        self.0.hits.count();
        self.0.path.borrow_mut().clear();
        if mirrored.is_some() {
            self.0.ep.stage_cost(Stage::FingerprintScan, 1);
            return Some((route, mirrored));
        }
        let own = mirrors && route.table.node() == self.0.ep.node();
        let slots = own.then(|| self.own_table(&route)).flatten().map(|t| t.slots(fp));
        Some((route, slots))
    }

    /// The table of a leaf, if this node is its owner: copied without a verb, a mirror that is
    /// never old. `None` when a lock holder writes it, or when its version differs from the
    /// record's.
    fn own_table(&self, r: &Route) -> Option<Table> {
        self.0.ep.stage_cost(Stage::FingerprintScan, 1);
        let mut image = [0; table::bytes(crate::format::MAX_CAPACITY)];
        for at in (0..table::bytes(r.capacity)).step_by(8) {
            let word = self.0.ep.peek(r.table.offset() + at as u64)?;
            dmtree_parts::bytes::put_u64(&mut image, at, word);
        }
        let t = Table::parse(r.capacity, &image[..table::bytes(r.capacity)])?;
        (t.version == u64::from(r.version)).then_some(t)
    }

    pub(crate) async fn route(&self, key: &[u8]) -> Result<Route> {
        match self.cached_route(key, 0) {
            Some((route, _)) => Ok(route),
            None => self.missed_route(key).await,
        }
    }

    /// The route of a key that the cache does not cover.
    pub(crate) async fn missed_route(&self, key: &[u8]) -> Result<Route> {
        self.0.node.lookups.count_miss();
        let node = self.descend(key).await?;
        route_in(&node, key)
    }

    /// A new route of a key, to replace the stale route `old`. If the old one came from the cache,
    /// its bottom node is READ once; after that the descent begins at the root.
    pub(crate) async fn fresh_route(
        &self,
        key: &[u8],
        old: &Route,
        s: &mut Staleness<'_>,
    ) -> Result<Route> {
        self.0.retried.set(true);
        s.times += 1;
        if s.times == 1 && old.cached {
            let cached = self.0.node.cache.lookup(BOTTOM, key).map(|(node, _)| node);
            if let Some(node) = cached.filter(|n| n.addr == old.bottom) {
                self.0.node.cache.invalidate(BOTTOM, &node);
            }
            if let Some(node) = self.bottom_from(old.bottom, key).await? {
                let fresh = route_in(&node, key)?;
                return Ok(Route { cached: true, ..fresh });
            }
        } else if s.times > 2 {
            s.backoff.step().await?;
        }
        let node = self.descend(key).await?;
        route_in(&node, key)
    }

    /// Follows right links from a bottom node to the one that covers `key`; `None` when the key
    /// lies to the left.
    async fn bottom_from(&self, at: GlobalAddr, key: &[u8]) -> Result<Option<Arc<CachedNode>>> {
        let mut at = at;
        loop {
            let image = self.read_inner(at).await?;
            let n = Inner::of(&self.0.node.g, &image);
            if key < n.min() || !n.next_is_leaf() {
                return Ok(None);
            }
            let node = self.cache_bottom(at, &n);
            if !n.ends_before(key) {
                return Ok(Some(node));
            }
            at = self.hop(&n, at)?;
        }
    }

    /// The bottom node that covers `key`, from the root; the descent is recorded in `path`.
    pub(crate) async fn descend(&self, key: &[u8]) -> Result<Arc<CachedNode>> {
        let mut backoff = self.0.ep.backoff("a path to the key", self.0.node.root.word);
        'restart: loop {
            self.0.path.borrow_mut().clear();
            let (mut at, mut image) = self.read_top().await?;
            loop {
                let n = Inner::of(&self.0.node.g, &image);
                if key < n.min() {
                    self.0.root.set(GlobalAddr::NULL);
                    backoff.step().await?;
                    continue 'restart;
                }
                if n.next_is_leaf() {
                    // Nodes that the descent passes to the right are cached, too: each was read in
                    // its present state.
                    let node = self.cache_bottom(at, &n);
                    if !n.ends_before(key) {
                        self.0.path.borrow_mut().push(at);
                        return Ok(node);
                    }
                }
                if n.ends_before(key) {
                    at = self.hop(&n, at)?;
                } else {
                    let i = n.floor(key).ok_or_else(|| no_record(at))?;
                    let mut path = self.0.path.borrow_mut();
                    path.push(at);
                    if path.len() > MAX_LEVELS {
                        return Err(Error::corrupt(format!("no leaf within {MAX_LEVELS} levels")));
                    }
                    at = n.child(i).addr;
                }
                image = self.read_inner(at).await?;
            }
        }
    }

    /// The first node of a descent: the remembered root if it still is one, otherwise the node that
    /// the root pointer names.
    async fn read_top(&self) -> Result<(GlobalAddr, Verified)> {
        let mut known = self.0.root.get();
        if known.is_null() {
            known = self.read_root().await?;
        }
        let image = self.read_inner(known).await?;
        if Inner::of(&self.0.node.g, &image).is_root() {
            return Ok((known, image));
        }
        let now = self.read_root().await?;
        if now == known {
            // The root was split, and its parent is not there yet: right links lead on.
            return Ok((known, image));
        }
        Ok((now, self.read_inner(now).await?))
    }

    pub(crate) async fn read_root(&self) -> Result<GlobalAddr> {
        let root = self.0.root_pointer().await?;
        self.0.root.set(root);
        Ok(root)
    }

    /// READs an inner node until its image is whole.
    pub(crate) async fn read_inner(&self, at: GlobalAddr) -> Result<Verified> {
        if at.node().role() != Role::Memory {
            return Err(Error::corrupt(format!("{at} cannot be an inner node")));
        }
        let g = &self.0.node.g;
        let (what, size) = (("inner node being written", at), (g.inner_bytes(), g.fanout));
        let whole = |b: &[u8]| Inner::check(g, b).map(|_| ());
        Ok(self.0.read_whole(what, size, Step::Route, whole).await?.1)
    }

    /// The right sibling of a node.
    pub(crate) fn hop(&self, n: &Inner<'_>, at: GlobalAddr) -> Result<GlobalAddr> {
        self.0.ep.check_deadline("the end of a walk to the right", at.bits())?;
        let right = n.right();
        if right.is_null() {
            return Err(Error::corrupt(format!("inner node {at} ends early and has no sibling")));
        }
        Ok(right)
    }

    fn cache_bottom(&self, addr: GlobalAddr, n: &Inner<'_>) -> Arc<CachedNode> {
        self.0.ep.stage_cost(Stage::CacheFill, 1);
        let count = n.len();
        let records = (0..count)
            .map(|i| {
                let c = n.child(i);
                let table = c.table.bits();
                Record::new(c.addr, 0, table, c.capacity as u16, 0).with_version(c.version)
            })
            .collect();
        let keys = (0..count).map(|i| n.key(i));
        let parts =
            NodeParts { addr, generation: 0, lo: n.min(), hi: upper(n.max()), keys, records };
        self.0.node.cache.insert(BOTTOM, parts)
    }

    /// Keeps a mirror of a table that was READ from its owner, if such tables are mirrored and its
    /// record is cached.
    pub(crate) fn fill_mirror(&self, key: &[u8], r: &Route, t: &Table) {
        let owner = r.table.node();
        if !self.0.node.o.mirrors || owner.role() == Role::Memory || owner == self.0.ep.node() {
            return;
        }
        let reading = reading();
        let Some((node, i)) = self.0.node.cache.find(BOTTOM, key, &reading) else { return };
        let record = node.record(i);
        if record.child == r.leaf && u64::from(record.version) == t.version {
            node.fill_mirror(i, t.fps());
        }
    }
}

/// The route of a key that a bottom node covers.
fn route_in(node: &CachedNode, key: &[u8]) -> Result<Route> {
    let i = node.keys().floor(key).ok_or_else(|| no_record(node.addr))?;
    Ok(route_of(node, i, false))
}

fn no_record(at: GlobalAddr) -> Error {
    Error::corrupt(format!("inner node {at} has no record for a key it covers"))
}
