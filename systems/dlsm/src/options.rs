//! Creation options: the shape of the tree, the techniques, and what is left as published.

use dmtree_fabric::{Error, MAX_BUF_BYTES, Result};
use dmtree_parts::published::check_range;
use serde::{Deserialize, Serialize};

use crate::format::Format;

/// Where tables are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merging {
    /// By jobs of the memory node that has them.
    Near,
    /// By workers of the owner, over READs and WRITEs.
    Owner,
    /// By jobs as long as the memory node has a core for another one, else by workers.
    Adaptive,
}

/// What is wrong as published, each by itself (`DESIGN.md`, section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defects {
    /// A snapshot is the next number, which no write has yet.
    pub next_number: bool,
    /// A snapshot covers numbers that are not complete.
    pub incomplete: bool,
    /// Writers use a new MemTable before readers know it.
    pub early_switch: bool,
    /// Tables of level 0 are ordered by the number that their flush has drawn at its end.
    pub unordered: bool,
    /// Flushes and jobs know no snapshot.
    pub forgets_snapshots: bool,
    /// A part of a compaction skips one key behind its lower border.
    pub skips_keys: bool,
    /// A part of a compaction ends after the first version of its upper border, and the next one
    /// begins with the second.
    pub splits_keys: bool,
    /// Deletions are never dropped.
    pub keeps_deletions: bool,
    /// The tables of a scan share one buffer.
    pub shared_buffer: bool,
}

/// The shape and the techniques of an index. The catalog stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Slices of the key space; slice i belongs to compute node i. 1 to 1024.
    pub owners: u32,
    /// Shards of a slice, each a tree of its own. 1 to 1024.
    pub shards: u32,
    /// The first key of every shard but the first, of all slices; none: the load cuts.
    pub borders: Vec<Vec<u8>>,
    /// How entries lie in tables.
    pub format: Format,
    /// Numbers of a MemTable, 16 to 2^30.
    pub memtable_entries: u64,
    /// Bytes of a MemTable.
    pub memtable_bytes: u64,
    /// MemTables that wait for their flush, 1 to 64: a writer that needs one more waits.
    pub immutables: u32,
    /// Bytes of data of a table, about.
    pub table_bytes: u64,
    /// Bytes of a piece of a table, 4096 to 2 MiB: what one WRITE carries.
    pub piece_bytes: u32,
    /// Bytes of level 1; each further level has ten times as many.
    pub level1_bytes: u64,
    /// Tables of level 0 from which on a switch of MemTables takes 1 ms more.
    pub level0_slow: u32,
    /// Tables of level 0 from which on writers wait.
    pub level0_stop: u32,
    /// Flushes of a compute node at a time.
    pub flush_workers: u32,
    /// Compactions of a compute node at a time.
    pub compaction_workers: u32,
    /// Parts of a compaction of level 0.
    pub subcompactions: u32,
    /// Where tables are merged.
    pub merging: Merging,
    /// Writers queue, as in RocksDB.
    pub queue: bool,
    /// WRITEs of a flush are awaited all together at its end, not each.
    pub ring: bool,
    /// Tables are read and written by calls to the memory node, not by verbs.
    pub calls: bool,
    /// Index and filter of a new table are READ back.
    pub reads_back: bool,
    /// A get of a deleted key READs the deletion.
    pub reads_deletions: bool,
    /// Most bytes that a scan READs of a table at once, 4096 to 2 MiB.
    pub read_ahead: u32,
    /// What is left as published.
    pub defects: Defects,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            owners: 1,
            shards: 1,
            borders: Vec::new(),
            format: Format::Dense(1),
            memtable_entries: 153_846,
            memtable_bytes: 64 << 20,
            immutables: 15,
            table_bytes: 64 << 20,
            piece_bytes: MAX_BUF_BYTES,
            level1_bytes: 256 << 20,
            level0_slow: 16,
            level0_stop: 32,
            flush_workers: 4,
            compaction_workers: 12,
            subcompactions: 12,
            merging: Merging::Near,
            queue: false,
            ring: true,
            calls: false,
            reads_back: true,
            reads_deletions: true,
            read_ahead: 1 << 20,
            defects: Defects::default(),
            timeout_ms: 30_000,
        }
    }
}

impl Options {
    /// As published, mistakes included.
    pub fn published() -> Self {
        let defects = Defects {
            next_number: true,
            incomplete: true,
            early_switch: true,
            unordered: true,
            forgets_snapshots: true,
            skips_keys: true,
            splits_keys: true,
            keeps_deletions: true,
            shared_buffer: false,
        };
        Self { defects, ..Self::default() }
    }

    /// The same without mistakes.
    #[must_use]
    pub fn repaired(&self) -> Self {
        Self { defects: Defects::default(), ..self.clone() }
    }

