//! Bulk load: an empty index is cut into ranges of as many pairs, one for each memory node, which
//! then gets whole leaves from the left to the right. Other clients may write meanwhile; what is
//! not behind all keys of its node is put pair by pair. A death leaves a part of the pairs.

use dmtree_fabric::{OpKind, OpOutcome, Result};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Fill, Loaded, Shape, Write, check_key, check_value};
use dmtree_parts::{Outcome, fill::SplitRule};

use crate::client::{Rpc, unexpected};
use crate::host::parcels::LONGEST;
use crate::wire::{CALL_BYTES, Pair, Reply, Request};
use crate::write::Writes;

/// Writes of one batch where the index is not empty.
const TOGETHER: usize = 256;

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c Rpc);

impl Loads<'_> {
    pub(crate) async fn load_op(
        &self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        fill.check()?;
        let all = Pairs::collect(pairs, sorted, |key, value| {
            check_key(key).and_then(|()| check_value(value))
        })?;
        let mut loaded = Loaded { pairs: all.len() as u64, leaves: 0 };
        if all.is_empty() {
            return Ok(loaded);
        }
        let scope = self.0.ep.begin(OpKind::Load);
        let is_empty = self.cut(&all).await?;
        if is_empty {
            loaded.leaves = self.append_all(&all, fill).await?;
        }
        scope.end(OpOutcome::Other);
        if !is_empty {
            self.put_all(&all).await?;
        }
        Ok(loaded)
    }

    /// Cuts an empty index at even parts of the pairs; whether it was empty.
    async fn cut(&self, all: &Pairs) -> Result<bool> {
        if self.0.node.borders.get().is_some() {
            return Ok(false);
        }
        let ranges = self.0.node.pool.memory_nodes().min(all.len());
        let borders: Vec<_> = (1..ranges).map(|i| all.key(i * all.len() / ranges)).collect();
        let home = self.0.node.home();
        match self.0.ask_node(home, &Request::Cut(borders.clone())).await? {
            Some(Reply::Cut(is_empty)) => {
                if is_empty && !borders.is_empty() {
                    let borders = borders.iter().map(|key| key.to_vec()).collect();
                    // Another client may have learned the same.
                    let _ = self.0.node.borders.set(borders);
                }
                Ok(is_empty)
            }
            Some(other) => Err(unexpected(home, &other)),
            None => Ok(false),
        }
    }

    /// Sends leaves, as many as a call carries. A leaf that no request carries is cut into several.
    async fn append_all(&self, all: &Pairs, fill: Fill) -> Result<u64> {
        let slots = self.0.node.o.leaf_slots;
        let rule = SplitRule::new(slots, slots / 2);
        let (mut leaves, mut bytes, mut written): (Vec<Vec<Pair<'_>>>, _, _) = (Vec::new(), 0, 0);
        let mut from = 0;
        for size in fill.sizes(rule, all.len() as u64, 0) {
            // A leaf that would lie in two ranges ends at the border.
            let end = (from + size).min(all.len());
            while from < end {
                let range = self.0.node.range_of(all.key(from));
                let is_here = |i: &usize| self.0.node.range_of(all.key(*i)) == range;
                let mut sum = 0;
                let fits = |i: &usize| {
                    let (key, value) = all.get(*i);
                    sum += key.len() + value.len() + 8;
                    *i == from || sum <= LONGEST / 2
                };
                let here = (from..end).take_while(is_here).take_while(fits);
                let to = here.last().map_or(from, |i| i + 1);
                let leaf: Vec<_> = (from..to).map(|i| all.get(i)).collect();
                let more = leaf.iter().map(|(k, v)| k.len() + v.len() + 8).sum::<usize>();
                let first = leaves.first().map(|leaf| self.0.node.range_of(leaf[0].0));
                if first.is_some_and(|first| first != range || bytes + more > CALL_BYTES / 2) {
                    written += self.append(std::mem::take(&mut leaves)).await?;
                    bytes = 0;
                }
                bytes += more;
                leaves.push(leaf);
                from = to;
            }
        }
        Ok(written + self.append(leaves).await?)
    }

    async fn append(&self, leaves: Vec<Vec<Pair<'_>>>) -> Result<u64> {
        let Some(first) = leaves.first() else { return Ok(0) };
        self.0.ep.renew_deadline();
        match self.0.ask(first[0].0, &Request::Append(leaves)).await? {
            (_, Reply::Appended(written)) => Ok(written),
            (from, other) => Err(unexpected(from, &other)),
        }
    }

    async fn put_all(&self, all: &Pairs) -> Result<()> {
        let mut outcomes: Vec<Result<Outcome>> = Vec::new();
        for from in (0..all.len()).step_by(TOGETHER) {
            let some = from..(from + TOGETHER).min(all.len());
            let puts: Vec<_> =
                some.map(|i| all.get(i)).map(|(key, value)| (key, Write::Put(value))).collect();
            Writes(self.0).write_many_op(&puts, &mut outcomes).await?;
            outcomes.drain(..).try_for_each(|outcome| outcome.map(drop))?;
        }
        Ok(())
    }

    /// The trees of all memory nodes, checked.
    pub(crate) async fn walk_op(&self) -> Result<Shape> {
        let scope = self.0.ep.begin(OpKind::Admin);
        let mut all = Shape::default();
        let mut range = 0;
        while let Some(owner) = self.0.node.owners().get(range).copied() {
            match self.0.ask_node(owner, &Request::Walk).await? {
                Some(Reply::Shape(shape)) => add(&mut all, shape),
                Some(other) => return Err(unexpected(owner, &other)),
                None => continue,
            }
            range += 1;
        }
        scope.end(OpOutcome::Other);
        Ok(all)
    }
}

fn add(all: &mut Shape, one: Shape) {
    all.keys += one.keys;
    all.levels = all.levels.max(one.levels);
    all.structure_bytes += one.structure_bytes;
    all.leaf_bytes += one.leaf_bytes;
    all.block_bytes += one.block_bytes;
    for (slots, n) in one.leaves {
        match all.leaves.iter_mut().find(|(s, _)| *s == slots) {
            Some((_, sum)) => *sum += n,
            None => all.leaves.push((slots, n)),
        }
    }
    all.fill.resize(all.fill.len().max(one.fill.len()), 0);
    all.fill.iter_mut().zip(one.fill).for_each(|(sum, n)| *sum += n);
}
