//! Small remote calls, for work that one-sided verbs cannot do: chunk allocation, registration,
//! hand-over.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest};

/// Names a service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceId(pub u16);

/// Requests and replies have at most this many bytes; larger goes through regions.
pub const MAX_RPC_BYTES: usize = 64 << 10;

/// A remote call.
#[derive(Clone, Copy, Debug)]
pub struct RpcCall<'a> {
    /// The node that answers it.
    pub to: NodeId,
    /// The service there.
    pub service: ServiceId,
    /// The request, for that service.
    pub request: &'a [u8],
}

/// A handler's pending answer.
pub type RpcFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + 'a>>;

/// Code that runs on a node's few cores. It reaches memory, its own node's too, through the
/// endpoint it is given; calls of one node run one at a time, and a handler cannot call another
/// service.
pub trait RpcHandler: Send + Sync {
    /// Answers one request.
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a>;
}

/// The same as an `async fn`.
#[allow(async_fn_in_trait, reason = "a handler's future stays on the core that polls it")]
pub trait Service: Send + Sync {
    /// Answers one request.
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>>;
}

impl<S: Service> RpcHandler for S {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(self.answer(ep, from, request))
    }
}

/// The services of one node.
#[derive(Default)]
pub struct RpcHost {
    handlers: Mutex<BTreeMap<ServiceId, Arc<dyn RpcHandler>>>,
}

impl RpcHost {
    /// Installs a handler.
    pub fn install(&self, service: ServiceId, handler: Arc<dyn RpcHandler>) {
        self.handlers.lock().expect("no panic under this lock").insert(service, handler);
    }

    /// The handler of a service.
    ///
    /// # Errors
    /// `Unsupported` when none is installed.
    pub fn handler(&self, node: NodeId, service: ServiceId) -> Result<Arc<dyn RpcHandler>> {
        let handlers = self.handlers.lock().expect("no panic under this lock");
        handlers.get(&service).cloned().ok_or_else(|| {
            Error::unsupported(format!(
                "{node} has no service {}: is it a node of this pool?",
                service.0
            ))
        })
    }
}

/// Refuses a reply that is too long.
pub(crate) fn check_reply(reply: Vec<u8>) -> Result<Vec<u8>> {
    match reply.len() > MAX_RPC_BYTES {
        false => Ok(reply),
        true => Err(Error::invalid(format!("a reply of {} bytes exceeds 64 KiB", reply.len()))),
    }
}

/// The transport of a service's coroutine: the caller's, without further calls.
pub(crate) struct WithoutCalls<T>(pub(crate) Rc<T>);

impl<T: Transport> Transport for WithoutCalls<T> {
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        self.0.post(core, ticket, list)
    }
    fn rpc(&self, _core: &Core, _ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        Poll::Ready(Err(Error::unsupported(format!(
            "a service cannot call another service (of {}): two nodes could wait for each other",
            call.to
        ))))
    }
    fn poll(&self, core: &Core) -> Progress {
        self.0.poll(core)
    }
    fn drain_detached(&self, core: &Core) {
        self.0.drain_detached(core);
    }
    fn idle(&self, core: &Core, due: Option<Nanos>, spins: u32) -> Idle {
        self.0.idle(core, due, spins)
    }
    fn now(&self) -> Nanos {
        self.0.now()
    }
    fn caps(&self) -> Capabilities {
        self.0.caps()
    }
    fn node(&self) -> NodeId {
        self.0.node()
    }
    fn peek(&self, offset: u64) -> Option<u64> {
        self.0.peek(offset)
    }
}
