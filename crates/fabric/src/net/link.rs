//! One client thread's connection to one host: frames out, outcomes in, never blocking but to connect.
//!
//! When the connection breaks, what is in flight is not over: the host may have frames that it has not executed yet. It is over when
//! the host has said that the old link has ended (it does so before it grants a new one), when nobody listens any more (the
//! process and with it its memory is gone), or when the use-by time of the frames has passed.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use super::Shared;
use super::admin;
use super::frames::{self, Fields};
use super::wire::{Hello, MAX_FRAME, broken};
use crate::addr::NodeId;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::Member;
use crate::rpc::ServiceId;
use crate::transport::{Nanos, Opcode, Ticket, WorkRequest};

/// So long after it was sent a frame may still be executed, by the clock of the host, ns.
const USE_WITHIN_NS: Nanos = 2_000_000_000;
/// Clocks run fast or slow by one in this many at most.
const DRIFT_ONE_IN: Nanos = 16;
/// Between two attempts to connect again.
const RETRY_NS: Nanos = 50_000_000;

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

/// The connection.
pub(super) struct Link {
    to: Member,
    address: String,
    number: u64,
    stream: Option<TcpStream>,
    /// What has to be added to the own clock to get the host's, or less: ns.
    ahead: i128,
    out: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    pending: VecDeque<Pending>,
    calls: BTreeMap<u64, (Ticket, Nanos)>,
    next_call: u64,
    tie: Tie,
    retry_at: Nanos,
    /// Why the stream is gone.
    trouble: Option<Error>,
}

impl Link {
    /// Connects.
    pub(super) fn open(shared: &Shared, to: Member, address: String) -> Result<Self> {
        let mut link = Self {
            to,
            address,
            number: 0,
            stream: None,
            ahead: 0,
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            pending: VecDeque::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            tie: Tie::default(),
            retry_at: 0,
            trouble: None,
        };
        link.connect(shared)?;
        Ok(link)
    }

    /// With whom.
    pub(super) fn to(&self) -> Member {
        self.to
    }

    fn connect(&mut self, shared: &Shared) -> Result<()> {
        let number = shared.next_link();
        let (pool, pass, to) = (shared.pool, shared.badges.pass(shared.me), self.to);
        let hello = Hello::Link { pool, pass, to, number, replaces: self.number };
        let (stream, clock) = admin::open(&self.address, &shared.key, &hello)?;
        stream.set_nonblocking(true).map_err(|e| broken(&self.address, &e))?;
        // Read after the answer: the host's clock is further on by now.
        self.ahead = i128::from(clock) - i128::from(shared.now());
        (self.stream, self.number, self.trouble) = (Some(stream), number, None);
        Ok(())
    }

    fn use_by(&self, now: Nanos) -> Nanos {
        (i128::from(now + USE_WITHIN_NS) + self.ahead).max(0) as Nanos
    }

    /// Whether anything is waited for.
    pub(super) fn is_busy(&self) -> bool {
        let Tie { offered, closing, .. } = self.tie;
        !self.pending.is_empty()
            || !self.calls.is_empty()
            || self.written < self.out.len()
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
        frames::about_end(&mut self.out, frames::OFFER, use_by, offer);
        self.tie.offered = Some(now);
        self.flush();
    }

    /// Has the host close its end.
    pub(super) fn close_end(&mut self, now: Nanos) {
        self.tie = Tie { offered: None, is_connected: false, closing: Some(now) };
        if self.stream.is_some() {
            let use_by = self.use_by(now);
            frames::about_end(&mut self.out, frames::CLOSE, use_by, &[]);
            self.flush();
        }
    }

    /// The socket to wait for, while anything is waited for.
    pub(super) fn fd(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let stream = self.stream.as_ref().filter(|_| self.is_busy())?;
        Some((stream.as_fd(), self.written < self.out.len()))
    }

