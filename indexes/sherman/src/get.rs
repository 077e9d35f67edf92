//! Point reads: one READ of the leaf.
//!
//! Order: the route from the cache of bottom pages, or a descent that READs page after page from
//! the root; READ leaf, repeated while it fails its check; if the leaf does not cover the key,
//! the right link or a new descent (`route.rs`). The linearization point is the READ of the leaf.
//!
//! A reader relies on two checks as published, and both are wrong (DESIGN.md, section 7). An entry
//! with two different versions counts as another key's entry (two-level versions). A page counts as
//! whole when its two versions agree.
//!
//! A read changes nothing but the cache, so a crash leaves nothing behind.

use dmtree_fabric::{OpKind, OpOutcome, Result};

use crate::client::Sherman;
use crate::format::leaf;

impl Sherman {
    pub(crate) async fn get_op(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.check_key(key)?;
        let scope = self.ep.begin(OpKind::Get);
        self.retried.set(false);
        out.clear();
        let (_, image) = self.leaf_of(key).await?;
        let g = &self.node.g;
        let entry = leaf::used(g, &image).find(|(_, e)| e.whole && e.key == key);
        if let Some((_, e)) = entry {
            out.extend_from_slice(e.value);
        }
        let found = entry.is_some();
        scope.end(self.outcome(if found { OpOutcome::Hit } else { OpOutcome::Absent }));
        Ok(found)
    }
}
