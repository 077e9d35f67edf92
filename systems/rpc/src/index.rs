//! `RangeIndex` for `Rpc`.

use std::sync::Arc;

use dmtree_fabric::{Capabilities, Endpoint, Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Values, Write,
};

use crate::client::{Rpc, unexpected};
use crate::get::Gets;
use crate::load::Loads;
use crate::node::RpcNode;
use crate::options::Options;
use crate::scan::Scans;
use crate::wire::{Reply, Request};
use crate::write::Writes;

impl RangeIndex for Rpc {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities { mn_cores: 1, ..Capabilities::NONE };
    type Options = Options;
    type Node = RpcNode;

    fn carries(_: &Options) -> bool {
        false
    }

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        RpcNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let client = Self::new(ep.clone(), Arc::new(RpcNode::new(cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        let first = match client.ask(&[], &Request::Locate(&[])).await? {
            (from, Reply::Leaf(offset)) => GlobalAddr::new(from, offset),
            (from, other) => return Err(unexpected(from, &other)),
        };
        if client.ep.cas(root.word, 0, first.bits()).await? != 0 {
            return Err(Error::exists("the index has a root already"));
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<RpcNode>> {
        RpcNode::new(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<RpcNode>) -> Self {
        Self::new(ep, node)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Gets(self).get_op(key, out).await
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        Writes(self).write_op(key, w).await
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scans(self).scan_op(r, page).await
    }

    async fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        Gets(self).get_many_op(keys, out).await
    }

    async fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        Writes(self).write_many_op(writes, outcomes).await
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        Loads(self).load_op(pairs, sorted, fill).await
    }

    async fn walk(&mut self) -> Result<Shape> {
        Loads(self).walk_op().await
    }

    fn cache_stats(node: &RpcNode) -> CacheStats {
        node.lookups.added_to(node.routes.stats())
    }
}
