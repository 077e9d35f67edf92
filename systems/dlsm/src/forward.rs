//! Operations on keys of another compute node: calls to their owner.
//!
//! The owner executes them as its own clients do, so that all see one order. Where it does not
//! answer, the caller asks again: the same owner, or the one that has taken over, which may be the
//! caller. A write therefore has a name, its client and a number there, which the log records with
//! it: asked for twice, it takes effect once.
//!
//! A request or an answer that is longer than a call goes in parts, which the owner's *desk* keeps
//! for the client.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Failure, MAX_RPC_BYTES, NodeId, Result, RpcFuture, RpcHandler,
};
use dmtree_parts::{BatchWrite, Outcome, ScanRequest, Shape, Write};
use serde::{Deserialize, Serialize};

use crate::client::Dlsm;
use crate::log::Origin;
use crate::node::{DlsmNode, Router};
use crate::owner::{Owner, head_of};
use crate::shard::Shard;
use crate::wire;

/// Bytes of a part; an answer or a request that is no longer goes as it is.
pub(crate) const PART: usize = MAX_RPC_BYTES - 512;
/// Longest request or answer, bytes: a compare-and-set of two values of 1 MiB.
const LONGEST: usize = 4 << 20;
/// Clients that a node keeps parts of at a time.
const CLIENTS: usize = 256;
/// The longest pause before an owner is asked again, ns.
const AGAIN_NS: u64 = 1_000_000;

/// A request to an owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask<'a> {
    pub(crate) range: u32,
    /// The client, and the number of its operation.
    pub(crate) origin: Origin,
    #[serde(borrow)]
    pub(crate) what: What<'a>,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What<'a> {
    Get {
        key: &'a [u8],
    },
    Write {
        key: &'a [u8],
        #[serde(borrow)]
        w: Write<'a>,
    },
    #[serde(borrow)]
    Batch(Vec<BatchWrite<'a>>),
    Page(ScanRequest<'a>),
    Walk,
    /// Bytes of a longer request, from there on; an empty part: execute it.
    Part {
        at: u32,
        bytes: &'a [u8],
    },
    /// Bytes of the answer, from there on.
    More {
        at: u32,
    },
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is being executed: ask again.
    Running,
    Done,
    Value(Option<Vec<u8>>),
    Wrote(Outcome),
    /// Pairs, and whether the range has more.
    Page(Vec<(Vec<u8>, Vec<u8>)>, bool),
    Walked(Shape),
    Failed(Failure),
    /// It has so many bytes.
    Long(u32),
    Bytes(Vec<u8>),
}

/// Where an operation is executed.
pub(crate) enum Asked<'n> {
    /// Here: with its name, if another node may have executed it before.
    Here(&'n Shard, Option<Origin>),
    /// At the owner, which has answered.
    There(Answer),
}

/// An answer to another question.
#[cold]
pub(crate) fn unexpected() -> Error {
    Error::corrupt("the owner of a key gave an answer to another question")
}

/// What a node keeps for a client of another one.
#[derive(Debug, Default)]
struct Tray {
    number: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
    is_running: bool,
}

/// The trays of clients of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Desk(Mutex<BTreeMap<u64, Tray>>);

/// An operation that is being executed.
struct Running<'d>(&'d Desk, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(tray) = locked(&self.0.0).get_mut(&self.1) {
            tray.is_running = false;
        }
    }
}

impl Desk {
    /// The tray of an operation, which is the latest of its client; another one's goes.
    fn with<T>(&self, (client, number): Origin, then: impl FnOnce(&mut Tray) -> T) -> Result<T> {
        let mut trays = locked(&self.0);
        if trays.len() >= CLIENTS && !trays.contains_key(&client) {
            let idle = trays.iter().find(|(_, tray)| !tray.is_running).map(|(c, _)| *c);
            let idle = idle.ok_or_else(|| Error::busy("too many clients ask this node"))?;
            trays.remove(&idle);
        }
        let tray = trays.entry(client).or_default();
        if tray.number < number && !tray.is_running {
            *tray = Tray { number, ..Tray::default() };
        }
        match tray.number == number {
            true => Ok(then(tray)),
            false => Err(Error::busy("another operation of this client is running")),
        }
    }

