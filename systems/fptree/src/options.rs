//! Creation options and ablation switches.

use dmtree_fabric::{Error, Result};
use dmtree_parts::published::check_range;
use serde::{Deserialize, Serialize};

/// The nodes that store the fingerprint tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// The memory nodes; tables are allocated as leaves are.
    Memory,
    /// The compute nodes; tables are spread over all of them.
    Compute,
}

/// The place of the leaf locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locks {
    /// The last word of the leaf's table, so that a WRITE of the table unlocks.
    Table,
    /// A word of their own behind the leaf.
    Leaf,
}

/// The layout of an index, and the techniques it uses. The catalog stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Bytes of every key, 1 to 256.
    pub key_bytes: u32,
    /// Bytes of every value, 0 to 1024.
    pub value_bytes: u32,
    /// Slots of a new leaf: 32, 64 or 128.
    pub leaf_capacity: u32,
    /// Records of an inner node, 8 to 64.
    pub fanout: u32,
    /// Bytes of table memory that a client node takes from one compute node before it continues
    /// with the next, 4 KiB to 1 GiB. At most a 64th of a compute node's memory is used (and at
    /// least 4 KiB).
    pub table_chunk_bytes: u64,
    /// The nodes that store the tables.
    pub tables: Tables,
    /// The place of the leaf locks.
    pub locks: Locks,
    /// Every compute node keeps mirrors of tables in its cache; only tables on compute nodes are
    /// mirrored.
    pub mirrors: bool,
    /// Verbs that may form a chain do; unlocks are not awaited.
    pub round_trip_combining: bool,
    /// Readers of one key share a READ.
    pub delegation: bool,
    /// Writers of one key share a WRITE.
    pub combining: bool,
    /// While the cache is short of room, leaves get up to 128 slots instead of more siblings.
    pub adaptive_capacity: bool,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self::fptree()
    }
}

impl Options {
    /// FPTree: tables and locks on memory nodes, no mirrors, every verb awaited.
    pub fn fptree() -> Self {
        Self {
            key_bytes: 24,
            value_bytes: 8,
            leaf_capacity: 32,
            fanout: 32,
            table_chunk_bytes: 32 << 20,
            tables: Tables::Memory,
            locks: Locks::Table,
            mirrors: false,
            round_trip_combining: false,
            delegation: true,
            combining: true,
            adaptive_capacity: true,
            timeout_ms: 10_000,
        }
    }

    /// FPTree with round trips combined: the first step of the published ablation.
    pub fn fptree_rtc() -> Self {
        Self { round_trip_combining: true, ..Self::fptree() }
    }

    /// The second step: tables on compute nodes, with mirrors on all of them; locks stay on memory
    /// nodes.
    pub fn fptree_cache() -> Self {
        let (tables, locks) = (Tables::Compute, Locks::Leaf);
        Self { tables, locks, mirrors: true, ..Self::fptree_rtc() }
    }

    /// The third step: locks move to the tables. All techniques are on.
    pub fn fptree_locking() -> Self {
        Self { locks: Locks::Table, ..Self::fptree_cache() }
    }

    /// DMTree as its artifact has it: all techniques but combined round trips.
    pub fn dmtree_published() -> Self {
        Self { round_trip_combining: false, ..Self::fptree_locking() }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        check_range("key_bytes", self.key_bytes.into(), 1, 256)?;
        check_range("value_bytes", self.value_bytes.into(), 0, 1024)?;
        check_range("fanout", self.fanout.into(), 8, 64)?;
        check_range("table_chunk_bytes", self.table_chunk_bytes, 4 << 10, 1 << 30)?;
        check_range("timeout_ms", self.timeout_ms, 1, u64::MAX)?;
        if ![32, 64, 128].contains(&self.leaf_capacity) {
            return Err(Error::invalid(format!(
                "leaf_capacity is {}; it must be 32, 64 or 128",
                self.leaf_capacity
            )));
        }
        if self.mirrors && self.tables == Tables::Memory {
            return Err(Error::invalid(
                "mirrors is true with tables on memory nodes; only tables on compute nodes are mirrored",
            ));
        }
        Ok(())
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: small nodes, the
    /// techniques of `self`. Waits are shorter than by default, because some waits of the published
    /// protocol never end.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        Self {
            fanout: of(&[8, 8, 16, 32]),
            leaf_capacity: of(&[32, 32, 64]),
            value_bytes: of(&[8, 8, 24, 64]),
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
        let o = Options::fptree;
        for (bad, words) in [
            (Options { key_bytes: 0, ..o() }, "key_bytes is 0; it must be 1 to 256"),
            (Options { value_bytes: 2000, ..o() }, "value_bytes is 2000"),
            (Options { fanout: 7, ..o() }, "fanout is 7; it must be 8 to 64"),
            (Options { leaf_capacity: 48, ..o() }, "32, 64 or 128"),
            (Options { table_chunk_bytes: 1, ..o() }, "table_chunk_bytes is 1"),
            (Options { timeout_ms: 0, ..o() }, "timeout_ms is 0"),
            (Options { mirrors: true, ..o() }, "mirrors is true"),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        for o in [o(), Options::fptree_rtc(), Options::fptree_cache(), Options::dmtree_published()]
        {
            o.check().expect("a preset is valid");
        }
    }
}
