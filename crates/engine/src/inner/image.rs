//! Memory and images of inner nodes.
//!
//! The lock word lies inside the image and is touched by atomics only: images are written around
//! it. Records that stay keep their places, so that a WRITE that is cut half way loses none.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, GlobalAddr, NodeId, Result, Step};
use dmtree_pool::Grant;

use crate::Client;
use crate::format::inner::free_word;
use crate::format::{Child, FenceArea, Geometry, Mode, put_record, put_u64};
use crate::leaf::NodeHeader;

/// A record as it is to be written: its key's area, and its child.
pub(crate) type RecordParts<'r> = ((&'r [u8], Mode), Child);

/// The record of a child that begins at this fence.
pub(crate) fn record_of<'r>(low: &'r FenceArea, child: Child) -> RecordParts<'r> {
    ((&low.bytes, low.mode), child)
}

/// Fills the image of an inner node: its header, and the records at their places; the other places
/// are free.
pub(crate) fn fill<'r>(
    g: &Geometry,
    addr: GlobalAddr,
    image: &mut [u8],
    header: &NodeHeader,
    mut record_at: impl FnMut(usize) -> Option<RecordParts<'r>>,
) {
    header.put(g, addr, image);
    for i in 0..g.fanout {
        let at = g.record_at(i);
        match record_at(i) {
            Some((key, child)) => {
                let raw = &mut image[at..at + g.record()];
                put_record(g, addr, header.ver, i, raw, key, &child);
            }
            None => put_u64(image, at, free_word(addr, header.ver, i)),
        }
    }
}

/// Memory and images of inner nodes.
#[derive(Clone, Copy)]
pub(crate) struct InnerNodes<'c>(pub &'c Client);

impl InnerNodes<'_> {
    /// Memory for an inner node: on the first memory node while it has room. Without that node
    /// there is no pool, so the loss of another memory node does not cut off leaves that lie
    /// elsewhere.
    pub(crate) async fn take(self) -> Result<Grant> {
        let first = (self.0.node.pool.memory_nodes() > 1).then_some(NodeId::memory(0));
        self.0.node.pool.alloc(&self.0.ep, &self.0.node.inner_arena, first).await
    }

    /// Gives back memory that may have been written, and to which no pointer leads.
    pub(crate) fn give_back(self, grant: Grant) {
        self.0.node.pool.give_back(&self.0.node.inner_arena, grant);
    }

    /// The same for memory that was not written: it uses up no generation.
    pub(crate) fn give_back_unwritten(self, grant: Grant) {
        self.0.node.pool.give_back_unwritten(&self.0.node.inner_arena, grant);
    }

    /// A node that no pointer leads to any more.
    pub(crate) fn retire(self, addr: GlobalAddr, generation: u16) {
        self.0.node.pool.retire(&self.0.node.inner_arena, Grant { addr, generation });
    }

    /// The image of a new node; its lock word is free.
    pub(crate) async fn image<'r>(
        self,
        addr: GlobalAddr,
        header: &NodeHeader,
        records: impl Iterator<Item = RecordParts<'r>>,
    ) -> Result<Buf> {
        let g = self.0.node.g;
        let mut image = self.0.ep.buf(g.inner_image() as u32).await?;
        image.fill(0);
        let mut records = records.fuse();
        fill(&g, addr, &mut image, header, |_| records.next());
        Ok(image)
    }

    /// WRITEs an image around the lock word.
    pub(crate) async fn write(self, addr: GlobalAddr, image: &[u8]) -> Result<()> {
        let tail_at = addr.plus(self.0.node.g.inner_lock_at() as u64 + 8);
        let (head, tail) = self.around_lock(image).await?;
        self.0.ep.step(Step::Structure);
        self.0.ep.chain((write_verb(addr, head), write_verb(tail_at, tail))).await.map(|_| ())
    }

    /// The parts of an image in front of the lock word and behind it.
    pub(crate) async fn around_lock(self, image: &[u8]) -> Result<(Buf, Buf)> {
        let c = self.0;
        let (head, rest) = image.split_at(c.node.g.inner_lock_at());
        let tail = &rest[8..];
        let mut bufs = (c.ep.buf(head.len() as u32).await?, c.ep.buf(tail.len() as u32).await?);
        bufs.0.copy_from_slice(head);
        bufs.1.copy_from_slice(tail);
        Ok(bufs)
    }
}
