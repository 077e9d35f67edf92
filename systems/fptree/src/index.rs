//! The steps of `FpTree`, as far as the published design has them.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, GlobalAddr, OpOutcome, Result};
use dmtree_parts::blink::{highest, lowest};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{PLAIN, Published};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::client::FpTree;
use crate::format::Geometry;
use crate::format::inner::Child;
use crate::format::leaf::{Header, Sibling};
use crate::get::Reads;
use crate::load::Loads;
use crate::node::FpNode;
use crate::options::Options;
use crate::parent::Node;
use crate::parent::Parents;
use crate::scan::Scans;
use crate::split::Splits;
use crate::walk::Walks;
use crate::write::Writes;

impl Published for FpTree {
    const HAS: OpSet = PLAIN;
    type Settings = Options;
    type Shared = FpNode;

    fn least_cache(o: &Options) -> u64 {
        FpNode::least_cache_bytes(&Geometry::new(o))
    }

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<FpNode> {
        FpNode::new(cx, o, root)
    }

    fn connect(ep: Endpoint, node: Arc<FpNode>) -> Self {
        Self::new(ep, node)
    }

    fn cache_use(node: &FpNode) -> CacheStats {
        node.cache.stats()
    }

    /// Writes one empty leaf under one inner node, and then sets the root word.
    async fn format_empty(&self) -> Result<()> {
        let g = &self.node.g;
        let capacity = self.node.o.leaf_capacity as usize;
        let leaf = self.new_leaf(capacity).await?;
        let (min, max) = (lowest(g.key), highest(g.key));
        let right = Sibling::default();
        let h = Header { max: &max, min: &min, capacity, version: 0, right };
        let (image, table) = Splits(self).built_leaf(&h, &Pairs::default(), 0..0).await?;
        self.ep.write(leaf.table, table).await?;
        self.ep.write(leaf.leaf, image).await?;
        let child = Child { addr: leaf.leaf, table: leaf.table, capacity, version: 0 };
        let (right, records) = (GlobalAddr::NULL, vec![(min.clone(), child)]);
        let node = Node { right, is_root: true, next_is_leaf: true, records };
        let addr = self.new_inner().await?;
        let image = Parents(self).node_image(&node, &max).await?;
        self.ep.write(addr, image).await?;
        self.set_first_root(addr).await
    }

    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        Reads(self).get_shared(key, out).await
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        Writes(self).write_shared(key, w).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scans(self).scan_leaves(r, page).await
    }

    async fn load_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        Loads(self).fill_empty(all, fill).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        Walks(self).walk_tree(shape).await
    }
}
