//! `RangeIndex` for `Sherman`, as far as the published design has its operations.

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

use crate::client::Sherman;
use crate::format::{Geometry, Header};
use crate::node::ShermanNode;
use crate::options::Options;

impl RangeIndex for Sherman {
    const OPS: OpSet =
        OpSet { delete: true, compare_and_set: true, reverse_scan: false, any_length: false };
    // The layouts rely on READs and WRITEs that do not cross (DESIGN.md). Published systems also
    // run where this is not granted.
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = ShermanNode;

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        ShermanNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(ShermanNode::least_cache_bytes(&Geometry::new(o)));
        let client = Self::new(ep.clone(), Arc::new(ShermanNode::new(&cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        client.node.lock_tables().format(ep, &client.node.pool, root).await?;
        client.format_empty().await?;
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<ShermanNode>> {
        ShermanNode::new(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<ShermanNode>) -> Self {
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

    fn cache_stats(node: &ShermanNode) -> CacheStats {
        CacheStats {
            hits: node.hits.load(Ordering::Relaxed),
            misses: node.misses.load(Ordering::Relaxed),
            ..node.cache.stats()
        }
    }
}

impl Sherman {
    /// Writes one empty leaf, and then sets the root word.
    async fn format_empty(&self) -> Result<()> {
        let g = &self.node.g;
        let at = self.new_page().await?;
        let (low, high) = (g.lowest(), g.highest());
        let h = Header::of_leaf(GlobalAddr::NULL, &low, &high);
        let image = self.leaf_image(&h, &Pairs::default(), 0..0).await?;
        self.ep.write(at, image).await?;
        if self.ep.cas(self.node.root.word, 0, at.bits()).await? != 0 {
            return Err(Error::new(ErrorKind::Exists, "the index has a root already"));
        }
        Ok(())
    }
}
