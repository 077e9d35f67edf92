//! Cluster membership, and how the members agree on the death of a node.
//!
//! A node joins with its incarnation and holds a lease. The membership keeps a numbered log of
//! states, the *membership epochs*, and judges leases. A death is a sequence of epochs; each ends
//! when every living compute node has acknowledged it:
//!
//! - *revoking*: every host revokes the dead node's access. When all have, no verb of it executes
//!   anywhere any more: locks that it held elsewhere may be recovered.
//! - *draining*: every living compute node stops using the tables that the dead node owns, and ends
//!   the operations that it had begun there. When all have, a node that hangs while its NIC still
//!   serves its locks is harmless.
//! - *reassigning*: one living node, the claimant, gives new owners to the tables of the dead node.
//!   There is one claimant at a time, for all deaths and planned moves together.
//! - *gone*.
//!
//! A planned move of tables consists of draining and reassigning alone. A node that does not
//! acknowledge in time is declared dead itself.
//!
//! Memory nodes and journal nodes hold leases, too, where an agent of each renews them
//! (`agent.rs`), and revoke the access of dead nodes themselves. A memory node with an ended lease
//! is *missing*: no living compute node posts to it, and no death waits for it. It is present again
//! when it has revoked the access of every member that died meanwhile. A journal node is in all of
//! this like a memory node: it refuses the appends of a dead node from the moment at which it has
//! revoked its access.
//!
//! A memory node that joins a pool in use is *new* at first: nothing is allocated there before
//! every living compute node has acknowledged that it knows the node. So every address that a
//! client can meet names a node that its compute node knows.
//!
//! *Gaps.* In a pool that goes on without a journal node, the state that declares it missing says
//! also that its part has a gap: no write skips a part before the membership knows that. A compute
//! node refills the part from memory. It asks first that every compute node acknowledges: from then
//! on every write waits for the part, and the writes that did not have ended.
//!
//! The rules are a value without a lock or a clock (`rules.rs`). The simulator, the membership
//! server and the tests share them.

mod agent;
mod in_process;
mod policy;
mod rules;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
use crate::transport::Nanos;

pub use agent::MemoryAgent;
pub use in_process::InProcess;
pub use policy::{LeaseParameters, Mutant};
#[cfg(feature = "etcd")]
pub(crate) use rules::MembershipRules;
pub use rules::News;
#[cfg(feature = "etcd")]
pub(crate) use rules::stored::{StoredRules, lessees};

/// One incarnation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: u32,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (incarnation {})", self.node, self.incarnation)
    }
}

/// How far a member has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemberPhase {
    /// It holds a lease.
    Living,
    /// It is dead; its access is being revoked everywhere.
    Revoking,
    /// No verb of it executes any more; the living nodes stop using the tables that it owns.
    Draining,
    /// No node uses the tables that it owned; they are being given new owners.
    Reassigning,
    /// Nothing is left to be done. A node that left in good order ends here, too.
    Gone,
}

impl MemberPhase {
    /// The standing of a member in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Living => "living",
            Self::Revoking => "leaves: its access is being revoked",
            Self::Draining => "leaves: its tables are being drained",
            Self::Reassigning => "leaves: its tables get new owners",
            Self::Gone => "gone",
        }
    }
}

/// One member in a membership state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberState {
    /// The member.
    pub member: Member,
    /// How far it has come.
    pub phase: MemberPhase,
    /// The membership epoch in which it came there.
    pub since: u64,
    /// The members that have acknowledged that.
    pub acknowledged: Vec<Member>,
    /// The member that assigns new owners. Others may take the claim over when no verb of the
    /// claimant executes any more.
    pub claimant: Option<Member>,
}

impl MemberState {
    fn new(member: Member, phase: MemberPhase, since: u64) -> Self {
        Self { member, phase, since, acknowledged: Vec::new(), claimant: None }
    }
}

/// Whether a memory node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Presence {
    /// It holds a lease.
    Present,
    /// Its lease has ended: it is cut off, stands still, or is gone.
    Missing,
    /// Its process has ended, as its host reports: the contents of its region are lost.
    Lost,
}

impl Presence {
    /// Whether nothing may be posted to the node.
    pub fn is_away(self) -> bool {
        self != Self::Present
    }

