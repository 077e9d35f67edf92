//! The transport of a client thread: a link per host for calls, and for verbs where they are
//! frames. With frames it accesses its own node's memory directly.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::NodeShared;
use super::direct::Direct;
use super::link::{Ended, Link, USE_WITHIN_NS};
use super::service::{Call, Reply};
use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::core::Core;
use crate::direct::DirectMemory;
use crate::error::{Error, Result};
use crate::rpc::RpcCall;
use crate::slots::Slots;
use crate::sync::locked;
use crate::transport::{Idle, Nanos, Progress, Ticket, Transport, WorkRequest, poll_until};

/// A frame is executed wholly or not at all.
pub(super) const CAPS: Capabilities =
    Capabilities { whole_write_bytes: u32::MAX, cas_fail_is_readonly: true, ..Capabilities::NONE };

/// Longest wait for a socket at a time: a wake from another thread is not noticed meanwhile.
const NAP_NS: Nanos = 200_000;
/// Deadline of a call to a service of the own node, ns.
const OWN_CALL_NS: Nanos = 2_000_000_000;

/// A posted list with parts in flight.
struct PostedList {
    ticket: Ticket,
    parts: u32,
    failed: Option<Error>,
    /// All of it goes to one node: where that fails without an effect, the list has none.
    is_single: bool,
}

