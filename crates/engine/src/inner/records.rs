//! Records of inner nodes: one is added, removed or replaced by one chain that also unlocks the
//! node. A level that does not exist yet is a new root.

use std::sync::atomic::Ordering;

use dmtree_fabric::verb::{Ordered, cas, write as write_verb, write_word};
use dmtree_fabric::{ErrorKind, GlobalAddr, Result, Step};

use crate::format::inner::free_word;
use crate::format::{Child, Mode, put_record};
use crate::inner::{InnerLocks, InnerNodes, InnerSplit, LockedInner, record_of};
use crate::leaf::{Blocks, NodeHeader, Unwritten};
use crate::router::{InnerRead, Router};
use crate::{Chore, Client, Mark, Mutant, Unlock, is_away};

/// Adds and removes records of inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct Records<'c>(pub &'c Client);

impl Records<'_> {
    /// Adds the record of a child to the level above it (`level`), unless it is there. Splits full
    /// nodes, up to a new root.
    ///
    /// The caller may have read of the child long ago. Under the parent's lock the parent's records
    /// name live children. So a record of this key means that another client has published the
    /// child before (and that it was moved since, if the record names another address). An inner
    /// child that another client has published may have been merged away since. A leaf cannot be,
    /// because the publishing client holds the lock of the leaf or of its left sibling.
    ///
    /// # Errors
    /// `Full` when a node must be split and there is no memory: nothing was changed on this level.
    pub(crate) async fn insert(self, level: u8, low: &[u8], child: &Child) -> Result<()> {
        let mut backoff = self.0.ep.backoff("room in a parent", child.addr);
        loop {
            let Some(n) = InnerLocks(self.0).lock(level, low).await? else {
                if Box::pin(self.grow_root(level, low, child)).await? {
                    return Ok(());
                }
                backoff.step().await?;
                continue;
            };
            if n.node.has(low) {
                return self.0.unlock(n).await;
            }
            if level > 1 {
                let h = NodeHeader::read(self.0, child.addr).await?;
                if h.ver.generation != child.generation || !h.forward.is_null() {
                    Mark::PublishTombstone.hit();
                    return self.0.unlock(n).await;
                }
            }
            match n.node.free_place() {
                Some(index) => return self.add(n, index, low, child).await,
                None => Box::pin(InnerSplit::run(self.0, n)).await?,
            }
        }
    }

    /// WRITEs one record and unlocks behind it.
    async fn add(self, mut n: LockedInner, index: usize, low: &[u8], child: &Child) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let mut later = Unwritten::new();
        let area = match Blocks(c).area(low, &mut later).await {
            Ok(area) => area,
            Err(e) => {
                Box::pin(c.unlock(n)).await?;
                return Err(e);
            }
        };
        Blocks(c).write(&mut later).await?;
        let mut record = c.ep.buf(g.record() as u32).await?;
        put_record(&g, n.addr, n.ver, index, &mut record, (&area.bytes, area.mode), child);
        // A node that is cached as it is needs no order: its copy gets the record.
        let (late, long) = (c.node.has(Mutant::RecordBesideUnlock), area.mode == Mode::Block);
        let copy = if late || long { None } else { n.node.take_cached() };
        match &copy {
            Some(_) => n.node.put(index, &record),
            None => n.node.add(index, &record, low),
        }
        let write = write_verb(n.place(&g, index), record);
        if late {
            c.ep.step(Step::Structure);
            c.check_lease()?;
            c.ep.detach(write, None);
            c.ep.cas(n.word(&g), n.tag.0, 0).await?;
            return Box::pin(InnerLocks(c).written(n)).await;
        }
        self.execute((write, cas(n.word(&g), n.tag.0, 0))).await?;
        let (addr, level) = (n.addr, n.level);
        let node = InnerLocks(c).unlocked(n);
        let added = (low, child, index);
        let Some(copy) = copy else {
            return Box::pin(Router(c).cache_added((addr, level), &node, added)).await;
        };
        if let Some(from) = copy.keys().floor(low)
            && Router(c).cache_child(level, (&copy, from), added).await
        {
            return Ok(());
        }
        Box::pin(Router(c).cache_inner(addr, &node.bytes)).await.map(|_| ())
    }

    /// Removes the record of a child (it is gone) from a locked node, and unlocks. The caller
    /// retires the block that the record owned.
    pub(crate) async fn remove(self, mut n: LockedInner, index: usize) -> Result<()> {
        let g = self.0.node.g;
        let free = free_word(n.addr, n.ver, index);
        n.node.remove(index, free);
        let list = (write_word(n.place(&g, index), free), cas(n.word(&g), n.tag.0, 0));
        self.change(n, list).await
    }

    /// `[WRITE new record, WRITE old record free, CAS unlock]`.
    pub(crate) async fn replace(self, mut n: LockedInner, old: usize, child: &Child) -> Result<()> {
        let g = self.0.node.g;
        let index = n.node.free_place().expect("room was made");
        let mut record = self.0.ep.buf(g.record() as u32).await?;
        let r = n.node.record(old);
        put_record(&g, n.addr, n.ver, index, &mut record, (r.area, r.mode), child);
        let free = free_word(n.addr, n.ver, r.index);
        let (old, key) = (r.index, n.node.key(old).to_vec());
        n.node.remove(old, free);
        n.node.add(index, &record, &key);
        let list = (
            write_verb(n.place(&g, index), record),
            write_word(n.place(&g, old), free),
            cas(n.word(&g), n.tag.0, 0),
        );
        self.change(n, list).await
    }

    /// Executes a chain that changes records of a node and unlocks it.
    async fn change(self, n: LockedInner, list: impl Ordered) -> Result<()> {
        self.execute(list).await?;
        InnerLocks(self.0).written(n).await
    }

    async fn execute(self, list: impl Ordered) -> Result<()> {
        self.0.ep.step(Step::Structure);
        self.0.check_lease()?;
        self.0.ep.chain(list).await.map(|_| ())
    }

    /// Removes the record of a tombstone merged into its left neighbour, if the record is there.
    pub(crate) async fn drop_record(self, low: &[u8], addr: GlobalAddr) -> Result<()> {
        let Some(parent) = InnerLocks(self.0).lock(1, low).await? else { return Ok(()) };
        match parent.node.position_of(addr, low) {
            Some(i) if i > 0 => {
                let index = parent.node.record(i).index;
                self.remove(parent, index).await
            }
            _ => self.0.unlock(parent).await,
        }
    }

    /// Puts a new root of `level` over the present one and a new child; false when another client
    /// was faster.
    async fn grow_root(self, level: u8, low: &[u8], child: &Child) -> Result<bool> {
        let c = self.0;
        let old = Router(c).read_root().await?;
        let InnerRead::Whole(copy) = Router(c).read_inner(old, None, None).await? else {
            return Ok(false);
        };
        if copy.level + 1 != level {
            return Ok(false);
        }
        let mut later = Unwritten::new();
        let area = Blocks(c).area(low, &mut later).await?;
        let grant = match InnerNodes(c).take().await {
            Ok(grant) => grant,
            Err(e) => {
                Blocks(c).give_back(later);
                return Err(e);
            }
        };
        let kept: Vec<_> = later.iter().map(|(at, _)| *at).collect();
        Blocks(c).write(&mut later).await?;
        let header = NodeHeader::of_inner(&c.node.g, grant.generation, level);
        let left = Child { addr: old, generation: copy.node.generation, ..header.child(old) };
        let records = [record_of(&header.lo, left), record_of(&area, *child)];
        let image = InnerNodes(c).image(grant.addr, &header, records.into_iter()).await?;
        let bytes = image.to_vec();
        c.ep.step(Step::Structure);
        match c.node.has(Mutant::RootBeside) {
            false => _ = c.ep.write(grant.addr, image).await?,
            true => c.ep.detach(write_verb(grant.addr, image), None),
        }
        let (word, old, new) = (c.node.root.word, old.bits(), grant.addr.bits());
        let mut was = c.ep.cas(word, old, new).await?;
        if was != old && c.node.has(Mutant::RootOverwritten) {
            was = c.ep.cas(word, was, new).await.map(|_| old)?;
        }
        if was != old {
            Mark::RootLost.hit();
            InnerNodes(c).give_back(grant);
            kept.into_iter().for_each(|at| Blocks(c).give_back_one(at));
            return Ok(false);
        }
        Mark::RootGrown.hit();
        Router(c).cache_inner(grant.addr, &bytes).await?;
        Ok(true)
    }

    /// Adds the record of a new child to the parent level. When there is no memory for that the
    /// tree stays right without it (readers walk right), and a chore adds the record later.
    pub(crate) async fn publish(self, low: &[u8], child: &Child) -> Result<()> {
        match self.insert(1, low, child).await {
            Ok(()) => {
                if self.0.node.starved.load(Ordering::Relaxed) {
                    self.0.node.starved.store(false, Ordering::Relaxed);
                }
                Ok(())
            }
            // An unreachable parent is no reason for keeping the leaf locked, either.
            Err(e) if e.kind() == ErrorKind::Full || is_away(&e) => {
                Mark::PublishLater.hit();
                self.0.node.starved.store(e.kind() == ErrorKind::Full, Ordering::Relaxed);
                self.0.node.push_chore(Chore::Publish(low.to_vec()));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Adds the record of an inner node to the level above. When there is no memory for that a
    /// chore adds it later: right links keep the node reachable until then.
    pub(crate) async fn publish_inner(self, level: u8, low: Vec<u8>, child: Child) -> Result<()> {
        match Box::pin(self.insert(level + 1, &low, &child)).await {
            Err(e) if e.kind() == ErrorKind::Full => {
                self.0.node.push_chore(Chore::PublishInner(low, level, child));
                Ok(())
            }
            other => other,
        }
    }
}
