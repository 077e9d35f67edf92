//! How new tables get onto a memory node: by WRITEs or calls of the owner, into blocks of the pool,
//! or by the processor of the memory node, into memory that it takes for itself.

use dmtree_fabric::verb::write;
use dmtree_fabric::{Endpoint, NodeId, Result};
use dmtree_pool::{BlockPtr, block_class_of};

use crate::fetch::{ask, no_processor, pass_message};
use crate::host::Host;
use crate::node::DlsmNode;
use crate::table::{Extent, Maker};
use crate::wire::{self, MOST_BYTES, Reply, Request};

/// Where tables are written.
#[allow(async_fn_in_trait, reason = "it is used by clients, which stay on their thread")]
pub(crate) trait Store {
    /// What takes the memory back.
    const MAKER: Maker;

    /// Stores a piece; it is there after [`Store::settle`].
    async fn put(&mut self, bytes: &[u8]) -> Result<Extent>;
    /// Everything that was put is there.
    async fn settle(&mut self) -> Result<()>;
    /// What was put since the last call is named by a table.
    fn keep(&mut self);
    /// Gives back what no table names: a build has failed.
    async fn abandon(&mut self);
}

/// A block as an extent names it.
pub(crate) fn block_of(extent: &Extent) -> BlockPtr {
    let class = block_class_of(extent.bytes.max(1)).unwrap_or(0);
    BlockPtr::new(extent.at().node(), extent.at().offset(), class)
}

/// Blocks of the pool. A future that is dropped in a build leaves its blocks: WRITEs may be on
/// their way there.
pub(crate) struct Remote<'e> {
    pub(crate) ep: &'e Endpoint,
    pub(crate) node: &'e DlsmNode,
    pub(crate) near: NodeId,
    /// WRITEs are awaited at the end, not each.
    pub(crate) ring: bool,
    pub(crate) calls: bool,
    pub(crate) put: Vec<Extent>,
}

impl Store for Remote<'_> {
    const MAKER: Maker = Maker::Owner;

    async fn put(&mut self, bytes: &[u8]) -> Result<Extent> {
        let (ep, n) = (self.ep, bytes.len() as u32);
        let block = self.node.take_block(ep, n, self.near).await?;
        let extent = Extent::new(block.addr(), n);
        self.put.push(extent);
        if self.calls {
            pass_message(ep).await;
            for (i, part) in bytes.chunks(MOST_BYTES).enumerate() {
                let offset = block.addr().offset() + (i * MOST_BYTES) as u64;
                let request = Request::Write { offset, bytes: part };
                match ask(ep, block.addr().node(), &request).await? {
                    Reply::Done => {}
                    _ => return Err(wire::unexpected(block.addr().node())),
                }
            }
            pass_message(ep).await;
            return Ok(extent);
        }
        // A buffer is there when an earlier WRITE has ended: the ring is the slab.
        let mut buf = ep.buf(n).await?;
        buf.copy_from_slice(bytes);
        match self.ring {
            true => ep.detach(write(block.addr(), buf), None),
            false => drop(ep.write(block.addr(), buf).await?),
        }
        Ok(extent)
    }

    async fn settle(&mut self) -> Result<()> {
        if self.ring { self.ep.drain().await } else { Ok(()) }
    }

    fn keep(&mut self) {
        self.put.clear();
    }

    async fn abandon(&mut self) {
        // A WRITE that is still on its way would land in a block of another holder.
        if self.ep.drain().await.is_ok() {
            self.node.give_back(self.put.drain(..).map(|extent| block_of(&extent)));
        }
    }
}

/// Memory of the node that a job runs on. What no table names when this is dropped goes back: a job
/// that ends early has changed nothing.
pub(crate) struct Own<'e> {
    ep: &'e Endpoint,
    host: &'e Host,
    index: u32,
    put: Vec<Extent>,
    is_kept: bool,
}

impl<'e> Own<'e> {
    pub(crate) fn new(ep: &'e Endpoint, host: &'e Host, index: u32) -> Self {
        Self { ep, host, index, put: Vec::new(), is_kept: false }
    }

    /// The answer of the job names all tables, which are this owner's.
    pub(crate) fn keep_all(mut self, owner: u64) {
        self.host.space.set_owner(&self.put, (self.index, owner));
        self.is_kept = true;
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        for extent in self.put.drain(..).filter(|_| !self.is_kept) {
            self.host.space.free(extent.at().offset());
        }
    }
}

impl Store for Own<'_> {
    const MAKER: Maker = Maker::Memory;

    async fn put(&mut self, bytes: &[u8]) -> Result<Extent> {
        let at = self.host.take(self.ep, self.index, bytes.len() as u64).await?;
        let extent = Extent::new(at, bytes.len() as u32);
        self.put.push(extent);
        let memory = self.ep.own_memory().ok_or_else(|| no_processor(at.node()))?;
        memory.write(at.offset(), bytes)?;
        Ok(extent)
    }

    async fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn keep(&mut self) {}

    async fn abandon(&mut self) {}
}
