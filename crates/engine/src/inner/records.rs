//! Records of inner nodes: one is added, removed or replaced under the lock of its node.

use std::sync::atomic::Ordering;

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;

use crate::client::{Client, is_away};
use crate::format::inner::{Child, free_word, put_record};
use crate::format::leaf::FenceArea;
use crate::inner::{InnerChange, InnerLocks, LockedInner};
use crate::leaf::{Blocks, NewLeaf, Unvalidated};
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;

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
        let c = self.0;
        let mut backoff = c.ep.backoff("room in a parent", child.addr);
        loop {
            let Some(n) = InnerLocks(c).lock(level, low).await? else {
                if self.grow_root(level, low, child).await? {
                    return Ok(());
                }
                backoff.step().await?;
                continue;
            };
            if n.node.keys().any(|key| key == low) {
                return c.unlock(n).await;
            }
            if level > 1 {
                let h = Unvalidated::read(c, child.addr).await?;
                if h.ver.generation != child.generation || !h.forward.is_null() {
                    Mark::PublishTombstone.hit();
                    return c.unlock(n).await;
                }
            }
            match n.node.free_place() {
                Some(index) => return self.add(n, index, low, child).await,
                None => InnerChange(c).split(n).await?,
            }
        }
    }

    /// WRITEs one record and unlocks behind it.
    async fn add(self, n: LockedInner, index: usize, low: &[u8], child: &Child) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let mut blocks = Vec::new();
        let area = match Blocks(c).area(low, &mut blocks).await {
            Ok(area) => area,
            Err(e) => {
                c.unlock(n).await?;
                return Err(e);
            }
        };
        Blocks(c).write(&mut blocks).await?;
        let mut n = n;
        let at = g.record_at(index);
        let mut record = c.ep.buf(g.record() as u32).await?;
        put_record(&g, n.addr, n.ver, index, &mut record, (&area.bytes, area.mode), child);
        n.node.add(index, &record, low);
        let lock = n.addr.plus(g.inner_lock_at() as u64);
        let unlock = cas(lock, n.tag.0, 0);
        c.ep.step(Step::Structure);
        c.check_lease()?;
        if c.node.has(Mutant::RecordBesideUnlock) {
            c.ep.detach(write_verb(n.addr.plus(at as u64), record), None);
            c.ep.cas(lock, n.tag.0, 0).await?;
        } else {
            c.ep.chain((write_verb(n.addr.plus(at as u64), record), unlock)).await?;
        }
        InnerLocks(c).written(n).await
    }

    /// Removes the record of a child (it is gone) from a locked node, and unlocks. The caller
    /// retires the block that the record owned.
    pub(crate) async fn remove(self, n: LockedInner, index: usize) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let mut n = n;
        let word = free_word(n.addr, n.ver, index);
        let at = g.record_at(index);
        n.node.remove(index, word);
        let lock = n.addr.plus(g.inner_lock_at() as u64);
        let list = (write_word(n.addr.plus(at as u64), word), cas(lock, n.tag.0, 0));
        c.ep.step(Step::Structure);
        c.check_lease()?;
        c.ep.chain(list).await?;
        InnerLocks(c).written(n).await
    }

    /// Puts a new root of `level` over the present one and a new child; false when another client
    /// was faster.
    async fn grow_root(self, level: u8, low: &[u8], child: &Child) -> Result<bool> {
        let c = self.0;
        let g = c.node.g;
        let old = c.read_root().await?;
        let crate::route::InnerRead::Whole(copy) = c.read_inner(old, None, None).await? else {
            return Ok(false);
        };
        if copy.level + 1 != level {
            return Ok(false);
        }
        let mut blocks = Vec::new();
        let area = Blocks(c).area(low, &mut blocks).await?;
        let grant = match InnerChange(c).alloc().await {
            Ok(grant) => grant,
            Err(e) => {
                Blocks(c).give_back(blocks);
                return Err(e);
            }
        };
        let kept: Vec<_> = blocks.iter().map(|(at, _)| *at).collect();
        Blocks(c).write(&mut blocks).await?;
        let bottom = FenceArea::inline(&g, &[]).expect("nothing fits anywhere");
        let table = dmtree_pool::TableId::from_bits(0);
        let left = Child { addr: old, generation: copy.node.generation, table, slots: g.fanout };
        let records = [(&bottom, left), (&area, *child)];
        let records = records.into_iter().map(|(key, child)| ((&key.bytes[..], key.mode), child));
        let fences = (&bottom, &FenceArea::infinite(&g));
        let image = InnerChange(c).image(&grant, level, fences, GlobalAddr::NULL, records).await?;
        let bytes = image.to_vec();
        c.ep.step(Step::Structure);
        match c.node.has(Mutant::RootBeside) {
            false => _ = c.ep.write(grant.addr, image).await?,
            true => c.ep.detach(write_verb(grant.addr, image), None),
        }
        let mut was = c.ep.cas(c.node.root.word, old.bits(), grant.addr.bits()).await?;
        if was != old.bits() && c.node.has(Mutant::RootOverwritten) {
            was = c.ep.cas(c.node.root.word, was, grant.addr.bits()).await.map(|_| old.bits())?;
        }
        if was != old.bits() {
            Mark::RootLost.hit();
            c.node.pool.give_back(&c.node.inner_arena, grant);
            for at in kept {
                c.node.pool.give_back_block(c.node.root.index, at);
            }
            return Ok(false);
        }
        Mark::RootGrown.hit();
        c.cache_inner(grant.addr, &bytes).await?;
        Ok(true)
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

    /// `[WRITE new record, WRITE old record free, CAS unlock]`.
    pub(crate) async fn replace(self, n: LockedInner, old: usize, s: &NewLeaf) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let mut n = n;
        let index = n.node.free_place().expect("room was made");
        let mut record = c.ep.buf(g.record() as u32).await?;
        let r = n.node.record(old);
        put_record(&g, n.addr, n.ver, index, &mut record, (r.area, r.mode), &s.child());
        let (new_at, old_at) = (g.record_at(index), g.record_at(r.index));
        let free = free_word(n.addr, n.ver, r.index);
        let (old_index, key) = (r.index, n.node.key(old).to_vec());
        n.node.remove(old_index, free);
        n.node.add(index, &record, &key);
        let list = (
            write_verb(n.addr.plus(new_at as u64), record),
            write_word(n.addr.plus(old_at as u64), free),
            cas(n.addr.plus(g.inner_lock_at() as u64), n.tag.0, 0),
        );
        c.ep.step(Step::Structure);
        c.check_lease()?;
        c.ep.chain(list).await?;
        InnerLocks(c).written(n).await
    }

    /// Adds the record of a new child to the parent level. When there is no memory for that the
    /// tree stays right without it (readers walk right), and a chore adds the record later.
    pub(crate) async fn publish(self, low: &[u8], child: &Child) -> Result<()> {
        let c = self.0;
        match Box::pin(self.insert(1, low, child)).await {
            Ok(()) => {
                if c.node.starved.load(Ordering::Relaxed) {
                    c.node.starved.store(false, Ordering::Relaxed);
                }
                Ok(())
            }
            // An unreachable parent is no reason for keeping the leaf locked, either.
            Err(e) if e.kind() == dmtree_fabric::ErrorKind::Full || is_away(&e) => {
                Mark::PublishLater.hit();
                let starved = e.kind() == dmtree_fabric::ErrorKind::Full;
                c.node.starved.store(starved, Ordering::Relaxed);
                c.node.push_chore(Chore::Publish(low.to_vec()));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}
