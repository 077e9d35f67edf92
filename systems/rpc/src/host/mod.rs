//! The service of a memory node: the trees of all indexes, each of the keys of a range.
//!
//! A handler runs on one of the node's cores from its begin to its end: it waits only for latches,
//! which are held for one leaf, and, without any latch, for memory that its node takes. So a call
//! that a death cuts is done or not done, and no latch has a holder that is gone.

mod leaf;
pub(crate) mod parcels;
mod room;
mod scan;
mod tree;
mod write;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use dmtree_fabric::{Endpoint, Error, ErrorKind, NodeId, Result, RpcHandler, Service};
use dmtree_parts::Write;
use dmtree_pool::MemoryHolder;

use crate::wire::{self, CALL_BYTES, Head, Reply, Request, Wrote};
use parcels::Parcels;
use tree::{Stop, Tree, Visit};

/// The service.
pub(crate) struct Host {
    holder: MemoryHolder,
    trees: RwLock<BTreeMap<u32, Arc<Tree>>>,
    parcels: Parcels,
}

impl Host {
    pub(crate) fn make(holder: MemoryHolder) -> Arc<dyn RpcHandler> {
        Arc::new(Self { holder, trees: RwLock::default(), parcels: Parcels::default() })
    }

    fn tree(&self, head: &Head) -> Result<Arc<Tree>> {
        let g = head.geometry()?;
        let known = {
            let trees = self.trees.read().unwrap_or_else(PoisonError::into_inner);
            trees.get(&head.index).cloned()
        };
        let tree = known.unwrap_or_else(|| {
            let mut trees = self.trees.write().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Tree::new(self.holder.node(), head.index, g));
            trees.entry(head.index).or_insert_with(new).clone()
        });
        match tree.geometry() == g {
            true => Ok(tree),
            false => Err(Error::incompatible(format!(
                "{} has index {} with other lengths of keys and values",
                self.holder.node(),
                head.index
            ))),
        }
    }

    /// Executes a step; when it lacks memory, takes some, without a latch, and tries again.
    async fn roomy<T>(
        &self,
        ep: &Endpoint,
        tree: &Tree,
        mut step: impl FnMut(&Visit<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        loop {
            let done = step(&Visit::begin(ep)?);
            let Err(Stop::Room(bytes)) = done else { return done };
            let run = self.holder.take(ep, tree.index(), bytes).await?;
            tree.add_room(run.keep());
        }
    }

    /// Executes a request.
    async fn execute(&self, ep: &Endpoint, head: &Head, request: &[u8]) -> Result<Reply> {
        let request: Request<'_> = wire::decode(request)?;
        let tree = self.tree(head)?;
        let knows = head.knows_borders;
        // Every tree has a leaf.
        self.roomy(ep, &tree, |v| tree.begin(v)).await.map_err(Stop::error)?;
        let done = match &request {
            Request::Get(key) => tree.get(&Visit::begin(ep)?, knows, key).map(Reply::Value),
            Request::GetMany(keys) => {
                let v = Visit::begin(ep)?;
                let values: Result<Vec<_>, Stop> =
                    keys.iter().map(|key| tree.get(&v, knows, key)).collect();
                values.map(Reply::Values)
            }
            Request::Locate(key) => tree.locate(&Visit::begin(ep)?, knows, key).map(Reply::Leaf),
            Request::Route(key) => tree.route(&Visit::begin(ep)?, knows, key).map(Reply::Leaves),
            Request::Write(key, w) => self
                .roomy(ep, &tree, |v| tree.write(v, knows, key, w))
                .await
                .map(|(outcome, counts)| Reply::Wrote(outcome, counts)),
            Request::WriteMany(writes) => self.write_many(ep, (&tree, knows), writes).await,
            Request::Scan(r) => {
                r.check()?;
                tree.scan(&Visit::begin(ep)?, knows, r).map(|(page, at)| Reply::Page(page, at))
            }
            Request::Append(leaves) => self.append(ep, &tree, leaves).await.map(Reply::Appended),
            Request::Cut(borders) => tree.cut(&Visit::begin(ep)?, borders).map(Reply::Cut),
            Request::Walk => tree.walk(&Visit::begin(ep)?, knows).map(Reply::Shape),
            Request::Part { .. } | Request::Fetch { .. } => {
                return Err(Error::corrupt("a message of rpc: a part inside a part"));
            }
        };
        match done {
            Ok(reply) => Ok(reply),
            Err(Stop::Borders(borders)) => Ok(Reply::Borders(borders)),
            Err(stop) => Err(stop.error()),
        }
    }

    async fn write_many(
        &self,
        ep: &Endpoint,
        (tree, knows): (&Tree, bool),
        writes: &[(&[u8], Write<'_>)],
    ) -> Result<Reply, Stop> {
        let mut all = Vec::with_capacity(writes.len());
        for (i, (key, w)) in writes.iter().enumerate() {
            if i > 0 && i >= writes.len() / 2 && tree.has(crate::Mutant::HalfBatch) {
                all.push(Wrote::Ended(dmtree_parts::Outcome::Done));
                continue;
            }
            all.push(match self.roomy(ep, tree, |v| tree.write(v, knows, key, w)).await {
                Ok((outcome, _)) => Wrote::Ended(outcome),
                Err(Stop::Borders(borders)) if i == 0 => return Err(Stop::Borders(borders)),
                Err(Stop::Borders(_)) => Wrote::Moved,
                Err(Stop::Error(e)) if e.kind() == ErrorKind::Full => Wrote::Full,
                Err(stop) => return Err(stop),
            });
        }
        Ok(Reply::WroteMany(all))
    }

    /// Whole leaves behind all others, as far as no other client has put keys there.
    async fn append(
        &self,
        ep: &Endpoint,
        tree: &Tree,
        leaves: &[Vec<wire::Pair<'_>>],
    ) -> Result<u64, Stop> {
        let mut written = 0;
        for pairs in leaves {
            if self.roomy(ep, tree, |v| tree.append(v, pairs)).await? {
                written += 1;
                continue;
            }
            for (key, value) in pairs {
                self.roomy(ep, tree, |v| tree.write(v, true, key, &Write::Put(value))).await?;
            }
        }
        Ok(written)
    }

    async fn answer_whole(
        &self,
        ep: &Endpoint,
        (from, head): (NodeId, &Head),
        request: &[u8],
    ) -> Result<Vec<u8>> {
        let reply = wire::encode(&self.execute(ep, head, request).await?)?;
        if reply.len() <= CALL_BYTES {
            return Ok(reply);
        }
        let bytes = reply.len() as u32;
        self.parcels.keep_reply((from, head), reply);
        wire::encode(&Reply::Long(bytes))
    }
}

impl Service for Host {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let (head, rest): (Head, _) = wire::take(request)?;
        let client = (from, &head);
        match wire::take(rest) {
            Ok((Request::Part { at, bytes, last }, _)) => {
                let whole = self.parcels.add(client, (at, bytes), last)?;
                match whole {
                    Some(whole) => self.answer_whole(ep, (from, &head), &whole).await,
                    None => wire::encode(&Reply::Next),
                }
            }
            Ok((Request::Fetch { at }, _)) => {
                wire::encode(&Reply::Piece(self.parcels.piece(client, at, CALL_BYTES - 8)?))
            }
            _ => self.answer_whole(ep, (from, &head), rest).await,
        }
    }

    fn is_data(&self) -> bool {
        true
    }
}