    /// The error of an operation that needs a memory node that is away.
    #[cold]
    pub fn refusal(self, node: NodeId) -> Error {
        let what = match self {
            _ if node.role() == Role::Journal => {
                "is away: writes wait for it, and fail at their deadlines; start it again with its directory"
            }
            Self::Lost => {
                "is lost: its process has ended, and its contents are gone; use the tables on other nodes, or start a new pool"
            }
            _ => {
                "is missing: its contents cannot be reached until it comes back; are its process and the network to it up?"
            }
        };
        Error::unreachable(format!("{node} {what}"))
    }
}

/// A memory node in a membership state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryState {
    /// The node and its incarnation.
    pub member: Member,
    /// Whether it can be used.
    pub presence: Presence,
    /// The membership epoch since which that is so.
    pub since: u64,
    /// While it is away: the compute nodes that post nothing to it any more. While it is refilled:
    /// the compute nodes that skip it no more, and have no operation left that did. While it is
    /// new, and present: the compute nodes that know it.
    pub acknowledged: Vec<Member>,
    /// Of a journal node: acknowledged writes are missing in its part, until it has been refilled.
    pub gap: bool,
    /// The compute node that refills it.
    pub refill: Option<Member>,
    /// A memory node where nothing may be allocated yet: not every compute node knows it.
    pub is_new: bool,
}

/// A planned move of table partitions to another owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The numbers of the table partitions that move.
    pub partitions: Vec<u16>,
    /// The new owner; `None` leaves the choice to the claimant.
    pub to: Option<Member>,
    /// `Draining` or `Reassigning`.
    pub phase: MemberPhase,
    /// The membership epoch in which it came there.
    pub since: u64,
    /// The members that have acknowledged that.
    pub acknowledged: Vec<Member>,
    /// The member that carries it out.
    pub claimant: Option<Member>,
}

/// A state of the membership.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MembershipState {
    /// Its number.
    pub epoch: u64,
    /// The compute nodes that have joined, in the order of nodes and incarnations. An incarnation
    /// that is gone is forgotten once a later one of its node has joined.
    pub members: Vec<MemberState>,
    /// The memory nodes and journal nodes that have joined, in the order of nodes. Empty in pools
    /// where memory nodes hold no leases.
    pub memory: Vec<MemoryState>,
    /// The planned move under way, if any.
    pub planned: Option<Move>,
    /// How many members have come to [`MemberPhase::Gone`].
    pub deaths: u64,
}

impl MembershipState {
    /// The state of a member.
    pub fn of(&self, member: Member) -> Option<&MemberState> {
        self.members.iter().find(|m| m.member == member)
    }

    /// How far a member has come; `None` for an unknown node. An incarnation before a known one
    /// never began or is forgotten: it is gone.
    pub fn phase(&self, member: Member) -> Option<MemberPhase> {
        let later = |m: &MemberState| {
            m.member.node == member.node && m.member.incarnation > member.incarnation
        };
        match self.of(member) {
            Some(m) => Some(m.phase),
            None => self.members.iter().any(later).then_some(MemberPhase::Gone),
        }
    }

    /// The incarnation of a node by the low 16 bits of its number, as a lock word stores them. A
    /// number further than half of the 16-bit range from the latest incarnation belongs to one that
    /// is not known yet.
    pub fn incarnation_of(&self, node: NodeId, incarnation: u16) -> Option<Member> {
        let latest = self.members.iter().rev().map(|m| m.member).find(|m| m.node == node)?;
        let behind = u32::from((latest.incarnation as u16).wrapping_sub(incarnation));
        let known = behind <= u32::from(u16::MAX / 2) && behind < latest.incarnation;
        known.then(|| Member { incarnation: latest.incarnation - behind, ..latest })
    }

    /// A memory node that has joined.
    pub fn memory_node(&self, node: NodeId) -> Option<&MemoryState> {
        self.memory.iter().find(|m| m.member.node == node)
    }

    /// The parts of the journal with a gap: bit n is that of journal node n.
    pub fn gaps(&self) -> u64 {
        let gaps = self.memory.iter().filter(|m| m.gap);
        gaps.fold(0, |bits, m| bits | 1 << m.member.node.index())
    }

    /// Whether writes may skip a journal node: it has a gap, and is not refilled.
    pub fn is_skipped(&self, node: NodeId) -> bool {
        self.memory_node(node).is_some_and(|m| m.gap && m.refill.is_none())
    }

    /// Whether a memory node can be used. One that holds no lease can.
    pub fn presence(&self, node: NodeId) -> Presence {
        self.memory_node(node).map_or(Presence::Present, |m| m.presence)
    }

