//! The membership as the other processes see it: the first memory node keeps it. Leases are judged
//! by its clock, not the caller's.

use std::sync::{Arc, Mutex};

use super::NodeShared;
use super::admin::unexpected;
use super::wire::{Answer, Ask};
use crate::error::Result;
use crate::membership::{Change, Lease, Member, Membership, MembershipFuture, MembershipState};
use crate::sync::locked;
use crate::transport::Nanos;

pub(super) struct Remote {
    pub(super) shared: Arc<NodeShared>,
    known: Mutex<Arc<MembershipState>>,
}

impl Remote {
    pub(super) fn new(shared: Arc<NodeShared>) -> Self {
        Self { shared, known: Mutex::default() }
    }

    async fn ask_state(&self, me: Member) -> Result<Arc<MembershipState>> {
        let known = locked(&self.known).clone();
        let newer =
            match self.shared.ask_soon(&Ask::MembershipState { me, known: known.epoch }).await? {
                Answer::MembershipState(None) => return Ok(known),
                Answer::MembershipState(Some(state)) => Arc::new(state),
                other => return Err(unexpected(&other)),
            };
        // Links need the addresses of all its members.
        let strange = |m: Member| self.shared.entry(m.node).is_none_or(|p| p.member < m);
        if newer.living().chain(newer.memory.iter().map(|m| m.member)).any(strange) {
            self.shared.take_node_directory(self.shared.ask_soon(&Ask::NodeDirectory).await?)?;
        }
        *locked(&self.known) = newer.clone();
        Ok(newer)
    }

    async fn ask_lease(&self, ask: &Ask) -> Result<Lease> {
        match self.shared.ask_soon(ask).await? {
            Answer::Lease(lease) => Ok(lease),
            other => Err(unexpected(&other)),
        }
    }
}

impl Membership for Remote {
    fn join(&self, me: Member, _now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.ask_lease(&Ask::Join(me)).await })
    }

    fn renew(&self, me: Member, _now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move { self.ask_lease(&Ask::Renew(me)).await })
    }

    fn state(&self, me: Member, _now: Nanos) -> MembershipFuture<'_, Arc<MembershipState>> {
        Box::pin(async move { self.ask_state(me).await })
    }

    fn propose(&self, me: Member, change: Change, _now: Nanos) -> MembershipFuture<'_, ()> {
        Box::pin(async move {
            match self.shared.ask_soon(&Ask::Propose(me, change)).await? {
                Answer::Done => Ok(()),
                other => Err(unexpected(&other)),
            }
        })
    }
}
