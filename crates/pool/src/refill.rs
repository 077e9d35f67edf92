//! The refill of a part of the journal that has a gap, at the compute node that does it.
//!
//! The compute node proposes the refill, and waits until every living compute node has acknowledged
//! it: their writes wait for the journal node from then on, and those that did not have ended. What
//! memory has by then is written to the part. When the journal node was away meanwhile, the
//! membership refuses the end.

use dmtree_fabric::{Change, Endpoint, Error, MemoryState, NodeId, Result, Role};

use crate::node::PoolNode;

/// Between two looks, ns.
const LOOK_NS: u64 = 5_000_000;

/// The journal nodes of a pool.
#[derive(Clone, Copy, Debug)]
pub struct JournalNodes<'n>(pub(crate) &'n PoolNode);

impl JournalNodes<'_> {
    /// The parts of the journal that lack writes, as far as this node knows.
    pub fn journal_gaps(self) -> Vec<NodeId> {
        let state = self.0.view.state();
        state.memory.iter().filter(|m| m.gap).map(|m| m.member.node).collect()
    }

    /// The journal nodes, as the membership has them now.
    ///
    /// # Errors
    /// Those of the membership server.
    pub async fn journal_nodes(self, ep: &Endpoint) -> Result<Vec<MemoryState>> {
        let state = self.0.membership.state(self.0.view.me, ep.now()).await?;
        let journals = state.memory.iter().filter(|m| m.member.node.role() == Role::Journal);
        Ok(journals.cloned().collect())
    }

    /// Whether writes of this node skip a journal node.
    pub fn skips_journal_node(self, node: NodeId) -> bool {
        self.0.view.state().is_skipped(node)
    }

    /// Begins to refill a journal node. `waits` is how long other nodes may take, ns.
    ///
    /// # Errors
    /// `NotFound` for one without a gap, `Unreachable` for one that is away, `Busy` for one that
    /// another compute node refills, `TimedOut` when a compute node does not acknowledge.
    pub async fn begin_refill(self, ep: &Endpoint, node: NodeId, waits: u64) -> Result<()> {
        let found = self.journal_node(node)?;
        let (me, until) = (self.0.view.me, ep.now() + waits);
        self.0.membership.propose(me, Change::Refill(found.member), ep.now()).await?;
        loop {
            let state = self.0.membership.state(me, ep.now()).await?;
            match state.memory_node(node) {
                Some(m) if m.refill == Some(me) && m.member == found.member => {
                    if state.is_acknowledged(&m.acknowledged) {
                        return Ok(());
                    }
                }
                _ => return Err(lost(node)),
            }
            if ep.now() >= until {
                let late: Vec<String> = state
                    .living()
                    .filter(|n| state.memory_node(node).is_none_or(|m| !m.acknowledged.contains(n)))
                    .map(|n| n.to_string())
                    .collect();
                return Err(Error::timed_out(format!(
                    "operations of {} have not ended: try again",
                    late.join(", ")
                )));
            }
            ep.sleep(LOOK_NS).await;
        }
    }

    /// The part has everything that memory has.
    ///
    /// # Errors
    /// `Busy` when the journal node was away meanwhile.
    pub async fn end_refill(self, ep: &Endpoint, node: NodeId) -> Result<()> {
        let m = self.journal_node(node)?;
        self.0.membership.propose(self.0.view.me, Change::Filled(m.member), ep.now()).await
    }

    fn journal_node(self, node: NodeId) -> Result<MemoryState> {
        let state = self.0.view.state();
        let m = state.memory_node(node).ok_or_else(|| {
            Error::not_found(format!("the pool has no journal node {node}, or it has not come yet"))
        })?;
        if m.presence.is_away() {
            return Err(m.presence.refusal(node));
        }
        if !m.gap {
            return Err(Error::not_found(format!("{node} lacks nothing")));
        }
        Ok(m.clone())
    }
}

fn lost(node: NodeId) -> Error {
    Error::busy(format!("{node} went away while it was refilled: begin again when it is back"))
}
