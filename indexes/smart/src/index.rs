//! `RangeIndex` for `Smart`, as far as the published design has its operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Capabilities, Endpoint, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Write,
};

use crate::client::Smart;
use crate::format::Geometry;
use crate::node::SmartNode;
use crate::options::Options;

impl RangeIndex for Smart {
    const OPS: OpSet =
        OpSet { delete: false, compare_and_set: false, reverse_scan: false, any_length: false };
    // Soundness needs two capabilities: the last byte of a WRITE lands last, and a compare-and-swap
    // that fails writes nothing back (DESIGN.md). Published systems also run where these are not
    // granted.
    const NEEDS: Capabilities = Capabilities::NONE;
    const PAIRS_PER_LEAF: u64 = 1;
    type Options = Options;
    type Node = SmartNode;

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        SmartNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(SmartNode::least_cache_bytes(&Geometry::new(o)));
        let node = SmartNode::new(&cx, o, root)?;
        let scope = ep.begin(OpKind::Admin);
        // The empty tree is an empty root slot.
        if o.has_lock_table() {
            node.lock_tables().format(ep, &node.pool, root).await?;
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<SmartNode>> {
        SmartNode::new(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<SmartNode>) -> Self {
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
        // A leaf has one pair: there is nothing to fill.
        fill.check()?;
        self.load_op(pairs, sorted).await
    }

    async fn walk(&mut self) -> Result<Shape> {
        self.walk_op().await
    }

    fn cache_stats(node: &SmartNode) -> CacheStats {
        CacheStats {
            hits: node.hits.load(Ordering::Relaxed),
            misses: node.misses.load(Ordering::Relaxed),
            ..node.cache.stats()
        }
    }
}
