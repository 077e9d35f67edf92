//! Small remote calls, for work that one-sided verbs cannot do: chunk allocation, registration,
//! hand-over.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Poll;

use crate::addr::{NodeId, Role};
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
#[cfg(feature = "tcp")]
use crate::jobs::JOBS;
use crate::scope::Stage;
use crate::sync::locked;
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
/// endpoint it is given; calls of one node to control services run one at a time. A handler of a
/// compute node can call services of memory nodes, and no other handler can call anything: so no
/// two nodes wait for each other.
pub trait RpcHandler: Send + Sync {
    /// Answers one request.
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a>;
    /// Whether it is a data service: its calls run on as many cores as their node has, several at a
    /// time, and cost what they take. Others are control: one at a time.
    fn is_data(&self) -> bool {
        false
    }
    /// Whether an answer may wait for something outside of its node's memory, as a device or
    /// another client. The thread of a node waits; where the clients of several nodes share a
    /// thread, the handler runs beside them, and its reply comes later.
    fn waits(&self) -> bool {
        false
    }
    /// Runs one job ([`Endpoint::start_job`]), on a worker of its own. It reaches the memory of its
    /// node alone. It is dropped at an await when it is cancelled.
    fn job<'a>(&'a self, _: &'a Endpoint, _from: NodeId, _request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(std::future::ready(Err(no_jobs())))
    }
}

/// The same as an `async fn`.
#[allow(async_fn_in_trait, reason = "a handler's future stays on the core that polls it")]
pub trait Service: Send + Sync {
    /// Answers one request.
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>>;
    /// As [`RpcHandler::is_data`].
    fn is_data(&self) -> bool {
        false
    }
    /// As [`RpcHandler::waits`].
    fn waits(&self) -> bool {
        false
    }
    /// As [`RpcHandler::job`].
    async fn job(&self, _ep: &Endpoint, _from: NodeId, _request: &[u8]) -> Result<Vec<u8>> {
        Err(no_jobs())
    }
}

fn no_jobs() -> Error {
    Error::unsupported("this service runs no jobs: call it")
}

impl<S: Service> RpcHandler for S {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(self.answer(ep, from, request))
    }
    fn is_data(&self) -> bool {
        Service::is_data(self)
    }
    fn waits(&self) -> bool {
        Service::waits(self)
    }
    fn job<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(Service::job(self, ep, from, request))
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

impl RpcHost {
    /// Whether a service is there and is a data service.
    #[cfg(feature = "tcp")]
    pub(crate) fn is_data(&self, service: ServiceId) -> bool {
        service == JOBS || locked(&self.handlers).get(&service).is_some_and(|h| h.is_data())
    }

    /// Whether a service is there and waits.
    pub(crate) fn waits(&self, service: ServiceId) -> bool {
        locked(&self.handlers).get(&service).is_some_and(|h| h.waits())
    }
}

/// The cores of a node that run its data services: as many calls at a time.
pub(crate) struct Cores {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Cores {
    pub(crate) fn new(cores: u32) -> Self {
        Self { free: Mutex::new(cores), freed: Condvar::new() }
    }

    /// Waits for a core; it is free again when the guard is dropped.
    pub(crate) fn take(&self) -> CoreGuard<'_> {
        let free = locked(&self.free);
        let wait = self.freed.wait_while(free, |free| *free == 0);
        *wait.unwrap_or_else(PoisonError::into_inner) -= 1;
        CoreGuard(self)
    }
}

pub(crate) struct CoreGuard<'a>(&'a Cores);

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        *locked(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// Runs a handler of a data service on this thread. A panic is an error of this call alone: the
/// core goes on.
pub(crate) fn answer_data(
    handler: &dyn RpcHandler,
    ep: &Endpoint,
    (from, request): (NodeId, &[u8]),
) -> Result<Vec<u8>> {
    ep.renew_deadline();
    let run = || ep.block_on(handler.call(ep, from, request));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(reply) => check_reply(ep.node(), reply?),
        Err(_) => Err(panicked(ep.node())),
    }
}

