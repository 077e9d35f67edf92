//! Finds the leaf of a key: the cache of pages above the leaves, and the descent over the memory
//! nodes that fills it.
//!
//! A route from the cache costs no verb. A descent READs the page of the root (its address is
//! cached, or READ from the root word), and one page per level. Only the pages directly above the
//! leaves are cached; each covers its keys between two fence keys.
//!
//! A leaf from the cache that does not cover the key makes the client drop the cached page and
//! descend again. A page that begins after the key, or a root below the wanted level, shows a stale
//! root: the client forgets the root's address and starts again.
//!
//! Routes change nothing in the index, so a crash leaves nothing behind.

use std::sync::atomic::Ordering;

use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step};

use super::{BOTTOM, Format, Header, Image, Inner, MAX_LEVELS, Page, PageTree, apart, upper};
use crate::cache::{CachedNode, NodeParts, Record};
use crate::sync::reading;

/// A leaf that should cover a key.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Where it is.
    pub leaf: GlobalAddr,
    /// It is from the cache.
    pub cached: bool,
    /// The leaf after it, by the page above; null at the right end, and where the format of pages
    /// does not tell.
    pub next: GlobalAddr,
}

/// A leaf as a cached page names it.
#[derive(Clone, Debug)]
pub struct NamedChild {
    /// Where it is.
    pub at: GlobalAddr,
    /// Its lower fence key.
    pub low: Vec<u8>,
    /// Its upper fence key; `None` for the right end.
    pub high: Option<Vec<u8>>,
}

impl NamedChild {
    /// Whether it covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.low <= *key && self.high.as_ref().is_none_or(|high| key < &high[..])
    }
}

/// A page that was READ, and where.
type Read = (GlobalAddr, Page);

