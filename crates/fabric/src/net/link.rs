//! A link: one client thread's connection to one host. It sends frames, receives outcomes, and
//! never blocks.
//!
//! A link is a state machine that [`Link::drive`] advances: it looks up its host's address,
//! connects, and sends the frames that were posted meanwhile. Frames that were never sent fail
//! without an effect when this does not succeed in time.
//!
//! A broken connection does not end the frames in flight: the host may still hold frames that it
//! has not executed. A frame in flight is over in one of four cases:
//!
//! - the host has said that the old link has ended, which it does before it grants a new one;
//! - no process listens at the host's address any more: the process and with it its memory is gone;
//! - the use-by time of the frame has passed: the host does not execute it any more;
//! - the membership has declared the host dead: no node uses its memory any more.
//!
//! The error of a broken frame is reported only then, because an error means that the verb can no
//! longer execute. Its effect is unknown, except where the frame was never sent.
//!
//! Use-by times are times of the host's clock. The link keeps a lower bound of the difference
//! between the two clocks, from the clock that the host sends with its grant. A frame that was
//! posted before the first grant carries the own clock and is restamped at the grant, before it is
//! sent. The own wait for a late frame is longer than the use-by interval by the largest drift of
//! clocks.
//!
//! A link also carries the offers and answers for one queue pair of its client thread. The queue
//! pair does not outlive the link: the host destroys its end before it reports the link as ended,
//! and this side breaks the connection when the link breaks.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind as Io;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::NodeShared;
use super::boxes::{Inbox, Outbox, receive};
use super::dial::{NotOpened, Opening, Question, To};
use super::frames::{self, Fields};
use super::io::{Interest, Stream};
use super::wire::{Answer, Ask, Hello, MAX_FRAME, broken};
use crate::addr::NodeId;
use crate::error::{Error, Result};
use crate::membership::Member;
use crate::rpc::ServiceId;
use crate::trace::report_slow;
use crate::transport::{Nanos, Opcode, Ticket, WorkRequest};

/// A frame may be executed within this time after it was sent, by the host's clock, ns.
pub(super) const USE_WITHIN_NS: Nanos = 2_000_000_000;
/// Clocks run fast or slow by one in this many at most.
const DRIFT_ONE_IN: Nanos = 16;
/// Between two attempts to connect again while something is in flight.
const RETRY_NS: Nanos = 50_000_000;
/// A host that could not be reached is not asked again within this time, ns.
const DOWN_NS: Nanos = 100_000_000;

/// Verbs of one list that went to this host.
struct Pending {
    /// Index of the list in the transport.
    list_id: u32,
    sent_at: Nanos,
    /// The READs and atomics; their buffers take the results.
    gets: Vec<WorkRequest>,
}

/// The end of something that a link carried.
pub(super) enum Ended {
    /// Part of a list.
    Part(u32, Result<()>),
    /// A call.
    Call(Ticket, Result<Vec<u8>>),
    /// An offer of a queue pair, with the answer.
    Offer(NodeId, Result<Vec<u8>>),
    /// The link of a connected queue pair.
    QueuePair(NodeId, Error),
    /// The host's end of a queue pair, which was to be closed; with the refusal, if the host
    /// refuses this node.
    End(NodeId, Option<Error>),
}

/// The state of the queue pair that this link carries offers for.
#[derive(Clone, Copy, Debug, Default)]
struct QueuePairState {
    /// When the pending offer was sent.
    offered: Option<Nanos>,
    /// The host has an end that is in use.
    is_connected: bool,
    /// When the pending close was requested.
    closing: Option<Nanos>,
}

/// The state of a link's connection.
enum ConnectionState {
    /// The node directory is being fetched.
    Finding(Box<Question>),
    /// It is being set up, under this number.
    Opening(Box<Opening>, u64),
    /// Established.
    Open(Box<dyn Stream>),
    /// None.
    Gone,
}

/// One client thread's link to one host.
pub(super) struct Link {
    /// The host; incarnation 0 until the directory is known.
    to: Member,
    address: String,
    /// Number of the connection that was granted last; 0: none was.
    number: u64,
    connection: ConnectionState,
    /// A lower bound of the host's clock minus the own clock, ns; 0 before the first connection.
    ahead: i128,
    out: Outbox,
    input: Inbox,
    pending: VecDeque<Pending>,
    calls: BTreeMap<u64, (Ticket, Nanos)>,
    next_call: u64,
    queue_pair: QueuePairState,
    retry_at: Nanos,
    /// Why the connection is gone.
    trouble: Option<Error>,
}

