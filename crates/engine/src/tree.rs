//! The front of the engine: an index as its users see it.
//!
//! Each method begins an operation of its owner, which says how the operation goes on.

use std::sync::Arc;

use dmtree_fabric::{Capabilities, Endpoint, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::{
    CacheStats, Fill, Found, KeyPlace, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex,
    Resume, Root, ScanRequest, Shape, Values, Work, Write,
};

use crate::change::{Load, format};
use crate::estimate::estimated_keys;
use crate::maintenance::{Collection, Shrink, Sweep, maintain, train_all};
use crate::point::{
    Begun, DirectGet, DirectWrite, Reads, Writes, get_many, write_many, write_rest_with_room,
    write_with_room,
};
use crate::router::Router;
use crate::scan::Scan;
use crate::walk::Walk;
use crate::{Client, DmNode, Options};

/// A DMTree client: one slot. See [`dmtree_parts::RangeIndex`] for what it does.
pub struct DmTree {
    pub(crate) client: Client,
}

impl std::fmt::Debug for DmTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmTree({:?})", self.client.ep)
    }
}

impl DmTree {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<DmNode>) -> Self {
        Self { client: Client::new(ep, node) }
    }

    /// Reads a key; its value replaces `out`.
    ///
    /// # Errors
    /// As [`dmtree_parts::RangeIndex::get`].
    #[inline]
    pub fn begin_get<'a>(
        &'a self,
        key: &'a [u8],
        out: &'a mut Vec<u8>,
    ) -> Begun<bool, impl Future<Output = Result<bool>> + 'a> {
        match Reads(&self.client).begin(key, out) {
            Ok((DirectGet::Ended(found), _)) => Begun::Ended(Ok(found)),
            Ok((begun, hash)) => Begun::Waits(Reads(&self.client).rest(begun, (key, hash), out)),
            Err(e) => Begun::Ended(Err(e)),
        }
    }

    /// Whether maintenance has work: some loads, for callers that ask after every write.
    pub fn maintenance_due(&self) -> bool {
        self.client.node.is_maintenance_due()
    }

    /// Writes a key.
    ///
    /// # Errors
    /// As [`dmtree_parts::RangeIndex::write`].
    #[inline]
    pub fn begin_write<'a>(
        &'a self,
        key: &'a [u8],
        w: Write<'a>,
    ) -> Begun<Outcome, impl Future<Output = Result<Outcome>> + 'a> {
        match Writes(&self.client).begin(key, w) {
            Ok((DirectWrite::Ended(outcome), _)) => Begun::Ended(Ok(outcome)),
            Ok((begun, hash)) => Begun::Waits(write_with_room(&self.client, begun, (key, hash), w)),
            Err(e) => Begun::Ended(Err(e)),
        }
    }

    /// As [`DmTree::begin_write`], for a write that joins no group of writers: [`DmTree::former`]
    /// says what its key had.
    pub fn begin_exchange<'a>(
        &'a self,
        key: &'a [u8],
        w: Write<'a>,
    ) -> Begun<Outcome, impl Future<Output = Result<Outcome>> + 'a> {
        let begun = self.begin_write(key, w);
        self.client.alone.set(true);
        begun
    }

    /// About how many keys there are, from samples: some hundred READs, whatever the size.
    ///
    /// # Errors
    /// Those of the fabric.
    pub async fn len_estimate(&self) -> Result<u64> {
        estimated_keys(&self.client).await
    }

    /// The value that the key of the last exchange had when that took effect, or was refused;
    /// `None` when the key was absent.
    pub fn former(&self) -> Option<Vec<u8>> {
        let found = self.client.found.take();
        let former = self.client.had.get().then(|| found.clone());
        self.client.found.set(found);
        former
    }
}

impl RangeIndex for DmTree {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = DmNode;

    fn carries(o: &Options) -> bool {
        o.techniques.combining || o.techniques.delegation
    }

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        let root = Root { index: 0, word: GlobalAddr::NULL };
        o.check()?;
        if cx.cache_bytes < o.least_cache_bytes() {
            return DmNode::new(cx, o, root).map(|_| ());
        }
        Ok(())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(o.least_cache_bytes());
        let client = Client::new(ep.clone(), Arc::new(DmNode::new(&cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        let pin = client.pin()?;
        if !client.node.has_tables() {
            client.node.lock_tables().format(ep, &client.node.pool, root).await?;
        }
        format(&client).await?;
        drop(pin);
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<DmNode>> {
        DmNode::new(cx, o, root).map(Arc::new)
    }

    fn client(ep: Endpoint, node: Arc<DmNode>) -> Self {
        Self::new(ep, node)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.client.ep
    }

    fn place_of(&self, key: &[u8]) -> Option<KeyPlace> {
        Router(&self.client).known_place(key)
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let (begun, hash) = Reads(&self.client).begin(key, out)?;
        Reads(&self.client).rest(begun, (key, hash), out).await
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        match Writes(&self.client).begin(key, w)? {
            (DirectWrite::Ended(outcome), _) => Ok(outcome),
            (begun, hash) => write_with_room(&self.client, begun, (key, hash), w).await,
        }
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scan::run(&self.client, r, page).await
    }

    async fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        get_many(&self.client, keys, out).await
    }

    async fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        write_many(&self.client, writes, outcomes).await?;
        write_rest_with_room(&self.client, writes, outcomes).await;
        Ok(())
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        fill.check()?;
        let loaded = Load::new(&self.client, fill).run(pairs, sorted).await?;
        train_all(&self.client).await;
        Ok(loaded)
    }

    async fn maintain(&mut self) -> Result<Work> {
        maintain(&self.client).await
    }

    fn has_read_work(&self) -> bool {
        let node = &self.client.node;
        (node.admission.is_some() || node.budget.is_due()) && self.maintenance_due()
    }

    async fn set_cache_bytes(&mut self, bytes: u64) -> Result<()> {
        self.client.node.set_cache_bytes(bytes)?;
        Shrink(&self.client).finish().await
    }

    async fn sweep(&mut self) -> Result<()> {
        Sweep(&self.client).all().await
    }

    async fn gc(&mut self) -> Result<Found> {
        Collection(&self.client).run().await
    }

    async fn walk(&mut self) -> Result<Shape> {
        Walk::run(&self.client).await
    }

    fn cache_stats(node: &DmNode) -> CacheStats {
        let mut stats = node.cache.stats();
        if node.has_images() {
            stats.budget_bytes = node.budget.bytes();
            stats.image_bytes = node.pool.images().bytes(node.root.index);
        }
        if let Some(models) = &node.models {
            stats.budget_bytes += models.budget_bytes();
            stats.used_bytes += models.used_bytes();
        }
        node.lookups.added_to(stats)
    }
}
