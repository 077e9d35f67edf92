//! The [`dmtree_parts::RangeIndex`] contract of the engine: each method delegates to its operation
//! module. Formatting an empty index is here, too.
//!
//! `format`: one empty leaf under one inner node, with the leaf's table at its owner. The root word
//! in the catalog is written last, so that an index exists only when it is complete. A crash before
//! that leaves memory that no index owns.

use std::sync::Arc;

use dmtree_fabric::{
    Capabilities, Endpoint, Error, ErrorKind, GlobalAddr, OpKind, OpOutcome, Result,
};
use dmtree_parts::hash::fence_tag;
use dmtree_parts::{
    CacheStats, Fill, Found, KeyPlace, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex,
    Resume, Root, ScanRequest, Shape, Values, Work, Write,
};

use crate::client::DmTree;
use crate::direct::DirectWrite;
use crate::format::inner::{free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header};
use crate::format::put_u64;
use crate::format::table::{BODY_AT, Table};
use crate::node::DmNode;
use crate::options::Options;

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
        let least = DmNode::least_cache_bytes(&o.geometry());
        if cx.cache_bytes < least {
            return DmNode::new(cx, o, root).map(|_| ());
        }
        Ok(())
    }

    async fn format(ep: &Endpoint, cx: &NodeContext, o: &Options, root: Root) -> Result<()> {
        let mut cx = cx.clone();
        cx.cache_bytes = cx.cache_bytes.max(DmNode::least_cache_bytes(&o.geometry()));
        let client = Self::new(ep.clone(), Arc::new(DmNode::new(&cx, o, root)?));
        let scope = client.ep.begin(OpKind::Admin);
        if !client.node.has_tables() {
            client.node.lock_tables().format(ep, &client.node.pool, root).await?;
        }
        client.format_empty().await?;
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
        &self.ep
    }

    fn place_of(&self, key: &[u8]) -> Option<KeyPlace> {
        self.known_place(key)
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let (begun, hash) = self.start_get(key, out)?;
        self.get_rest(begun, (key, hash), out).await
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        match self.start_write(key, w)? {
            (DirectWrite::Ended(outcome), _) => Ok(outcome),
            (begun, hash) => self.write_with_room(begun, (key, hash), w).await,
        }
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        self.scan_op(r, page).await
    }

    async fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        self.get_many_op(keys, out).await
    }

    async fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        self.write_many_op(writes, outcomes).await?;
        self.write_rest_with_room(writes, outcomes).await;
        Ok(())
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

    async fn maintain(&mut self) -> Result<Work> {
        self.maintain_op().await
    }

    async fn sweep(&mut self) -> Result<()> {
        Self::sweep(self).await
    }

    async fn gc(&mut self) -> Result<Found> {
        self.gc_op(None).await
    }

    async fn walk(&mut self) -> Result<Shape> {
        self.walk_op().await
    }

    fn cache_stats(node: &DmNode) -> CacheStats {
        node.lookups.added_to(node.cache.stats())
    }
}

impl DmTree {
    /// One empty leaf under one inner node. The root word is written last: before it, the index
    /// does not exist.
    async fn format_empty(&self) -> Result<()> {
        let g = self.node.g;
        let s = self.new_leaf(self.node.o.leaf_capacity as usize).await?;
        let bottom = FenceArea::inline(&g, &[]).expect("nothing fits anywhere");
        let top = FenceArea::infinite(&g);
        let header = |ver, table, slots, level| HeaderParts {
            ver,
            table,
            slots,
            level,
            lo: &bottom,
            hi: &top,
            next: GlobalAddr::NULL,
            forward: GlobalAddr::NULL,
        };
        let (addr, ver) = (s.grant.addr, s.ver());
        let mut image = self.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        image.fill(0);
        put_header(&g, addr, &mut image, &header(ver, s.table, s.capacity, 0));
        (0..s.capacity).for_each(|i| put_free(&g, addr, &mut image, i, ver));
        self.ep.write(addr, image).await?;
        if self.node.has_tables() {
            let mut table = Table::new(addr, ver, fence_tag(None), s.capacity);
            let body = self.table_body(&mut table, s.table).await?;
            self.ep.write(s.table_at.plus(BODY_AT as u64), body).await?;
        }

        let grant = self.alloc_inner().await?;
        let ver = crate::format::Ver { generation: grant.generation, range: 0 };
        let mut image = self.ep.buf(g.inner_image() as u32).await?;
        image.fill(0);
        let none = dmtree_pool::TableId::from_bits(0);
        put_header(&g, grant.addr, &mut image, &header(ver, none, g.fanout, 1));
        for i in 1..g.fanout {
            put_u64(&mut image, g.record_at(i), free_word(grant.addr, ver, i));
        }
        let at = g.record_at(0);
        let raw = &mut image[at..at + g.record()];
        put_record(&g, grant.addr, ver, 0, raw, (&bottom.bytes, bottom.mode), &s.child());
        self.ep.write(grant.addr, image).await?;
        let was = self.ep.cas(self.node.root.word, 0, grant.addr.bits()).await?;
        if was != 0 {
            self.forget_leaf(&s);
            self.node.pool.give_back(&self.node.inner_arena, grant);
            return Err(Error::new(ErrorKind::Exists, "the index has a root already"));
        }
        Ok(())
    }
}
