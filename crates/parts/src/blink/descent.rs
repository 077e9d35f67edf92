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

use super::{BOTTOM, Format, Header, Inner, MAX_LEVELS, Page, PageTree, upper};
use crate::cache::{NodeParts, Record};

/// A leaf that should cover a key.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Where it is.
    pub leaf: GlobalAddr,
    /// It is from the cache.
    pub cached: bool,
}

/// The way from the root to the leaf of a key.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Descent: PageTree {
    /// The leaf that should cover a key.
    async fn route(&self, key: &[u8]) -> Result<Route> {
        self.ep.stage_cost(Stage::CacheLookup, 1);
        let found = self.pages().cache.child(BOTTOM, key);
        if let Some(Record { child: leaf, .. }) = found {
            self.hits.count();
            self.way().path.borrow_mut().clear();
            return Ok(Route { leaf, cached: true });
        }
        self.node.lookups.count_miss();
        let leaf = self.descend(key, 0).await?;
        Ok(Route { leaf, cached: false })
    }

    /// A new route to the leaf, to replace a stale cached page.
    async fn fresh_route(&self, key: &[u8]) -> Result<Route> {
        self.retried.set(true);
        let cached = self.pages().cache.lookup(BOTTOM, key);
        if let Some((node, _)) = cached {
            self.pages().cache.invalidate(BOTTOM, &node);
        }
        let leaf = self.descend(key, 0).await?;
        Ok(Route { leaf, cached: false })
    }

    /// The next route after a leaf that does not cover the key.
    async fn elsewhere(&self, key: &[u8], r: &Route, h: &Header<'_>) -> Result<Route> {
        if r.cached || h.begins_after(key) {
            return self.fresh_route(key).await;
        }
        Ok(Route { leaf: self.hop(h, r.leaf)?, cached: false })
    }

    /// The page of `level` that should cover `key`, from the root. The inner pages of the descent
    /// are kept. The page itself is not READ, unless it is the root.
    async fn descend(&self, key: &[u8], level: u8) -> Result<GlobalAddr> {
        let mut backoff = self.ep.backoff("a path to the key", self.node.root.word);
        'restart: loop {
            self.way().path.borrow_mut().clear();
            let mut at = match self.pages().top.load(Ordering::Relaxed) {
                0 => self.read_root().await?,
                known => GlobalAddr::from_bits(known),
            };
            let mut is_top = true;
            for _ in 0..4096 {
                let image = match self.read_page(at).await? {
                    Page::Leaf if level == 0 => return Ok(at),
                    Page::Leaf => {
                        self.pages().forget_top();
                        backoff.step().await?;
                        continue 'restart;
                    }
                    Page::Inner(image) => image,
                };
                let n = Inner::of(self.format(), &image)?;
                if (is_top && n.h.level < level) || n.h.begins_after(key) {
                    self.pages().forget_top();
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
                        self.pages().forget_top();
                    }
                    at = self.hop(&n.h, at)?;
                    continue;
                }
                if n.h.level == level {
                    return Ok(at);
                }
                self.remember(n.h.level, at)?;
                at = n.child_of(key);
                if n.h.level == level + 1 {
                    return Ok(at);
                }
                is_top = false;
            }
            return Err(Error::corrupt("a descent without an end"));
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
        let (is_inner, image) = self
            .read_whole(("page being written", at), size, Step::Route, |b| {
                let is_inner = g.header(b)?.level > 0;
                if is_inner {
                    Inner::check(g, b)?;
                }
                Some(is_inner)
            })
            .await?;
        Ok(if is_inner { Page::Inner(image) } else { Page::Leaf })
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

    /// Caches a page above leaves.
    fn cache_bottom(&self, addr: GlobalAddr, n: &Inner<'_, Self::Format>) {
        self.ep.stage_cost(Stage::CacheFill, 1);
        let (keys, records): (Vec<_>, Vec<_>) =
            n.children().map(|(key, child)| (key, Record::new(child, 0, 0, 0, 0))).unzip();
        let keys = keys.into_iter();
        let (lo, hi) = (n.h.low, upper(n.h.high));
        self.pages().cache.insert(BOTTOM, NodeParts { addr, generation: 0, lo, hi, keys, records });
    }
}

impl<T: PageTree> Descent for T {}
