//! Bulk load: an index without shards gets them, of as many pairs each, and whole tables at the
//! first level that has room for all. Into another index pairs are put, by the owner of all keys.

use dmtree_fabric::{OpKind, OpOutcome, Result};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Fill, Loaded, Write, check_key, check_value};
use dmtree_pool::BlockPtr;

use crate::build::Builder;
use crate::client::Client;
use crate::collect::blocks_in;
use crate::key::Tag;
use crate::node::DlsmNode;
use crate::router::Directory;
use crate::store::Store;
use crate::table::Meta;
use crate::version::Version;
use crate::work::Background;
use crate::write::Writes;

/// Pairs between two awaits.
const TOGETHER: u64 = 1024;

/// Blocks that owners hold once a directory names them; dropped before, this node does.
struct Unheld<'n>(&'n DlsmNode, Vec<BlockPtr>);

impl<'n> Unheld<'n> {
    fn begin(node: &'n DlsmNode, blocks: Vec<BlockPtr>) -> Self {
        node.let_go(blocks.iter().copied());
        Self(node, blocks)
    }
}

impl Drop for Unheld<'_> {
    fn drop(&mut self) {
        self.0.hold(self.1.drain(..));
    }
}

/// A bulk load.
pub(crate) struct Loading<'c>(pub(crate) &'c Client);

impl Loading<'_> {
    pub(crate) async fn load_op(
        &self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        fill.check()?;
        let all = Pairs::collect(pairs, sorted, |key, value| {
            check_key(key)?;
            check_value(value)?;
            self.0.check_size(key, value)
        })?;
        let loaded = Loaded { pairs: all.len() as u64, leaves: 0 };
        if all.is_empty() {
            return Ok(loaded);
        }
        let scope = self.0.ep.begin(OpKind::Load);
        let is_cut = self.0.node.opened(&self.0.ep).await?.is_some();
        let tables = if is_cut { None } else { self.load_tables(&all).await? };
        scope.end(OpOutcome::Other);
        if let Some(leaves) = tables {
            return Ok(Loaded { leaves, ..loaded });
        }
        for (key, value) in (0..all.len()).map(|i| all.get(i)) {
            self.0.ep.renew_deadline();
            Writes(self.0).write_key(key, Write::Put(value)).await?;
        }
        Ok(loaded)
    }

    /// Loads all pairs as tables; `None` when another client was first.
    async fn load_tables(&self, all: &Pairs) -> Result<Option<u64>> {
        let o = &self.0.node.o;
        let shards = o.owners as usize * o.shards as usize;
        let mut borders = o.borders.clone();
        if borders.is_empty() && all.len() >= shards {
            borders = (1..shards).map(|i| all.key(i * all.len() / shards).to_vec()).collect();
        }
        let (mut from, mut loaded, mut tables) = (0, Vec::new(), 0);
        for number in 0..=borders.len() {
            let end = borders.get(number).map_or(all.len(), |border| {
                let below = (from..all.len()).take_while(|i| all.key(*i) < &border[..]);
                from + below.count()
            });
            let metas = match self.load_shard(number, all, from..end).await {
                Ok(metas) => metas,
                Err(e) => {
                    self.discard(&loaded);
                    return Err(e);
                }
            };
            let bytes = metas.iter().map(Meta::data_bytes).sum();
            tables += metas.len() as u64;
            loaded.push((Version::level_for(o, bytes) as u8, metas));
            from = end;
        }
        let directory = Directory { borders, loaded };
        let epoch = self.0.node.pool.register();
        // A collection that begins meanwhile waits, and finds the tables' owners by the directory.
        let _announced = epoch.guard();
        let metas = directory.loaded.iter().flat_map(|(_, its)| its);
        let mut unheld = Unheld::begin(&self.0.node, blocks_in(metas).collect());
        let is_first = self.0.node.publish(&self.0.ep, &directory).await?;
        if is_first {
            unheld.1.clear();
        } else {
            drop(unheld);
            self.discard(&directory.loaded);
        }
        Ok(is_first.then_some(tables))
    }

    /// No directory names these tables.
    fn discard(&self, loaded: &[(u8, Vec<Meta>)]) {
        loaded.iter().flat_map(|(_, its)| its).for_each(|meta| self.0.node.garbage.add(meta));
    }

    async fn load_shard(
        &self,
        number: usize,
        all: &Pairs,
        range: std::ops::Range<usize>,
    ) -> Result<Vec<Meta>> {
        let o = &self.0.node.o;
        let mut store = Background(self.0).blocks(self.0.node.home(number), true);
        let mut metas = Vec::new();
        let built = async {
            let mut builder = Builder::new(&mut store, o.format, o.piece_bytes);
            for (seq, (key, value)) in (1..).zip(range.map(|i| all.get(i))) {
                if seq % TOGETHER == 0 {
                    self.0.ep.renew_deadline();
                }
                if builder.bytes() >= o.table_bytes {
                    metas.extend(builder.finish().await?.map(|built| built.meta));
                    builder = Builder::new(&mut store, o.format, o.piece_bytes);
                }
                builder.push(key, Tag::new(seq, true), value).await?;
            }
            metas.extend(builder.finish().await?.map(|built| built.meta));
            store.settle().await
        };
        match built.await {
            Ok(()) => Ok(metas),
            Err(e) => {
                store.abandon().await;
                Err(e)
            }
        }
    }
}
