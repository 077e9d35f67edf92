//! One client thread's connection to one host: frames out, outcomes in, never blocking.
//!
//! A link is a machine that [`Link::drive`] moves on: it finds out where its host is, connects, and sends what was posted meanwhile.
//! What was never sent fails without an effect when that does not work in time.
//!
//! When the connection breaks, what is in flight is not over: the host may have frames that it has not executed yet. It is over when
//! the host has said that the old link has ended (it does so before it grants a new one), when nobody listens any more (the
//! process and with it its memory is gone), when the use-by time of the frames has passed, or when the membership has declared the
//! host dead: nobody uses its memory any more.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind as Io;
use std::task::Poll;

use super::Shared;
use super::boxes::{Inbox, Outbox, receive};
use super::dial::{NotOpened, Opening, Question, To};
use super::frames::{self, Fields};
use super::io::{Interest, Stream};
use super::wire::{Answer, Ask, Hello, MAX_FRAME, broken};
use crate::addr::NodeId;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::Member;
use crate::rpc::ServiceId;
use crate::transport::{Nanos, Opcode, Ticket, WorkRequest};

/// So long after it was sent a frame may still be executed, by the clock of the host, ns.
pub(super) const USE_WITHIN_NS: Nanos = 2_000_000_000;
/// Clocks run fast or slow by one in this many at most.
const DRIFT_ONE_IN: Nanos = 16;
/// Between two attempts to connect again while something is in flight.
const RETRY_NS: Nanos = 50_000_000;
/// A host that could not be reached is not asked again within this time, ns.
const DOWN_NS: Nanos = 100_000_000;

/// Verbs of one list that went to this host.
struct Pending {
    /// Which list, in the book of the transport.
    lot: u32,
    sent_at: Nanos,
    /// What READs and atomics find goes here.
    gets: Vec<WorkRequest>,
}

/// Something has ended.
pub(super) enum Ended {
    /// Part of a list.
    Part(u32, Result<()>),
    /// A call.
    Call(Ticket, Result<Vec<u8>>),
    /// An offer of a queue pair: the answer.
    Offer(NodeId, Result<Vec<u8>>),
    /// The link that a connected queue pair hangs on.
    Tie(NodeId, Error),
    /// The host's end of a queue pair, which was to be closed: with what the host says of this node, if it refuses it.
    End(NodeId, Option<Error>),
}

/// How far the queue pair has come that this link carries offers for.
#[derive(Clone, Copy, Debug, Default)]
struct Tie {
    /// Since when the answer is awaited.
    offered: Option<Nanos>,
    /// The host has an end that is in use.
    is_connected: bool,
    /// Since when that end is to be closed.
    closing: Option<Nanos>,
}

/// How far the connection is.
enum Way {
    /// The first memory node is asked where the host is.
    Finding(Box<Question>),
    /// In the making, under this number.
    Opening(Box<Opening>, u64),
    /// There.
    Open(Box<dyn Stream>),
    /// Not there.
    Gone,
}

/// The connection.
pub(super) struct Link {
    /// With whom; incarnation 0 while that is asked for.
    to: Member,
    address: String,
    /// Of the connection that was granted last; 0: none was.
    number: u64,
    way: Way,
    /// What has to be added to the own clock to get the host's, or less: ns. While there has been no connection, 0.
    ahead: i128,
    out: Outbox,
    input: Inbox,
    pending: VecDeque<Pending>,
    calls: BTreeMap<u64, (Ticket, Nanos)>,
    next_call: u64,
    tie: Tie,
    retry_at: Nanos,
    /// Why the connection is gone.
    trouble: Option<Error>,
}

impl Link {
    /// Begins to connect. What is posted meanwhile waits.
    ///
    /// # Errors
    /// `Unreachable` when it is not known where the node is, and that was asked for a moment ago.
    pub(super) fn open(shared: &Shared, node: NodeId) -> Result<Self> {
        let mut link = Self {
            to: Member { node, incarnation: 0 },
            address: String::new(),
            number: 0,
            way: Way::Gone,
            ahead: 0,
            out: Outbox::default(),
            input: Inbox::default(),
            pending: VecDeque::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            tie: Tie::default(),
            retry_at: 0,
            trouble: None,
        };
        if shared.place(node).is_none() && shared.is_time_to_refresh() {
            link.way = Way::Finding(Box::new(shared.first.begin_to_ask(&Ask::NodeDirectory)?));
        } else {
            (link.to, link.address) = shared.reach_known(node)?;
            shared.verdicts.check_incarnation(link.to)?;
            link.dial(shared)?;
        }
        Ok(link)
    }

