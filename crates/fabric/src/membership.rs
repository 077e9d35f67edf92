//! Who belongs to the cluster, and how the death of a node is agreed on.
//!
//! A node joins with its incarnation and holds a lease. The membership keeps a numbered log of states, the *epochs*, and judges
//! leases. A death is a sequence of epochs; each ends when every living compute node has acknowledged it:
//!
//! - *revoking*: every host revokes the dead node's access. When all have, no verb of it executes anywhere any more: what it
//!   had locked elsewhere may be taken over.
//! - *draining*: every living compute node stops using what is homed at the dead node, and ends what it had begun there. When all
//!   have, a node that hangs while its NIC still serves its locks is harmless.
//! - *rehoming*: one living node, the claimant, gives new homes to what was homed there. There is one claimant at a time, whatever
//!   there is to be given new homes.
//! - *gone*.
//!
//! A planned move of tables is draining and rehoming alone. A node that does not acknowledge in time dies itself.
//!
//! Memory nodes hold leases, too, where an agent of each renews them (`agent.rs`), and revoke the access of the dead themselves. One
//! whose lease has ended is *missing*: no living compute node posts to it, and no death waits for it. It is present again when it
//! has revoked the access of every member that died meanwhile.
//!
//! The rules are a value without a lock or a clock (`rules.rs`). The simulator, the membership server and the tests share them.

mod agent;
mod in_process;
mod policy;
mod rules;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addr::{NodeId, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::Nanos;

pub use agent::MemoryAgent;
pub use in_process::InProcess;
pub use policy::{LeaseParameters, Mutant};
pub use rules::News;

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// It joined, or came back with a new incarnation.
    Joined,
    /// It lost its membership; its verbs are, or are about to be, refused everywhere.
    Fenced,
    /// It left in good order.
    Left,
}

/// One entry of the fabric's membership log. Numbers are consecutive from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEvent {
    /// Position in the log.
    pub number: u64,
    /// Whom it is about.
    pub node: NodeId,
    /// Which life of that node.
    pub incarnation: u32,
    /// What happened.
    pub change: MemberChange,
}

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Which node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: u32,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (incarnation {})", self.node, self.incarnation)
    }
}

/// How far a member has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Standing {
    /// It holds a lease.
    Living,
    /// It is dead; its access is being revoked everywhere.
    Revoking,
    /// No verb of it executes any more; the living stop using what is homed there.
    Draining,
    /// Nobody uses what is homed there; new homes are being found.
    Reassigning,
    /// Nothing is left to be done. A node that left in good order ends here, too.
    Gone,
}

/// One member in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberState {
    /// Who.
    pub member: Member,
    /// How far it has come.
    pub standing: Standing,
    /// The epoch in which it came there.
    pub since: u64,
    /// Who has acknowledged that.
    pub acknowledged: Vec<Member>,
    /// Who finds new homes. Others may take the claim over when nothing of the claimant executes any more.
    pub claimant: Option<Member>,
}

/// Whether a memory node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Presence {
    /// It holds a lease.
    Present,
    /// Its lease has ended: it is cut off, stands still, or is gone.
    Missing,
    /// Its process has ended, as far as can be told: what it held is lost.
    Lost,
}

impl Presence {
    /// Whether nothing may be posted to the node.
    pub fn is_away(self) -> bool {
        self != Self::Present
    }

    /// The error of whatever needs a memory node that is away.
    #[cold]
    pub fn refusal(self, node: NodeId) -> Error {
        let what = match self {
            Self::Lost => {
                "is lost: its process has ended, and what it held is gone; use what other nodes hold, or start a new pool"
            }
            _ => {
                "is missing: what it holds cannot be reached until it comes back; is its process up, and the way to it?"
            }
        };
        Error::new(ErrorKind::Unreachable, format!("{node} {what}"))
    }
}

/// A memory node in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryState {
    /// Which node in which life.
    pub member: Member,
    /// Whether it can be used.
    pub presence: Presence,
    /// The epoch since which that is so.
    pub since: u64,
    /// While it is away: the compute nodes that post nothing to it any more.
    pub acknowledged: Vec<Member>,
}

/// A planned move of homes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// What moves: numbers of table partitions.
    pub partitions: Vec<u16>,
    /// The new home; nobody in particular when it is `None`.
    pub to: Option<Member>,
    /// `Draining` or `Reassigning`.
    pub standing: Standing,
    /// The epoch in which it came there.
    pub since: u64,
    /// Who has acknowledged that.
    pub acknowledged: Vec<Member>,
    /// Who carries it out.
    pub claimant: Option<Member>,
}

/// A state of the membership.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// Its number.
    pub epoch: u64,
    /// The compute nodes that have joined, in the order of nodes and incarnations. A life that is gone is forgotten when a later one
    /// of its node is here.
    pub members: Vec<MemberState>,
    /// The memory nodes that have joined, in the order of nodes. In pools whose memory nodes hold no leases there is none.
    pub memory: Vec<MemoryState>,
    /// The planned move under way, if any.
    pub planned: Option<Move>,
    /// How many members have come to [`Standing::Gone`].
    pub deaths: u64,
}

impl State {
    /// The state of a member.
    pub fn of(&self, member: Member) -> Option<&MemberState> {
        self.members.iter().find(|m| m.member == member)
    }

