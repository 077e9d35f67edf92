//! Blocks: parts of pairs, and fences, that do not fit into their areas.
//!
//! A block is immutable. It is written before what points to it, and retired after it; a pointer
//! that may be older (`Validation::Unvalidated`) may find the bytes of another block.

use std::borrow::Cow;

use dmtree_fabric::{Buf, Error, NodeId, Result, Step};
use dmtree_pool::BlockPtr;

use crate::format::{FenceArea, Mode, Stored, block, get_key, may_be, put_key_block};
use crate::{Client, KeyHash, Mark, Mutant};

/// Blocks that are filled and not written yet.
pub(crate) type Unwritten = Vec<(BlockPtr, Buf)>;

/// Whether the object that a pointer names is protected while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    /// It was reachable, or locked, in this operation.
    Held,
    /// The pointer comes from a node that may be a tombstone for long: the bytes may be reused.
    Unvalidated,
}

/// Blocks: keys and values that do not fit into an entry, and long fences.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'c>(pub &'c Client);

impl Blocks<'_> {
    /// The bytes of a fence; `None` is the right end.
    pub(crate) async fn fence<'s>(self, stored: Stored<'s>) -> Result<Option<Cow<'s, [u8]>>> {
        match stored {
            Stored::Inline(bytes) => Ok(Some(Cow::Borrowed(bytes))),
            Stored::Infinite => Ok(None),
            // Boxed, being rare.
            Stored::Block(_) => {
                let key = Box::pin(self.fence_in(stored, Validation::Held)).await?;
                Ok(key.map(Cow::Owned))
            }
        }
    }

    pub(crate) async fn fence_in(
        self,
        stored: Stored<'_>,
        trust: Validation,
    ) -> Result<Option<Vec<u8>>> {
        match stored {
            Stored::Inline(bytes) => Ok(Some(bytes.to_vec())),
            Stored::Infinite => Ok(None),
            Stored::Block(at) => {
                Mark::FenceBlock.hit();
                let mut key = Vec::new();
                match self.read_in(at, trust, |k, _| key.extend_from_slice(k)).await? {
                    true => Ok(Some(key)),
                    false => Err(Error::corrupt(format!(
                        "the block of a fence at {} is garbage",
                        at.addr()
                    ))),
                }
            }
        }
    }

    /// READs a block and calls `f` with its key and value; false when the bytes are no block (any
    /// more).
    pub(crate) async fn read(self, at: BlockPtr, f: impl FnOnce(&[u8], &[u8])) -> Result<bool> {
        self.read_in(at, Validation::Held, f).await
    }

    /// The value of a block replaces `out`; false when the bytes are no block (any more).
    pub(crate) async fn value(self, at: BlockPtr, out: &mut Vec<u8>) -> Result<bool> {
        self.read(at, |_, value| replace(out, value)).await
    }

    /// The value of a block replaces `out` if the block has this key; `None` when the bytes are no
    /// block (any more).
    pub(crate) async fn value_of(
        self,
        at: BlockPtr,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<bool>> {
        let mut hit = false;
        let read = self.read(at, |k, value| {
            hit = k == key;
            if hit {
                replace(out, value);
            }
        });
        let is_whole = read.await?;
        Ok(is_whole.then_some(hit))
    }

    async fn read_in(
        self,
        at: BlockPtr,
        trust: Validation,
        f: impl FnOnce(&[u8], &[u8]),
    ) -> Result<bool> {
        if at.is_null() {
            return Ok(false);
        }
        self.0.ep.step(Step::Entry);
        let bytes = match trust {
            Validation::Held => self.0.ep.read(at.addr(), at.capacity()).await?,
            Validation::Unvalidated => self.0.ep.read_unvalidated(at.addr(), at.capacity()).await?,
        };
        let whole = bytes.extract(|b| block::check(at, b).map(|(k, v)| f(k, v)).is_some());
        if !whole {
            Mark::BlockGone.hit();
        }
        Ok(whole)
    }

    /// A fence area for a key. A key that does not fit gets a block, pushed to `later`: it must be
    /// written before the fence.
    pub(crate) async fn area(self, key: &[u8], later: &mut Unwritten) -> Result<FenceArea> {
        let g = &self.0.node.g;
        if let Some(area) = FenceArea::inline(g, key) {
            return Ok(area);
        }
        // Boxed, being rare.
        let (at, buf) = Box::pin(self.take(key, &[], None)).await?;
        later.push((at, buf));
        let mut bytes = vec![0; g.k];
        let hash = KeyHash::of(key);
        let mode = put_key_block(&mut bytes, key, hash, at);
        Ok(FenceArea { bytes, mode })
    }

    /// A filled, unwritten block.
    pub(crate) async fn take(
        self,
        key: &[u8],
        value: &[u8],
        near: Option<NodeId>,
    ) -> Result<(BlockPtr, Buf)> {
        let len = block::bytes(key.len(), value.len());
        let (index, spare) = (self.0.node.root.index, self.0.spare.get());
        let at = self.0.node.pool.alloc_block_of(&self.0.ep, (index, len), near, spare).await?;
        let mut buf = match self.0.ep.buf(len).await {
            Ok(buf) => buf,
            Err(e) => {
                self.give_back_one(at);
                return Err(e);
            }
        };
        block::fill(at, &mut buf, key, value);
        Ok((at, buf))
    }

    /// Writes blocks that nothing points to yet.
    pub(crate) async fn write(self, blocks: &mut Unwritten) -> Result<()> {
        for (at, buf) in blocks.drain(..) {
            self.0.ep.write(at.addr(), buf).await?;
        }
        Ok(())
    }

    /// Gives back blocks that nothing points to.
    pub(crate) fn give_back(self, blocks: Unwritten) {
        blocks.into_iter().for_each(|(at, _)| self.give_back_one(at));
    }

    /// Gives back a block that nothing points to.
    pub(crate) fn give_back_one(self, at: BlockPtr) {
        self.0.node.pool.give_back_block(self.0.node.root.index, at);
    }

    pub(crate) fn retire_fence(self, area: &FenceArea) {
        if let (Mode::Block, Some(Stored::Block(at))) = (area.mode, get_key(&area.bytes, area.mode))
        {
            self.retire(at);
        }
    }

    /// The key of a fence as stored; `None` is the right end.
    pub(crate) async fn fence_key(self, area: &FenceArea) -> Result<Option<Vec<u8>>> {
        self.fence_key_in(area, Validation::Held).await
    }

    /// The same for a header that may be a tombstone's: the fence's block may be gone, and reused.
    pub(crate) async fn fence_key_in(
        self,
        area: &FenceArea,
        trust: Validation,
    ) -> Result<Option<Vec<u8>>> {
        match get_key(&area.bytes, area.mode) {
            Some(Stored::Block(at)) => {
                let key = self.fence_in(Stored::Block(at), trust).await?;
                let own = key.as_ref().is_some_and(|k| may_be(&area.bytes, k, KeyHash::of(k)));
                match own {
                    true => Ok(key),
                    false => Err(Error::corrupt(format!(
                        "the block of a fence at {} holds another key",
                        at.addr()
                    ))),
                }
            }
            Some(stored) => self.fence_in(stored, trust).await,
            None => Err(Error::corrupt("a fence that no writer stores")),
        }
    }

    pub(crate) fn retire(self, block: BlockPtr) {
        if !block.is_null() && self.0.node.has(Mutant::BlockFreedAtOnce) {
            self.give_back_one(block);
        } else if !block.is_null() {
            self.0.node.pool.retire_block(self.0.node.root.index, block);
        }
    }
}

/// The bytes of a value replace others.
pub(crate) fn replace(out: &mut Vec<u8>, value: &[u8]) {
    out.clear();
    out.extend_from_slice(value);
}
