//! Point reads: one READ of every leaf in the window.
//!
//! Order of a read:
//! 1. With delegation, the read joins the readers of its key on this compute node
//!    (`parts::sharing`).
//! 2. The window, from the model of the key's segment: no verb.
//! 3. READ all leaves of the window, and their synonyms (`read.rs`). The key, if it is there, is
//!    the result; otherwise it is absent.
//!
//! Invariants: a key is in its leaf, which its rank determines, or in the synonym of that leaf. The
//! linearization point is the READ that has the key; of an absence the READ of its leaf or of the
//! synonym. A read changes nothing, so a crash leaves nothing behind.

use dmtree_fabric::{OpOutcome, Result, Stage};

use crate::client::Rolex;
use crate::directory::Directory;
use crate::read::Group;

impl Rolex {
    /// A read that may share its READ, or that of another reader.
    pub(crate) async fn get_shared(
        &self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        let find = async |out: &mut Vec<u8>| {
            let (_, groups) = self.window(key).await?;
            let value = groups.iter().find_map(|group| group.value(key));
            out.extend_from_slice(value.unwrap_or_default());
            Ok(value.is_some())
        };
        self.node.sharers.read(&self.ep, key, out, find).await
    }

    /// READs the window of a key. Returns the directory that it is a window of, too.
    pub(crate) async fn window(
        &self,
        key: &[u8],
    ) -> Result<(std::sync::Arc<Directory>, Vec<Group<'_>>)> {
        let mut d = self.directory().await?;
        let mut backoff = self.ep.backoff("leaves that move", d.at);
        loop {
            self.ep.stage_cost(Stage::CacheLookup, 1);
            let window = d.models.window(d.number(key));
            let apart = self.node.o.destination_first;
            match self.groups(&d, (window, Some(key)), apart).await? {
                Some(groups) => return Ok((d, groups)),
                None => d = self.next_directory(&d, &mut backoff).await?,
            }
        }
    }
}
