//! Bulk load: builds subtrees beside the empty root, and links each by one CAS of a root slot.
//!
//! The pairs are grouped by their first symbol. For each group the load WRITEs leaves and nodes, in
//! batches and in any order, and then CAS root slot: 0 -> subtree, the linearization point of the
//! group. Groups take the root's slots in order.
//!
//! Invariant: nothing names the memory of a group before its CAS. If the root is not empty, or the
//! CAS finds another child, the pairs of the group are put one by one, and the group's memory is
//! given back. The load is one pinned operation.
//!
//! A crash leaves whole groups: all pairs of a linked one, and none of the others. The memory of an
//! unlinked group is found by garbage collection.

use std::ops::Range;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Buf, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::keys::common;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Loaded, Write, check_key, check_value};
use dmtree_pool::{BlockPtr, Grant};

use super::client::{Smart, Taken};
use super::find::Paths;
use super::find::View;
use super::format::head::NodeType;
use super::format::slot::{Slot, Symbol};
use super::insert::Inserts;
use super::write::Writes;

const WRITES_TOGETHER: usize = 64;

/// A node under construction.
struct Frame {
    /// Bytes of its prefix.
    len: usize,
    /// Its symbol in the node above.
    symbol: Symbol,
    /// Pairs that are not below a slot yet.
    rest: Range<usize>,
    slots: Vec<Slot>,
}

/// Memory of a subtree, to be given back if it cannot be linked; and WRITEs that are not posted
/// yet.
#[derive(Default)]
struct Built {
    leaves: Vec<(usize, Grant)>,
    nodes: Vec<Grant>,
    blocks: Vec<BlockPtr>,
    verbs: VerbVec,
}

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c Smart);

