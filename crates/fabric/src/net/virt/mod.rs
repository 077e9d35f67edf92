//! A network of many processes on one thread, in virtual time, as a function of a seed. Everything
//! above the sockets is the real code: the server of a node, its sessions and limits, the
//! handshake, links, frames, the membership server and its agents.
//!
//! One executor runs the clients of all processes. The work of a process runs through
//! [`Process::run`]: it stands still while the process is paused, and ends when the process is
//! killed.

mod sockets;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::NetFabric;
use super::data_path::NicConfig;
use super::io::Net;
use super::membership_server::PoolConfig;
use super::start::Place;
use super::transport::NetTransport;
use crate::addr::{NodeId, Role};
use crate::caps::Capabilities;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::membership::LeaseParameters;
use crate::rpc::RpcCall;
use crate::sync::locked;
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest};
use sockets::{Universe, Virtual};
use world::Pid;
pub use world::Sight;

/// Bytes of buffers of all clients.
const SLAB_BYTES: u64 = 64 << 20;

/// The clients of a process.
type Clients = Rc<RefCell<Vec<(Pid, Weak<NetTransport>)>>>;

/// A simulated network. Clone it freely; all clones are the same network.
#[derive(Clone)]
pub struct Network {
    universe: Arc<Universe>,
    root: Rc<Root>,
    core: Rc<Core>,
}

/// A mutant of the layers under the links: only a checker enables one, to show that its runs find
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Clients block in connection set-up until there is a connection, or it is refused.
    DialWaits,
    /// A node answers that it has started a job, and no worker runs it.
    JobsLost,
}

/// A process on a simulated network.
#[derive(Clone)]
pub struct Process {
    network: Network,
    pid: Pid,
}

impl Network {
    /// A network without processes.
    pub fn new(seed: u64) -> Self {
        let universe = Universe::new(seed);
        let root = Rc::new(Root { universe: universe.clone(), clients: Clients::default() });
        let core = Core::new(root.clone(), SLAB_BYTES);
        core.seed(seed);
        Self { universe, root, core }
    }

    /// The executor of all processes.
    pub fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// Virtual time, ns.
    pub fn now(&self) -> Nanos {
        self.universe.world().now
    }

    /// A process starts on a machine.
    pub fn start(&self, machine: u16) -> Process {
        let pid = self.universe.world().start(machine);
        Process { network: self.clone(), pid }
    }

    /// An endpoint of a slot of the executor that only knows the time.
    pub fn clock(&self, slot: u32) -> Endpoint {
        Endpoint::new(self.core.clone(), self.root.clone(), slot)
    }

    /// Cuts the path between two machines for so long.
    pub fn cut(&self, a: u16, b: u16, ns: Nanos) {
        self.universe.world().cut(a, b, ns);
    }

    /// A connection breaks; if `is_half`, one of its ends does not notice.
    pub fn break_one(&self, is_half: bool) {
        self.universe.world().break_one(is_half);
    }

    /// Breaks the connections from one machine to another at the connecting ends; bytes in flight
    /// still arrive. If `is_half`, the other ends do not notice.
    pub fn break_between(&self, from: u16, to: u16, is_half: bool) {
        self.universe.world().break_between(from, to, is_half);
    }

    /// One segment in this many is late, up to 0.3 s; 0: none.
    pub fn set_late(&self, one_in: u64) {
        self.universe.world().late_one_in = one_in;
    }

    /// Enables a mutant.
    pub fn set_mutant(&self, mutant: Mutant) {
        self.universe.world().mutant = Some(mutant);
    }

    /// The unusual events so far, and how often each happened.
    pub fn seen(&self) -> BTreeMap<Sight, u64> {
        self.universe.world().seen.clone()
    }

    /// All faults end.
    pub fn heal(&self) {
        self.universe.world().heal();
    }

    /// Ends of connections that exist now.
    pub fn ends(&self) -> usize {
        self.universe.world().ends()
    }
}

impl Process {
    fn net(&self) -> Arc<dyn Net> {
        Arc::new(Virtual { universe: self.network.universe.clone(), pid: self.pid })
    }

    /// Founds a pool with this process as its first memory node.
    pub fn found(
        &self,
        port: u16,
        region_bytes: u64,
        pool_config: PoolConfig,
        lease_parameters: LeaseParameters,
    ) -> Result<NetFabric> {
        let (listen, nic_config) = (format!("0.0.0.0:{port}"), NicConfig::default());
        NetFabric::found_on(
            self.net(),
            (&listen, None),
            region_bytes,
            pool_config,
            lease_parameters,
            &nic_config,
        )
    }

