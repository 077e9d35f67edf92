//! Reads of keys.

use dmtree_fabric::{GlobalAddr, NodeId, OpKind, OpOutcome, Result, Stage, Step};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::op::counted;
use dmtree_parts::tree::area::{self, Stored};
use dmtree_parts::tree::leaf;
use dmtree_parts::tree::slot::SlotState;
use dmtree_parts::{Values, check_key};

use crate::Mutant;
use crate::client::{Rpc, unexpected};
use crate::options::Reads;
use crate::wire::{CALL_BYTES, Reply, Request, Stretch};

/// READs of a leaf that is being changed, before its node is asked.
const ATTEMPTS: u32 = 3;

/// What a READ of a leaf says of a key.
enum Seen {
    Value(Vec<u8>),
    Absent,
    /// The leaf does not have the key's range any more.
    Moved,
    /// Only its node can tell: the key, its value or a fence is in a block, or the leaf is being
    /// changed.
    Ask,
}

/// Reads of a key.
pub(crate) struct Gets<'c>(pub(crate) &'c Rpc);

impl Gets<'_> {
    pub(crate) async fn get_op(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        out.clear();
        self.0.retried.set(false);
        let scope = self.0.ep.begin(OpKind::Get);
        self.0.ep.stage_cost(Stage::Operation, 1);
        let found = match self.0.node.o.reads {
            Reads::Call => self.get_by_call(key).await?,
            Reads::Hybrid => self.get_hybrid(key).await?,
            Reads::Farm => self.get_by_read(key).await?,
            Reads::Cell => {
                let (by_read, began) = (self.0.averages.choose_read(), self.0.ep.now());
                let found = match by_read {
                    true => self.get_by_read(key).await?,
                    false => self.get_by_call(key).await?,
                };
                self.0.averages.took(by_read, self.0.ep.now().saturating_sub(began));
                found
            }
        };
        let plain = if found.is_some() { OpOutcome::Hit } else { OpOutcome::Absent };
        scope.end(counted(plain, &self.0.retried));
        out.extend(found.iter().flatten());
        Ok(found.is_some())
    }

    async fn get_by_call(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.0.ask(key, &Request::Get(key)).await? {
            (_, Reply::Value(value)) => Ok(value),
            (from, other) => Err(unexpected(from, &other)),
        }
    }

    async fn get_hybrid(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        loop {
            let at = match self.0.ask(key, &Request::Locate(key)).await? {
                (from, Reply::Leaf(offset)) => GlobalAddr::new(from, offset),
                (from, other) => return Err(unexpected(from, &other)),
            };
            match self.see(at, key).await? {
                Seen::Value(value) => return Ok(Some(value)),
                Seen::Absent => return Ok(None),
                Seen::Ask => return self.get_by_call(key).await,
                Seen::Moved => self.0.retried.set(true),
            }
        }
    }

    async fn get_by_read(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut pause = self.0.ep.backoff("a leaf that has the key", self.0.node.root.word);
        loop {
            self.0.ep.stage_cost(Stage::CacheLookup, 1);
            let at = match self.0.node.routes.find(key) {
                Some(at) => {
                    self.0.hits.count();
                    at
                }
                None => self.learn_route(key).await?,
            };
            match self.see(at, key).await? {
                Seen::Value(value) => return Ok(Some(value)),
                Seen::Absent => return Ok(None),
                Seen::Ask => return self.get_by_call(key).await,
                Seen::Moved => {
                    self.0.retried.set(true);
                    self.learn_route(key).await?;
                    pause.step().await?;
                }
            }
        }
    }

    /// Learns the routes from the leaf of a key on.
    async fn learn_route(&self, key: &[u8]) -> Result<GlobalAddr> {
        self.0.node.lookups.count_miss();
        let (from, Stretch { leaves, end }) = match self.0.ask(key, &Request::Route(key)).await? {
            (from, Reply::Leaves(stretch)) => (from, stretch),
            (from, other) => return Err(unexpected(from, &other)),
        };
        self.0.ep.stage_cost(Stage::CacheFill, 1);
        let leaves = leaves.into_iter().map(|(low, at)| (low, GlobalAddr::new(from, at)));
        let mut leaves: Vec<_> = leaves.collect();
        let (begin, border) = self.range_ends(from);
        let Some((low, first)) = leaves.first_mut() else {
            return Err(unexpected(from, &Reply::Leaves(Stretch::default())));
        };
        // The first leaf of a tree has no lower fence; the range of its node has.
        if let Some(begin) = begin.filter(|begin| begin > low) {
            *low = begin;
        }
        let first = *first;
        self.0.node.routes.learn(leaves, end.or(border));
        Ok(first)
    }

    /// Where the range of a memory node begins and ends, if it does.
    fn range_ends(&self, of: NodeId) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let range = self.0.node.owners().iter().position(|owner| *owner == of).unwrap_or(0);
        let border = |i: usize| self.0.node.borders.get()?.get(i).cloned();
        (range.checked_sub(1).and_then(border), border(range))
    }

    /// READs a leaf, and looks for a key there. What it sees was so at some time of the READ: slots
    /// are each valid alone, and all have the version of the header.
    async fn see(&self, at: GlobalAddr, key: &[u8]) -> Result<Seen> {
        let g = &self.0.node.g;
        let hash = KeyHash::of(key);
        for _ in 0..ATTEMPTS {
            self.0.ep.step(Step::Entry);
            let sampled = self.0.ep.read(at, g.leaf_image(g.fanout) as u32).await?;
            self.0.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
            let mixed = self.0.node.has(Mutant::MixedVersions);
            let seen = sampled.check(|bytes| {
                let mut found = Seen::Absent;
                let header = leaf::check_slots(g, at, bytes, (g.fanout, mixed), |_, s| {
                    if s.state != SlotState::Live {
                        return;
                    }
                    match area::get_key(s.key, s.key_mode) {
                        Some(Stored::Inline(stored)) if stored == key => {
                            found = match area::get_value(s.value, s.value_mode) {
                                Some(Stored::Inline(value)) => Seen::Value(value.to_vec()),
                                _ => Seen::Ask,
                            };
                        }
                        Some(Stored::Block(_)) if area::may_be(s.key, key, hash) => {
                            found = Seen::Ask;
                        }
                        _ => {}
                    }
                })
                .ok_or(())?;
                let is_inside = match (header.lo, header.hi) {
                    (Stored::Inline(lo), Stored::Inline(hi)) => lo <= key && key < hi,
                    (Stored::Inline(lo), Stored::Infinite) => lo <= key,
                    _ => return Ok(Seen::Ask),
                };
                let counts = is_inside || self.0.node.has(Mutant::UncheckedRange);
                Ok::<_, ()>(if counts { found } else { Seen::Moved })
            });
            if let Ok((seen, _)) = seen {
                return Ok(seen);
            }
            self.0.retried.set(true);
        }
        Ok(Seen::Ask)
    }

    pub(crate) async fn get_many_op(&self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        out.reset(keys.len());
        keys.iter().try_for_each(|key| check_key(key))?;
        let scope = self.0.ep.begin(OpKind::GetMany);
        self.0.ep.stage_cost(Stage::Operation, keys.len() as u32);
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while let Some(first) = left.first() {
            self.0.ep.renew_deadline();
            let owner = self.0.node.owner(keys[*first]);
            let mut bytes = 0;
            let now: Vec<usize> = (left.iter().copied())
                .filter(|i| self.0.node.owner(keys[*i]) == owner)
                .take_while(|i| {
                    bytes += keys[*i].len() + 4;
                    bytes < CALL_BYTES
                })
                .collect();
            let request = Request::GetMany(now.iter().map(|i| keys[*i]).collect());
            let values = match self.0.ask_node(owner, &request).await? {
                Some(Reply::Values(values)) if values.len() == now.len() => values,
                Some(other) => return Err(unexpected(owner, &other)),
                None => continue,
            };
            for (i, value) in now.iter().zip(&values) {
                value.iter().for_each(|value| out.set(*i, value));
            }
            left.retain(|i| !now.contains(i));
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }
}