impl Loads<'_> {
    pub(crate) async fn load_op(
        &self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
    ) -> Result<Loaded> {
        let all = Pairs::collect(pairs, sorted, |key, value| {
            check_key(key).and_then(|()| check_value(value))
        })?;
        let scope = self.0.ep.begin(OpKind::Load);
        let _pin = self.0.op.pin()?;
        let root_grant = Paths(self.0).root_grant().await?;
        let root = Paths(self.0).find_until(&[], 0).await?.node;
        let mut loaded = Loaded { pairs: all.len() as u64, leaves: 0 };
        let empty = root.at == root_grant.addr && root.slots.iter().all(|s| *s == Slot::EMPTY);
        let mut from = 0;
        let mut slot = 0;
        while from < all.len() {
            let group = from..end_of_group(&all, from..all.len(), 0);
            from = group.end;
            if empty && self.load_group(&root, slot, &all, group.clone(), &mut loaded).await? {
                slot += 1;
                continue;
            }
            for i in group {
                self.0.ep.renew_deadline();
                let (key, value) = all.get(i);
                Writes(self.0).write_pinned(key, Write::Put(value), &mut None).await?;
            }
        }
        scope.end(OpOutcome::Other);
        Ok(loaded)
    }

    /// Builds and links the pairs of one symbol. False: another client has inserted.
    async fn load_group(
        &self,
        root: &View,
        slot: usize,
        all: &Pairs,
        group: Range<usize>,
        loaded: &mut Loaded,
    ) -> Result<bool> {
        let mut built = Built::default();
        let link = async {
            let word = self.build(all, group, &mut built).await?;
            self.flush(&mut built).await?;
            self.0.ep.renew_deadline();
            Ok(self.0.ep.cas(root.slot_at(slot), 0, word.0).await? == 0)
        };
        let linked = link.await;
        match linked {
            Ok(true) => loaded.leaves += built.leaves.len() as u64,
            Ok(false) => self.give_back_all(built),
            Err(_) => {}
        }
        linked
    }

    /// Builds the subtree of pairs that share their first symbol; returns the word that names it.
    async fn build(&self, all: &Pairs, group: Range<usize>, built: &mut Built) -> Result<Slot> {
        let symbol = Symbol::of(all.key(group.start), 0);
        if group.len() == 1 {
            return self.build_leaf(all, group.start, symbol, built).await;
        }
        let mut stack = vec![frame_of(all, group, symbol)];
        loop {
            let frame = stack.last_mut().expect("ends with the last one");
            if frame.rest.is_empty() {
                let done = stack.pop().expect("just seen");
                let any = all.key(done.rest.end - 1);
                let word =
                    self.build_node(&any[..done.len], done.symbol, &done.slots, built).await?;
                match stack.last_mut() {
                    Some(above) => above.slots.push(word),
                    None => return Ok(word),
                }
                continue;
            }
            let len = frame.len;
            let next = frame.rest.start..end_of_group(all, frame.rest.clone(), len);
            frame.rest.start = next.end;
            let symbol = Symbol::of(all.key(next.start), len);
            if next.len() == 1 {
                let word = self.build_leaf(all, next.start, symbol, built).await?;
                stack.last_mut().expect("just seen").slots.push(word);
            } else {
                stack.push(frame_of(all, next, symbol));
            }
        }
    }

    async fn build_leaf(
        &self,
        all: &Pairs,
        i: usize,
        symbol: Symbol,
        built: &mut Built,
    ) -> Result<Slot> {
        let (key, value) = all.get(i);
        let mut taken = Taken::default();
        let leaf = Inserts(self.0).new_leaf(key, value, symbol, &mut taken).await?;
        built.leaves.extend(taken.leaf);
        built.blocks.extend(taken.block);
        self.post(built, leaf.at, leaf.image).await?;
        Ok(leaf.slot)
    }

    async fn build_node(
        &self,
        prefix: &[u8],
        symbol: Symbol,
        slots: &[Slot],
        built: &mut Built,
    ) -> Result<Slot> {
        let grant = self.0.take_node(&mut Taken::default()).await?;
        built.nodes.push(grant);
        let kind = NodeType::fitting(slots.len());
        let image = Paths(self.0).node_image(grant.generation, kind, prefix, slots).await?;
        self.post(built, grant.addr, image).await?;
        Ok(Slot::node(symbol, grant.addr, kind))
    }

    async fn post(&self, built: &mut Built, at: GlobalAddr, image: Buf) -> Result<()> {
        built.verbs.write(at, image);
        if built.verbs.len() < WRITES_TOGETHER {
            return Ok(());
        }
        self.flush(built).await
    }

    async fn flush(&self, built: &mut Built) -> Result<()> {
        if built.verbs.is_empty() {
            return Ok(());
        }
        // Deadlines limit waits for other clients; a load takes long without any wait.
        self.0.ep.renew_deadline();
        let verbs = std::mem::take(&mut built.verbs);
        self.0.ep.batch(verbs).await.map(|_| ())
    }

    fn give_back_all(&self, built: Built) {
        let pool = &self.0.node.pool;
        built.leaves.into_iter().for_each(|(n, g)| pool.give_back(self.0.node.leaves(n), g));
        built.nodes.into_iter().for_each(|g| pool.give_back(&self.0.node.nodes, g));
        built.blocks.into_iter().for_each(|b| pool.give_back_block(self.0.node.root.index, b));
    }
}

fn frame_of(all: &Pairs, group: Range<usize>, symbol: Symbol) -> Frame {
    let (first, last) = (all.key(group.start), all.key(group.end - 1));
    Frame { len: common(first, last), symbol, rest: group, slots: Vec::new() }
}

/// The end of the pairs that have the same symbol behind `len` bytes as the first one.
fn end_of_group(all: &Pairs, rest: Range<usize>, len: usize) -> usize {
    let symbol = Symbol::of(all.key(rest.start), len);
    let (mut low, mut high) = (rest.start + 1, rest.end);
    while low < high {
        let middle = low.midpoint(high);
        if Symbol::of(all.key(middle), len) == symbol { low = middle + 1 } else { high = middle }
    }
    low
}
