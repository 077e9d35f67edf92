//! Parameters of the membership rules: times and, for checkers, a rule that is left out.

use super::{MemberPhase, MemberState, MembershipState, Presence};
use crate::transport::Nanos;

/// How long members may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseParameters {
    /// A lease that is not renewed ends after this long, ns.
    pub lease_ns: Nanos,
    /// A member must acknowledge what a membership epoch requires of it within this time, ns.
    pub acknowledge_ns: Nanos,
    /// Clocks of members run fast or slow by one in this many at most: a holder counts on so much
    /// less of its lease.
    pub drift_one_in: u64,
    /// A rule that is left out on purpose; none outside of checkers.
    pub mutant: Option<Mutant>,
}

impl Default for LeaseParameters {
    fn default() -> Self {
        Self {
            lease_ns: 1_000_000_000,
            acknowledge_ns: 10_000_000_000,
            drift_one_in: 16,
            mutant: None,
        }
    }
}

/// A membership with a rule left out. Only a checker enables one, to show that its runs find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A death waits for a living compute node, and one that joins owes it since it was asked for.
    NewcomersOwe,
    /// The number of a dead compute node is free once a living one has completed its death.
    NumbersStay,
    /// A death waits for memory nodes that are away.
    AwayOwe,
}

impl LeaseParameters {
    /// Since when a member owes an acknowledgement that was asked for at `asked`.
    pub(super) fn owed_since(&self, asked: Nanos, joined: Option<Nanos>) -> Nanos {
        match self.mutant {
            Some(Mutant::NewcomersOwe) => asked,
            _ => asked.max(joined.unwrap_or(0)),
        }
    }

    /// Whether no verb of a dead member executes any more.
    pub(super) fn is_revoked(&self, s: &MembershipState, m: &MemberState) -> bool {
        let all = s.is_revoked_everywhere(m);
        match self.mutant {
            Some(Mutant::NewcomersOwe) => all && s.living().next().is_some(),
            Some(Mutant::AwayOwe) => {
                all && s.memory.iter().all(|n| n.presence == Presence::Present)
            }
            _ => all,
        }
    }

    /// Whether the next incarnation of a number may begin when the last one has come so far.
    pub(super) fn is_number_free(&self, last: MemberPhase) -> bool {
        match self.mutant {
            Some(Mutant::NumbersStay) => last == MemberPhase::Gone,
            _ => last != MemberPhase::Living,
        }
    }
}
