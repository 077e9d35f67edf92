//! A connection as its host serves it: a state machine that advances as far as it can whenever its
//! socket is ready, and never waits.
//!
//! After the handshake (`handshake.rs`) it carries questions, or it is a link: the host executes
//! its frames in their order. The host stops to read from it while the peer does not take its
//! answers, or has too many calls in flight.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::NodeShared;
use super::boxes::{Inbox, Outbox, receive};
use super::execute;
use super::frames::{self, Fields};
use super::handshake::{Host, Side};
use super::io::{Interest, Party, Stream};
use super::limits::{Limits, Room};
use super::roles::{Admitted, Speaker};
use super::service::{Call, Reply};
use super::sessions::Session;
use super::wire::{self, Ask, Hello, MAX_FRAME, Welcome};
use crate::error::{Error, Result};
use crate::rpc::{MAX_RPC_BYTES, ServiceId};
use crate::trace::{Event, report};
use crate::transport::Nanos;

/// Reads from one connection before the others are served.
const READS: usize = 4;
/// Longest question.
const MAX_ASK: usize = 256 << 10;
/// Longest frame of a call: the request and its header.
const MAX_CALL: usize = MAX_RPC_BYTES + 64;

/// The connection ends: the reason, unless the peer or the system has closed it.
#[derive(Debug)]
pub(super) struct Over(Option<String>);

impl From<io::Error> for Over {
    fn from(e: io::Error) -> Self {
        // TLS gives a reason of its own, the system a number.
        Self(e.get_ref().map(ToString::to_string))
    }
}

impl From<Error> for Over {
    fn from(e: Error) -> Self {
        Self(Some(e.to_string()))
    }
}

fn report_refusal(ip: IpAddr, why: &dyn std::fmt::Display) {
    report(Event::Refused, || format!("a peer at {ip} is refused: {why}"));
}

/// The server's state that a connection uses while it is served.
pub(super) struct ServeContext<'a> {
    pub(super) shared: &'a Arc<NodeShared>,
    pub(super) limits: &'a Limits,
    pub(super) room: &'a mut Room,
    /// Buffer of a read.
    pub(super) scratch: &'a mut [u8],
    pub(super) now: Nanos,
    /// The thread for slow work on queue pairs.
    pub(super) ends: &'a execute::Ends,
}

/// Why a connection does not advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// The peer has to send more.
    Hungry,
    /// The peer has to take its answers, or a call or an answer about a queue pair is waited for.
    Full,
    /// Other connections have taken too much.
    Room,
}

/// The purpose of the connection.
enum Phase {
    /// Not stated yet.
    Greeting(Box<Host>),
    /// Questions.
    Asking(Speaker),
    /// Verbs and calls.
    Link(Linked),
    /// None any more: only unsent bytes are sent.
    Leaving,
}

struct Linked {
    session: Arc<Session>,
    /// Calls that are not answered.
    calls: usize,
    /// An answer about its queue pair is waited for.
    waits_for_end: bool,
}

/// A connection.
pub(super) struct Connection {
    token: u64,
    pub(super) stream: Box<dyn Stream>,
    /// Where it comes from.
    pub(super) ip: IpAddr,
    phase: Phase,
    halt: Halt,
    input: Inbox,
    out: Outbox,
    /// Its part of [`Room`]: unsent bytes and bytes of an unfinished frame.
    counted: (usize, usize),
    /// When it was accepted, or carried its last question.
    since: Nanos,
    /// When the first unfinished frame began.
    frame_since: Option<Nanos>,
    /// Since when the peer has not taken its answers, and how many bytes it has taken since.
    answers_since: Option<(Nanos, usize)>,
    /// The events that its socket is registered for.
    pub(super) interest: Interest,
}

impl Connection {
    pub(super) fn new(
        shared: &NodeShared,
        token: u64,
        stream: Box<dyn Stream>,
        ip: IpAddr,
    ) -> Self {
        let host = Host::new(shared.net.has_keys(), ip.to_string());
        Self {
            token,
            stream,
            ip,
            phase: Phase::Greeting(Box::new(host)),
            halt: Halt::Hungry,
            input: Inbox::default(),
            out: Outbox::default(),
            counted: (0, 0),
            since: shared.now(),
            frame_since: None,
            answers_since: None,
            interest: Interest { read: true, write: false },
        }
    }