impl Link {
    /// Begins to connect. Frames that are posted meanwhile wait.
    ///
    /// # Errors
    /// `Unreachable` when the node's address is unknown, and the directory was fetched a moment
    /// ago.
    pub(super) fn open(shared: &NodeShared, node: NodeId) -> Result<Self> {
        let mut link = Self {
            to: Member { node, incarnation: 0 },
            address: String::new(),
            number: 0,
            connection: ConnectionState::Gone,
            ahead: 0,
            out: Outbox::default(),
            input: Inbox::default(),
            pending: VecDeque::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            queue_pair: QueuePairState::default(),
            retry_at: 0,
            trouble: None,
        };
        if shared.entry(node).is_none() && shared.is_time_to_refresh() {
            link.connection = ConnectionState::Finding(Box::new(
                shared.rendezvous.begin_to_ask(&Ask::NodeDirectory)?,
            ));
        } else {
            (link.to, link.address) = shared.reach_known(node)?;
            shared.verdicts.check_incarnation(link.to)?;
            link.dial(shared)?;
        }
        Ok(link)
    }

    /// The host.
    pub(super) fn to(&self) -> Member {
        self.to
    }

    /// Whether the host's address and incarnation are known.
    pub(super) fn is_found(&self) -> bool {
        !matches!(self.connection, ConnectionState::Finding(_))
    }

    fn dial(&mut self, shared: &NodeShared) -> Result<()> {
        let number = shared.next_link.fetch_add(1, Ordering::Relaxed);
        let (pool, credential, to) = (shared.pool, shared.badges.credential(shared.me), self.to);
        let hello = Hello::Link { pool, credential, to, number, replaces: self.number };
        let role = Some(self.to.node.role());
        let to = To { address: &self.address, role, hello: &hello };
        let opening = Opening::begin(&*shared.net, to)?;
        self.connection = ConnectionState::Opening(Box::new(opening), number);
        Ok(())
    }

    fn use_by(&self, now: Nanos) -> Nanos {
        stamp(now + USE_WITHIN_NS, self.ahead)
    }

    /// Whether something can be posted: there is a connection, or the first one is being set up.
    fn is_up(&self) -> bool {
        match self.connection {
            ConnectionState::Open(_) => true,
            ConnectionState::Finding(_) | ConnectionState::Opening(..) => self.number == 0,
            ConnectionState::Gone => false,
        }
    }

    /// Why a host that could not be reached a moment ago is not asked again.
    pub(super) fn is_down(&self, now: Nanos) -> Option<Error> {
        self.trouble.clone().filter(|_| now < self.retry_at)
    }

    /// Whether anything is in flight.
    pub(super) fn is_busy(&self) -> bool {
        let QueuePairState { offered, closing, .. } = self.queue_pair;
        !self.pending.is_empty()
            || !self.calls.is_empty()
            || self.out.left() > 0
            || offered.is_some()
            || closing.is_some()
    }

    /// Whether a connected queue pair depends on it.
    pub(super) fn has_queue_pair(&self) -> bool {
        self.queue_pair.is_connected
    }

    /// Records that the queue pair is connected, or gone.
    pub(super) fn set_queue_pair_connected(&mut self, yes: bool) {
        self.queue_pair.is_connected = yes;
    }

    /// Offers the host a queue pair.
    pub(super) fn offer(&mut self, now: Nanos, offer: &[u8]) {
        let use_by = self.use_by(now);
        frames::about_end(&mut self.out.bytes, frames::OFFER, use_by, offer);
        self.queue_pair.offered = Some(now);
        self.flush();
    }

    /// Asks the host to close its end.
    pub(super) fn close_end(&mut self, now: Nanos) {
        self.queue_pair = QueuePairState { offered: None, is_connected: false, closing: Some(now) };
        if matches!(self.connection, ConnectionState::Open(_)) {
            let use_by = self.use_by(now);
            frames::about_end(&mut self.out.bytes, frames::CLOSE, use_by, &[]);
            self.flush();
        }
    }

    /// The executor has gone, and its buffers with it: drops the results of READs and atomics.
    pub(super) fn disown(&mut self) {
        self.pending.iter_mut().for_each(|p| p.gets.clear());
    }

