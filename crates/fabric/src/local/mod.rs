//! The in-process fabric: every node's region in this process's memory, real threads on top.
//!
//! Verbs execute at once, on the posting thread, with the tearing that two threads copying words
//! really have. It holds no lock and allocates nothing per verb. Nothing survives the process.

mod transport;

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use crate::addr::{NodeId, Role};
use crate::caps::Capabilities;
use crate::error::{Error, Result};
use crate::membership::Presence;
use crate::region::{Pages, Region};
use crate::rpc::{RpcHandler, ServiceId};
use crate::transport::{Fabric, Nanos, Transport};

use crate::host::{Host, Power};
pub(crate) use transport::{Connected, LocalTransport};

/// Test knobs of the in-process fabric.
#[derive(Clone, Copy, Debug, Default)]
pub struct Knobs {
    /// Suspends one in this many posted lists (0: none), so that the clients of one thread
    /// interleave. Of those, some execute before the suspension, some after it, and of some the
    /// last READ or WRITE is torn: one piece before, one after.
    pub suspend_one_in: u32,
    /// Seed of those draws.
    pub seed: u64,
}

/// From this size on a region has huge pages where the system gives them, bytes: verbs touch
/// addresses all over it, and each would miss the TLB.
const LARGE_REGION_BYTES: u64 = 128 << 20;

/// How a READ or WRITE that the test knob suspends in the middle is torn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tearing {
    /// Either piece may execute first, as the contract says.
    #[default]
    AnyOrder,
    /// The lower addresses execute first.
    Ascending,
    /// Not at all: it executes whole, before or after the suspension.
    Never,
}

/// The clock of a fabric's clients and services.
pub(crate) enum Clock {
    /// Real time since the fabric was made.
    Real(std::time::Instant),
    /// Virtual time of the simulator that owns the fabric, ps. It stands still while a service
    /// runs. A service that read real time instead would make a run depend on more than its seed.
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "only the simulator makes it"))]
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    fn now(&self) -> Nanos {
        match self {
            Self::Real(epoch) => epoch.elapsed().as_nanos() as Nanos,
            Self::Virtual(picos) => picos.load(Ordering::Relaxed) / 1000,
        }
    }
}

/// The in-process fabric. Clones share it.
#[derive(Clone)]
pub struct LocalFabric(Arc<LocalShared>);

pub(crate) struct LocalShared {
    hosts: RwLock<Vec<Arc<Host>>>,
    knobs: Knobs,
    tears: Tearing,
    /// On-chip memory of every memory node.
    chip_bytes: u32,
    /// Cores of every node that run its data services: those of this machine.
    cores: u32,
    clock: Clock,
}

impl Default for LocalFabric {
    fn default() -> Self {
        Self::new()
    }
}

crate::debug_line!(LocalFabric, it => "LocalFabric{:?}", it.nodes());

impl LocalFabric {
    /// A fabric without nodes.
    pub fn new() -> Self {
        Self::with_knobs(Knobs::default())
    }

    /// A fabric with test knobs.
    pub fn with_knobs(knobs: Knobs) -> Self {
        Self::with_chips(knobs, Tearing::AnyOrder, 0)
    }

    /// The same, with so many bytes of on-chip memory on every memory node. `tears` may spare its
    /// clients some behaviours that the contract allows: for published layouts that do not survive
    /// them. This covers only the clients of one thread.
    #[expect(clippy::disallowed_methods, reason = "this is the fabric's clock")]
    pub fn with_chips(knobs: Knobs, tears: Tearing, chip_bytes: u32) -> Self {
        Self::with_clock(knobs, tears, chip_bytes, Clock::Real(std::time::Instant::now()))
    }

    pub(crate) fn with_clock(knobs: Knobs, tears: Tearing, chip_bytes: u32, clock: Clock) -> Self {
        let hosts = RwLock::default();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self(Arc::new(LocalShared { chip_bytes, cores, hosts, knobs, tears, clock }))
    }

