//! The rules of membership as a state machine: its state, and the effect of each event on it. It
//! has no lock, clock or thread: the caller passes `now`.
//!
//! Every death completes as soon as one compute node is alive and acknowledges:
//!
//! - no member owes an acknowledgement before it was asked for *and* the member had joined;
//! - a compute node that owes one for too long is declared dead, and a memory node missing; no
//!   death waits for acknowledgements of dead and missing nodes;
//! - without living compute nodes a death proceeds until new owners have to be assigned: the next
//!   compute node that joins assigns them.
//!
//! The time in which the membership server stood still counts for no lease and no acknowledgement.
//! A server that ticks takes a gap of more than half a lease between two events for such a time,
//! and moves all deadlines by it. There is one claimant at a time: two that read the directory of
//! table owners together would give one table two owners. A claimant is replaced once no verb of it
//! can execute any more. A member leaves in the same steps as a dead one, so that no verb of it
//! executes later.

mod hosts;
#[cfg(feature = "etcd")]
pub(super) mod stored;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::policy::LeaseParameters;
use super::{
    Change, Lease, Member, MemberPhase, MemberState, MembershipState, MemoryState, Move, Presence,
};
use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
use crate::transport::Nanos;

/// Membership news for the operator of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A compute node has joined.
    Joined(Member),
    /// A compute node has left in good order.
    Left(Member),
    /// A compute node has lost its membership, and why.
    Died(Member, &'static str),
    /// A death is complete.
    Gone(Member),
    /// Every compute node knows a new memory node: it is in use.
    Opened(Member),
    /// A memory node is away, and why.
    Away(Member, Presence, &'static str),
    /// A memory node is present again.
    Back(Member),
    /// The membership server stood still for so long, ns.
    StoodStill(Nanos),
}

impl std::fmt::Display for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Joined(m) => write!(f, "{m} has joined"),
            Self::Left(m) => write!(f, "{m} leaves"),
            Self::Died(m, why) => write!(f, "{m} is dead: {why}"),
            Self::Gone(m) => write!(f, "{m} is gone: nothing waits for it"),
            Self::Opened(m) => write!(f, "{m} is in use: every compute node knows it"),
            Self::Away(m, presence, why) => {
                write!(f, "{} ({why})", presence.refusal(m.node))
            }
            Self::Back(m) => write!(f, "{m} is back, with what it held"),
            Self::StoodStill(ns) => write!(
                f,
                "this process stood still for {} ms: no lease ended meanwhile",
                ns / 1_000_000
            ),
        }
    }
}

/// News beyond this many is dropped, oldest first.
const MOST_NEWS: usize = 1024;
/// Longest list of partitions of a planned move.
const MOST_PARTITIONS: usize = 4096;

/// The state of the membership.
#[derive(Clone, Debug)]
pub(crate) struct MembershipRules {
    pub(super) lease_parameters: LeaseParameters,
    /// How many memory nodes revoke the access of dead nodes themselves; 0: the coordinator of a
    /// death has them do it, and reports [`Change::Revoked`].
    pub(super) agents: usize,
    /// The memory node that keeps the membership, and so is present.
    kept_by: Option<NodeId>,
    /// The latest reading of the clock that any event has brought.
    now: Nanos,
    /// Ticks come periodically: a time without any event is one in which the server stood still.
    ticks: bool,
    /// States and when each began, oldest first.
    log: Vec<(Nanos, Arc<MembershipState>)>,
    /// When leases end.
    pub(super) leases: BTreeMap<Member, Nanos>,
    /// When a compute node joined: it owes nothing since before.
    joined: BTreeMap<Member, Nanos>,
    /// When the present phase or presence of a member began.
    asked: BTreeMap<Member, Nanos>,
    move_asked: Nanos,
    /// The membership epoch in which the last member died.
    last_death: u64,
    /// Writes go on without a journal node that is away.
    pub(super) skips_journal: bool,
    /// Journal nodes with a gap.
    gaps: BTreeSet<NodeId>,
    /// For tests: how late news reaches a node, ns.
    pub(super) delays: BTreeMap<NodeId, Nanos>,
    pub(super) news: VecDeque<News>,
}

