//! The membership agent thread of a memory node's process: it keeps the node's lease and revokes
//! the access of dead nodes. At the first memory node it also ticks the membership, so that leases
//! are judged even when no compute node calls.
//!
//! *Ended processes.* A member is dead at once when its process has ended: its links at memory
//! nodes end with it, and its host refuses connections to its address. A wrong verdict (a
//! firewall that refuses) costs the member its membership and nothing else, because its access is
//! revoked before anything of it is taken over; no other node could have reached it either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::admin::unexpected;
use super::io::Stream;
use super::membership::Remote;
use super::membership_server::{Judge, ready};
use super::start::again_until;
use super::wire::{Answer, Ask};
use super::{NodeShared, locked};
use crate::addr::Role;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::membership::{Member, Membership, MemoryAgent, Presence};
use crate::transport::Nanos;

/// Steps of the agent in a lease, and while a death is under way.
const STEPS_PER_LEASE: u64 = 16;
const STEPS_PER_LEASE_OF_A_DEATH: u64 = 256;
/// Shortest and longest pause between two steps, ns.
const SHORTEST_NS: Nanos = 1_000_000;
const LONGEST_NS: Nanos = 50_000_000;
/// How often a host is asked for the process of a member with a link that has ended. The links of a
/// process that is killed may end a moment before its listening socket does.
const ASKED: u32 = 3;
/// Time limit of the first step, ns.
const BEGINS_WITHIN_NS: Nanos = 30_000_000_000;

/// Joins, says that the node is ready, and starts the thread. It ends with the node.
pub(super) fn start(shared: &Arc<NodeShared>, on_chip_bytes: u32) -> Result<()> {
    let acting = ready(Box::pin(begin(shared, on_chip_bytes, None)))?;
    let named = std::thread::Builder::new().name("dmtree agent".into());
    named
        .spawn(move || acting.run())
        .map(|_| ())
        .map_err(|e| Error::busy(format!("no thread for the agent: {e}")))
}

/// The same without a thread, to the end of the node.
pub(super) async fn act(shared: &Arc<NodeShared>, ep: &Endpoint) -> Result<()> {
    let mut acting = begin(shared, 0, Some(ep)).await?;
    while !shared.closing.load(Ordering::SeqCst) {
        let is_quiet = acting.step().await.unwrap_or(true);
        ep.sleep(acting.pause_ns(is_quiet)).await;
    }
    Ok(())
}

/// Retry: a memory node that gave up at the first missing answer would leave the pool waiting for
/// it, because its number is taken.
async fn begin(
    shared: &Arc<NodeShared>,
    on_chip_bytes: u32,
    clock: Option<&Endpoint>,
) -> Result<Acting> {
    let mut acting = Acting::new(shared.clone());
    let until = shared.now() + BEGINS_WITHIN_NS;
    again_until(&*shared.net, until, clock, async || acting.step().await).await?;
    let ask = Ask::Ready { me: shared.me, on_chip_bytes };
    match again_until(&*shared.net, until, clock, async || shared.ask_soon(&ask).await).await? {
        Answer::Done => Ok(acting),
        other => Err(unexpected(&other)),
    }
}

struct Acting {
    shared: Arc<NodeShared>,
    agent: MemoryAgent,
    membership: Arc<dyn Membership>,
    probe_at: Nanos,
    /// Compute nodes with links that have ended, and how often their hosts will be asked.
    suspects: BTreeMap<Member, u32>,
    probes: Vec<Probe>,
}

/// A pending connection: a host refuses soon when no process listens there, or never answers.
struct Probe {
    member: Member,
    stream: Box<dyn Stream>,
    until: Nanos,
}

impl Acting {
    fn new(shared: Arc<NodeShared>) -> Self {
        let membership: Arc<dyn Membership> = match shared.rendezvous.server() {
            Some(membership_server) => membership_server.membership.clone(),
            None => Arc::new(Remote::new(shared.clone())),
        };
        Self {
            agent: MemoryAgent::new(shared.me),
            membership,
            probe_at: 0,
            suspects: BTreeMap::new(),
            probes: Vec::new(),
            shared,
        }
    }

    fn run(mut self) {
        while !self.shared.closing.load(Ordering::SeqCst) {
            // A failed step is tried again. When steps fail for longer than a lease, the membership
            // declares this node missing.
            let is_quiet = ready(Box::pin(self.step())).unwrap_or(true);
            std::thread::park_timeout(Duration::from_nanos(self.pause_ns(is_quiet)));
        }
    }

    fn pause_ns(&self, is_quiet: bool) -> Nanos {
        let steps = if is_quiet { STEPS_PER_LEASE } else { STEPS_PER_LEASE_OF_A_DEATH };
        (self.agent.lease_ns() / steps).clamp(SHORTEST_NS, LONGEST_NS)
    }

    /// Whether no death is under way.
    async fn step(&mut self) -> Result<bool> {
        let shared = self.shared.clone();
        if let Some(membership_server) = shared.rendezvous.server() {
            membership_server.membership.tick(shared.now());
        }
        if let Some(judge) = shared.rendezvous.judge() {
            self.probe(judge);
        }
        let revoke = |dead| shared.revoke(dead);
        let is_quiet = self.agent.step(&*self.membership, &revoke, shared.now()).await?;
        if let Some(hear) = &*locked(&shared.hears_gaps) {
            hear(self.agent.gaps());
        }
        Ok(is_quiet)
    }

    /// Asks the hosts of memory nodes that are missing, and of compute nodes with links that have
    /// ended, whether their processes have ended.
    fn probe(&mut self, judge: &dyn Judge) {
        let now = self.shared.now();
        self.probes.retain_mut(|probe| match probe.stream.is_connected() {
            Ok(is_made) => !is_made && now < probe.until,
            Err(e) => {
                note(judge, probe.member, &e);
                false
            }
        });
        let state = judge.latest();
        for member in self.shared.sessions.take_left() {
            self.suspects.insert(member, ASKED);
        }
        self.suspects.retain(|member, left| *left > 0 && state.is_living(*member));
        let mut asked: Vec<Member> = self.suspects.keys().copied().collect();
        if now >= self.probe_at && state.away().next().is_some() {
            self.probe_at = now + self.agent.lease_ns();
            let missing = state.away().filter(|m| m.presence == Presence::Missing);
            asked.extend(missing.map(|m| m.member));
        }
        if asked.is_empty() {
            return;
        }
        let node_directory = judge.node_directory();
        for member in asked {
            if self.probes.iter().any(|probe| probe.member == member) {
                continue;
            }
            if member.node.role() == Role::Compute {
                self.suspects.entry(member).and_modify(|left| *left -= 1);
            }
            let entry = node_directory.find(member.node).filter(|entry| entry.member == member);
            let Some(entry) = entry else { continue };
            match self.shared.net.dial(&entry.address) {
                Ok(stream) => {
                    let until = now + self.agent.lease_ns();
                    self.probes.push(Probe { member, stream, until });
                }
                // A host of this machine may say so at once.
                Err(e) => note(judge, member, &e),
            }
        }
    }
}

/// What a host says of the process of a member.
fn note(judge: &dyn Judge, member: Member, e: &std::io::Error) {
    if e.kind() == std::io::ErrorKind::ConnectionRefused {
        judge.lose(member);
    }
}