    /// Joins a pool.
    pub async fn join(
        &self,
        place: &Place<'_>,
        role: Role,
        region_bytes: u64,
        clock: &Endpoint,
    ) -> Result<NetFabric> {
        let asks = (role, None);
        let joined = NetFabric::join_on(self.net(), place, asks, |_| Ok(region_bytes), Some(clock));
        joined.await.map(|(fabric, _)| fabric)
    }

    /// A client of a node of this process, on a slot of the executor.
    pub fn client(&self, of: &NetFabric, slot: u32) -> Result<Endpoint> {
        let transport = Rc::new(of.transport()?);
        self.network.root.clients.borrow_mut().push((self.pid, Rc::downgrade(&transport)));
        Ok(Endpoint::new(self.network.core.clone(), transport, slot))
    }

    /// Pauses the process for so long.
    pub fn pause(&self, ns: Nanos) {
        self.network.universe.world().pause(self.pid, ns);
    }

    /// Kills the process; alone, or with its machine, which is without power for so long.
    pub fn kill(&self, dark: Option<Nanos>) {
        self.network.universe.world().kill(self.pid, dark);
        let mut servers = locked(&self.network.universe.servers);
        let server = servers.remove(&self.pid);
        drop(servers);
        drop(server);
    }

    /// How long it has stood still, or will have, ns.
    pub fn stood_still(&self) -> Nanos {
        self.network.universe.world().stood_still(self.pid)
    }

    /// Runs work of the process, to its end or that of the process: `None` then.
    pub fn run<F: Future>(&self, work: F) -> Run<F> {
        Run { process: self.clone(), work: Some(Box::pin(work)) }
    }
}

/// See [`Process::run`].
pub struct Run<F: Future> {
    process: Process,
    work: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Run<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let pid = self.process.pid;
        let universe = self.process.network.universe.clone();
        {
            let mut world = universe.world();
            if world.is_alive(pid) {
                world.wake_soon(pid, cx.waker().clone());
                if world.is_paused(pid) {
                    return Poll::Pending;
                }
            } else {
                drop(world);
                self.work = None;
                return Poll::Ready(None);
            }
        }
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done.map(Some)
    }
}

/// The source of all completions, and the clock.
struct Root {
    universe: Arc<Universe>,
    clients: Clients,
}

impl Root {
    /// Runs the servers and clients of processes that have news.
    fn serve_ready(&self, core: &Core) -> bool {
        let dirty = self.universe.world().take_dirty();
        for pid in &dirty {
            let server = locked(&self.universe.servers).remove(pid);
            if let Some(mut server) = server
                && server.serve_ready(0)
            {
                locked(&self.universe.servers).insert(*pid, server);
            }
            if self.universe.world().is_dialling(*pid) {
                continue;
            }
            self.clients.borrow_mut().retain(|(_, client)| client.strong_count() > 0);
            let its = |(of, client): &(Pid, Weak<NetTransport>)| {
                (of == pid).then(|| client.upgrade()).flatten()
            };
            let clients: Vec<_> = self.clients.borrow().iter().filter_map(its).collect();
            for client in clients {
                client.poll_links(core, false);
            }
        }
        !dirty.is_empty()
    }
}

impl Transport for Root {
    fn post(&self, _: &Core, _: Ticket, _: &[WorkRequest]) -> Poll<Result<()>> {
        Poll::Ready(Err(none()))
    }

    fn rpc(&self, _: &Core, _: Ticket, _: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        Poll::Ready(Err(none()))
    }

    fn poll(&self, core: &Core) -> Progress {
        match self.serve_ready(core) {
            true => Progress::Made,
            false => Progress::Idle(self.universe.world().next_event()),
        }
    }

    fn idle(&self, _: &Core, due: Option<Nanos>, _: u32) -> Idle {
        let mut world = self.universe.world();
        match (world.next_event(), due) {
            (Some(next), Some(due)) if due < next => world.now = world.now.max(due),
            (Some(_), _) => world.step(),
            (None, Some(due)) => world.now = world.now.max(due),
            (None, None) => return Idle::Never,
        }
        Idle::Again
    }

    fn now(&self) -> Nanos {
        self.universe.world().now
    }

    fn driver(&self) -> u64 {
        1
    }

    fn caps(&self) -> Capabilities {
        Capabilities::NONE
    }

    fn node(&self) -> NodeId {
        NodeId::compute(u16::MAX >> 1)
    }

    fn peek(&self, _: u64) -> Option<u64> {
        None
    }
}

fn none() -> Error {
    Error::unsupported("the clock of a simulated network reaches no memory")
}
