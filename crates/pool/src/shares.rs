//! Partitions that no living compute node owns: a node that joins, or stays when another goes,
//! takes them.
//!
//! A partition ends up on a memory node when no compute node had room for it, and keeps an owner
//! that is gone when that one was the last to leave. Both are planned moves like any other:
//! bounded, one at a time, in the background. Living compute nodes keep what they own, so a process
//! that comes and goes costs the others nothing.
//!
//! The agent of a node searches once for every epoch of the membership
//! ([`Partitions::request_share`]), when no death or move is under way: it READs the directory,
//! collects up to 64 partitions without a living compute owner, and proposes their move. Without
//! such partitions a node that owns none proposes up to 8 that were never opened and have lost
//! their first owner. What was proposed once with the same living members is not proposed again,
//! since they had no room for it.
//!
//! A newcomer counts as served (`has_share`) when a search has found nothing to propose. Until then
//! its steps come 8 times faster, because the joining process waits for that: a table made earlier
//! would go to a memory node, and stay there.
//!
//! Nothing here is remembered across a crash: proposals live in the membership, and the next agent
//! searches anew.

use std::cell::Cell;

use dmtree_fabric::{Endpoint, Member, MembershipState, Result, Role};

use crate::ids::COMPUTE_PARTITIONS;
use crate::owners::ask_flush;
use crate::reassign::Partitions;
use crate::reassign::{DirectoryEntry, UNOPENED_SHARE, is_over};
use crate::wire::{LONGEST_CALL_NS, locked};

/// How many times faster the steps of an agent come that has just joined.
const STEP_SPEEDUP: u64 = 8;
/// Partitions of one move.
const AT_ONCE: usize = 64;
/// The state of the search of one agent.
#[derive(Debug, Default)]
pub(crate) struct ShareSearch {
    /// The membership epoch at which there was nothing to propose.
    settled_at: Option<u64>,
    /// The last proposal, and the living members then: what they had no room for is not proposed
    /// again.
    asked: (Vec<u16>, Vec<Member>),
}

impl Partitions<'_> {
    /// As `PoolMembership::run_membership_paced`, and searches for tables to own. Until all are
    /// owned for the first time its steps come faster: a joining process waits for that.
    ///
    /// # Errors
    /// `Revoked`.
    pub(crate) async fn keep_with_share(
        self,
        ep: &Endpoint,
        pause_ns: impl Fn() -> u64,
        until: impl Fn() -> bool,
    ) -> Result<()> {
        let mut search = ShareSearch::default();
        while !until() {
            let stepped = Cell::new(false);
            let has_share = || locked(&self.0.agent_state).has_share;
            let pause = || pause_ns() / if has_share() { 1 } else { STEP_SPEEDUP };
            self.0.membership().run_membership_paced(ep, pause, || stepped.replace(true)).await?;
            // The next step repeats what fails now.
            let _ = self.0.membership().know_memory(ep).await;
            if self.request_share(ep, &mut search).await.unwrap_or(false) {
                locked(&self.0.agent_state).has_share = true;
            }
        }
        Ok(())
    }

    /// Searches for partitions without a living compute node as their owner, once for every epoch
    /// of the membership, and proposes that they move. True when there is nothing to propose.
    pub(crate) async fn request_share(
        self,
        ep: &Endpoint,
        search: &mut ShareSearch,
    ) -> Result<bool> {
        let state = self.0.view.state();
        if search.settled_at == Some(state.epoch) {
            return Ok(true);
        }
        if !self.0.membership().has_settled_membership() {
            return Ok(false);
        }
        let seen = self.read_directory(ep, true).await?;
        locked(&self.0.agent_state).serves = self.serves_in(&seen);
        let (wanted, to) = self.partitions_to_move(&state, &seen);
        let now = (wanted, state.living().collect());
        if now.0.is_empty() || now == search.asked {
            search.settled_at = Some(state.epoch);
            return Ok(true);
        }
        self.0.membership().plan(ep, now.0.clone(), to).await?;
        search.asked = now;
        Ok(false)
    }

    /// Whether this node owns partitions. In its first incarnation it owns its share without a
    /// record.
    fn serves_in(self, seen: &[DirectoryEntry]) -> bool {
        self.0.view.me.incarnation <= 1 || seen.iter().any(|s| s.partition.owner == self.0.view.me)
    }

    /// Whether another living compute node answers: one that has died counts as living until its
    /// lease ends.
    pub(crate) async fn has_answering_peer(self, ep: &Endpoint) -> bool {
        for peer in self.0.membership().living().into_iter().filter(|m| *m != self.0.view.me) {
            if ask_flush(ep, LONGEST_CALL_NS, peer.node).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Partitions to move, and where to if it matters.
    fn partitions_to_move(
        self,
        state: &MembershipState,
        seen: &[DirectoryEntry],
    ) -> (Vec<u16>, Option<Member>) {
        let is_left = |owner: Member| match owner.node.role() {
            Role::Memory | Role::Journal => true,
            Role::Compute => is_over(state, owner),
        };
        let compute = |s: &&DirectoryEntry| s.partition.number < COMPUTE_PARTITIONS && !s.torn;
        let left = seen.iter().filter(compute).filter(|s| is_left(s.partition.owner));
        let left: Vec<u16> = left.map(|s| s.partition.number).take(AT_ONCE).collect();
        if !left.is_empty() {
            return (left, None);
        }
        if self.serves_in(seen) {
            return (Vec::new(), None);
        }
        let opened: Vec<u16> = seen.iter().map(|s| s.partition.number).collect();
        (self.unowned_partitions(&opened).take(UNOPENED_SHARE).collect(), Some(self.0.view.me))
    }
}
