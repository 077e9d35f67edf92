//! The verdicts of the membership on other nodes, as this node's membership agent has recorded
//! them: dead incarnations, and memory nodes that are away. Client threads check them before they
//! post, and again when they change.
//!
//! *A link to a dead incarnation ends at once.* Verbs in flight may still execute there, in memory
//! that no living node uses once all know of the death. Until then such a verb is like a late one:
//! the sender does not know that it took effect, posts nothing more there, and so releases no lock
//! at that node under which it was posted.
//!
//! *A memory node that is away gets no new verbs.* Its memory may be used again, so verbs in flight
//! end in the ordinary way.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::locked;
use crate::addr::NodeId;
use crate::error::{Error, Result};
use crate::membership::{Member, Presence};

#[derive(Default)]
pub(super) struct Verdicts {
    /// The latest dead incarnation of each node.
    over: Mutex<BTreeMap<NodeId, u32>>,
    away: Mutex<BTreeMap<NodeId, Presence>>,
    any_away: AtomicBool,
}

impl Verdicts {
    /// Records a dead incarnation; false when it was known.
    pub(super) fn end(&self, dead: Member) -> bool {
        let mut over = locked(&self.over);
        let latest = over.entry(dead.node).or_default();
        let is_news = *latest < dead.incarnation;
        *latest = (*latest).max(dead.incarnation);
        is_news
    }

    pub(super) fn set_presence(&self, node: NodeId, presence: Presence) {
        let mut away = locked(&self.away);
        match presence.is_away() {
            true => away.insert(node, presence),
            false => away.remove(&node),
        };
        self.any_away.store(!away.is_empty(), Ordering::SeqCst);
    }

    /// Fails when a memory node is away.
    pub(super) fn check_presence(&self, node: NodeId) -> Result<()> {
        if !self.any_away.load(Ordering::SeqCst) {
            return Ok(());
        }
        locked(&self.away).get(&node).map_or(Ok(()), |presence| Err(presence.refusal(node)))
    }

    /// Fails for a dead incarnation.
    pub(super) fn check_incarnation(&self, of: Member) -> Result<()> {
        match locked(&self.over).get(&of.node).is_some_and(|latest| *latest >= of.incarnation) {
            false => Ok(()),
            true => Err(Error::unreachable(format!(
                "{of} has lost its membership: others take over what it had; try again"
            ))),
        }
    }
}
