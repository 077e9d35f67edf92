//! The tables of a shard by level, and which of them to merge next.
//!
//! Level 0 has whole flushes, newest first: their intervals of sequence numbers are disjoint. The
//! other levels ascend, and no user key is in two tables of a level. Each level has newer versions
//! of a key than every deeper one.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::key::Seq;
use crate::options::Options;
use crate::table::Table;

/// Levels of a tree.
pub(crate) const LEVELS: usize = 6;
/// Bytes of a level beside those of the level above.
const TIMES: u64 = 10;

/// The tables of a shard at some instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    pub(crate) levels: [Vec<Arc<Table>>; LEVELS],
}

/// A compaction: tables of a level go to the next one, with those that they overlap there.
#[derive(Debug)]
pub(crate) struct Pick {
    pub(crate) level: usize,
    pub(crate) upper: Vec<Arc<Table>>,
    pub(crate) lower: Vec<Arc<Table>>,
    /// No deeper level has any of their keys.
    pub(crate) bottom: bool,
}

impl Pick {
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.upper.iter().chain(&self.lower)
    }

    /// Metadata alone moves: one table that overlaps nothing.
    pub(crate) fn is_move(&self) -> bool {
        self.upper.len() == 1 && self.lower.is_empty()
    }

    /// Sorted runs, newest first.
    pub(crate) fn runs(&self) -> Vec<Vec<Arc<Table>>> {
        let upper: Vec<_> = match self.level {
            0 => self.upper.iter().map(|table| vec![table.clone()]).collect(),
            _ => vec![self.upper.clone()],
        };
        let lower = (!self.lower.is_empty()).then(|| self.lower.clone());
        upper.into_iter().chain(lower).collect()
    }
}

fn bytes(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|table| table.meta.data_bytes()).sum()
}

/// The smallest and the largest key of some tables.
fn hull(tables: &[Arc<Table>]) -> Option<(&[u8], &[u8])> {
    let smallest = tables.iter().map(|table| table.smallest()).min()?;
    let largest = tables.iter().map(|table| table.largest()).max()?;
    Some((smallest, largest))
}

impl Version {
    /// The tables that may have a key, from the newest to the oldest.
    pub(crate) fn candidates(&self, user: &[u8]) -> impl Iterator<Item = &Arc<Table>> {
        let flushed = self.levels[0].iter().filter(move |table| table.covers(user));
        let deeper = self.levels[1..].iter().filter_map(move |tables| {
            let at = tables.partition_point(|table| table.largest() < user);
            tables.get(at).filter(|table| table.covers(user))
        });
        flushed.chain(deeper)
    }

    /// Adds a table to a level.
    pub(crate) fn add(&mut self, level: usize, table: Arc<Table>, by_number: bool) {
        let tables = &mut self.levels[level];
        let order = |table: &Table| if by_number { table.number } else { table.meta.numbers.1 };
        let at = match level {
            0 => tables.partition_point(|other| order(other) > order(&table)),
            _ => tables.partition_point(|other| other.smallest() < table.smallest()),
        };
        tables.insert(at, table);
    }

    /// Removes tables from a level.
    pub(crate) fn remove(&mut self, level: usize, tables: &[Arc<Table>]) {
        self.levels[level].retain(|table| !tables.iter().any(|gone| Arc::ptr_eq(gone, table)));
    }

