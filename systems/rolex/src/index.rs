//! A client, and the steps of the published design that it has.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_fabric::{Endpoint, Error, GlobalAddr, OpOutcome, Result};
use dmtree_parts::op::Written;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::published::{Client, PLAIN, Published};
use dmtree_parts::{
    CacheStats, Fill, NodeContext, OpSet, Page, Resume, Root, ScanRequest, Shape, Write,
};

use crate::directory::Directory;
use crate::load::Loads;
use crate::node::RolexNode;
use crate::options::Options;
use crate::read::Reads;
use crate::scan::Scans;
use crate::walk::Walks;
use crate::write::Writes;

/// A ROLEX client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Rolex {
    pub(crate) client: Client<RolexNode>,
    /// The directory that it has used last.
    pub(crate) directory: RefCell<Option<Arc<Directory>>>,
    /// Synonyms by their leaves. As published every client has its own, and forgets none.
    pub(crate) synonyms: RefCell<BTreeMap<GlobalAddr, GlobalAddr>>,
}

dmtree_parts::begins_with!(Rolex => Client<RolexNode>, client);

impl Published for Rolex {
    const HAS: OpSet = PLAIN;
    type Settings = Options;
    type Shared = RolexNode;

    fn open(cx: &NodeContext, o: &Options, root: Root) -> Result<RolexNode> {
        RolexNode::new(cx, o, root)
    }

    fn connect(ep: Endpoint, node: Arc<RolexNode>) -> Self {
        let (directory, synonyms) = Default::default();
        Self { client: Client::new(ep, node), directory, synonyms }
    }

    fn cache_use(node: &RolexNode) -> CacheStats {
        node.cache_stats()
    }

    async fn format_empty(&self) -> Result<()> {
        Loads(self).format_directory().await
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

    async fn hear(&self, keys: &mut dyn Iterator<Item = Result<Vec<u8>>>) -> Result<bool> {
        if !self.node.o.foretold {
            return Ok(false);
        }
        let mut told: Vec<Vec<u8>> = Vec::new();
        for key in keys {
            let key = key?;
            if told.last().is_some_and(|last| *last >= key) {
                let number = told.len() + 1;
                return Err(Error::invalid(format!(
                    "foretold key {number} is not above the one before"
                )));
            }
            told.push(key);
        }
        let keys = told.iter().map(Vec::as_slice).collect();
        let trained = Loads(self).train(keys, &Pairs::default()).await?;
        let late = "keys are foretold before the first pair is stored, and this index has pairs";
        trained.map(|_| true).ok_or_else(|| Error::invalid(late))
    }

    /// The fill is what the ranks of the keys make it: leaves are full but for keys to come.
    async fn load_empty(&self, all: &mut Pairs, _: Fill) -> Result<Option<u64>> {
        let keys = (0..all.len()).map(|i| all.key(i)).collect();
        Loads(self).train(keys, all).await
    }

    async fn walk_all(&self, shape: &mut Shape) -> Result<()> {
        Walks(self).walk_leaves(shape).await
    }
}
