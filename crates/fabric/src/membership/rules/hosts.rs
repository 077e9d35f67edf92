//! Memory nodes and journal nodes in the rules: their joining and return, and the gaps of the
//! journal.

use super::{
    Change, Lease, Member, MemberPhase, MemberState, MembershipRules, MembershipState, MemoryState,
    News, NodeId, Presence, Role, revoked,
};
use crate::error::{Error, Result};

impl MembershipRules {
    /// A memory node joins with its first incarnation only: the memory of a former one is lost. In
    /// a pool in use it is new until all living compute nodes know it. A journal node comes back in
    /// a later incarnation, with its directory, when the former one is away: no call of a living
    /// node can be in flight to that any more.
    pub(super) fn join_host(&mut self, me: Member) -> Result<Lease> {
        let latest = self.latest();
        let former = latest.memory_node(me.node);
        let comes_back = former.is_some_and(|m| {
            me.node.role() == Role::Journal
                && m.member.incarnation < me.incarnation
                && m.presence.is_away()
        });
        match former {
            Some(m) if m.member == me => {}
            Some(_) if !comes_back => return Err(revoked(me)),
            former => {
                if let Some(former) = former {
                    self.leases.remove(&former.member);
                    self.asked.remove(&former.member);
                }
                // It has to revoke the access of all members that have died by now before it is
                // used.
                let presence = match self.last_death {
                    0 => Presence::Present,
                    _ => Presence::Missing,
                };
                let gap = self.gaps.contains(&me.node);
                self.change(|s, since| {
                    let is_new = me.node.role() == Role::Memory && s.living().next().is_some();
                    let acknowledged = match is_new && !presence.is_away() {
                        true => Vec::new(),
                        false => s.living().collect(),
                    };
                    s.memory.retain(|m| m.member.node != me.node);
                    let (member, refill) = (me, None);
                    s.memory.push(MemoryState {
                        member,
                        presence,
                        since,
                        acknowledged,
                        gap,
                        refill,
                        is_new,
                    });
                    s.memory.sort_by_key(|m| m.member);
                });
            }
        }
        Ok(self.lease(me))
    }

    /// A memory node has ended before it was ready.
    pub(in super::super) fn forget_memory(&mut self, member: Member) {
        self.leases.remove(&member);
        if self.latest().memory.iter().any(|m| m.member == member) {
            self.change(|s, _| s.memory.retain(|m| m.member != member));
        }
    }

    pub(super) fn of_host(&mut self, me: Member, change: Change) -> Result<()> {
        let latest = self.latest();
        match change {
            Change::Acknowledge(m, MemberPhase::Revoking) => {
                self.acknowledge(&latest, me, m, MemberPhase::Revoking);
            }
            Change::Returned(epoch) => {
                if latest.presence(me.node).is_away() {
                    if epoch < self.last_death {
                        return Err(Error::busy(format!(
                            "{me} has not heard of the last death: ask for the state again"
                        )));
                    }
                    self.lease(me);
                    // Its return states that it has revoked these, too.
                    self.change(|s, _| {
                        let revoking = |m: &&mut MemberState| m.phase == MemberPhase::Revoking;
                        for m in s.members.iter_mut().filter(revoking) {
                            m.acknowledged.retain(|by| *by != me);
                            m.acknowledged.push(me);
                        }
                    });
                    self.set_presence(me, Presence::Present, "");
                }
            }
            Change::Leave => {
                self.leases.remove(&me);
                self.set_presence(me, Presence::Lost, "its process ends");
            }
            other => {
                return Err(Error::invalid(format!("{me} is a host: {other:?} is not its")));
            }
        }
        Ok(())
    }

    /// A compute node knows a new memory node.
    pub(super) fn knows(&mut self, latest: &MembershipState, me: Member, of: Member) {
        let open =
            |o: &&MemoryState| o.is_new && !o.presence.is_away() && !o.acknowledged.contains(&me);
        if latest.memory_node(of.node).filter(open).is_some_and(|o| o.member == of) {
            self.edit_memory(of.node, |m, _| m.acknowledged.push(me));
        }
    }

    /// Opens the new memory nodes that all living compute nodes know.
    pub(super) fn open_known(&mut self) {
        let latest = self.latest();
        let all_know = |m: &&MemoryState| {
            m.is_new && !m.presence.is_away() && latest.is_acknowledged(&m.acknowledged)
        };
        for m in latest.memory.iter().filter(all_know) {
            self.edit_memory(m.member.node, |m, _| m.is_new = false);
            self.publish(News::Opened(m.member));
        }
    }

    /// A part of the journal lacks writes.
    pub(in super::super) fn lacks(&mut self, node: NodeId) {
        self.gaps.insert(node);
        if self.latest().memory_node(node).is_some_and(|m| !m.gap) {
            self.edit_memory(node, |m, _| m.gap = true);
        }
    }

    pub(super) fn refill(
        &mut self,
        latest: &MembershipState,
        me: Member,
        of: Member,
    ) -> Result<()> {
        let found = latest.memory_node(of.node).filter(|m| m.member == of);
        let Some(m) = found.filter(|m| !m.presence.is_away() && m.gap) else {
            return Err(Error::invalid(format!("{of} is away, or nothing is missing in its part")));
        };
        match m.refill {
            Some(by) if by != me && latest.is_living(by) => {
                Err(Error::busy(format!("{by} refills {of}")))
            }
            _ => {
                self.edit_memory(of.node, |m, epoch| {
                    (m.refill, m.since, m.acknowledged) = (Some(me), epoch, Vec::new());
                });
                Ok(())
            }
        }
    }

    pub(super) fn filled(
        &mut self,
        latest: &MembershipState,
        me: Member,
        of: Member,
    ) -> Result<()> {
        let is_whole = |m: &&MemoryState| {
            m.member == of && m.refill == Some(me) && latest.is_acknowledged(&m.acknowledged)
        };
        if latest.memory_node(of.node).filter(is_whole).is_none() {
            return Err(Error::busy(format!("{of} was away meanwhile: refill it again")));
        }
        self.gaps.remove(&of.node);
        self.edit_memory(of.node, |m, _| (m.gap, m.refill) = (false, None));
        Ok(())
    }

    /// The process of a member has ended, as its host says: a compute node is dead, and a memory
    /// node that is missing is lost for good.
    pub(in super::super) fn lose(&mut self, member: Member) {
        let latest = self.latest();
        if latest.is_living(member) {
            return self.die(member, Some("its process has ended"));
        }
        if latest.memory_node(member.node).is_some_and(|m| m.presence == Presence::Missing) {
            self.set_presence(member, Presence::Lost, "no process listens at its address any more");
        }
    }
}
