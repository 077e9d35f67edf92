//! Locks: a lock table per memory node, and local locks of a compute node in front of it.
//!
//! Order: the local lock first (a FIFO queue per remote word), where a predecessor may hand the
//! remote lock over. Otherwise CAS word: 0 -> tag, repeated until it succeeds. The release is WRITE
//! word 0 in one chain with the WRITE of the page (`combine`), or FAA word by -tag after it (FG),
//! or a local hand-over, at most 8 in a row. The lock of an unchanged page is released by a WRITE
//! that is not awaited (`combine`).
//!
//! Invariants: a page's lock is on the page's memory node, so the WRITE of the page and the release
//! go to one node, and a chain executes them in order. Pages that share a word share the lock. A
//! client holds at most one lock, so lock waits have no cycle. A new holder READs the page, also
//! after a hand-over. A release by WRITE needs `cas_fail_is_readonly`: otherwise a failing CAS of
//! another client can undo it.
//!
//! A crash of the holder leaves its tag in the word for ever. As published no client recovers an
//! abandoned lock: later clients time out.

use dmtree_fabric::verb::{write as write_verb, write_word};
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::blink::{Descent, Page, PageTree, Pages, Way};
use dmtree_parts::handover::LocalGuard;
use dmtree_parts::held::Unlock;
use dmtree_parts::lock_words::LockWord;

use crate::format::Geometry;
use crate::index::Sherman;

/// A held lock.
pub struct Held {
    word: GlobalAddr,
    guard: Option<LocalGuard>,
}

impl PageTree for Sherman {
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
        if !self.node.o.locked_reads {
            return self.read_page_once(at).await;
        }
        let held = self.lock(at).await?;
        let (held, page) = self.under(held, self.read_page_once(at).await).await?;
        self.unlock(held).await.map(|()| page)
    }

    async fn lock(&self, page: GlobalAddr) -> Result<Held> {
        let (words, local) = self.node.locks.find(&self.ep, &self.node).await?;
        let LockWord { at: word, number } = words.by_hash(page)?;
        let guard = match self.node.o.hierarchical {
            false => None,
            true => {
                let guard = local.lock(&self.ep, number).await?;
                // A client that has waited checks the local lock again when its thread comes to it.
                // The lock stalls meanwhile.
                self.ep.stage_cost(Stage::LocalQueue, 1);
                // As published every thread polls the ticket of the lock that its clients wait for.
                self.ep.stage_cost(Stage::PolledLine, guard.threads_waiting() as u32);
                self.ep.point().await;
                if guard.is_handed {
                    return Ok(Held { word, guard: Some(guard) });
                }
                Some(guard)
            }
        };
        self.take_lock(word).await?;
        Ok(Held { word, guard })
    }

    /// Hands the lock over, or releases it. As published (`lazy_splits`), a split does not await
    /// this.
    async fn write_back(&self, held: Held, at: GlobalAddr, image: Buf, split: bool) -> Result<()> {
        let Held { word, guard } = held;
        self.ep.step(Step::Entry);
        if !self.node.o.combine {
            self.ep.write(at, image).await?;
            self.ep.step(Step::Lock);
            self.ep.faa(word, self.tag.wrapping_neg()).await?;
            return Ok(());
        }
        let guard = match guard {
            Some(guard) if guard.may_hand_over() => {
                self.ep.write(at, image).await?;
                let Some(guard) = guard.hand_over() else { return Ok(()) };
                self.ep.detach(write_word(word, 0), None);
                guard.leave();
                return Ok(());
            }
            guard => guard,
        };
        let both = (write_verb(at, image), write_word(word, 0));
        if split && self.node.o.lazy_splits {
            self.ep.detach(both, None);
        } else {
            self.ep.chain(both).await?;
        }
        if let Some(guard) = guard {
            guard.leave();
        }
        Ok(())
    }
}

impl Unlock<Held> for Sherman {
    async fn unlock(&self, held: Held) -> Result<()> {
        let Held { word, guard } = held;
        let guard = match guard.map(LocalGuard::hand_over_if_awaited) {
            Some(None) => return Ok(()),
            back => back.flatten(),
        };
        self.ep.step(Step::Lock);
        if self.node.o.combine {
            self.ep.detach(write_word(word, 0), None);
        } else {
            self.ep.faa(word, self.tag.wrapping_neg()).await?;
        }
        if let Some(guard) = guard {
            guard.leave();
        }
        Ok(())
    }

    /// As published, no client recovers a lock: it is released whatever has failed.
    async fn fail<T>(&self, held: Held, e: Error) -> Result<T> {
        self.unlock(held).await?;
        Err(e)
    }
}
