//! A client with its memory allocation, and the steps of the published design that it has.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, GlobalAddr, OpOutcome, Result, Stage};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Client, PLAIN, Published, Spare};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::format::Geometry;
use crate::get::Reads;
use crate::load::Loads;
use crate::node::SmartNode;
use crate::options::Options;
use crate::scan::Scans;
use crate::walk::Walks;
use crate::write::Writes;

/// A SMART (or ART) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Smart {
    pub(crate) client: Client<SmartNode>,
    /// Leaves that were written and never linked; later operations use them.
    pub(crate) spare_leaves: Spare,
    /// Nodes likewise. Only their first four slots were written, and the next use overwrites these.
    pub(crate) spare_nodes: Spare,
}

dmtree_parts::begins_with!(Smart => Client<SmartNode>, client);

impl Smart {
    pub(crate) async fn new_leaf(&self) -> Result<GlobalAddr> {
        self.take(&self.spare_leaves, &self.node.leaves, self.node.g.leaf_footprint()).await
    }

    /// Memory for a node of any type. Memory that was never written is zero.
    pub(crate) async fn new_node(&self) -> Result<GlobalAddr> {
        self.take(&self.spare_nodes, &self.node.nodes, self.node.g.node_footprint()).await
    }
}

impl Published for Smart {
    const HAS: OpSet = PLAIN;
    const LEAF_PAIRS: u64 = 1;
    type Settings = Options;
    type Shared = SmartNode;

    fn least_cache(o: &Options) -> u64 {
        SmartNode::least_cache_bytes(&Geometry::new(o))
    }

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<SmartNode> {
        SmartNode::new(cx, o, root)
    }

    fn connect(ep: Endpoint, node: Arc<SmartNode>) -> Self {
        let (spare_leaves, spare_nodes) = Default::default();
        Self { client: Client::new(ep, node), spare_leaves, spare_nodes }
    }

    fn cache_use(node: &SmartNode) -> CacheStats {
        node.cache.stats()
    }

    /// The empty tree is an empty root slot.
    async fn format_empty(&self) -> Result<()> {
        let node = &self.node;
        if node.o.has_lock_table() {
            node.locks.format(&self.ep, node).await?;
        }
        Ok(())
    }

    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        Reads(self).get_shared(key, out).await
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        Writes(self).write_shared(key, w).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let resume = Scans(self).scan_subtrees(r, page).await?;
        self.ep.stage_cost(Stage::ScanCollect, page.len() as u32);
        Ok(resume)
    }

    /// A leaf has one pair: there is nothing to fill.
    async fn load_empty(&self, all: &mut Pairs, _fill: Fill) -> Result<Option<u64>> {
        Loads(self).fill_empty(all).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        Walks(self).walk_tree(shape).await
    }
}
