//! Calls to services that wait, as for a device: their replies are held back until the handlers
//! have ended.
//!
//! Such a handler runs beside the clients, on their executor, as a job does: what it waits for goes
//! on meanwhile. A node answers one call at a time, in the order of arrival. It begins none that
//! its caller does not wait for any more, as real transports do, and none of a caller without
//! access. Calls that a node had not answered when it ended fail with an unknown effect.
//!
//! In adversarial mode a request may be held up, and one whose caller has crashed arrives now,
//! never, or as late as a verb of a crashed node may execute.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::SimShared;
use super::crash::CrashPlan;
use super::transport::SimTransport;
use super::world::{Event, World};
use crate::addr::NodeId;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::rpc::{ServiceId, WithoutCalls, check_reply};
use crate::transport::Ticket;

/// A call that has arrived.
pub(super) struct HeldCall {
    list: u32,
    ticket: Ticket,
    host: Arc<Host>,
    from: Arc<Host>,
    service: ServiceId,
    request: Vec<u8>,
}

/// The calls that wait for their turn at a node. It goes with the task that answers them.
type Inbox = RefCell<VecDeque<HeldCall>>;

/// Those of all nodes, each of an incarnation.
pub(super) type Inboxes = BTreeMap<NodeId, (Arc<Host>, Weak<Inbox>)>;

impl World {
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
    fn answered(&mut self, call: &HeldCall, answer: Result<Vec<u8>>) {
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

impl SimTransport {
    /// Has calls answered by their nodes.
    pub(super) fn answer_held(&self, core: &Core, calls: Vec<HeldCall>) {
        for call in calls {
            let (host, node) = (call.host.clone(), call.host.node);
            let mut inboxes = self.inboxes.borrow_mut();
            let its = inboxes.get(&node).filter(|(on, _)| Arc::ptr_eq(on, &host));
            if let Some(inbox) = its.and_then(|(_, inbox)| inbox.upgrade()) {
                inbox.borrow_mut().push_back(call);
                continue;
            }
            match Self::new(self.shared.clone(), node, None) {
                Ok(thread) => {
                    let inbox = Rc::new(Inbox::new(VecDeque::from([call])));
                    inboxes.insert(node, (host, Rc::downgrade(&inbox)));
                    let shared = self.shared.clone();
                    core.tasks.spawn(|core, slot| {
                        let thread = WithoutCalls::serving(Rc::new(thread), None);
                        Box::pin(answer_all(shared, Endpoint::new(core, thread, slot), inbox))
                    });
                }
                Err(e) => self.shared.world().answered(&call, Err(e)),
            }
        }
    }
}

/// Answers the calls of a node until there are none.
async fn answer_all(shared: Arc<SimShared>, ep: Endpoint, inbox: Rc<Inbox>) {
    loop {
        let Some(call) = inbox.borrow_mut().pop_front() else { return };
        let answer = answer(&ep, &call).await;
        shared.world().answered(&call, answer);
    }
}

async fn answer(ep: &Endpoint, call: &HeldCall) -> Result<Vec<u8>> {
    if ep.core().is_given_up(call.ticket) {
        return Err(Error::timed_out("the call is too old"));
    }
    // A caller may have lost its access while the call waited for its turn.
    if let Some(refused) = call.host.refusal(&call.from) {
        return Err(refused);
    }
    let handler = call.host.rpc.handler(call.host.node, call.service)?;
    ep.renew_deadline();
    let reply = handler.call(ep, call.from.node, &call.request).await?;
    check_reply(call.host.node, reply)
}
