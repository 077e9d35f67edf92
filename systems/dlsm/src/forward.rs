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

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Failure, MAX_RPC_BYTES, NodeId, Result, RpcFuture, RpcHandler,
};
use dmtree_parts::{BatchWrite, Outcome, ScanRequest, Shape, Write};
use serde::{Deserialize, Serialize};

use crate::client::Dlsm;
use crate::log::Origin;
use crate::node::{DlsmNode, Router};
use crate::owner::{Owner, head_of, node_of};
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
    /// The range itself, for this claim of the asking node.
    Give {
        to: u64,
    },
    /// Be its owner, if it has none.
    Own,
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
pub(crate) enum Asked {
    /// Here: with its name, if another node may have executed it before.
    Here(Arc<Shard>, Option<Origin>),
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
pub(crate) struct Desk {
    trays: Mutex<BTreeMap<u64, Tray>>,
    /// Bytes of all, where there is more than one.
    most: usize,
}

/// An operation that is being executed.
struct Running<'d>(&'d Desk, u64);

/// How far an operation is.
enum Begun<'d> {
    /// It begins now.
    Now(Running<'d>),
    Running,
    /// It has ended with this answer.
    Ended(Vec<u8>),
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(tray) = locked(&self.0.trays).get_mut(&self.1) {
            tray.is_running = false;
        }
    }
}

impl Tray {
    fn bytes(&self) -> usize {
        self.request.len() + self.answer.len()
    }
}

impl Desk {
    /// Within so many bytes.
    pub(crate) fn within(most: u64) -> Self {
        Self { most: usize::try_from(most).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Makes room for a client's further bytes: what is kept for others, and is not running, goes.
    ///
    /// # Errors
    /// `Busy` when there is none.
    fn make_room(&self, trays: &mut BTreeMap<u64, Tray>, client: u64, more: usize) -> Result<()> {
        let own = trays.get(&client).map_or(0, Tray::bytes);
        let mut others = trays.values().map(Tray::bytes).sum::<usize>() - own;
        let is_over = |others| others > 0 && others + own + more > self.most;
        while is_over(others) {
            let idle =
                |(c, tray): (&u64, &Tray)| *c != client && !tray.is_running && tray.bytes() > 0;
            let idle = trays.iter().find(|its| idle(*its)).map(|(c, tray)| (*c, tray.bytes()));
            let Some((idle, bytes)) = idle else {
                return Err(Error::busy(format!(
                    "messages of other nodes have the {} bytes of the budget that are for them",
                    self.most
                )));
            };
            trays.remove(&idle);
            others -= bytes;
        }
        Ok(())
    }

    /// The tray of an operation, which is the latest of its client; another one's goes.
    fn with<T>(&self, (client, number): Origin, then: impl FnOnce(&mut Tray) -> T) -> Result<T> {
        self.with_room((client, number), 0, then)
    }

    /// The same with room for so many bytes more.
    fn with_room<T>(
        &self,
        (client, number): Origin,
        more: usize,
        then: impl FnOnce(&mut Tray) -> T,
    ) -> Result<T> {
        let mut trays = locked(&self.trays);
        if more > 0 {
            self.make_room(&mut trays, client, more)?;
        }
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

    /// Bytes of requests and answers.
    pub(crate) fn bytes(&self) -> u64 {
        locked(&self.trays).values().map(|tray| tray.bytes() as u64).sum()
    }

    /// Begins to execute an operation, unless that has happened.
    fn begin(&self, origin: Origin) -> Result<Begun<'_>> {
        self.with(origin, |tray| match tray.answer.is_empty() {
            false => Begun::Ended(tray.answer.clone()),
            true if std::mem::replace(&mut tray.is_running, true) => Begun::Running,
            true => Begun::Now(Running(self, origin.0)),
        })
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
        match self.with_room(origin, bytes.len(), is_next)? {
            true => Ok(()),
            false => Err(Error::busy("a part of a request is missing: begin again")),
        }
    }

    /// Keeps an answer. One of an operation that has failed is none: it may be asked for again.
    fn keep(&self, origin: Origin, answer: &Answer) -> Result<Vec<u8>> {
        let encoded = wire::encode(answer)?;
        if !matches!(answer, Answer::Failed(_)) {
            self.with_room(origin, encoded.len(), |tray| tray.answer.clone_from(&encoded))?;
        }
        Ok(encoded)
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
        let origin = ask.origin;
        if node_of(origin.0) != from {
            return Err(Error::invalid(format!("{from} asks in the name of another node")));
        }
        let Some(router) = self.node.opened(&self.ep).await? else { return Ok(Vec::new()) };
        if ask.range as usize >= router.shards.len() {
            return Err(Error::invalid(format!("range {} of {}", ask.range, router.shards.len())));
        }
        let desk = &self.node.desk;
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
        let (desk, origin) = (&self.node.desk, ask.origin);
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
        let answer = match (ask.what, self.owner(router, range, true).await?) {
            (_, Owner::There(_)) => return Ok(Vec::new()),
            (What::Give { to }, Owner::Here(shard)) => {
                drop(shard);
                match node_of(to) == node_of(origin.0) {
                    true => self.give_away(router, range, to).await.map(|()| Answer::Done)?,
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
                let found = self.read_in(shard, key, &mut out).await?;
                Answer::Value(found.then_some(out))
            }
            What::Write { key, w } => {
                Answer::Wrote(self.write_in(shard, key, w, Some(origin)).await?.0)
            }
            What::Batch(batch) => {
                self.write_batch_in(shard, &batch, Some(origin)).await?;
                Answer::Done
            }
            What::Page(r) => {
                let mut page = dmtree_parts::Page::new();
                let more = self.page_in((router, range), shard, &r, PART - 1024, &mut page).await?;
                let pair = |i| page.get(i).map(|(k, v)| (k.to_vec(), v.to_vec()));
                Answer::Page((0..page.len()).filter_map(pair).collect(), more)
            }
            What::Walk => Answer::Walked(self.walk_in(shard).await?),
            What::Own => Answer::Done,
            What::Part { .. } | What::More { .. } | What::Give { .. } => {
                return Err(Error::invalid("a part of a part of a request"));
            }
        })
    }

    /// A new operation.
    pub(crate) fn ask<'a>(&self, range: usize, what: What<'a>) -> Ask<'a> {
        self.operations.set(self.operations.get() + 1);
        Ask { range: range as u32, origin: (self.session, self.operations.get()), what }
    }

