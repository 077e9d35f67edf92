//! Point reads: one READ of the leaf.
//!
//! As published, an entry whose two versions differ is not this key's (with two-level versions), and a page is whole when its two
//! versions agree: both are wrong, see DESIGN.md.

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
