//! The membership server as the nodes of a run reach it: it runs on the first memory node, stalls
//! and is lost with that node, and its clock may jump.

use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Change, Error, ErrorKind, InProcess, Lease, LeaseParameters, Member, Membership,
    MembershipFuture, MembershipState, Nanos, Result,
};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerCondition {
    /// It answers no request before this time, ns.
    pub stalled_until: Nanos,
    /// It never answers again.
    pub lost: bool,
    /// The lead of its clock, ns.
    pub ahead: Nanos,
}

/// The membership judge behind a path that stalls and fails.
pub(crate) struct Server {
    judge: Arc<InProcess>,
    condition: Mutex<ServerCondition>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let judge = Arc::new(InProcess::new(LeaseParameters::default()));
        Self { judge, condition: Mutex::default() }
    }

    pub(crate) fn judge(&self) -> &Arc<InProcess> {
        &self.judge
    }

    pub(crate) fn condition(&self) -> MutexGuard<'_, ServerCondition> {
        locked(&self.condition)
    }

    /// The periodic check of leases by the membership process.
    pub(crate) fn tick(&self, now: Nanos) {
        if let Ok(now) = self.clock(now) {
            self.judge.tick(now);
        }
    }

    /// Its reading of the clock, when it answers.
    fn clock(&self, now: Nanos) -> Result<Nanos> {
        let c = *self.condition();
        if c.lost || now < c.stalled_until {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "mn0 does not answer: the membership is kept there",
            ));
        }
        Ok(now + c.ahead)
    }
}

impl Membership for Server {
    fn join(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.judge.join(me, self.clock(now)?).await })
    }

    fn renew(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.judge.renew(me, self.clock(now)?).await })
    }

    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<MembershipState>> {
        Box::pin(async move { self.judge.state(me, self.clock(now)?).await })
    }

    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()> {
        Box::pin(async move { self.judge.propose(me, change, self.clock(now)?).await })
    }
}
