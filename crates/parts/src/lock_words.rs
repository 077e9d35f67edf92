//! Lock words on memory nodes: a table of them per node, in on-chip memory where the fabric has any
//! and no other index took it, else in main memory ("Sherman", SIGMOD'22, section 4.3). A page's
//! lock is on the page's memory node; pages may share one.
//!
//! The word behind the index's root word names the list of tables, or is 0: then they are on chip.

use std::sync::{Arc, OnceLock};

use dmtree_fabric::{Backoff, Endpoint, Error, GlobalAddr, NodeId, Result, Role, golden_hash};
use dmtree_pool::PoolNode;

use crate::contract::Root;
use crate::handover::LocalLocks;
use crate::hash::check64;
use crate::published::{Base, must};

const SEED: u64 = 0x6c_6f_63_6b;
/// Most clients of a compute node that hold a lock one after the other by hand-over, as published.
const LONGEST_CHAIN: u32 = 8;

/// Pages begin in lines of their own.
const LINE: u64 = 64;
/// Words that are read together.
const READ_TOGETHER: u64 = 512;
/// Attempts at a lock that follow each other without a pause.
const SPINS: u32 = 64;
/// Pauses after that, ns.
const LONG_PAUSE_NS: u64 = 8_000;

/// The layout that an index requests.
#[derive(Clone, Copy, Debug)]
pub struct LockTables {
    /// Words per memory node, where they are in main memory.
    pub words: u32,
    /// On chip, if that can be.
    pub on_chip: bool,
    /// The use of their chunks in the pool.
    pub kind: u8,
}

/// Where an index's lock words are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWords {
    /// First word of each memory node's table.
    bases: Vec<GlobalAddr>,
    /// Words of each.
    words: u64,
}

/// The lock tables of a published design as a compute node knows them, with local locks in front of
/// the remote ones.
#[derive(Debug)]
pub struct Locks {
    tables: LockTables,
    /// Empty until the addresses of the tables are read.
    found: OnceLock<(LockWords, Arc<LocalLocks>)>,
}

impl Locks {
    /// Locks in such tables.
    pub fn new(tables: LockTables) -> Self {
        Self { tables, found: OnceLock::new() }
    }

    /// Makes the tables of a new index.
    ///
    /// # Errors
    /// As [`LockTables::format`].
    pub async fn format(&self, ep: &Endpoint, node: &Base) -> Result<()> {
        self.tables.format(ep, &node.pool, node.root).await
    }

    /// The words and the local locks; the first call READs where the tables are.
    ///
    /// # Errors
    /// As [`LockTables::find`].
    pub async fn find(&self, ep: &Endpoint, node: &Base) -> Result<&(LockWords, Arc<LocalLocks>)> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let words = self.tables.find(ep, &node.pool, node.root).await?;
        let local = LocalLocks::new(words.count(), LONGEST_CHAIN);
        Ok(self.found.get_or_init(|| (words, local)))
    }

    /// For a walk: no word is held.
    ///
    /// # Errors
    /// As [`LockWords::check_free`].
    pub async fn check_free(&self, ep: &Endpoint, node: &Base) -> Result<()> {
        self.find(ep, node).await?.0.check_free(ep).await
    }
}

/// Attempts at a remote lock. As published there is no pause between two attempts. Here a client
/// pauses after some, for a few round trips.
#[derive(Debug)]
pub struct Attempts<'e> {
    at_once: Backoff<'e>,
    paused: Backoff<'e>,
}

impl<'e> Attempts<'e> {
    /// At the lock `what`, in the word `at`.
    pub fn new(ep: &'e Endpoint, what: &'static str, at: GlobalAddr) -> Self {
        let at_once = ep.backoff_within(what, at, 0);
        Self { at_once, paused: ep.backoff_within(what, at, LONG_PAUSE_NS) }
    }

    /// Waits until the next attempt is due.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn again(&mut self) -> Result<()> {
        match self.at_once.steps() < SPINS {
            true => self.at_once.step().await,
            false => self.paused.step().await,
        }
    }
}

