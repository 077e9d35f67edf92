//! The client's side: one thread's connections to all hosts. The embedder carries offers and
//! answers between client and host; this module reports the connections that verbs wait for, and
//! the broken ones.
//!
//! A list waits for the connections of its peers. If it fits as a whole once others have completed,
//! it waits for that and is launched as one flight per peer. A list that exceeds the queue depth,
//! or the thread's share of the NIC's outstanding verbs, takes several flights. Requests are staged
//! into the send queue of a peer, and the doorbell is rung at the next poll, once for all clients
//! of the thread that have posted meanwhile.
//!
//! A flight asks for one completion, of its last request. The completion carries the slot and the
//! generation of the flight. A stale one is ignored, so that completions of a destroyed queue pair
//! do no harm.
//!
//! *Broken connections.* The client destroys its queue pair first, and only then accounts the
//! flights as doomed: after that the NIC touches no buffer. It reports a doomed flight when the
//! other end is confirmed to be closed, or after `linger_ns`, because until then the host may still
//! execute its verbs. The effect of these verbs is unknown.
//!
//! *Lost wake-ups.* A driver may stop without a completion. A connection that completes nothing for
//! `nudge_ns` gets an empty WRITE, and is given up some time later, so that no wait is without end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::config::Config;
use super::flights::Flights;
use super::memory::Keys;
use super::nic::{Nic, failed};
use super::offer::{Answer, End, Offer};
use super::peers::{ConnectionState, Peer, Peers};
use super::queue_pair::{QueuePair, Sizes, packet_number};
use super::send::{self, Completion, POLL_BATCH, Remote, SendQueue, WorkId};
use crate::addr::NodeId;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::membership::Member;
use crate::slab::Slab;
use crate::transport::{Nanos, Progress, Ticket, WorkRequest};

/// Statistics of a client thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of `ibv_post_send`.
    pub doorbells: u64,
    /// Requests posted by them.
    pub requests: u64,
    /// Requests with their payload inside.
    pub inline: u64,
    /// Completions of success taken.
    pub completions: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that broke or were given up.
    pub breaks: u64,
    /// Empty WRITEs posted to connections that completed nothing for long.
    pub nudges: u64,
    /// Memory registrations.
    pub registrations: u64,
}

/// One thread's connections. All of its verbs complete through one queue.
pub struct Client {
    state: RefCell<ClientState>,
    /// Outcomes to be reported, kept for its memory.
    done: RefCell<Vec<(Ticket, Result<()>)>>,
    clock: std::time::Instant,
    /// When a broken connection is given up without a confirmation; 0 while there is none.
    lingers: Cell<Nanos>,
    polls: Cell<u32>,
    nic: Arc<Nic>,
    me: Member,
}

struct ClientState {
    /// Fields go in this order: queue pairs before keys, keys before the words that they open.
    queues: Vec<Option<SendQueue>>,
    keys: Keys,
    words: Vec<Box<[u64]>>,
    peers: Peers,
    flights: Flights,
    /// Lists that wait for room, in order; and how far each has come.
    backlog: VecDeque<Waiting>,
    outstanding: u32,
    /// Peers that the list being launched goes to, kept for its memory.
    touched: Vec<u16>,
    /// Peers with staged requests: their doorbells are rung at the next poll, once for all lists
    /// posted meanwhile.
    unrung: Vec<u16>,
    /// Peers with a connection that failed while completions were taken.
    failing: Vec<(u16, Error)>,
    found: [Completion; POLL_BATCH],
    /// Why hosts' NICs refuse verbs of this client, where its queue pairs take READs alone.
    denied: Option<Error>,
    cq: GenericCompletionQueue,
    pd: Arc<ProtectionDomain>,
    _context: Arc<DeviceContext>,
    stats: Stats,
}

/// A list, and which of its requests comes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub ticket: Ticket,
    next: usize,
}

/// Polls between two looks at connections that complete nothing: a look reads the clock.
const WATCH_ONE_IN: u32 = 256;