    /// When it was accepted, or carried its last question.
    pub(super) fn since(&self) -> Nanos {
        self.since
    }

    /// Whether its purpose is not stated yet.
    pub(super) fn is_ungreeted(&self) -> bool {
        matches!(self.phase, Phase::Greeting(_))
    }

    /// Whether bytes wait to be read that the poller knows nothing of.
    pub(super) fn is_behind(&self) -> bool {
        let reads = self.halt == Halt::Hungry && !matches!(self.phase, Phase::Leaving);
        reads && self.stream.has_buffered()
    }

    /// Whether it waits for room that other connections take.
    pub(super) fn waits_for_room(&self) -> bool {
        self.halt == Halt::Room
    }

    /// The link that it is.
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match &self.phase {
            Phase::Link(linked) => Some(&linked.session),
            _ => None,
        }
    }

    /// The events that its socket has to be registered for.
    pub(super) fn wants(&self) -> Interest {
        let read = self.halt == Halt::Hungry && !matches!(self.phase, Phase::Leaving);
        self.stream.interest(Interest { read, write: self.out.left() > 0 })
    }

    /// A frame for the peer: the answer of a call, or about a queue pair.
    pub(super) fn answer(&mut self, frame: &[u8], is_call: bool) {
        let Phase::Link(linked) = &mut self.phase else { return };
        match is_call {
            true => linked.calls = linked.calls.saturating_sub(1),
            false => linked.waits_for_end = false,
        }
        self.out.bytes.extend(frame);
    }

    /// Advances as far as it can. The poller is level-triggered: it reports unread bytes again.
    pub(super) fn advance(
        &mut self,
        context: &mut ServeContext<'_>,
        is_readable: bool,
    ) -> Result<(), Over> {
        let is_unknown = self.is_ungreeted();
        let done = self.go(context, is_readable);
        if let (true, Err(Over(Some(why)))) = (is_unknown, &done) {
            report_refusal(self.ip, why);
        }
        self.account(context);
        done
    }

    fn go(&mut self, context: &mut ServeContext<'_>, mut is_readable: bool) -> Result<(), Over> {
        let mut reads = READS;
        loop {
            self.halt = self.take_frames(context)?;
            let sent = self.flush(context.now)?;
            if self.halt == Halt::Full && sent > 0 && self.out.left() < context.limits.unsent_of_one
            {
                continue;
            }
            if matches!(self.phase, Phase::Leaving) && self.out.left() == 0 {
                return Err(Over(None));
            }
            is_readable |= self.stream.has_buffered();
            if self.halt != Halt::Hungry || !is_readable || reads == 0 {
                return Ok(());
            }
            if !context.room.has_for_frame(context.limits, self.token, self.input.left()) {
                self.halt = Halt::Room;
                return Ok(());
            }
            reads -= 1;
            is_readable = self.read(context)?;
        }
    }

    /// Reads once; whether there may be more.
    fn read(&mut self, context: &mut ServeContext<'_>) -> Result<bool, Over> {
        let most = match &mut self.phase {
            Phase::Greeting(host) => host.wants().min(context.scratch.len()),
            Phase::Leaving => return Ok(false),
            _ => context.scratch.len(),
        };
        let Some(n) = receive(&mut *self.stream, &mut context.scratch[..most])? else {
            return Ok(false);
        };
        if n == 0 {
            // Executes the frames that have arrived, and sends their outcomes.
            self.leave(context);
            return Ok(false);
        }
        let bytes = &context.scratch[..n];
        match &mut self.phase {
            Phase::Greeting(host) => {
                let said = host.feed(bytes);
                self.out.bytes.extend(host.out());
                match said {
                    Ok(None) if host.begins_tls() => {
                        // The greeting is plain, and goes before.
                        self.out.flush(&mut *self.stream)?;
                        if self.out.left() > 0 {
                            return Err(Over(None));
                        }
                        self.stream.begin_tls(Party::Accepts)?;
                    }
                    Ok(None) => {}
                    Ok(Some(hello)) => self.welcome(context, hello)?,
                    Err(e) => {
                        report_refusal(self.ip, &e);
                        self.phase = Phase::Leaving;
                    }
                }
            }
            _ => self.input.extend(bytes),
        }
        Ok(n == most)
    }

    /// Ignores everything that the peer sends from now on.
    fn leave(&mut self, context: &ServeContext<'_>) {
        if let Phase::Link(linked) = &self.phase {
            context.ends.leave(&linked.session);
        }
        (self.phase, self.since) = (Phase::Leaving, context.now);
        self.input.clear();
    }

    fn welcome(&mut self, context: &mut ServeContext<'_>, hello: Hello) -> Result<(), Over> {
        let Phase::Greeting(host) = &self.phase else { return Ok(()) };
        let clock = context.shared.now();
        let peer = self.stream.peer();
        let entered = context.shared.admit(hello, peer).and_then(|admitted| match admitted {
            Admitted::Asking(speaker) => Ok(Phase::Asking(speaker)),
            Admitted::Link { from, number, replaces, reads_only } => context
                .shared
                .enter(self.token, (from, number), replaces, reads_only)
                .map(|session| Phase::Link(Linked { session, calls: 0, waits_for_end: false })),
        });
        let (phase, said) = match entered {
            Ok(phase) => (phase, Welcome::Granted { clock }),
            Err(e) => {
                report_refusal(self.ip, &e);
                (Phase::Leaving, Welcome::Refused((&e).into()))
            }
        };
        self.out.bytes.extend(host.welcome(&said)?);
        (self.phase, self.since) = (phase, context.now);
        Ok(())
    }

    fn take_frames(&mut self, context: &mut ServeContext<'_>) -> Result<Halt, Over> {
        match &mut self.phase {
            Phase::Greeting(_) | Phase::Leaving => Ok(Halt::Hungry),
            Phase::Asking(speaker) => {
                let speaker = *speaker;
                self.take_questions(context, speaker)
            }
            Phase::Link(_) => self.take_link_frames(context),
        }
    }

    fn take_questions(
        &mut self,
        context: &mut ServeContext<'_>,
        speaker: Speaker,
    ) -> Result<Halt, Over> {
        while let Some(body) = self.input.first(MAX_ASK, "a peer")? {
            if self.out.left() >= context.limits.unsent_of_one {
                return Ok(Halt::Full);
            }
            let ask: Ask = wire::decode(body, "a peer")?;
            self.input.take_first();
            (self.since, self.frame_since) = (context.now, None);
            let body = wire::encode(&context.shared.answer(ask, &speaker, self.ip))?;
            self.out.bytes.extend((body.len() as u32).to_le_bytes());
            self.out.bytes.extend(body);
        }
        Ok(Halt::Hungry)
    }

    fn take_link_frames(&mut self, context: &mut ServeContext<'_>) -> Result<Halt, Over> {
        let Phase::Link(linked) = &mut self.phase else { return Ok(Halt::Hungry) };
        while let Some(body) = self.input.first(MAX_FRAME, "a peer")? {
            if self.out.left() >= context.limits.unsent_of_one || linked.waits_for_end {
                return Ok(Halt::Full);
            }
            let halt = linked.take(context, body, &mut self.out)?;
            if let Some(halt) = halt {
                return Ok(halt);
            }
            self.input.take_first();
            self.frame_since = None;
        }
        Ok(Halt::Hungry)
    }

    fn flush(&mut self, now: Nanos) -> Result<usize, Over> {
        let sent = self.out.flush(&mut *self.stream)?;
        self.answers_since = match (self.out.left(), self.answers_since) {
            (0, _) => None,
            (_, None) => Some((now, 0)),
            // A peer that takes its answers slowly is not cut off: the time restarts with progress.
            (_, Some((_, before))) if before + sent >= SLOWLY => Some((now, 0)),
            (_, Some((since, before))) => Some((since, before + sent)),
        };
        Ok(sent)
    }

    /// Updates its part of [`Room`], and the time at which its unfinished frame began.
    fn account(&mut self, context: &mut ServeContext<'_>) {
        let counts = (self.out.left(), self.input.left());
        context.room.unsent = context.room.unsent + counts.0 - self.counted.0;
        context.room.unfinished = context.room.unfinished + counts.1 - self.counted.1;
        self.counted = counts;
        if counts.1 <= context.limits.small && context.room.favoured == Some(self.token) {
            context.room.favoured = None;
        }
        match counts.1 == 0 || self.halt == Halt::Full {
            true => self.frame_since = None,
            false => _ = self.frame_since.get_or_insert(context.now),
        }
    }

    /// It is closed: releases its part of [`Room`].
    pub(super) fn forget(&mut self, room: &mut Room) {
        room.unsent -= self.counted.0;
        room.unfinished -= self.counted.1;
        self.counted = (0, 0);
        if room.favoured == Some(self.token) {
            room.favoured = None;
        }
    }

    /// Whether it has taken too long for something.
    pub(super) fn is_late(&self, limits: &Limits, room: &Room, now: Nanos) -> bool {
        let passed = |since: Nanos, within: Nanos| now > since + within;
        let patience = match room.unsent >= limits.unsent_bytes {
            true => limits.answers_within_when_full_ns,
            false => limits.answers_within_ns,
        };
        let idle = match self.phase {
            Phase::Greeting(_) | Phase::Leaving => passed(self.since, limits.greeted_within_ns),
            Phase::Asking(_) => passed(self.since, limits.idle_ns),
            Phase::Link(_) => false,
        };
        idle || self.frame_since.is_some_and(|since| passed(since, limits.frame_within_ns))
            || self.answers_since.is_some_and(|(since, _)| passed(since, patience))
    }
}

