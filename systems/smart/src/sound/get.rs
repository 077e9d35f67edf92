//! Point reads.
//!
//! Verbs in order: READ leaf along cached slots (fast path); if that proves nothing, READ node per
//! level and READ leaf (slow path, `find.rs`); for a value in a block, READ block.
//!
//! A live leaf with the key, wherever it was met, is the answer. It is in the tree, because a leaf
//! is unlinked only after it has become a tombstone. Its value is current at the sample of the
//! leaf's word, because an area counts only under the version that the word has. Everything else,
//! absence included, is decided on the slow path.
//!
//! With delegation, readers of one key on a compute node share a READ. The leader closes the batch
//! before its first verb, so a follower's operation began before the sample.
//!
//! On the slow path a read completes the unfinished step of an insert: a leaf that a slot names
//! but that is not marked as live (`Pending`) gets CAS word -> live before it counts. A tombstone
//! that a slot still names becomes a maintenance task.

use dmtree_fabric::{GlobalAddr, OpKind, OpOutcome, Result, Sampled, Stage, Step, Verified};
use dmtree_parts::check_key;
use dmtree_parts::combine::{Intent, Turn, is_given_up};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::tree::block;
use dmtree_pool::BlockPtr;

use super::client::Smart;
use super::find::Content;
use super::find::Paths;
use super::format::leaf::{Leaf, LeafState, Stored, Word};
use super::node::Task;

/// A leaf as it was read; key and value are checked.
pub(crate) struct LeafView {
    pub at: GlobalAddr,
    pub lines: usize,
    /// Its word: as READ, or as this client has changed it since.
    pub word: Word,
    bytes: Verified,
    /// When its READ began.
    pub read_at: u64,
}

/// How the leaf that a slot names relates to a key.
pub(crate) enum LeafMatch {
    /// The key's leaf; the key is present.
    Present(LeafView),
    /// The key's tombstone; the key is absent.
    Tombstone(LeafView),
    /// The leaf of another key.
    Other(LeafView),
}

impl LeafView {
    /// A leaf of the tree from the bytes of a READ; `None` when it is torn.
    pub fn of(
        c: &Smart,
        at: GlobalAddr,
        lines: usize,
        bytes: Sampled,
        read_at: u64,
    ) -> Option<Self> {
        let whole = bytes.check(|b| c.node.shape.check(at, b).map(|l| l.word).ok_or(()));
        whole.ok().map(|(word, bytes)| Self { at, lines, word, bytes, read_at })
    }

    pub fn leaf<'a>(&'a self, c: &Smart) -> Leaf<'a> {
        c.node.shape.check(self.at, &self.bytes).expect("accepted")
    }
}

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c Smart);