/// The outcome of an attempt to launch a list.
enum Launch {
    All,
    /// Up to this request; the rest waits for room.
    Part(usize),
    /// Waits for a connection.
    Parked,
    /// Will not be launched any further.
    Refused(Error),
}

type Done = Vec<(Ticket, Result<()>)>;

impl Drop for Client {
    fn drop(&mut self) {
        self.nic.remove_client();
    }
}

impl Client {
    /// A client thread of `me`. `denied` is the error of a verb that a host's NIC refuses, where
    /// hosts let this client READ and do nothing else.
    ///
    /// # Errors
    /// `Unsupported` when the device refuses, with the remedy.
    #[expect(clippy::disallowed_methods, reason = "how long broken connections linger")]
    pub fn open(nic: Arc<Nic>, me: Member, denied: Option<Error>) -> Result<Self> {
        let context = nic.context()?;
        let pd = context
            .alloc_pd()
            .map_err(|e| failed("no protection domain", &e, "see `dmtree doctor`"))?;
        let cq = context.create_cq_builder().setup_cqe(nic.limits.completions).build();
        let cq =
            cq.map_err(|e| failed("no completion queue", &e, "lower the setting outstanding"))?;
        nic.add_client();
        let state = ClientState {
            queues: Vec::new(),
            keys: Keys::new(pd.clone()),
            words: Vec::new(),
            peers: Peers::default(),
            flights: Flights::default(),
            backlog: VecDeque::new(),
            outstanding: 0,
            touched: Vec::new(),
            unrung: Vec::new(),
            failing: Vec::new(),
            found: [Completion::NONE; POLL_BATCH],
            denied,
            cq: cq.into(),
            pd,
            _context: context,
            stats: Stats::default(),
        };
        let (state, done, clock) =
            (RefCell::new(state), RefCell::default(), std::time::Instant::now());
        let (lingers, polls) = (Cell::new(0), Cell::new(0));
        Ok(Self { state, done, clock, lingers, polls, nic, me })
    }

    /// Its statistics.
    pub fn stats(&self) -> Stats {
        let s = self.state.borrow();
        Stats { registrations: s.keys.registrations() as u64, ..s.stats }
    }

    /// Verbs posted and not completed.
    pub fn outstanding(&self) -> u32 {
        self.state.borrow().outstanding
    }

    /// Whether nothing of it is in flight or waits.
    pub fn is_idle(&self) -> bool {
        let s = self.state.borrow();
        s.outstanding == 0 && s.backlog.is_empty() && s.peers.is_quiet()
    }

    // ---- connections
    // ------------------------------------------------------------------------------

    /// A node that verbs wait for: `offer`, then `connect` or `refuse`. Each is named once.
    pub fn next_wanted(&self) -> Option<NodeId> {
        self.state.borrow_mut().peers.next_wanted()
    }

    /// A node at which the end of a broken connection must be closed: then `closed`. Each is named
    /// once.
    pub fn next_broken(&self) -> Option<NodeId> {
        self.state.borrow_mut().peers.next_broken()
    }

    /// Makes this end of a connection; the other end's [`super::Port::accept`] takes the bytes.
    ///
    /// # Errors
    /// `Exists` when there is a connection, `Unsupported` when the device refuses.
    pub fn offer(&self, to: NodeId) -> Result<Vec<u8>> {
        let s = &mut *self.state.borrow_mut();
        let p = s.peers.find(to);
        match s.peers[p].standing {
            ConnectionState::Connected | ConnectionState::Broken => {
                return Err(Error::exists(format!("there is a connection to {to} still")));
            }
            ConnectionState::Idle | ConnectionState::Wanted | ConnectionState::Offered => {}
        }
        let wanted =
            Sizes { depth: self.nic.limits.depth, inline_bytes: self.nic.config.inline_bytes };
        let (mut qp, sizes) = QueuePair::new(&s.pd, &s.cq, wanted)?;
        qp.init(&self.nic, false)?;
        let own = End::new(self.me, &self.nic, qp.number(), packet_number(qp.number()));
        let bytes = Offer::new(to, own.clone()).to_bytes()?;
        s.peers[p].offered = Some((qp, sizes, own));
        s.peers[p].standing = ConnectionState::Offered;
        Ok(bytes)
    }

