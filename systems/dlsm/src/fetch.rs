//! How the bytes of tables are read: by READs or calls of the owner, or by the processor of the
//! memory node that has them.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Endpoint, Error, GlobalAddr, NodeId, Result};
use dmtree_pool::DATA_SERVICE;

use crate::wire::{self, MOST_BYTES, Reply, Request};

/// Threads that send and take the messages of calls look for one this often, ns. Those of Nova-LSM
/// ask for a sleep of 10 us between two looks; timers of Linux take 50 us longer.
const LOOK_NS: u64 = 60_000;

/// A source of bytes of memory nodes.
#[allow(async_fn_in_trait, reason = "it is used by clients, which stay on their thread")]
pub(crate) trait Fetch {
    /// Reads some ranges, in one round trip where verbs read them.
    async fn fetch(&self, ranges: &[(GlobalAddr, u32)]) -> Result<Vec<Vec<u8>>>;
}

/// READs of a client, or calls in their place.
pub(crate) struct Remote<'e> {
    pub(crate) ep: &'e Endpoint,
    pub(crate) calls: bool,
}

/// Waits for the two threads that a message of Nova-LSM passes: that of the client, and that of the
/// memory node, which looks half of the time between two looks later.
pub(crate) async fn pass_message(ep: &Endpoint) {
    for late in [0, LOOK_NS / 2] {
        ep.sleep(LOOK_NS - (ep.now() + late) % LOOK_NS).await;
    }
}

impl Fetch for Remote<'_> {
    async fn fetch(&self, ranges: &[(GlobalAddr, u32)]) -> Result<Vec<Vec<u8>>> {
        let copied = |bytes: &[u8]| bytes.to_vec();
        match ranges {
            _ if self.calls => self.call(ranges).await,
            [(at, bytes)] => Ok(vec![self.ep.read(*at, *bytes).await?.extract(copied)]),
            many => {
                let mut verbs = VerbVec::new();
                for (at, bytes) in many {
                    verbs.read(*at, *bytes);
                }
                let mut done = self.ep.batch(verbs).await?;
                Ok((0..many.len()).map(|i| done.take_sampled(i).extract(copied)).collect())
            }
        }
    }
}

impl Remote<'_> {
    /// The ranges are one message, and their bytes another one; the calls carry them in parts.
    async fn call(&self, ranges: &[(GlobalAddr, u32)]) -> Result<Vec<Vec<u8>>> {
        pass_message(self.ep).await;
        let mut all = Vec::with_capacity(ranges.len());
        for (at, bytes) in ranges {
            let (mut whole, bytes) = (Vec::with_capacity(*bytes as usize), *bytes as usize);
            while whole.len() < bytes {
                let offset = at.offset() + whole.len() as u64;
                let part = (bytes - whole.len()).min(MOST_BYTES) as u32;
                match ask(self.ep, at.node(), &Request::Read { offset, bytes: part }).await? {
                    Reply::Bytes(some) if some.len() == part as usize => whole.extend(some),
                    _ => return Err(wire::unexpected(at.node())),
                }
            }
            all.push(whole);
        }
        pass_message(self.ep).await;
        Ok(all)
    }
}

/// What the verbs of a future use, for as long as they may execute: a verb outlives its future when
/// that is dropped, and memory that it reads is not freed before it has ended. Declared before the
/// verbs are, it is dropped after them.
pub(crate) struct InUse<'u, T: Clone + 'static>(pub(crate) &'u Endpoint, pub(crate) &'u T);

impl<T: Clone + 'static> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        if !self.0.is_quiet() {
            let used = self.1.clone();
            self.0.when_quiet(move || drop(used));
        }
    }
}

/// A call to the service of a memory node.
///
/// # Errors
/// Those of the service and of the fabric.
pub(crate) async fn ask(ep: &Endpoint, to: NodeId, request: &Request<'_>) -> Result<Reply> {
    let mut reply = Vec::new();
    ep.rpc(to, DATA_SERVICE, &wire::message(request)?, &mut reply).await?;
    wire::decode(&reply)
}

/// The memory of the node that a job runs on.
pub(crate) struct Own<'e>(pub(crate) &'e Endpoint);

/// A processor that reaches the memory of its node.
pub(crate) fn no_processor(node: NodeId) -> Error {
    Error::unsupported(format!("no processor reaches the memory of {node}: merge at the owner"))
}

impl Fetch for Own<'_> {
    async fn fetch(&self, ranges: &[(GlobalAddr, u32)]) -> Result<Vec<Vec<u8>>> {
        let node = self.0.node();
        let memory = self.0.own_memory().ok_or_else(|| no_processor(node))?;
        let read = |(at, bytes): &(GlobalAddr, u32)| {
            if at.node() != node {
                return Err(Error::invalid(format!("{node} does not merge what is at {at}")));
            }
            let mut out = vec![0; *bytes as usize];
            memory.read(at.offset(), &mut out).map(|()| out)
        };
        ranges.iter().map(read).collect()
    }
}