    /// RocksDB over RDMA, with blocks of so many bytes.
    pub fn rocksdb(block_bytes: u32) -> Self {
        let (format, merging) = (Format::Blocks(block_bytes), Merging::Owner);
        Self { format, merging, queue: true, ring: false, ..Self::default() }
    }

    /// Nova-LSM: 64 ranges of each slice, calls in the place of verbs.
    pub fn nova() -> Self {
        Self { shards: 64, queue: false, calls: true, ..Self::rocksdb(8192) }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        let unit = match self.format {
            Format::Dense(pairs) => ("format.dense", pairs, 1, 1024),
            Format::Blocks(bytes) => ("format.blocks", bytes, 1, 1 << 20),
        };
        for (name, value, low, high) in [
            unit,
            ("owners", self.owners, 1, 1024u32),
            ("shards", self.shards, 1, 1024),
            ("immutables", self.immutables, 1, 64),
            ("piece_bytes", self.piece_bytes, 4096, MAX_BUF_BYTES),
            ("level0_slow", self.level0_slow, 1, 1 << 20),
            ("level0_stop", self.level0_stop, 1, 1 << 20),
            ("flush_workers", self.flush_workers, 1, 64),
            ("compaction_workers", self.compaction_workers, 1, 64),
            ("subcompactions", self.subcompactions, 1, 48),
            ("read_ahead", self.read_ahead, 4096, MAX_BUF_BYTES),
        ] {
            check_range(name, value.into(), low, u64::from(high))?;
        }
        for (name, value, low, high) in [
            ("memtable_entries", self.memtable_entries, 16, 1 << 30),
            ("memtable_bytes", self.memtable_bytes, 4096, 1 << 32),
            ("table_bytes", self.table_bytes, 1024, 1 << 30),
            ("level1_bytes", self.level1_bytes, 1024, 1 << 50),
            ("timeout_ms", self.timeout_ms, 1, 1 << 32),
        ] {
            check_range(name, value, low, high)?;
        }
        self.check_borders(&self.borders)
    }

    /// Refuses borders that are no borders of the shards.
    pub(crate) fn check_borders(&self, borders: &[Vec<u8>]) -> Result<()> {
        let wanted = self.owners as usize * self.shards as usize - 1;
        if !borders.is_empty() && borders.len() != wanted {
            return Err(Error::invalid(format!(
                "{} borders; {} owners of {} shards have {wanted}",
                borders.len(),
                self.owners,
                self.shards
            )));
        }
        match borders.windows(2).position(|pair| pair[0] >= pair[1]) {
            Some(i) => Err(Error::invalid(format!(
                "border {} is not above the one before: shards must not overlap",
                i + 2
            ))),
            None => Ok(()),
        }
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: tables and levels so
    /// small that few operations reach all of them.
    #[must_use]
    pub(crate) fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u64]| choices[below(choices.len() as u64) as usize];
        let format = match self.format {
            Format::Dense(1) => Format::Dense(1),
            Format::Dense(_) => Format::Dense(of(&[1, 2, 4]) as u32),
            Format::Blocks(bytes) => Format::Blocks(bytes.min(of(&[1, 200, 1000]) as u32)),
        };
        Self {
            format,
            memtable_entries: of(&[16, 16, 40]),
            immutables: of(&[1, 2, 4]) as u32,
            table_bytes: of(&[1024, 1024, 4096]),
            piece_bytes: 4096,
            level1_bytes: of(&[1024, 4096]),
            level0_slow: 8,
            level0_stop: of(&[4, 12]) as u32,
            flush_workers: of(&[1, 2, 3]) as u32,
            compaction_workers: of(&[1, 2]) as u32,
            subcompactions: of(&[1, 3]) as u32,
            read_ahead: 4096,
            timeout_ms: 2_000,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let o = Options::default;
        for (bad, words) in [
            (Options { shards: 0, ..o() }, "shards is 0; it must be 1 to 1024"),
            (Options { shards: 1025, ..o() }, "shards is 1025; it must be 1 to 1024"),
            (Options { memtable_entries: 15, ..o() }, "memtable_entries is 15; it must be 16 to"),
            (Options { format: Format::Blocks(0), ..o() }, "format.blocks is 0; it must be 1"),
            (Options { format: Format::Dense(0), ..o() }, "format.dense is 0; it must be 1"),
            (Options { immutables: 0, ..o() }, "immutables is 0; it must be 1 to 64"),
            (Options { piece_bytes: 3 << 20, ..o() }, "piece_bytes is 3145728; it must be 4096"),
            (Options { borders: vec![vec![1]], ..o() }, "1 borders; 1 owners of 1 shards have 0"),
            (
                Options { shards: 3, borders: vec![vec![2], vec![1]], ..o() },
                "border 2 is not above the one before",
            ),
            (
                Options { owners: 3, borders: vec![vec![2], vec![2]], ..o() },
                "border 2 is not above the one before",
            ),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        for o in [o(), Options::published(), Options::rocksdb(8192), Options::nova()] {
            o.check().expect("possible");
        }
    }
}