    /// Completes the connection with the host's answer; the verbs that waited for it go.
    ///
    /// # Errors
    /// `Incompatible` for an answer that does not fit, `Unsupported` when the device refuses. Verbs
    /// that waited fail with it, too.
    pub fn connect(&self, core: &Core, to: NodeId, answer: &[u8]) -> Result<()> {
        let connected = self.state.borrow_mut().connect(&self.nic, to, answer);
        self.resume(core, connected.inspect_err(|e| self.refuse(core, to, e))?);
        Ok(())
    }

    /// There will be no connection: the verbs that waited for it fail.
    pub fn refuse(&self, core: &Core, to: NodeId, why: &Error) {
        self.change(core, |s, done| {
            let p = s.peers.find(to);
            let peer = &mut s.peers[p];
            peer.offered = None;
            peer.standing = ConnectionState::Idle;
            for w in std::mem::take(&mut peer.parked) {
                done.extend(s.flights.launched(w.ticket, Some(why.clone())));
            }
        });
    }

    /// Breaks a connection. Verbs in flight end with `why`, once the other end is closed: see
    /// `next_broken`.
    pub fn disconnect(&self, core: &Core, to: NodeId, why: &Error) {
        self.change(core, |s, done| {
            let p = s.peers.find(to);
            s.take_completions(done);
            s.break_up(p as u16, why);
        });
    }

    /// The other end of a broken connection is gone: nothing of this thread executes there any
    /// more. Reports its verbs; `why` replaces the recorded error.
    pub fn closed(&self, core: &Core, to: NodeId, why: Option<&Error>) {
        self.change(core, |s, done| {
            s.close(to, why, done);
            if !s.peers.has_broken() {
                self.lingers.set(0);
            }
        });
    }

    /// Changes the state, and reports the outcomes.
    fn change(&self, core: &Core, how: impl FnOnce(&mut ClientState, &mut Done)) {
        let mut done = self.done.take();
        how(&mut self.state.borrow_mut(), &mut done);
        self.report(core, done);
    }

    /// Sets the time at which broken connections are given up.
    fn linger(&self) {
        if self.lingers.get() == 0 && self.state.borrow().peers.has_broken() {
            self.lingers.set(self.now() + self.nic.config.linger_ns);
        }
    }

    fn now(&self) -> Nanos {
        self.clock.elapsed().as_nanos() as Nanos + 1
    }

    // ---- verbs
    // ------------------------------------------------------------------------------------

