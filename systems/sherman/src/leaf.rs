//! Point reads, and READs of leaves with the checks that accept them.
//!
//! Order of a read: the route from the cache of bottom pages, or a descent that READs page after
//! page from the root; READ leaf, repeated while it fails its check; if the leaf does not cover the
//! key, the right link or a new descent (`parts::blink`). The linearization point is the READ of
//! the leaf. A read changes nothing but the cache, so a crash leaves nothing behind.
//!
//! A reader relies on two checks as published, and both are wrong (DESIGN.md, section 7). An entry
//! with two different versions counts as another key's entry (two-level versions). A page counts as
//! whole when its two versions agree.
//!
//! A leaf is READ whole, and again while it fails its check: its checksum is wrong, or, with
//! two-level versions, its two node versions differ. With `retry_torn` an entry between two
//! versions counts as torn, too. Readers call `see_leaf`: as published a plain READ, with
//! `locked_reads` a READ under the lock of the page, with `versions_around` three READs. Writers
//! call `read_leaf` under the lock of the page (`write.rs`).
//!
//! Invariants: a correct checksum proves a whole leaf. Equal node versions do not: an image can mix
//! two WRITEs (DESIGN.md, section 7). A leaf keeps its lower fence key, so `leaf_of` finds a key
//! that has left it by the right link, or by a new route.
//!
//! With checksums a crash in the middle of a WRITE leaves a torn leaf, and readers READ it until
//! their deadline. With two-level versions it leaves an entry between two versions.

use dmtree_fabric::{Error, GlobalAddr, OpOutcome, Result, Role, Step, Verified};
use dmtree_parts::blink::{Descent, Format, Header, PageTree, Route};
use dmtree_parts::held::Unlock;

use crate::format::leaf;
use crate::index::Sherman;

/// Leaves as they are read.
pub(crate) struct Leaves<'c>(pub(crate) &'c Sherman);

impl Leaves<'_> {
    /// Reads a key. Returns whether it is present, and how the read counts.
    pub(crate) async fn find(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let (_, image) = self.leaf_of(key).await?;
        let entry = leaf::used(&self.0.node.g, &image).find(|(_, e)| e.whole && e.key == key);
        if let Some((_, e)) = entry {
            out.extend_from_slice(e.value);
        }
        Ok(self.0.read_by_itself(entry.is_some()))
    }

    /// READs a leaf until it passes its check.
    pub(crate) async fn read_leaf(&self, at: GlobalAddr) -> Result<Verified> {
        if at.node().role() != Role::Memory {
            return Err(Error::corrupt(format!("{at} cannot be a leaf")));
        }
        let g = &self.0.node.g;
        let (what, size) = (("leaf being written", at), (g.leaf_bytes(), g.leaf_slots));
        let whole = |b: &[u8]| {
            let between = || (0..g.leaf_slots).any(|i| !leaf::entry(g, b, i).whole);
            let is_leaf = g.header(b)?.level == 0;
            let torn = is_leaf && self.0.node.o.retry_torn && g.two_level && between();
            (is_leaf && !torn).then_some(())
        };
        Ok(self.0.read_whole(what, size, Step::Entry, whole).await?.1)
    }

    /// READs a leaf for a reader.
    pub(crate) async fn see_leaf(&self, at: GlobalAddr) -> Result<Verified> {
        if self.0.node.o.versions_around {
            return self.read_between_versions(at).await;
        }
        if !self.0.node.o.locked_reads {
            return self.read_leaf(at).await;
        }
        let held = self.0.lock(at).await?;
        let (held, image) = self.0.under(held, self.read_leaf(at).await).await?;
        self.0.unlock(held).await.map(|()| image)
    }

    /// READs a leaf between two READs of its versions, until these agree.
    async fn read_between_versions(&self, at: GlobalAddr) -> Result<Verified> {
        let mut backoff = self.0.ep.backoff("leaf being written", at);
        loop {
            let before = self.read_leaf(at).await?;
            let image = self.read_leaf(at).await?;
            let after = self.read_leaf(at).await?;
            if leaf::same_versions(&self.0.node.g, &before, &after) {
                return Ok(image);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// The header of a page that was accepted before.
    pub(crate) fn header_of<'a>(&self, image: &'a [u8]) -> Result<Header<'a>> {
        self.0.node.g.header(image).ok_or_else(|| Error::corrupt("a page without a header"))
    }

    pub(crate) async fn leaf_of(&self, key: &[u8]) -> Result<(Route, Verified)> {
        let mut r = self.0.route(key).await?;
        loop {
            let image = self.see_leaf(r.leaf).await?;
            let h = self.header_of(&image)?;
            if h.covers(key) {
                return Ok((r, image));
            }
            self.0.ep.check_deadline("the leaf of a key", r.leaf.bits())?;
            r = self.0.elsewhere(key, &r, &h).await?;
        }
    }
}
