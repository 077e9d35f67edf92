//! The simulated fabric: a cluster in virtual time on one thread. It has two modes: hardware that
//! costs time ([`SimFabric::new`]), and hardware that misbehaves as far as the contract allows
//! ([`SimFabric::adversarial`]).
//!
//! Index code runs unchanged; its verbs take the time that a [`Profile`] says: CPU of the client
//! thread, doorbell, initiator, wires in both directions with header bytes, responder, atomics on
//! one word. Queues are first come, first served. Verbs take effect in the order in which they
//! reach their target, whole. The same seed, profile and code give the same run, event for event:
//! [`SimFabric::trace_hash`] verifies it.
//!
//! Time stands still until [`SimFabric::set_timed`]: verbs then execute at once and cost nothing,
//! for loading and checking. One executor at a time drives the fabric, on one thread.

mod adverse;
mod calls;
mod chaos;
mod costs;
mod crash;
mod fields;
mod flight;
mod held;
mod lax;
mod meter;
mod nic;
mod order;
mod prefetch;
mod profile;
mod sanitizer;
mod transport;
mod usage;
mod wheel;
mod world;

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use chaos::FabricFaults;
pub use crash::{CrashPoint, How, LONGEST_ZOMBIE_NS, Place, RETRANSMISSION_NS};
pub use fields::{Confidence, FIELDS, Field};
pub use lax::Laxity;
pub use order::{Choice, Order, next_choices};
pub use profile::{
    Cpu, Doorbell, Header, Host as HostCores, Initiator, Latency, Link, LoadStore, OnChip,
    Outstanding, Pcie, Profile, QueuePair, Responder, Rpc, SameWord,
};
pub use usage::{NodeUsage, ThreadUsage, Usage};

use crate::addr::{GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::error::{Error, Result};
use crate::host::{Host, Power};
use crate::local::{Clock, Knobs, LocalFabric, Tearing};
use crate::membership::{Member, Presence};
use crate::rng::xorshift64;
use crate::rpc::{RpcCall, RpcHandler, ServiceId};
use crate::sync::locked;
use crate::transport::{Fabric, Nanos, ShadowState, Transport};
use chaos::Chaos;
use costs::Costs;
use flight::Call;
use transport::SimTransport;
use world::World;

/// Picoseconds of virtual time.
type Picos = u64;

/// Numbers the simulated fabrics of one process.
static NEXT: AtomicU64 = AtomicU64::new(1);

struct SimShared {
    /// Never 0.
    number: u64,
    /// Memory, services, membership.
    nodes: LocalFabric,
    profile: Profile,
    caps: Capabilities,
    timed: AtomicBool,
    /// ps; the clock of services, too.
    now: Arc<AtomicU64>,
    driver: AtomicU64,
    since: AtomicU64,
    /// Whether there is a sanitizer.
    watched: AtomicBool,
    /// Whether CPU is measured, not charged.
    measured: AtomicBool,
    /// One interleaving point in this many gives way; 0: none.
    points: AtomicU32,
    point_draw: AtomicU64,
    /// One allocation in this many fails; 0: none.
    scarce: AtomicU32,
    world: Mutex<World>,
}

impl SimShared {
    fn world(&self) -> MutexGuard<'_, World> {
        locked(&self.world)
    }

    fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Whether one of `points` or `scarce` happens now.
    fn draw(&self, one_in: &AtomicU32) -> bool {
        let one_in = one_in.load(Ordering::Relaxed);
        if one_in == 0 || !self.is_timed() {
            return false;
        }
        let x = xorshift64(self.point_draw.load(Ordering::Relaxed));
        self.point_draw.store(x, Ordering::Relaxed);
        (x >> 32).is_multiple_of(u64::from(one_in))
    }

    fn call(&self, from: &Arc<Host>, call: &Call) -> Result<Vec<u8>> {
        let Call { to, service, request, .. } = call;
        self.nodes.transport_of(from.clone()).call(RpcCall { to: *to, service: *service, request })
    }
}

/// A simulated fabric. Clones share it.
#[derive(Clone)]
pub struct SimFabric(Arc<SimShared>);

