//! Write-back: a leaf at its memory node catches up with its image, so that the records of the
//! leaf do not count any more and their places can be used again.
//!
//! Under the lock of the leaf: READ the image; `[WRITE leaf, WRITE count word]`, one chain, with
//! the write count of the table. The count stands behind the leaf (G1): a crash between the two
//! leaves records that count over a leaf that has them already. Only slots that records name
//! differ, so a leaf that the crash tears is whole again when the records are laid over it. After
//! both, the table says that the leaf is not behind any more.
//!
//! Three clients write back:
//!
//! - *Maintenance*, when few of a ring's segments are free ahead: some leaves of the oldest one.
//!   Their count words are READ first, without locks: another node, or a change of the leaf, may
//!   have written it back.
//! - *A writer that finds its ring full*: then no record of the leaf counts, and the write goes to
//!   the leaf as without a log, a replaced entry behind its shadow.
//! - *A merge*, of both leaves, because it stages entries in slots that records may name.

use dmtree_fabric::verb::{VerbVec, write as write_verb, write_word};
use dmtree_fabric::{ErrorKind, GlobalAddr, OpKind, OpOutcome, Result, Step};
use dmtree_parts::Work;

use super::Claimed;
use super::record::{count_of, count_word};
use super::replay::{Replay, count_at};
use super::ring::Named;
use crate::format::{Place, Table};
use crate::leaf::{Blocks, Entries, Images, LeafCopy, NodeHeader, Validation};
use crate::lock::{LeafLocks, Locked};
use crate::recovery::LeafRecovery;
use crate::{Client, Mark, Mutant, Route, Unlock, fence_tag, is_away, reached};

/// Leaves that one call of maintenance writes back at most.
const LEAVES_PER_CALL: usize = 8;
/// Counts of leaves that one call READs, in one batch: other nodes have written most of these
/// leaves back.
const COUNTS_PER_CALL: usize = 32;

/// The count word of a leaf, and where it is.
pub(crate) type CountWord = (GlobalAddr, u64);

/// Writes leaves back.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'c>(pub &'c Client);