    /// How far a member has come; `None` for a stranger. A life before one that is known was never begun or is forgotten: it is gone.
    pub fn standing(&self, member: Member) -> Option<Standing> {
        let later = |m: &MemberState| {
            m.member.node == member.node && m.member.incarnation > member.incarnation
        };
        match self.of(member) {
            Some(m) => Some(m.standing),
            None => self.members.iter().any(later).then_some(Standing::Gone),
        }
    }

    /// The latest life of a compute node that has joined.
    pub fn latest_incarnation(&self, node: NodeId) -> Option<Member> {
        self.members.iter().rev().map(|m| m.member).find(|m| m.node == node)
    }

    /// The life of a node whose number ends in these 16 bits, as a lock word says it. A number from which the latest life is further
    /// than half of all numbers away is that of a life which is not known yet.
    pub fn incarnation_of(&self, node: NodeId, incarnation: u16) -> Option<Member> {
        let latest = self.latest_incarnation(node)?;
        let behind = u32::from((latest.incarnation as u16).wrapping_sub(incarnation));
        let known = behind <= u32::from(u16::MAX / 2) && behind < latest.incarnation;
        known.then(|| Member { incarnation: latest.incarnation - behind, ..latest })
    }

    /// A memory node that has joined.
    pub fn memory_node(&self, node: NodeId) -> Option<&MemoryState> {
        self.memory.iter().find(|m| m.member.node == node)
    }

    /// Whether a memory node can be used. One that holds no lease can.
    pub fn presence(&self, node: NodeId) -> Presence {
        self.memory_node(node).map_or(Presence::Present, |m| m.presence)
    }

    /// The memory nodes to which nothing may be posted.
    pub fn away(&self) -> impl Iterator<Item = &MemoryState> {
        self.memory.iter().filter(|m| m.presence.is_away())
    }

    /// The latest life of every compute node whose access a memory node has to revoke.
    pub fn dead(&self) -> Vec<Member> {
        let mut out: Vec<Member> = Vec::new();
        for m in &self.members {
            let Member { node, incarnation } = m.member;
            let before = if m.standing == Standing::Living { incarnation - 1 } else { incarnation };
            out.retain(|o| o.node != node);
            if before > 0 {
                out.push(Member { node, incarnation: before });
            }
        }
        out
    }

    /// Whether a member holds a lease.
    pub fn is_living(&self, member: Member) -> bool {
        self.standing(member) == Some(Standing::Living)
    }

    /// The living compute nodes.
    pub fn living(&self) -> impl Iterator<Item = Member> {
        let compute = |m: &&MemberState| m.member.node.role() == Role::Compute;
        let living = |m: &&MemberState| m.standing == Standing::Living;
        self.members.iter().filter(living).filter(compute).map(|m| m.member)
    }

    /// Whether all living compute nodes are among those who have acknowledged.
    pub fn is_acknowledged(&self, by: &[Member]) -> bool {
        self.living().all(|m| by.contains(&m))
    }

    /// Whether no verb of a member that is being revoked executes any more: every living compute node and every memory node that is
    /// present has revoked its access, and nobody living posts to those that are away.
    pub fn is_revoked_everywhere(&self, m: &MemberState) -> bool {
        let done = |n: &MemoryState| match n.presence {
            Presence::Present => m.acknowledged.contains(&n.member),
            _ => self.is_acknowledged(&n.acknowledged),
        };
        self.is_acknowledged(&m.acknowledged) && self.memory.iter().all(done)
    }
}

/// A right to act until it ends or is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// How long from the moment at which it was asked for, by the holder's own clock, ns.
    pub for_ns: Nanos,
    /// The epoch in which it was granted.
    pub epoch: u64,
}

/// What the members report and ask for. All of it may be repeated, and may come late: what does not fit any more is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The sender has done what the standing of a member asks of it.
    Acknowledge(Member, Standing),
    /// Every memory node has revoked the access of a member that is revoking.
    Revoked(Member),
    /// The sender wants to find the homes of a member that is rehoming.
    Claim(Member),
    /// The claimant has given new homes to all of it.
    Reassigned(Member),
    /// Partitions shall move.
    Plan(Vec<u16>, Option<Member>),
    /// The sender has stopped using the partitions that are to move.
    AcknowledgeMove,
    /// The sender wants to carry the move out.
    ClaimMove,
    /// The claimant has carried it out.
    Moved,
    /// The sender leaves: it is the home of nothing any more. A memory node that leaves is lost.
    Leave,
    /// The sender posts nothing more to a memory node that is away.
    Avoided(Member),
    /// The sender, a memory node that is away, has revoked the access of all members that were dead in this epoch.
    Returned(u64),
}

/// An answer in the making.
pub type MembershipFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Keeps the log of states, and judges leases. Object-safe; called rarely.
///
/// `now` is the caller's reading of the fabric's clock.
pub trait Membership: Send + Sync {
    /// A node joins. A former incarnation of it that is living dies.
    ///
    /// # Errors
    /// `Fenced` for an incarnation that has died.
    fn join(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease>;
    /// Renews a lease.
    ///
    /// # Errors
    /// `Fenced` when it has ended.
    fn renew(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease>;
    /// The newest state, as far as news has reached this member.
    ///
    /// # Errors
    /// Those of the way to the membership.
    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<State>>;
    /// Reports or asks for something.
    ///
    /// # Errors
    /// `Fenced` when the sender is not living.
    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()>;
}