impl MembershipRules {
    pub(crate) fn new(lease_parameters: LeaseParameters) -> Self {
        Self {
            lease_parameters,
            agents: 0,
            kept_by: Some(NodeId::memory(0)),
            now: 0,
            ticks: false,
            log: vec![(0, Arc::new(MembershipState::default()))],
            leases: BTreeMap::new(),
            joined: BTreeMap::new(),
            asked: BTreeMap::new(),
            move_asked: 0,
            last_death: 0,
            skips_journal: false,
            gaps: BTreeSet::new(),
            delays: BTreeMap::new(),
            news: VecDeque::new(),
        }
    }

    pub(crate) fn latest(&self) -> Arc<MembershipState> {
        self.log.last().expect("never empty").1.clone()
    }

    /// The newest state that news has brought to a node.
    pub(super) fn known_to(&self, node: NodeId) -> Arc<MembershipState> {
        let delay = self.delays.get(&node).copied().unwrap_or(0);
        let until = self.now.saturating_sub(delay);
        let known = self.log.iter().rev().find(|(at, _)| *at <= until);
        known.or(self.log.first()).expect("never empty").1.clone()
    }

    fn publish(&mut self, news: News) {
        self.news.push_back(news);
        if self.news.len() > MOST_NEWS {
            self.news.pop_front();
        }
    }

    /// The next state.
    fn change(&mut self, f: impl FnOnce(&mut MembershipState, u64)) {
        let mut next = MembershipState::clone(&self.latest());
        next.epoch += 1;
        let epoch = next.epoch;
        f(&mut next, epoch);
        self.log.push((self.now, Arc::new(next)));
        // Drop states that every node has been able to read.
        let longest = self.delays.values().max().copied().unwrap_or(0);
        let old = self.log.iter().take_while(|(at, _)| at + longest < self.now).count();
        self.log.drain(..old.saturating_sub(1));
    }

    fn enter(&mut self, member: Member, phase: MemberPhase) {
        self.asked.insert(member, self.now);
        self.change(|s, epoch| {
            if let Some(m) = s.members.iter_mut().find(|m| m.member == member) {
                *m = MemberState::new(member, phase, epoch);
            }
            if phase == MemberPhase::Gone {
                s.deaths += 1;
                forget(s);
            }
        });
        if phase == MemberPhase::Gone {
            self.asked.remove(&member);
            self.publish(News::Gone(member));
        }
    }

    fn die(&mut self, member: Member, why: Option<&'static str>) {
        self.leases.remove(&member);
        self.joined.remove(&member);
        self.enter(member, MemberPhase::Revoking);
        self.last_death = self.latest().epoch;
        self.publish(why.map_or(News::Left(member), |why| News::Died(member, why)));
    }

    fn edit(&mut self, member: Member, f: impl FnOnce(&mut MemberState)) {
        self.change(|s, _| {
            if let Some(m) = s.members.iter_mut().find(|m| m.member == member) {
                f(m);
            }
        });
    }

    fn edit_memory(&mut self, node: NodeId, f: impl FnOnce(&mut MemoryState, u64)) {
        self.change(|s, epoch| {
            if let Some(m) = s.memory.iter_mut().find(|m| m.member.node == node) {
                f(m, epoch);
            }
        });
    }

    /// A memory node comes, goes, or turns out to be lost.
    fn set_presence(&mut self, member: Member, presence: Presence, why: &'static str) {
        self.asked.insert(member, self.now);
        let is_skipped = self.skips_journal && member.node.role() == Role::Journal;
        if is_skipped && presence.is_away() {
            self.gaps.insert(member.node);
        }
        let gap = self.gaps.contains(&member.node);
        self.edit_memory(member.node, |m, epoch| {
            (m.gap, m.refill) = (gap, None);
            if !m.presence.is_away() || !presence.is_away() {
                (m.since, m.acknowledged) = (epoch, Vec::new());
            }
            m.presence = presence;
        });
        self.publish(match presence {
            Presence::Present => News::Back(member),
            _ => News::Away(member, presence, why),
        });
        self.advance_acknowledged();
    }

    // ---- time
    // -------------------------------------------------------------------------------------

