//! Events of the adversarial mode: chains start, verbs take effect step by step, in drawn or chosen
//! order, chains and lists end; and the crashes of nodes, in either mode.

use super::Picos;
use super::chaos::{Effect, Step};
use super::crash::{Fate, How, RETRANSMISSION_NS, TRY_AGAIN};
use super::flight::Event;
use super::order::{Choice, Chosen, Order, STEP, put};
use super::world::{World, mixed, unreachable};
use crate::addr::NodeId;
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::host::{Power, down};
use crate::transport::Ticket;

impl World {
    /// Starts the chains of a list, independently of each other.
    pub(super) fn set_out(&mut self, core: &Core, number: u32) {
        let l = self.lists.at(number);
        let (ticket, client) = (l.ticket, l.slot);
        let Some(chaos) = &mut self.chaos else { return };
        let mut chains = 0;
        core.with_requests(ticket, |requests| {
            for verb in 0..requests.len() {
                if verb == 0 || !requests[verb - 1].chained {
                    chains += 1;
                    let at = self.now + chaos.delay();
                    let step = Step::Begin { list: number, verb: verb as u32 };
                    put(&mut self.chosen, &mut self.wheel, at, client, step);
                }
            }
        });
        self.lists.at(number).pending = chains;
        if chains == 0 {
            self.wheel.push(self.now, Event::Complete(number));
        }
    }

    pub(super) fn misbehave(&mut self, core: &Core, step: Step) {
        let Some(chaos) = &mut self.chaos else { return };
        let (list, verb) = chaos.owner(step);
        let l = self.lists.at(list);
        let (ticket, posted, client) = (l.ticket, l.posted, l.slot);
        let fate = l
            .crash_plan
            .map_or(Fate::Now, |crash_plan| chaos.fate(crash_plan, verb, step, self.now));
        if let (Step::Begin { .. }, true) = (step, self.crashes.any_cut()) {
            let to = core.with_requests(ticket, |requests| requests[verb as usize].at.node());
            match self.held_up(list, to) {
                Some(false) => {}
                Some(true) => {
                    self.wheel.push(self.now + TRY_AGAIN, Event::Chaos(step));
                    return;
                }
                None => return self.ended(core, list, verb, Err(down(to))),
            }
        }
        let Some(chaos) = &mut self.chaos else { return };
        let late = self.lists.at(list).late;
        if let Some(at) = late.and_then(|l| l.puts_off(&mut chaos.chance, verb, step))
            && at > self.now
        {
            self.wheel.push(at, Event::Chaos(step));
            return;
        }
        let thread = &self.threads[self.lists.at(list).thread as usize];
        let (issuer, job_of) = (&thread.own, thread.job_of);
        if let Fate::Later(at) = fate {
            self.wheel.push(at, Event::Chaos(step));
            return;
        }
        self.hash = mixed(self.hash, self.now ^ u64::from(verb) << 48);
        let (numbers, nics) = (&self.numbers, &self.nics);
        let now = self.now;
        let sanitizer = &mut self.sanitizer;
        let l = self.lists.at(list);
        let (strands, heard) = (&mut l.pending, l.crash_plan.is_none());
        let effect = core.with_requests(ticket, |requests| {
            let wr = &requests[verb as usize];
            let Some(target) = numbers.get(wr.at.node()).copied().flatten() else {
                return Effect::Ended(list, verb, Err(unreachable(wr)));
            };
            let nic = &nics[target as usize];
            let host = &nic.host;
            // Verbs that were posted to a former incarnation do not reach this one.
            let refused = match nic.born > posted {
                true => Some(down(host.node)),
                false => host.refusal(issuer).or_else(|| host.refusal_of_job(job_of)),
            };
            let Step::Begin { .. } = step else {
                return chaos.step(step, wr, host, (refused, fate));
            };
            if chaos.overtaken.holds_back(list, verb, requests) {
                let again = now + chaos.delay();
                chaos.next.push((again, step));
                return Effect::Goes;
            }
            let refused = refused.or_else(|| (fate == Fate::Never).then(|| down(issuer.node)));
            if let Some(e) = refused {
                return Effect::Ended(list, verb, Err(e));
            }
            if let Err(e) = host.check(wr) {
                if let Some(s) = sanitizer {
                    s.refused(issuer.node, wr, &e);
                }
                return Effect::Ended(list, verb, Err(e));
            }
            if let Some(s) = sanitizer {
                s.look(issuer.node, wr, heard);
            }
            // A revocation of its caller's access completes what a job has begun to WRITE.
            let issuer = job_of.unwrap_or_else(|| issuer.member());
            chaos.begin(now, (list, verb), wr, (host, issuer));
            if chaos.overtaken.begins(list, verb, requests) {
                let soon = now + chaos.delay();
                chaos.next.push((soon, Step::Begin { list, verb: verb + 1 }));
                *strands += 1;
            }
            Effect::Goes
        });
        for (at, step) in chaos.next.drain(..) {
            put(&mut self.chosen, &mut self.wheel, at, client, step);
        }
        if let Effect::Ended(list, verb, result) = effect {
            self.ended(core, list, verb, result);
        }
    }

    /// The completion of a list reaches its client, unless a link over which a response comes is
    /// cut.
    pub(super) fn complete(&mut self, core: &Core, number: u32) -> bool {
        if self.crashes.any_cut() {
            let ticket = self.lists.at(number).ticket;
            let mut nodes = core.with_requests(ticket, |requests| {
                requests.iter().map(|wr| wr.at.node()).collect::<Vec<_>>()
            });
            nodes.dedup();
            for to in nodes {
                match self.held_up(number, to) {
                    Some(false) => {}
                    Some(true) => {
                        self.wheel.push(self.now + TRY_AGAIN, Event::Complete(number));
                        return false;
                    }
                    None => {
                        self.lists.at(number).error.get_or_insert(down(to).effect_unknown());
                    }
                }
            }
        }
        self.finish(core, number)
    }