    /// Why nothing can be posted now, if so.
    pub(super) fn is_broken(&self) -> Option<Error> {
        self.stream.is_none().then(|| {
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
        frames::post(&mut self.out, use_by, verbs.clone())?;
        let gets = verbs.filter(|wr| matches!(wr.op, Opcode::Read | Opcode::Cas | Opcode::Faa));
        self.pending.push_back(Pending { lot, sent_at: now, gets: gets.copied().collect() });
        self.flush();
        Ok(())
    }

    /// Calls a service.
    pub(super) fn call(&mut self, now: Nanos, ticket: Ticket, service: ServiceId, request: &[u8]) {
        let (number, use_by) = (self.next_call, self.use_by(now));
        self.next_call += 1;
        frames::call(&mut self.out, use_by, number, service, request);
        self.calls.insert(number, (ticket, now));
        self.flush();
    }

    /// Writes what the socket takes.
    fn flush(&mut self) {
        while self.written < self.out.len() {
            let Some(stream) = &mut self.stream else { return };
            match stream.write(&self.out[self.written..]) {
                Ok(n) if n > 0 => self.written += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(_) => return self.fail(&std::io::ErrorKind::BrokenPipe.into()),
                Err(e) => return self.fail(&e),
            }
        }
        self.out.clear();
        self.written = 0;
    }

    fn fail(&mut self, e: &std::io::Error) {
        self.lose(broken(&self.address, e));
    }

    /// The stream is gone; what is in flight is still open.
    fn lose(&mut self, why: Error) {
        self.stream = None;
        self.out.clear();
        self.written = 0;
        self.input.clear();
        self.trouble = Some(why);
    }

    /// Writes, reads, connects again, gives up: whatever can be done now.
    pub(super) fn drive(&mut self, shared: &Shared, ended: &mut Vec<Ended>) {
        if self.stream.is_some() {
            self.flush();
            self.receive(ended);
        }
        let now = shared.now();
        self.expire(now, ended);
        self.untie(ended);
        if self.stream.is_none() && self.is_busy() && now >= self.retry_at {
            self.repair(shared, ended);
            self.retry_at = shared.now() + RETRY_NS;
        }
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
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut chunk) {
                Ok(0) => self.fail(&std::io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.input.extend(&chunk[..n]);
                    if n < chunk.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => self.fail(&e),
            }
        }
        if let Err(e) = self.take_frames(ended) {
            // A host that sends nonsense is one to which the connection is broken.
            self.lose(e);
        }
    }

    fn take_frames(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX_FRAME + 1024 {
                return Err(Error::corrupt(format!(
                    "{} announces a frame of {length} bytes",
                    self.to.node
                )));
            }
            let Some((body, tail)) = tail.split_at_checked(length) else { break };
            self.take_frame(body, ended)?;
            rest = tail;
        }
        self.input = match rest.len() == input.len() {
            true => input,
            false => rest.to_vec(),
        };
        Ok(())
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
        if self.stream.is_some() {
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
        if self.pending.front().is_some_and(|p| over(p.sent_at)) && self.stream.is_some() {
            self.lose(Error::new(ErrorKind::Unreachable, "it has not answered for 2 s"));
        }
        let Tie { offered, closing, .. } = self.tie;
        if offered.or(closing).is_some_and(over) && self.stream.is_some() {
            let what = "it has not answered for 2 s, over TCP: is it overloaded, or the way to it?";
            self.lose(Error::new(ErrorKind::Unreachable, what));
        }
        if closing.is_some_and(over) && self.stream.is_none() {
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
        if self.stream.is_none() {
            let late: Vec<u64> =
                self.calls.iter().filter(|(_, (_, at))| over(*at)).map(|(n, _)| *n).collect();
            for number in late {
                if let Some((ticket, _)) = self.calls.remove(&number) {
                    ended.push(Ended::Call(ticket, Err(self.cut_off())));
                }
            }
        }
    }

    /// Ends it: its host is dead, as the membership says, and nobody waits for what may still execute there (`verdicts.rs`).
    pub(super) fn abandon(&mut self, why: Error, ended: &mut Vec<Ended>) {
        self.lose(why.clone());
        self.untie(ended);
        if self.tie.closing.take().is_some() {
            ended.push(Ended::End(self.to.node, None));
        }
        self.end_all(&why.effect_unknown(), ended);
    }

    /// What is in flight is over.
    fn end_all(&mut self, why: &Error, ended: &mut Vec<Ended>) {
        for p in self.pending.drain(..) {
            ended.push(Ended::Part(p.lot, Err(why.clone())));
        }
        for (_, (ticket, _)) in std::mem::take(&mut self.calls) {
            ended.push(Ended::Call(ticket, Err(why.clone())));
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

    /// Connects again. Either way what was in flight may be over by that.
    fn repair(&mut self, shared: &Shared, ended: &mut Vec<Ended>) {
        let (is_over, refusal) = match self.connect(shared) {
            Ok(()) => (true, None),
            // It answers, and refuses: it has restarted, or has revoked this node's access.
            Err(e) if e.kind() != ErrorKind::Unreachable => (true, Some(e)),
            Err(_) => (is_refused(&self.address), None),
        };
        if is_over {
            if self.tie.closing.take().is_some() {
                ended.push(Ended::End(self.to.node, refusal));
            }
            self.end_all(&self.cut_off(), ended);
        }
    }

    /// Sends what is left and waits for the outcomes, blocking, as long as they may come: the executor has gone, and nobody looks at
    /// them any more.
    pub(super) fn finish(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let limit = std::time::Duration::from_nanos(USE_WITHIN_NS);
        let ready = stream.set_nonblocking(false).is_ok()
            && stream.set_read_timeout(Some(limit)).is_ok()
            && stream.set_write_timeout(Some(limit)).is_ok();
        if !ready || stream.write_all(&self.out[self.written..]).is_err() {
            return;
        }
        // The host executes what it has got before it sees the end of the stream.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut chunk = [0; 4096];
        while matches!(stream.read(&mut chunk), Ok(n) if n > 0) {}
    }
}

/// Whether nobody listens at an address.
fn is_refused(address: &str) -> bool {
    matches!(TcpStream::connect(address), Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused)
}
