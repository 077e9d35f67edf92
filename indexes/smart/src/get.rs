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

use dmtree_fabric::{OpKind, OpOutcome, Result, Stage};
use dmtree_parts::combine::{Arrival, BatchResult, Intent};
use dmtree_parts::hash::KeyHash;

use crate::client::Smart;
use crate::cursor::parts_at;
use crate::format::{byte_at, leaf};
use crate::local::{Entered, Side};

impl Smart {
    pub(crate) async fn get_op(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.check_key(key)?;
        let scope = self.ep.begin(OpKind::Get);
        self.retried.set(false);
        out.clear();
        let (found, shared) = match (self.node.o.delegation, self.node.o.closed_batches) {
            (false, _) => (self.find(key, out).await?, false),
            (true, false) => self.get_in_window(key, out).await?,
            (true, true) => self.get_in_group(key, out).await?,
        };
        scope.end(match (shared, found) {
            (true, _) => OpOutcome::Shared,
            (false, true) => self.outcome(OpOutcome::Hit),
            (false, false) => self.outcome(OpOutcome::Absent),
        });
        Ok(found)
    }

    /// As published. Returns whether the key was found, and whether another operation found it.
    async fn get_in_window(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, bool)> {
        let hash = KeyHash::of(key);
        let entered = self.node.local.enter(&self.ep, (key, hash), Side::Read, None).await?;
        let guard = match entered {
            Entered::Alone => return Ok((self.find(key, out).await?, false)),
            Entered::Follower(guard) => {
                let found = guard.result(out);
                guard.publish(None);
                return Ok((found, true));
            }
            Entered::Winner(guard) => guard,
        };
        let found = self.find(key, out).await?;
        self.ep.point().await;
        guard.publish(Some((found, out)));
        Ok((found, false))
    }

    /// The same in batches that are closed before the READ.
    async fn get_in_group(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, bool)> {
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let arrival = self.node.readers.arrive(key, KeyHash::of(key), &Intent::Read);
        self.ep.point().await;
        let mut lease = match arrival {
            Arrival::Alone => return Ok((self.find(key, out).await?, false)),
            Arrival::Join(group) => {
                let shared = group.share(&self.ep, out).await?;
                return Ok((matches!(shared, BatchResult::Found(true)), true));
            }
            Arrival::Lead(lease) => lease,
        };
        lease.begin(&self.ep).await?;
        self.ep.point().await;
        lease.close(out);
        let result = self.find(key, out).await;
        self.ep.point().await;
        lease.finish(&result.clone().map(BatchResult::Found), Some(out));
        result.map(|found| (found, false))
    }

    async fn find(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let mut c = self.start(key).await?;
        loop {
            let cached = c.cached.is_some();
            if c.slot.is_empty() {
                return Ok(false);
            }
            if c.slot.is_leaf() {
                let Some(image) = self.read_leaf(&mut c, false).await? else { continue };
                match leaf::check(&self.node.g, &image).filter(|l| l.key == key) {
                    Some(l) => {
                        out.extend_from_slice(l.value);
                        return Ok(true);
                    }
                    None if self.is_final(&mut c, cached).await? => return Ok(false),
                    None => continue,
                }
            }
            let Some(n) = self.read_node(&mut c, key).await? else { continue };
            if parts_at(&n, key).is_some() {
                if self.is_final(&mut c, cached).await? {
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
