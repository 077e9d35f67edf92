//! Random starts, ends, pauses, cuts and returns of members, and the invariants that hold in any
//! order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{LEASE_PARAMETERS, now};
use crate::addr::NodeId;
use crate::membership::{
    Change, InProcess, Member, MemberPhase, Membership, MembershipState, MemoryAgent, News,
    Presence,
};

const COMPUTE: u16 = 3;
const MEMORY: u16 = 3;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A new incarnation of a compute node.
    Start(u16),
    Leave(u16),
    /// A membership agent of a compute node does some of its duties.
    ComputeAgent(u16, u8),
    /// An agent makes a step.
    Agent(u16),
    /// The host of a memory node says that its process has ended.
    Lose(u16),
    /// Time passes while the server ticks.
    Elapse(u8),
    /// The server stands still.
    Pause(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..COMPUTE).prop_map(Event::Start),
        1 => (0..COMPUTE).prop_map(Event::Leave),
        12 => (0..COMPUTE, any::<u8>()).prop_map(|(n, skipped)| Event::ComputeAgent(n, skipped)),
        8 => (0..MEMORY).prop_map(Event::Agent),
        1 => (0..MEMORY).prop_map(Event::Lose),
        8 => (1u8..60).prop_map(Event::Elapse),
        1 => (60u16..2_000).prop_map(Event::Pause),
    ]
}

struct Model {
    m: InProcess,
    now: u64,
    /// The incarnation of a compute node's process, and the membership state that it acts on.
    incarnations: BTreeMap<u16, (Member, MembershipState)>,
    last: BTreeMap<u16, u32>,
    agents: Vec<MemoryAgent>,
    /// The latest incarnation of each node that a memory node has revoked.
    revoked: Vec<std::cell::RefCell<BTreeMap<NodeId, u32>>>,
    seen: MembershipState,
}

impl Model {
    fn new() -> Self {
        let m = InProcess::new(LEASE_PARAMETERS);
        m.set_agents(MEMORY);
        let member = |n| Member { node: NodeId::memory(n), incarnation: 1 };
        let mut all = Self {
            m,
            now: 0,
            incarnations: BTreeMap::new(),
            last: BTreeMap::new(),
            agents: (0..MEMORY).map(|n| MemoryAgent::new(member(n))).collect(),
            revoked: (0..MEMORY).map(|_| std::cell::RefCell::default()).collect(),
            seen: MembershipState::default(),
        };
        (0..MEMORY).for_each(|n| all.agent(n));
        all.m.tick(0);
        all
    }

    fn agent(&mut self, n: u16) {
        let revoked = &self.revoked[usize::from(n)];
        let revoke = |dead: Member| {
            revoked.borrow_mut().insert(dead.node, dead.incarnation);
            Ok(())
        };
        // A step may come too early.
        let _ = now(Box::pin(self.agents[usize::from(n)].step(&self.m, &revoke, self.now)));
    }

    fn start(&mut self, n: u16) {
        let incarnation = self.last.get(&n).copied().unwrap_or(0) + 1;
        self.last.insert(n, incarnation);
        let me = Member { node: NodeId::compute(n), incarnation };
        now(self.m.join(me, self.now)).expect("a new incarnation");
        self.incarnations.insert(n, (me, (*self.m.latest()).clone()));
    }

    /// One step of a compute node's membership agent; bits of `skipped` leave parts of it out.
    fn compute_agent(&mut self, n: u16, skipped: u8) {
        let Some((me, known)) = self.incarnations.get_mut(&n) else { return };
        let me = *me;
        if now(self.m.renew(me, self.now)).is_err() {
            self.incarnations.remove(&n);
            return;
        }
        *known = (*now(self.m.state(me, self.now)).expect("answers")).clone();
        let s = known.clone();
        let say = |change| _ = now(self.m.propose(me, change, self.now));
        for m in &s.members {
            let open = !m.acknowledged.contains(&me);
            match m.phase {
                MemberPhase::Revoking | MemberPhase::Draining if open && skipped & 1 == 0 => {
                    say(Change::Acknowledge(m.member, m.phase));
                }
                MemberPhase::Reassigning if m.claimant == Some(me) && skipped & 2 == 0 => {
                    say(Change::Reassigned(m.member));
                }
                MemberPhase::Reassigning => say(Change::Claim(m.member)),
                _ => {}
            }
        }
        for m in s.away().filter(|m| !m.acknowledged.contains(&me) && skipped & 4 == 0) {
            say(Change::Avoided(m.member));
        }
        match &s.planned {
            None if skipped > 240 => say(Change::Plan(vec![1], None)),
            Some(p) if p.phase == MemberPhase::Draining => say(Change::AcknowledgeMove),
            Some(p) if p.claimant == Some(me) => say(Change::Moved),
            Some(_) => say(Change::ClaimMove),
            None => {}
        }
    }

