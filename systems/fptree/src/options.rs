//! Creation options and ablation switches.

use dmtree_fabric::{Error, Result};
use dmtree_parts::options::all_needed;
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

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them.
    pub struct Options = Self::fptree();
    /// Bytes of every key, 1 to 256.
    key_bytes: u32 = 24, in 1..=256;
    /// Bytes of every value, 0 to 1024.
    value_bytes: u32 = 8, in 0..=1024;
    /// Slots of a new leaf: 32, 64 or 128.
    leaf_capacity: u32 = 32;
    /// Records of an inner node, 8 to 64.
    fanout: u32 = 32, in 8..=64;
    /// Bytes of table memory that a client node takes from one compute node before it continues
    /// with the next, 4 KiB to 1 GiB. At most a 64th of a compute node's memory is used (and at
    /// least 4 KiB).
    table_chunk_bytes: u64 = 32 << 20, in 4 << 10..=1 << 30;
    /// The nodes that store the tables.
    tables: Tables = Tables::Memory;
    /// The place of the leaf locks.
    locks: Locks = Locks::Table;
    /// Every compute node keeps mirrors of tables in its cache; only tables on compute nodes are
    /// mirrored.
    mirrors: bool = false;
    /// Verbs that may form a chain do; unlocks are not awaited.
    round_trip_combining: bool = false;
    /// Readers of one key share a READ.
    delegation: bool = true;
    /// Writers of one key share a WRITE.
    combining: bool = true;
    /// While the cache is short of room, leaves get up to 128 slots instead of more siblings.
    adaptive_capacity: bool = true;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// FPTree: tables and locks on memory nodes, no mirrors, every verb awaited.
    pub fn fptree() -> Self {
        Self::first()
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
        self.check_ranges()?;
        if ![32, 64, 128].contains(&self.leaf_capacity) {
            return Err(Error::invalid(format!(
                "leaf_capacity is {}; it must be 32, 64 or 128",
                self.leaf_capacity
            )));
        }
        all_needed([(
            self.mirrors,
            self.tables == Tables::Compute,
            "mirrors is true with tables on memory nodes; only tables on compute nodes are mirrored",
        )])
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
            (Options { leaf_capacity: 48, ..o() }, "32, 64 or 128"),
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