    /// With whom.
    pub(super) fn to(&self) -> Member {
        self.to
    }

    /// Whether that is known.
    pub(super) fn is_found(&self) -> bool {
        !matches!(self.way, Way::Finding(_))
    }

    fn dial(&mut self, shared: &Shared) -> Result<()> {
        let number = shared.next_link();
        let (pool, pass, to) = (shared.pool, shared.badges.pass(shared.me), self.to);
        let hello = Hello::Link { pool, pass, to, number, replaces: self.number };
        let to = To { address: &self.address, key: &shared.key, hello: &hello };
        let opening = Opening::begin(&*shared.net, to)?;
        self.way = Way::Opening(Box::new(opening), number);
        Ok(())
    }

    fn use_by(&self, now: Nanos) -> Nanos {
        stamp(now + USE_WITHIN_NS, self.ahead)
    }

    /// Whether something can be posted: there is a connection, or the first one is in the making.
    fn is_up(&self) -> bool {
        match self.way {
            Way::Open(_) => true,
            Way::Finding(_) | Way::Opening(..) => self.number == 0,
            Way::Gone => false,
        }
    }

    /// Why a host that could not be reached a moment ago is not asked again.
    pub(super) fn is_down(&self, now: Nanos) -> Option<Error> {
        self.trouble.clone().filter(|_| now < self.retry_at)
    }

    /// Whether anything is waited for.
    pub(super) fn is_busy(&self) -> bool {
        let Tie { offered, closing, .. } = self.tie;
        !self.pending.is_empty()
            || !self.calls.is_empty()
            || self.out.left() > 0
            || offered.is_some()
            || closing.is_some()
    }

    /// Whether a queue pair hangs on it.
    pub(super) fn is_tied(&self) -> bool {
        self.tie.is_connected
    }

    /// The answer was good, or the queue pair is gone.
    pub(super) fn set_tied(&mut self, yes: bool) {
        self.tie.is_connected = yes;
    }

    /// Offers the host a queue pair.
    pub(super) fn offer(&mut self, now: Nanos, offer: &[u8]) {
        let use_by = self.use_by(now);
        frames::about_end(&mut self.out.bytes, frames::OFFER, use_by, offer);
        self.tie.offered = Some(now);
        self.flush();
    }

    /// Has the host close its end.
    pub(super) fn close_end(&mut self, now: Nanos) {
        self.tie = Tie { offered: None, is_connected: false, closing: Some(now) };
        if matches!(self.way, Way::Open(_)) {
            let use_by = self.use_by(now);
            frames::about_end(&mut self.out.bytes, frames::CLOSE, use_by, &[]);
            self.flush();
        }
    }

    /// The executor has gone, and its buffers with it: what READs and atomics find goes nowhere.
    pub(super) fn disown(&mut self) {
        self.pending.iter_mut().for_each(|p| p.gets.clear());
    }

    /// The socket to wait for, and for what, while anything is waited for.
    pub(super) fn waits_for(&self) -> Option<(&dyn Stream, Interest)> {
        match &self.way {
            _ if !self.is_busy() => None,
            Way::Finding(question) => question.waits_for(),
            Way::Opening(opening, _) => opening.waits_for(),
            Way::Open(stream) => {
                Some((&**stream, Interest { read: true, write: self.out.left() > 0 }))
            }
            Way::Gone => None,
        }
    }

    /// Why nothing can be posted now, if so.
    pub(super) fn is_broken(&self) -> Option<Error> {
        (!self.is_up()).then(|| {
            let why = self.trouble.as_ref().map_or_else(String::new, ToString::to_string);
            Error::new(
                ErrorKind::Unreachable,
                format!("the connection to {} is broken: {why}", self.to.node),
            )
        })
    }

