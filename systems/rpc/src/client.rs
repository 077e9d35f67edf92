//! A client: one fabric slot. Its requests go to the memory node of a key; one that is longer than
//! a call, or has a longer reply, goes in parts.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Endpoint, Error, NodeId, Result};
use dmtree_parts::op::Hits;
use dmtree_pool::DATA_SERVICE;

use crate::cell::Averages;
use crate::node::RpcNode;
use crate::wire::{self, CALL_BYTES, Head, Reply, Request, SERVICE};

/// A client of the index. [`dmtree_parts::RangeIndex`] documents its operations.
pub struct Rpc {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<RpcNode>,
    pub(crate) averages: Averages,
    pub(crate) hits: Hits,
    /// The operation has repeated a step.
    pub(crate) retried: Cell<bool>,
    /// Its number among the clients of this compute node.
    client: u32,
    /// Its last request.
    number: Cell<u64>,
}

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rpc({:?})", self.ep)
    }
}

impl Rpc {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<RpcNode>) -> Self {
        let incarnation = node.pool.fabric().incarnation(ep.node()).unwrap_or(0);
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        Self {
            averages: Averages::default(),
            hits: Hits::new(&node.lookups),
            retried: Cell::new(false),
            client: node.next_client.fetch_add(1, Ordering::Relaxed),
            number: Cell::new(u64::from(incarnation) << 40),
            ep,
            node,
        }
    }

    /// Asks the memory node of a key, also when it has to learn first which that is.
    ///
    /// # Errors
    /// Those of the service and of the fabric.
    pub(crate) async fn ask(&self, key: &[u8], request: &Request<'_>) -> Result<(NodeId, Reply)> {
        loop {
            let to = self.node.owner(key);
            if let Some(reply) = self.ask_node(to, request).await? {
                return Ok((to, reply));
            }
        }
    }

    /// Asks a memory node; `None` when this node has learned how keys are cut instead.
    ///
    /// # Errors
    /// As [`Rpc::ask`].
    pub(crate) async fn ask_node(
        &self,
        to: NodeId,
        request: &Request<'_>,
    ) -> Result<Option<Reply>> {
        let knows = self.node.borders.get().is_some();
        self.number.set(self.number.get() + 1);
        let request_id = (self.client, self.number.get());
        let head = Head::new(self.node.root.index, request_id, &self.node.o, knows);
        let message = wire::encode(request)?;
        let reply = match message.len() <= CALL_BYTES {
            true => self.call(to, &head, &message).await?,
            false => self.call_in_parts(to, &head, &message).await?,
        };
        let reply = match reply {
            Reply::Long(bytes) => self.fetch(to, &head, bytes as usize).await?,
            reply => reply,
        };
        match reply {
            Reply::Borders(borders) if !knows => {
                self.retried.set(true);
                // Another client may have learned the same.
                let _ = self.node.borders.set(borders);
                Ok(None)
            }
            reply => Ok(Some(reply)),
        }
    }

    async fn call(&self, to: NodeId, head: &Head, message: &[u8]) -> Result<Reply> {
        let head = wire::encode(head)?;
        let request = [&[SERVICE.0], &head[..], message].concat();
        let mut reply = Vec::new();
        self.ep.rpc(to, DATA_SERVICE, &request, &mut reply).await?;
        wire::decode(&reply)
    }

    async fn call_in_parts(&self, to: NodeId, head: &Head, message: &[u8]) -> Result<Reply> {
        let size = CALL_BYTES - 16;
        let mut reply = Reply::Next;
        for (i, bytes) in message.chunks(size).enumerate() {
            let (at, last) = (i * size, (i + 1) * size >= message.len());
            let part = Request::Part { at: at as u32, bytes, last };
            reply = self.call(to, head, &wire::encode(&part)?).await?;
        }
        Ok(reply)
    }

    async fn fetch(&self, to: NodeId, head: &Head, bytes: usize) -> Result<Reply> {
        let mut whole = Vec::new();
        while whole.len() < bytes {
            let fetch = wire::encode(&Request::Fetch { at: whole.len() as u32 })?;
            match self.call(to, head, &fetch).await? {
                Reply::Piece(piece) if !piece.is_empty() => whole.extend(piece),
                other => return Err(unexpected(to, &other)),
            }
        }
        wire::decode(&whole)
    }
}

/// A reply that does not fit its request.
#[cold]
pub(crate) fn unexpected(from: NodeId, reply: &Reply) -> Error {
    let text = format!("{reply:?}");
    let short: String = text.chars().take(40).collect();
    Error::corrupt(format!("{from} gave an answer to another question: {short}"))
}