impl Reads<'_> {
    pub(crate) async fn get_op(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        let scope = self.0.ep.begin(OpKind::Get);
        out.clear();
        let (found, outcome) = self.get_shared(key, out).await?;
        scope.end(outcome);
        Ok(found)
    }

    async fn get_shared(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        let mut leader = None;
        if self.0.node.o.delegation {
            let (key_hash, rest) = ((key, KeyHash::of(key)), || self.0.op.quiescent_section());
            match self.0.node.readers.turn(&self.0.ep, key_hash, &Intent::Read, out, rest).await? {
                Turn::Shared(Err(e)) if is_given_up(&e) => {}
                Turn::Shared(shared) => return Ok((shared?.found(), OpOutcome::Shared)),
                Turn::Own(own) => leader = own,
            }
        }
        if let Some(leader) = &mut leader {
            self.0.ep.point().await;
            leader.close(out);
        }
        let found = {
            let _pin = self.0.op.pin()?;
            self.get_pinned(key, out).await
        };
        if let Some(leader) = leader {
            leader.finish_read(&self.0.ep, found.clone(), out).await;
        }
        let found = found?;
        Ok((found, self.0.op.outcome(if found { OpOutcome::Hit } else { OpOutcome::Absent })))
    }

    async fn get_pinned(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let mut fast = self.fast_leaf(key).await?;
        let mut backoff = self.0.ep.backoff("value being replaced", self.0.node.root.word);
        loop {
            let view = match fast.take() {
                Some(view) => view,
                None => match self.slow_leaf(key).await? {
                    Some(view) => view,
                    None => return Ok(false),
                },
            };
            match view.leaf(self.0).value {
                Stored::Inline(v) => {
                    out.clear();
                    out.extend_from_slice(v);
                    return Ok(true);
                }
                Stored::Block(b) => {
                    if self.read_block(b, out).await? {
                        return Ok(true);
                    }
                }
            }
            self.0.op.retried.set(true);
            backoff.step().await?;
        }
    }

    /// The contents of a value's block; false when the block does not hold the value (any more).
    pub(crate) async fn read_block(&self, b: BlockPtr, out: &mut Vec<u8>) -> Result<bool> {
        let bytes = self.0.ep.read(b.addr(), b.capacity()).await?;
        Ok(bytes.extract(|bytes| {
            let Some((_, value)) = block::check(b, bytes) else { return false };
            out.clear();
            out.extend_from_slice(value);
            true
        }))
    }

    /// The key's live leaf, by the fast path.
    pub(crate) async fn fast_leaf(&self, key: &[u8]) -> Result<Option<LeafView>> {
        let Some((at, lines)) = Paths(self.0).find_fast(key).await? else { return Ok(None) };
        if lines != self.0.node.shape.lines(key.len()) {
            return Ok(None);
        }
        self.0.ep.step(Step::Entry);
        let read_at = self.0.ep.now();
        let bytes = self.0.ep.read(at, self.0.node.shape.bytes(key.len()) as u32).await?;
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let shape = self.0.node.shape;
        let seen = bytes.check(|b| match shape.check(at, b) {
            Some(l) if l.key == key && l.word.state == LeafState::Live => Ok(l.word),
            _ => Err(()),
        });
        Ok(seen.ok().map(|(word, bytes)| LeafView { at, lines, word, bytes, read_at }))
    }

    /// The key's leaf, if the key is present, by the slow path.
    async fn slow_leaf(&self, key: &[u8]) -> Result<Option<LeafView>> {
        let place = Paths(self.0).find(key).await?;
        let Content::Leaf { at, lines, .. } = place.content else { return Ok(None) };
        if lines != self.0.node.shape.lines(key.len()) {
            return Ok(None);
        }
        match self.match_leaf(key, at, lines).await? {
            LeafMatch::Present(view) => Ok(Some(view)),
            LeafMatch::Tombstone(_) => {
                // The deleting client may have stopped before it unlinked the leaf.
                self.0.node.maintenance.push(Task::Unlink(key.to_vec()));
                Ok(None)
            }
            LeafMatch::Other(_) => Ok(None),
        }
    }

    /// The leaf that a slot of the tree names; a pending leaf of the key is marked as live.
    pub(crate) async fn match_leaf(
        &self,
        key: &[u8],
        at: GlobalAddr,
        lines: usize,
    ) -> Result<LeafMatch> {
        let mut view = self.read_leaf(at, lines).await?;
        let (same, word) = (view.leaf(self.0).key == key, view.word);
        Ok(match word.state {
            _ if !same => LeafMatch::Other(view),
            LeafState::Tombstone => LeafMatch::Tombstone(view),
            LeafState::Live => LeafMatch::Present(view),
            LeafState::Pending => {
                let live = word.in_state(LeafState::Live);
                let was = self.0.ep.cas(at, word.bits(), live.bits()).await?;
                if was != word.bits() {
                    // Another client has marked it, and may have changed it since.
                    self.0.op.retried.set(true);
                    return Box::pin(self.match_leaf(key, at, lines)).await;
                }
                view.word = live;
                LeafMatch::Present(view)
            }
        })
    }

    /// READs a leaf of the tree until it is whole.
    pub(crate) async fn read_leaf(&self, at: GlobalAddr, lines: usize) -> Result<LeafView> {
        let mut backoff = self.0.ep.backoff("leaf being written", at);
        loop {
            self.0.ep.step(Step::Entry);
            let read_at = self.0.ep.now();
            let bytes = self.0.ep.read(at, (lines * 64) as u32).await?;
            self.0.ep.stage_cost(Stage::EntryCheck, 1);
            if let Some(view) = LeafView::of(self.0, at, lines, bytes, read_at) {
                return Ok(view);
            }
            self.0.op.retried.set(true);
            backoff.step().await?;
        }
    }
}