    /// Time passes: leases and acknowledgements are judged.
    pub(super) fn judge(&mut self, now: Nanos) {
        let now = self.now.max(now);
        // Half a lease: a member that renews after a quarter of it is in time even after such a
        // gap.
        if self.ticks && now - self.now > self.lease_parameters.lease_ns / 2 {
            self.stood_still(now - self.now);
        }
        self.now = now;
        let latest = self.latest();
        for member in latest.living() {
            let over = self.leases.get(&member).is_none_or(|until| *until <= self.now);
            if over {
                self.die(member, Some("its lease has ended"));
            } else if self.is_late(&latest, member) {
                self.die(member, Some("it did not acknowledge in time"));
            }
        }
        for m in &latest.memory {
            let over = self.leases.get(&m.member).is_none_or(|until| *until <= self.now);
            if m.presence.is_away() || self.kept_by == Some(m.member.node) {
                continue;
            }
            if over {
                self.set_presence(m.member, Presence::Missing, "its lease has ended");
            } else if self.owes_revocation(&latest, m.member) {
                self.set_presence(m.member, Presence::Missing, "it does not revoke access");
            }
        }
        self.advance_acknowledged();
    }

    /// Judges periodically. From the first tick on, a time without events counts as one in which
    /// the server stood still.
    pub(super) fn tick(&mut self, now: Nanos) {
        self.judge(now);
        self.ticks = true;
    }

    /// The server judged and answered nothing for so long: moves all deadlines by it.
    fn stood_still(&mut self, ns: Nanos) {
        let times = self.leases.values_mut().chain(self.asked.values_mut());
        times.chain(self.joined.values_mut()).for_each(|at| *at += ns);
        self.move_asked += ns;
        self.publish(News::StoodStill(ns));
    }

    /// Restarts all leases and acknowledgement times.
    pub(super) fn excuse(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        let (now, until) = (self.now, self.now + self.lease_parameters.lease_ns);
        self.leases.values_mut().for_each(|at| *at = until);
        self.asked.values_mut().for_each(|at| *at = now);
        self.move_asked = now;
    }

    fn is_overdue(&self, asked: Nanos, debtor: Member) -> bool {
        let since = self.lease_parameters.owed_since(asked, self.joined.get(&debtor).copied());
        since + self.lease_parameters.acknowledge_ns <= self.now
    }

    /// Whether a living member owes an acknowledgement for too long.
    fn is_late(&self, s: &MembershipState, member: Member) -> bool {
        let owes = |m: &MemberState| {
            matches!(m.phase, MemberPhase::Revoking | MemberPhase::Draining)
                && self.is_late_for(member, m.member, &m.acknowledged)
        };
        let owes_move = s.planned.as_ref().is_some_and(|p| {
            p.phase == MemberPhase::Draining
                && !p.acknowledged.contains(&member)
                && self.is_overdue(self.move_asked, member)
        });
        owes_move
            || s.members.iter().any(owes)
            || s.away().any(|m| self.is_late_for(member, m.member, &m.acknowledged))
    }

    /// Whether it has not acknowledged in time what `of` has come to.
    fn is_late_for(&self, member: Member, of: Member, by: &[Member]) -> bool {
        !by.contains(&member) && self.asked.get(&of).is_some_and(|at| self.is_overdue(*at, member))
    }

    fn owes_revocation(&self, s: &MembershipState, member: Member) -> bool {
        let revoking = |m: &&MemberState| m.phase == MemberPhase::Revoking;
        let mut of = s.members.iter().filter(revoking);
        of.any(|m| self.is_late_for(member, m.member, &m.acknowledged))
    }

    /// Advances every death and move that all living members have acknowledged.
    fn advance_acknowledged(&mut self) {
        loop {
            let latest = self.latest();
            let all_revoke = self.agents > 0 && latest.memory.len() >= self.agents;
            let next = |m: &MemberState| match m.phase {
                MemberPhase::Revoking
                    if all_revoke && self.lease_parameters.is_revoked(&latest, m) =>
                {
                    Some((m.member, MemberPhase::Draining))
                }
                MemberPhase::Draining if latest.is_acknowledged(&m.acknowledged) => {
                    Some((m.member, MemberPhase::Reassigning))
                }
                _ => None,
            };
            let Some((member, phase)) = latest.members.iter().find_map(next) else { break };
            self.enter(member, phase);
        }
        self.open_known();
        let latest = self.latest();
        let ready =
            |p: &&Move| p.phase == MemberPhase::Draining && latest.is_acknowledged(&p.acknowledged);
        if latest.planned.as_ref().filter(ready).is_some() {
            self.edit_move(|p, epoch| (p.phase, p.since) = (MemberPhase::Reassigning, epoch));
        }
    }

