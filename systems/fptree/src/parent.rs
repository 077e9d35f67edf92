//! Changes inner nodes: new records, splits, new roots.
//!
//! Verbs in order, per node: CAS lock, READ node (one chain where round trips are combined), WRITE
//! node with the lock word 0 at its end. A full node is split: WRITE right half as a new node,
//! WRITE left half (unlocks), and the record of the right half goes one level up. A new root: lock
//! of the root pointer, READ root pointer, WRITE node, WRITE root pointer, unlock.
//!
//! Invariants: a client holds one inner lock at a time. A key to the right of a node is in its
//! right sibling. Between the split of a node and the new record above it, the right link of the
//! left half reaches the right half. The record of a leaf in its present version belongs to the
//! client that has divided the leaf, because a division needs that record.
//!
//! A crash after the leaf's split and before its record is written (steps 10 to 13 of `split.rs`)
//! leaves a record with an old version: point operations on the leaf end in `TimedOut`. A crash
//! between two levels leaves a missing record, and right links. In all cases a held lock stays
//! held.

use dmtree_fabric::verb::{cas, read};
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::blink::{highest, lowest};

use crate::client::{FpTree, Route};
use crate::format::inner::{self, Child, Head, Inner};
use crate::route::Routes;

/// The change that the division of a leaf makes in its bottom node.
pub(crate) struct Change {
    pub separator: Vec<u8>,
    /// The divided leaf, with its new version.
    pub left: Child,
    pub right: Child,
    /// The right leaf takes the record of the left one.
    pub replaced: bool,
}

pub(crate) struct LockedInner {
    pub addr: GlobalAddr,
    image: Buf,
}

/// An inner node under construction.
pub(crate) struct Node {
    pub right: GlobalAddr,
    pub is_root: bool,
    pub next_is_leaf: bool,
    /// Lower fence keys and children; the first fence key is the node's.
    pub records: Vec<(Vec<u8>, Child)>,
}

/// A record that a split has to add one level up.
struct Due {
    separator: Vec<u8>,
    child: GlobalAddr,
    /// The node that was split.
    left: GlobalAddr,
    /// Its level; bottom nodes are 1.
    level: usize,
}

/// Inner nodes, and what changes them.
pub(crate) struct Parents<'c>(pub(crate) &'c FpTree);

