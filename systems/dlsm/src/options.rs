//! Creation options: the shape of the tree, the techniques, and what is left as published.

use dmtree_fabric::{Error, MAX_BUF_BYTES, Result};
use dmtree_parts::options::check_range;
use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::memtable::NODE_BYTES;

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

/// The smallest MemTable, bytes.
const LEAST_MEMTABLE_BYTES: u64 = 4096;

dmtree_parts::options! {
    /// The shape and the techniques of an index. The catalog stores them.
    pub struct Options = Self::first();
    /// Slices of the key space; slice i belongs to compute node i. 1 to 1024.
    owners: u32 = 1, in 1..=1024;
    /// Shards of a slice, each a tree of its own. 1 to 1024.
    shards: u32 = 1, in 1..=1024;
    /// The first key of every shard but the first, of all slices; none: the load cuts.
    borders: Vec<Vec<u8>> = Vec::new();
    /// How entries lie in tables.
    format: Format = Format::Dense(1);
    /// Numbers of a MemTable, 16 to 2^30.
    memtable_entries: u64 = 153_846, in 16..=1 << 30;
    /// Bytes of a MemTable.
    memtable_bytes: u64 = 64 << 20, in LEAST_MEMTABLE_BYTES..=1 << 32;
    /// MemTables that wait for their flush, 1 to 64: a writer that needs one more waits.
    immutables: u32 = 15, in 1..=64;
    /// Bytes of data of a table, about.
    table_bytes: u64 = 64 << 20, in 1024..=1 << 30;
    /// Bytes of a piece of a table, 4096 to 2 MiB: what one WRITE carries.
    piece_bytes: u32 = MAX_BUF_BYTES, in 4096..=MAX_BUF_BYTES;
    /// Bytes of level 1; each further level has ten times as many.
    level1_bytes: u64 = 256 << 20, in 1024..=1 << 50;
    /// Tables of level 0 from which on a switch of MemTables takes 1 ms more.
    level0_slow: u32 = 16, in 1..=1 << 20;
    /// Tables of level 0 from which on writers wait.
    level0_stop: u32 = 32, in 1..=1 << 20;
    /// Flushes of a compute node at a time.
    flush_workers: u32 = 4, in 1..=64;
    /// Compactions of a compute node at a time.
    compaction_workers: u32 = 12, in 1..=64;
    /// Parts of a compaction of level 0.
    subcompactions: u32 = 12, in 1..=48;
    /// Where tables are merged.
    merging: Merging = Merging::Near;
    /// Writers queue, as in RocksDB.
    queue: bool = false;
    /// WRITEs of a flush are awaited all together at its end, not each.
    ring: bool = true;
    /// Tables are read and written by calls to the memory node, not by verbs.
    calls: bool = false;
    /// Index and filter of a new table are READ back.
    reads_back: bool = true;
    /// A get of a deleted key READs the deletion.
    reads_deletions: bool = true;
    /// Most bytes that a scan READs of a table at once, 4096 to 2 MiB.
    read_ahead: u32 = 1 << 20, in 4096..=MAX_BUF_BYTES;
    /// What is left as published.
    defects: Defects = Defects::default();
    /// Any compute node takes any key: ranges have owners, which serve the other nodes, and are
    /// taken over when they are dead.
    any_node: bool = false;
    /// A write is in a log on a memory node before it is acknowledged (with `any_node`).
    log: bool = false;
    /// Bytes of a block of the log, 4096 to 2 MiB.
    log_bytes: u32 = MAX_BUF_BYTES, in 4096..=MAX_BUF_BYTES;
    /// Bytes for indexes and filters on a node at most, within their part of its budget (with
    /// `any_node`).
    index_bytes: u64 = 1 << 50, in 0..=1 << 50;
    /// Bytes of a segment of a manifest, 4096 to 2 MiB: longer where its state needs it.
    manifest_bytes: u32 = 64 << 10, in 4096..=MAX_BUF_BYTES;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 30_000, in 1..=1 << 32;
}

