//! Remote calls in virtual time: small, at most once, answered by the few cores of a node.

use super::Picos;
use super::crash::{CrashPlan, RETRANSMISSION_NS, TRY_AGAIN};
use super::flight::{Call, Event};
use super::held::HeldCall;
use super::world::{Runner, World};
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::host::{Power, down};
use crate::transport::Ticket;

/// Interval at which an unanswered call is checked, ps.
const LOOK_AGAIN: u64 = 100_000_000;

/// Longest wait for an answer, ps.
const LONGEST_CALL: u64 = 20_000_000_000_000;
/// A request without an answer is sent again after this time, ps.
const SEND_AGAIN: u64 = 30_000_000;

impl World {
    /// A client posts a remote call.
    pub(super) fn post_call(&mut self, thread: u32, ticket: Ticket, call: Call) {
        let work = self.costs.post + self.costs.round;
        let at = self.threads[thread as usize].cpu.work(self.now, work);
        let bytes = self.costs.message(call.request.len());
        let nic = self.threads[thread as usize].nic as usize;
        let target = self.number_of(call.to).map(|n| &self.nics[n as usize]);
        let is_data = target.is_some_and(|n| n.host.rpc.is_data(call.service));
        let number = self.enter(thread, ticket, (false, 0), Some(Box::new(call)));
        let sent = self.nics[nic].send(&self.costs, at, bytes);
        let mut arrives = sent + self.costs.propagation;
        if is_data && self.chaos.is_some() {
            // An index that posts few verbs crashes, and is late, at its calls.
            self.count(number, 1);
            arrives = arrives.max(self.lists.at(number).late.map_or(0, |late| late.until));
        }
        self.wheel.push(arrives, Event::CallArrives(number));
    }

    pub(super) fn call_arrives(&mut self, core: &Core, number: u32, run: Runner<'_>) {
        let waits = self.target_waits(number);
        if waits && self.is_held_up(core, number) {
            return;
        }
        let l = self.lists.at(number);
        let (thread, posted) = (l.thread, l.posted);
        let Some(mut call) = l.call.take() else { return };
        let caller = self.threads[thread as usize].own.clone();
        let target = self.number_of(call.to);
        let mut at = self.now;
        let crash_plan = self.lists.at(number).crash_plan;
        let is_unsent = match crash_plan {
            Some(CrashPlan::Before(verbs)) => verbs == 0,
            Some(CrashPlan::Mercy { .. }) if waits => false,
            _ => self.is_dead(thread) && self.chaos.as_mut().is_some_and(|c| c.chance.one_in(2)),
        };
        if is_unsent {
            // It was still in the caller's queue.
            self.finish(core, number);
            return;
        }
        match self.held_up(number, call.to) {
            Some(false) => {}
            Some(true) => {
                self.lists.at(number).call = Some(call);
                self.wheel.push(at + TRY_AGAIN, Event::CallArrives(number));
                return;
            }
            None => {
                let l = self.lists.at(number);
                l.error = Some(down(call.to).effect_unknown());
                l.call = Some(call);
                self.wheel.push(at, Event::CallReturns(number));
                return;
            }
        }
        if self.loses_call() {
            // Sends the request, or, when it has been answered, its repetition.
            self.lists.at(number).call = Some(call);
            self.wheel.push(at + SEND_AGAIN, Event::CallArrives(number));
            return;
        }
        let host = target.map(|t| &self.nics[t as usize]);
        let hung = host.is_some_and(|n| n.host.power() == Power::Hung && n.host.alive());
        if hung && self.is_dead(thread) {
            self.finish(core, number);
            return;
        }
        if hung && at < posted + LONGEST_CALL {
            self.lists.at(number).call = Some(call);
            self.wheel.push(at + LOOK_AGAIN, Event::CallArrives(number));
            return;
        }
        let gone = host.is_some_and(|n| n.host.power() == Power::Hung || n.born > posted);
        if let Some(target) = target {
            let bytes = self.costs.message(call.request.len());
            let nic = &mut self.nics[target as usize];
            nic.served.calls += 1;
            at = nic.receive(&self.costs, at, bytes);
            if !gone && !call.answered && waits {
                at += self.chaos.as_mut().map_or(0, super::chaos::Chaos::hold);
                self.lists.at(number).call = Some(call);
                self.wheel.push(at, Event::CallQueues(number));
                return;
            }
            if !gone && !call.answered && nic.host.rpc.is_data(call.service) {
                at = nic.responder.serve(at, self.costs.send);
                at += self.chaos.as_mut().map_or(0, super::chaos::Chaos::hold);
                self.lists.at(number).call = Some(call);
                self.wheel.push(at, Event::CallQueues(number));
                return;
            }
            at = nic.call(at, self.costs.handler);
        }
        let result = match gone {
            true => Err(down(call.to)),
            // The target knows its number: it repeats the first answer.
            false if call.answered && !self.forgets_calls() => {
                self.lists.at(number).error.take().map_or(Ok(()), Err)
            }
            false => run(self.now, &caller, &mut call),
        };
        call.answered = true;
        self.reply(number, call, result, (at, gone));
    }

