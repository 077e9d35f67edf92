//! What this node's keeper has said of other nodes, as the membership told it: which lives are over, and which memory nodes are away.
//! Client threads look here before they post, and again when there is news.
//!
//! *A link to a life that is over ends at once.* What was in flight may still execute there, in memory that nobody living uses once
//! all have heard of the death. Until then it is like a verb that is late: the sender has not been told that it took effect, posts
//! nothing more there, and so releases no lock at that node under which it was posted.
//!
//! *A memory node that is away gets nothing new.* Its memory may be used again, so what is in flight ends as it would otherwise.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::locked;
use crate::addr::NodeId;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::{Member, Presence};

#[derive(Default)]
pub(super) struct Verdicts {
    /// Of each node, the latest life that is over.
    over: Mutex<BTreeMap<NodeId, u32>>,
    away: Mutex<BTreeMap<NodeId, Presence>>,
    any_away: AtomicBool,
}

impl Verdicts {
    /// A life is over; false when that was known.
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

    /// Fails when a life is over.
    pub(super) fn check_incarnation(&self, of: Member) -> Result<()> {
        match locked(&self.over).get(&of.node).is_some_and(|latest| *latest >= of.incarnation) {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Unreachable,
                format!("{of} has lost its membership: others take over what it had; try again"),
            )),
        }
    }
}
