//! What a node asks the owner of a range ([`crate::forward`]), and what it answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Error, ErrorKind, Failure, MAX_RPC_BYTES, NodeId, Result};
use dmtree_parts::{BatchWrite, Outcome, ScanRequest, Shape, Write};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::desk::LONGEST;
use crate::log::Origin;
use crate::owner::{Owner, Ranges, head_of};
use crate::router::Router;
use crate::shard::Shard;
use crate::wire;

/// Bytes of a part; an answer or a request that is no longer goes as it is.
pub(crate) const PART: usize = MAX_RPC_BYTES - 512;
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

/// Operations at the owner of a range.
pub(crate) struct Calls<'c>(pub(crate) &'c Client);

impl Calls<'_> {
    /// A new operation.
    pub(crate) fn ask<'a>(&self, range: usize, what: What<'a>) -> Ask<'a> {
        self.0.operations.set(self.0.operations.get() + 1);
        Ask { range: range as u32, origin: (self.0.session, self.0.operations.get()), what }
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
        let mut backoff = self.0.ep.backoff_within("the owner of a key", at, AGAIN_NS);
        let ask = self.ask(range, what.clone());
        let (origin, request) = (ask.origin, wire::encode(&ask)?);
        let mut was_asked = false;
        loop {
            let owner = Ranges(self.0).owner(router, range, false).await;
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
                    self.0.node.pool.check_lease(&self.0.ep)?;
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
        if router.owners[range].swap(0, Ordering::SeqCst) == 0 && to != self.0.node.pool.cn() {
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
                let home = self.0.node.home(range);
                self.0.ep.read(router.heads, 8).await?;
                let first = dmtree_fabric::GlobalAddr::new(home, 64);
                self.0.ep.read(first, 8).await.map(drop)
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
        let (pool, index) = (&self.0.node.pool, self.0.node.root.index);
        let answer = pool.services().call_index(&self.0.ep, (to, index), request).await?;
        if answer.is_empty() { Ok(None) } else { wire::decode(&answer).map(Some) }
    }
}
