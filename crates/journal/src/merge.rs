//! What all parts of a journal had at one moment, read as one (`service.rs` says why it is one).

use std::sync::Arc;

use dmtree_fabric::{Error, Result};

use crate::protocol::{Answer, Ask, Pages};
use crate::sender::{Sender, unexpected};
use crate::{Cut, IndexNumber, KnownIndex, Pair, Pairs};

/// Cuts of all parts. A later one of the same sender ends it; one index is read at a time.
#[derive(Debug)]
pub(crate) struct ShardedCut {
    shards: Vec<Arc<Sender>>,
    number: u64,
    indexes: Vec<KnownIndex>,
    is_taken: bool,
}

impl ShardedCut {
    pub(crate) fn take(shards: &[Arc<Sender>]) -> Result<Self> {
        let shards = shards.to_vec();
        let mut cut = Self { shards, number: 0, indexes: Vec::new(), is_taken: false };
        let held = cut.shards.iter().map(|shard| match shard.call(Ask::Cut)? {
            Answer::Cut(number) => Ok(number),
            other => Err(unexpected(&other)),
        });
        // In the order of the parts, so that two that take cuts do not wait for each other.
        let held: Result<Vec<u64>> = held.collect();
        // Of all, also when one has failed: what is not held is not released.
        let released = cut.shards.iter().map(|shard| match shard.call(Ask::Release)? {
            Answer::Released(has_lasted) => Ok(has_lasted),
            other => Err(unexpected(&other)),
        });
        let released: Vec<Result<bool>> = released.collect();
        cut.number = held?.into_iter().max().unwrap_or(0);
        for (shard, has_lasted) in cut.shards.iter().zip(released) {
            if !has_lasted? {
                return Err(Error::timed_out(format!(
                    "{shard:?}: the parts of the journal did not stand still long enough for a \
                     cut: try again"
                )));
            }
        }
        cut.indexes = list(&cut.shards[0], Ask::CutIndexes)?;
        cut.is_taken = true;
        Ok(cut)
    }
}

impl Drop for ShardedCut {
    fn drop(&mut self) {
        for shard in self.shards.iter().filter(|_| self.is_taken) {
            // A cut that stays is dropped when it has not been read for long.
            let _ = shard.call(Ask::EndCut);
        }
    }
}

/// A list of indexes, which may need several answers.
pub(crate) fn list(shard: &Sender, ask: impl Fn(u32) -> Ask<'static>) -> Result<Vec<KnownIndex>> {
    let mut indexes = Vec::new();
    loop {
        match shard.call(ask(indexes.len() as u32))? {
            Answer::Indexes(rows) if rows.is_empty() => return Ok(indexes),
            Answer::Indexes(rows) => indexes.extend(rows.into_iter().map(KnownIndex::from)),
            other => return Err(unexpected(&other)),
        }
    }
}

impl Cut for ShardedCut {
    fn number(&self) -> u64 {
        self.number
    }

    fn indexes(&self) -> &[KnownIndex] {
        &self.indexes
    }

    fn pairs(&self, index: IndexNumber) -> Result<Pairs> {
        let parts = self.shards.iter().map(|shard| Part::begin(shard.clone(), index));
        Ok(Box::new(Merged { parts: parts.collect::<Result<_>>()?, has_failed: false }))
    }
}

/// The pairs of one part.
struct Part {
    shard: Arc<Sender>,
    pages: Pages,
    /// The next pair; `None` at the end.
    next: Option<Pair>,
}

impl Part {
    fn begin(shard: Arc<Sender>, index: IndexNumber) -> Result<Self> {
        shard.call(Ask::Read(index.0))?;
        let mut part = Self { shard, pages: Pages::default(), next: None };
        part.advance()?;
        Ok(part)
    }

    fn advance(&mut self) -> Result<()> {
        loop {
            self.next = self.pages.take();
            if self.next.is_some() {
                return Ok(());
            }
            match self.shard.call(Ask::Page)? {
                Answer::Page(page) if page.is_empty() && self.pages.is_empty() => return Ok(()),
                Answer::Page(page) if !page.is_empty() => self.pages.add(&page),
                other => return Err(unexpected(&other)),
            }
        }
    }
}

/// The pairs of all parts, in key order; no key is in two of them.
struct Merged {
    parts: Vec<Part>,
    has_failed: bool,
}

impl Iterator for Merged {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let first = self.parts.iter_mut().filter(|part| part.next.is_some());
        let first = first.min_by(|a, b| key(a).cmp(&key(b)))?;
        let pair = first.next.take()?;
        match first.advance() {
            Ok(()) => Some(Ok(pair)),
            Err(e) => {
                self.has_failed = true;
                Some(Err(e))
            }
        }
    }
}

fn key(part: &Part) -> Option<&[u8]> {
    part.next.as_ref().map(|(key, _)| key.as_slice())
}
