//! Creation options and ablation switches.

use dmtree_fabric::Result;
use dmtree_parts::options::all_needed;

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them.
    pub struct Options = Self::published();
    /// Bytes of every key, 1 to 250.
    key_bytes: u32 = 24, in 1..=250;
    /// Bytes of every value, 0 to 1024.
    value_bytes: u32 = 8, in 0..=1024;
    /// Slots of the largest inner node: 16 to 256. Every node has room for so many. It bounds how
    /// many different bytes can follow one prefix.
    largest_node: u32 = 256, in 16..=256;
    /// Bytes of a leaf's lock, 1 to 8; the last one counts.
    lock_bytes: u32 = 8, in 1..=8;
    /// 32 bits of checksum instead of 64.
    short_checksum: bool = false;
    /// Leaves take a multiple of this many bytes: 16, 32, .. 4096.
    leaf_step: u32 = 64, in 16..=4096, by 16;
    /// Inner nodes take a multiple of this many bytes.
    node_step: u32 = 16, in 16..=4096, by 16;
    /// A radix tree indexes the cache, too (ART-indexed cache). Otherwise every cached node is
    /// charged for its whole prefix.
    indexed_cache: bool = true;
    /// Node types are powers of two from 4 to 256 (homogeneous adaptive nodes). Otherwise they are
    /// 4, 16, 48 and 256.
    homogeneous: bool = false;
    /// Inner nodes change by compare-and-swap only. Otherwise they change under locks, in on-chip
    /// memory where the fabric has any.
    lock_free: bool = false;
    /// Leaves are updated in place. Otherwise a new leaf replaces the old one.
    in_place: bool = false;
    /// The lock of a leaf is its last word, and the WRITE of the leaf releases it. Otherwise the
    /// lock is in the lock table.
    rear_lock: bool = false;
    /// Readers of one key on a compute node share a READ.
    delegation: bool = false;
    /// Writers of one key on a compute node share a WRITE. Otherwise they hand the leaf's lock
    /// over.
    combining: bool = false;
    /// As published: a client that splits a node or a leaf does not wait for the repair of the old
    /// child.
    lazy_repairs: bool = false;
    /// As published: scans rely on cached nodes. Otherwise they begin at the root.
    cached_scans: bool = false;
    /// Repair: a batch of delegation or combining is closed when its verb is posted.
    closed_batches: bool = true;
    /// Repair: a client that concludes from a cached slot that a key is absent READs the slot
    /// again.
    recheck_absent: bool = true;
    /// Repair: a client that meets a slot beyond a node's type raises the type first, and a node's
    /// header is set until it is right.
    help_types: bool = true;
    /// Repair: a compare-and-swap compares a slot as it was READ, not with the child's type filled
    /// in.
    keep_words: bool = true;
    /// Repair: a leaf stays locked while its lock is handed over.
    locked_handover: bool = true;
    /// Repair: an old leaf becomes invalid before the new one replaces it.
    invalidate_first: bool = true;
    /// Words of the lock table of a memory node, where the table is not in on-chip memory.
    locks: u32 = 16_384, in 1..=1 << 20;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// The radix tree that SMART starts from: locked nodes of four types, leaves that are replaced.
    /// It has the repairs, and is sound.
    pub fn art() -> Self {
        Self::first()
    }

    /// The first step: homogeneous nodes without locks. This step and the later ones are as
    /// published.
    pub fn lock_free() -> Self {
        Self { homogeneous: true, lock_free: true, ..Self::art().with_repairs(false) }
    }

    /// The second step: leaves are updated in place, with locks in a table.
    pub fn in_place() -> Self {
        Self { in_place: true, ..Self::lock_free() }
    }

    /// The third step: the lock at the end of the leaf.
    pub fn rear_lock() -> Self {
        Self { rear_lock: true, ..Self::in_place() }
    }

    /// The fourth step: read delegation.
    pub fn delegation() -> Self {
        Self { delegation: true, ..Self::rear_lock() }
    }

    /// SMART as published: adds write combining.
    pub fn published() -> Self {
        Self { combining: true, ..Self::delegation() }
    }

    /// The same with every repair, to isolate the published defects.
    #[must_use]
    pub fn repaired(&self) -> Self {
        self.clone().with_repairs(true)
    }

    fn with_repairs(self, on: bool) -> Self {
        Self {
            lazy_repairs: !on,
            cached_scans: !on,
            closed_batches: on,
            recheck_absent: on,
            help_types: on,
            keep_words: on,
            locked_handover: on,
            invalidate_first: on,
            ..self
        }
    }

    /// The same with the layout of the paper's own code: 8-byte keys and values, and leaves of 34
    /// bytes that take 256.
    #[must_use]
    pub fn original(&self) -> Self {
        Self {
            key_bytes: 8,
            value_bytes: 8,
            lock_bytes: 1,
            short_checksum: false,
            leaf_step: 256,
            node_step: 256,
            ..self.clone()
        }
    }

    /// Whether the index needs a table of locks.
    pub(crate) fn has_lock_table(&self) -> bool {
        !self.lock_free || (self.in_place && !self.rear_lock)
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        all_needed([
            (
                self.rear_lock,
                self.in_place,
                "rear_lock is true without in_place: a leaf that is replaced is not locked",
            ),
            (
                self.in_place,
                self.lock_free || self.rear_lock,
                "in_place without rear_lock and without lock_free: a node and its leaf can share a lock, and its holder then waits for itself",
            ),
            (
                self.combining,
                !self.has_lock_table(),
                "combining is true with locks in a table: it needs lock_free, and in_place with rear_lock or not at all",
            ),
        ])
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: few locks, values of
    /// several lengths, the techniques of `self`. Waits are shorter than by default, because some
    /// waits of the published protocol never end.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        Self {
            lock_bytes: of(&[8, 8, 1]),
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
            (Options { in_place: false, ..o() }, "rear_lock is true without in_place"),
            (Options { in_place: true, ..Options::art() }, "can share a lock"),
            (Options { combining: true, ..Options::art() }, "combining is true with locks"),
            (Options { combining: true, ..Options::in_place() }, "combining is true with locks"),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        let rungs = [Options::art(), Options::lock_free(), Options::in_place()];
        for o in rungs.into_iter().chain([Options::rear_lock(), Options::delegation(), o()]) {
            o.check().expect("a preset");
            o.original().check().expect("a preset");
            o.repaired().check().expect("a preset");
        }
    }
}
