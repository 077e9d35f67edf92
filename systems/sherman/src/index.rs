//! A client, and the steps of the published design that it has.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, GlobalAddr, OpOutcome, Result};
use dmtree_parts::blink::{BulkLoad, Header, Levels, PageTree, Way, highest, lowest};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Client, Published};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::format::Geometry;
use crate::leaf::Leaves;
use crate::load::Loads;
use crate::node::ShermanNode;
use crate::options::Options;
use crate::scan::Scans;
use crate::walk::Walks;
use crate::write::Writes;

/// A Sherman (or FG) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
#[derive(Debug)]
pub struct Sherman {
    pub(crate) client: Client<ShermanNode>,
    pub(crate) way: Way,
}

dmtree_parts::begins_with!(Sherman => Client<ShermanNode>, client);

impl Published for Sherman {
    const HAS: OpSet = OpSet { reverse_scan: false, any_length: false, ..OpSet::ALL };
    type Settings = Options;
    type Shared = ShermanNode;

    fn least_cache(o: &Options) -> u64 {
        ShermanNode::least_cache_bytes(&Geometry::new(o))
    }

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<ShermanNode> {
        ShermanNode::new(cx, o, root)
    }

    fn connect(ep: Endpoint, node: Arc<ShermanNode>) -> Self {
        Self { client: Client::new(ep, node), way: Way::default() }
    }

    fn cache_use(node: &ShermanNode) -> CacheStats {
        node.pages.cache.stats()
    }

    /// Writes one empty leaf, and then sets the root word.
    async fn format_empty(&self) -> Result<()> {
        let node = &self.node;
        node.locks.format(&self.ep, node).await?;
        let at = self.new_page().await?;
        let (low, high) = (lowest(node.g.key), highest(node.g.key));
        let h = Header::of_leaf(GlobalAddr::NULL, &low, &high);
        let image = Loads(self).leaf_image(&h, &Pairs::default(), 0..0).await?;
        self.ep.write(at, image).await?;
        self.set_first_root(at).await
    }

    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        Leaves(self).find(key, out).await
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        Writes(self).change(key, w).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scans(self).scan_leaves(r, page).await
    }

    async fn load_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        self.fill_empty(all, fill).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        self.node.locks.check_free(&self.ep, &self.node).await?;
        let leaves = self.walk_inner(shape).await?;
        Walks(self).walk_leaves(&leaves, shape).await
    }
}
