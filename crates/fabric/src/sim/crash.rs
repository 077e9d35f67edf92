//! Crashes: a node stops, the seed decides the fate of its verbs in flight, and it may come back as
//! a new incarnation.
//!
//! A crash is silent: no node is notified, verbs to the node fail or go on according to [`How`],
//! and the membership has to detect it. Every verb that was in flight executes wholly, in part,
//! later, or never, until a revocation of access ends it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Picos;
use super::chaos::{Chaos, Step};
use crate::addr::NodeId;
use crate::rng::Rng;
use crate::transport::Nanos;

/// A verb or call to a node that is gone fails after this long, ns.
pub const RETRANSMISSION_NS: Nanos = 500_000;
/// No verb of a crashed node executes later than this after the crash, with or without a
/// revocation, ns.
pub const LONGEST_ZOMBIE_NS: Nanos = 50_000_000;

/// Verbs on a cut link are retried after this time, ps.
pub(super) const TRY_AGAIN: Picos = 50_000_000;

/// The part of a compute node that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Its process: memory and connections are gone.
    Process,
    /// The machine; from outside the same as its process.
    Machine,
    /// Its processors: the NIC still serves its memory, locks included, but no call is answered.
    Hung,
}

/// Where at a verb a node crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The verb and those behind it in its list never execute; those before it do, wholly.
    Before,
    /// A part of its pieces executes, and of the verbs that its list does not order before it.
    Inside,
    /// It executes wholly; nothing later does.
    After,
}

/// A point in the execution of a node: a verb that it posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Which, counted from the call that names the point: the first is 1.
    pub verb: u64,
    /// Where at this verb.
    pub place: Place,
}

/// The fate of a list with a crashed issuer.
#[derive(Clone, Copy, Debug)]
pub(super) enum CrashPlan {
    /// Verbs before this one execute, no others.
    Before(u32),
    /// Verbs before this one execute; of it and of the others a part does.
    Inside(u32),
    /// Each step executes or not, now or later.
    Mercy {
        /// Of four steps this many are left out.
        skip: u32,
        /// Steps are put off.
        late: bool,
        /// Nothing executes after this.
        until: Picos,
    },
}

/// The fate of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Now,
    Later(Picos),
    Never,
}

impl Chaos {
    /// The crash plan of a list in flight.
    pub(super) fn crash_plan(&mut self, now: Picos) -> CrashPlan {
        let until = now + LONGEST_ZOMBIE_NS * 1000;
        let (skip, late) = match self.chance.below(6) {
            0 => (4, false),
            1 => (0, false),
            2 => (0, true),
            3 => (1, true),
            4 => (2, false),
            _ => (2, true),
        };
        CrashPlan::Mercy { skip, late, until }
    }

    pub(super) fn fate(
        &mut self,
        crash_plan: CrashPlan,
        verb: u32,
        step: Step,
        now: Picos,
    ) -> Fate {
        let begins = matches!(step, Step::Begin { .. });
        let never = |yes: bool| if yes { Fate::Never } else { Fate::Now };
        match crash_plan {
            CrashPlan::Before(n) => never(verb >= n),
            CrashPlan::Inside(n) if verb < n => Fate::Now,
            CrashPlan::Inside(n) if verb == n && begins => never(self.chance.one_in(4)),
            CrashPlan::Inside(n) if verb == n || begins => never(self.chance.one_in(2)),
            CrashPlan::Inside(_) => Fate::Now,
            CrashPlan::Mercy { until, .. } if now > until => Fate::Never,
            CrashPlan::Mercy { skip, .. } if self.chance.below(4) < u64::from(skip) => Fate::Never,
            // The word of an atomic that has begun is kept from others: it ends in time.
            CrashPlan::Mercy { late: true, until, .. }
                if !matches!(step, Step::AtomicWrite { .. }) && self.chance.one_in(2) =>
            {
                let octave = self.chance.below(14);
                Fate::Later(now + 1 + self.chance.below(((until - now) >> octave).max(1)))
            }
            CrashPlan::Mercy { .. } => Fate::Now,
        }
    }
}

/// State of a node over all its incarnations.
#[derive(Default)]
struct Counted {
    issued: u64,
    armed: Option<(u64, Place, How)>,
    /// Verbs that are to be late, and by how much.
    late: Vec<(u64, Place, Picos)>,
    /// One of them has been posted, and is to be on time again at this moment.
    until: Picos,
}