    /// The reply of a call leaves.
    pub(super) fn reply(
        &mut self,
        number: u32,
        call: Box<Call>,
        result: Result<()>,
        (mut at, gone): (Picos, bool),
    ) {
        let target = self.number_of(call.to);
        if let Some(target) = target {
            let bytes = self.costs.message(call.reply.len());
            at = self.nics[target as usize].send(&self.costs, at, bytes);
        }
        self.mix(at ^ u64::from(call.service.0));
        let l = self.lists.at(number);
        l.call = Some(call);
        l.error = result.err();
        let mut back = self.costs.propagation + self.costs.completion;
        if l.error.as_ref().is_some_and(|e| e.kind() == ErrorKind::Unreachable) {
            back += RETRANSMISSION_NS * 1000;
        }
        if !gone && self.loses_call() {
            self.wheel.push(at + SEND_AGAIN, Event::CallArrives(number));
            return;
        }
        self.wheel.push(at + back, Event::CallReturns(number));
    }

    /// A data call asks for a core of its target, a call to a service that waits for its turn.
    pub(super) fn call_queues(&mut self, number: u32, run: Runner<'_>) {
        let Some(nic) = self.target_of(number) else {
            self.fail_call(number);
            return;
        };
        if self.target_waits(number) {
            self.hold_call(nic, number);
            return;
        }
        let cores = &mut self.nics[nic].data_cores;
        if cores.idle == 0 {
            cores.waiting.push_back(number);
            return;
        }
        cores.idle -= 1;
        self.call_begins(number, run);
    }

    /// A core begins with a data call: its handler takes effect.
    fn call_begins(&mut self, number: u32, run: Runner<'_>) {
        let l = self.lists.at(number);
        let thread = l.thread;
        let Some(mut call) = l.call.take() else { return };
        let caller = self.threads[thread as usize].own.clone();
        let result = run(self.now, &caller, &mut call);
        call.answered = true;
        let mut time = self.costs.call + call.charged;
        time += self.chaos.as_mut().map_or(0, super::chaos::Chaos::delay);
        let l = self.lists.at(number);
        l.call = Some(call);
        l.error = result.err();
        self.wheel.push(self.now + time, Event::CallEnds(number));
        if let Some(nic) = self.target_of(number) {
            self.nics[nic].data_cores.busy += time;
        }
    }

    /// A core has ended with a data call: its reply leaves, and the next one begins.
    pub(super) fn call_ends(&mut self, number: u32, run: Runner<'_>) {
        let Some(nic) = self.target_of(number) else {
            self.fail_call(number);
            return;
        };
        let l = self.lists.at(number);
        let Some(call) = l.call.take() else { return };
        let result = l.error.take().map_or(Ok(()), Err);
        self.reply(number, call, result, (self.now, false));
        match self.nics[nic].data_cores.waiting.pop_front() {
            Some(next) => self.call_begins(next, run),
            None => self.nics[nic].data_cores.idle += 1,
        }
    }

    /// The NIC of a call's target, unless another incarnation has come since the call was posted.
    pub(super) fn target_of(&mut self, number: u32) -> Option<usize> {
        let l = self.lists.at(number);
        let (to, posted) = (l.call.as_ref()?.to, l.posted);
        let nic = self.number_of(to)? as usize;
        (self.nics[nic].born <= posted).then_some(nic)
    }

    /// Calls that wait for a core of a node that is replaced fail.
    pub(super) fn fail_waiting(&mut self, nic: usize) {
        for number in std::mem::take(&mut self.nics[nic].data_cores.waiting) {
            self.fail_call(number);
        }
    }

    pub(super) fn fail_call(&mut self, number: u32) {
        let l = self.lists.at(number);
        let to = l.call.as_ref().map(|call| call.to);
        l.error = to.map(|to| down(to).effect_unknown());
        self.wheel.push(self.now, Event::CallReturns(number));
    }

    /// Whether a target executes a call anew that it has answered: for litmus tests.
    fn forgets_calls(&self) -> bool {
        self.chaos.as_ref().is_some_and(|c| c.overtaken.laxity.forgets_calls)
    }

    /// Whether the jobs of a fenced caller go on: for litmus tests.
    pub(super) fn keeps_jobs(&self) -> bool {
        self.chaos.as_ref().is_some_and(|c| c.overtaken.laxity.keeps_jobs)
    }

    /// Whether a request or a reply is lost now.
    fn loses_call(&mut self) -> bool {
        self.chaos.as_mut().is_some_and(|c| {
            let one_in = c.fabric_faults.call_lost_one_in;
            c.chance.one_in(one_in)
        })
    }

