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
use std::sync::atomic::Ordering;

use super::SimShared;
use super::transport::SimTransport;
use crate::addr::NodeId;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::rpc::{ServiceId, WithoutCalls, check_reply};
use crate::transport::Ticket;

/// A call that has arrived.
pub(super) struct HeldCall {
    pub list: u32,
    pub ticket: Ticket,
    pub host: Arc<Host>,
    pub from: Arc<Host>,
    pub service: ServiceId,
    pub request: Vec<u8>,
}

/// The calls that wait for their turn at a node. It goes with the task that answers them.
type Inbox = RefCell<VecDeque<HeldCall>>;

/// Those of all nodes, each of an incarnation.
pub(super) type Inboxes = BTreeMap<NodeId, (Arc<Host>, Weak<Inbox>)>;

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
        // A handler that ends without a verb may be ahead of the clock by its charged work: then
        // its answer waits, and the next call.
        if ep.now() > shared.now.load(Ordering::Relaxed) / 1000 {
            ep.sleep(0).await;
        }
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