/// Bytes of answers that a peer takes in time, of however many.
const SLOWLY: usize = 256 << 10;

impl Linked {
    /// Executes a frame, or returns why not now.
    fn take(
        &mut self,
        context: &mut ServeContext<'_>,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<Option<Halt>, Over> {
        let shared = context.shared;
        let mut f = Fields(body);
        let (kind, use_by) = (f.u8()?, f.u64()?);
        match kind {
            frames::POST if shared.rdma.is_none() => {
                if !context.room.has_for_answer(context.limits, frames::found_bytes(f.0)) {
                    return Ok(Some(Halt::Room));
                }
                let by = (self.session.from(), self.session.reads_only());
                let done =
                    self.session.run(|_| execute::verbs(shared, by, use_by, f.0, &mut out.bytes));
                done.ok_or(Over(None))?;
            }
            frames::OFFER | frames::CLOSE if shared.rdma.is_some() => {
                context.ends.ask(&self.session, kind, use_by, f.0.to_vec());
                self.waits_for_end = true;
            }
            frames::OFFER => {
                frames::answer(&mut out.bytes, kind, &[], Err(execute::not_over_rdma(shared)));
            }
            frames::CLOSE => frames::answer(&mut out.bytes, kind, &[], Ok(Vec::new())),
            frames::CALL if self.session.reads_only() => {
                let number = f.bytes(8)?;
                frames::answer(&mut out.bytes, kind, number, Err(execute::reads_only()));
            }
            frames::CALL if body.len() <= MAX_CALL => {
                let queued = shared.sessions.calls_bytes.load(Ordering::Relaxed);
                if self.calls >= context.limits.calls_of_one {
                    return Ok(Some(Halt::Full));
                }
                if queued + body.len() > context.limits.calls_bytes && queued > 0 {
                    return Ok(Some(Halt::Room));
                }
                let (number, service) = (f.u64()?, ServiceId(f.u16()?));
                let reply = Reply::Remote { session: self.session.clone(), number };
                let from = self.session.from();
                self.calls += 1;
                shared.call(Call { from, service, request: f.0.to_vec(), use_by, reply });
            }
            _ => return Err(Over(None)),
        }
        Ok(None)
    }
}