    /// Begins to execute an operation; `None` while it is being executed.
    fn begin(&self, origin: Origin) -> Result<Option<Running<'_>>> {
        let begun = self.with(origin, |tray| !std::mem::replace(&mut tray.is_running, true))?;
        Ok(begun.then_some(Running(self, origin.0)))
    }

    fn add_part(&self, origin: Origin, (at, bytes): (u32, &[u8])) -> Result<()> {
        let is_next = |tray: &mut Tray| {
            let at = at as usize;
            let fits = at <= tray.request.len() && at + bytes.len() <= LONGEST;
            if fits {
                tray.request.truncate(at);
                tray.request.extend_from_slice(bytes);
            }
            fits
        };
        match self.with(origin, is_next)? {
            true => Ok(()),
            false => Err(Error::busy("a part of a request is missing: begin again")),
        }
    }

    /// An answer as bytes: in parts if it is long.
    fn give(&self, origin: Origin, answer: &Answer) -> Result<Vec<u8>> {
        let encoded = wire::encode(answer)?;
        if encoded.len() <= PART {
            return Ok(encoded);
        }
        let long = Answer::Long(encoded.len() as u32);
        self.with(origin, |tray| tray.answer = encoded)?;
        wire::encode(&long)
    }

    fn more(&self, origin: Origin, at: u32) -> Result<Answer> {
        let rest = |tray: &mut Tray| {
            let rest = tray.answer.get(at as usize..).unwrap_or_default();
            rest[..rest.len().min(PART - 16)].to_vec()
        };
        self.with(origin, rest).map(Answer::Bytes)
    }
}

impl RpcHandler for DlsmNode {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let Some(node) = self.this.get().and_then(Weak::upgrade) else { return Ok(Vec::new()) };
            let client = Dlsm::new(ep.clone(), node);
            ep.renew_deadline();
            client.serve(from, request).await
        })
    }

    fn is_data(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        true
    }
}

impl Dlsm {
    /// Answers a request of another node. Empty bytes: this node is not the owner.
    pub(crate) async fn serve(&self, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let ask: Ask<'_> = wire::decode(request)?;
        if (ask.origin.0 >> 48) as u16 != from.bits() {
            return Err(Error::invalid(format!("{from} asks in the name of another node")));
        }
        let Some(router) = self.node.opened(&self.ep).await? else { return Ok(Vec::new()) };
        if ask.range as usize >= router.shards.len() {
            return Err(Error::invalid(format!("range {} of {}", ask.range, router.shards.len())));
        }
        let desk = &self.node.desk;
        let answer = match ask.what {
            What::Part { at, bytes } if !bytes.is_empty() => {
                desk.add_part(ask.origin, (at, bytes)).map(|()| Answer::Done)
            }
            What::More { at } => desk.more(ask.origin, at),
            _ => match self.owner(router, ask.range as usize, true).await {
                Ok(Owner::There(_)) => return Ok(Vec::new()),
                Ok(Owner::Here(shard)) => self.execute((router, shard), ask).await,
                Err(e) => Err(e),
            },
        };
        let origin = wire::decode::<Ask<'_>>(request)?.origin;
        desk.give(origin, &answer.unwrap_or_else(|e| Answer::Failed((&e).into())))
    }

    async fn execute(&self, (router, shard): (&Router, &Shard), ask: Ask<'_>) -> Result<Answer> {
        let Some(_running) = self.node.desk.begin(ask.origin)? else { return Ok(Answer::Running) };
        let whole = match ask.what {
            What::Part { .. } => self.node.desk.with(ask.origin, |tray| tray.request.clone())?,
            _ => Vec::new(),
        };
        let ask = if whole.is_empty() { ask } else { wire::decode(&whole)? };
        let range = ask.range as usize;
        Ok(match ask.what {
            What::Get { key } => {
                let mut out = Vec::new();
                let found = self.read_in(shard, key, &mut out).await?;
                Answer::Value(found.then_some(out))
            }
            What::Write { key, w } => {
                Answer::Wrote(self.write_in(shard, key, w, Some(ask.origin)).await?.0)
            }
            What::Batch(batch) => {
                self.write_batch_in(shard, &batch, Some(ask.origin)).await?;
                Answer::Done
            }
            What::Page(r) => {
                let mut page = dmtree_parts::Page::new();
                let more = self.page_in((router, range), shard, &r, PART - 1024, &mut page).await?;
                let pair = |i| page.get(i).map(|(k, v)| (k.to_vec(), v.to_vec()));
                Answer::Page((0..page.len()).filter_map(pair).collect(), more)
            }
            What::Walk => Answer::Walked(self.walk_in(shard).await?),
            What::Part { .. } | What::More { .. } => {
                return Err(Error::invalid("a part of a part of a request"));
            }
        })
    }

    /// The number of a new operation.
    pub(crate) fn next_number(&self) -> u64 {
        self.operations.set(self.operations.get() + 1);
        self.operations.get()
    }

