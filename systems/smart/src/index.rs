//! The steps of `Smart`, as far as the published design has them.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, OpOutcome, Result, Stage};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Client, Published};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::client::Smart;
use crate::format::Geometry;
use crate::node::SmartNode;
use crate::options::Options;

impl Published for Smart {
    const HAS: OpSet = OpSet {
        delete: false,
        compare_and_set: false,
        reverse_scan: false,
        any_length: false,
        ..OpSet::ALL
    };
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
        self.get_shared(key, out).await
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        self.write_shared(key, w).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let resume = self.scan_subtrees(r, page).await?;
        self.ep.stage_cost(Stage::ScanCollect, page.len() as u32);
        Ok(resume)
    }

    /// A leaf has one pair: there is nothing to fill.
    async fn load_empty(&self, all: &mut Pairs, _fill: Fill) -> Result<Option<u64>> {
        self.fill_empty(all).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        self.walk_tree(shape).await
    }
}