    /// As [`crate::Transport::post`]; doorbells are rung at the next poll, which an executor makes
    /// before it waits. A list that goes to a node without a connection waits for it: see
    /// `next_wanted`.
    pub fn post(&self, core: &Core, ticket: Ticket, list: &[WorkRequest]) -> Poll<Result<()>> {
        let s = &mut *self.state.borrow_mut();
        s.flights.open(ticket);
        let waiting = Waiting { ticket, next: 0 };
        if !s.backlog.is_empty() {
            s.backlog.push_back(waiting);
            return Poll::Pending;
        }
        let outcome = match s.launch(&self.nic, core.slab(), waiting, list) {
            Launch::All => s.flights.launched(ticket, None),
            Launch::Part(next) => {
                s.backlog.push_back(Waiting { ticket, next });
                None
            }
            Launch::Parked => None,
            Launch::Refused(e) => s.flights.launched(ticket, Some(e)),
        };
        match outcome {
            Some((_, result)) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }

    /// As [`crate::Transport::poll`].
    pub fn poll(&self, core: &Core) -> Progress {
        let mut done = self.done.take();
        let (taken, is_free, has_broken) = {
            let s = &mut *self.state.borrow_mut();
            s.ring();
            let taken = s.take_completions(&mut done);
            self.polls.set(self.polls.get().wrapping_add(1));
            if s.outstanding > 0 && self.polls.get().is_multiple_of(WATCH_ONE_IN) {
                s.watch(&self.nic.config, self.now());
            }
            let is_free = !s.backlog.is_empty() && (taken > 0 || s.outstanding == 0);
            (taken, is_free, s.peers.has_broken())
        };
        if has_broken {
            self.linger();
            self.give_up_lingering(&mut done);
        }
        let ended = done.len();
        self.report(core, done);
        if is_free {
            self.resume_backlog(core);
            self.state.borrow_mut().ring();
        }
        if taken + ended > 0 || is_free { Progress::Made } else { Progress::Idle(None) }
    }

    /// Gives up broken connections without a confirmed close of the other end: by then no packet of
    /// them is left.
    fn give_up_lingering(&self, done: &mut Done) {
        let s = &mut *self.state.borrow_mut();
        if self.now() >= self.lingers.get() {
            while let Some(node) = s.peers.any_broken() {
                s.close(node, None, done);
            }
            self.lingers.set(0);
        }
    }

    /// Tries lists again that waited for a connection.
    fn resume(&self, core: &Core, parked: Vec<Waiting>) {
        let was_empty = self.state.borrow().backlog.is_empty();
        self.state.borrow_mut().backlog.extend(parked);
        if was_empty {
            self.resume_backlog(core);
        }
    }

    /// Launches as many lists as there is room for.
    fn resume_backlog(&self, core: &Core) {
        let mut done = self.done.take();
        loop {
            let s = &mut *self.state.borrow_mut();
            let Some(waiting) = s.backlog.pop_front() else { break };
            let ticket = waiting.ticket;
            if s.flights.has_failed(ticket) {
                done.extend(s.flights.launched(ticket, None));
                continue;
            }
            let launch = |list: &[WorkRequest]| s.launch(&self.nic, core.slab(), waiting, list);
            match core.with_requests(ticket, launch) {
                Launch::All => done.extend(s.flights.launched(ticket, None)),
                Launch::Part(next) => {
                    s.backlog.push_front(Waiting { ticket, next });
                    break;
                }
                Launch::Parked => {}
                Launch::Refused(e) => done.extend(s.flights.launched(ticket, Some(e))),
            }
        }
        self.report(core, done);
    }

    /// Reports outcomes. No borrow is held here, because hooks may post.
    fn report(&self, core: &Core, mut done: Done) {
        for (ticket, result) in done.drain(..) {
            core.complete(ticket, result);
        }
        self.done.replace(done);
    }
}

impl ClientState {
    /// Stages as much of a list as there is room for.
    fn launch(&mut self, nic: &Nic, slab: &Slab, from: Waiting, list: &[WorkRequest]) -> Launch {
        let room = nic.share().saturating_sub(self.outstanding);
        let needed = match self.check(from, list) {
            Ok(Some(needed)) => needed,
            Ok(None) => return Launch::Parked,
            Err(e) => return Launch::Refused(e),
        };
        // A list that fits as a whole once others have completed waits for that: one doorbell.
        if needed > room && self.outstanding > 0 {
            return Launch::Part(from.next);
        }
        let mut next = from.next;
        let mut staged = 0;
        let mut refused = None;
        for wr in &list[from.next..] {
            let p = self.peers.find(wr.at.node());
            let Some(queue) = &mut self.queues[p] else { break };
            let pieces = queue.remote.pieces(wr);
            if pieces > queue.room() || (staged > 0 && staged + pieces > room) {
                break;
            }
            let lkey = match wr.local.is_null() {
                true => 0,
                false => match self.keys.key(slab, wr.chunk) {
                    Ok(key) => key,
                    Err(e) => {
                        refused = Some(e);
                        break;
                    }
                },
            };
            if queue.staged() == 0 {
                self.unrung.push(p as u16);
            }
            if !self.touched.contains(&(p as u16)) {
                self.peers[p].flight = self.flights.launch(from.ticket, p as u16);
                self.touched.push(p as u16);
            }
            let id = self.peers[p].flight;
            self.stats.inline += u64::from(queue.stage(wr, lkey, &mut self.words[p], id));
            self.flights.get_mut(id).requests += pieces;
            self.outstanding += pieces;
            staged += pieces;
            next += 1;
        }
        while let Some(p) = self.touched.pop() {
            if let Some(queue) = &mut self.queues[p as usize] {
                queue.seal();
            }
        }
        if next < list.len() {
            self.ring();
        }
        match refused {
            Some(e) => Launch::Refused(e),
            None if next == list.len() => Launch::All,
            None => Launch::Part(next),
        }
    }

