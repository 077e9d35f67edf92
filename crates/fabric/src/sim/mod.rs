//! The simulated fabric: a cluster in virtual time on one thread. It has two faces: hardware that costs time
//! ([`SimFabric::new`]), and hardware that misbehaves as far as it may ([`SimFabric::adversarial`]).
//!
//! Index code runs unchanged; its verbs take the time that a [`Profile`] says: CPU of the client thread, doorbell, initiator,
//! wires in both directions with header bytes, responder, atomics on one word. Queues are first come, first served. Verbs take
//! effect in the order in which they reach their target, whole. The same seed, profile and code give the same run, event for
//! event: [`SimFabric::trace_hash`] tells.
//!
//! Time stands still until [`SimFabric::set_timed`]: verbs then execute at once and cost nothing, for loading and checking. One
//! executor at a time drives the fabric, on one thread.

mod chaos;
mod costs;
mod fields;
mod nic;
mod profile;
mod transport;
mod usage;
mod wheel;
mod world;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use chaos::Hazards;
pub use fields::{Confidence, FIELDS, Field};
pub use profile::{
    Cpu, Doorbell, Header, Initiator, Latency, Link, LoadStore, OnChip, Outstanding, Pcie, Profile,
    QueuePair, Responder, Rpc, SameWord,
};
pub use usage::{NodeUsage, ThreadUsage, Usage};

use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::local::LocalFabric;
use crate::membership::MemberEvent;
use crate::rpc::{RpcHandler, ServiceId};
use crate::scope::Stage;
use crate::transport::{Fabric, Nanos, Transport};
use chaos::Chaos;
use costs::Costs;
use transport::SimTransport;
use world::{Call, World};

/// Picoseconds of virtual time.
type Picos = u64;

/// Tells simulated fabrics of one process apart.
static NEXT: AtomicU64 = AtomicU64::new(1);

struct Shared {
    /// Never 0.
    number: u64,
    /// Memory, services, membership.
    nodes: LocalFabric,
    profile: Profile,
    caps: Capabilities,
    timed: AtomicBool,
    now: AtomicU64,
    driver: AtomicU64,
    since: AtomicU64,
    /// One interleaving point in this many gives way; 0: none.
    points: AtomicU32,
    point_draw: AtomicU64,
    world: Mutex<World>,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Whether an interleaving point gives way.
    fn gives_way(&self) -> bool {
        let one_in = self.points.load(Ordering::Relaxed);
        if one_in == 0 || !self.is_timed() {
            return false;
        }
        let mut x = self.point_draw.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.point_draw.store(x, Ordering::Relaxed);
        (x >> 32).is_multiple_of(u64::from(one_in))
    }

    fn call(&self, from: NodeId, call: &Call) -> Result<Vec<u8>> {
        self.nodes.transport(from)?.call(call.to, call.service, &call.request)
    }
}

/// A simulated fabric. Clone it freely; all clones are the same fabric.
#[derive(Clone)]
pub struct SimFabric(Arc<Shared>);

impl std::fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFabric({}, {:?})", self.0.profile.name, self.nodes())
    }
}

impl SimFabric {
    /// A fabric without nodes whose time stands still.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let caps = Capabilities {
            whole_write_bytes: profile.link.mtu_bytes as u32,
            cas_fail_is_readonly: true,
            ..Capabilities::NONE
        };
        Self::with_caps(profile, seed, caps)
    }

    fn with_caps(profile: &Profile, seed: u64, caps: Capabilities) -> Self {
        Self(Arc::new(Shared {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            nodes: LocalFabric::new(),
            profile: profile.clone(),
            caps,
            timed: AtomicBool::new(false),
            now: AtomicU64::new(0),
            driver: AtomicU64::new(0),
            since: AtomicU64::new(0),
            points: AtomicU32::new(0),
            point_draw: AtomicU64::new(seed | 1),
            world: Mutex::new(World::new(Costs::new(profile), seed)),
        }))
    }

    /// The adversarial face: no hardware, but everything that the contract leaves to a fabric, as far as `hazards` go. Of
    /// `grants`, `line_atomic`, `write_ascending` and `cas_fail_is_readonly` are honoured; nothing else is granted.
    pub fn adversarial(hazards: Hazards, grants: Capabilities, seed: u64) -> Result<Self> {
        let profile = Profile::named("ideal")?;
        let grants = Capabilities {
            line_atomic: grants.line_atomic,
            write_ascending: grants.write_ascending,
            cas_fail_is_readonly: grants.cas_fail_is_readonly,
            ..Capabilities::NONE
        };
        let fabric = Self::with_caps(&profile, seed, grants);
        fabric.0.world().chaos = Some(Chaos::new(hazards, grants, seed));
        fabric.0.points.store(hazards.point_one_in, Ordering::Relaxed);
        Ok(fabric)
    }

    /// Changes what the adversarial face does from now on; verbs on their way go on as they were drawn. Nothing on the other face.
    pub fn set_hazards(&self, hazards: Hazards) {
        if let Some(chaos) = &mut self.0.world().chaos {
            chaos.hazards = hazards;
            self.0.points.store(hazards.point_one_in, Ordering::Relaxed);
        }
    }

    /// Adds a node with a zeroed region of `bytes`, or brings a fenced one back.
    ///
    /// # Errors
    /// `Exists` when the node is a member already.
    pub fn add_node(&self, node: NodeId, bytes: u64) -> Result<()> {
        self.0.nodes.add_node(node, bytes)?;
        let host = self.0.nodes.host(node).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{node} is no node of this fabric"))
        })?;
        self.0.world().add_nic(host);
        Ok(())
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// Lets time pass, or stand still: verbs then execute at once and cost nothing.
    pub fn set_timed(&self, on: bool) {
        self.0.timed.store(on, Ordering::Relaxed);
    }

    /// Virtual time, ns.
    pub fn now(&self) -> Nanos {
        self.0.now.load(Ordering::Relaxed) / 1000
    }

    /// A digest of everything that has happened in virtual time: which thread's verbs reached which address when.
    pub fn trace_hash(&self) -> u64 {
        self.0.world().hash
    }

    /// How busy every server was since the last reset.
    pub fn usage(&self) -> Usage {
        usage::of(&self.0.world(), self.0.since.load(Ordering::Relaxed), self.now())
    }

    /// Forgets how busy the servers were.
    pub fn reset_usage(&self) {
        self.0.since.store(self.now(), Ordering::Relaxed);
        usage::reset(&mut self.0.world());
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.0.nodes.nodes()
    }

    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.nodes.region_bytes(node)
    }

    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        let local = self.0.nodes.transport(node)?;
        let cpu = Arc::new(world::Cpu::default());
        let mut w = self.0.world();
        let thread = w.add_thread(node, cpu.clone()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{node} is no node of this fabric"))
        })?;
        let stages = Stage::ALL.map(|s| w.costs.stage(s));
        Ok(Rc::new(SimTransport {
            shared: self.0.clone(),
            node,
            thread,
            cpu,
            local: Rc::new(local),
            charges: stages.iter().any(|s| *s > 0),
            stages,
            caps: self.0.caps,
            bound: Cell::new(0),
        }))
    }

    fn caps(&self) -> Capabilities {
        self.0.caps
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        self.0.nodes.serve(node, service, handler)
    }

    fn fence(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.0.nodes.fence(host, node, incarnation)
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.0.nodes.incarnation(node)
    }

    fn events(&self, since: u64) -> Vec<MemberEvent> {
        self.0.nodes.events(since)
    }
}
