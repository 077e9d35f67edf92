//! `RangeIndex` for the sound `Smart`.

use std::sync::Arc;

use dmtree_fabric::{
    Capabilities, Endpoint, Error, ErrorKind, GlobalAddr, OpKind, OpOutcome, Result,
};
use dmtree_parts::{
    CacheStats, Fill, Found, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Work, Write,
};

use super::client::{Smart, Taken};
use super::format::head::{self, Head, NodeState, NodeType};
use super::gc::Collecting;
use super::get::Reads;
use super::load::Loads;
use super::node::SmartNode;
use super::options::Options;
use super::remove::Removals;
use super::scan::Scans;
use super::walk::Walks;
use super::write::Writes;

impl RangeIndex for Smart {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities::NONE;
    const PAIRS_PER_LEAF: u64 = 1;
    type Options = Options;
    type Node = SmartNode;

    fn carries(o: &Options) -> bool {
        o.combining || o.delegation
    }

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        SmartNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let client = Self::new(ep.clone(), Arc::new(SmartNode::new(cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        client.format_empty().await?;
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
        Reads(self).get_op(key, out).await
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        let mut outcome = Writes(self).write_op(key, w).await;
        // Memory that deletes have freed may only wait for maintenance.
        if outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::Full)
            && Removals(self).reclaim_memory().await.unwrap_or(false)
        {
            outcome = Writes(self).write_op(key, w).await;
        }
        outcome
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scans(self).scan_op(r, page).await
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        // Leaves have one pair: there is nothing to fill.
        fill.check()?;
        Loads(self).load_op(pairs, sorted).await
    }

    async fn maintain(&mut self) -> Result<Work> {
        Removals(self).maintain_op().await
    }

    async fn gc(&mut self) -> Result<Found> {
        Collecting(self).gc_op().await
    }

    async fn walk(&mut self) -> Result<Shape> {
        Walks(self).walk_op().await
    }

    fn cache_stats(node: &SmartNode) -> CacheStats {
        node.lookups.added_to(node.cache.stats())
    }
}

impl Smart {
    /// Writes the root node, with a slot for every symbol; it never moves. The root word is set
    /// last, by CAS, so a crash before leaves no root, only lost memory.
    async fn format_empty(&self) -> Result<()> {
        let mut taken = Taken::default();
        let grant = self.take_node(&mut taken).await?;
        let kind = NodeType::LARGEST;
        let mut image = self.buf(kind.bytes()).await?;
        let generation = grant.generation;
        let head = Head { len: 0, kind, state: NodeState::Linked, closings: 0, generation };
        head::fill(&mut image, head, &[], &[]);
        self.ep.write(grant.addr, image).await?;
        if self.ep.cas(self.node.root.word, 0, grant.addr.bits()).await? != 0 {
            self.give_back(taken);
            return Err(Error::exists("the index has a root already"));
        }
        Ok(())
    }
}
