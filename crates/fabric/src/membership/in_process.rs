//! Membership inside one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Change, Lease, Member, MemberState, Membership, MembershipFuture, Move, Standing, State,
};
use crate::addr::{NodeId, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::Nanos;

/// How long members may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A lease that is not renewed ends after this long, ns.
    pub lease_ns: Nanos,
    /// What an epoch asks of a member must be acknowledged within this time, ns.
    pub acknowledge_ns: Nanos,
    /// Clocks of members run fast or slow by one in this many at most: a holder counts on so much less of its lease.
    pub drift_one_in: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Self { lease_ns: 1_000_000_000, acknowledge_ns: 10_000_000_000, drift_one_in: 16 }
    }
}

struct Book {
    terms: Terms,
    /// The latest reading of the clock that any caller has brought: this membership has no clock of its own.
    now: Nanos,
    /// States and when each began, oldest first.
    log: Vec<(Nanos, Arc<State>)>,
    leases: BTreeMap<Member, Nanos>,
    /// When the present standing of somebody, or the move, began: acknowledgements are due from then on.
    asked: BTreeMap<Member, Nanos>,
    move_asked: Nanos,
    /// For tests: how late news reaches a node, ns.
    delays: BTreeMap<NodeId, Nanos>,
}

/// Membership for nodes of one process. Leases end only when somebody calls: the living do, all the time.
pub struct InProcess(Mutex<Book>);

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InProcess({:?})", self.latest())
    }
}

impl InProcess {
    /// A membership without members.
    pub fn new(terms: Terms) -> Self {
        Self(Mutex::new(Book {
            terms,
            now: 0,
            log: vec![(0, Arc::new(State::default()))],
            leases: BTreeMap::new(),
            asked: BTreeMap::new(),
            move_asked: 0,
            delays: BTreeMap::new(),
        }))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest state.
    pub fn latest(&self) -> Arc<State> {
        self.book().latest()
    }

    /// A test knob: news reaches a node so much later, ns.
    pub fn delay_news(&self, node: NodeId, ns: Nanos) {
        self.book().delays.insert(node, ns);
    }

    /// A test knob: whatever the living owe is due as if it had been asked for now, because nobody could do anything for a while.
    pub fn excuse(&self, now: Nanos) {
        let mut book = self.book();
        book.now = book.now.max(now);
        let (now, until) = (book.now, book.now + book.terms.lease_ns);
        for member in book.latest().living() {
            book.leases.insert(member, until);
        }
        book.asked.values_mut().for_each(|at| *at = now);
        book.move_asked = now;
    }

    /// Other terms from now on; leases that were granted stay as they are.
    pub fn set_terms(&self, terms: Terms) {
        self.book().terms = terms;
    }
}

impl Book {
    fn latest(&self) -> Arc<State> {
        self.log.last().expect("never empty").1.clone()
    }

    /// The next state.
    fn change(&mut self, f: impl FnOnce(&mut State, u64)) {
        let mut next = State::clone(&self.latest());
        next.epoch += 1;
        let epoch = next.epoch;
        f(&mut next, epoch);
        self.log.push((self.now, Arc::new(next)));
        // News that nobody can be waiting for any more.
        let longest = self.delays.values().max().copied().unwrap_or(0);
        let old = self.log.iter().take_while(|(at, _)| at + longest < self.now).count();
        self.log.drain(..old.saturating_sub(1));
    }

    fn enter(&mut self, member: Member, standing: Standing) {
        self.asked.insert(member, self.now);
        self.change(|s, epoch| {
            if let Some(m) = s.members.iter_mut().find(|m| m.member == member) {
                let (acknowledged, claimant) = (Vec::new(), None);
                *m = MemberState { member, standing, since: epoch, acknowledged, claimant };
            }
        });
        self.settle();
    }

    fn edit(&mut self, member: Member, f: impl FnOnce(&mut MemberState)) {
        self.change(|s, _| {
            if let Some(m) = s.members.iter_mut().find(|m| m.member == member) {
                f(m);
            }
        });
    }

