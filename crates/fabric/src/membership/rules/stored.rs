//! Rules that several processes apply to one stored state, each by its own clock.
//!
//! What is stored has no time in it, because clocks of processes are not comparable. Each process
//! counts acknowledgements that are owed from when it saw them asked for, and leases are judged
//! elsewhere: it is told which members hold one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Member, MemberPhase, MembershipRules, MembershipState, News, NodeId};
use crate::transport::Nanos;

/// What outlives the processes that apply the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRules {
    pub(crate) state: MembershipState,
    last_death: u64,
    gaps: BTreeSet<NodeId>,
}

impl MembershipRules {
    /// What is to be stored.
    pub(crate) fn stored(&self) -> StoredRules {
        StoredRules {
            state: (*self.latest()).clone(),
            last_death: self.last_death,
            gaps: self.gaps.clone(),
        }
    }

    /// Goes on from what another process has stored. `holders` are the members that hold a lease;
    /// all members that have joined and are not among them are found dead by the next judgement.
    pub(crate) fn adopt(&mut self, stored: &StoredRules, holders: &BTreeSet<Member>, now: Nanos) {
        self.now = self.now.max(now);
        let (former, state) = (self.latest(), &stored.state);
        if former.epoch != state.epoch {
            self.see(&former, state);
            self.log = vec![(self.now, Arc::new(state.clone()))];
        }
        self.kept_by = None;
        self.last_death = stored.last_death;
        self.gaps.clone_from(&stored.gaps);
        self.leases = holders.iter().map(|m| (*m, Nanos::MAX)).collect();
    }

    /// What is asked in a state, and was not in the former one, is asked for now.
    fn see(&mut self, former: &MembershipState, state: &MembershipState) {
        let asked = |s: &MembershipState| -> BTreeMap<Member, u64> {
            let members = s.members.iter().map(|m| (m.member, m.since));
            members.chain(s.memory.iter().map(|m| (m.member, m.since))).collect()
        };
        let (before, after) = (asked(former), asked(state));
        self.asked.retain(|m, _| after.contains_key(m));
        for (member, since) in after {
            if before.get(&member) != Some(&since) {
                self.asked.insert(member, self.now);
            }
        }
        let living: BTreeSet<Member> = state.living().collect();
        self.joined.retain(|m, _| living.contains(m));
        for member in living {
            self.joined.entry(member).or_insert(self.now);
        }
        let moves = |s: &MembershipState| s.planned.as_ref().map(|p| p.since);
        if moves(former) != moves(state) {
            self.move_asked = self.now;
        }
    }

    /// Takes the news.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        self.news.drain(..).collect()
    }
}

/// The members of a state that have to hold a lease.
pub(crate) fn lessees(state: &MembershipState) -> impl Iterator<Item = Member> {
    let living = state.members.iter().filter(|m| m.phase == MemberPhase::Living);
    let hosts = state.memory.iter().filter(|m| !m.presence.is_away());
    living.map(|m| m.member).chain(hosts.map(|m| m.member))
}