    /// The highest sequence number in its tables.
    pub(crate) fn last(&self) -> Seq {
        self.tables().map(|table| table.meta.numbers.1).max().unwrap_or(0)
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    /// How many bytes a level shall have at most.
    fn target(o: &Options, level: usize) -> u64 {
        let times = TIMES.saturating_pow(level.saturating_sub(1) as u32);
        o.level1_bytes.saturating_mul(times)
    }

    /// How urgent a compaction of a level is, in thousandths of its target; tables in progress do
    /// not count.
    fn score(&self, o: &Options, level: usize, busy: &BTreeSet<u64>) -> u64 {
        let free = self.levels[level].iter().filter(|table| !busy.contains(&table.number));
        match level {
            0 => free.count() as u64 * 1000,
            _ => {
                let bytes: u64 = free.map(|table| table.meta.data_bytes()).sum();
                bytes.saturating_mul(1000) / Self::target(o, level).max(1)
            }
        }
    }

    /// The level for a load of so many bytes: the first one that has room for it.
    pub(crate) fn level_for(o: &Options, bytes: u64) -> usize {
        (1..LEVELS - 1).find(|level| bytes <= Self::target(o, *level)).unwrap_or(LEVELS - 1)
    }

    /// What to merge next: the level that is most in need, unless its tables are in use. `from`
    /// says where each level goes on.
    pub(crate) fn pick(
        &self,
        o: &Options,
        busy: &BTreeSet<u64>,
        from: &[Vec<u8>; LEVELS],
    ) -> Option<Pick> {
        let mut scores: Vec<_> = (0..LEVELS - 1).map(|l| (self.score(o, l, busy), l)).collect();
        scores.sort_by_key(|(score, level)| (std::cmp::Reverse(*score), *level));
        for (_, level) in scores.into_iter().filter(|(score, _)| *score >= 1000) {
            let picked = match level {
                0 => self.pick_flushed(o, busy),
                _ => self.pick_at(o, level, busy, &from[level]),
            };
            // Level 0 that waits for level 1 is not held up by more work there.
            if picked.is_some() || level == 0 {
                return picked;
            }
        }
        None
    }

    fn pick_flushed(&self, o: &Options, busy: &BTreeSet<u64>) -> Option<Pick> {
        let upper = self.levels[0].clone();
        match upper.iter().any(|table| busy.contains(&table.number)) {
            true => None,
            false => self.with_lower(o, 0, upper, busy),
        }
    }

    fn pick_at(
        &self,
        o: &Options,
        level: usize,
        busy: &BTreeSet<u64>,
        from: &[u8],
    ) -> Option<Pick> {
        let tables = &self.levels[level];
        let first = tables.partition_point(|table| table.smallest() <= from);
        let circle = (0..tables.len()).map(|i| &tables[(first + i) % tables.len()]);
        let free = circle.filter(|table| !busy.contains(&table.number));
        free.into_iter().find_map(|table| self.with_lower(o, level, vec![table.clone()], busy))
    }

    fn with_lower(
        &self,
        o: &Options,
        level: usize,
        upper: Vec<Arc<Table>>,
        busy: &BTreeSet<u64>,
    ) -> Option<Pick> {
        let (smallest, largest) = hull(&upper)?;
        let meets = |table: &&Arc<Table>| table.meets(smallest, largest);
        let lower: Vec<_> = self.levels[level + 1].iter().filter(meets).cloned().collect();
        if lower.iter().any(|table| busy.contains(&table.number)) {
            return None;
        }
        let all = [&upper[..], &lower[..]].concat();
        let (smallest, largest) = hull(&all)?;
        let deeper = self.levels[level + 2..].iter().flatten();
        let bottom = !o.defects.keeps_deletions
            && !deeper.into_iter().any(|table| table.meets(smallest, largest));
        Some(Pick { level, upper, lower, bottom })
    }

    /// The lower borders of the parts of a compaction, but for the first: where tables of the lower
    /// level begin, or, where there are too few, the flushed ones.
    pub(crate) fn borders(pick: &Pick, parts: u32) -> Vec<Vec<u8>> {
        let is_worth_it = pick.level == 0 && parts > 1 && pick.upper.len() + pick.lower.len() > 2;
        if !is_worth_it {
            return Vec::new();
        }
        let mut keys: Vec<&[u8]> = pick.lower.iter().map(|table| table.smallest()).collect();
        if keys.len() < 2 {
            keys = pick.upper.iter().map(|table| table.smallest()).collect();
        }
        keys.sort_unstable();
        keys.dedup();
        let keys = keys.get(1..).unwrap_or_default();
        let step = keys.len().div_ceil(parts as usize - 1).max(1);
        keys.iter().step_by(step).map(|key| key.to_vec()).collect()
    }

    /// Bytes of the data of each level.
    pub(crate) fn level_bytes(&self) -> [u64; LEVELS] {
        std::array::from_fn(|level| bytes(&self.levels[level]))
    }
}
