//! Operations on keys of another compute node: calls to their owner.
//!
//! The owner executes them as its own clients do, so that all see one order. Where it does not
//! answer, the caller asks again: the same owner, or the one that has taken over, which may be the
//! caller. A write therefore has a name, its client and a number there, which the log records with
//! it: asked for twice, it takes effect once.
//!
//! A call lasts 50 ms at most, and an operation may last longer. So the owner's *desk* keeps the
//! answer to the last operation of each client, until the client asks for another one: what was
//! executed is not executed again. Requests and answers that are longer than a call are there, too,
//! and go in parts.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Endpoint, Error, NodeId, Result, RpcFuture, RpcHandler};

use crate::calls::{Answer, Ask, PART, What};
use crate::client::Client;
use crate::desk::Begun;
use crate::log::Origin;
use crate::node::DlsmNode;
use crate::owner::{Owner, Ranges, node_of};
use crate::read::Reads;
use crate::router::Router;
use crate::scan::Scans;
use crate::shard::Shard;
use crate::wire;
use crate::write::Writes;

impl RpcHandler for DlsmNode {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let Some(node) = self.this.get().and_then(Weak::upgrade) else { return Ok(Vec::new()) };
            let client = Client::new(ep.clone(), node);
            ep.renew_deadline();
            Serving(&client).serve(from, request).await
        })
    }

    fn is_data(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        true
    }
}

/// Answers of a node to requests of others.
pub(crate) struct Serving<'c>(pub(crate) &'c Client);

impl Serving<'_> {
    /// Answers a request of another node. Empty bytes: this node is not the owner.
    pub(crate) async fn serve(&self, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let ask: Ask<'_> = wire::decode(request)?;
        let origin = ask.origin;
        if node_of(origin.0) != from {
            return Err(Error::invalid(format!("{from} asks in the name of another node")));
        }
        let Some(router) = self.0.node.opened(&self.0.ep).await? else { return Ok(Vec::new()) };
        if ask.range as usize >= router.shards.len() {
            return Err(Error::invalid(format!("range {} of {}", ask.range, router.shards.len())));
        }
        let desk = &self.0.node.desk;
        let answer = match ask.what {
            What::Part { at, bytes } if !bytes.is_empty() => {
                desk.add_part(origin, (at, bytes)).map(|()| Answer::Done)
            }
            What::More { at } => desk.more(origin, at),
            _ => match self.answer(router, ask).await {
                Ok(answer) if answer.len() > PART => Ok(Answer::Long(answer.len() as u32)),
                Ok(answer) => return Ok(answer),
                Err(e) => Err(e),
            },
        };
        wire::encode(&answer.unwrap_or_else(|e| Answer::Failed((&e).into())))
    }

    /// The answer to a whole request, encoded, of any length.
    async fn answer(&self, router: &Router, ask: Ask<'_>) -> Result<Vec<u8>> {
        let (desk, origin) = (&self.0.node.desk, ask.origin);
        let _running = match desk.begin(origin)? {
            Begun::Ended(answer) => return Ok(answer),
            Begun::Running => return wire::encode(&Answer::Running),
            Begun::Now(running) => running,
        };
        let whole = match ask.what {
            What::Part { at, .. } => {
                let whole = desk.with(origin, |tray| tray.request.clone())?;
                if whole.len() != at as usize {
                    return Err(Error::busy("parts of a request are missing: begin again"));
                }
                whole
            }
            _ => Vec::new(),
        };
        let ask = if whole.is_empty() { ask } else { wire::decode(&whole)? };
        let range = ask.range as usize;
        if matches!(ask.what, What::Own) {
            // What this node knows is older than the question.
            router.owners[range].store(0, Ordering::SeqCst);
        }
        let answer = match (ask.what, Ranges(self.0).owner(router, range, true).await?) {
            (_, Owner::There(_)) => return Ok(Vec::new()),
            (What::Give { to }, Owner::Here(shard)) => {
                drop(shard);
                match node_of(to) == node_of(origin.0) {
                    true => {
                        Ranges(self.0).give_away(router, range, to).await.map(|()| Answer::Done)?
                    }
                    false => return Err(Error::invalid("a range for the claim of another node")),
                }
            }
            (what, Owner::Here(shard)) => {
                self.execute((router, range), &shard, (what, origin)).await?
            }
        };
        desk.keep(origin, &answer)
    }

    async fn execute(
        &self,
        (router, range): (&Router, usize),
        shard: &Shard,
        (what, origin): (What<'_>, Origin),
    ) -> Result<Answer> {
        Ok(match what {
            What::Get { key } => {
                let mut out = Vec::new();
                let found = Reads(self.0).read_in(shard, key, &mut out).await?;
                Answer::Value(found.then_some(out))
            }
            What::Write { key, w } => {
                Answer::Wrote(Writes(self.0).write_in(shard, key, w, Some(origin)).await?.0)
            }
            What::Batch(batch) => {
                Writes(self.0).write_batch_in(shard, &batch, Some(origin)).await?;
                Answer::Done
            }
            What::Page(r) => {
                let mut page = dmtree_parts::Page::new();
                let more = Scans(self.0)
                    .page_in((router, range), shard, &r, PART - 1024, &mut page)
                    .await?;
                let pair = |i| page.get(i).map(|(k, v)| (k.to_vec(), v.to_vec()));
                Answer::Page((0..page.len()).filter_map(pair).collect(), more)
            }
            What::Walk => Answer::Walked(Scans(self.0).walk_in(shard).await?),
            What::Own => Answer::Done,
            What::Part { .. } | What::More { .. } | What::Give { .. } => {
                return Err(Error::invalid("a part of a part of a request"));
            }
        })
    }
}
