//! The transport of a client thread in a [`super::VerbsFabric`]: verbs through the NIC, offers and
//! calls by function calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::client::{Client, Stats};
use super::fabric::VerbsShared;
use super::port::Accepted;
use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::jobs::{self, JOBS};
use crate::membership::Member;
use crate::rpc::{RpcCall, WithoutCalls, answer_data, check_reply};
use crate::sync::locked;
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest, poll_until};

/// A client thread's transport.
pub struct VerbsTransport {
    client: Client,
    shared: Arc<VerbsShared>,
    own: Arc<Host>,
    /// The hosts' ends of its connections.
    ends: RefCell<BTreeMap<NodeId, Accepted>>,
    /// The transports of the services that it calls, by node.
    services: RefCell<BTreeMap<NodeId, (Arc<Host>, Endpoint)>>,
}

impl VerbsTransport {
    pub(super) fn new(shared: Arc<VerbsShared>, own: Arc<Host>) -> Result<Self> {
        let me = Member { node: own.node, incarnation: own.incarnation };
        let client = Client::open(shared.nic.clone(), me, None)?;
        let (ends, services) = (RefCell::default(), RefCell::default());
        Ok(Self { client, shared, own, ends, services })
    }

    /// Its statistics.
    pub fn stats(&self) -> Stats {
        self.client.stats()
    }

    /// Verbs posted and not completed.
    pub fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }

    /// Breaks the connection to a node as a failure of the network would.
    pub fn cut(&self, core: &Core, node: NodeId) {
        let why = Error::unreachable(format!("the connection to {node} was cut"));
        self.client.disconnect(core, node, &why);
    }

    fn me(&self) -> Member {
        Member { node: self.own.node, incarnation: self.own.incarnation }
    }

    /// Makes connections that verbs wait for, and closes the other ends of those that broke.
    fn recover(&self, core: &Core) -> bool {
        let mut any = false;
        while let Some(node) = self.client.next_broken() {
            any = true;
            let end = self.ends.borrow_mut().remove(&node);
            drop(end);
            let why =
                self.shared.node_directory.known(node).ok().and_then(|h| h.refusal(&self.own));
            self.client.closed(core, node, why.as_ref());
        }
        while let Some(node) = self.client.next_wanted() {
            any = true;
            if let Err(e) = self.connect(core, node) {
                self.client.refuse(core, node, &e);
            }
        }
        any
    }

    fn connect(&self, core: &Core, node: NodeId) -> Result<()> {
        let unknown = |e: Error| Error::unreachable(e.to_string());
        let host = self.shared.node_directory.known(node).map_err(unknown)?;
        if let Some(e) = host.refusal(&self.own) {
            return Err(e);
        }
        let port = self.shared.port(node);
        let port = port.ok_or_else(|| {
            Error::unreachable(format!("{node} has opened no port yet; try again"))
        })?;
        let offer = self.client.offer(node)?;
        let (answer, end) = port.accept(self.me(), &offer, false)?;
        self.ends.borrow_mut().insert(node, end);
        self.client.connect(core, node, &answer)
    }

    fn call(&self, call: RpcCall<'_>) -> Result<Vec<u8>> {
        let RpcCall { to, service, request } = call;
        let host =
            self.shared.node_directory.known(to).map_err(|e| Error::unreachable(e.to_string()))?;
        if let Some(e) = host.refusal(&self.own) {
            return Err(e);
        }
        if service == JOBS {
            let (reply, begun) = host.jobs.answer(&host, self.own.member(), request)?;
            if let Some(job) = begun {
                let (shared, on) = (self.shared.clone(), host.clone());
                jobs::start_thread(host, job, move || {
                    Ok(Endpoint::alone(WithoutCalls::for_job(Self::new(shared, on)?), 0))
                });
            }
            return Ok(reply);
        }
        let handler = host.rpc.handler(to, service)?;
        let ep = self.service(&host)?;
        if handler.is_data() {
            let _core = host.cores.take();
            return answer_data(&*handler, &ep, (self.own.node, request));
        }
        let _core = locked(&host.rpc_core);
        check_reply(host.node, ep.block_on(handler.call(&ep, self.own.node, request))?)
    }

    /// The transport of a node's services: a client of that node, through its NIC, as any other.
    fn service(&self, host: &Arc<Host>) -> Result<Endpoint> {
        let mut services = self.services.borrow_mut();
        if let Some((served, ep)) = services.get(&host.node)
            && Arc::ptr_eq(served, host)
        {
            return Ok(ep.clone());
        }
        let transport = Rc::new(Self::new(self.shared.clone(), host.clone())?);
        let ep = Endpoint::alone(WithoutCalls::serving(transport, None), 0);
        services.insert(host.node, (host.clone(), ep.clone()));
        Ok(ep)
    }
}

impl Transport for VerbsTransport {
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        self.client.post(core, ticket, list)
    }

    fn rpc(&self, _core: &Core, _ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        Poll::Ready(self.call(call))
    }

    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        Some(&*self.own)
    }

    fn poll(&self, core: &Core) -> Progress {
        let progress = self.client.poll(core);
        if self.recover(core) { Progress::Made } else { progress }
    }

    fn drain_detached(&self, core: &Core) {
        poll_until(self, core, || self.client.is_idle());
    }

    fn idle(&self, _core: &Core, due: Option<Nanos>, spins: u32) -> Idle {
        let wait = due.map_or(50_000_000, |due| due.saturating_sub(self.now()).min(1_000_000));
        if spins < 32 {
            std::hint::spin_loop();
        } else if self.client.outstanding() > 0 || wait < 20_000 || spins < 64 {
            // Completions do not unpark.
            std::thread::yield_now();
        } else {
            let wait = if self.client.is_idle() { wait } else { wait.min(50_000) };
            std::thread::park_timeout(std::time::Duration::from_nanos(wait));
        }
        Idle::Again
    }

    fn now(&self) -> Nanos {
        self.shared.epoch.elapsed().as_nanos() as Nanos
    }

    fn caps(&self) -> Capabilities {
        self.shared.caps()
    }

    fn node(&self) -> NodeId {
        self.own.node
    }

    fn peek(&self, offset: u64) -> Option<u64> {
        self.own.region.peek(offset)
    }
}