    /// Asks the owner of a range, whichever it is; or says that it is this node.
    ///
    /// # Errors
    /// Those of the operation; `TimedOut` when there is no owner at its deadline.
    pub(crate) async fn ask_owner<'n>(
        &'n self,
        router: &'n Router,
        range: usize,
        what: &What<'_>,
    ) -> Result<Asked<'n>> {
        if let Some(shard) = router.shards[range].get() {
            return Ok(Asked::Here(shard, None));
        }
        let at = head_of(router, range);
        let mut backoff = self.ep.backoff_within("the owner of a key", at, AGAIN_NS);
        let origin = (self.session, self.next_number());
        let ask = Ask { range: range as u32, origin, what: what.clone() };
        let request = wire::encode(&ask)?;
        let mut was_asked = false;
        loop {
            let owner = self.owner(router, range, false).await;
            let owner = owner.map_err(|e| if was_asked { e.effect_unknown() } else { e })?;
            let to = match owner {
                Owner::Here(shard) => return Ok(Asked::Here(shard, was_asked.then_some(origin))),
                Owner::There(to) => to,
            };
            was_asked = true;
            let asked = self.ask_node(to, &ask, &request).await;
            match asked {
                Ok(Some(Answer::Running)) => {}
                Ok(Some(Answer::Failed(failure))) => {
                    self.failed(router, range, failure.into()).await?
                }
                Ok(Some(answer)) => return Ok(Asked::There(answer)),
                Ok(None) => self.forget_owner(router, range, to),
                Err(e) => {
                    // Its own trouble, or the owner's?
                    self.node.pool.check_lease(&self.ep)?;
                    if e.kind() == ErrorKind::InvalidArgument || e.kind() == ErrorKind::Corrupt {
                        return Err(e);
                    }
                    self.forget_owner(router, range, to);
                }
            }
            backoff.step().await?;
        }
    }

    /// What this node believes of an owner is looked at again.
    fn forget_owner(&self, router: &Router, range: usize, to: NodeId) {
        if router.owners[range].swap(0, Ordering::SeqCst) == 0 && to != self.node.pool.cn() {
            router.pass_over(range);
        }
    }

    /// The owner could not execute an operation: an error of the operation is returned, trouble of
    /// the owner passes, or ends with the owner.
    async fn failed(&self, router: &Router, range: usize, e: Error) -> Result<()> {
        use ErrorKind::{Busy, Closed, Contended, Revoked, TimedOut, Unreachable};
        match e.kind() {
            Busy | Closed | Contended | Revoked | TimedOut => Ok(()),
            Unreachable => {
                // A memory node that is lost is lost to this node, too.
                let home = self.node.home(range);
                self.ep.read(router.heads, 8).await?;
                let first = dmtree_fabric::GlobalAddr::new(home, 64);
                self.ep.read(first, 8).await.map(drop)
            }
            _ => Err(e),
        }
    }

    async fn ask_node(&self, to: NodeId, ask: &Ask<'_>, request: &[u8]) -> Result<Option<Answer>> {
        let part = |what| Ask { range: ask.range, origin: ask.origin, what };
        let first = match request.len() <= PART {
            true => self.call(to, request).await?,
            false => {
                for (i, bytes) in request.chunks(PART - 64).enumerate() {
                    let at = (i * (PART - 64)) as u32;
                    match self.call(to, &wire::encode(&part(What::Part { at, bytes }))?).await? {
                        Some(Answer::Done) => {}
                        other => return Ok(other),
                    }
                }
                let whole = What::Part { at: request.len() as u32, bytes: &[] };
                self.call(to, &wire::encode(&part(whole))?).await?
            }
        };
        let Some(Answer::Long(length)) = first else { return Ok(first) };
        let length = (length as usize).min(LONGEST);
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let more = part(What::More { at: bytes.len() as u32 });
            match self.call(to, &wire::encode(&more)?).await? {
                Some(Answer::Bytes(some)) if !some.is_empty() => bytes.extend(some),
                // The owner has forgotten it: the operation is asked for anew.
                _ => return Ok(Some(Answer::Running)),
            }
        }
        wire::decode(&bytes).map(Some)
    }

    async fn call(&self, to: NodeId, request: &[u8]) -> Result<Option<Answer>> {
        let (pool, index) = (&self.node.pool, self.node.root.index);
        let answer = pool.call_index(&self.ep, (to, index), request).await?;
        if answer.is_empty() { Ok(None) } else { wire::decode(&answer).map(Some) }
    }
}
