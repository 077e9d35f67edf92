//! A client of an index in one incarnation of this process: a session or a coroutine runs its
//! operations with it.

use std::sync::Arc;

use dmtree_engine::DmTree;
use dmtree_fabric::{Endpoint, Error, Result};
use dmtree_parts::RangeIndex;
use dmtree_pool::PoolNode;

use crate::counters::SessionCounters;
use crate::incarnation::{Attempts, ClientContext, Incarnation, Next};
use crate::open::{Nodes, OpenIndex};
use crate::pool::PoolInner;
use crate::session::SLAB_BYTES;

pub(crate) struct Client {
    pub(crate) ep: Endpoint,
    pub(crate) tree: DmTree,
    pub(crate) counters: Arc<SessionCounters>,
    pub(crate) open: Arc<OpenIndex>,
    pub(crate) incarnation: Arc<Incarnation>,
    node: Arc<PoolNode>,
}

impl Client {
    /// With an executor of its own.
    pub(crate) fn new(open: &Arc<OpenIndex>, compute_node: usize) -> Result<Self> {
        let nodes = open.nodes();
        let node = nodes.incarnation.cluster.compute_node(compute_node)?;
        let ep = node.endpoint(SLAB_BYTES)?;
        Ok(Self::at(open, &nodes, (node, compute_node), ep))
    }

    /// With an endpoint of that node.
    pub(crate) fn at(
        open: &Arc<OpenIndex>,
        nodes: &Nodes,
        (node, compute_node): (Arc<PoolNode>, usize),
        ep: Endpoint,
    ) -> Self {
        Self {
            tree: DmTree::client(ep.clone(), nodes.trees[compute_node].clone()),
            counters: open.register_counters(),
            open: open.clone(),
            incarnation: nodes.incarnation.clone(),
            node,
            ep,
        }
    }

    fn context<'s>(&'s self, pool: &'s Arc<PoolInner>) -> ClientContext<'s> {
        let Self { incarnation, node, ep, .. } = self;
        ClientContext { pool, incarnation, node, ep }
    }

    fn timeout_ns(&self) -> u64 {
        self.open.options.timeout_ms.saturating_mul(1_000_000)
    }

    /// After a change: whether there is a newer incarnation. Waits for it when this one is over.
    ///
    /// # Errors
    /// `Closed` when the index was removed; why there is no newer incarnation in time.
    #[cold]
    pub(crate) async fn is_superseded(&self, pool: &Arc<PoolInner>) -> Result<bool> {
        self.open.check_open()?;
        self.context(pool).is_superseded(self.timeout_ns()).await
    }

    /// The next step of an operation after an error.
    #[cold]
    pub(crate) async fn after(
        &self,
        pool: &Arc<PoolInner>,
        attempts: &mut Attempts,
        e: Error,
        reads: bool,
    ) -> Next {
        attempts.after(self.context(pool), e, reads).await
    }

    /// Limits operations to the remaining time of one that is tried again, or to their own.
    pub(crate) fn limit(&self, attempts: Option<&Attempts>) {
        match attempts {
            Some(attempts) => attempts.limit(&self.ep),
            None => self.ep.set_timeout(self.timeout_ns()),
        }
    }

    /// Lets `stats` see the costs counted up to now.
    pub(crate) fn publish(&self) {
        self.counters.publish(self.ep.snapshot());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.publish();
        self.open.retire(&self.counters);
    }
}