    /// The socket to wait for, and its events, while anything is in flight.
    pub(super) fn waits_for(&self) -> Option<(&dyn Stream, Interest)> {
        match &self.connection {
            _ if !self.is_busy() => None,
            ConnectionState::Finding(question) => question.waits_for(),
            ConnectionState::Opening(opening, _) => opening.waits_for(),
            ConnectionState::Open(stream) => {
                Some((&**stream, Interest { read: true, write: self.out.left() > 0 }))
            }
            ConnectionState::Gone => None,
        }
    }

    /// Why nothing can be posted now, if so.
    pub(super) fn is_broken(&self) -> Option<Error> {
        (!self.is_up()).then(|| {
            let why = self.trouble.as_ref().map_or_else(String::new, ToString::to_string);
            Error::unreachable(format!("the connection to {} is broken: {why}", self.to.node))
        })
    }

    /// Posts the verbs of a list that go to this host.
    pub(super) fn post<'w>(
        &mut self,
        now: Nanos,
        list_id: u32,
        verbs: impl Iterator<Item = &'w WorkRequest> + Clone,
    ) -> Result<()> {
        let use_by = self.use_by(now);
        frames::post(&mut self.out.bytes, use_by, verbs.clone())?;
        let gets = verbs.filter(|wr| matches!(wr.op, Opcode::Read | Opcode::Cas | Opcode::Faa));
        self.pending.push_back(Pending { list_id, sent_at: now, gets: gets.copied().collect() });
        self.flush();
        Ok(())
    }

    /// Calls a service.
    pub(super) fn call(&mut self, now: Nanos, ticket: Ticket, service: ServiceId, request: &[u8]) {
        let (number, use_by) = (self.next_call, self.use_by(now));
        self.next_call += 1;
        frames::call(&mut self.out.bytes, use_by, number, service, request);
        self.calls.insert(number, (ticket, now));
        self.flush();
    }

    /// Writes as many bytes as the socket takes.
    fn flush(&mut self) {
        if let ConnectionState::Open(stream) = &mut self.connection
            && let Err(e) = self.out.flush(&mut **stream)
        {
            self.lose(broken(&self.address, &e));
        }
    }

    /// The connection is gone; frames in flight are not over by that.
    fn lose(&mut self, why: Error) {
        self.connection = ConnectionState::Gone;
        self.out.clear();
        self.input.clear();
        self.trouble = Some(why);
    }

    /// Advances without blocking: looks up, connects, writes, reads, reconnects, and gives up late
    /// frames.
    pub(super) fn drive(&mut self, shared: &NodeShared, ended: &mut Vec<Ended>) {
        self.go_on(shared, ended);
        let now = shared.now();
        self.expire(now, ended);
        self.end_queue_pair(ended);
        if matches!(self.connection, ConnectionState::Gone)
            && self.is_busy()
            && now >= self.retry_at
        {
            self.retry_at = now + RETRY_NS;
            if let Err(why) = self.dial(shared) {
                self.not_opened(now, why.into(), ended);
            }
        }
    }

    fn go_on(&mut self, shared: &NodeShared, ended: &mut Vec<Ended>) {
        let now = shared.now();
        if let ConnectionState::Finding(question) = &mut self.connection {
            let Poll::Ready(answer) = question.drive(now) else { return };
            if let Err(why) = self.found(shared, answer) {
                return self.not_opened(now, why.into(), ended);
            }
        }
        if let ConnectionState::Opening(opening, number) = &mut self.connection {
            let number = *number;
            match opening.drive(now) {
                Poll::Pending => return,
                // Read after the answer: the host's clock is further on by now.
                Poll::Ready(Ok((stream, clock))) => {
                    let ahead = i128::from(clock) - i128::from(shared.now());
                    self.opened(stream, number, ahead, ended);
                }
                Poll::Ready(Err(not)) => return self.not_opened(now, not, ended),
            }
        }
        self.flush();
        self.receive(now, ended);
    }

    fn found(
        &mut self,
        shared: &NodeShared,
        answer: Result<(Answer, super::dial::Line)>,
    ) -> Result<()> {
        shared.take_node_directory(shared.rendezvous.end(answer)?)?;
        (self.to, self.address) = shared.reach_known(self.to.node)?;
        shared.verdicts.check_incarnation(self.to)?;
        self.dial(shared)
    }

    fn opened(
        &mut self,
        stream: Box<dyn Stream>,
        number: u64,
        ahead: i128,
        ended: &mut Vec<Ended>,
    ) {
        match self.number {
            // From now on the host's clock is known: restamp the frames that were posted meanwhile.
            0 => frames::shift_use_by(&mut self.out.bytes, |local| stamp(local, ahead)),
            // The host has ended the former connection before it granted this one.
            _ => self.end_all(None, ended),
        }
        (self.connection, self.number, self.ahead) = (ConnectionState::Open(stream), number, ahead);
        self.trouble = None;
    }

    /// Connection set-up failed. That may end the frames in flight on a former connection.
    fn not_opened(&mut self, now: Nanos, not: NotOpened, ended: &mut Vec<Ended>) {
        let NotOpened { why, is_deserted, is_refused } = not;
        self.connection = ConnectionState::Gone;
        self.out.clear();
        if self.number == 0 {
            self.fail_all(&why, ended);
            (self.retry_at, self.trouble) = (now + DOWN_NS, Some(why));
        } else if is_refused || is_deserted {
            // It has restarted, or has revoked this node's access; or it is gone.
            self.end_all(is_refused.then_some(&why), ended);
            (self.retry_at, self.trouble) = (now + DOWN_NS, Some(why));
        } else {
            self.retry_at = now + RETRY_NS;
        }
    }

    /// Ends everything in flight on a former connection; with the refusal, if the host refuses this
    /// node.
    fn end_all(&mut self, refusal: Option<&Error>, ended: &mut Vec<Ended>) {
        if self.queue_pair.closing.take().is_some() {
            ended.push(Ended::End(self.to.node, refusal.cloned()));
        }
        let why = self.cut_off();
        self.fail_all(&why, ended);
    }

    fn fail_all(&mut self, why: &Error, ended: &mut Vec<Ended>) {
        for p in self.pending.drain(..) {
            ended.push(Ended::Part(p.list_id, Err(why.clone())));
        }
        for (_, (ticket, _)) in std::mem::take(&mut self.calls) {
            ended.push(Ended::Call(ticket, Err(why.clone())));
        }
        if self.queue_pair.offered.take().is_some() {
            ended.push(Ended::Offer(self.to.node, Err(why.clone())));
        }
    }

    /// Ends the link: the membership has declared its host dead, and no node waits for verbs that
    /// may still execute there (`verdicts.rs`).
    pub(super) fn abandon(&mut self, why: Error, ended: &mut Vec<Ended>) {
        self.lose(why.clone());
        self.end_queue_pair(ended);
        if self.queue_pair.closing.take().is_some() {
            ended.push(Ended::End(self.to.node, None));
        }
        self.fail_all(&why.effect_unknown(), ended);
    }

    fn receive(&mut self, now: Nanos, ended: &mut Vec<Ended>) {
        if self.pending.is_empty()
            && self.calls.is_empty()
            && !self.queue_pair.is_connected
            && self.queue_pair.offered.or(self.queue_pair.closing).is_none()
        {
            return;
        }
        let mut chunk = [0; 16 << 10];
        while let ConnectionState::Open(stream) = &mut self.connection {
            match receive(&mut **stream, &mut chunk) {
                Ok(None) => break,
                Ok(Some(0)) => self.lose(broken(&self.address, &Io::UnexpectedEof.into())),
                Ok(Some(n)) => {
                    self.input.extend(&chunk[..n]);
                    // Before the next read: frames that arrived before the end of the stream count.
                    if let Err(e) = self.take_frames(now, ended) {
                        // A malformed frame breaks the connection.
                        self.lose(e);
                    }
                    if n < chunk.len() {
                        break;
                    }
                }
                Err(e) => self.lose(broken(&self.address, &e)),
            }
        }
    }

    fn take_frames(&mut self, now: Nanos, ended: &mut Vec<Ended>) -> Result<()> {
        let mut input = std::mem::take(&mut self.input);
        let mut taken = Ok(());
        while let Some(body) = input.first(MAX_FRAME + 1024, &self.address)? {
            taken = self.take_frame(body, now, ended);
            if taken.is_err() {
                break;
            }
            input.take_first();
        }
        self.input = input;
        taken
    }

    fn take_frame(&mut self, body: &[u8], now: Nanos, ended: &mut Vec<Ended>) -> Result<()> {
        let mut f = Fields(body);
        match f.u8()? {
            frames::POST => {
                let found = frames::read_outcome(&mut f, &self.address)?;
                let p = self.pending.front();
                let p = p.ok_or_else(|| Error::corrupt("an outcome of nothing that was posted"))?;
                let result = match found {
                    Ok(found) => frames::deliver(&p.gets, found),
                    Err(e) => Err(e),
                };
                let to = self.to.node;
                report_slow(now.saturating_sub(p.sent_at), |ms| format!("{to}: verbs, {ms} ms"));
                ended.push(Ended::Part(p.list_id, result));
                self.pending.pop_front();
            }
            frames::CALL => {
                let number = f.u64()?;
                let reply = frames::read_outcome(&mut f, &self.address)?.map(<[u8]>::to_vec);
                if let Some((ticket, _)) = self.calls.remove(&number) {
                    ended.push(Ended::Call(ticket, reply));
                }
            }
            frames::OFFER if self.queue_pair.offered.is_some() => {
                let answer = frames::read_outcome(&mut f, &self.address)?.map(<[u8]>::to_vec);
                self.queue_pair.offered = None;
                ended.push(Ended::Offer(self.to.node, answer));
            }
            // The answer to an offer that was given up is ignored: the host's end goes with the
            // next offer or with the link.
            frames::OFFER => {}
            frames::CLOSE => {
                if self.queue_pair.closing.take().is_some() {
                    ended.push(Ended::End(self.to.node, None));
                }
            }
            kind => return Err(Error::corrupt(format!("an outcome of kind {kind}"))),
        }
        Ok(())
    }

    /// A queue pair does not outlive its link: the host closes its end with it.
    fn end_queue_pair(&mut self, ended: &mut Vec<Ended>) {
        if self.is_up() {
            return;
        }
        if self.queue_pair.offered.take().is_some() {
            ended.push(Ended::Offer(self.to.node, Err(self.broke())));
        }
        if std::mem::take(&mut self.queue_pair.is_connected) {
            ended.push(Ended::QueuePair(self.to.node, self.broke()));
        }
    }

    /// Gives up frames past their use-by time.
    fn expire(&mut self, now: Nanos, ended: &mut Vec<Ended>) {
        let patience = USE_WITHIN_NS + USE_WITHIN_NS / DRIFT_ONE_IN;
        let over = |sent_at: Nanos| now > sent_at + patience;
        let QueuePairState { offered, closing, .. } = self.queue_pair;
        let is_late = self.pending.front().is_some_and(|p| over(p.sent_at))
            || offered.or(closing).is_some_and(over);
        if self.number == 0 {
            // Nothing was sent.
            if is_late || self.calls.values().any(|(_, at)| over(*at)) {
                let why = broken(&self.address, &Io::TimedOut.into());
                self.not_opened(now, why.into(), ended);
            }
            return;
        }
        if is_late && matches!(self.connection, ConnectionState::Open(_)) {
            let what = "it has not answered for 2 s: is it, or the network to it, overloaded?";
            self.lose(Error::unreachable(what));
        }
        if closing.is_some_and(over) && !self.is_up() {
            // By now no packet of the queue pair is left.
            self.queue_pair.closing = None;
            ended.push(Ended::End(self.to.node, None));
        }
        while self.pending.front().is_some_and(|p| over(p.sent_at)) {
            let Some(p) = self.pending.pop_front() else { return };
            ended.push(Ended::Part(p.list_id, Err(self.cut_off())));
        }
        // A service that takes long does not break the link; the caller's deadline judges. (A call
        // that waits is begun within the same time, or never.)
        if !self.is_up() {
            let late: Vec<u64> =
                self.calls.iter().filter(|(_, (_, at))| over(*at)).map(|(n, _)| *n).collect();
            for number in late {
                if let Some((ticket, _)) = self.calls.remove(&number) {
                    ended.push(Ended::Call(ticket, Err(self.cut_off())));
                }
            }
        }
    }

    fn broke(&self) -> Error {
        let why = self.trouble.as_ref().map_or_else(String::new, ToString::to_string);
        Error::unreachable(format!("the connection to {} broke: {why}; try again", self.to.node))
    }

    fn cut_off(&self) -> Error {
        self.broke().effect_unknown()
    }
}

/// Converts a time of the own clock to a clock that is ahead of it.
fn stamp(local: Nanos, ahead: i128) -> Nanos {
    (i128::from(local) + ahead).clamp(0, i128::from(Nanos::MAX)) as Nanos
}
