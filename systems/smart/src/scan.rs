//! Ascending scans: subtrees of the range in key order, with as many leaves READ together as are
//! wanted.
//!
//! A scan keeps a front of subtrees that are next in key order. In each round it expands cached
//! nodes, READs the nodes and leaves that the next pairs need in one batch, replaces nodes by their
//! children, and emits the leaves at the head of the front. A leaf that is torn, invalid, or not
//! the child of its slot makes the scan READ the slot again.
//!
//! Invariants: the front is in key order, and no key of the range is outside of the front and the
//! unknown rest. Each pair is current at the READ of its leaf; a scan is no snapshot. With
//! `cached_scans` (as published) the scan relies on copies of nodes, and misses slots that they
//! lack; otherwise it begins at the root slot and READs every node on its way.
//!
//! A scan changes nothing but the cache, so a crash leaves nothing behind.

use std::collections::VecDeque;
use std::ops::Bound;

use dmtree_fabric::{GlobalAddr, Result, Sampled, Stage, Step, verb::VerbVec};
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest, behind_prefix};

use crate::cache::EntryId;
use crate::cursor::Cursor;
use crate::cursor::Cursors;
use crate::format::leaf;
use crate::format::node::{self, Node};
use crate::format::slot::Slot;
use crate::index::Smart;

/// READs that are posted together, and the bytes that they return, at most.
const TOGETHER: usize = 128;
const TOGETHER_BYTES: usize = 48 << 10;

/// A subtree that is to be scanned: a slot, and the bytes on the path to it.
#[derive(Clone, Debug)]
struct Subtree {
    c: Cursor,
    /// All bytes of its keys up to and including the slot's byte.
    prefix: Vec<u8>,
    /// The pair, if it is a leaf that was READ.
    pair: Option<(Vec<u8>, Vec<u8>)>,
}

struct Scan<'r> {
    /// Smaller keys are done.
    low: Vec<u8>,
    high: Option<&'r [u8]>,
    /// The next known subtrees, in key order.
    front: VecDeque<Subtree>,
    /// The key from which on nothing is known; `None`: the front is all that is left.
    unknown: Option<Vec<u8>>,
}

impl Scan<'_> {
    /// Whether keys with this prefix can be in the range.
    fn meets(&self, prefix: &[u8]) -> bool {
        let n = prefix.len().min(self.low.len());
        prefix[..n] >= self.low[..n] && self.high.is_none_or(|high| prefix <= high)
    }

    /// The subtrees of a node that can have keys of the range, in key order.
    fn children(
        &self,
        prefix: &[u8],
        (at, slots): (GlobalAddr, &[Slot]),
        entry: Option<EntryId>,
    ) -> Vec<Subtree> {
        let of = |(i, slot): (usize, &Slot)| {
            let prefix = [prefix, &[slot.partial()]].concat();
            let c = Cursor {
                slot: *slot,
                word: *slot,
                at: node::slot_at(at, i),
                node: at,
                next: prefix.len() + 1,
                cached: entry,
            };
            Subtree { c, prefix, pair: None }
        };
        let used = slots.iter().enumerate().filter(|(_, s)| !s.is_empty());
        let mut all: Vec<_> = used.map(of).filter(|s| self.meets(&s.prefix)).collect();
        all.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        all
    }
}

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Smart);