pub(crate) fn panicked(node: NodeId) -> Error {
    let why = format!("a service of {node} has panicked: its log says where");
    Error::corrupt(why).effect_unknown()
}

/// Refuses a reply that is too long.
pub(crate) fn check_reply(node: NodeId, reply: Vec<u8>) -> Result<Vec<u8>> {
    match reply.len() > MAX_RPC_BYTES {
        false => Ok(reply),
        true => Err(Error::invalid(format!(
            "a service of {node} gave a reply of {} bytes, which exceeds 64 KiB",
            reply.len()
        ))),
    }
}

/// What a service's steps cost, and what it has charged.
#[derive(Default)]
pub(crate) struct Charged {
    /// By stage, ps; all 0 outside of simulators.
    pub(crate) prices: [u64; Stage::ALL.len()],
    pub(crate) sum: Cell<u64>,
}

/// The transport of a service, or of a job: the caller's, or the node's, without further calls.
pub(crate) struct WithoutCalls<T> {
    transport: Rc<T>,
    /// Notes what the service charges, instead of the transport.
    charged: Option<Rc<Charged>>,
    /// A job reaches the memory of its node alone: nodes with jobs that waited for each other
    /// could not revoke anything.
    own_only: bool,
}

impl<T> WithoutCalls<T> {
    /// For a service.
    pub(crate) fn serving(transport: Rc<T>, charged: Option<Rc<Charged>>) -> Rc<Self> {
        Rc::new(Self { transport, charged, own_only: false })
    }

    /// For a job.
    pub(crate) fn for_job(transport: T) -> Rc<Self> {
        Rc::new(Self { transport: Rc::new(transport), charged: None, own_only: true })
    }
}

impl<T: Transport> Transport for WithoutCalls<T> {
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        let own = self.transport.node();
        match list.iter().find(|wr| self.own_only && wr.at.node() != own) {
            Some(wr) => Poll::Ready(Err(Error::unsupported(format!(
                "a job of {own} reaches the memory of {own} alone, not that of {}",
                wr.at.node()
            )))),
            None => self.transport.post(core, ticket, list),
        }
    }
    fn rpc(&self, core: &Core, ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        let own = self.transport.node().role();
        if !self.own_only && own == Role::Compute && call.to.role() == Role::Memory {
            return self.transport.rpc(core, ticket, call);
        }
        Poll::Ready(Err(Error::unsupported(format!(
            "a service cannot call another service (of {}): two nodes could wait for each other; \
             services of compute nodes call memory nodes alone",
            call.to
        ))))
    }
    fn poll(&self, core: &Core) -> Progress {
        self.transport.poll(core)
    }
    fn drain_detached(&self, core: &Core) {
        self.transport.drain_detached(core);
    }
    fn idle(&self, core: &Core, due: Option<Nanos>, spins: u32) -> Idle {
        self.transport.idle(core, due, spins)
    }
    fn now(&self) -> Nanos {
        self.transport.now()
    }
    fn clock(&self) -> Nanos {
        self.transport.clock()
    }
    fn driver(&self) -> u64 {
        self.transport.driver()
    }
    fn caps(&self) -> Capabilities {
        self.transport.caps()
    }
    fn node(&self) -> NodeId {
        self.transport.node()
    }
    fn charge(&self, stage: Stage, units: u32) {
        match &self.charged {
            Some(charged) => {
                let price = charged.prices[stage as usize];
                charged.sum.set(charged.sum.get() + price * u64::from(units));
            }
            None => self.transport.charge(stage, units),
        }
    }
    fn charges(&self) -> bool {
        match &self.charged {
            Some(charged) => charged.prices.iter().any(|ps| *ps > 0),
            None => self.transport.charges(),
        }
    }
    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        self.transport.own_memory()
    }
    fn peek(&self, offset: u64) -> Option<u64> {
        self.transport.peek(offset)
    }
}
