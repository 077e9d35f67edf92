//! Requests and replies that are longer than a call, on their way in parts. A client has one of
//! each at a time: the begin of the next replaces what a client that is gone has left. Parts carry
//! the number of their request, so a late part of a request that has timed out joins no other one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, NodeId, Result};
use dmtree_parts::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::wire::Head;

/// A client of a compute node.
type Client = (NodeId, u32);

/// The longest request: a write with two values, and some framing.
pub(crate) const LONGEST: usize = 2 * MAX_VALUE_BYTES + MAX_KEY_BYTES + 1024;

/// Bytes of a request or of a reply, and its number.
#[derive(Default)]
struct Parcel {
    number: u64,
    bytes: Vec<u8>,
}

impl Parcel {
    /// Whether this is a later request than one of this number.
    fn is_after(&self, number: u64) -> bool {
        self.number > number
    }
}

/// What is on its way.
#[derive(Default)]
pub(crate) struct Parcels {
    requests: Mutex<BTreeMap<Client, Parcel>>,
    replies: Mutex<BTreeMap<Client, Parcel>>,
}

impl Parcels {
    /// Adds a part to a request; the whole of it with the last part.
    ///
    /// # Errors
    /// `InvalidArgument` for a part that does not follow the one before, or is too long.
    pub(crate) fn add(
        &self,
        (from, head): (NodeId, &Head),
        (at, bytes): (u32, &[u8]),
        last: bool,
    ) -> Result<Option<Vec<u8>>> {
        let (of, number) = ((from, head.client), head.number);
        let mut requests = locked(&self.requests);
        let request = requests.entry(of).or_default();
        if at == 0 && !request.is_after(number) {
            *request = Parcel { number, bytes: Vec::new() };
        }
        if request.number != number || at as usize != request.bytes.len() {
            return Err(Error::invalid("a part of a request that does not follow the last one"));
        }
        if request.bytes.len() + bytes.len() > LONGEST {
            return Err(Error::invalid(format!("a request of more than {LONGEST} bytes")));
        }
        request.bytes.extend_from_slice(bytes);
        Ok(if last { requests.remove(&of).map(|whole| whole.bytes) } else { None })
    }

    /// Keeps a reply that is too long for a call, unless that of a later request is here.
    pub(crate) fn keep_reply(&self, (from, head): (NodeId, &Head), bytes: Vec<u8>) {
        let mut replies = locked(&self.replies);
        let reply = replies.entry((from, head.client)).or_default();
        if !reply.is_after(head.number) {
            *reply = Parcel { number: head.number, bytes };
        }
    }

    /// A piece of a reply; the last one removes it.
    ///
    /// # Errors
    /// `InvalidArgument` when there is none.
    pub(crate) fn piece(
        &self,
        (from, head): (NodeId, &Head),
        at: u32,
        most: usize,
    ) -> Result<Vec<u8>> {
        let of = (from, head.client);
        let mut replies = locked(&self.replies);
        let reply = replies.get(&of).filter(|reply| reply.number == head.number);
        let Some(rest) = reply.and_then(|reply| reply.bytes.get(at as usize..)) else {
            return Err(Error::invalid("a piece of a reply that is not there"));
        };
        let piece = rest[..rest.len().min(most)].to_vec();
        if piece.len() == rest.len() {
            replies.remove(&of);
        }
        Ok(piece)
    }
}