impl Scans<'_> {
    pub(crate) async fn scan_subtrees(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let low = self.0.bound_key(r.low);
        let high = match r.high {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        let unknown = Some(low.clone());
        let mut scan = Scan { low, high, front: VecDeque::new(), unknown };
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        loop {
            let wanted = r.limit - page.len();
            self.look_ahead(&mut scan, wanted).await?;
            self.read_together(&mut scan, wanted).await?;
            while let Some((key, value)) = scan.front.front().and_then(|s| s.pair.as_ref()) {
                if r.contains(key) {
                    page.push(key, value);
                }
                scan.front.pop_front();
                if page.len() == r.limit || page.bytes() >= PAGE_BYTES {
                    let last = page.get(page.len() - 1).map(|(key, _)| key.to_vec());
                    return Ok(last.map(|key| Resume(Bound::Excluded(key))));
                }
            }
            if scan.front.is_empty() && scan.unknown.is_none() {
                return Ok(None);
            }
            self.0.ep.check_deadline("the pairs of a scan", self.0.node.root.word.bits())?;
        }
    }

    /// Finds the next subtrees, one for each wanted pair as far as the cache goes, otherwise at
    /// least one.
    async fn look_ahead(&self, scan: &mut Scan<'_>, wanted: usize) -> Result<()> {
        loop {
            if self.0.node.o.cached_scans {
                self.open_cached(scan, wanted);
            }
            if scan.front.len() >= wanted {
                return Ok(());
            }
            let Some(low) = scan.unknown.take() else { return Ok(()) };
            scan.low = low;
            let cached = self.0.node.o.cached_scans.then(|| self.0.node.cache.deepest(&scan.low));
            if let Some(copied) = cached.flatten() {
                let place = (copied.node, &copied.slots[..]);
                scan.front.extend(scan.children(&copied.prefix, place, Some(copied.entry)));
                let behind = behind_prefix(&copied.prefix).map(|mut key| {
                    key.resize(self.0.node.g.key, 0);
                    key
                });
                scan.unknown = behind.filter(|u| scan.meets(u));
                continue;
            }
            let c = Cursors(self.0).root().await?;
            if !c.slot.is_empty() {
                scan.front.push_back(Subtree { c, prefix: Vec::new(), pair: None });
            }
        }
    }

    /// Replaces cached nodes by their children.
    fn open_cached(&self, scan: &mut Scan<'_>, wanted: usize) {
        let mut open = VecDeque::new();
        while open.len() < wanted
            && let Some(s) = scan.front.pop_front()
        {
            let is_node = s.pair.is_none() && s.c.slot.kind().is_some();
            let copied = is_node.then(|| self.0.node.cache.copy_below(&s.prefix, s.c.slot.child()));
            match copied.flatten() {
                Some(copied) => {
                    let place = (copied.node, &copied.slots[..]);
                    let children = scan.children(&copied.prefix, place, Some(copied.entry));
                    children.into_iter().rev().for_each(|s| scan.front.push_front(s));
                }
                None => open.push_back(s),
            }
        }
        open.append(&mut scan.front);
        scan.front = open;
    }

    /// READs the objects that the next pairs need: their leaves, and the nodes before them.
    async fn read_together(&self, scan: &mut Scan<'_>, wanted: usize) -> Result<()> {
        let g = &self.0.node.g;
        let (mut verbs, mut bytes) = (VerbVec::new(), 0);
        let mut due = VecDeque::new();
        while due.len() < wanted
            && verbs.len() < TOGETHER
            && bytes < TOGETHER_BYTES
            && let Some(s) = scan.front.pop_front()
        {
            let len = match s.c.slot.kind() {
                _ if s.pair.is_some() => 0,
                None => g.leaf_bytes(),
                Some(kind) => node::bytes(kind.capacity().min(g.types.largest)),
            };
            let number = (len > 0).then(|| verbs.read(s.c.slot.child(), len as u32));
            bytes += len;
            due.push_back((s, number));
        }
        if !verbs.is_empty() {
            self.0.ep.step(Step::Entry);
            verbs = self.0.ep.batch(verbs).await?;
        }
        let mut front = VecDeque::new();
        for (s, number) in due {
            match number {
                None => front.push_back(s),
                Some(i) if s.c.slot.is_leaf() => {
                    front.extend(self.take_leaf(s, verbs.take_sampled(i)).await?);
                }
                Some(i) => {
                    front.extend(self.take_node(scan, s, verbs.take_sampled(i)).await?);
                }
            }
        }
        front.append(&mut scan.front);
        scan.front = front;
        Ok(())
    }

    /// A leaf's pair; the subtree without a pair if the slot had to be READ again.
    async fn take_leaf(&self, mut s: Subtree, bytes: Sampled) -> Result<Option<Subtree>> {
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let cached = s.c.cached.is_some();
        let seen = bytes.extract(|b| {
            let l = leaf::check(&self.0.node.g, b)?;
            let fits = l.valid && (!cached || l.rev == s.c.at) && l.key.starts_with(&s.prefix);
            fits.then(|| (l.key.to_vec(), l.value.to_vec()))
        });
        match seen {
            Some(pair) => s.pair = Some(pair),
            None => Cursors(self.0).again(&mut s.c).await?,
        }
        Ok(if s.c.slot.is_empty() { None } else { Some(s) })
    }

    /// A node's subtrees; the subtree itself if the slot had to be READ again.
    async fn take_node(
        &self,
        scan: &Scan<'_>,
        mut s: Subtree,
        bytes: Sampled,
    ) -> Result<Vec<Subtree>> {
        let at = s.c.slot.child();
        let mut n = bytes.extract(|b| Node::parse(at, b));
        if let Some(grown) = n.as_ref().filter(|n| n.slots.len() < n.header.kind.capacity()) {
            n = Cursors(self.0).fetch_node(at, grown.header.kind).await?;
        }
        let fits = |n: &Node| {
            let depth = usize::from(n.header.depth);
            depth <= s.c.next && (s.c.cached.is_none() || n.rev == s.c.at)
        };
        let Some(n) = n.filter(fits) else {
            Cursors(self.0).again(&mut s.c).await?;
            return Ok(if s.c.slot.is_empty() { Vec::new() } else { vec![s] });
        };
        self.0.ep.stage_cost(Stage::NodeImage, n.slots.len() as u32);
        if usize::from(n.header.depth) == s.c.next {
            Cursors(self.0).remember(&n, &s.prefix);
        }
        let before = usize::from(n.header.depth) - 1;
        let prefix = [&s.prefix[..before], n.header.shared()].concat();
        Ok(scan.children(&prefix, (n.at, &n.slots), None))
    }
}
