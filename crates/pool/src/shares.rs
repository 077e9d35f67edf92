//! Partitions that nobody living serves from compute memory: a node that joins, or stays when
//! another goes, takes them.
//!
//! A partition ends up on a memory node when no compute node had room for it, and keeps a home that
//! is gone when that one was the last to leave. Both are planned moves like any other: bounded, one
//! at a time, in the background. Living compute nodes keep what they have, so a process that comes
//! and goes costs the others nothing.

use std::cell::Cell;

use dmtree_fabric::{Endpoint, Member, Result, Role, Standing, State};

use crate::ids::COMPUTE_PARTITIONS;
use crate::node::PoolNode;
use crate::owners::{ask_settle, first_owner};
use crate::reassign::Seen;
use crate::wire::{LONGEST_CALL_NS, locked};

/// How many times faster the steps of a keeper that has just joined come.
const FASTER: u64 = 8;
/// Partitions of one move.
const AT_ONCE: usize = 64;
/// Partitions that nobody has opened and whose first home is gone: a node that serves none takes so
/// many.
pub(crate) const UNOPENED_SHARE: usize = 8;

/// What a keeper remembers of its looks for such partitions.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The epoch at which there was nothing to ask for.
    settled_at: Option<u64>,
    /// What was asked for last, and who lived then: what they had no room for is not asked for
    /// again.
    asked: (Vec<u16>, Vec<Member>),
}

/// Whether a compute node's life is over and its death has come to its end, so that nobody else
/// will give its partitions a home.
pub(crate) fn is_over(state: &State, owner: Member) -> bool {
    owner.node.role() == Role::Compute && state.standing(owner) == Some(Standing::Gone)
}

impl PoolNode {
    /// As [`PoolNode::keep_at`], and looks for tables to serve. Until it has found all served for
    /// the first time its steps come faster: who has just joined waits for that.
    ///
    /// # Errors
    /// `Fenced`.
    pub(crate) async fn keep_with_share(
        &self,
        ep: &Endpoint,
        pause_ns: impl Fn() -> u64,
        until: impl Fn() -> bool,
    ) -> Result<()> {
        let mut looks = Looks::default();
        while !until() {
            let stepped = Cell::new(false);
            let pause = || pause_ns() / if self.has_share() { 1 } else { FASTER };
            self.keep_at(ep, pause, || stepped.replace(true)).await?;
            // What fails now is asked for again by the next step.
            if self.look_for_share(ep, &mut looks).await.unwrap_or(false) {
                locked(&self.keeping).has_share = true;
            }
        }
        Ok(())
    }

    /// Whether every table has had a home since this node joined: a new table need not go to a
    /// memory node.
    pub(crate) fn has_share(&self) -> bool {
        locked(&self.keeping).has_share
    }

    /// Looks for partitions without a living compute node as their home, once for every epoch of
    /// the membership, and asks that they move. True when there is nothing to ask for.
    pub(crate) async fn look_for_share(&self, ep: &Endpoint, looks: &mut Looks) -> Result<bool> {
        let state = self.view.state();
        if looks.settled_at == Some(state.epoch) {
            return Ok(true);
        }
        if !self.is_settled() {
            return Ok(false);
        }
        let seen = self.read_directory(ep, true).await?;
        locked(&self.keeping).serves = self.serves_in(&seen);
        let (wanted, to) = self.left_behind(&state, &seen);
        let now = (wanted, state.living().collect());
        if now.0.is_empty() || now == looks.asked {
            looks.settled_at = Some(state.epoch);
            return Ok(true);
        }
        self.plan(ep, now.0.clone(), to).await?;
        looks.asked = now;
        Ok(false)
    }

    /// Whether this node is the home of partitions. In its first life it is that of its share without
    /// a record.
    fn serves_in(&self, seen: &[Seen]) -> bool {
        self.view.me.incarnation <= 1 || seen.iter().any(|s| s.partition.owner == self.view.me)
    }

    /// The same as this node's keeper has found it.
    pub(crate) fn serves_tables(&self) -> bool {
        locked(&self.keeping).serves
    }

    /// Whether another living compute node answers: one that has died lives on until its lease ends.
    pub(crate) async fn has_answering_peer(&self, ep: &Endpoint) -> bool {
        for peer in self.living().into_iter().filter(|m| *m != self.view.me) {
            if ask_settle(ep, LONGEST_CALL_NS, peer.node).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Partitions to move, and where to if it matters.
    fn left_behind(&self, state: &State, seen: &[Seen]) -> (Vec<u16>, Option<Member>) {
        let is_left = |owner: Member| match owner.node.role() {
            Role::Memory => true,
            Role::Compute => is_over(state, owner),
        };
        let compute = |s: &&Seen| s.partition.number < COMPUTE_PARTITIONS && !s.torn;
        let left = seen.iter().filter(compute).filter(|s| is_left(s.partition.owner));
        let left: Vec<u16> = left.map(|s| s.partition.number).take(AT_ONCE).collect();
        if !left.is_empty() {
            return (left, None);
        }
        if self.serves_in(seen) {
            return (Vec::new(), None);
        }
        let opened: Vec<u16> = seen.iter().map(|s| s.partition.number).collect();
        (self.abandoned_locks(&opened).take(UNOPENED_SHARE).collect(), Some(self.view.me))
    }

    /// Partitions that were never opened and whose first home is not its home any more.
    pub(crate) fn abandoned_locks(&self, opened: &[u16]) -> impl Iterator<Item = u16> {
        let (c, m) = (self.shape.compute_nodes, self.shape.memory.len() as u16);
        let state = self.view.state();
        let gone = move |p: &u16| {
            let first = Member { node: first_owner(*p, c, m), incarnation: 1 };
            state.standing(first).is_some_and(|s| s == Standing::Gone)
        };
        (0..COMPUTE_PARTITIONS).filter(|p| !opened.contains(p)).filter(gone)
    }
}