    /// Judges leases and acknowledgements.
    fn judge(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        let latest = self.latest();
        for member in latest.living() {
            let over = self.leases.get(&member).is_none_or(|until| *until <= self.now);
            if over || self.is_late(&latest, member) {
                self.enter(member, Standing::Revoking);
            }
        }
    }

    /// Whether a living member owes an acknowledgement for too long.
    fn is_late(&self, s: &State, member: Member) -> bool {
        let patience = self.terms.acknowledge_ns;
        let owes = |m: &MemberState| {
            matches!(m.standing, Standing::Revoking | Standing::Draining)
                && !m.acknowledged.contains(&member)
                && self.asked.get(&m.member).is_some_and(|at| at + patience <= self.now)
        };
        let owes_move = s.planned.as_ref().is_some_and(|p| {
            p.standing == Standing::Draining
                && !p.acknowledged.contains(&member)
                && self.move_asked + patience <= self.now
        });
        owes_move || s.members.iter().any(owes)
    }

    /// What all living have acknowledged goes on. (`Revoking` waits for the memory nodes, too.)
    fn settle(&mut self) {
        let latest = self.latest();
        let drained = |m: &&MemberState| {
            m.standing == Standing::Draining && latest.is_acknowledged(&m.acknowledged)
        };
        if let Some(m) = latest.members.iter().find(drained) {
            self.enter(m.member, Standing::Rehoming);
            return;
        }
        let ready =
            |p: &&Move| p.standing == Standing::Draining && latest.is_acknowledged(&p.acknowledged);
        if latest.planned.as_ref().filter(ready).is_some() {
            self.change(|s, epoch| {
                if let Some(p) = &mut s.planned {
                    (p.standing, p.since) = (Standing::Rehoming, epoch);
                }
            });
        }
    }

    fn lease(&mut self, me: Member) -> Lease {
        self.leases.insert(me, self.now + self.terms.lease_ns);
        let for_ns = self.terms.lease_ns;
        Lease { for_ns: for_ns - for_ns / self.terms.drift_one_in, epoch: self.latest().epoch }
    }

    fn join(&mut self, me: Member) -> Result<Lease> {
        let latest = self.latest();
        if let Some(m) = latest.of(me) {
            return match m.standing {
                Standing::Living => Ok(self.lease(me)),
                _ => Err(fenced(me)),
            };
        }
        let older = |m: &&MemberState| m.member.node == me.node && m.standing == Standing::Living;
        if let Some(m) = latest.members.iter().find(older) {
            self.enter(m.member, Standing::Revoking);
        }
        let lease = self.lease(me);
        self.change(|s, epoch| {
            s.members.push(MemberState {
                member: me,
                standing: Standing::Living,
                since: epoch,
                acknowledged: Vec::new(),
                claimant: None,
            });
            s.members.sort_by_key(|m| m.member);
            // It uses nothing yet: what others stop using it has stopped using.
            for m in &mut s.members {
                if m.standing == Standing::Draining {
                    m.acknowledged.push(me);
                }
            }
            if let Some(p) = &mut s.planned {
                p.acknowledged.push(me);
            }
        });
        Ok(Lease { epoch: self.latest().epoch, ..lease })
    }

