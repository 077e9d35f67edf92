//! `RangeIndex` for `Dlsm`: each operation, and the part of the client that executes it.

use std::sync::{Arc, Weak};

use dmtree_fabric::{Capabilities, Endpoint, Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::op::reclaim_when_due;
use dmtree_parts::{
    BatchWrite, CacheStats, Fill, Found, Loaded, NodeContext, OpSet, Outcome, Page, Pause,
    RangeIndex, Resume, Root, ScanRequest, Shape, SnapshotId, Work, Write, check_batch, check_key,
};

use crate::client::Client;
use crate::collect::Collecting;
use crate::load::Loading;
use crate::node::DlsmNode;
use crate::options::{Merging, Options};
use crate::owner::Ranges;
use crate::read::Reads;
use crate::scan::Scans;
use crate::work::Background;
use crate::write::Writes;

/// Most writes of a batch.
const MOST_WRITES: u32 = 4096;

/// A client of the index. [`dmtree_parts::RangeIndex`] documents its operations.
pub struct Dlsm(Client);

impl std::fmt::Debug for Dlsm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dlsm({:?})", self.0.ep)
    }
}

impl Dlsm {
    /// Refuses snapshots where there are none.
    fn has_snapshots(&self) -> Result<()> {
        if self.0.node.o.any_node {
            return Err(Error::unsupported(
                "an index with owners on several nodes has no snapshots: create one \
                 with any_node = false",
            ));
        }
        self.one_shard("snapshots")
    }

    /// Refuses what only an index with one shard of each owner has.
    fn one_shard(&self, what: &str) -> Result<()> {
        let o = &self.0.node.o;
        let (n, way_out) = match o.any_node {
            true => (o.shards * o.owners, "create the index with owners = 1 and shards = 1"),
            false => (o.shards, "create the index with shards = 1"),
        };
        match n {
            1 => Ok(()),
            n => Err(Error::unsupported(format!("{n} ranges have no {what}: {way_out}"))),
        }
    }
}

impl RangeIndex for Dlsm {
    const OPS: OpSet = OpSet { snapshots: true, ..OpSet::ALL };
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = DlsmNode;

    /// A snapshot, and a batch, is of one shard.
    fn ops(o: &Options) -> OpSet {
        // Where any node takes any key, a snapshot would be of several nodes.
        let one = if o.any_node { o.shards * o.owners == 1 } else { o.shards == 1 };
        let batch_writes = if one { MOST_WRITES } else { 0 };
        OpSet { snapshots: one && !o.any_node, batch_writes, ..Self::OPS }
    }

    fn carries(o: &Options) -> bool {
        o.any_node
    }

    fn any_node(o: &Options) -> bool {
        o.any_node
    }

    fn check_options(o: &Options, cx: &NodeContext) -> Result<()> {
        DlsmNode::new(cx, o, Root { index: 0, word: GlobalAddr::NULL }).map(|_| ())
    }

    async fn format(ep: &Endpoint, _: &NodeContext, o: &Options, root: Root) -> Result<()> {
        o.check()?;
        if (o.merging == Merging::Near || o.calls) && ep.caps().mn_cores == 0 {
            return Err(Error::unsupported(
                "merging near the data needs cores of memory nodes: give --cores, or set merging = \
                 \"owner\" (and calls = false)",
            ));
        }
        let scope = ep.begin(OpKind::Admin);
        // The root word says that there is an index; the directory says what it has.
        if ep.cas(root.word, 0, 1).await? != 0 {
            return Err(Error::exists("the index has a root already"));
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }

    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<DlsmNode>> {
        let node = Arc::new(DlsmNode::new(cx, o, root)?);
        if o.any_node {
            // Answers other nodes as long as this one has the index open.
            let this: Weak<DlsmNode> = Arc::downgrade(&node);
            let _ = node.this.set(this.clone());
            cx.pool.services().serve_index(root.index, this);
        }
        Ok(node)
    }

    fn client(ep: Endpoint, node: Arc<DlsmNode>) -> Self {
        Self(Client::new(ep, node))
    }

    fn endpoint(&self) -> &Endpoint {
        &self.0.ep
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        let scope = self.0.ep.begin(OpKind::Get);
        let found = Reads(&self.0).read(key, out).await?;
        scope.end(if found { OpOutcome::Hit } else { OpOutcome::Absent });
        Ok(found)
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        check_key(key)?;
        w.check()?;
        self.0.check_size(key, w.value().unwrap_or_default())?;
        let scope = self.0.ep.begin(w.kind());
        let (outcome, counted) = Writes(&self.0).write_key(key, w).await?;
        scope.end(counted);
        Ok(outcome)
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        Scans(&self.0).scan_page(r, None, page).await
    }

    async fn take_snapshot(&mut self) -> Result<SnapshotId> {
        self.has_snapshots()?;
        let scope = self.0.ep.begin(OpKind::Admin);
        let taken = Scans(&self.0).snapshot().await?;
        scope.end(OpOutcome::Other);
        Ok(taken)
    }

    async fn get_at(&mut self, s: SnapshotId, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        let scope = self.0.ep.begin(OpKind::Get);
        let found = Reads(&self.0).read_at(s, key, out).await?;
        scope.end(if found { OpOutcome::Hit } else { OpOutcome::Absent });
        Ok(found)
    }

    async fn scan_at(
        &mut self,
        s: SnapshotId,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        Scans(&self.0).scan_page(r, Some(s), page).await
    }

    async fn release_snapshot(&mut self, s: SnapshotId) -> Result<()> {
        self.0.node.snapshots.release(s).map(drop)
    }

    async fn write_batch(&mut self, batch: &[BatchWrite<'_>]) -> Result<()> {
        self.one_shard("atomic batches")?;
        check_batch(batch, MOST_WRITES)?;
        let scope = self.0.ep.begin(OpKind::WriteMany);
        Writes(&self.0).write_batch_op(batch).await?;
        scope.end(OpOutcome::Other);
        Ok(())
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        Loading(&self.0).load_op(pairs, sorted, fill).await
    }

    async fn maintain(&mut self) -> Result<Work> {
        if Ranges(&self.0).take_back().await? == Work::Some {
            return Ok(Work::Some);
        }
        reclaim_when_due(&self.0.ep, &self.0.node.pool).await?;
        Collecting(&self.0).collect_when_due().await
    }

    fn workers(o: &Options) -> u32 {
        o.flush_workers + o.compaction_workers
    }

    async fn work(&mut self) -> Result<Pause> {
        Background(&self.0).work_piece().await
    }

    fn is_settled(&self) -> bool {
        self.0.node.is_settled()
    }

    async fn gc(&mut self) -> Result<Found> {
        let scope = self.0.ep.begin(OpKind::Admin);
        let found = Collecting(&self.0).gc_op().await?;
        scope.end(OpOutcome::Other);
        Ok(found)
    }

    async fn walk(&mut self) -> Result<Shape> {
        let scope = self.0.ep.begin(OpKind::Admin);
        let shape = Scans(&self.0).walk_shards().await?;
        scope.end(OpOutcome::Other);
        Ok(shape)
    }

    fn cache_stats(node: &DlsmNode) -> CacheStats {
        node.lookups.added_to(node.cache_use())
    }
}
