//! News about who belongs to the cluster.

use crate::addr::NodeId;

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