    fn propose(&mut self, me: Member, change: Change) {
        let latest = self.latest();
        let at = |m: Member| latest.of(m).map(|m| (m.standing, m.acknowledged.clone(), m.claimant));
        // A claimant is replaced when nothing of it can execute any more.
        let free = |claimant: Option<Member>| {
            claimant.is_none_or(|c| latest.standing(c).is_none_or(|s| s >= Standing::Draining))
        };
        // One claimant at a time: two who read the directory together would give one table two homes.
        let other = |c: Option<Member>| c.is_some_and(|c| c != me) && !free(c);
        let rehoming = latest.members.iter().filter(|m| m.standing == Standing::Rehoming);
        let claimed = rehoming.map(|m| m.claimant).chain(latest.planned.iter().map(|p| p.claimant));
        let taken = { claimed }.any(other);
        match change {
            Change::Acknowledge(m, standing) => {
                let open = at(m).is_some_and(|(s, by, _)| s == standing && !by.contains(&me));
                if open {
                    self.edit(m, |m| m.acknowledged.push(me));
                }
            }
            Change::Revoked(m) => {
                let by = at(m).filter(|(s, ..)| *s == Standing::Revoking).map(|(_, by, _)| by);
                if by.is_some_and(|by| latest.is_acknowledged(&by)) {
                    // Memory nodes are the home of no table that would have to move.
                    self.enter(m, Standing::Draining);
                }
            }
            Change::Claim(m) => {
                if !taken && at(m).is_some_and(|(s, _, c)| s == Standing::Rehoming && free(c)) {
                    self.edit(m, |m| m.claimant = Some(me));
                }
            }
            Change::Rehomed(m) => {
                if at(m).is_some_and(|(s, _, c)| s == Standing::Rehoming && c == Some(me)) {
                    self.enter(m, Standing::Gone);
                }
            }
            Change::Plan(partitions, to) => {
                if latest.planned.is_none() && !partitions.is_empty() {
                    self.move_asked = self.now;
                    self.change(|s, epoch| {
                        s.planned = Some(Move {
                            partitions,
                            to,
                            standing: Standing::Draining,
                            since: epoch,
                            acknowledged: Vec::new(),
                            claimant: None,
                        });
                    });
                }
            }
            Change::AcknowledgeMove => {
                if latest.planned.as_ref().is_some_and(|p| !p.acknowledged.contains(&me)) {
                    self.change(|s, _| {
                        if let Some(p) = &mut s.planned {
                            p.acknowledged.push(me);
                        }
                    });
                }
            }
            Change::ClaimMove => {
                let open = |p: &Move| p.standing == Standing::Rehoming && free(p.claimant);
                if !taken && latest.planned.as_ref().is_some_and(open) {
                    self.change(|s, _| {
                        if let Some(p) = &mut s.planned {
                            p.claimant = Some(me);
                        }
                    });
                }
            }
            Change::Moved => {
                if latest.planned.as_ref().is_some_and(|p| p.claimant == Some(me)) {
                    self.change(|s, _| s.planned = None);
                }
            }
            Change::Leave => {
                self.leases.remove(&me);
                // It goes the way of the dead, so that nothing of it executes later; there is nothing to move.
                self.enter(me, Standing::Revoking);
            }
        }
        self.settle();
    }
}

fn fenced(me: Member) -> Error {
    Error::new(
        ErrorKind::Fenced,
        format!("{me} has lost its membership: restart it, so that it joins as a new incarnation"),
    )
}

impl Membership for InProcess {
    fn join(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move {
            let mut book = self.book();
            book.judge(now);
            if me.node.role() != Role::Compute {
                return Err(Error::invalid(format!(
                    "{} holds no lease: only compute nodes do",
                    me.node
                )));
            }
            book.join(me)
        })
    }

    fn renew(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Lease> {
        Box::pin(async move {
            let mut book = self.book();
            book.judge(now);
            if !book.latest().is_living(me) {
                return Err(fenced(me));
            }
            Ok(book.lease(me))
        })
    }

    fn state(&self, me: Member, now: Nanos) -> MembershipFuture<'_, Arc<State>> {
        Box::pin(async move {
            let mut book = self.book();
            book.judge(now);
            let delay = book.delays.get(&me.node).copied().unwrap_or(0);
            let until = book.now.saturating_sub(delay);
            let told = book.log.iter().rev().find(|(at, _)| *at <= until);
            Ok(told.or(book.log.first()).expect("never empty").1.clone())
        })
    }

    fn propose(&self, me: Member, change: Change, now: Nanos) -> MembershipFuture<'_, ()> {
        Box::pin(async move {
            let mut book = self.book();
            book.judge(now);
            if !book.latest().is_living(me) {
                return Err(fenced(me));
            }
            book.propose(me, change);
            Ok(())
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