/// A verb of a list that is late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    verb: u32,
    place: Place,
    pub(super) until: Picos,
}

impl Late {
    /// When a step of a verb takes effect instead of now.
    pub(super) fn puts_off(&self, chance: &mut Rng, verb: u32, step: Step) -> Option<Picos> {
        let begins = matches!(step, Step::Begin { .. });
        let late = verb == self.verb
            && match self.place {
                Place::Before => begins,
                Place::Inside => matches!(step, Step::Piece { .. }) && chance.one_in(2),
                Place::After => false,
            };
        late.then_some(self.until)
    }

    /// Until when the completion is late.
    pub(super) fn completes(&self) -> Option<Picos> {
        (self.place == Place::After).then_some(self.until)
    }
}

/// Verbs of every node, and where it is to crash.
#[derive(Default)]
pub(super) struct Crashes {
    nodes: BTreeMap<NodeId, Counted>,
    /// Links that let nothing through: the lower end first.
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// Crashes so far.
    pub count: u64,
    /// When a verb of a client's slot, or any call of its node, last failed because its target is
    /// gone: node, slot, target.
    failed: BTreeMap<(NodeId, Option<u32>, NodeId), Picos>,
}

impl Crashes {
    pub(super) fn issued(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |c| c.issued)
    }

    pub(super) fn cut(&mut self, a: NodeId, b: NodeId, on: bool) {
        let link = (a.min(b), a.max(b));
        if on {
            self.cuts.insert(link);
        } else {
            self.cuts.remove(&link);
        }
    }

    pub(super) fn record_failure(&mut self, by: (NodeId, Option<u32>), to: NodeId, now: Picos) {
        self.failed.insert((by.0, by.1, to), now);
    }

    /// When something that `slots` names, of a node, last failed at another.
    pub(super) fn failed_at(
        &self,
        node: NodeId,
        slots: impl Fn(Option<u32>) -> bool,
        to: NodeId,
    ) -> Option<Picos> {
        let all = self.failed.iter().filter(|((n, s, t), _)| *n == node && *t == to && slots(*s));
        all.map(|(_, at)| *at).max()
    }

    pub(super) fn any_cut(&self) -> bool {
        !self.cuts.is_empty()
    }

    pub(super) fn is_cut(&self, a: NodeId, b: NodeId) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(a.min(b), a.max(b)))
    }

    pub(super) fn arm(&mut self, node: NodeId, point: CrashPoint, how: How) {
        let c = self.nodes.entry(node).or_default();
        c.armed = Some((c.issued + point.verb.max(1), point.place, how));
    }

    pub(super) fn disarm(&mut self, node: NodeId) {
        self.nodes.entry(node).or_default().armed = None;
    }

    pub(super) fn delay(&mut self, node: NodeId, point: CrashPoint, by: Picos) {
        let c = self.nodes.entry(node).or_default();
        c.late.push((c.issued + point.verb.max(1), point.place, by));
        c.until = 0;
    }

    /// Until when the late verb of a node is late; `None` while it has not been posted.
    pub(super) fn late_until(&self, node: NodeId) -> Option<Picos> {
        self.nodes.get(&node).map(|c| c.until).filter(|until| *until > 0)
    }

    /// Whether one of the next `verbs` of a node is to be late. Before they are counted.
    pub(super) fn late(&mut self, node: NodeId, verbs: u64, now: Picos) -> Option<Late> {
        let c = self.nodes.entry(node).or_default();
        let due = c.late.iter().position(|(at, ..)| *at <= c.issued + verbs)?;
        let (at, place, by) = c.late.remove(due);
        c.until = now + by;
        let verb = at.saturating_sub(c.issued + 1) as u32;
        Some(Late { verb, place, until: c.until })
    }

    /// Counts the verbs of a list; returns its fate when its node crashes with it.
    pub(super) fn count(&mut self, node: NodeId, verbs: u64) -> Option<(CrashPlan, How)> {
        let c = self.nodes.entry(node).or_default();
        let before = c.issued;
        c.issued += verbs;
        let (at, place, how) = c.armed.filter(|(at, ..)| *at <= c.issued)?;
        let n = at.saturating_sub(before + 1) as u32;
        let crash_plan = match place {
            Place::Before => CrashPlan::Before(n),
            Place::Inside => CrashPlan::Inside(n),
            Place::After => CrashPlan::Before(n + 1),
        };
        Some((crash_plan, how))
    }
}
