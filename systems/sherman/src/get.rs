//! Point reads: one READ of the leaf.
//!
//! Order: the route from the cache of bottom pages, or a descent that READs page after page from
//! the root; READ leaf, repeated while it fails its check; if the leaf does not cover the key, the
//! right link or a new descent (`parts::blink`). The linearization point is the READ of the leaf.
//!
//! A reader relies on two checks as published, and both are wrong (DESIGN.md, section 7). An entry
//! with two different versions counts as another key's entry (two-level versions). A page counts as
//! whole when its two versions agree.
//!
//! A read changes nothing but the cache, so a crash leaves nothing behind.

use dmtree_fabric::{OpOutcome, Result};

use crate::client::Sherman;
use crate::format::leaf;

impl Sherman {
    /// Reads a key. Returns whether it is present, and how the read counts.
    pub(crate) async fn find(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let (_, image) = self.leaf_of(key).await?;
        let entry = leaf::used(&self.node.g, &image).find(|(_, e)| e.whole && e.key == key);
        if let Some((_, e)) = entry {
            out.extend_from_slice(e.value);
        }
        Ok(self.read_by_itself(entry.is_some()))
    }
}