    fn elapse(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.now < until {
            self.now = (self.now + 5).min(until);
            self.m.tick(self.now);
        }
    }

    fn step(&mut self, e: Event) {
        match e {
            Event::Start(n) => self.start(n),
            Event::Leave(n) => {
                if let Some((me, _)) = self.incarnations.remove(&n) {
                    let _ = now(self.m.propose(me, Change::Leave, self.now));
                }
            }
            Event::ComputeAgent(n, skipped) => self.compute_agent(n, skipped),
            Event::Agent(n) => self.agent(n),
            Event::Lose(n) => self.m.lose(Member { node: NodeId::memory(n), incarnation: 1 }),
            Event::Elapse(ns) => self.elapse(ns.into()),
            Event::Pause(ns) => {
                let before: Vec<_> = self.m.latest().living().collect();
                self.now += u64::from(ns);
                self.m.tick(self.now);
                let after = self.m.latest();
                assert!(before.iter().all(|m| after.is_living(*m)), "a pause of the server killed");
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let s = (*self.m.latest()).clone();
        let nodes: BTreeSet<NodeId> = s.living().map(|m| m.node).collect();
        let living = s.living().count();
        assert_eq!(nodes.len(), living, "two incarnations of one node are alive: {s:?}");
        for old in &self.seen.members {
            let to = s.phase(old.member).expect("no member becomes unknown");
            assert!(old.phase <= to, "{} went back from {:?} to {to:?}", old.member, old.phase);
        }
        assert!(self.seen.deaths <= s.deaths);
        for m in s.members.iter().filter(|m| m.phase > MemberPhase::Revoking) {
            self.is_harmless(&s, m.member);
        }
        for n in 0..MEMORY {
            if s.presence(NodeId::memory(n)) == Presence::Present
                && self.seen.presence(NodeId::memory(n)).is_away()
            {
                let revoked = self.revoked[usize::from(n)].borrow();
                for dead in s.dead() {
                    assert!(revoked.get(&dead.node) >= Some(&dead.incarnation), "{dead} at mn{n}");
                }
            }
        }
        self.seen = s;
    }

    /// No verb of a revoked member executes at a memory node to which a living node posts.
    fn is_harmless(&self, s: &MembershipState, dead: Member) {
        for n in 0..MEMORY {
            let node = NodeId::memory(n);
            let revoked = self.revoked[usize::from(n)].borrow();
            if revoked.get(&dead.node) >= Some(&dead.incarnation) {
                continue;
            }
            assert!(s.presence(node).is_away(), "{dead} may execute at {node}");
            for (me, known) in self.incarnations.values().filter(|(me, _)| s.is_living(*me)) {
                assert!(known.presence(node).is_away(), "{me} posts to {node}, and so does {dead}");
            }
        }
    }

    /// From here on one more node is alive, and every node does its duties: all deaths complete.
    fn must_complete_all_deaths(&mut self) {
        self.start(0);
        for _ in 0..40 {
            self.elapse(10);
            let incarnations: Vec<u16> = self.incarnations.keys().copied().collect();
            // Nodes that stand still stay as they are: they are late, and are declared dead.
            incarnations.into_iter().filter(|n| *n == 0).for_each(|n| self.compute_agent(n, 0));
            (0..MEMORY).for_each(|n| self.agent(n));
            self.check();
        }
        let s = self.m.latest();
        assert!(s.planned.is_none(), "{s:?}");
        let over = |s: MemberPhase| matches!(s, MemberPhase::Living | MemberPhase::Gone);
        assert!(s.members.iter().all(|m| over(m.phase)), "{s:?}");
        assert!(s.away().next().is_none(), "{s:?}");
        let members = s.members.len();
        assert!(members <= usize::from(COMPUTE), "former incarnations are forgotten: {s:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn deaths_complete_and_dead_nodes_are_harmless_in_any_order(
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut model = Model::new();
        for e in events {
            model.step(e);
        }
        model.must_complete_all_deaths();
    }
}

#[test]
fn thousands_of_incarnations_leave_nothing_behind() {
    let mut model = Model::new();
    for incarnation in 0..5_000u32 {
        let n = (incarnation % u32::from(COMPUTE)) as u16;
        model.start(n);
        if incarnation % 3 == 0 {
            model.elapse(20);
        } else {
            model.step(Event::Leave(n));
        }
        for n in 0..COMPUTE {
            model.compute_agent(n, 0);
            model.agent(n);
        }
    }
    model.must_complete_all_deaths();
    let s = model.m.latest();
    assert!(s.deaths > 4_000, "{}", s.deaths);
    assert!(model.m.take_news().len() <= 1024);
    let joined = |n: &News| matches!(n, News::Joined(_));
    assert_eq!(model.m.take_news().iter().filter(|n| joined(n)).count(), 0, "taken once");
}