    /// The memory nodes to which nothing may be posted.
    pub fn away(&self) -> impl Iterator<Item = &MemoryState> {
        self.memory.iter().filter(|m| m.presence.is_away())
    }

    /// The latest dead incarnation of every compute node: memory nodes have to revoke its access.
    pub fn dead(&self) -> Vec<Member> {
        let mut out: Vec<Member> = Vec::new();
        for m in &self.members {
            let Member { node, incarnation } = m.member;
            let before = if m.phase == MemberPhase::Living { incarnation - 1 } else { incarnation };
            out.retain(|o| o.node != node);
            if before > 0 {
                out.push(Member { node, incarnation: before });
            }
        }
        out
    }

    /// Whether a member holds a lease.
    pub fn is_living(&self, member: Member) -> bool {
        self.phase(member) == Some(MemberPhase::Living)
    }

    /// The living compute nodes.
    pub fn living(&self) -> impl Iterator<Item = Member> {
        let compute = |m: &&MemberState| m.member.node.role() == Role::Compute;
        let living = |m: &&MemberState| m.phase == MemberPhase::Living;
        self.members.iter().filter(living).filter(compute).map(|m| m.member)
    }

    /// Whether all living compute nodes are among the members that have acknowledged.
    pub fn is_acknowledged(&self, by: &[Member]) -> bool {
        self.living().all(|m| by.contains(&m))
    }

    /// Whether no verb of a member that is being revoked executes any more: every living compute
    /// node and every memory node that is present has revoked its access, and no living node posts
    /// to those that are away.
    pub fn is_revoked_everywhere(&self, m: &MemberState) -> bool {
        let done = |n: &MemoryState| match n.presence {
            Presence::Present => m.acknowledged.contains(&n.member),
            _ => self.is_acknowledged(&n.acknowledged),
        };
        self.is_acknowledged(&m.acknowledged) && self.memory.iter().all(done)
    }
}

/// A membership lease: the right to act until it ends or is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its duration from the moment of the request, by the holder's own clock, ns.
    pub for_ns: Nanos,
    /// The membership epoch in which it was granted.
    pub epoch: u64,
}

/// Reports and requests of members. Any of them may be repeated or come late: a change that does
/// not fit the state any more is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The sender has done what the phase of a member requires of it.
    Acknowledge(Member, MemberPhase),
    /// Every memory node has revoked the access of a member that is revoking.
    Revoked(Member),
    /// The sender wants to reassign the tables of a member in [`MemberPhase::Reassigning`].
    Claim(Member),
    /// The claimant has given new owners to all of its tables.
    Reassigned(Member),
    /// Partitions shall move.
    Plan(Vec<u16>, Option<Member>),
    /// The sender has stopped using the partitions that are to move.
    AcknowledgeMove,
    /// The sender wants to carry the move out.
    ClaimMove,
    /// The claimant has carried it out.
    Moved,
    /// The sender leaves: it owns no table any more. A memory node that leaves is lost.
    Leave,
    /// The sender posts nothing more to a memory node that is away.
    Avoided(Member),
    /// The sender knows a new memory node: it accepts addresses there.
    Knows(Member),
    /// The sender refills a journal node with a gap.
    Refill(Member),
    /// Every write of the sender waits for a journal node that is refilled; those that did not have
    /// ended.
    Resumed(Member),
    /// The sender has refilled it.
    Filled(Member),
    /// The sender, a memory node that is away, has revoked the access of all members that were dead
    /// in this membership epoch.
    Returned(u64),
}

/// A pending answer of the membership.
pub type MembershipFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Keeps the log of states, and judges leases. Object-safe; called rarely.
///
/// `now` is the caller's reading of the fabric's clock.
pub trait Membership: Send + Sync {
    /// A node joins. A former incarnation of it that is living dies.
    ///
    /// # Errors
    /// `Revoked` for an incarnation that has died.
    fn join(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease>;
    /// Renews a lease.
    ///
    /// # Errors
    /// `Revoked` when it has ended.
    fn renew(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease>;
    /// The newest state, as far as news has reached this member.
    ///
    /// # Errors
    /// Those of the transport to the membership server.
    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<MembershipState>>;
    /// Reports or asks for something.
    ///
    /// # Errors
    /// `Revoked` when the sender is not living.
    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()>;
}