    /// The reply is there, unless the node that gave it is gone by now.
    pub(super) fn call_returns(&mut self, core: &Core, number: u32) -> bool {
        let to = self.lists.at(number).call.as_ref().map(|call| call.to);
        if let (Some(to), true) = (to, self.lists.at(number).error.is_none()) {
            match self.held_up(number, to) {
                Some(false) => {}
                Some(true) => {
                    self.wheel.push(self.now + TRY_AGAIN, Event::CallReturns(number));
                    return false;
                }
                None => self.lists.at(number).error = Some(down(to).effect_unknown()),
            }
        }
        let nic = to.and_then(|to| self.number_of(to));
        let l = self.lists.at(number);
        if let (Some(call), None) = (&l.call, &l.error) {
            let host = nic.map(|n| &self.nics[n as usize]);
            if host.is_some_and(|n| n.host.power() == Power::Off || n.born > l.posted) {
                l.error = Some(down(call.to).effect_unknown());
                self.wheel.push(self.now + RETRANSMISSION_NS * 1000, Event::CallReturns(number));
                return false;
            }
        }
        let l = self.lists.at(number);
        if l.error.is_some() {
            l.failed_at = l.call.as_ref().map(|call| call.to);
        }
        self.finish(core, number)
    }

    /// Whether a call is to a service that waits.
    pub(super) fn target_waits(&mut self, number: u32) -> bool {
        let call = self.lists.at(number).call.as_ref();
        let Some((to, service)) = call.map(|call| (call.to, call.service)) else { return false };
        let nic = self.number_of(to).map(|nic| &self.nics[nic as usize]);
        nic.is_some_and(|nic| nic.host.rpc.waits(service))
    }

    /// Whether the request of a call to a service that waits is not there yet, or never will be,
    /// because its caller has crashed.
    pub(super) fn is_held_up(&mut self, core: &Core, number: u32) -> bool {
        let l = self.lists.at(number);
        let (Some(CrashPlan::Mercy { until, .. }), Some(chaos)) = (l.crash_plan, &mut self.chaos)
        else {
            return false;
        };
        // Drawn once: it is on its way from now on.
        l.crash_plan = Some(CrashPlan::Before(1));
        match chaos.chance.below(4) {
            0 => _ = self.finish(core, number),
            1 => return false,
            _ => {
                let octave = chaos.chance.below(10);
                let wait = chaos.chance.below((until.saturating_sub(self.now) >> octave).max(1));
                self.wheel.push(self.now + wait, Event::CallArrives(number));
            }
        }
        true
    }

    /// A call has arrived at a service that waits.
    pub(super) fn hold_call(&mut self, nic: usize, number: u32) {
        self.nics[nic].held.push(number);
        self.arrived.push(number);
    }

    /// Whether calls have arrived that no task answers yet.
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Takes them.
    pub(super) fn take_arrived(&mut self) -> Vec<HeldCall> {
        let arrived = std::mem::take(&mut self.arrived);
        arrived.into_iter().filter_map(|number| self.held_call(number)).collect()
    }

    fn held_call(&mut self, list: u32) -> Option<HeldCall> {
        let l = self.lists.at(list);
        let (ticket, thread) = (l.ticket, l.thread);
        let call = l.call.as_ref()?;
        let (to, service, request) = (call.to, call.service, call.request.clone());
        let host = self.nics[self.number_of(to)? as usize].host.clone();
        let from = self.threads[thread as usize].own.clone();
        Some(HeldCall { list, ticket, host, from, service, request })
    }

    /// The handler of a call has ended.
    pub(super) fn answered(&mut self, call: &HeldCall, answer: Result<Vec<u8>>) {
        let Some(nic) = self.number_of(call.host.node) else { return };
        let held = &mut self.nics[nic as usize].held;
        // When its node has ended meanwhile the call has failed, and its number may be another's.
        let Some(at) = held.iter().position(|number| *number == call.list) else { return };
        let list = self.lists.at(call.list);
        if list.ticket != call.ticket {
            return;
        }
        held.swap_remove(at);
        if let Some(its) = &mut list.call {
            its.answered = true;
            match answer {
                Ok(reply) => its.reply = reply,
                Err(e) => list.error = Some(e),
            }
        }
        self.wheel.push(self.now, Event::CallAnswered(call.list));
    }

    /// The reply of a call that was held back leaves.
    pub(super) fn call_answered(&mut self, number: u32) {
        let now = self.now;
        let Some(nic) = self.target_of(number) else {
            self.fail_call(number);
            return;
        };
        let at = self.nics[nic].call(now, self.costs.handler);
        let l = self.lists.at(number);
        let Some(call) = l.call.take() else { return };
        let result = l.error.take().map_or(Ok(()), Err);
        self.reply(number, call, result, (at, false));
    }

    /// The node has ended: it answers none of the calls that it holds.
    pub(super) fn fail_held(&mut self, nic: usize) {
        let held = std::mem::take(&mut self.nics[nic].held);
        self.arrived.retain(|number| !held.contains(number));
        held.into_iter().for_each(|number| self.fail_call(number));
    }
}
