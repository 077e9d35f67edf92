//! Finds the leaf of a key: the cache of pages above the leaves, and the descent over the memory
//! nodes that fills it.
//!
//! A route from the cache costs no verb. A descent READs the page of the root (its address is
//! cached, or READ from the root word), and one page per level. Only the pages directly above the
//! leaves are cached; each covers its keys between two fence keys.
//!
//! Invariants: a page keeps its address and its lower fence key; a split only lowers its upper
//! fence key. So a route that is older than a split leads to a page at or left of the right one,
//! and right links lead on from there. A leaf from the cache that does not cover the key makes the
//! client drop the cached page and descend again. A page that begins after the key, or a root below
//! the wanted level, shows a stale root: the client forgets the root's address and starts again.
//!
//! Routes change nothing in the index, so a crash leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step, Verified};
use dmtree_parts::cache::{CachedNode, NodeParts, Record};
use dmtree_parts::keys::KeyArray;

use crate::client::Sherman;
use crate::format::inner::Inner;
use crate::format::{Header, header, upper};

/// The level of cached pages: their children are leaves.
const BOTTOM: u8 = 1;
/// A bound that no tree reaches.
pub(crate) const MAX_LEVELS: usize = 24;

/// A leaf that should cover a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub leaf: GlobalAddr,
    /// It is from the cache.
    pub cached: bool,
}

/// A page that was READ.
pub(crate) enum Page {
    Inner(Verified),
    Leaf,
}

impl Sherman {
    /// The leaf that should cover a key.
    pub(crate) async fn route(&self, key: &[u8]) -> Result<Route> {
        self.ep.stage_cost(Stage::CacheLookup, 1);
        let found = self.node.cache.lookup(BOTTOM, key, |node, i| node.records()[i].child);
        if let Some(leaf) = found {
            self.count_hit();
            self.path.borrow_mut().clear();
            return Ok(Route { leaf, cached: true });
        }
        self.node.misses.fetch_add(1, Ordering::Relaxed);
        let leaf = self.descend(key, 0).await?;
        Ok(Route { leaf, cached: false })
    }

    /// A new route to the leaf, to replace a stale cached page.
    pub(crate) async fn fresh_route(&self, key: &[u8]) -> Result<Route> {
        self.retried.set(true);
        let cached = self.node.cache.lookup(BOTTOM, key, |node, _| node.clone());
        if let Some(node) = cached {
            self.node.cache.invalidate(BOTTOM, &node);
        }
        let leaf = self.descend(key, 0).await?;
        Ok(Route { leaf, cached: false })
    }

    /// The next route after a leaf that does not cover the key.
    pub(crate) async fn elsewhere(&self, key: &[u8], r: &Route, h: &Header<'_>) -> Result<Route> {
        if r.cached || h.begins_after(key) {
            return self.fresh_route(key).await;
        }
        Ok(Route { leaf: self.hop(h, r.leaf)?, cached: false })
    }