crate::debug_line!(SimFabric, it => "SimFabric({}, {:?})", it.0.profile.name, it.nodes());

impl SimFabric {
    /// A fabric without nodes; its time stands still.
    pub fn new(profile: &Profile, seed: u64) -> Self {
        let caps = Capabilities {
            whole_write_bytes: profile.link.mtu_bytes as u32,
            cas_fail_is_readonly: true,
            on_chip_bytes: profile.on_chip.bytes as u32,
            mn_cores: profile.host.cores as u32,
            ..Capabilities::NONE
        };
        Self::with_caps(profile, seed, caps)
    }

    fn with_caps(profile: &Profile, seed: u64, caps: Capabilities) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Clock::Virtual(now.clone());
        Self(Arc::new(SimShared {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            nodes: LocalFabric::with_clock(
                Knobs::default(),
                Tearing::AnyOrder,
                caps.on_chip_bytes,
                clock,
            ),
            profile: profile.clone(),
            caps,
            timed: AtomicBool::new(false),
            now,
            driver: AtomicU64::new(0),
            since: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            measured: AtomicBool::new(false),
            points: AtomicU32::new(0),
            point_draw: AtomicU64::new(seed | 1),
            scarce: AtomicU32::new(0),
            world: Mutex::new(World::new(Costs::new(profile), seed)),
        }))
    }

    /// The adversarial mode: no hardware model, but every behaviour that the contract allows,
    /// within `fabric_faults`. Of `grants`, `line_atomic`, `write_ascending`,
    /// `cas_fail_is_readonly`, `whole_write_bytes` and `on_chip_bytes` are honoured; nothing else
    /// is granted.
    pub fn adversarial(
        fabric_faults: FabricFaults,
        grants: Capabilities,
        seed: u64,
    ) -> Result<Self> {
        let profile = Profile::named("ideal")?;
        let grants = Capabilities {
            line_atomic: grants.line_atomic,
            write_ascending: grants.write_ascending,
            cas_fail_is_readonly: grants.cas_fail_is_readonly,
            whole_write_bytes: grants.whole_write_bytes,
            on_chip_bytes: grants.on_chip_bytes,
            mn_cores: profile.host.cores as u32,
            ..Capabilities::NONE
        };
        let fabric = Self::with_caps(&profile, seed, grants);
        fabric.0.world().chaos = Some(Chaos::new(fabric_faults, grants, seed));
        fabric.set_fabric_faults(fabric_faults);
        Ok(fabric)
    }

    /// Changes the faults of the adversarial mode from now on; verbs in flight go on as they were
    /// drawn. No effect in the timed mode.
    pub fn set_fabric_faults(&self, fabric_faults: FabricFaults) {
        if let Some(chaos) = &mut self.0.world().chaos {
            chaos.fabric_faults = fabric_faults;
            self.0.points.store(fabric_faults.point_one_in, Ordering::Relaxed);
            self.0.scarce.store(fabric_faults.refuse_memory_one_in, Ordering::Relaxed);
        }
    }

    /// Sets the order of the verbs in flight from now on, in adversarial mode.
    pub fn set_order(&self, order: &Order) {
        self.0.world().set_order(order);
    }

    /// The decisions that were made since [`Order::Listed`] was set.
    pub fn choices(&self) -> Vec<Choice> {
        self.0.world().choices()
    }

    /// Switches the sanitizer on; in adversarial mode only.
    pub fn sanitize(&self) {
        let mut world = self.0.world();
        if world.chaos.is_some() {
            world.sanitizer = Some(Box::default());
            self.0.watched.store(true, Ordering::Relaxed);
        }
    }

    /// The first reports of the sanitizer.
    pub fn reports(&self) -> Vec<String> {
        self.0.world().sanitizer.as_ref().map_or(Vec::new(), |s| s.reports.clone())
    }

    /// Breaks guarantees of the contract from now on; in adversarial mode only.
    pub fn set_laxity(&self, laxity: Laxity) {
        if let Some(chaos) = &mut self.0.world().chaos {
            chaos.overtaken.laxity = laxity;
        }
    }

    /// Adds a node with a zeroed region of `bytes`, or brings a revoked one back.
    ///
    /// # Errors
    /// `Exists` when the node is a member already.
    pub fn add_node(&self, node: NodeId, bytes: u64) -> Result<()> {
        self.0.nodes.add_node(node, bytes)?;
        let host = self.known(node)?;
        self.0.world().add_nic(host);
        Ok(())
    }

    /// A node stops at once, silently: none of its code runs any more, and verbs that its
    /// clients post from now on never complete and have no effect. Verbs in flight execute wholly,
    /// in part (some pieces of a WRITE, an atomic whole or not), later (within
    /// [`LONGEST_ZOMBIE_NS`]) or never, drawn from the seed, but none at a host once
    /// [`Fabric::revoke`] has returned for that host. Where `whole_write_bytes` are granted, WRITEs
    /// of so many bytes execute wholly or not at all. Verbs to the node fail as `Unreachable` after
    /// [`RETRANSMISSION_NS`], naming it, or are served, as [`How`] says. What a memory node held is
    /// lost.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    pub fn crash(&self, node: NodeId, how: How) -> Result<()> {
        self.known(node)?;
        self.0.world().kill(node, how);
        Ok(())
    }

    /// The node crashes at a verb that it is to post, in timed mode, from now on; replaces an
    /// earlier such call.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    pub fn crash_at(&self, node: NodeId, point: CrashPoint, how: How) -> Result<()> {
        self.known(node)?;
        self.0.world().crashes.arm(node, point, how);
        Ok(())
    }

    /// Cancels a call of [`SimFabric::crash_at`].
    pub fn spare(&self, node: NodeId) {
        self.0.world().crashes.disarm(node);
    }

    /// A verb that the node is to post, in timed mode, from now on, is late by `by_ns`: it begins
    /// so much later (`Before`), a part of its pieces takes effect so much later (`Inside`), or its
    /// completion is so much later (`After`). Verbs that are not ordered behind it go on. Once per
    /// call; of the verbs of one list only one is late. In adversarial mode only.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    pub fn delay_at(&self, node: NodeId, point: CrashPoint, by_ns: Nanos) -> Result<()> {
        self.known(node)?;
        self.0.world().crashes.delay(node, point, by_ns * 1000);
        Ok(())
    }

    /// Until when the verb that [`SimFabric::delay_at`] has named is late, ns; `None` while it has
    /// not been posted.
    pub fn late_until(&self, node: NodeId) -> Option<Nanos> {
        self.0.world().crashes.late_until(node).map(|ps| ps / 1000)
    }

    /// Verbs that the clients of a node have posted in timed mode, over all its incarnations.
    pub fn issued(&self, node: NodeId) -> u64 {
        self.0.world().crashes.issued(node)
    }

    /// Crashes so far, those of [`SimFabric::crash_at`] and lost memory nodes included.
    pub fn crashes(&self) -> u64 {
        self.0.world().crashes.count
    }

    /// Whether a node has crashed and not come back.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.0.nodes.host(node).is_some_and(|h| h.power() != Power::On)
    }

    /// A node comes back as a new incarnation with a zeroed region and no services; its new clients
    /// attach anew. It knows the present incarnations of all others, which fail to reach it until
    /// [`Fabric::connect`] sets its new one. Works before the access of its former incarnation was
    /// revoked, too: the verbs in flight of that one keep the fate that the crash drew.
    ///
    /// # Errors
    /// `NotFound` for an unknown node, `Exists` for one that is up.
    pub fn restart(&self, node: NodeId) -> Result<()> {
        self.known(node)?;
        if !self.is_down(node) {
            return Err(Error::exists(format!("{node} is up")));
        }
        self.0.nodes.restart(node)?;
        let host = self.known(node)?;
        self.0.world().add_nic(host);
        Ok(())
    }

    /// The NIC of a memory node restarts: its main memory stays, its on-chip memory is zeroed, and
    /// its connections are over. The node is a new incarnation: verbs to it fail until
    /// [`Fabric::connect`] sets it for their issuer.
    ///
    /// # Errors
    /// `NotFound` for an unknown node.
    pub fn restart_nic(&self, node: NodeId) -> Result<()> {
        let old = self.known(node)?;
        self.0.nodes.restart(node)?;
        let host = self.known(node)?;
        host.region.copy_from(&old.region);
        self.0.world().add_nic(host);
        Ok(())
    }

    /// When a verb of `node`, of one slot or of any, last failed because `to` is gone, by the time
    /// of its completion. A remote call of the node counts for all its slots. Verbs in adversarial
    /// mode only.
    pub fn failed_at(&self, node: NodeId, slot: Option<u32>, to: NodeId) -> Option<Nanos> {
        let counts = |s: Option<u32>| slot.is_none() || s.is_none() || s == slot;
        self.0.world().crashes.failed_at(node, counts, to).map(|ps| ps / 1000)
    }

    /// The link between two nodes lets nothing through: verbs and calls over it, in either
    /// direction, wait for [`RETRANSMISSION_NS`] and then fail as `Unreachable`; those that had
    /// reached their target may have taken effect. In adversarial mode only.
    pub fn cut(&self, a: NodeId, b: NodeId) {
        self.0.world().crashes.cut(a, b, true);
    }

    /// The link works again.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        self.0.world().crashes.cut(a, b, false);
    }

    /// Nodes that are members now, in id order.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.0.nodes.nodes()
    }

    fn known(&self, node: NodeId) -> Result<Arc<Host>> {
        self.0.nodes.known(node)
    }

    /// Lets time pass, or stand still: verbs then execute at once and cost nothing.
    pub fn set_timed(&self, on: bool) {
        self.0.timed.store(on, Ordering::Relaxed);
    }

    /// Charges the clients that attach from now on for the CPU time that their code takes on this
    /// machine, times the profile's `cpu.measured_factor`, and not for the steps that they name.
    /// Runs do not repeat then.
    pub fn measure_cpu(&self) {
        self.0.measured.store(true, Ordering::Relaxed);
    }

    /// Virtual time, ns.
    pub fn now(&self) -> Nanos {
        self.0.now.load(Ordering::Relaxed) / 1000
    }

    /// A digest of all events in virtual time: which thread's verbs reached which address when.
    pub fn trace_hash(&self) -> u64 {
        self.0.world().hash
    }

    /// How busy every server was since the last reset.
    pub fn usage(&self) -> Usage {
        usage::of(&self.0.world(), self.0.since.load(Ordering::Relaxed), self.now())
    }

    /// Resets the busy times of the servers.
    pub fn reset_usage(&self) {
        self.0.since.store(self.now(), Ordering::Relaxed);
        usage::reset(&mut self.0.world());
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn members(&self) -> Result<Vec<NodeId>> {
        self.0.nodes.members()
    }

    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.nodes.region_bytes(node)
    }

    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        Ok(Rc::new(SimTransport::new(self.0.clone(), node, None)?))
    }

    fn caps(&self) -> Capabilities {
        self.0.caps
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        self.0.nodes.serve(node, service, handler)
    }

    fn revoke(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        let target = self.0.nodes.fence(host, node, incarnation)?;
        let mut world = self.0.world();
        if !world.keeps_jobs() {
            target.jobs.cancel(|m| m.node == node && m.incarnation <= incarnation);
        }
        if let Some(chaos) = &mut world.chaos {
            chaos.land(&target, node, incarnation);
        }
        Ok(())
    }

    fn connect(&self, node: NodeId, to: NodeId, incarnation: u32) {
        self.0.nodes.connect(node, to, incarnation);
    }

    fn allocation_event(&self, by: Member, at: GlobalAddr, bytes: u64, now: ShadowState) {
        if self.0.watched.load(Ordering::Relaxed)
            && let Ok(host) = self.known(at.node())
            && !host.is_revoked(by.node, by.incarnation)
            && let Some(s) = &mut self.0.world().sanitizer
        {
            s.set_state(at, bytes, now);
        }
    }

    fn set_presence(&self, node: NodeId, of: NodeId, presence: Presence) {
        self.0.nodes.set_presence(node, of, presence);
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.0.nodes.incarnation(node)
    }
}
