//! Creation options and ablation switches.

use dmtree_fabric::{Error, Result};
use dmtree_parts::published::check_range;
use serde::{Deserialize, Serialize};

/// The layout of an index, and the techniques it uses. The catalog stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Bytes of every key, 1 to 256.
    pub key_bytes: u32,
    /// Bytes of every value, 0 to 1024.
    pub value_bytes: u32,
    /// Slots of a leaf, 4 to 128. The operation that fills the last one splits it.
    pub leaf_slots: u32,
    /// Records of an inner page, 4 to 128. The operation that fills the last one splits it.
    pub inner_slots: u32,
    /// Bytes of a page, 256 to 65536: a page then has as many slots or records as fit. 0: a page
    /// has the numbers above.
    pub page_bytes: u32,
    /// Leaves take a multiple of this many bytes.
    pub leaf_step: u32,
    /// Inner pages take a multiple of this many bytes.
    pub inner_step: u32,
    /// The WRITE of a page and the release of its lock are one chain (command combination).
    pub combine: bool,
    /// Locks are in on-chip memory, where the fabric has any.
    pub on_chip: bool,
    /// Local locks in front of the remote ones, with hand-over (hierarchical lock).
    pub hierarchical: bool,
    /// Leaves are unsorted, single entries are written, and versions show whether a page is whole
    /// (two-level versions). Otherwise pages are sorted, written whole, and have a checksum.
    pub two_level: bool,
    /// A split is reported before its left page is written.
    pub lazy_splits: bool,
    /// Bits of an entry's version, 1 to 7; 4 as published.
    pub version_bits: u32,
    /// Repair, to isolate the published defects: a leaf with an entry between two versions is READ
    /// again.
    pub retry_torn: bool,
    /// Repair, for the same purpose: readers take the lock of the page that they READ.
    pub locked_reads: bool,
    /// Repair, for the same purpose: readers READ a leaf three times; the second READ counts if the
    /// other two have the same versions. With `retry_torn` only versions that have wrapped around
    /// remain.
    pub versions_around: bool,
    /// Words of the lock table of a memory node, where the table is not in on-chip memory.
    pub locks: u32,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self::published()
    }
}

impl Options {
    /// FG with Sherman's cache: every verb is awaited.
    pub fn fg() -> Self {
        Self {
            key_bytes: 24,
            value_bytes: 8,
            leaf_slots: 32,
            inner_slots: 32,
            page_bytes: 0,
            leaf_step: 2,
            inner_step: 32,
            combine: false,
            on_chip: false,
            hierarchical: false,
            two_level: false,
            lazy_splits: false,
            version_bits: 4,
            retry_torn: false,
            locked_reads: false,
            versions_around: false,
            locks: 16_384,
            timeout_ms: 10_000,
        }
    }

    /// The first step: a page and its release in one chain.
    pub fn combine() -> Self {
        Self { combine: true, ..Self::fg() }
    }

    /// The second step: locks in on-chip memory.
    pub fn on_chip() -> Self {
        Self { on_chip: true, ..Self::combine() }
    }

    /// The third step: hierarchical locks.
    pub fn hierarchical() -> Self {
        Self { hierarchical: true, ..Self::on_chip() }
    }

    /// Sherman as published: adds two-level versions, and splits that are reported early.
    pub fn published() -> Self {
        Self { two_level: true, lazy_splits: true, ..Self::hierarchical() }
    }

    /// The same with the geometry of the paper: 8-byte keys and values, pages of 1 KiB.
    #[must_use]
    pub fn in_pages_of_1k(&self) -> Self {
        Self { key_bytes: 8, value_bytes: 8, page_bytes: 1024, ..self.clone() }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        check_range("key_bytes", self.key_bytes.into(), 1, 256)?;
        check_range("value_bytes", self.value_bytes.into(), 0, 1024)?;
        check_range("leaf_slots", self.leaf_slots.into(), 4, 128)?;
        check_range("inner_slots", self.inner_slots.into(), 4, 128)?;
        if self.page_bytes != 0 {
            check_range("page_bytes", self.page_bytes.into(), 256, 65_536)?;
            let g = crate::format::Geometry::new(self);
            if g.leaf_slots < 4 || g.inner_slots < 4 {
                return Err(Error::invalid(format!(
                    "page_bytes is {}, too little for 4 keys of {} bytes with values of {}",
                    self.page_bytes, self.key_bytes, self.value_bytes
                )));
            }
        }
        check_range("leaf_step", self.leaf_step.into(), 1, 4096)?;
        check_range("inner_step", self.inner_step.into(), 1, 4096)?;
        check_range("version_bits", self.version_bits.into(), 1, 7)?;
        check_range("locks", self.locks.into(), 1, 1 << 20)?;
        check_range("timeout_ms", self.timeout_ms, 1, u64::MAX)?;
        if self.hierarchical && !self.combine {
            return Err(Error::invalid(
                "hierarchical is true without combine: a lock that is handed over is released with its page",
            ));
        }
        if self.lazy_splits && !self.combine {
            return Err(Error::invalid(
                "lazy_splits is true without combine: every verb is awaited",
            ));
        }
        Ok(())
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: small pages, few
    /// locks, the techniques of `self`. Waits are shorter than by default, because some waits of
    /// the published protocol never end.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        Self {
            leaf_slots: of(&[4, 8, 16, 32]),
            inner_slots: of(&[4, 8, 16]),
            value_bytes: of(&[8, 8, 24, 64]),
            locks: of(&[1, 16, 1024]),
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
        let o = Options::published;
        for (bad, words) in [
            (Options { key_bytes: 0, ..o() }, "key_bytes is 0; it must be 1 to 256"),
            (Options { leaf_slots: 3, ..o() }, "leaf_slots is 3; it must be 4 to 128"),
            (Options { locks: 0, ..o() }, "locks is 0"),
            (Options { version_bits: 8, ..o() }, "version_bits is 8; it must be 1 to 7"),
            (Options { combine: false, ..o() }, "hierarchical is true without combine"),
            (Options { timeout_ms: 0, ..o() }, "timeout_ms is 0"),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        let all =
            [Options::fg(), Options::combine(), Options::on_chip(), Options::hierarchical(), o()];
        for o in all {
            o.check().expect("a preset");
            o.in_pages_of_1k().check().expect("a preset");
        }
    }
}
