//! `RangeIndex` for `FpTree`, as far as the published design has its operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{
    Capabilities, Endpoint, Error, ErrorKind, GlobalAddr, OpKind, OpOutcome, Result,
};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Write,
};

use crate::client::FpTree;
use crate::format::Geometry;
use crate::format::inner::Child;
use crate::format::leaf::{Header, Sibling};
use crate::node::FpNode;
use crate::options::Options;
use crate::parent::Node;

impl RangeIndex for FpTree {
    const OPS: OpSet =
        OpSet { delete: false, compare_and_set: false, reverse_scan: false, any_length: false };
    // The layouts rely on WRITEs that land in ascending order, and on entries that are not torn
    // (DESIGN.md). Published systems also run where these are not granted.
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = FpNode;

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        FpNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(FpNode::least_cache_bytes(&Geometry::new(o)));
        let client = Self::new(ep.clone(), Arc::new(FpNode::new(&cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        client.format_empty().await?;
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<FpNode>> {
        FpNode::new(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<FpNode>) -> Self {
        Self::new(ep, node)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.get_op(key, out).await
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        self.write_op(key, w).await
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        self.scan_op(r, page).await
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        fill.check()?;
        self.load_op(pairs, sorted, fill).await
    }

    async fn walk(&mut self) -> Result<Shape> {
        self.walk_op().await
    }

    fn cache_stats(node: &FpNode) -> CacheStats {
        CacheStats {
            hits: node.hits.load(Ordering::Relaxed),
            misses: node.misses.load(Ordering::Relaxed),
            ..node.cache.stats()
        }
    }
}

impl FpTree {
    /// Writes one empty leaf under one inner node, and then sets the root word.
    async fn format_empty(&self) -> Result<()> {
        let g = &self.node.g;
        let capacity = self.node.o.leaf_capacity as usize;
        let leaf = self.new_leaf(capacity).await?;
        let (min, max) = (g.lowest(), g.highest());
        let right = Sibling::default();
        let h = Header { max: &max, min: &min, capacity, version: 0, right };
        let (image, table) = self.built_leaf(&h, &Pairs::default(), 0..0).await?;
        self.ep.write(leaf.table, table).await?;
        self.ep.write(leaf.leaf, image).await?;
        let child = Child { addr: leaf.leaf, table: leaf.table, capacity, version: 0 };
        let node = Node {
            right: GlobalAddr::NULL,
            is_root: true,
            next_is_leaf: true,
            records: vec![(min.clone(), child)],
        };
        let addr = self.new_inner().await?;
        let image = self.node_image(&node, &max).await?;
        self.ep.write(addr, image).await?;
        if self.ep.cas(self.node.root.word, 0, addr.bits()).await? != 0 {
            return Err(Error::new(ErrorKind::Exists, "the index has a root already"));
        }
        Ok(())
    }
}
