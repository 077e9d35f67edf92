//! The nodes of a level in key order: pages of nodes under a top array. A node is replaced in its
//! page where its range stays; else the page is replaced whole, and so is the top.

use std::sync::Arc;

use super::CachedNode;
use crate::keys::KeyArray;
use crate::sync::{EpochArc, EpochCell, Mutex, Reading, reading};

/// Nodes of one page of a directory; a page is split at twice as many.
const PAGE_NODES: usize = 48;

pub(super) type Nodes = Vec<Arc<CachedNode>>;

#[derive(Debug)]
struct PageDir {
    keys: KeyArray,
    /// The node of a slot begins at the slot's key. It is replaced alone by one of the same range.
    slots: Vec<EpochArc<CachedNode>>,
}

impl PageDir {
    fn new(nodes: Nodes) -> Self {
        let keys = KeyArray::new(nodes.iter().map(|n| n.lo()));
        Self { keys, slots: nodes.into_iter().map(EpochArc::new).collect() }
    }

    fn nodes<'r>(&'r self, r: &'r Reading) -> impl Iterator<Item = Arc<CachedNode>> + 'r {
        self.slots.iter().map(|slot| slot.keep(r))
    }

    /// The page with one more node between two others; `None` where another one begins inside its
    /// range, and where the page is full.
    fn with(&self, node: &Arc<CachedNode>, r: &Reading) -> Option<Self> {
        let at = self.keys.floor(node.lo())? + 1;
        let is_new = self.keys.get(at - 1) < node.lo();
        let is_alone = at < self.slots.len() && node.hi().is_some_and(|hi| self.keys.get(at) >= hi);
        if !is_new || !is_alone || self.slots.len() == 2 * PAGE_NODES {
            return None;
        }
        let keys = self.keys.with(at, node.lo())?;
        let mut slots = Vec::with_capacity(self.slots.len() + 1);
        slots.extend(self.nodes(r).map(EpochArc::new));
        slots.insert(at, EpochArc::new(node.clone()));
        Some(Self { keys, slots })
    }

    /// Replaces a node that begins at the same key, and returns it; `None` where there is none, or
    /// another one begins inside the range.
    fn replace(&self, node: &Arc<CachedNode>, r: &Reading) -> Option<Arc<CachedNode>> {
        let at = self.keys.floor(node.lo())?;
        let old = self.slots[at].read(r);
        let is_alone =
            at + 1 == self.slots.len() || node.hi().is_some_and(|hi| self.keys.get(at + 1) >= hi);
        (is_alone && old.lo() == node.lo()).then(|| self.slots[at].replace(node.clone()))
    }
}

#[derive(Debug)]
struct TopDir {
    /// Lower bound of each page; the first is empty.
    keys: KeyArray,
    pages: Vec<Arc<EpochCell<PageDir>>>,
}

/// The nodes of one level.
#[derive(Debug)]
pub(super) struct Level {
    top: EpochCell<TopDir>,
    changing: Mutex<()>,
}

impl Level {
    pub(super) fn new() -> Self {
        let page = Arc::new(EpochCell::new(PageDir::new(Vec::new())));
        let top = TopDir { keys: KeyArray::new([&[][..]].into_iter()), pages: vec![page] };
        Self { top: EpochCell::new(top), changing: Mutex::new(()) }
    }

    /// The slot of the last node that begins at or below `key`.
    #[inline]
    pub(super) fn slot<'r>(
        &'r self,
        key: &[u8],
        r: &'r Reading,
    ) -> Option<&'r EpochArc<CachedNode>> {
        let top = self.top.read(r);
        let page = top.pages[top.keys.floor(key)?].read(r);
        Some(&page.slots[page.keys.floor(key)?])
    }

    /// The last node that begins below `key`, for descending walks.
    pub(super) fn below(&self, key: Option<&[u8]>) -> Option<Arc<CachedNode>> {
        let r = reading();
        let top = self.top.read(&r);
        let mut page = top.keys.below(key)?;
        loop {
            let nodes = top.pages[page].read(&r);
            if let Some(at) = nodes.keys.below(key) {
                return Some(nodes.slots[at].keep(&r));
            }
            page = page.checked_sub(1)?;
        }
    }

    /// Replaces all nodes that begin inside the new one's range by it; returns the removed ones.
    pub(super) fn insert(&self, node: &Arc<CachedNode>) -> Nodes {
        let _changing = self.changing.lock().expect("no panic under this lock");
        let r = reading();
        let top = self.top.read(&r);
        let first = top.keys.floor(node.lo()).expect("the first page begins at the bottom");
        let mut last = first;
        for page in first..top.pages.len() {
            if page > first && node.hi().is_some_and(|hi| top.keys.get(page) >= hi) {
                break;
            }
            last = page;
        }
        if first == last
            && let Some(old) = top.pages[first].read(&r).replace(node, &r)
        {
            return vec![old];
        }
        if first == last
            && let Some(page) = top.pages[first].read(&r).with(node, &r)
        {
            top.pages[first].replace(page);
            return Nodes::new();
        }
        let mut gone = Nodes::new();
        for page in first..=last {
            let old = top.pages[page].read(&r);
            let mut nodes: Nodes = Vec::with_capacity(old.slots.len() + 1);
            for n in old.nodes(&r) {
                let inside = n.lo() >= node.lo() && node.hi().is_none_or(|hi| n.lo() < hi);
                if inside { gone.push(n) } else { nodes.push(n) }
            }
            if page == first {
                let at = nodes.partition_point(|n| n.lo() < node.lo());
                nodes.insert(at, node.clone());
            }
            if nodes.len() > 2 * PAGE_NODES {
                self.split_page(top, page, nodes);
            } else {
                top.pages[page].replace(PageDir::new(nodes));
            }
        }
        gone
    }

    fn split_page(&self, top: &TopDir, page: usize, mut nodes: Nodes) {
        let upper = nodes.split_off(nodes.len() / 2);
        let mut keys: Vec<Vec<u8>> = top.keys.iter().map(<[u8]>::to_vec).collect();
        keys.insert(page + 1, upper[0].lo().to_vec());
        let mut pages = top.pages.clone();
        pages[page] = Arc::new(EpochCell::new(PageDir::new(nodes)));
        pages.insert(page + 1, Arc::new(EpochCell::new(PageDir::new(upper))));
        let keys = KeyArray::new(keys.iter().map(Vec::as_slice));
        self.top.replace(TopDir { keys, pages });
    }

    /// Removes exactly this copy; false when it is not there (any more).
    pub(super) fn remove(&self, node: &CachedNode) -> bool {
        let _changing = self.changing.lock().expect("no panic under this lock");
        let r = reading();
        let top = self.top.read(&r);
        let Some(page) = top.keys.floor(node.lo()) else { return false };
        let old = top.pages[page].read(&r);
        let mut nodes: Nodes = old.nodes(&r).collect();
        let Some(at) = nodes.iter().position(|n| n.stamp == node.stamp) else { return false };
        nodes.remove(at);
        top.pages[page].replace(PageDir::new(nodes));
        true
    }
}