    /// Nodes that are members now, in id order.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let hosts = self.0.hosts.read().expect("no panic under this lock");
        hosts.iter().filter(|h| h.alive()).map(|h| h.node).collect()
    }

    /// Adds a node with a zeroed region of `bytes`, or brings a revoked one back with a new
    /// incarnation and a new region.
    ///
    /// # Errors
    /// `Exists` when the node is a member already; `Full` when there is no such memory.
    pub fn add_node(&self, node: NodeId, bytes: u64) -> Result<()> {
        // A small region would only take more memory than it uses.
        let large = bytes >= LARGE_REGION_BYTES;
        let want = if large { Pages::Transparent } else { Pages::Ordinary };
        self.add_mapped_node(node, bytes, want)
    }

    /// The same, on pages of a kind where there are any.
    pub(crate) fn add_mapped_node(&self, node: NodeId, bytes: u64, want: Pages) -> Result<()> {
        let mut hosts = self.0.hosts.write().expect("no panic under this lock");
        let old = hosts.iter().position(|h| h.node == node);
        let incarnation = match old {
            Some(i) if hosts[i].alive() => {
                return Err(Error::exists(format!("{node} is a member already")));
            }
            Some(i) => hosts[i].incarnation + 1,
            None => 1,
        };
        let region = Region::map(bytes, want)?;
        join(&mut hosts, old, self.new_host(node, incarnation, region));
        Ok(())
    }

    /// Brings a node back as a new incarnation with a zeroed region and no services, with or
    /// without a revocation before.
    #[cfg(feature = "sim")]
    pub(crate) fn restart(&self, node: NodeId) -> Result<()> {
        let mut hosts = self.0.hosts.write().expect("no panic under this lock");
        let old = hosts.iter().position(|h| h.node == node).ok_or_else(|| unknown(node))?;
        let (incarnation, bytes) = (hosts[old].incarnation + 1, hosts[old].region.len());
        join(&mut hosts, Some(old), self.new_host(node, incarnation, Region::new(bytes)));
        Ok(())
    }

    fn new_host(&self, node: NodeId, incarnation: u32, region: Region) -> Host {
        let chip = match node.role() {
            Role::Memory => u64::from(self.0.chip_bytes),
            Role::Compute | Role::Journal => 0,
        };
        Host::with_chip(node, incarnation, region, (Region::new(chip), self.0.cores))
    }

    /// Revokes access, and returns the host that refuses it when no verb of the node's clients
    /// executes there any more: its jobs may.
    pub(crate) fn fence(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<Arc<Host>> {
        let (target, issuer) = (self.known(host)?, self.known(node)?);
        target.revoke(node, incarnation);
        if issuer.incarnation <= incarnation {
            issuer.mark_revoked();
            issuer.quiesce();
        }
        Ok(target)
    }

    /// The node's present host.
    #[cfg(feature = "sim")]
    pub(crate) fn host(&self, node: NodeId) -> Option<Arc<Host>> {
        self.0.host(node)
    }

    /// The same for a node that must exist.
    pub(crate) fn known(&self, node: NodeId) -> Result<Arc<Host>> {
        self.0.host(node).ok_or_else(|| unknown(node))
    }

    /// A client thread's transport on a member.
    pub(crate) fn transport(&self, node: NodeId) -> Result<LocalTransport> {
        Ok(LocalTransport::new(self.0.clone(), self.check_member(node)?))
    }

    /// Checks that clients of a node may attach.
    pub(crate) fn check_member(&self, node: NodeId) -> Result<Arc<Host>> {
        let host = self.known(node)?;
        if !host.alive() {
            return Err(Error::revoked(format!("{node} has lost its membership")));
        }
        if host.power() != Power::On {
            return Err(Error::unreachable(format!("{node} is down")));
        }
        Ok(host)
    }

    /// A transport bound to this very incarnation of a node.
    #[cfg(feature = "sim")]
    pub(crate) fn transport_of(&self, host: Arc<Host>) -> LocalTransport {
        LocalTransport::new(self.0.clone(), host)
    }
}

/// Adds a host, which replaces its former incarnation if there is one. It knows all others.
fn join(hosts: &mut Vec<Arc<Host>>, old: Option<usize>, host: Host) {
    hosts.iter().for_each(|h| host.connect(h.node, h.incarnation));
    host.connect(host.node, host.incarnation);
    match old {
        Some(i) => {
            hosts[i].set_power(Power::Off);
            host.inherit(&hosts[i]);
            hosts[i] = Arc::new(host);
        }
        None => hosts.push(Arc::new(host)),
    }
    hosts.sort_by_key(|h| h.node);
}

impl LocalShared {
    fn caps(&self) -> Capabilities {
        let (on_chip_bytes, mn_cores) = (self.chip_bytes, self.cores);
        Capabilities { on_chip_bytes, mn_cores, ..transport::CAPS }
    }

    pub(crate) fn host(&self, node: NodeId) -> Option<Arc<Host>> {
        let hosts = self.hosts.read().expect("no panic under this lock");
        hosts.binary_search_by_key(&node, |h| h.node).ok().map(|i| hosts[i].clone())
    }
}

impl Fabric for LocalFabric {
    fn name(&self) -> &'static str {
        "local"
    }

    fn members(&self) -> Result<Vec<NodeId>> {
        let hosts = self.0.hosts.read().expect("no panic under this lock");
        let memory = || hosts.iter().filter(|h| h.node.role() == Role::Memory);
        // The first host that revokes access may be a compute node; only the memory nodes'
        // revocations count.
        let serves = |h: &&Arc<Host>| !h.is_revoked_by_all(memory());
        let compute = hosts.iter().filter(|h| h.node.role() == Role::Compute);
        Ok(compute.filter(serves).map(|h| h.node).collect())
    }

    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.host(node).map(|h| h.region.len())
    }

    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        Ok(Rc::new(self.transport(node)?))
    }

    fn caps(&self) -> Capabilities {
        self.0.caps()
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        let host = self.known(node)?;
        host.rpc.install(service, handler);
        Ok(())
    }

    fn revoke(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.fence(host, node, incarnation)?.jobs.end_of(node, incarnation, true)
    }

    fn connect(&self, node: NodeId, to: NodeId, incarnation: u32) {
        if let Some(host) = self.0.host(node) {
            host.connect(to, incarnation);
        }
    }

    fn set_presence(&self, node: NodeId, of: NodeId, presence: Presence) {
        if let (Some(host), Some(of)) = (self.0.host(node), self.0.host(of)) {
            host.set_presence(&of, presence);
        }
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.0.host(node).map(|h| h.incarnation)
    }
}

fn unknown(node: NodeId) -> Error {
    Error::not_found(format!("{node} is no node of this fabric"))
}