/// A lock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord {
    /// The word.
    pub at: GlobalAddr,
    /// Its number among all of the index.
    pub number: usize,
}

impl LockTables {
    /// Makes the tables of a new index.
    ///
    /// # Errors
    /// `Full` when a memory node has no room for them; those of the fabric.
    pub async fn format(&self, ep: &Endpoint, pool: &PoolNode, root: Root) -> Result<()> {
        if self.on_chip && pool.catalog().claim_chips(ep, root.index).await? {
            return Ok(());
        }
        let count = pool.memory_nodes();
        let owner = (root.index, self.kind);
        let mut bases = Vec::with_capacity(count);
        for m in 0..count {
            let node = NodeId::memory(m as u16);
            bases.push(pool.supply().alloc_bump_on(ep, owner, self.words * 8, node).await?);
        }
        let list = pool
            .supply()
            .alloc_bump(ep, &pool.supply().bump(root.index, self.kind), count as u32 * 8)
            .await?;
        let mut image = ep.buf(count as u32 * 8).await?;
        for (m, base) in bases.iter().enumerate() {
            image[m * 8..m * 8 + 8].copy_from_slice(&base.bits().to_le_bytes());
        }
        ep.write(list, image).await?;
        ep.write_word(root.aux(), list.bits()).await
    }

    /// Finds the tables of an index.
    ///
    /// # Errors
    /// `Corrupt` when there are none; those of the fabric.
    pub async fn find(&self, ep: &Endpoint, pool: &PoolNode, root: Root) -> Result<LockWords> {
        let count = pool.memory_nodes();
        let list = ep.read(root.aux(), 8).await?.word(0);
        if list == 0 {
            let on_chip = |m: usize| GlobalAddr::on_chip(NodeId::memory(m as u16), 0);
            let words = u64::from(ep.caps().on_chip_bytes) / 8;
            if words == 0 {
                return Err(Error::corrupt("the locks are on chip, and the fabric has none there"));
            }
            return Ok(LockWords { bases: (0..count).map(on_chip).collect(), words });
        }
        let list = GlobalAddr::from_bits(list);
        let bytes = ep.read(list, count as u32 * 8).await?;
        let bases: Vec<_> = (0..count).map(|m| GlobalAddr::from_bits(bytes.word(m))).collect();
        if bases.iter().enumerate().any(|(m, at)| at.node().index() != m || at.is_null()) {
            return Err(Error::corrupt(format!("{list} is no list of lock tables")));
        }
        Ok(LockWords { bases, words: self.words.into() })
    }
}

impl LockWords {
    /// Tables at these places, of so many words each: one per memory node.
    pub fn new(bases: Vec<GlobalAddr>, words: u64) -> Self {
        Self { bases, words: words.max(1) }
    }

    /// How many there are in all.
    pub fn count(&self) -> usize {
        self.bases.len() * self.words as usize
    }

    /// Word number `number`.
    pub fn numbered(&self, number: usize) -> Option<GlobalAddr> {
        let (m, i) = (number as u64 / self.words, number as u64 % self.words);
        self.bases.get(m as usize).map(|base| base.plus(8 * i))
    }

    /// The words that are not 0, with their contents.
    pub async fn held(&self, ep: &Endpoint) -> Result<Vec<(GlobalAddr, u64)>> {
        let mut held = Vec::new();
        for m in 0..self.bases.len() {
            held.append(&mut self.held_on(ep, m).await?);
        }
        Ok(held)
    }

    /// For a walk: no word is held.
    ///
    /// # Errors
    /// `Corrupt`, naming a held word; those of the fabric.
    pub async fn check_free(&self, ep: &Endpoint) -> Result<()> {
        self.held(ep).await?.first().map_or(Ok(()), |(word, _)| must(false, "locked", *word))
    }

    /// How many memory nodes there are.
    pub fn nodes(&self) -> usize {
        self.bases.len()
    }

