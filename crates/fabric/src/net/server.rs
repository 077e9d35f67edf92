//! The server of a node: one thread waits for all sockets, and executes the frames that arrive.
//!
//! The thread never waits for a peer: connections are state machines (`connection.rs`) that return
//! when they cannot advance. The poller is level-triggered, so a connection that returns early is
//! reported again.
//!
//! One call of [`Server::serve_ready`] waits for sockets, accepts a bounded number of connections,
//! advances the ready ones, takes the mail of other threads, and sweeps connections past their time
//! limits. Other threads never touch a connection: an answer of the service thread, or about a
//! queue pair, arrives as mail, and a waker ends the wait.
//!
//! Limits on peers (`limits.rs`) cover connections in all and per address, time to state a purpose,
//! bytes of unfinished frames, and bytes of answers that are not taken. A connection over a limit
//! is not read from until there is room, so that TCP slows its peer down; a connection that makes
//! no progress is closed. When descriptors run out, the oldest connection without a stated purpose
//! makes room and accepting pauses, instead of a loop that fails.
//!
//! A link is admitted under the lock of the sessions. So a thread that revokes a member's access,
//! or closes the node, either prevents the link or finds it and ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind as Io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::NodeShared;
use super::connection::{Connection, ServeContext};
use super::execute::Ends;
use super::io::{Interest, Listener, Poller, Ready, Stream};
use super::limits::{Limits, Room};
use super::sessions::Mail;
use crate::error::{Error, Result};
use crate::transport::Nanos;

/// The token of the listening socket.
const LISTENER: u64 = 0;
/// Connections that are accepted before the present ones are served.
const ACCEPTED_AT_A_TIME: usize = 64;
/// Interval of the sweep for connections that are too slow, ns.
pub(super) const SWEEP_NS: Nanos = 250_000_000;
/// Pause of accepting after a failed accept: descriptors or memory have run out, ns.
const PAUSE_NS: Nanos = 50_000_000;
/// Pause of accepting while too many peers are not known, ns.
const SHORT_PAUSE_NS: Nanos = 2_000_000;
/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// The thread's state.
pub(super) struct Server {
    shared: Arc<NodeShared>,
    limits: Limits,
    poller: Box<dyn Poller>,
    listener: Box<dyn Listener>,
    connections: BTreeMap<u64, Connection>,
    /// How many of them come from an address.
    per_peer: BTreeMap<IpAddr, usize>,
    next_token: u64,
    room: Room,
    /// Connections that wait for room, or for their turn.
    waiting: BTreeSet<u64>,
    /// One of them waits for its turn alone.
    is_behind: bool,
    ready: Vec<Ready>,
    scratch: Vec<u8>,
    ends: Ends,
    swept_at: Nanos,
    /// Until when no connection is taken in.
    paused_until: Option<Nanos>,
}

impl Server {
    pub(super) fn new(shared: &Arc<NodeShared>, listener: Box<dyn Listener>) -> Result<Self> {
        let cannot = |e: std::io::Error| Error::busy(format!("cannot wait for peers: {e}"));
        let mut poller = shared.net.poller().map_err(cannot)?;
        poller.add(LISTENER, &*listener, Interest { read: true, write: false }).map_err(cannot)?;
        shared.sessions.set_waker(poller.waker());
        Ok(Self {
            shared: shared.clone(),
            limits: Limits::default().within_descriptors(),
            poller,
            listener,
            connections: BTreeMap::new(),
            per_peer: BTreeMap::new(),
            next_token: LISTENER + 1,
            room: Room::default(),
            waiting: BTreeSet::new(),
            is_behind: false,
            ready: Vec::new(),
            scratch: vec![0; CHUNK],
            ends: Ends::of(shared),
            swept_at: 0,
            paused_until: None,
        })
    }