    /// The number of a node, which has a place for a queue.
    fn place_of(&mut self, node: NodeId) -> usize {
        let p = self.peers.find(node);
        if self.queues.len() <= p {
            self.queues.resize_with(p + 1, || None);
            self.words.resize_with(p + 1, Box::default);
        }
        p
    }

    /// Whether the rest of a list can go: how many requests it is; `None` when it was parked at a
    /// peer without a connection.
    fn check(&mut self, from: Waiting, list: &[WorkRequest]) -> Result<Option<u32>> {
        let mut needed = 0;
        for wr in &list[from.next..] {
            let p = self.place_of(wr.at.node());
            let Some(queue) = &self.queues[p] else {
                self.peers.park(p, from);
                return Ok(None);
            };
            queue.remote.check(wr)?;
            let pieces = queue.remote.pieces(wr);
            if pieces > queue.depth() {
                return Err(Error::invalid(format!(
                    "{} bytes at {} need {pieces} requests, and the send queue has {}",
                    wr.len,
                    wr.at,
                    queue.depth()
                )));
            }
            needed += pieces;
        }
        Ok(Some(needed))
    }

    /// One doorbell for each peer with staged requests.
    fn ring(&mut self) {
        while let Some(p) = self.unrung.pop() {
            // The connection may have broken, and been replaced, since requests were staged for it.
            let Some(queue) = &mut self.queues[p as usize] else { continue };
            if queue.staged() == 0 {
                continue;
            }
            self.stats.doorbells += 1;
            self.stats.requests += u64::from(queue.staged());
            if let Err(errno) = queue.ring() {
                let e = std::io::Error::from_raw_os_error(errno);
                let node = self.peers[p as usize].node;
                let why = Error::unreachable(format!(
                    "the NIC takes no verbs for {node} ({e}); try again"
                ));
                self.failing.push((p, why));
            }
        }
        self.break_up_failing();
    }

    /// Takes completions that are there; how many.
    fn take_completions(&mut self, done: &mut Done) -> usize {
        let mut taken = 0;
        loop {
            let n = match send::poll(&self.cq, &mut self.found) {
                Ok(n) => n,
                Err(e) => {
                    self.failing.extend((0..self.queues.len() as u16).map(|p| (p, e.clone())));
                    break;
                }
            };
            for i in 0..n {
                self.complete(self.found[i], done);
            }
            taken += n;
            if n < POLL_BATCH {
                break;
            }
        }
        self.break_up_failing();
        taken
    }

    fn complete(&mut self, c: Completion, done: &mut Done) {
        if c.id.flight == WorkId::NUDGE {
            if let Some(Some(queue)) = self.queues.get_mut(c.id.generation as usize) {
                queue.nudged();
            }
            return;
        }
        self.stats.completions += u64::from(c.status == 0);
        let Some(&mut flight) = self.flights.flying(c.id) else { return };
        let p = flight.peer;
        if c.status != 0 {
            if !self.failing.iter().any(|(failing, _)| *failing == p) {
                let denied = self.denied.clone().filter(|_| c.status == NOT_ALLOWED);
                let why = denied.unwrap_or_else(|| reason(self.peers[p as usize].node, c.status));
                self.failing.push((p, why));
            }
            return;
        }
        self.outstanding -= flight.requests;
        if let Some(queue) = &mut self.queues[p as usize] {
            queue.retire(flight.requests);
        }
        done.extend(self.flights.land(c.id.flight));
    }

