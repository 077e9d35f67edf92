//! Whether a node still belongs to its pool.
//!
//! A node counts on its lease by its own clock. When that has ended the node is *lapsed*: the
//! membership server has paused, cannot be reached, or is about to declare the node dead. When the
//! agent learns that the node is not living any more, or that another pool is in the pool's place,
//! the membership is *lost*: no incarnation is ever living again after that.
//!
//! The order of a loss: the lease is ended (so no client writes under a lock any more), the reason
//! is stored, and then the callbacks run, each once and outside the lock. A callback that is
//! registered later runs at once. An error of a step alone is no loss: only the membership itself
//! says that a node is not living.

use std::sync::Mutex;

use dmtree_fabric::{Endpoint, Error, Result};

use crate::cluster::Cluster;
use crate::membership_agent::PoolMembership;
use crate::wire::locked;

/// The standing of a node in its pool, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipStatus {
    /// It holds a lease.
    Member,
    /// Its lease has ended by its own clock, and may be renewed.
    Lapsed,
    /// Its membership is lost for good.
    Lost,
}

/// Called when the membership is lost.
type OnLoss = Box<dyn FnOnce() + Send>;

/// The findings of the agent about the membership of its own node.
#[derive(Default)]
pub(crate) struct OwnStanding(Mutex<Known>);

#[derive(Default)]
struct Known {
    is_lost: bool,
    trouble: Option<Error>,
    on_loss: Vec<OnLoss>,
}

impl std::fmt::Debug for OwnStanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = locked(&self.0);
        write!(f, "OwnStanding(lost: {}, {:?})", known.is_lost, known.trouble)
    }
}

impl OwnStanding {
    /// Stores the result of a step of the agent.
    pub(crate) fn note(&self, step: &Result<()>) {
        locked(&self.0).trouble = step.as_ref().err().cloned();
    }

    #[cfg(feature = "tcp")]
    fn lose(&self, why: Error) {
        let callbacks = {
            let mut known = locked(&self.0);
            (known.is_lost, known.trouble) = (true, Some(why));
            std::mem::take(&mut known.on_loss)
        };
        callbacks.into_iter().for_each(|callback| callback());
    }

    fn when_lost(&self, callback: OnLoss) {
        let mut known = locked(&self.0);
        if !known.is_lost {
            return known.on_loss.push(callback);
        }
        drop(known);
        callback();
    }
}

impl PoolMembership<'_> {
    /// The standing of this node in its pool.
    pub fn membership_status(self, ep: &Endpoint) -> MembershipStatus {
        if locked(&self.0.view.standing.0).is_lost {
            MembershipStatus::Lost
        } else if self.0.view.holds_lease(ep) {
            MembershipStatus::Member
        } else {
            MembershipStatus::Lapsed
        }
    }

    /// The error of the agent's last step, if it ended in one.
    pub fn trouble(self) -> Option<Error> {
        locked(&self.0.view.standing.0).trouble.clone()
    }

    /// Whether an error of a step means that the membership is lost for good: asks the membership.
    pub(crate) async fn is_lost_by(self, ep: &Endpoint, step: &Result<()>) -> bool {
        use dmtree_fabric::ErrorKind::{Incompatible, Revoked};
        let me = self.0.view.me;
        match step {
            Ok(()) => !self.0.view.state().is_living(me),
            Err(e) if matches!(e.kind(), Revoked | Incompatible) => {
                match self.0.membership.state(me, ep.now()).await {
                    Ok(state) => !state.is_living(me),
                    // Another pool answers where this one was.
                    Err(e) => e.kind() == Incompatible,
                }
            }
            Err(_) => false,
        }
    }

    /// The membership is lost for good.
    #[cfg(feature = "tcp")]
    pub(crate) fn lose(self, why: Error) {
        self.0.view.end_lease();
        self.0.view.standing.lose(why);
    }
}

impl Cluster {
    /// Calls `callback`, from any thread, when a compute node of this process has lost its
    /// membership for good; at once if it has.
    ///
    /// # Errors
    /// `NotFound` when there is no compute node.
    pub fn when_lost(&self, callback: impl Fn() + Clone + Send + 'static) -> Result<()> {
        for i in 0..self.compute_nodes() {
            self.compute_node(i)?.view.standing.when_lost(Box::new(callback.clone()));
        }
        Ok(())
    }
}