    /// Waits for so long at most, and serves the sockets that are ready. Returns whether the node
    /// is still open.
    pub(super) fn serve_ready(&mut self, longest: Nanos) -> bool {
        let longest = match self.paused_until {
            Some(until) => longest.min(until.saturating_sub(self.shared.now())),
            None => longest,
        };
        let longest = if std::mem::take(&mut self.is_behind) { 0 } else { longest };
        let mut ready = std::mem::take(&mut self.ready);
        if self.poller.wait(longest, &mut ready).is_err() {
            // Pause instead of spinning: nothing that peers do makes a wait fail.
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        if self.shared.closing.load(Ordering::SeqCst) {
            return false;
        }
        for event in ready.drain(..) {
            match event.token {
                LISTENER => self.accept(),
                token => {
                    self.advance(token, event.read);
                    if event.is_over {
                        self.close(token);
                    }
                }
            }
        }
        self.ready = ready;
        self.handle_mail();
        for token in std::mem::take(&mut self.waiting) {
            self.advance(token, true);
        }
        self.check_time_limits();
        true
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_A_TIME {
            if !self.has_place() {
                return self.pause(SHORT_PAUSE_NS);
            }
            match self.listener.accept() {
                Ok((stream, ip)) => self.admit(stream, ip),
                Err(e) if e.kind() == Io::WouldBlock => return,
                // It was gone before it was taken in.
                Err(e) if matches!(e.kind(), Io::Interrupted | Io::ConnectionAborted) => {}
                Err(_) => {
                    // Descriptors have run out, or memory: the oldest connection without a stated
                    // purpose makes room, and new ones wait.
                    self.drop_ungreeted();
                    self.pause(PAUSE_NS);
                    return;
                }
            }
        }
    }

    fn pause(&mut self, ns: Nanos) {
        self.paused_until = Some(self.shared.now() + ns);
        let _ = self.poller.change(LISTENER, &*self.listener, Interest::default());
    }

    /// Whether there is a place for one more connection without a stated purpose. Takes that of the
    /// oldest one, unless it is young.
    fn has_place(&mut self) -> bool {
        let ungreeted = || self.connections.values().filter(|c| c.is_ungreeted());
        let (most, keeps) = (self.limits.ungreeted, self.limits.ungreeted_for_ns);
        if ungreeted().count() < most {
            return true;
        }
        let now = self.shared.now();
        let is_old = ungreeted().next().is_some_and(|oldest| oldest.since() + keeps <= now);
        is_old && self.drop_ungreeted()
    }

    fn drop_ungreeted(&mut self) -> bool {
        let oldest = self.connections.iter().find(|(_, c)| c.is_ungreeted()).map(|(t, _)| *t);
        oldest.is_some_and(|token| {
            self.close(token);
            true
        })
    }

    /// Accepts a connection, or closes it if there are too many.
    fn admit(&mut self, stream: Box<dyn Stream>, ip: IpAddr) {
        let from_there = self.per_peer.get(&ip).copied().unwrap_or(0);
        if self.connections.len() >= self.limits.connections || from_there >= self.limits.per_peer {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        let connection = Connection::new(&self.shared, token, stream, ip);
        if self.poller.add(token, &*connection.stream, connection.interest).is_err() {
            return;
        }
        *self.per_peer.entry(ip).or_default() += 1;
        self.connections.insert(token, connection);
        self.advance(token, true);
    }

    /// Advances a connection.
    fn advance(&mut self, token: u64, is_readable: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let mut context = ServeContext {
            shared: &self.shared,
            limits: &self.limits,
            room: &mut self.room,
            scratch: &mut self.scratch,
            now: self.shared.now(),
            ends: &self.ends,
        };
        if connection.advance(&mut context, is_readable).is_err() {
            return self.close(token);
        }
        if connection.waits_for_room() || connection.is_behind() {
            self.is_behind |= connection.is_behind();
            self.waiting.insert(token);
        }
        let wants = connection.wants();
        if wants != connection.interest {
            connection.interest = wants;
            if self.poller.change(token, &*connection.stream, wants).is_err() {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        connection.forget(&mut self.room);
        if let Some(session) = connection.session() {
            self.ends.leave(session);
        }
        self.poller.remove(&*connection.stream);
        if let Some(n) = self.per_peer.get_mut(&connection.ip) {
            *n -= 1;
            if *n == 0 {
                self.per_peer.remove(&connection.ip);
            }
        }
    }

    fn handle_mail(&mut self) {
        for mail in self.shared.sessions.take_mail() {
            let (token, frame, is_call) = match mail {
                Mail::Reply(token, frame) => (token, frame, true),
                Mail::AboutEnd(token, frame) => (token, frame, false),
                Mail::Close(token) => {
                    self.close(token);
                    continue;
                }
            };
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.answer(&frame, is_call);
                self.advance(token, true);
            }
        }
    }

    fn check_time_limits(&mut self) {
        let now = self.shared.now();
        if self.paused_until.is_some_and(|until| now >= until) {
            self.paused_until = None;
            let interest = Interest { read: true, write: false };
            let _ = self.poller.change(LISTENER, &*self.listener, interest);
        }
        if now < self.swept_at + SWEEP_NS {
            return;
        }
        self.swept_at = now;
        let is_late = |c: &Connection| c.is_late(&self.limits, &self.room, now);
        let late: Vec<u64> =
            self.connections.iter().filter(|(_, c)| is_late(c)).map(|(t, _)| *t).collect();
        for token in late {
            self.close(token);
        }
    }
}

impl Drop for Server {
    /// End the links first: the address must be free only when no frame executes any more.
    fn drop(&mut self) {
        for token in self.connections.keys().copied().collect::<Vec<_>>() {
            self.close(token);
        }
    }
}