    /// The page of `level` that should cover `key`, from the root. The inner pages of the descent
    /// are kept in `path`. The page itself is not READ, unless it is the root.
    pub(crate) async fn descend(&self, key: &[u8], level: u8) -> Result<GlobalAddr> {
        let mut backoff = self.ep.backoff("a path to the key", self.node.root.word);
        'restart: loop {
            self.path.borrow_mut().clear();
            let mut at = self.top().await?;
            let mut is_top = true;
            let mut steps = 0;
            loop {
                steps += 1;
                if steps > 4096 {
                    return Err(Error::corrupt("a descent without an end"));
                }
                let image = match self.read_page(at).await? {
                    Page::Leaf if level == 0 => return Ok(at),
                    Page::Leaf => {
                        self.forget_top();
                        backoff.step().await?;
                        continue 'restart;
                    }
                    Page::Inner(image) => image,
                };
                let n = self.accepted(&image)?;
                if is_top && n.h.level < level {
                    self.forget_top();
                    backoff.step().await?;
                    continue 'restart;
                }
                if n.h.begins_after(key) {
                    self.forget_top();
                    backoff.step().await?;
                    continue 'restart;
                }
                if n.h.level == BOTTOM {
                    // Pages that the descent passes to the right are cached, too: each was read in
                    // its present state.
                    self.cache_bottom(at, &n);
                }
                if n.h.ends_before(key) {
                    if is_top {
                        // The root has a sibling, so there is a new root above it.
                        self.forget_top();
                    }
                    at = self.hop(&n.h, at)?;
                    continue;
                }
                if n.h.level == level {
                    return Ok(at);
                }
                self.remember(n.h.level, at)?;
                let last = n.h.level == level + 1;
                at = n.child_of(key);
                if last {
                    return Ok(at);
                }
                is_top = false;
            }
        }
    }

    /// Records an inner page of the descent.
    fn remember(&self, level: u8, at: GlobalAddr) -> Result<()> {
        let level = usize::from(level);
        if level > MAX_LEVELS {
            return Err(Error::corrupt(format!("{at} is on level {level} by its header")));
        }
        let mut path = self.path.borrow_mut();
        if path.len() <= level {
            path.resize(level + 1, GlobalAddr::NULL);
        }
        path[level] = at;
        Ok(())
    }

    /// The root as this node knows it.
    async fn top(&self) -> Result<GlobalAddr> {
        match self.node.top.load(Ordering::Relaxed) {
            0 => self.read_root().await,
            known => Ok(GlobalAddr::from_bits(known)),
        }
    }

    pub(crate) fn forget_top(&self) {
        self.node.top.store(0, Ordering::Relaxed);
    }

    /// READs the root pointer.
    pub(crate) async fn read_root(&self) -> Result<GlobalAddr> {
        self.ep.step(Step::Route);
        let word = self.ep.read(self.node.root.word, 8).await?.word(0);
        if word == 0 {
            return Err(Error::corrupt(
                "the index has no root: it was never formatted, or was dropped",
            ));
        }
        self.node.top.store(word, Ordering::Relaxed);
        Ok(GlobalAddr::from_bits(word))
    }

    /// READs a page of any kind until it passes its check.
    pub(crate) async fn read_page(&self, at: GlobalAddr) -> Result<Page> {
        if !self.node.o.locked_reads {
            return self.read_page_now(at).await;
        }
        let held = self.lock(at).await?;
        match self.read_page_now(at).await {
            Ok(page) => self.unlock(held).await.map(|()| page),
            Err(e) => self.fail(held, e).await,
        }
    }

    async fn read_page_now(&self, at: GlobalAddr) -> Result<Page> {
        if at.node().role() != Role::Memory {
            return Err(Error::corrupt(format!("{at} cannot be a page")));
        }
        let g = &self.node.g;
        let mut backoff = self.ep.backoff("page being written", at);
        loop {
            self.ep.step(Step::Route);
            let bytes = self.ep.read(at, g.page_bytes() as u32).await?;
            self.ep.stage_cost(Stage::NodeImage, g.inner_slots as u32);
            let seen = bytes.check(|b| {
                let h = header(g, b).ok_or(())?;
                let is_inner = h.level > 0;
                if is_inner {
                    Inner::check(g, b).ok_or(())?;
                }
                Ok::<_, ()>(is_inner)
            });
            match seen {
                Ok((true, image)) => return Ok(Page::Inner(image)),
                Ok((false, _)) => return Ok(Page::Leaf),
                Err(_) => {
                    self.retried.set(true);
                    backoff.step().await?;
                }
            }
        }
    }

    /// An inner page that was accepted before.
    pub(crate) fn accepted<'a>(&'a self, image: &'a [u8]) -> Result<Inner<'a>> {
        Inner::of(&self.node.g, image)
            .ok_or_else(|| Error::corrupt("an inner page without a header"))
    }

    /// The right sibling of a page.
    pub(crate) fn hop(&self, h: &Header<'_>, at: GlobalAddr) -> Result<GlobalAddr> {
        self.ep.check_deadline("the end of a walk to the right", at.bits())?;
        self.retried.set(true);
        if h.sibling.is_null() {
            return Err(Error::corrupt(format!("page {at} ends early and has no sibling")));
        }
        Ok(h.sibling)
    }

    /// Caches a page above leaves.
    fn cache_bottom(&self, addr: GlobalAddr, n: &Inner<'_>) -> Arc<CachedNode> {
        self.ep.stage_cost(Stage::CacheFill, 1);
        let children = std::iter::once(n.h.leftmost).chain((0..n.h.records).map(|i| n.child(i)));
        let records = children.map(|c| Record::new(c, 0, 0, 0, 0)).collect();
        let keys = std::iter::once(n.h.low).chain((0..n.h.records).map(|i| n.key(i)));
        let keys = KeyArray::new(keys.collect::<Vec<_>>().into_iter());
        let parts =
            NodeParts { addr, generation: 0, lo: n.h.low, hi: upper(n.h.high), keys, records };
        self.node.cache.insert(BOTTOM, parts)
    }
}
