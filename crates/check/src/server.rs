//! The membership as the nodes of a run reach it: kept on the first memory node, it stands still and is lost with that node, and its
//! clock may jump.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmtree_fabric::{
    Change, Error, ErrorKind, InProcess, Lease, LeaseParameters, Member, Membership,
    MembershipFuture, Nanos, Result, State,
};

/// How the server is.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    /// It answers nothing before this time, ns.
    still_until: Nanos,
    /// It never answers again.
    lost: bool,
    /// How far its clock is ahead, ns.
    ahead: Nanos,
}

/// The judge with the way to it.
pub(crate) struct Server {
    judge: Arc<InProcess>,
    condition: Mutex<Condition>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let judge = Arc::new(InProcess::new(LeaseParameters::default()));
        Self { judge, condition: Mutex::default() }
    }

    pub(crate) fn judge(&self) -> &Arc<InProcess> {
        &self.judge
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stands still until this time, ns.
    pub(crate) fn stand_still(&self, until: Nanos) {
        let mut c = self.condition();
        c.still_until = c.still_until.max(until);
    }

    /// It stands still no longer.
    pub(crate) fn go_on(&self) {
        self.condition().still_until = 0;
    }

    /// It is gone for good.
    pub(crate) fn lose(&self) {
        self.condition().lost = true;
    }

    /// Its clock jumps ahead.
    pub(crate) fn jump(&self, by: Nanos) {
        self.condition().ahead += by;
    }

    /// The membership's process judges, as it does all the time.
    pub(crate) fn tick(&self, now: Nanos) {
        if let Ok(now) = self.clock(now) {
            self.judge.tick(now);
        }
    }

    /// Its reading of the clock, when it answers.
    fn clock(&self, now: Nanos) -> Result<Nanos> {
        let c = *self.condition();
        if c.lost || now < c.still_until {
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

    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<State>> {
        Box::pin(async move { self.judge.state(me, self.clock(now)?).await })
    }

    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()> {
        Box::pin(async move { self.judge.propose(me, change, self.clock(now)?).await })
    }
}