    /// Asks the owner of a range, whichever it is; or says that it is this node.
    ///
    /// # Errors
    /// Those of the operation; `TimedOut` when there is no owner at its deadline.
    pub(crate) async fn ask_owner(
        &self,
        router: &Router,
        range: usize,
        what: &What<'_>,
    ) -> Result<Asked> {
        if let Some(shard) = router.shards[range].get() {
            return Ok(Asked::Here(shard, None));
        }
        let at = head_of(router, range);
        let mut backoff = self.ep.backoff_within("the owner of a key", at, AGAIN_NS);
        let ask = self.ask(range, what.clone());
        let (origin, request) = (ask.origin, wire::encode(&ask)?);
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
                    self.failed(router, range, (to, failure.into())).await?
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
    async fn failed(&self, router: &Router, range: usize, (to, e): (NodeId, Error)) -> Result<()> {
        use ErrorKind::{Busy, Closed, Contended, Revoked, TimedOut, Unreachable};
        match e.kind() {
            Busy | Contended | TimedOut => Ok(()),
            Closed | Revoked => {
                // It is fenced, or will be. If the range has no owner, it never is one.
                self.forget_owner(router, range, to);
                Ok(())
            }
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

    /// Asks a node; `None`: it is not the owner.
    pub(crate) async fn ask_node(
        &self,
        to: NodeId,
        ask: &Ask<'_>,
        request: &[u8],
    ) -> Result<Option<Answer>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept for clients is within the part of the budget: of idle ones the first goes,
    /// what runs stays, and one message of any length has room.
    #[test]
    fn messages_of_other_nodes_are_within_their_part() {
        let desk = Desk::within(1000);
        let add = |client, bytes| desk.add_part((client, 1), (0, &vec![7; bytes]));
        for client in 0..20 {
            add(client, 300).expect("room");
            assert!(desk.bytes() <= 1000, "{}", desk.bytes());
        }
        let Ok(Begun::Now(running)) = desk.begin((19, 1)) else { panic!("it begins") };
        add(20, 700).expect("that of others goes");
        let e = add(21, 701).expect_err("one is running");
        assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("the 1000 bytes"), "{e}");
        desk.keep((19, 1), &Answer::Bytes(vec![1; 600])).expect("that of 20 goes");
        drop(running);
        assert!(matches!(desk.begin((19, 1)), Ok(Begun::Ended(answer)) if answer.len() > 600));
        add(22, 5000).expect("alone");
        assert_eq!(desk.bytes(), 5000);
        assert!(add(22, LONGEST + 1).is_err());
    }
}