    /// The same of one memory node.
    pub async fn held_on(&self, ep: &Endpoint, m: usize) -> Result<Vec<(GlobalAddr, u64)>> {
        let Some(base) = self.bases.get(m) else { return Ok(Vec::new()) };
        let mut held = Vec::new();
        for first in (0..self.words).step_by(READ_TOGETHER as usize) {
            ep.renew_deadline();
            let count = READ_TOGETHER.min(self.words - first);
            let words = ep.read(base.plus(8 * first), count as u32 * 8).await?;
            let of = |i: u64| (base.plus(8 * (first + i)), words.word(i as usize));
            held.extend((0..count).map(of).filter(|(_, word)| *word != 0));
        }
        Ok(held)
    }

    /// The lock of a page by a hash of its address.
    ///
    /// # Errors
    /// `Corrupt` for an address that no page has.
    pub fn by_hash(&self, page: GlobalAddr) -> Result<LockWord> {
        self.word(page, check64(&page.bits().to_le_bytes(), SEED) % self.words)
    }

    /// The lock of a page by the page's place: word and [`LockWords::sharer_of`] tell the page.
    pub fn by_place(&self, page: GlobalAddr) -> Result<LockWord> {
        let line = page.offset() / LINE;
        self.word(page, (line % self.words + self.shift(self.sharer_of(page))) % self.words)
    }

    /// The number of a page among the pages that share its word.
    pub fn sharer_of(&self, page: GlobalAddr) -> u64 {
        page.offset() / LINE / self.words
    }

    /// The page of a word and a sharer number. A word that is not of these tables gives an address
    /// that is no page's.
    pub fn page_of(&self, word: GlobalAddr, sharer: u64) -> Option<GlobalAddr> {
        let base = self.bases.get(word.node().index())?;
        let i = word.offset().checked_sub(base.offset())? / 8;
        let line = (i % self.words + self.words - self.shift(sharer)) % self.words;
        let line = sharer.checked_mul(self.words)?.checked_add(line)?;
        (i < self.words && line < GlobalAddr::MAX_OFFSET / LINE)
            .then(|| GlobalAddr::new(word.node(), line * LINE))
    }

    /// Pages of one place in different stretches of memory have different locks.
    fn shift(&self, sharer: u64) -> u64 {
        (golden_hash(sharer) >> 32) % self.words
    }

    fn word(&self, page: GlobalAddr, i: u64) -> Result<LockWord> {
        let m = page.node().index();
        let is_page = page.node().role() == Role::Memory && !page.is_null();
        let base = self.bases.get(m).filter(|_| is_page);
        let base = base.ok_or_else(|| Error::corrupt(format!("{page} cannot be a page")))?;
        Ok(LockWord { at: base.plus(8 * i), number: m * self.words as usize + i as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_and_a_sharer_number_tell_the_page(words in 1u64..40_000, line in 1u64..1 << 30, m in 0u16..2, chip: bool) {
            let base = |m| match chip {
                true => GlobalAddr::on_chip(NodeId::memory(m), 0),
                false => GlobalAddr::new(NodeId::memory(m), 4096),
            };
            let w = LockWords::new(vec![base(0), base(1)], words);
            let page = GlobalAddr::new(NodeId::memory(m), line * LINE);
            let lock = w.by_place(page).expect("a page");
            prop_assert!(lock.number < w.count());
            prop_assert_eq!(w.page_of(lock.at, w.sharer_of(page)), Some(page));
        }
    }

    /// Leaves lie at equal distances.
    #[test]
    fn neighbours_have_different_locks() {
        let w = LockWords::new(vec![GlobalAddr::new(NodeId::memory(0), 4096)], 1024);
        let mut uses = vec![0; 1024];
        for i in 0..10_240u64 {
            let page = GlobalAddr::new(NodeId::memory(0), (1 << 20) + i * 1216);
            uses[w.by_place(page).expect("a page").number] += 1;
        }
        assert!(uses.iter().all(|n| (1..=40).contains(n)), "{uses:?}");
    }
}
