//! Random starts, ends, pauses, cuts and returns of members, and what must hold whatever their order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{LEASE_PARAMETERS, now};
use crate::addr::NodeId;
use crate::membership::{
    Change, InProcess, Member, Membership, MemoryAgent, News, Presence, Standing, State,
};

const COMPUTE: u16 = 3;
const MEMORY: u16 = 3;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A new life of a compute node.
    Start(u16),
    Leave(u16),
    /// A keeper does some of what is asked of it.
    Keep(u16, u8),
    /// An agent makes a step.
    Agent(u16),
    /// The host of a memory node says that its process has ended.
    Lose(u16),
    /// Time passes while the server ticks.
    Pass(u8),
    /// The server stands still.
    Pause(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..COMPUTE).prop_map(Event::Start),
        1 => (0..COMPUTE).prop_map(Event::Leave),
        12 => (0..COMPUTE, any::<u8>()).prop_map(|(n, what)| Event::Keep(n, what)),
        8 => (0..MEMORY).prop_map(Event::Agent),
        1 => (0..MEMORY).prop_map(Event::Lose),
        8 => (1u8..60).prop_map(Event::Pass),
        1 => (60u16..2_000).prop_map(Event::Pause),
    ]
}

struct Model {
    m: InProcess,
    now: u64,
    /// The life that a process of a compute node has, and the state it acts on.
    incarnations: BTreeMap<u16, (Member, State)>,
    last: BTreeMap<u16, u32>,
    agents: Vec<MemoryAgent>,
    /// Whose access each memory node has revoked: up to which life.
    revoked: Vec<std::cell::RefCell<BTreeMap<NodeId, u32>>>,
    seen: State,
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
            seen: State::default(),
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
        now(self.m.join(me, self.now)).expect("a life that has not been");
        self.incarnations.insert(n, (me, (*self.m.latest()).clone()));
    }

    /// What a keeper does; bits of `what` leave parts of it out.
    fn keep(&mut self, n: u16, what: u8) {
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
            match m.standing {
                Standing::Revoking | Standing::Draining if open && what & 1 == 0 => {
                    say(Change::Acknowledge(m.member, m.standing));
                }
                Standing::Reassigning if m.claimant == Some(me) && what & 2 == 0 => {
                    say(Change::Reassigned(m.member));
                }
                Standing::Reassigning => say(Change::Claim(m.member)),
                _ => {}
            }
        }
        for m in s.away().filter(|m| !m.acknowledged.contains(&me) && what & 4 == 0) {
            say(Change::Avoided(m.member));
        }
        match &s.planned {
            None if what > 240 => say(Change::Plan(vec![1], None)),
            Some(p) if p.standing == Standing::Draining => say(Change::AcknowledgeMove),
            Some(p) if p.claimant == Some(me) => say(Change::Moved),
            Some(_) => say(Change::ClaimMove),
            None => {}
        }
    }

    fn pass(&mut self, ns: u64) {
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
            Event::Keep(n, what) => self.keep(n, what),
            Event::Agent(n) => self.agent(n),
            Event::Lose(n) => self.m.lose(Member { node: NodeId::memory(n), incarnation: 1 }),
            Event::Pass(ns) => self.pass(ns.into()),
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
        assert_eq!(nodes.len(), s.living().count(), "two lives of one node live: {s:?}");
        for old in &self.seen.members {
            let to = s.standing(old.member).expect("nobody becomes a stranger");
            assert!(
                old.standing <= to,
                "{} went back from {:?} to {to:?}",
                old.member,
                old.standing
            );
        }
        assert!(self.seen.deaths <= s.deaths);
        for m in s.members.iter().filter(|m| m.standing > Standing::Revoking) {
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

    /// Nothing of a member that is revoked executes at a memory node to which anybody living posts, as far as the living know.
    fn is_harmless(&self, s: &State, dead: Member) {
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

    /// From here on one more node lives, and everybody does what is asked.
    fn must_settle(&mut self) {
        self.start(0);
        for _ in 0..40 {
            self.pass(10);
            let incarnations: Vec<u16> = self.incarnations.keys().copied().collect();
            // Those that stand still stay as they are: they are late, and die.
            incarnations.into_iter().filter(|n| *n == 0).for_each(|n| self.keep(n, 0));
            (0..MEMORY).for_each(|n| self.agent(n));
            self.check();
        }
        let s = self.m.latest();
        assert!(s.planned.is_none(), "{s:?}");
        let over = |s: Standing| matches!(s, Standing::Living | Standing::Gone);
        assert!(s.members.iter().all(|m| over(m.standing)), "{s:?}");
        assert!(s.away().next().is_none(), "{s:?}");
        assert!(s.members.len() <= usize::from(COMPUTE), "nothing is kept of former lives: {s:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_happens_deaths_end_and_the_dead_are_harmless(
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut model = Model::new();
        for e in events {
            model.step(e);
        }
        model.must_settle();
    }
}

#[test]
fn thousands_of_incarnations_leave_nothing_behind() {
    let mut model = Model::new();
    for incarnation in 0..5_000u32 {
        let n = (incarnation % u32::from(COMPUTE)) as u16;
        model.start(n);
        if incarnation % 3 == 0 {
            model.pass(20);
        } else {
            model.step(Event::Leave(n));
        }
        for n in 0..COMPUTE {
            model.keep(n, 0);
            model.agent(n);
        }
    }
    model.must_settle();
    let s = model.m.latest();
    assert!(s.deaths > 4_000, "{}", s.deaths);
    assert!(model.m.take_news().len() <= 1024);
    let joined = |n: &News| matches!(n, News::Joined(_));
    assert_eq!(model.m.take_news().iter().filter(|n| joined(n)).count(), 0, "taken once");
}
