//! A client, and the steps of the published design that it has.

use std::cell::Cell;
use std::sync::Arc;

use dmtree_fabric::{Endpoint, GlobalAddr, OpOutcome, Result};
use dmtree_parts::blink::{BulkLoad, Levels, PageTree, Way, highest, lowest};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Client, PLAIN, Published};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::get::Reads;
use crate::node::ChimeNode;
use crate::options::{Options, Scan};
use crate::scan::Scans;
use crate::scan_dense::DenseScans;
use crate::split::Splits;
use crate::walk::Walks;
use crate::write::Writes;

/// A CHIME client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Chime {
    pub(crate) client: Client<ChimeNode>,
    pub(crate) way: Way,
    /// The vacancy word that it wrote last, of whatever leaf.
    pub(crate) last_word: Cell<u64>,
}

dmtree_parts::begins_with!(Chime => Client<ChimeNode>, client);

impl Published for Chime {
    const HAS: OpSet = PLAIN;
    type Settings = Options;
    type Shared = ChimeNode;

    fn deletes(o: &Options) -> bool {
        o.deletes
    }

    fn has_deletes(&self) -> bool {
        self.node.o.deletes
    }

    fn least_cache(o: &Options) -> u64 {
        ChimeNode::least_cache_bytes(o)
    }

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<ChimeNode> {
        ChimeNode::new(cx, o, root)
    }

    fn connect(ep: Endpoint, node: Arc<ChimeNode>) -> Self {
        Self { client: Client::new(ep, node), way: Way::default(), last_word: Cell::new(0) }
    }

    fn cache_use(node: &ChimeNode) -> CacheStats {
        node.cache_stats()
    }

    /// Writes one empty leaf, and then sets the root word.
    async fn format_empty(&self) -> Result<()> {
        let (g, at) = (&self.node.g, self.new_page().await?);
        let mut leaf = g.empty_leaf();
        leaf.set_metadata(GlobalAddr::NULL, &lowest(g.key), &highest(g.key));
        Splits(self).write_new_leaf(at, &leaf).await?;
        self.set_first_root(at).await
    }

    async fn read_key(&self, key: &[u8], out: &mut Vec<u8>) -> Result<(bool, OpOutcome)> {
        Reads(self).get_shared(key, out).await
    }

    async fn write_key(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        Writes(self).write_shared(key, w).await
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        match self.node.o.scan {
            Scan::Coarse => Scans(self).scan_leaves(r, page).await,
            Scan::Fine | Scan::Greedy => DenseScans(self).scan_integers(r, page).await,
        }
    }

    async fn load_empty(&self, all: &mut Pairs, fill: Fill) -> Result<Option<u64>> {
        self.fill_empty(all, fill).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        let leaves = self.walk_inner(shape).await?;
        Walks(self).walk_leaves(&leaves, shape).await
    }
}