    // ---- members
    // ----------------------------------------------------------------------------------

    fn lease(&mut self, me: Member) -> Lease {
        self.leases.insert(me, self.now + self.lease_parameters.lease_ns);
        let for_ns = self.lease_parameters.lease_ns;
        Lease {
            for_ns: for_ns - for_ns / self.lease_parameters.drift_one_in,
            epoch: self.latest().epoch,
        }
    }

    pub(super) fn join(&mut self, me: Member) -> Result<Lease> {
        match me.node.role() {
            Role::Compute => self.join_compute(me),
            Role::Memory | Role::Journal => self.join_host(me),
        }
    }

    fn join_compute(&mut self, me: Member) -> Result<Lease> {
        let latest = self.latest();
        match latest.phase(me) {
            Some(MemberPhase::Living) => return Ok(self.lease(me)),
            // Dead, or a former incarnation.
            Some(_) => return Err(revoked(me)),
            None => {}
        }
        let older = |m: &&MemberState| m.member.node == me.node && m.phase == MemberPhase::Living;
        if let Some(m) = latest.members.iter().find(older) {
            self.die(m.member, Some("its node has restarted"));
        }
        let lease = self.lease(me);
        self.joined.insert(me, self.now);
        self.change(|s, epoch| {
            s.members.push(MemberState::new(me, MemberPhase::Living, epoch));
            s.members.sort_by_key(|m| m.member);
            forget(s);
            // It uses no table yet, so it owes no acknowledgement for those that others stop using.
            for m in &mut s.members {
                if m.phase == MemberPhase::Draining {
                    m.acknowledged.push(me);
                }
            }
            // A new memory node it has to acknowledge: it may not know that one.
            for m in &mut s.memory {
                if m.presence.is_away() || m.refill.is_some() {
                    m.acknowledged.push(me);
                }
            }
            if let Some(p) = &mut s.planned {
                p.acknowledged.push(me);
            }
        });
        self.publish(News::Joined(me));
        self.advance_acknowledged();
        Ok(Lease { epoch: self.latest().epoch, ..lease })
    }

    pub(super) fn renew(&mut self, me: Member) -> Result<Lease> {
        if !self.is_known(me) {
            return Err(revoked(me));
        }
        Ok(self.lease(me))
    }

    /// A living compute node, or a memory node that has joined.
    fn is_known(&self, me: Member) -> bool {
        let latest = self.latest();
        latest.is_living(me) || latest.memory.iter().any(|m| m.member == me)
    }

    // ---- proposals of members
    // ---------------------------------------------------------------------

    pub(super) fn propose(&mut self, me: Member, change: Change) -> Result<()> {
        if !self.is_known(me) {
            return Err(revoked(me));
        }
        match me.node.role() {
            Role::Compute => self.of_compute(me, change)?,
            Role::Memory | Role::Journal => self.of_host(me, change)?,
        }
        self.advance_acknowledged();
        Ok(())
    }

    fn acknowledge(&mut self, latest: &MembershipState, me: Member, m: Member, phase: MemberPhase) {
        let open = |m: &&MemberState| m.phase == phase && !m.acknowledged.contains(&me);
        if latest.of(m).filter(open).is_some() {
            self.edit(m, |m| m.acknowledged.push(me));
        }
    }

