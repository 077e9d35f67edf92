//! The way down from the root, or from the lowest cached ancestor.

use std::ops::Deref;
use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::cache::{CachedNode, MAX_LEVELS, NodeParts, Record};
use dmtree_parts::hash::fence_tag;

use super::{InnerCopy, InnerRead, Router};
use crate::format::leaf::unchecked_header;
use crate::format::{Child, inner};
use crate::inner::InnerNode;
use crate::leaf::{Blocks, HELP_AFTER, NodeHeader};
use crate::lock::LONG_WAIT;
use crate::marks::Mark;
use crate::recovery::{InnerRecovery, diagnose_inner};

/// How a descent ends.
enum Descent {
    At(Arc<CachedNode>),
    /// The tree does not reach up to the level.
    NoSuchLevel,
    /// It began at a node that has changed: the next one begins elsewhere.
    Stale,
}

impl Router<'_> {
    /// From a node of the right level to the one that covers `key`; `None` when the key lies to the
    /// left.
    pub(crate) async fn hop_right(
        self,
        copy: InnerCopy,
        key: &[u8],
    ) -> Result<Option<Arc<CachedNode>>> {
        let mut copy = copy;
        let mut backoff = self.0.ep.backoff("right sibling", copy.node.addr);
        loop {
            if key < copy.node.lo() {
                return Ok(None);
            }
            if copy.node.covers(key) {
                return Ok(Some(copy.node));
            }
            if copy.next.is_null() {
                return Ok(None);
            }
            Mark::InnerRight.hit();
            let mut at = copy.next;
            copy = loop {
                match self.read_inner(at, None, Some(copy.level)).await? {
                    InnerRead::Whole(next) => break next,
                    InnerRead::Tombstone(forward) => {
                        Mark::InnerTombstone.hit();
                        at = forward;
                    }
                    InnerRead::OtherGeneration => return Ok(None),
                }
                self.wait_for_successor(&mut backoff, at).await?;
            };
        }
    }

    /// Called before reading the successor of an inner tombstone. Until the successor's image is
    /// written it leads back to the tombstone. When that lasts, the writer may be dead, and the
    /// reader repairs the successor. Meanwhile tables may move: the repair may have to wait for
    /// that.
    async fn wait_for_successor(
        self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        successor: GlobalAddr,
    ) -> Result<()> {
        if backoff.steps() >= HELP_AFTER {
            Box::pin(InnerRecovery(self.0).help(successor)).await?;
        }
        if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
            Box::pin(diagnose_inner(self.0, successor)).await?;
        }
        self.0.op.quiescent_point();
        backoff.step().await
    }

    /// The node of `level` that covers `key`, read along the way and cached.
    pub(crate) async fn descend(self, key: &[u8], level: u8) -> Result<Arc<CachedNode>> {
        match self.descend_to(key, level).await? {
            Some(node) => Ok(node),
            None => Err(Error::corrupt(format!("the tree has no level {level}"))),
        }
    }

    /// As [`Router::descend`]; `None` when the tree does not reach up to `level`.
    pub(crate) async fn descend_to(self, key: &[u8], level: u8) -> Result<Option<Arc<CachedNode>>> {
        let mut backoff = self.0.ep.backoff("a path to the key", self.0.node.root.word);
        loop {
            match self.try_descend(key, level, &mut backoff).await? {
                Descent::At(node) => return Ok(Some(node)),
                Descent::NoSuchLevel => return Ok(None),
                Descent::Stale => {
                    self.0.op.quiescent_point();
                    backoff.step().await?;
                }
            }
        }
    }

    /// One descent, from the lowest cached node above `level`.
    async fn try_descend(
        self,
        key: &[u8],
        level: u8,
        backoff: &mut dmtree_fabric::Backoff<'_>,
    ) -> Result<Descent> {
        let cached = |above| self.0.node.cache.lookup(above, key).map(|(n, i)| (n, i, above));
        let mut parent = (level + 1..MAX_LEVELS as u8).find_map(cached);
        let (mut at, mut generation, mut expect) = match &parent {
            Some((n, i, above)) => {
                let r = n.record(*i);
                (r.child, Some(r.generation), Some(above - 1))
            }
            None => (self.read_root().await?, None, None),
        };
        loop {
            let copy = match self.read_inner(at, generation, expect).await? {
                InnerRead::Whole(copy) => copy,
                InnerRead::Tombstone(forward) => {
                    Mark::InnerTombstone.hit();
                    (at, generation) = (forward, None);
                    self.drop_parent(&parent);
                    self.wait_for_successor(backoff, forward).await?;
                    continue;
                }
                InnerRead::OtherGeneration => {
                    Mark::InnerOtherGeneration.hit();
                    self.drop_parent(&parent);
                    self.0.op.retried.set(true);
                    return Ok(Descent::Stale);
                }
            };
            if copy.level < level {
                return Ok(Descent::NoSuchLevel);
            }
            let at_level = copy.level;
            let Some(node) = self.hop_right(copy, key).await? else {
                self.drop_parent(&parent);
                return Ok(Descent::Stale);
            };
            if at_level == level {
                return Ok(Descent::At(node));
            }
            let i = node.keys().floor(key).ok_or_else(|| {
                Error::corrupt(format!(
                    "inner node {} has no record for a key it covers",
                    node.addr
                ))
            })?;
            let r = node.record(i);
            (at, generation, expect) = (r.child, Some(r.generation), Some(at_level - 1));
            parent = Some((node, i, at_level));
        }
    }

    fn drop_parent(self, parent: &Option<(Arc<CachedNode>, usize, u8)>) {
        if let Some((node, _, level)) = parent {
            self.0.node.cache.invalidate(*level, node);
        }
    }

    /// The root's address.
    pub(crate) async fn read_root(self) -> Result<GlobalAddr> {
        self.0.ep.step(Step::Route);
        let word = self.0.ep.read(self.0.node.root.word, 8).await?.word(0);
        let root = GlobalAddr::from_bits(word);
        if root.is_null() {
            return Err(Error::corrupt(
                "the index has no root: it was never formatted, or was dropped",
            ));
        }
        Ok(root)
    }

    /// READs an inner node until its image is whole, and caches it. Another generation or level
    /// than the wanted one means that the pointer to the address was stale.
    pub(crate) async fn read_inner(
        self,
        addr: GlobalAddr,
        generation: Option<u16>,
        level: Option<u8>,
    ) -> Result<InnerRead> {
        let g = &self.0.node.g;
        let mut backoff = self.0.ep.backoff("inner node being written", addr);
        loop {
            self.0.ep.step(Step::Route);
            let bytes = self.0.ep.read(addr, g.inner_image() as u32).await?;
            self.0.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
            let early = bytes.extract(|b| {
                let h = NodeHeader::of(g, addr, b);
                let is_other = generation.is_some_and(|l| l != h.ver.generation)
                    || level.is_some_and(|l| l != h.level);
                match is_other {
                    true => h.whole.then_some(InnerRead::OtherGeneration),
                    // Nothing else of a tombstone counts, and nothing else may be whole: its last
                    // WRITE may be that of a client that has died, under a lock that is free now.
                    false => (!h.forward.is_null()).then_some(InnerRead::Tombstone(h.forward)),
                }
            });
            if let Some(read) = early {
                return Ok(read);
            }
            if let Ok((_, bytes)) = bytes.check(|b| inner::check(g, addr, b).map(|_| ()).ok_or(()))
                && let Some(read) = self.cache_inner(addr, &bytes).await?
            {
                return Ok(read);
            }
            Mark::InnerTorn.hit();
            self.0.op.retried.set(true);
            self.wait_for_successor(&mut backoff, addr).await?;
        }
    }

    /// Caches an accepted image of a node that is no tombstone. `None` when two records claim the
    /// same key, or none the first: a relocation is half done, or the image was sampled around it,
    /// and has to be read again.
    pub(crate) async fn cache_inner(
        self,
        addr: GlobalAddr,
        bytes: &[u8],
    ) -> Result<Option<InnerRead>> {
        let node = InnerNode::of(self.0, bytes, None).await?;
        self.cache_node(addr, &node).await
    }

    /// [`Router::cache_inner`] of a node with sorted records.
    pub(crate) async fn cache_node<B: Deref<Target = [u8]>>(
        self,
        addr: GlobalAddr,
        sorted: &InnerNode<B>,
    ) -> Result<Option<InnerRead>> {
        let bytes = &*sorted.bytes;
        debug_assert!(inner::check(&self.0.node.g, addr, bytes).is_some(), "accepted");
        let header = unchecked_header(&self.0.node.g, bytes).expect("accepted");
        debug_assert!(header.forward.is_null(), "no tombstone");
        let lo = Blocks(self.0).fence(header.lo).await?.unwrap_or_default();
        let hi = Blocks(self.0).fence(header.hi).await?;
        if sorted.has_double() {
            Mark::InnerDouble.hit();
            return Ok(None);
        }
        if sorted.keys().next().is_none_or(|first| *first > *lo) {
            // Sampled around a replacement of the first record: its new place before, its old place
            // after.
            Mark::InnerHeadless.hit();
            return Ok(None);
        }
        if let Some(hi) = hi.as_deref()
            && sorted.key(sorted.len() - 1) >= hi
        {
            return Err(Error::corrupt(format!("inner node {addr} has a record above its range")));
        }
        let mut records = Vec::with_capacity(sorted.len());
        let mut ends = sorted.keys().skip(1);
        for i in 0..sorted.len() {
            let (c, fence) = (sorted.child(i), fence_tag(ends.next().or(hi.as_deref())));
            let child = Record::new(c.addr, c.generation, c.table.bits(), c.slots as u16, fence);
            records.push(child.at_place(sorted.place(i)));
        }
        self.0.ep.stage_cost(Stage::CacheFill, 1);
        self.0.ep.point().await;
        let parts = NodeParts {
            addr,
            generation: header.ver.generation,
            lo: &lo,
            hi: hi.as_deref(),
            keys: sorted.keys(),
            records,
        };
        let node = self.0.node.cache.insert(header.level, parts);
        Ok(Some(InnerRead::Whole(InnerCopy { node, level: header.level, next: header.next })))
    }

    /// Caches a node that has got the record of a child. A copy of it that has all other records
    /// gets this one, too; else the whole node is cached.
    pub(crate) async fn cache_added<B: Deref<Target = [u8]>>(
        self,
        (addr, level): (GlobalAddr, u8),
        sorted: &InnerNode<B>,
        (low, child, place): (&[u8], &Child, usize),
    ) -> Result<()> {
        if let Some((old, from)) = self.0.node.cache.lookup(level, low)
            && old.addr == addr
            && sorted.is_more_than(&old, from + 1)
            && self.cache_child(level, (&old, from), (low, child, place)).await
        {
            return Ok(());
        }
        self.cache_node(addr, sorted).await.map(|_| ())
    }

    /// A cached node gets the record of a child, behind that of child `from`. False: it has to be
    /// cached whole.
    pub(crate) async fn cache_child(
        self,
        level: u8,
        (old, from): (&CachedNode, usize),
        (low, child, place): (&[u8], &Child, usize),
    ) -> bool {
        let c = child;
        let record = Record::new(c.addr, c.generation, c.table.bits(), c.slots as u16, 0);
        let (record, low) = (record.at_place(place), (low, fence_tag(Some(low))));
        if self.0.node.cache.insert_child(level, (old, from), low, &record).is_none() {
            return false;
        }
        self.0.ep.stage_cost(Stage::CacheFill, 1);
        self.0.ep.point().await;
        true
    }

    /// The bottom node that covers the largest keys below `key` (below the right end when `None`):
    /// it begins below `key` and reaches it.
    pub(crate) async fn descend_below(self, key: Option<&[u8]>) -> Result<Arc<CachedNode>> {
        if let Some(node) = self.0.node.cache.lookup_below(1, key) {
            return Ok(node);
        }
        let mut backoff = self.0.ep.backoff("a path to the key", self.0.node.root.word);
        'restart: loop {
            let (mut at, mut generation, mut expect) = (self.read_root().await?, None, None);
            loop {
                match self.read_inner(at, generation, expect).await? {
                    InnerRead::Tombstone(forward) => {
                        (at, generation) = (forward, None);
                        self.wait_for_successor(&mut backoff, forward).await?;
                    }
                    InnerRead::OtherGeneration => {
                        self.0.op.quiescent_point();
                        backoff.step().await?;
                        continue 'restart;
                    }
                    InnerRead::Whole(copy) => {
                        let node = &copy.node;
                        let reaches = match (node.hi(), key) {
                            (None, _) => true,
                            (Some(_), None) => false,
                            (Some(hi), Some(key)) => key <= hi,
                        };
                        if !reaches && !copy.next.is_null() {
                            (at, generation, expect) = (copy.next, None, Some(copy.level));
                            continue;
                        }
                        if copy.level == 1 {
                            return Ok(copy.node);
                        }
                        let Some(i) = node.keys().below(key) else {
                            backoff.step().await?;
                            continue 'restart;
                        };
                        let r = node.record(i);
                        (at, generation, expect) =
                            (r.child, Some(r.generation), Some(copy.level - 1));
                    }
                }
                self.0.ep.check_deadline("a path to the key", at.bits())?;
            }
        }
    }
}