impl PostedList {
    fn result(self) -> Result<()> {
        match self.failed {
            Some(e) if !self.is_single => Err(e.effect_unknown()),
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

/// A call to a service of the own node.
type OwnCall = (Ticket, Arc<Mutex<Option<Result<Vec<u8>>>>>);

pub(crate) struct NetTransport {
    pub(super) shared: Arc<NodeShared>,
    /// Queue pairs, in a pool over RDMA. They are dropped before the links that they depend on.
    direct: Option<Direct>,
    pub(super) links: RefCell<BTreeMap<NodeId, Link>>,
    /// [`NodeShared::incarnations_news`] at the last check of the links.
    news_seen: Cell<u64>,
    lists: RefCell<Slots<PostedList>>,
    own_calls: RefCell<Vec<OwnCall>>,
    ended: RefCell<Vec<Ended>>,
    scratch: Cell<Vec<NodeId>>,
}

impl NetTransport {
    pub(super) fn new(shared: Arc<NodeShared>) -> Result<Self> {
        let direct = shared.rdma.as_ref().map(|rdma| Direct::open(rdma, shared.me)).transpose()?;
        Ok(Self {
            shared,
            direct,
            links: RefCell::default(),
            news_seen: Cell::new(0),
            lists: RefCell::default(),
            own_calls: RefCell::default(),
            ended: RefCell::default(),
            scratch: Cell::default(),
        })
    }

    /// Runs `f` with the link to a node, connecting if need be.
    pub(super) fn with_link<T>(
        &self,
        node: NodeId,
        f: impl FnOnce(&mut Link) -> Result<T>,
    ) -> Result<T> {
        self.shared.verdicts.check_presence(node)?;
        let mut links = self.links.borrow_mut();
        let now = self.shared.now();
        if let Some(link) = links.get_mut(&node) {
            let known = self.shared.known_incarnation(node);
            let is_stale = known.is_some_and(|l| link.is_found() && l != link.to().incarnation);
            let is_held = link.is_busy() || link.has_queue_pair();
            match link.is_broken() {
                None if !is_stale => return f(link),
                Some(e) if is_held => return Err(e),
                None if is_held => return Err(restarted(node)),
                Some(_) if !is_stale && let Some(e) = link.is_down(now) => return Err(e),
                _ => _ = links.remove(&node),
            }
        }
        let link = Link::open(&self.shared, node)?;
        f(links.entry(node).or_insert(link))
    }

    /// A part of a list has ended; the list itself, if it was the last.
    fn end_part(&self, list_id: u32, result: Result<()>) -> Option<(Ticket, Result<()>)> {
        let mut lists = self.lists.borrow_mut();
        let l = lists.at(list_id);
        l.parts = l.parts.saturating_sub(1);
        if let Err(e) = result {
            l.failed.get_or_insert(e);
        }
        if l.parts > 0 {
            return None;
        }
        let l = lists.take(list_id);
        Some((l.ticket, l.result()))
    }

    /// Advances busy links, and with `all` also those that only a queue pair depends on; reports
    /// ended parts. Returns whether there were any.
    pub(super) fn poll_links(&self, core: &Core, all: bool) -> bool {
        let mut ended = self.ended.take();
        self.abandon_dead_hosts(&mut ended);
        let moves = |link: &&mut Link| link.is_busy() || (all && link.has_queue_pair());
        for link in self.links.borrow_mut().values_mut().filter(moves) {
            link.drive(&self.shared, &mut ended);
        }
        self.own_calls.borrow_mut().retain(|(ticket, place)| {
            let reply = locked(place).take();
            let open = reply.is_none();
            ended.extend(reply.map(|r| Ended::Call(*ticket, r)));
            open
        });
        let made = !ended.is_empty();
        // No borrow is held here, because hooks may post.
        for e in ended.drain(..) {
            self.report(core, e);
        }
        self.ended.replace(ended);
        made
    }

    /// Ends links to dead incarnations, with everything in flight on them.
    fn abandon_dead_hosts(&self, ended: &mut Vec<Ended>) {
        let news = self.shared.incarnations_news.load(Ordering::Acquire);
        if self.news_seen.replace(news) == news {
            return;
        }
        for link in self.links.borrow_mut().values_mut() {
            if let Err(why) = self.shared.verdicts.check_incarnation(link.to()) {
                link.abandon(why, ended);
            }
        }
    }

    fn report(&self, core: &Core, e: Ended) {
        match (e, &self.direct) {
            (Ended::Part(list_id, result), _) => {
                if let Some((ticket, result)) = self.end_part(list_id, result) {
                    core.complete(ticket, result);
                }
            }
            (Ended::Call(ticket, Ok(reply)), _) => {
                core.complete_rpc(ticket, reply);
                core.complete(ticket, Ok(()));
            }
            (Ended::Call(ticket, Err(e)), _) => core.complete(ticket, Err(e)),
            (e, Some(direct)) => self.report_direct(core, direct, e),
            // Nothing was offered.
            (_, None) => {}
        }
    }

    fn serve_own(&self, list: &[WorkRequest]) -> Result<()> {
        let own = self.shared.me.node;
        let mut mine = list.iter().filter(|wr| wr.at.node() == own);
        mine.try_for_each(|wr| self.shared.host.serve(wr)).map_err(Error::effect_unknown)
    }

    /// Posts the parts of a list; those that could not be posted have failed.
    fn post_parts(&self, list_id: u32, nodes: &[NodeId], list: &[WorkRequest]) {
        for node in nodes {
            let verbs = list.iter().filter(|wr| wr.at.node() == *node);
            let posted = match *node == self.shared.me.node {
                true => self.serve_own(list).map(|()| false),
                false => self
                    .with_link(*node, |link| link.post(self.shared.now(), list_id, verbs))
                    .map(|()| true),
            };
            let mut lists = self.lists.borrow_mut();
            let l = lists.at(list_id);
            match posted {
                Ok(remote) => l.parts += u32::from(remote),
                Err(e) => _ = l.failed.get_or_insert(e),
            }
        }
    }
}

impl Transport for NetTransport {
    fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        if let Some(direct) = &self.direct {
            return direct.post(core, ticket, list);
        }
        let own = self.shared.me.node;
        if list.iter().all(|wr| wr.at.node() == own) {
            return Poll::Ready(self.serve_own(list));
        }
        let mut nodes = self.scratch.take();
        nodes.clear();
        for wr in list {
            if !nodes.contains(&wr.at.node()) {
                nodes.push(wr.at.node());
            }
        }
        let is_single = nodes.len() == 1;
        let opened = PostedList { ticket, parts: 0, failed: None, is_single };
        let list_id = self.lists.borrow_mut().put(opened);
        self.post_parts(list_id, &nodes, list);
        self.scratch.set(nodes);
        let mut lists = self.lists.borrow_mut();
        match lists.at(list_id).parts {
            0 => Poll::Ready(lists.take(list_id).result()),
            _ => Poll::Pending,
        }
    }

    fn own_memory(&self) -> Option<&dyn DirectMemory> {
        Some(&*self.shared.host)
    }

    fn rpc(&self, _core: &Core, ticket: Ticket, call: RpcCall<'_>) -> Poll<Result<Vec<u8>>> {
        let RpcCall { to, service, request } = call;
        let now = self.shared.now();
        if to == self.shared.me.node {
            let place = Arc::default();
            self.shared.call(Call {
                from: self.shared.me,
                service,
                request: request.to_vec(),
                use_by: now + OWN_CALL_NS,
                reply: Reply::Here(Arc::clone(&place)),
            });
            self.own_calls.borrow_mut().push((ticket, place));
            return Poll::Pending;
        }
        let called = self.with_link(to, |link| {
            link.call(now, ticket, service, request);
            Ok(())
        });
        match called {
            Ok(()) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn poll(&self, core: &Core) -> Progress {
        match &self.direct {
            Some(direct) => self.poll_direct(core, direct),
            None if self.poll_links(core, false) => Progress::Made,
            None => Progress::Idle(None),
        }
    }

    fn drain_detached(&self, core: &Core) {
        let Some(direct) = &self.direct else { return };
        poll_until(self, core, || direct.is_idle());
    }

    fn idle(&self, _core: &Core, due: Option<Nanos>, spins: u32) -> Idle {
        let longest = due.map_or(50_000_000, |due| due.saturating_sub(self.now()));
        // Completions of queue pairs wake no thread: poll instead of waiting.
        if spins < 4 || self.direct.as_ref().is_some_and(Direct::waits) {
            std::thread::yield_now();
            return Idle::Again;
        }
        let links = self.links.borrow();
        let sockets: Vec<_> = links.values().filter_map(Link::waits_for).collect();
        let busy = links.values().any(Link::is_busy) || !self.own_calls.borrow().is_empty();
        let most = if busy || !sockets.is_empty() { NAP_NS } else { 1_000_000 };
        self.shared.net.wait(&sockets, longest.min(most));
        Idle::Again
    }

    fn now(&self) -> Nanos {
        self.shared.now()
    }

    fn driver(&self) -> u64 {
        self.shared.net.driver()
    }

    fn caps(&self) -> Capabilities {
        self.shared.caps
    }

    fn node(&self) -> NodeId {
        self.shared.me.node
    }

    fn peek(&self, offset: u64) -> Option<u64> {
        self.shared.host.region.peek(offset)
    }
}

impl Drop for NetTransport {
    /// Posted verbs are executed, as far as that can be waited for: an unlock must not be lost with
    /// its executor.
    fn drop(&mut self) {
        let (shared, links) = (&self.shared, self.links.get_mut());
        links.values_mut().for_each(Link::disown);
        if !shared.net.has_threads() {
            return;
        }
        let until = shared.now() + USE_WITHIN_NS;
        let mut ended = Vec::new();
        while shared.now() < until {
            links.values_mut().filter(|l| l.is_busy()).for_each(|l| l.drive(shared, &mut ended));
            // No caller is left for the outcome.
            ended.clear();
            if !links.values().any(Link::is_busy) {
                return;
            }
            let sockets: Vec<_> = links.values().filter_map(Link::waits_for).collect();
            shared.net.wait(&sockets, NAP_NS * 5);
        }
    }
}

#[cold]
pub(super) fn restarted(node: NodeId) -> Error {
    Error::unreachable(format!("{node} has restarted: try again"))
}
