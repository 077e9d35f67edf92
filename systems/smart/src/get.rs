//! Point reads: one READ of the leaf when the slot that names it is cached.
//!
//! Order of a read:
//! 1. With delegation, the read joins the readers of its key on this compute node. A follower
//!    returns the leader's result, and posts no verb.
//! 2. The deepest cached slot (or READ root slot) starts the descent; each step is a READ of a
//!    node.
//! 3. READ leaf, repeated while its checksum does not fit. A valid leaf with the key is the result.
//! 4. Another leaf, or a node with another prefix, shows absence. If the descent began at a cached
//!    slot, `is_final` READs that slot again first (`recheck_absent`).
//!
//! Invariants: a leaf counts only after its checksum and, from a cached slot, its reverse pointer
//! fit. With `closed_batches` the leader closes its batch before the READ, so no follower gets a
//! value that is older than its own operation; as published it does.
//!
//! A read changes nothing but wrong reverse pointers, so a crash leaves nothing behind.

use dmtree_fabric::{OpOutcome, Result};
use dmtree_parts::combine::{Intent, Turn};
use dmtree_parts::delegation::{Entered, Side};
use dmtree_parts::hash::KeyHash;

use crate::cursor::Cursors;
use crate::cursor::parts_at;
use crate::format::{byte_at, leaf};
use crate::index::Smart;

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c Smart);

impl Reads<'_> {
    /// A read that may share its READ, or that of another reader.
    pub(crate) async fn get_shared(
        &self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        match (self.0.node.o.delegation, self.0.node.o.closed_batches) {
            (false, _) => self.find(key, out).await.map(|found| self.0.read_by_itself(found)),
            (true, false) => self.get_in_window(key, out).await,
            (true, true) => self.get_in_group(key, out).await,
        }
    }

    /// As published.
    async fn get_in_window(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let hash = KeyHash::of(key);
        let entered = self.0.node.local.enter(&self.0.ep, (key, hash), Side::Read, None).await?;
        let mut winner = None;
        match entered {
            Entered::Alone => {}
            Entered::Follower(guard) => {
                let found = guard.result(out);
                guard.publish(None);
                return Ok((found, OpOutcome::Shared));
            }
            Entered::Winner(guard) => winner = Some(guard),
        };
        let found = self.find(key, out).await?;
        if let Some(guard) = winner {
            self.0.ep.point().await;
            guard.publish(Some((found, out)));
        }
        Ok(self.0.read_by_itself(found))
    }

    /// The same in batches that are closed before the READ.
    async fn get_in_group(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let (readers, key_hash) = (&self.0.node.readers, (key, KeyHash::of(key)));
        let mut leader = match readers.turn(&self.0.ep, key_hash, &Intent::Read, out, || ()).await?
        {
            Turn::Shared(shared) => return Ok((shared?.found(), OpOutcome::Shared)),
            Turn::Own(leader) => leader,
        };
        if let Some(leader) = &mut leader {
            self.0.ep.point().await;
            leader.close(out);
        }
        let found = self.find(key, out).await;
        if let Some(leader) = leader {
            leader.finish_read(&self.0.ep, found.clone(), out).await;
        }
        found.map(|found| self.0.read_by_itself(found))
    }

    async fn find(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let mut c = Cursors(self.0).start(key).await?;
        loop {
            let cached = c.cached.is_some();
            if c.slot.is_empty() {
                return Ok(false);
            }
            if c.slot.is_leaf() {
                let Some(image) = Cursors(self.0).read_leaf(&mut c, false).await? else { continue };
                match leaf::check(&self.0.node.g, &image).filter(|l| l.key == key) {
                    Some(l) => {
                        out.extend_from_slice(l.value);
                        return Ok(true);
                    }
                    None if Cursors(self.0).is_final(&mut c, cached).await? => return Ok(false),
                    None => continue,
                }
            }
            let Some(n) = Cursors(self.0).read_node(&mut c, key).await? else { continue };
            if parts_at(&n, key).is_some() {
                if Cursors(self.0).is_final(&mut c, cached).await? {
                    return Ok(false);
                }
                continue;
            }
            match n.find(byte_at(key, n.header.discriminates())) {
                Some((i, word)) => c.descend(&n, i, word),
                None => return Ok(false),
            }
        }
    }
}