    /// Posts the verbs of a list that go to this host.
    pub(super) fn post<'w>(
        &mut self,
        now: Nanos,
        lot: u32,
        verbs: impl Iterator<Item = &'w WorkRequest> + Clone,
    ) -> Result<()> {
        let use_by = self.use_by(now);
        frames::post(&mut self.out.bytes, use_by, verbs.clone())?;
        let gets = verbs.filter(|wr| matches!(wr.op, Opcode::Read | Opcode::Cas | Opcode::Faa));
        self.pending.push_back(Pending { lot, sent_at: now, gets: gets.copied().collect() });
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

    /// Writes what the socket takes.
    fn flush(&mut self) {
        if let Way::Open(stream) = &mut self.way
            && let Err(e) = self.out.flush(&mut **stream)
        {
            self.lose(broken(&self.address, &e));
        }
    }

    /// The connection is gone; what is in flight is still open.
    fn lose(&mut self, why: Error) {
        self.way = Way::Gone;
        self.out.clear();
        self.input.clear();
        self.trouble = Some(why);
    }

    /// Finds, connects, writes, reads, connects again, gives up: whatever can be done now.
    pub(super) fn drive(&mut self, shared: &Shared, ended: &mut Vec<Ended>) {
        self.go_on(shared, ended);
        let now = shared.now();
        self.expire(now, ended);
        self.untie(ended);
        if matches!(self.way, Way::Gone) && self.is_busy() && now >= self.retry_at {
            self.retry_at = now + RETRY_NS;
            if let Err(why) = self.dial(shared) {
                self.not_opened(now, NotOpened { why, is_deserted: false }, ended);
            }
        }
    }

    fn go_on(&mut self, shared: &Shared, ended: &mut Vec<Ended>) {
        let now = shared.now();
        if let Way::Finding(question) = &mut self.way {
            let Poll::Ready(answer) = question.drive(now) else { return };
            if let Err(why) = self.found(shared, answer) {
                return self.not_opened(now, NotOpened { why, is_deserted: false }, ended);
            }
        }
        if let Way::Opening(opening, number) = &mut self.way {
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
        self.receive(ended);
    }

    fn found(
        &mut self,
        shared: &Shared,
        answer: Result<(Answer, super::dial::Line)>,
    ) -> Result<()> {
        shared.take_node_directory(shared.first.end(answer)?)?;
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
            // What was posted meanwhile goes by the host's clock from now on.
            0 => frames::shift_use_by(&mut self.out.bytes, |local| stamp(local, ahead)),
            // The host has ended the former connection before.
            _ => self.end_all(None, ended),
        }
        (self.way, self.number, self.ahead) = (Way::Open(stream), number, ahead);
        self.trouble = None;
    }

    /// There is no connection. What was in flight on a former one may be over by that.
    fn not_opened(&mut self, now: Nanos, not: NotOpened, ended: &mut Vec<Ended>) {
        let NotOpened { why, is_deserted } = not;
        self.way = Way::Gone;
        self.out.clear();
        // It answers, and refuses: it has restarted, or has revoked this node's access.
        let is_refused = why.kind() != ErrorKind::Unreachable;
        if self.number == 0 {
            self.fail_all(&why, ended);
            (self.retry_at, self.trouble) = (now + DOWN_NS, Some(why));
        } else if is_refused || is_deserted {
            self.end_all(is_refused.then_some(&why), ended);
            (self.retry_at, self.trouble) = (now + DOWN_NS, Some(why));
        } else {
            self.retry_at = now + RETRY_NS;
        }
    }

    /// What was in flight on a former connection is over, with what the host says of this node if it refuses it.
    fn end_all(&mut self, refusal: Option<&Error>, ended: &mut Vec<Ended>) {
        if self.tie.closing.take().is_some() {
            ended.push(Ended::End(self.to.node, refusal.cloned()));
        }
        let why = self.cut_off();
        self.fail_all(&why, ended);
    }

    fn fail_all(&mut self, why: &Error, ended: &mut Vec<Ended>) {
        for p in self.pending.drain(..) {
            ended.push(Ended::Part(p.lot, Err(why.clone())));
        }
        for (_, (ticket, _)) in std::mem::take(&mut self.calls) {
            ended.push(Ended::Call(ticket, Err(why.clone())));
        }
        if self.tie.offered.take().is_some() {
            ended.push(Ended::Offer(self.to.node, Err(why.clone())));
        }
    }

    /// Ends it: its host is dead, as the membership says, and nobody waits for what may still execute there (`verdicts.rs`).
    pub(super) fn abandon(&mut self, why: Error, ended: &mut Vec<Ended>) {
        self.lose(why.clone());
        self.untie(ended);
        if self.tie.closing.take().is_some() {
            ended.push(Ended::End(self.to.node, None));
        }
        self.fail_all(&why.effect_unknown(), ended);
    }

    fn receive(&mut self, ended: &mut Vec<Ended>) {
        if self.pending.is_empty()
            && self.calls.is_empty()
            && !self.tie.is_connected
            && self.tie.offered.or(self.tie.closing).is_none()
        {
            return;
        }
        let mut chunk = [0; 16 << 10];
        while let Way::Open(stream) = &mut self.way {
            match receive(&mut **stream, &mut chunk) {
                Ok(None) => break,
                Ok(Some(0)) => self.lose(broken(&self.address, &Io::UnexpectedEof.into())),
                Ok(Some(n)) => {
                    self.input.extend(&chunk[..n]);
                    // Before more is read: what came before an end counts.
                    if let Err(e) = self.take_frames(ended) {
                        // A host that sends nonsense is one to which the connection is broken.
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

    fn take_frames(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        let mut input = std::mem::take(&mut self.input);
        let mut taken = Ok(());
        while let Some(body) = input.first(MAX_FRAME + 1024, &self.address)? {
            taken = self.take_frame(body, ended);
            if taken.is_err() {
                break;
            }
            input.take_first();
        }
        self.input = input;
        taken
    }

    fn take_frame(&mut self, body: &[u8], ended: &mut Vec<Ended>) -> Result<()> {
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
                ended.push(Ended::Part(p.lot, result));
                self.pending.pop_front();
            }
            frames::CALL => {
                let number = f.u64()?;
                let reply = frames::read_outcome(&mut f, &self.address)?.map(<[u8]>::to_vec);
                if let Some((ticket, _)) = self.calls.remove(&number) {
                    ended.push(Ended::Call(ticket, reply));
                }
            }
            frames::OFFER if self.tie.offered.is_some() => {
                let answer = frames::read_outcome(&mut f, &self.address)?.map(<[u8]>::to_vec);
                self.tie.offered = None;
                ended.push(Ended::Offer(self.to.node, answer));
            }
            // What was given up meanwhile is of no interest: the host's end goes with the next offer or with the link.
            frames::OFFER => {}
            frames::CLOSE => {
                if self.tie.closing.take().is_some() {
                    ended.push(Ended::End(self.to.node, None));
                }
            }
            kind => return Err(Error::corrupt(format!("an outcome of kind {kind}"))),
        }
        Ok(())
    }

    /// A queue pair does not outlive its link: the host closes its end with it.
    fn untie(&mut self, ended: &mut Vec<Ended>) {
        if self.is_up() {
            return;
        }
        if self.tie.offered.take().is_some() {
            ended.push(Ended::Offer(self.to.node, Err(self.broke())));
        }
        if std::mem::take(&mut self.tie.is_connected) {
            ended.push(Ended::Tie(self.to.node, self.broke()));
        }
    }

    /// Gives up what cannot be executed any more because its time has passed.
    fn expire(&mut self, now: Nanos, ended: &mut Vec<Ended>) {
        let patience = USE_WITHIN_NS + USE_WITHIN_NS / DRIFT_ONE_IN;
        let over = |sent_at: Nanos| now > sent_at + patience;
        let Tie { offered, closing, .. } = self.tie;
        let is_late = self.pending.front().is_some_and(|p| over(p.sent_at))
            || offered.or(closing).is_some_and(over);
        if self.number == 0 {
            // Nothing was sent.
            if is_late || self.calls.values().any(|(_, at)| over(*at)) {
                let why = broken(&self.address, &Io::TimedOut.into());
                self.not_opened(now, NotOpened { why, is_deserted: false }, ended);
            }
            return;
        }
        if is_late && matches!(self.way, Way::Open(_)) {
            let what = "it has not answered for 2 s: is it overloaded, or the way to it?";
            self.lose(Error::new(ErrorKind::Unreachable, what));
        }
        if closing.is_some_and(over) && !self.is_up() {
            // By now no packet of the queue pair is left.
            self.tie.closing = None;
            ended.push(Ended::End(self.to.node, None));
        }
        while self.pending.front().is_some_and(|p| over(p.sent_at)) {
            let Some(p) = self.pending.pop_front() else { return };
            ended.push(Ended::Part(p.lot, Err(self.cut_off())));
        }
        // A service that takes long does not break the link; the caller's deadline judges. (A call that waits is begun within the
        // same time, or never.)
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
        Error::new(
            ErrorKind::Unreachable,
            format!("the connection to {} broke: {why}; try again", self.to.node),
        )
    }

    fn cut_off(&self) -> Error {
        self.broke().effect_unknown()
    }
}

/// A time of the own clock by a clock that is ahead of it.
fn stamp(local: Nanos, ahead: i128) -> Nanos {
    (i128::from(local) + ahead).clamp(0, i128::from(Nanos::MAX)) as Nanos
}