    /// Looks for connections that complete nothing, which the NIC's own timeouts should have
    /// failed.
    fn watch(&mut self, config: &Config, now: Nanos) {
        for (p, queue) in self.queues.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            let quiet_ns = queue.quiet_for(now);
            if quiet_ns > config.give_up_ns() {
                let node = self.peers[p].node;
                let what = format!(
                    "{node} has completed nothing for {} ms, and the NIC reports no failure; try again",
                    quiet_ns / 1_000_000
                );
                self.failing.push((p as u16, Error::unreachable(what)));
            } else if quiet_ns > config.nudge_ns && queue.nudge(p as u16) {
                self.stats.nudges += 1;
            }
        }
        self.break_up_failing();
    }

    fn break_up_failing(&mut self) {
        while let Some((p, why)) = self.failing.pop() {
            self.break_up(p, &why);
        }
    }

    /// Ends a connection at this side: nothing of it touches a buffer any more. The other end may
    /// still execute packets in flight.
    fn break_up(&mut self, p: u16, why: &Error) {
        let Some(mut queue) = self.queues.get_mut(p as usize).and_then(Option::take) else {
            return;
        };
        queue.fail();
        drop(queue);
        self.outstanding -= self.flights.crash_plan(p, why);
        self.stats.breaks += 1;
        self.peers.broke(p as usize);
    }

    /// The other end is gone: reports the doomed flights, and lets verbs that wait ask for a new
    /// connection.
    fn close(&mut self, node: NodeId, why: Option<&Error>, done: &mut Done) {
        let p = self.peers.find(node);
        if self.peers[p].standing != ConnectionState::Broken {
            return;
        }
        while let Some(flight) = self.flights.next_doomed(p as u16, why) {
            done.extend(self.flights.land(flight));
        }
        self.peers.closed(p);
    }

    fn connect(&mut self, nic: &Nic, to: NodeId, answer: &[u8]) -> Result<Vec<Waiting>> {
        let p = self.place_of(to);
        let Some((mut qp, sizes, own)) = self.peers[p].offered.take() else {
            return Err(Error::invalid(format!("an answer of {to}, which was offered nothing")));
        };
        let answer = Answer::parse(to, own.qpn, answer)?;
        let agreed = own.agree(&answer.host)?;
        qp.connect(nic, &own, &answer.host, agreed)?;
        if self.words[p].len() < sizes.depth as usize {
            self.words[p] = vec![0; sizes.depth as usize].into();
            self.peers[p].words_key = None;
        }
        if sizes.inline_bytes < 8 && self.peers[p].words_key.is_none() {
            self.peers[p].words_key = Some(self.keys.own(&self.words[p])?);
        }
        let remote = Remote::new(&answer.memory);
        let key = self.peers[p].words_key;
        self.queues[p] = Some(SendQueue::new(qp, sizes, remote, key));
        self.stats.connections += 1;
        let Peer { standing, parked, .. } = &mut self.peers[p];
        *standing = ConnectionState::Connected;
        Ok(std::mem::take(parked))
    }
}

/// `IBV_WC_REM_INV_REQ_ERR`: the other end's queue pair does not take the verb.
const NOT_ALLOWED: u32 = 9;

/// A failed completion in words.
#[cold]
fn reason(node: NodeId, status: u32) -> Error {
    // Numbers of `ibv_wc_status`.
    let what = match status {
        5 => "the connection was taken down",
        NOT_ALLOWED | 11 => "it refused a verb: its memory has changed, perhaps it restarted",
        10 => "its memory is not registered any more, perhaps it restarted",
        12 | 19 => "it does not answer: it, or the network to it, is down",
        13 => "it is not ready to receive",
        _ => "the NIC reports a failure",
    };
    Error::unreachable(format!(
        "the connection to {node} broke: {what} (completion status {status}); try again"
    ))
}