impl Parents<'_> {
    fn inner<'a>(&'a self, image: &'a [u8]) -> Inner<'a> {
        Inner::of(&self.0.node.g, image)
    }

    fn inner_lock(&self, at: GlobalAddr) -> GlobalAddr {
        at.plus(self.0.node.g.inner_lock_at() as u64)
    }

    /// Locks and READs the inner node that covers `key`; starts at `at` and follows right links.
    pub(crate) async fn lock_inner(&self, at: GlobalAddr, key: &[u8]) -> Result<LockedInner> {
        let mut at = at;
        loop {
            let image = self.acquire_inner(at).await?;
            let n = self.inner(&image);
            let on = if key < n.min() {
                Err(Error::corrupt(format!("inner node {at} begins right of a key below it")))
            } else if n.ends_before(key) {
                Routes(self.0).hop(&n, at)
            } else {
                return Ok(LockedInner { addr: at, image });
            };
            self.unlock_inner(at).await?;
            at = on?;
        }
    }

    async fn acquire_inner(&self, at: GlobalAddr) -> Result<Buf> {
        let g = &self.0.node.g;
        let (lock, len) = (self.inner_lock(at), g.inner_bytes() as u32);
        let mut backoff = self.0.ep.backoff("lock of an inner node", lock);
        let mut sampled = None;
        self.0.ep.step(Step::Structure);
        loop {
            if self.0.node.o.round_trip_combining {
                let (was, bytes) = self.0.ep.chain((cas(lock, 0, 1), read(at, len))).await?;
                if was == 0 {
                    sampled = Some(bytes);
                    break;
                }
            } else if self.0.ep.cas(lock, 0, 1).await? == 0 {
                break;
            }
            backoff.step().await?;
        }
        // A torn image (the last holder's WRITE has not landed completely) is READ again.
        let mut backoff = self.0.ep.backoff("inner node being written", at);
        loop {
            let bytes = match sampled.take() {
                Some(bytes) => bytes,
                None => self.0.ep.read(at, len).await?,
            };
            self.0.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
            if let Ok(((), image)) = bytes.check(|b| Inner::check(g, b).map(|_| ()).ok_or(())) {
                return Ok(image.into_buf());
            }
            self.under_inner(at, backoff.step().await).await?;
        }
    }

    /// Frees the lock of an inner node that was not changed.
    pub(crate) async fn unlock_inner(&self, at: GlobalAddr) -> Result<()> {
        self.0.ep.step(Step::Structure);
        self.0.ep.write_word(self.inner_lock(at), 0).await
    }

    /// The result of a step that changes nothing under the lock of an inner node; an error unlocks
    /// it.
    async fn under_inner<T>(&self, at: GlobalAddr, step: Result<T>) -> Result<T> {
        if step.is_err() {
            self.unlock_inner(at).await?;
        }
        step
    }

    /// WRITEs a locked inner node, which unlocks it.
    async fn write_inner(&self, n: LockedInner) -> Result<()> {
        let LockedInner { addr, mut image } = n;
        self.0.ep.stage_cost(Stage::NodeImage, self.0.node.g.fanout as u32);
        inner::seal(&self.0.node.g, &mut image);
        self.0.ep.step(Step::Structure);
        self.0.ep.write(addr, image).await.map(|_| ())
    }

    /// Steps 11 to 13: the leaf's record gets its new version, and the sibling a record of its own.
    pub(crate) async fn publish(&self, r: &Route, change: &Change) -> Result<()> {
        let mut path = self.0.path.take();
        let mut at = r.bottom;
        let due = loop {
            let mut n = self.lock_inner(at, &change.separator).await?;
            let i = self.under_inner(n.addr, self.leaf_record(&n, r, change)).await?;
            if change.replaced {
                let g = &self.0.node.g;
                inner::put_record(g, &mut n.image, i, &change.separator, &change.right);
                return self.write_inner(n).await;
            }
            if self.inner(&n.image).len() < self.0.node.g.fanout {
                self.apply(&mut n.image, i, change);
                return self.write_inner(n).await;
            }
            if !path.is_empty() {
                let pend = |image: &mut [u8], i| self.apply(image, i, change);
                break self.split_inner(n, 1, (i, &change.separator), pend).await?;
            }
            // A node from the cache does not show the nodes above it.
            self.unlock_inner(n.addr).await?;
            Routes(self.0).descend(&change.separator).await?;
            path = self.0.path.take();
            at = *path.last().ok_or_else(|| Error::corrupt("a descent without a path"))?;
        };
        self.insert_above(due, path).await
    }

    /// The record of the divided leaf in its locked bottom node. No other client can have changed
    /// it, because a division needs the record with the leaf's present version.
    fn leaf_record(&self, n: &LockedInner, r: &Route, change: &Change) -> Result<usize> {
        let n = self.inner(&n.image);
        let found = n.floor(&change.separator).filter(|i| {
            let c = n.child(*i);
            n.next_is_leaf() && c.addr == r.leaf && c.version == r.version
        });
        found.ok_or_else(|| Error::corrupt(format!("the record of leaf {} is gone", r.leaf)))
    }

    fn apply(&self, image: &mut [u8], i: usize, change: &Change) {
        let g = &self.0.node.g;
        let key = Inner::of(g, image).key(i).to_vec();
        inner::put_record(g, image, i, &key, &change.left);
        inner::insert_record(g, image, i + 1, &change.separator, &change.right);
    }

    /// Splits a full, locked inner node; `pend` puts the pending record, number `i` of the node,
    /// into the half that covers its key. WRITEs the right half first, then the left half, which
    /// unlocks.
    async fn split_inner(
        &self,
        n: LockedInner,
        level: usize,
        (i, key): (usize, &[u8]),
        pend: impl FnOnce(&mut [u8], usize),
    ) -> Result<Due> {
        let g = &self.0.node.g;
        let half = g.fanout / 2;
        let mut n = n;
        let addr = self.under_inner(n.addr, self.0.new_inner().await).await?;
        let mut right = self.under_inner(n.addr, self.0.blank(g.inner_bytes()).await).await?;
        let old = self.inner(&n.image);
        let (min, max) = (old.min().to_vec(), old.max().to_vec());
        let (separator, next) = (old.key(half).to_vec(), old.right());
        let head = Head {
            min: &separator,
            max: &max,
            right: next,
            is_root: false,
            next_is_leaf: old.next_is_leaf(),
        };
        inner::put_head(g, &mut right, &head);
        inner::move_upper(g, &mut n.image, half, &mut right);
        let head = Head { min: &min, max: &separator, right: addr, ..head };
        inner::put_head(g, &mut n.image, &head);
        match key >= &separator[..] {
            true => pend(&mut right, i - half),
            false => pend(&mut n.image, i),
        }
        let left = n.addr;
        self.write_inner(LockedInner { addr, image: right }).await?;
        self.write_inner(n).await?;
        Ok(Due { separator, child: addr, left, level })
    }

    /// Adds pending records level by level upwards. `path` leads from the root to a bottom node.
    async fn insert_above(&self, due: Due, path: Vec<GlobalAddr>) -> Result<()> {
        let g = &self.0.node.g;
        let (mut due, mut path) = (due, path);
        let mut backoff = self.0.ep.backoff("a new root", self.0.node.root.aux());
        loop {
            let Some(above) = path.len().checked_sub(due.level + 1) else {
                if self.grow_root(&due).await? {
                    return Ok(());
                }
                // Another client has grown the root, or is about to.
                backoff.step().await?;
                self.0.root.set(GlobalAddr::NULL);
                Routes(self.0).descend(&due.separator).await?;
                path = self.0.path.take();
                continue;
            };
            let mut n = self.lock_inner(path[above], &due.separator).await?;
            let old = self.inner(&n.image);
            let i = old.floor(&due.separator).map_or(0, |i| i + 1);
            let child = Child { addr: due.child, ..Child::default() };
            if old.len() < g.fanout {
                inner::insert_record(g, &mut n.image, i, &due.separator, &child);
                return self.write_inner(n).await;
            }
            let separator = due.separator;
            let pend = |image: &mut [u8], i| {
                inner::insert_record(g, image, i, &separator, &child);
            };
            due = self.split_inner(n, due.level + 1, (i, &separator), pend).await?;
        }
    }

    /// Puts a new root above two halves of the old one. False when the root pointer does not name
    /// the left half: the tree has grown already, or the right sibling of a root was split before
    /// the root had a parent.
    async fn grow_root(&self, due: &Due) -> Result<bool> {
        self.lock_root().await?;
        let grown = self.grow_locked(due).await;
        if grown.as_ref().is_err_and(|e| e.effect() != dmtree_fabric::Effect::None) {
            return grown;
        }
        self.0.ep.write_word(self.0.node.root.aux(), 0).await?;
        grown
    }

    async fn lock_root(&self) -> Result<()> {
        let lock = self.0.node.root.aux();
        let mut backoff = self.0.ep.backoff("lock of the root pointer", lock);
        self.0.ep.step(Step::Structure);
        while self.0.ep.cas(lock, 0, 1).await? != 0 {
            backoff.step().await?;
        }
        Ok(())
    }

    async fn grow_locked(&self, due: &Due) -> Result<bool> {
        let g = &self.0.node.g;
        if Routes(self.0).read_root().await? != due.left {
            return Ok(false);
        }
        let addr = self.0.new_inner().await?;
        let child = |addr| Child { addr, ..Child::default() };
        let records =
            vec![(lowest(g.key), child(due.left)), (due.separator.clone(), child(due.child))];
        let node = Node { right: GlobalAddr::NULL, is_root: true, next_is_leaf: false, records };
        let image = self.node_image(&node, &highest(g.key)).await?;
        self.0.ep.write(addr, image).await?;
        self.0
            .ep
            .write_word(self.0.node.root.word, addr.bits())
            .await
            .map_err(Error::effect_unknown)?;
        self.0.root.set(addr);
        Ok(true)
    }

    /// Makes another node the root, while no other client can change it.
    pub(crate) async fn set_root(&self, root: GlobalAddr) -> Result<()> {
        self.lock_root().await?;
        self.0.ep.write_word(self.0.node.root.word, root.bits()).await?;
        self.0.root.set(root);
        self.0.ep.write_word(self.0.node.root.aux(), 0).await
    }

    /// The number of records of a locked node.
    pub(crate) fn records(&self, n: &LockedInner) -> usize {
        self.inner(&n.image).len()
    }

    /// The image of a new node, unlocked.
    pub(crate) async fn node_image(&self, n: &Node, max: &[u8]) -> Result<Buf> {
        let g = &self.0.node.g;
        let mut image = self.0.ep.buf(g.inner_bytes() as u32).await?;
        image.fill(0);
        let Node { right, is_root, next_is_leaf, .. } = *n;
        let min = &n.records[0].0;
        inner::put_head(g, &mut image, &Head { min, max, right, is_root, next_is_leaf });
        for (i, (key, child)) in n.records.iter().enumerate() {
            inner::put_record(g, &mut image, i, key, child);
        }
        self.0.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
        inner::seal(g, &mut image);
        Ok(image)
    }
}