impl Cut<'_> {
    /// The count word of a locked leaf that is rewritten in place; `None` for a leaf that no
    /// record can name.
    pub(crate) fn count(self, route: &Route, table: &Table) -> Option<CountWord> {
        self.counted(route, table.writes).filter(|_| !self.0.node.has(Mutant::LogCountKept))
    }

    /// The same for a count.
    pub(crate) fn counted(self, route: &Route, count: u32) -> Option<CountWord> {
        let at = route.leaf.plus(count_at(self.0, route.capacity) as u64);
        let word = count_word(route.leaf, route.generation, count);
        (self.0.node.log.is_some() && route.is_imaged()).then_some((at, word))
    }

    /// The leaf at the memory node is as its image.
    pub(crate) async fn complete(self, l: &Locked) -> Result<()> {
        if self.0.node.log.is_none() || !l.route.is_imaged() {
            return Ok(());
        }
        let image = self.image(l).await?;
        self.write(l, &image.bytes, l.table.writes).await?;
        if let Some(log) = &self.0.node.log {
            log.written_back((l.route.leaf, l.route.generation), l.table.writes);
        }
        Ok(())
    }

    /// The new bytes of a slot, durable in the leaf. Where they replace an entry, with this
    /// checksum, the WRITE must not destroy it.
    pub(crate) async fn through(
        self,
        l: &Locked,
        (place, bytes): (Place, &[u8]),
        replaces: Option<u32>,
    ) -> Result<()> {
        let c = self.0;
        self.complete(l).await?;
        let entry = write_verb(Entries(c).at(place), Images(c).copy_of(bytes).await?);
        let is_whole = c.ep.caps().whole_write_bytes as usize >= bytes.len();
        let shadow = match replaces.filter(|_| !is_whole && bytes.len() > 8) {
            Some(crc) => Some(Entries(c).shadow(place, crc, bytes).await?),
            None => None,
        };
        c.ep.step(Step::Entry);
        let Some(shadow) = shadow else { return c.ep.chain(entry).await.map(|_| ()) };
        let shadow_at = place.leaf.plus(c.node.g.shadow_at(l.route.capacity) as u64);
        c.ep.chain((write_verb(shadow_at, shadow), entry)).await.map(|_| ())
    }

    /// The image of a locked leaf, or what it would be.
    async fn image(self, l: &Locked) -> Result<LeafCopy> {
        match Images(self.0).whole_in(l.at, &l.route).await? {
            Some(image) => Ok(image),
            None => Replay(self.0).leaf(&l.route).await,
        }
    }

    async fn write(self, l: &Locked, image: &[u8], count: u32) -> Result<()> {
        let (c, capacity) = (self.0, l.route.capacity);
        debug_assert!(c.op.holds(l.tag), "{} is written back without its lock", l.route.leaf);
        let Some((at, word)) = self.counted(&l.route, count) else { return Ok(()) };
        c.check_lease()?;
        let leaf = Images(c).leaf_of(image, capacity).await?;
        c.ep.step(Step::Structure);
        c.ep.chain((write_verb(l.route.leaf, leaf), write_word(at, word))).await.map(|_| ())
    }

    /// A piece of maintenance.
    pub(crate) async fn piece(self) -> Result<Work> {
        let (c, Some(log)) = (self.0, &self.0.node.log) else { return Ok(Work::None) };
        let some = log.claim(COUNTS_PER_CALL);
        if some.is_empty() {
            return Ok(Work::None);
        }
        let scope = c.ep.begin(OpKind::Maintain);
        let pin = c.pin()?;
        // All are of one memory node: without it nothing is done.
        let behind = reached(self.forget_known(&some).await)?;
        let mut work = match &behind {
            Some(behind) if behind.len() < some.len() => Work::Some,
            _ => Work::None,
        };
        for named in behind.unwrap_or_default().into_iter().take(LEAVES_PER_CALL) {
            c.ep.renew_deadline();
            match Box::pin(self.leaf(named)).await {
                Ok(true) => work = Work::Some,
                Ok(false) => {}
                Err(e) if is_away(&e) => {}
                Err(e) => return Err(e),
            }
        }
        pin.end();
        scope.end(OpOutcome::Other);
        Ok(work)
    }

    /// Forgets each leaf with a count at the memory node that covers the records of this node;
    /// returns the others.
    async fn forget_known(self, some: &[Claimed]) -> Result<Vec<&Named>> {
        let (c, Some(log)) = (self.0, &self.0.node.log) else { return Ok(Vec::new()) };
        let mut counts = VerbVec::new();
        let at = |route: &Route| route.leaf.plus(count_at(c, route.capacity) as u64);
        let read = |named: &Named| named.route.map(|route| counts.read(at(&route), 8));
        let reads: Vec<_> = some.iter().map(|claimed| &claimed.named).map(read).collect();
        let mut counts = c.ep.batch(counts).await?;
        let mut others = Vec::new();
        for (Claimed { named, .. }, read) in some.iter().zip(reads) {
            let Named { leaf, generation, newest, .. } = *named;
            let word = read.map(|read| counts.take_sampled(read).word(0));
            let count = word.map_or(0, |word| count_of(leaf, generation, word));
            if count < newest {
                others.push(named);
                continue;
            }
            Mark::LogCutKnown.hit();
            log.written_back((leaf, generation), count);
        }
        Ok(others)
    }

    /// Writes a leaf back, so that no record of this node says anything of it. False: it has to be
    /// tried again.
    async fn leaf(self, named: &Named) -> Result<bool> {
        let (c, Named { leaf, generation, .. }) = (self.0, *named);
        let Some(log) = &c.node.log else { return Ok(false) };
        let done = |count: u32| {
            log.written_back((leaf, generation), count);
            Ok(true)
        };
        let mut route = match named.route {
            Some(route) => route,
            None => match self.found(named).await? {
                Some(route) => route,
                None => return done(u32::MAX),
            },
        };
        let l = match LeafLocks(c).lock(&route).await? {
            Some(l) => l,
            None => match self.found(named).await? {
                None => return done(u32::MAX),
                Some(now) => {
                    route = now;
                    let Some(l) = LeafLocks(c).lock(&route).await? else { return Ok(false) };
                    l
                }
            },
        };
        let Some(image) = Images(c).whole_in(l.at, &route).await? else {
            c.unlock(l).await?;
            return LeafRecovery(c).help_image(&route).await.map(|_| false);
        };
        Mark::LogCut.hit();
        let count = l.table.writes;
        let written = self.write(&l, &image.bytes, count).await;
        let (mut l, ()) = c.under(l, written).await?;
        // Under the lock: no record of this leaf is newer.
        log.written_back((leaf, generation), count);
        l.table.behind = false;
        LeafLocks(c).unlock_with_table(l).await?;
        Ok(true)
    }

    /// The route to a leaf by its header; `None` when the leaf is gone.
    async fn found(self, named: &Named) -> Result<Option<Route>> {
        let c = self.0;
        let h = NodeHeader::read(c, named.leaf).await?;
        let is_there = h.ver.generation == named.generation
            && h.forward.is_null()
            && h.is_leaf(&c.node)
            && h.route(named.leaf).is_imaged();
        if !is_there {
            return Ok(None);
        }
        let route = h.route(named.leaf);
        // The leaf may go meanwhile, and its fence's block with it: then its table is another one.
        match Blocks(c).fence_key_in(&h.hi, Validation::Unvalidated).await {
            Ok(high) => Ok(Some(Route { fence: fence_tag(high.as_deref()), ..route })),
            Err(e) if e.kind() == ErrorKind::Corrupt => Ok(Some(route)),
            Err(e) => Err(e),
        }
    }
}