    fn of_compute(&mut self, me: Member, change: Change) -> Result<()> {
        let latest = self.latest();
        let at = |m: Member| latest.of(m).map(|m| (m.phase, m.claimant));
        // A claimant is replaced when nothing of it can execute any more.
        let free = |claimant: Option<Member>| {
            claimant.is_none_or(|c| latest.phase(c).is_none_or(|s| s >= MemberPhase::Draining))
        };
        // One claimant at a time: two that read the directory together would give one table two
        // owners.
        let other = |c: Option<Member>| c.is_some_and(|c| c != me) && !free(c);
        let reassigning = latest.members.iter().filter(|m| m.phase == MemberPhase::Reassigning);
        let claimed =
            reassigning.map(|m| m.claimant).chain(latest.planned.iter().map(|p| p.claimant));
        let taken = { claimed }.any(other);
        match change {
            Change::Acknowledge(m, phase) => self.acknowledge(&latest, me, m, phase),
            Change::Avoided(m) => {
                let open = |m: &&MemoryState| m.presence.is_away() && !m.acknowledged.contains(&me);
                let known = latest.memory.iter().filter(open).any(|o| o.member == m);
                if known {
                    self.edit_memory(m.node, |m, _| m.acknowledged.push(me));
                }
            }
            Change::Revoked(m) => {
                let open = |m: &&MemberState| m.phase == MemberPhase::Revoking;
                if latest.of(m).filter(open).is_some_and(|m| latest.is_revoked_everywhere(m)) {
                    // Memory nodes own no table that would have to move.
                    self.enter(m, MemberPhase::Draining);
                }
            }
            Change::Claim(m) => {
                if !taken && at(m).is_some_and(|(s, c)| s == MemberPhase::Reassigning && free(c)) {
                    self.edit(m, |m| m.claimant = Some(me));
                }
            }
            Change::Reassigned(m) => {
                if at(m).is_some_and(|(s, c)| s == MemberPhase::Reassigning && c == Some(me)) {
                    self.enter(m, MemberPhase::Gone);
                }
            }
            Change::Plan(partitions, to) => {
                if partitions.len() > MOST_PARTITIONS {
                    let n = partitions.len();
                    return Err(Error::invalid(format!("a move of {n} partitions")));
                }
                if latest.planned.is_none() && !partitions.is_empty() {
                    self.plan(partitions, to);
                }
            }
            Change::AcknowledgeMove => {
                if latest.planned.as_ref().is_some_and(|p| !p.acknowledged.contains(&me)) {
                    self.edit_move(|p, _| p.acknowledged.push(me));
                }
            }
            Change::ClaimMove => {
                let open = |p: &Move| p.phase == MemberPhase::Reassigning && free(p.claimant);
                if !taken && latest.planned.as_ref().is_some_and(open) {
                    self.edit_move(|p, _| p.claimant = Some(me));
                }
            }
            Change::Moved => {
                if latest.planned.as_ref().is_some_and(|p| p.claimant == Some(me)) {
                    self.change(|s, _| s.planned = None);
                }
            }
            Change::Knows(m) => self.knows(&latest, me, m),
            Change::Refill(m) => self.refill(&latest, me, m)?,
            Change::Resumed(m) => {
                let open = |o: &&MemoryState| o.refill.is_some() && !o.acknowledged.contains(&me);
                if latest.memory_node(m.node).filter(open).is_some_and(|o| o.member == m) {
                    self.edit_memory(m.node, |m, _| m.acknowledged.push(me));
                }
            }
            Change::Filled(m) => self.filled(&latest, me, m)?,
            // It goes through the steps of a death, so that no verb of it executes later; it owns
            // no table.
            Change::Leave => self.die(me, None),
            Change::Returned(_) => {
                return Err(Error::invalid(format!("{me} is no memory node that could be back")));
            }
        }
        Ok(())
    }

    fn plan(&mut self, partitions: Vec<u16>, to: Option<Member>) {
        self.move_asked = self.now;
        self.change(|s, epoch| {
            s.planned = Some(Move {
                partitions,
                to,
                phase: MemberPhase::Draining,
                since: epoch,
                acknowledged: Vec::new(),
                claimant: None,
            });
        });
    }

    fn edit_move(&mut self, f: impl FnOnce(&mut Move, u64)) {
        self.change(|s, epoch| {
            if let Some(p) = &mut s.planned {
                f(p, epoch);
            }
        });
    }
}

/// Forgets incarnations that are gone once a later one of their node has joined:
/// [`MembershipState::phase`] still answers `Gone` for them.
fn forget(s: &mut MembershipState) {
    let latest: BTreeMap<NodeId, u32> =
        s.members.iter().map(|m| (m.member.node, m.member.incarnation)).collect();
    s.members.retain(|m| {
        m.phase != MemberPhase::Gone || latest.get(&m.member.node) == Some(&m.member.incarnation)
    });
}

fn revoked(me: Member) -> Error {
    Error::revoked(format!(
        "{me} has lost its membership: restart it, so that it joins as a new incarnation"
    ))
}
