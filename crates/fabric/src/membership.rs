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

mod in_process;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addr::{NodeId, Role};
use crate::error::Result;
use crate::transport::Nanos;

pub use in_process::{InProcess, Terms};

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
    Rehoming,
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

/// A planned move of homes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// What moves: numbers of table partitions.
    pub partitions: Vec<u16>,
    /// The new home; nobody in particular when it is `None`.
    pub to: Option<Member>,
    /// `Draining` or `Rehoming`.
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
    /// Everybody who ever joined, in the order of nodes and incarnations.
    pub members: Vec<MemberState>,
    /// The planned move under way, if any.
    pub planned: Option<Move>,
}

impl State {
    /// The state of a member.
    pub fn of(&self, member: Member) -> Option<&MemberState> {
        self.members.iter().find(|m| m.member == member)
    }

    /// How far a member has come; `None` for a stranger.
    pub fn standing(&self, member: Member) -> Option<Standing> {
        self.of(member).map(|m| m.standing)
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
    Rehomed(Member),
    /// Partitions shall move.
    Plan(Vec<u16>, Option<Member>),
    /// The sender has stopped using the partitions that are to move.
    AcknowledgeMove,
    /// The sender wants to carry the move out.
    ClaimMove,
    /// The claimant has carried it out.
    Moved,
    /// The sender leaves: it is the home of nothing any more.
    Leave,
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
