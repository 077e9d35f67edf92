//! Growth of a pool by memory nodes that join while it is in use.
//!
//! The agent of each compute node gets to know a new memory node in this order: the size of its
//! region from the node directory; its superblock, which has to describe that region; then the
//! node's share of the geometry (`shape.rs`); then the acknowledgement. The membership opens the
//! memory node when every living compute node has acknowledged.
//!
//! Invariant G: an address on a memory node is stored in the pool only after every living compute
//! node knows that memory node. A compute node that joins gets to know all memory nodes of the
//! membership state before its joining ends, and so before any client of it runs.
//!
//! Crashes. A compute node that dies owes no acknowledgement. A memory node that dies before it is
//! open holds nothing; its number is not used again.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use dmtree_fabric::{Change, Endpoint, Error, GlobalAddr, NodeId, Result, Role};

use crate::layout::{NodeLayout, SUPERBLOCK, SUPERBLOCK_BYTES};
use crate::membership_agent::PoolMembership;

impl PoolMembership<'_> {
    /// Gets to know the memory nodes of the membership, and acknowledges new ones.
    ///
    /// # Errors
    /// Those of the fabric; `Corrupt` when a superblock describes another region. Of several memory
    /// nodes, one that fails does not hold back the others.
    pub(crate) async fn know_memory(self, ep: &Endpoint) -> Result<()> {
        let (state, mut outcome) = (self.0.view.state(), Ok(()));
        for m in state.memory.iter().filter(|m| m.member.node.role() == Role::Memory) {
            let number = m.member.node.index();
            if self.0.shape.is_open(number) || m.presence.is_away() {
                continue;
            }
            if self.0.shape.layout(number).is_none() {
                match self.look_at(ep, m.member.node).await {
                    Ok(layout) => self.0.shape.add(layout),
                    Err(e) => {
                        outcome = Err(e);
                        continue;
                    }
                }
            }
            if !m.is_new {
                self.0.shape.set_open(number);
                self.0.supply().found_room();
            } else if !m.acknowledged.contains(&self.0.view.me) {
                let knows = Change::Knows(m.member);
                self.0.membership.propose(self.0.view.me, knows, ep.now()).await?;
            }
        }
        outcome
    }

    /// The layout of a memory node, after a check of its superblock. The lease of this node is not
    /// renewed meanwhile, so it takes the time of a call at most.
    async fn look_at(self, ep: &Endpoint, node: NodeId) -> Result<NodeLayout> {
        let region_bytes = self.0.fabric.region_bytes(node).ok_or_else(|| {
            Error::busy(format!("{node} is not in the node directory that this node has"))
        })?;
        let layout = NodeLayout::new(node, region_bytes, self.0.shape.chunk_bytes);
        let at = GlobalAddr::new(node, SUPERBLOCK);
        let mut read = pin!(ep.read(at, SUPERBLOCK_BYTES as u32));
        let mut over = pin!(ep.sleep(self.call_ns()));
        let late =
            || Err(Error::timed_out(format!("{node} did not answer a READ of its superblock")));
        let head = poll_fn(|cx| match read.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => over.as_mut().poll(cx).map(|()| late()),
        });
        let head = head.await?;
        head.extract(|b| layout.check(b))?;
        Ok(layout)
    }
}