/// The way from the root to the leaf of a key.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Descent: PageTree {
    /// The leaf that should cover a key.
    async fn route(&self, key: &[u8]) -> Result<Route> {
        self.ep.stage_cost(Stage::CacheLookup, 1);
        let found = {
            let r = reading();
            self.pages().cache.find(BOTTOM, key, &r).map(|(node, i)| of_record(node, i, true))
        };
        if let Some(route) = found {
            self.hits.count();
            self.way().path.borrow_mut().clear();
            return Ok(route);
        }
        self.node.lookups.count_miss();
        self.descend_to(key, 0).await
    }

    /// The leaves from that of a key on, as far as cached pages name them without a gap: at most
    /// `count`, and none that begins behind `last`.
    fn cached_leaves(&self, key: &[u8], count: usize, last: Option<&[u8]>) -> Vec<NamedChild> {
        let (mut leaves, mut low) = (Vec::new(), Some(key.to_vec()));
        while let Some(key) = low.take() {
            let r = reading();
            let Some((node, i)) = self.pages().cache.find(BOTTOM, &key, &r) else { break };
            let keys = node.keys();
            for n in i..node.len() {
                if leaves.len() == count || last.is_some_and(|last| keys.get(n) > last) {
                    return leaves;
                }
                let high = if n + 1 < node.len() { Some(keys.get(n + 1)) } else { node.hi() };
                let (low, high) = (keys.get(n).to_vec(), high.map(<[u8]>::to_vec));
                leaves.push(NamedChild { at: node.record(n).child, low, high });
            }
            low = node.hi().map(<[u8]>::to_vec);
        }
        leaves
    }

    /// A new route to the leaf, to replace a stale cached page.
    async fn fresh_route(&self, key: &[u8]) -> Result<Route> {
        self.retried.set(true);
        let cached = self.pages().cache.lookup(BOTTOM, key);
        if let Some((node, _)) = cached {
            self.pages().cache.invalidate(BOTTOM, &node);
        }
        self.descend_to(key, 0).await
    }

    /// The next route after a leaf that does not cover the key.
    async fn elsewhere(&self, key: &[u8], r: &Route, h: &Header<'_>) -> Result<Route> {
        if r.cached || h.begins_after(key) {
            return self.fresh_route(key).await;
        }
        Ok(Route { leaf: self.hop(h, r.leaf)?, cached: false, ..*r })
    }

    /// The page of `level` that should cover `key`, from the root.
    async fn descend(&self, key: &[u8], level: u8) -> Result<GlobalAddr> {
        Ok(self.descend_to(key, level).await?.leaf)
    }

    /// The same, and the page after it. The inner pages of the descent are kept. The page itself is
    /// not READ, unless it is the first one.
    async fn descend_to(&self, key: &[u8], level: u8) -> Result<Route> {
        self.descend_from(None, key, level).await
    }

    /// The same, if the page of the root was READ just now.
    async fn descend_from(&self, root: Option<Read>, key: &[u8], level: u8) -> Result<Route> {
        let mut backoff = self.ep.backoff("a path to the key", self.node.root.word);
        let mut root = root;
        let mut cached = self.lowest_cached(key, level).filter(|_| root.is_none());
        'restart: loop {
            self.way().path.borrow_mut().clear();
            let mut is_top = cached.is_none();
            let (mut at, mut page) = match (root.take(), cached.take()) {
                (Some((at, page)), _) => (at, Some(page)),
                (_, Some((above, known))) if above == level + 1 => return Ok(known),
                (_, Some((_, known))) => (known.leaf, None),
                (None, None) => (self.top().await?, None),
            };
            for _ in 0..4096 {
                let read = match page.take() {
                    Some(page) => page,
                    None => self.read_page(at).await?,
                };
                let Page::Inner(image) = read else {
                    if level == 0 {
                        return Ok(Route::by_page(at));
                    }
                    self.pages().forget_top();
                    backoff.step().await?;
                    continue 'restart;
                };
                let n = Inner::of(self.format(), &image)?;
                if (is_top && n.h.level < level) || n.h.begins_after(key) {
                    self.pages().forget_top();
                    backoff.step().await?;
                    continue 'restart;
                }
                if n.h.level == BOTTOM || self.pages().upper_levels {
                    // Pages that the descent passes to the right are cached, too: each was read in
                    // its present state.
                    self.cache_page(at, &n);
                }
                if n.h.ends_before(key) {
                    match is_top {
                        // The root has a sibling, so there is a new root above it.
                        true => self.pages().forget_top(),
                        false => self.drop_cached(key, n.h.level + 1),
                    }
                    at = self.hop(&n.h, at)?;
                    continue;
                }
                if n.h.level == level {
                    return Ok(Route::by_page(at));
                }
                self.remember(n.h.level, at)?;
                let next = n.child_of(key);
                if n.h.level == level + 1 {
                    return Ok(next);
                }
                (at, is_top) = (next.leaf, false);
            }
            return Err(Error::corrupt("a descent without an end"));
        }
    }

    /// The lowest cached page above `level` that covers a key: its level, and its child. A page
    /// above leaves is none for a leaf, because a route from it has just failed.
    fn lowest_cached(&self, key: &[u8], level: u8) -> Option<(u8, Route)> {
        let all = if self.pages().upper_levels { crate::cache::MAX_LEVELS as u8 } else { 0 };
        let cache = &self.pages().cache;
        let r = reading();
        let child = |l| {
            let (node, i) = cache.find(l, key, &r)?;
            Some((l, of_record(node, i, false)))
        };
        (level.max(BOTTOM) + 1..all).find_map(child)
    }

    /// Drops the cached page of a level that has led to a page left of the right one.
    fn drop_cached(&self, key: &[u8], level: u8) {
        if self.pages().upper_levels && usize::from(level) < crate::cache::MAX_LEVELS {
            let cache = &self.pages().cache;
            if let Some((node, _)) = cache.lookup(level, key) {
                cache.invalidate(level, &node);
            }
        }
    }

    /// Records an inner page of the descent.
    fn remember(&self, level: u8, at: GlobalAddr) -> Result<()> {
        let level = usize::from(level);
        if level > MAX_LEVELS {
            return Err(Error::corrupt(format!("{at} is on level {level} by its header")));
        }
        let mut path = self.way().path.borrow_mut();
        if path.len() <= level {
            path.resize(level + 1, GlobalAddr::NULL);
        }
        path[level] = at;
        Ok(())
    }

    /// Where the root is: as last seen, or by a READ of the root pointer.
    async fn top(&self) -> Result<GlobalAddr> {
        match self.pages().known_top() {
            0 => self.read_root().await,
            known => Ok(GlobalAddr::from_bits(known)),
        }
    }

    /// READs the root pointer.
    async fn read_root(&self) -> Result<GlobalAddr> {
        let root = self.root_pointer().await?;
        self.pages().top.store(root.bits(), Ordering::Relaxed);
        Ok(root)
    }

    /// READs a page of any kind until it passes its check.
    async fn read_page_once(&self, at: GlobalAddr) -> Result<Page> {
        if at.node().role() != Role::Memory {
            return Err(Error::corrupt(format!("{at} cannot be a page")));
        }
        let g = self.format();
        let size = (g.page_bytes(), g.inner_slots());
        let (plain, image) = self
            .read_whole(("page being written", at), size, Step::Route, |b| {
                if g.is_leaf(b)? {
                    return Some(None);
                }
                let plain = g.plain(b)?;
                Inner::check(g, &plain)?;
                Some(Some(apart(plain)))
            })
            .await?;
        Ok(plain.map_or(Page::Leaf, |plain| Page::Inner(Image::new((plain, image)))))
    }

    /// The right sibling of a page.
    fn hop(&self, h: &Header<'_>, at: GlobalAddr) -> Result<GlobalAddr> {
        self.ep.check_deadline("the end of a walk to the right", at.bits())?;
        self.retried.set(true);
        if h.sibling.is_null() {
            return Err(Error::corrupt(format!("page {at} ends early and has no sibling")));
        }
        Ok(h.sibling)
    }

    /// Caches an inner page. Each record has the child after its own.
    fn cache_page(&self, addr: GlobalAddr, n: &Inner<'_, Self::Format>) {
        if usize::from(n.h.level) >= crate::cache::MAX_LEVELS {
            return;
        }
        self.ep.stage_cost(Stage::CacheFill, 1);
        let after = n.children().skip(1).map(|(_, child)| child).chain([n.h.beyond]);
        let of = |((key, child), after): ((_, GlobalAddr), GlobalAddr)| {
            (key, Record::new(child, 0, after.bits(), 0, 0))
        };
        let (keys, records): (Vec<_>, Vec<_>) = n.children().zip(after).map(of).unzip();
        let keys = keys.into_iter();
        let (lo, hi) = (n.h.low, upper(n.h.high));
        let parts = NodeParts { addr, generation: 0, lo, hi, keys, records };
        self.pages().cache.insert(n.h.level, parts);
    }
}

impl Route {
    /// A page that no page above has named.
    fn by_page(leaf: GlobalAddr) -> Self {
        Self { leaf, cached: false, next: GlobalAddr::NULL }
    }
}

/// The child that record `i` of a cached page names.
fn of_record(node: &CachedNode, i: usize, cached: bool) -> Route {
    let record = node.record(i);
    Route { leaf: record.child, cached, next: GlobalAddr::from_bits(record.table) }
}

impl<T: PageTree> Descent for T {}