impl Options {
    /// Sound: any key from any node, with a log. The WRITEs of a flush are awaited one by one: the
    /// outcome of WRITEs that nothing awaits is that of all clients of a thread. Few MemTables
    /// wait: all have equal parts of a node's budget.
    pub fn sound() -> Self {
        let (any_node, log, immutables) = (true, true, 3);
        let (reads_back, reads_deletions, ring) = (false, false, false);
        Self { any_node, log, immutables, reads_back, reads_deletions, ring, ..Self::default() }
    }

    /// The options of shards on a node with this budget. Half of it has room for the MemTables of
    /// the node's slice, active and waiting ones, if any node takes any key; otherwise they are as
    /// large as published.
    ///
    /// # Errors
    /// `InvalidArgument` when MemTables have no room.
    pub(crate) fn within(&self, cache_bytes: u64) -> Result<Self> {
        if !self.any_node {
            return Ok(self.clone());
        }
        let tables = u64::from(self.shards) * (u64::from(self.immutables) + 1);
        let each = self.memtables_bytes(cache_bytes) / tables;
        if each < LEAST_MEMTABLE_BYTES {
            return Err(Error::invalid(format!(
                "a cache of {cache_bytes} bytes has no room in its half for {tables} MemTables of \
                 {LEAST_MEMTABLE_BYTES} bytes: give it {} at least, or the index fewer shards or \
                 immutables",
                2 * tables * LEAST_MEMTABLE_BYTES
            )));
        }
        Ok(Self {
            memtable_bytes: self.memtable_bytes.min(each),
            memtable_entries: self.memtable_entries.min(each / NODE_BYTES),
            ..self.clone()
        })
    }

    /// Bytes for the MemTables of a node with this budget, also those of ranges that it has taken
    /// over.
    pub(crate) fn memtables_bytes(&self, cache_bytes: u64) -> u64 {
        if self.any_node { cache_bytes / 2 } else { u64::MAX }
    }

    /// Bytes for indexes and filters on a node with this budget: the other half, less the part of
    /// messages. As published all are in memory.
    pub(crate) fn tables_bytes(&self, cache_bytes: u64) -> u64 {
        match self.any_node {
            true => self.index_bytes.min(cache_bytes / 2 - self.messages_bytes(cache_bytes)),
            false => u64::MAX,
        }
    }

    /// Bytes for requests and answers of other nodes on a node with this budget; one message of any
    /// length has room besides.
    pub(crate) fn messages_bytes(&self, cache_bytes: u64) -> u64 {
        cache_bytes / 16
    }

    /// Bytes of the words of owners in the directory.
    pub(crate) fn words_bytes(&self) -> u64 {
        match self.any_node {
            true => 16 * u64::from(self.owners) * u64::from(self.shards),
            false => 8 * u64::from(self.owners),
        }
    }

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
        self.check_ranges()?;
        match self.format {
            Format::Dense(pairs) => check_range("format.dense", pairs.into(), 1, 1024)?,
            Format::Blocks(bytes) => check_range("format.blocks", bytes.into(), 1, 1 << 20)?,
        }
        let of_one = [
            ("a queue of writers", self.queue),
            ("calls for tables", self.calls),
            ("a ring of WRITEs", self.ring),
        ];
        let of_one = of_one.iter().find(|(_, is_on)| *is_on && self.any_node);
        if self.log && !self.any_node {
            return Err(Error::invalid("a log is of an index with any_node = true"));
        }
        if let Some((what, _)) = of_one {
            return Err(Error::invalid(format!("{what} and any_node exclude each other")));
        }
        if self.any_node && self.defects != Defects::default() {
            return Err(Error::invalid("published defects and any_node exclude each other"));
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
            timeout_ms: if self.any_node { 10_000 } else { 2_000 },
            ..match self.any_node {
                true => Self {
                    owners: of(&[1, 2, 3]) as u32,
                    shards: of(&[1, 1, 2]) as u32,
                    index_bytes: of(&[0, 1000, 1 << 50]),
                    log_bytes: of(&[4096, 16384]) as u32,
                    manifest_bytes: of(&[4096, 16384]) as u32,
                    ..self.clone()
                },
                false => self.clone(),
            }
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
            (Options { format: Format::Blocks(0), ..o() }, "format.blocks is 0; it must be 1"),
            (Options { format: Format::Dense(0), ..o() }, "format.dense is 0; it must be 1"),
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
