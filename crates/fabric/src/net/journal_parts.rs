//! Which journal a pool has, and which part of it a journal node serves.
//!
//! A journal is founded with a pool: its number is the pool's, and each of its directories is
//! marked with it. A later pool over the same directories has the same journal. The directory that
//! registers first says which one that is. A directory without indexes has nothing to lose: it
//! becomes a part of any journal that has nothing either.

use serde::{Deserialize, Serialize};

use super::wire::{JournalDirectory, PoolId, ShardMark};
use crate::error::{Error, Result};

/// The journal of a pool, as far as its nodes have registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalParts {
    shards: u16,
    journal: Option<u64>,
    /// Whether any directory has indexes.
    has_indexes: bool,
    /// The parts that lack writes.
    gaps: u64,
}

impl JournalParts {
    /// Of a pool with so many journal nodes.
    pub(super) fn new(shards: u16) -> Self {
        Self { shards, journal: None, has_indexes: false, gaps: 0 }
    }

    /// What a directory is from now on. `is_free` says why no node may begin to serve a part.
    pub(super) fn enter(
        &mut self,
        directory: JournalDirectory,
        wanted: Option<u16>,
        pool: PoolId,
        is_free: impl Fn(u16) -> Result<()>,
    ) -> Result<ShardMark> {
        let refuse = |what: String| Err(Error::invalid(what));
        let shards = self.shards;
        if shards == 0 {
            return refuse(
                "the pool has no journal nodes: found it with `dmtree memnode --journal N`".into(),
            );
        }
        if let Some(n) = wanted.filter(|n| *n >= shards) {
            return refuse(format!(
                "the pool has no journal node {n}: they are numbered 0 to {}",
                shards - 1
            ));
        }
        if directory.mark.is_none() && directory.has_indexes {
            return refuse(
                "the directory is of a pool in one process, and no part of a journal".into(),
            );
        }
        let mark = match directory.mark {
            Some(mark) if directory.has_indexes => {
                self.check(mark, wanted)?;
                mark
            }
            Some(mark) if self.check(mark, wanted).is_ok() => mark,
            _ if self.has_indexes && directory.replaces => self.replaced(wanted)?,
            _ if self.has_indexes => {
                return refuse(
                    "the pool's journal has indexes, and the directory is no part of it: name the \
                     directory that was founded with the others, or begin a lost one anew with \
                     --replace"
                        .into(),
                );
            }
            _ => {
                let journal = self.journal.unwrap_or(pool.0);
                let shard = wanted.or_else(|| (0..shards).find(|n| is_free(*n).is_ok()));
                let shard = shard.ok_or_else(|| {
                    Error::exists(format!(
                        "all {shards} journal nodes of the pool are there: found it with more"
                    ))
                })?;
                ShardMark { journal, shards, shard, gaps: 0 }
            }
        };
        is_free(mark.shard)?;
        self.gaps |= mark.gaps & !(u64::MAX.checked_shl(shards.into()).unwrap_or(0));
        let mark = ShardMark { gaps: self.gaps, ..mark };
        self.journal = Some(mark.journal);
        self.has_indexes |= directory.has_indexes;
        Ok(mark)
    }

    /// The part of a lost directory: other parts have the indexes, and memory has the pairs.
    fn replaced(&self, wanted: Option<u16>) -> Result<ShardMark> {
        let (Some(shard), Some(journal)) = (wanted, self.journal) else {
            return Err(Error::invalid("--replace needs --index N: which part is begun anew"));
        };
        let shards = self.shards;
        if shards == 1 {
            return Err(Error::invalid(
                "the lost directory was the whole journal: restore a checkpoint into a new pool, or \
                 export the indexes",
            ));
        }
        Ok(ShardMark { journal, shards, shard, gaps: 1 << shard })
    }

