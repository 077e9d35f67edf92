//! Verbs on entries.
//!
//! A route names a leaf in one version of its key range. An entry counts only if it has that
//! version: a split raises the version of all entries, so a READ of an entry that has moved or
//! changed its slot's meaning gives [`Found::Stale`] instead of a wrong answer. Entries have no
//! checksum, so a READ in the middle of a WRITE can still mix two entries of one version
//! (DESIGN.md, section 7).

use dmtree_fabric::{Buf, GlobalAddr, Result, Stage, Step};
use dmtree_parts::slots::Slots;

use crate::client::{FpTree, Route};
use crate::format::leaf;

/// The result of READs of the entries that share a fingerprint with a key.
pub(crate) enum Found {
    /// The entry in this slot has the key; its value was copied out.
    Hit(usize),
    /// No entry has the key.
    None,
    /// An entry has another version: the key range of the leaf has changed.
    Stale,
}

/// Entries of a leaf.
pub(crate) struct Entries<'c>(pub(crate) &'c FpTree);

impl Entries<'_> {
    /// Address of a slot's entry.
    pub(crate) fn entry_addr(&self, leaf: GlobalAddr, slot: usize) -> GlobalAddr {
        leaf.plus(self.0.node.g.entry_at(slot) as u64)
    }

    /// READs the entries of some slots, one after the other, until one has the key. Its value
    /// replaces the contents of `out`.
    pub(crate) async fn find_entry(
        &self,
        r: &Route,
        slots: Slots,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Found> {
        let g = &self.0.node.g;
        for slot in slots {
            let at = self.entry_addr(r.leaf, slot);
            self.0.ep.step(Step::Entry);
            let bytes = self.0.ep.read(at, g.entry() as u32).await?;
            self.0.ep.stage_cost(Stage::EntryCheck, 1);
            let seen = bytes.extract(|b| {
                let e = leaf::entry(g, b);
                if e.version != u64::from(r.version) {
                    return Found::Stale;
                }
                // A fingerprint is a hint; only the whole key proves a hit.
                if !e.valid || e.key != key {
                    return Found::None;
                }
                out.clear();
                out.extend_from_slice(e.value);
                Found::Hit(slot)
            });
            if !matches!(seen, Found::None) {
                return Ok(seen);
            }
        }
        Ok(Found::None)
    }

    pub(crate) async fn entry_image(&self, r: &Route, key: &[u8], value: &[u8]) -> Result<Buf> {
        let g = &self.0.node.g;
        let mut image = self.0.ep.buf(g.entry() as u32).await?;
        leaf::put_entry(g, &mut image, r.version, key, value);
        Ok(image)
    }

    /// WRITEs a whole entry.
    pub(crate) async fn write_entry(
        &self,
        leaf: GlobalAddr,
        slot: usize,
        image: Buf,
    ) -> Result<()> {
        self.0.ep.step(Step::Entry);
        self.0.ep.write(self.entry_addr(leaf, slot), image).await.map(|_| ())
    }
}