    /// A verb has ended: the next of its chain begins, or the chain has ended, and with the last of
    /// them the list.
    pub(super) fn ended(&mut self, core: &Core, list: u32, verb: u32, result: Result<()>) {
        let Some(chaos) = &mut self.chaos else { return };
        let l = self.lists.at(list);
        let fine = result.is_ok();
        if let Err(e) = result {
            if e.kind() == ErrorKind::Unreachable {
                let to = core.with_requests(l.ticket, |requests| requests[verb as usize].at.node());
                l.failed_at.get_or_insert(to);
            }
            l.error.get_or_insert(e.effect_unknown());
        }
        let alone = !chaos.overtaken.ends(list, verb);
        let goes_on = || core.with_requests(l.ticket, |requests| requests[verb as usize].chained);
        if fine && alone && goes_on() {
            let step = Step::Begin { list, verb: verb + 1 };
            let at = self.now + chaos.delay();
            put(&mut self.chosen, &mut self.wheel, at, l.slot, step);
            return;
        }
        l.pending -= 1;
        let until = l.late.and_then(|l| l.completes()).unwrap_or(0);
        if l.pending == 0 {
            let gone = l.error.as_ref().is_some_and(|e| e.kind() == ErrorKind::Unreachable);
            let wait = if gone { RETRANSMISSION_NS * 1000 } else { 0 };
            let delay = chaos.delay();
            let at = if wait > 0 { self.now + wait + delay } else { self.soon(self.now + delay) };
            self.wheel.push(at.max(until), Event::Complete(list));
        }
    }

    /// A list has been posted: its verbs count, and its node may crash with one of them.
    pub(super) fn count(&mut self, list: u32, verbs: usize) {
        let thread = self.lists.at(list).thread;
        let own = self.threads[thread as usize].own.clone();
        self.lists.at(list).late = self.crashes.late(own.node, verbs as u64, self.now);
        let Some((crash_plan, how)) = self.crashes.count(own.node, verbs as u64) else { return };
        self.lists.at(list).crash_plan = Some(crash_plan);
        self.kill(own.node, how);
    }

    /// Stops the node. Draws the fate of its clients' verbs in flight.
    pub(super) fn kill(&mut self, node: NodeId, how: How) {
        self.crashes.disarm(node);
        let Some(nic) = self.nics.iter().position(|n| n.node() == node) else { return };
        let host = self.nics[nic].host.clone();
        if host.power() == Power::Off {
            return;
        }
        self.crashes.count += 1;
        host.set_power(if how == How::Hung { Power::Hung } else { Power::Off });
        self.fail_held(nic);
        let Some(chaos) = &mut self.chaos else { return };
        for list in self.lists.all() {
            let own = &self.threads[list.thread as usize].own;
            if own.node == node && own.incarnation == host.incarnation && list.crash_plan.is_none()
            {
                list.crash_plan = Some(chaos.crash_plan(self.now));
            }
        }
        self.mix(u64::from(node.bits()) << 32 | self.now);
    }

    /// Whether a cut link holds a list up now; `None` when it has done so for too long.
    pub(super) fn held_up(&mut self, list: u32, to: NodeId) -> Option<bool> {
        let l = self.lists.at(list);
        if !self.crashes.is_cut(self.threads[l.thread as usize].own.node, to) {
            return Some(false);
        }
        let since = *l.cut_since.get_or_insert(self.now);
        (self.now <= since + RETRANSMISSION_NS * 1000).then_some(true)
    }

    /// Whether a thread's node has crashed.
    pub(super) fn is_dead(&self, thread: u32) -> bool {
        self.threads[thread as usize].own.power() != Power::On
    }

    /// The list of a crashed node's client: it never completes. True when it is one.
    pub(super) fn swallow(&self, core: &Core, thread: u32, ticket: Ticket) -> bool {
        let dead = self.is_dead(thread);
        if dead {
            core.lose(ticket);
        }
        dead
    }

    /// When a step begins that was to begin at `at`; at once where steps are chosen instead of
    /// timed.
    pub(super) fn soon(&self, at: Picos) -> Picos {
        if self.chosen.is_some() { self.now } else { at }
    }

    /// How long a step takes where steps are chosen.
    pub(super) fn step_time(&self) -> Picos {
        if self.chosen.is_some() { STEP } else { 0 }
    }

    pub(super) fn next_chosen(&self) -> Option<Picos> {
        let chosen = self.chosen.as_ref()?;
        (!chosen.is_empty()).then_some(self.now + STEP)
    }

    /// The next event, chosen or due.
    pub(super) fn next_event(&mut self, until: Picos) -> Option<(Picos, Event)> {
        let chosen = self.next_chosen().filter(|at| *at <= until);
        match chosen {
            Some(at) if self.wheel.next_at().is_none_or(|due| due > self.now) => {
                let step = self.chosen.as_mut().and_then(Chosen::pick)?;
                Some((at, Event::Chaos(step)))
            }
            _ => self.wheel.pop(until),
        }
    }

    /// Changes the order from now on; steps in flight come first.
    pub(super) fn set_order(&mut self, order: &Order) {
        let old = std::mem::replace(&mut self.chosen, Chosen::new(order));
        for (client, step) in old.into_iter().flat_map(Chosen::into_steps) {
            put(&mut self.chosen, &mut self.wheel, self.now, client, step);
        }
    }

    /// The decisions since the order was set.
    pub(super) fn choices(&self) -> Vec<Choice> {
        self.chosen.as_ref().map_or(Vec::new(), Chosen::made)
    }
}