    /// Whether a directory is a part of the pool's journal.
    fn check(&self, mark: ShardMark, wanted: Option<u16>) -> Result<()> {
        let ShardMark { journal, shards, shard, .. } = mark;
        if shards != self.shards || shard >= shards {
            return Err(Error::invalid(format!(
                "the directory is a part of a journal of {shards} nodes, and the pool is founded \
                 for {}: found it with `--journal {shards}`",
                self.shards
            )));
        }
        if self.journal.is_some_and(|known| known != journal) {
            return Err(Error::invalid(
                "the directory belongs to another pool than those of the other journal nodes: \
                 start the directories that were founded together",
            ));
        }
        match wanted {
            Some(n) if n != shard => Err(Error::invalid(format!(
                "the directory is that of journal node {shard}, not {n}: leave `--index` out"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(77);

    fn directory(mark: Option<ShardMark>, has_indexes: bool) -> JournalDirectory {
        JournalDirectory { mark, has_indexes, replaces: false }
    }

    fn part(journal: u64, shards: u16, shard: u16) -> Option<ShardMark> {
        Some(ShardMark { journal, shards, shard, gaps: 0 })
    }

    #[test]
    fn new_directories_get_the_parts_that_are_free() {
        let mut parts = JournalParts::new(2);
        let first = parts.enter(directory(None, false), Some(1), POOL, |_| Ok(())).expect("free");
        assert_eq!(Some(first), part(77, 2, 1));
        let taken = |n| if n == 1 { Err(Error::busy("taken")) } else { Ok(()) };
        let second = parts.enter(directory(None, false), None, POOL, taken).expect("one is free");
        assert_eq!(Some(second), part(77, 2, 0));
        let full = |_| Err(Error::busy("taken"));
        assert!(parts.enter(directory(None, false), None, POOL, full).is_err());
        assert!(parts.enter(directory(None, false), Some(2), POOL, |_| Ok(())).is_err());
    }

    #[test]
    fn directories_with_indexes_keep_their_parts_and_others_are_refused() {
        let mut parts = JournalParts::new(2);
        let free = |_| Ok(());
        let known = parts.enter(directory(part(5, 2, 1), true), None, POOL, free);
        assert_eq!(known.ok(), part(5, 2, 1));
        let refused = [
            (directory(part(6, 2, 0), true), None, "another pool"),
            (directory(part(5, 3, 0), true), None, "--journal 3"),
            (directory(part(5, 2, 0), true), Some(1), "leave `--index` out"),
            (directory(None, false), None, "no part of it"),
            (directory(part(6, 2, 0), false), None, "no part of it"),
        ];
        for (directory, wanted, why) in refused {
            let e = parts.enter(directory, wanted, POOL, free).expect_err("no part");
            assert!(e.to_string().contains(why), "{directory:?}: {e}");
        }
        let taken = |_| Err(Error::busy("another process serves it"));
        let e = parts.enter(directory(part(5, 2, 0), true), None, POOL, taken);
        assert!(e.is_err(), "two nodes for one part");
        let other = parts.enter(directory(part(5, 2, 0), false), None, POOL, free);
        assert_eq!(other.ok(), part(5, 2, 0), "a part without indexes");
    }

    /// A founding that was killed has marked some directories, and nothing was written.
    #[test]
    fn what_an_interrupted_founding_has_marked_is_marked_anew() {
        for first in [part(5, 2, 1), part(5, 4, 3), None] {
            let mut parts = JournalParts::new(2);
            let all = [directory(first, false), directory(part(6, 2, 0), false)];
            let marks = all.map(|d| {
                let taken = std::cell::Cell::new(u16::MAX);
                let mark = parts.enter(d, None, POOL, |n| match taken.get() == n {
                    true => Err(Error::busy("taken")),
                    false => Ok(()),
                });
                mark.expect("nothing is lost")
            });
            assert_eq!(marks[0].journal, marks[1].journal, "{marks:?}");
            assert!(marks.iter().all(|m| m.shards == 2));
        }
    }

    #[test]
    fn a_pool_without_journal_nodes_has_none() {
        let entered = JournalParts::new(0).enter(directory(None, false), None, POOL, |_| Ok(()));
        assert!(entered.expect_err("none").to_string().contains("--journal"));
    }
}
