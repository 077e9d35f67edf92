//! Locks: a word at the end of every node, and in leaves a vacancy word before it.
//!
//! Order: CAS lock word: 0 -> tag, repeated until it succeeds. An insert then needs the vacancy
//! word: a READ after the CAS (`apart`), or one in its chain (`chained`). The release is a WRITE of
//! 0 in one chain behind the WRITE of the data; where the data ends beside the lock it is a part of
//! that WRITE (`carried_unlock`).
//!
//! Invariants: node and lock are on one memory node, so a chain executes in order. A client holds
//! at most one lock, so lock waits have no cycle. A release by WRITE needs `cas_fail_is_readonly`:
//! otherwise a failing CAS of another client can undo it. A carried release needs
//! `write_ascending`: otherwise the lock can be free before the data has landed.
//!
//! A crash of the holder leaves its tag in the word for ever. As published no client recovers an
//! abandoned lock: later clients time out.

use dmtree_fabric::verb::{VerbVec, cas, read, write, write_word};
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Step};
use dmtree_parts::blink::{Descent, Format, Page, PageTree, Pages, Way};
use dmtree_parts::bytes::put_u64;
use dmtree_parts::held::Unlock;
use dmtree_parts::lock_words::Attempts;

use crate::format::{Geometry, Leaf, Part};
use crate::index::Chime;
use crate::options::Vacancy;

/// A held lock: its word.
#[derive(Clone, Copy)]
pub struct Held(GlobalAddr);

impl PageTree for Chime {
    type Format = Geometry;
    type Held = Held;

    fn format(&self) -> &Geometry {
        &self.node.g
    }

    fn pages(&self) -> &Pages {
        &self.node.pages
    }

    fn way(&self) -> &Way {
        &self.way
    }

    async fn read_page(&self, at: GlobalAddr) -> Result<Page> {
        self.read_page_once(at).await
    }

    /// Of inner nodes.
    async fn lock(&self, page: GlobalAddr) -> Result<Held> {
        let word = page.plus(self.node.g.inner_lock_at());
        self.take_lock(word).await?;
        Ok(Held(word))
    }

    /// Of inner nodes, written whole, or a record by itself.
    async fn write_back(&self, held: Held, at: GlobalAddr, image: Buf, _: bool) -> Result<()> {
        self.ep.step(Step::Structure);
        let is_whole = image.len() == self.node.g.inner_bytes();
        match self.node.o.carried_unlock && is_whole {
            true => _ = self.ep.write(at, image).await?,
            false => _ = self.ep.chain((write(at, image), write_word(held.0, 0))).await?,
        }
        Ok(())
    }
}

impl Unlock<Held> for Chime {
    async fn unlock(&self, held: Held) -> Result<()> {
        self.ep.step(Step::Lock);
        self.ep.write_word(held.0, 0).await
    }
}

/// Locks of leaves, and of what they guard.
pub(crate) struct Locks<'c>(pub(crate) &'c Chime);

impl Locks<'_> {
    /// Locks a leaf for a writer that does not insert.
    pub(crate) async fn lock_leaf(&self, leaf: GlobalAddr) -> Result<Held> {
        let word = leaf.plus(self.0.node.g.leaf_lock_at());
        self.0.take_lock(word).await?;
        Ok(Held(word))
    }

    /// Locks a leaf for an insert. Returns the vacancy word; without one every slot may be full.
    pub(crate) async fn lock_for_insert(&self, leaf: GlobalAddr) -> Result<(Held, u64)> {
        let lock = leaf.plus(self.0.node.g.leaf_lock_at());
        let word = leaf.plus(self.0.node.g.words_at());
        match self.0.node.o.vacancy {
            Vacancy::None => Ok((self.lock_leaf(leaf).await?, u64::MAX)),
            Vacancy::Apart => {
                let held = self.lock_leaf(leaf).await?;
                let sampled = self.0.ep.read(word, 8).await;
                self.0.under(held, sampled.map(|s| s.word(0))).await
            }
            Vacancy::Chained => {
                let mut attempts = Attempts::new(&self.0.ep, "remote lock", lock);
                loop {
                    self.0.ep.step(Step::Lock);
                    let both = (cas(lock, 0, self.0.tag), read(word, 8));
                    let (was, sampled) = self.0.ep.chain(both).await?;
                    if was == 0 {
                        return Ok((Held(lock), sampled.word(0)));
                    }
                    self.0.retried.set(true);
                    attempts.again().await?;
                }
            }
        }
    }

    /// WRITEs parts of a leaf, and the vacancy word if there is a new one, and releases the lock:
    /// one doorbell. The part with the last slot must come last.
    pub(crate) async fn release(
        &self,
        held: Held,
        at: GlobalAddr,
        leaf: &Leaf<'_>,
        parts: &[Part],
        word: Option<u64>,
    ) -> Result<()> {
        let (g, o) = (&self.0.node.g, &self.0.node.o);
        let ends = parts.last().is_some_and(|p| p.end == g.leaf.bytes());
        let knows = word.is_some() || !g.has_vacancy || !o.known_words;
        let carried = o.carried_unlock && ends && knows;
        // As published a WRITE that releases the lock has a vacancy word in any case: whatever the
        // client's buffer has there.
        let new = word.unwrap_or(self.0.last_word.get());
        let mut verbs = VerbVec::new();
        for (n, part) in parts.iter().enumerate() {
            let raw = g.leaf.written(part.clone());
            let is_last = carried && n + 1 == parts.len();
            let end = if is_last { g.leaf_lock_at() as usize + 8 } else { raw.end };
            let mut image = self.0.blank(end - raw.start).await?;
            g.leaf.encode(part.clone(), &leaf.bytes, &mut image);
            if is_last && g.has_vacancy {
                put_u64(&mut image, g.words_at() as usize - raw.start, new);
            }
            if n > 0 {
                verbs.then();
            }
            verbs.write(at.plus(raw.start as u64), image);
        }
        let words_at = at.plus(g.words_at());
        match word.filter(|_| g.has_vacancy) {
            _ if carried => {}
            None => _ = verbs.then().write_word(held.0, 0),
            Some(word) if o.carried_unlock => {
                let mut both = self.0.blank(16).await?;
                put_u64(&mut both, 0, word);
                verbs.then().write(words_at, both);
            }
            Some(word) => {
                verbs.then().write_word(words_at, word);
                verbs.then().write_word(held.0, 0);
            }
        }
        word.iter().for_each(|word| self.0.last_word.set(*word));
        self.0.ep.step(Step::Entry);
        self.0.ep.batch(verbs).await.map(drop).map_err(Error::effect_unknown)
    }
}
