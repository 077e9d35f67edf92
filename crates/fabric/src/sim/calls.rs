//! Remote calls in virtual time: small, at most once, answered by the few cores of a node.

use super::crash::{RETRANSMISSION_NS, TRY_AGAIN};
use super::world::{Call, Event, Runner, World};
use crate::core::Core;
use crate::error::ErrorKind;
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
        let number = self.enter(thread, ticket, (false, 0), Some(Box::new(call)));
        let sent = self.nics[nic].send(&self.costs, at, bytes);
        self.wheel.push(sent + self.costs.propagation, Event::CallArrives(number));
    }

    pub(super) fn call_arrives(&mut self, core: &Core, number: u32, run: Runner<'_>) {
        let l = self.lists.at(number);
        let (thread, posted) = (l.thread, l.posted);
        let Some(mut call) = l.call.take() else { return };
        let caller = self.threads[thread as usize].own.clone();
        let target = self.number_of(call.to);
        let mut at = self.now;
        if self.is_dead(thread) && self.chaos.as_mut().is_some_and(|c| c.chance.one_in(2)) {
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
            at = nic.call(at, self.costs.handler);
        }
        let result = match gone {
            true => Err(down(call.to)),
            // The target knows its number: it repeats the first answer.
            false if call.answered => self.lists.at(number).error.take().map_or(Ok(()), Err),
            false => run(self.now, &caller, &mut call),
        };
        call.answered = true;
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
}
