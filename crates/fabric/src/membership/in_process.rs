//! Membership inside one process: the rules behind a lock.

use std::sync::{Arc, Mutex};

use super::policy::LeaseParameters;
use super::rules::{MembershipRules, News};
use super::{Change, Lease, Member, Membership, MembershipFuture, MembershipState};
use crate::addr::NodeId;
use crate::sync::locked;
use crate::transport::Nanos;

/// Membership for nodes of one process; the membership server keeps one, too. Leases end only when
/// a caller has them judged: living nodes call all the time, and where no node may be alive a
/// ticker calls [`InProcess::tick`].
pub struct InProcess {
    rules: Mutex<MembershipRules>,
}

crate::debug_line!(InProcess, it => "InProcess({:?})", it.latest());

impl InProcess {
    /// A membership without members.
    pub fn new(lease_parameters: LeaseParameters) -> Self {
        Self { rules: Mutex::new(MembershipRules::new(lease_parameters)) }
    }

    /// A membership of these rules.
    #[cfg(feature = "etcd")]
    pub(crate) fn of(rules: MembershipRules) -> Self {
        Self { rules: Mutex::new(rules) }
    }

    /// Its rules.
    #[cfg(feature = "etcd")]
    pub(crate) fn rules(&self) -> MembershipRules {
        locked(&self.rules).clone()
    }

    /// Applies an event after judging all leases and acknowledgements that are due by then.
    fn apply<T>(&self, now: Nanos, event: impl FnOnce(&mut MembershipRules) -> T) -> T {
        let mut rules = locked(&self.rules);
        rules.judge(now);
        event(&mut rules)
    }

    /// The newest state.
    pub fn latest(&self) -> Arc<MembershipState> {
        locked(&self.rules).latest()
    }

    /// So many memory nodes have agents ([`super::MemoryAgent`]), which revoke the access of dead
    /// nodes: all of the pool's, or none.
    pub fn set_agents(&self, memory_nodes: u16) {
        locked(&self.rules).agents = usize::from(memory_nodes);
    }

    /// Whether writes go on without a journal node that is away: its part has a gap then.
    pub fn set_skips_journal(&self, skips: bool) {
        locked(&self.rules).skips_journal = skips;
    }

    /// The part of a journal node lacks writes.
    pub fn lacks(&self, journal_node: NodeId) {
        locked(&self.rules).lacks(journal_node);
    }

    /// Judges leases and acknowledgements once.
    #[cfg(feature = "etcd")]
    pub(crate) fn judge(&self, now: Nanos) {
        self.apply(now, |_| ());
    }

    /// Judges leases. Called periodically, many times within a lease: from the first call on, half
    /// a lease without a call counts as a time in which this membership stood still, and ends no
    /// lease.
    pub fn tick(&self, now: Nanos) {
        self.apply(now, |rules| rules.tick(now));
    }

    /// How long the leases of members last after `now`, ns; 0 for one that has ended and is not
    /// judged yet.
    pub fn leases(&self, now: Nanos) -> Vec<(Member, Nanos)> {
        let rules = locked(&self.rules);
        // Leases that are judged elsewhere have no end here.
        let ends = rules.leases.iter().filter(|(_, end)| **end != Nanos::MAX);
        ends.map(|(member, end)| (*member, end.saturating_sub(now))).collect()
    }

    /// The process of a compute node has ended, or that of a memory node that is missing.
    pub fn lose(&self, member: Member) {
        locked(&self.rules).lose(member);
    }

    /// Whether the next incarnation of a member's number may begin; `None` for one that has not
    /// joined.
    pub fn is_number_free(&self, last: Member) -> Option<bool> {
        let rules = locked(&self.rules);
        Some(rules.lease_parameters.is_number_free(rules.latest().phase(last)?))
    }

    /// A memory node ended before it was ready, and no verb was ever posted to it: the next
    /// incarnation of its number may join.
    pub fn forget_memory(&self, member: Member) {
        locked(&self.rules).forget_memory(member);
    }

    /// Takes the news since the last call, the latest thousand at most.
    pub fn take_news(&self) -> Vec<News> {
        locked(&self.rules).news.drain(..).collect()
    }

    /// A test knob: news reaches a node so much later, ns.
    pub fn delay_news(&self, node: NodeId, ns: Nanos) {
        locked(&self.rules).delays.insert(node, ns);
    }

    /// A test knob: every acknowledgement that is owed is due as if it had been asked for now,
    /// because no node could act for a while.
    pub fn excuse(&self, now: Nanos) {
        locked(&self.rules).excuse(now);
    }

    /// Changes the lease parameters from now on; leases that were granted stay as they are.
    pub fn set_lease_parameters(&self, lease_parameters: LeaseParameters) {
        locked(&self.rules).lease_parameters = lease_parameters;
    }
}

impl Membership for InProcess {
    fn join(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.apply(now, |rules| rules.join(me)) })
    }

    fn renew(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.apply(now, |rules| rules.renew(me)) })
    }

    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<MembershipState>> {
        Box::pin(async move { Ok(self.apply(now, |rules| rules.known_to(me.node))) })
    }

    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()> {
        Box::pin(async move { self.apply(now, |rules| rules.propose(me, change)) })
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
