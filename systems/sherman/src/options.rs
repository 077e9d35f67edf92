//! Creation options and ablation switches.

use dmtree_fabric::{Error, Result};
use dmtree_parts::options::{all_needed, check_range};

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them.
    pub struct Options = Self::published();
    /// Bytes of every key, 1 to 256.
    key_bytes: u32 = 24, in 1..=256;
    /// Bytes of every value, 0 to 1024.
    value_bytes: u32 = 8, in 0..=1024;
    /// Slots of a leaf, 4 to 128. The operation that fills the last one splits it.
    leaf_slots: u32 = 32, in 4..=128;
    /// Records of an inner page, 4 to 128. The operation that fills the last one splits it.
    inner_slots: u32 = 32, in 4..=128;
    /// Bytes of a page, 256 to 65536: a page then has as many slots or records as fit. 0: a page
    /// has the numbers above.
    page_bytes: u32 = 0;
    /// Leaves take a multiple of this many bytes.
    leaf_step: u32 = 2, in 1..=4096;
    /// Inner pages take a multiple of this many bytes.
    inner_step: u32 = 32, in 1..=4096;
    /// The WRITE of a page and the release of its lock are one chain (command combination).
    combine: bool = false;
    /// Locks are in on-chip memory, where the fabric has any.
    on_chip: bool = false;
    /// Local locks in front of the remote ones, with hand-over (hierarchical lock).
    hierarchical: bool = false;
    /// Leaves are unsorted, single entries are written, and versions show whether a page is whole
    /// (two-level versions). Otherwise pages are sorted, written whole, and have a checksum.
    two_level: bool = false;
    /// A split is reported before its left page is written.
    lazy_splits: bool = false;
    /// Bits of an entry's version, 1 to 7; 4 as published.
    version_bits: u32 = 4, in 1..=7;
    /// Repair, to isolate the published defects: a leaf with an entry between two versions is READ
    /// again.
    retry_torn: bool = false;
    /// Repair, for the same purpose: readers take the lock of the page that they READ.
    locked_reads: bool = false;
    /// Repair, for the same purpose: readers READ a leaf three times; the second READ counts if the
    /// other two have the same versions. With `retry_torn` only versions that have wrapped around
    /// remain.
    versions_around: bool = false;
    /// Words of the lock table of a memory node, where the table is not in on-chip memory.
    locks: u32 = 16_384, in 1..=1 << 20;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// FG with Sherman's cache: every verb is awaited.
    pub fn fg() -> Self {
        Self::first()
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
        self.check_ranges()?;
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
        all_needed([
            (
                self.hierarchical,
                self.combine,
                "hierarchical is true without combine: a lock that is handed over is released with its page",
            ),
            (
                self.lazy_splits,
                self.combine,
                "lazy_splits is true without combine: every verb is awaited",
            ),
        ])
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
        let single = Options { combine: false, ..o() };
        let early = Options { hierarchical: false, ..single.clone() };
        for (bad, words) in [
            (single, "hierarchical is true without combine"),
            (early, "lazy_splits is true without combine"),
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
