//! Connection set-up and questions in flight: state machines that advance as far as they can
//! whenever they are driven.

use std::io::ErrorKind as Io;
use std::task::Poll;

use super::boxes::{Inbox, Outbox, receive};
use super::handshake::{Client, Side};
use super::io::{Interest, Net, Party, Stream};
use super::wire::{self, Answer, Ask, Hello, MAX_MESSAGE, Welcome, broken};
use crate::addr::Role;
use crate::error::{Error, Result};
use crate::transport::Nanos;

/// Time limit of connection set-up, ns.
pub(super) const OPENS_WITHIN_NS: Nanos = 2_000_000_000;

/// A connection, and the host's clock at the grant.
pub(super) type Granted = (Box<dyn Stream>, Nanos);

/// Why there is no connection.
pub(super) struct NotOpened {
    pub(super) why: Error,
    /// No process listens there.
    pub(super) is_deserted: bool,
    /// The host has answered, and refuses.
    pub(super) is_refused: bool,
}

impl From<Error> for NotOpened {
    fn from(why: Error) -> Self {
        let is_refused = why.kind() != crate::ErrorKind::Unreachable;
        Self { why, is_deserted: false, is_refused }
    }
}

/// The target of a connection: a numeric address, the kind of node that has to be there, if that is
/// known, and the purpose.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    pub(super) address: &'a str,
    pub(super) role: Option<Role>,
    pub(super) hello: &'a Hello,
}

/// A connection that is being set up.
pub(super) struct Opening {
    stream: Option<Box<dyn Stream>>,
    address: String,
    role: Option<Role>,
    side: Client,
    out: Outbox,
    is_connected: bool,
    until: Nanos,
}

impl Opening {
    /// Begins to connect.
    pub(super) fn begin(net: &dyn Net, to: To<'_>) -> Result<Self> {
        let To { address, role, hello } = to;
        let side = Client::new(net.has_keys(), hello, address.to_string())?;
        let stream = net.dial(address).map_err(|e| broken(address, &e))?;
        let until = net.now() + OPENS_WITHIN_NS;
        Ok(Self {
            stream: Some(stream),
            address: address.to_string(),
            role,
            side,
            out: Outbox::default(),
            is_connected: false,
            until,
        })
    }

    /// The socket to wait for, and its events.
    pub(super) fn waits_for(&self) -> Option<(&dyn Stream, Interest)> {
        let write = !self.is_connected || self.out.left() > 0;
        let (stream, read) = (self.stream.as_deref()?, self.is_connected);
        Some((stream, stream.interest(Interest { read, write })))
    }

    /// Advances. The outcome is a stream, and the host's clock at the grant.
    pub(super) fn drive(&mut self, now: Nanos) -> Poll<Result<Granted, NotOpened>> {
        let said = match self.step() {
            Ok(said) => said,
            Err(e) => return Poll::Ready(Err(e)),
        };
        let stream = match said {
            Some(Welcome::Granted { clock }) => self.stream.take().map(|s| Ok((s, clock))),
            Some(Welcome::Refused(f)) => Some(Err(Error::from(f).into())),
            None if now >= self.until => {
                Some(Err(broken(&self.address, &Io::TimedOut.into()).into()))
            }
            None => None,
        };
        stream.map_or(Poll::Pending, Poll::Ready)
    }

    fn step(&mut self) -> Result<Option<Welcome>, NotOpened> {
        let io = |address: &str, e: std::io::Error| {
            let is_deserted = e.kind() == Io::ConnectionRefused;
            // A refusal by TLS says nothing about a former connection.
            NotOpened { why: broken(address, &e), is_deserted, is_refused: false }
        };
        let Some(stream) = self.stream.as_deref_mut() else { return Ok(None) };
        if !self.is_connected {
            self.is_connected = stream.is_connected().map_err(|e| io(&self.address, e))?;
            if !self.is_connected {
                return Ok(None);
            }
        }
        loop {
            self.out.bytes.extend(self.side.out());
            self.out.flush(stream).map_err(|e| io(&self.address, e))?;
            let mut chunk = [0; 1024];
            let wanted = self.side.wants().min(chunk.len());
            match receive(stream, &mut chunk[..wanted]).map_err(|e| io(&self.address, e))? {
                None => return Ok(None),
                Some(0) => return Err(io(&self.address, Io::UnexpectedEof.into())),
                Some(n) => {
                    if let Some(said) = self.side.feed(&chunk[..n])? {
                        return Ok(Some(said));
                    }
                    if self.side.begins_tls() {
                        let begun = stream.begin_tls(Party::Connects(self.role));
                        begun.map_err(|e| io(&self.address, e))?;
                    }
                }
            }
        }
    }
}

/// A connection for questions.
pub(super) struct Line {
    stream: Box<dyn Stream>,
    input: Inbox,
}

/// A question in flight.
pub(super) struct Question {
    address: String,
    body: Outbox,
    state: QuestionState,
    until: Nanos,
}

enum QuestionState {
    Opening(Box<Opening>),
    Asking(Line),
    Over,
}

impl Question {
    /// Asks on a line, or on a new one; gives up at `until`.
    pub(super) fn begin(
        net: &dyn Net,
        to: To<'_>,
        line: Option<Line>,
        ask: &Ask,
        until: Nanos,
    ) -> Result<Self> {
        let state = match line {
            Some(line) => QuestionState::Asking(line),
            None => QuestionState::Opening(Box::new(Opening::begin(net, to)?)),
        };
        let body = wire::encode(ask)?;
        let mut framed = (body.len() as u32).to_le_bytes().to_vec();
        framed.extend(body);
        Ok(Self { address: to.address.to_string(), body: Outbox::of(framed), state, until })
    }

    /// The socket to wait for, and its events.
    pub(super) fn waits_for(&self) -> Option<(&dyn Stream, Interest)> {
        match &self.state {
            QuestionState::Opening(opening) => opening.waits_for(),
            QuestionState::Asking(line) => {
                Some((&*line.stream, Interest { read: true, write: self.body.left() > 0 }))
            }
            QuestionState::Over => None,
        }
    }

    /// Advances. The outcome is an answer, and the line for the next question.
    pub(super) fn drive(&mut self, now: Nanos) -> Poll<Result<(Answer, Line)>> {
        if let QuestionState::Opening(opening) = &mut self.state {
            match opening.drive(now) {
                Poll::Pending if now < self.until => return Poll::Pending,
                Poll::Pending => return self.end(Io::TimedOut.into()),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e.why)),
                Poll::Ready(Ok((stream, _))) => {
                    self.state = QuestionState::Asking(Line { stream, input: Inbox::default() });
                }
            }
        }
        match self.step() {
            Ok(Some(answer)) => match std::mem::replace(&mut self.state, QuestionState::Over) {
                QuestionState::Asking(line) => Poll::Ready(Ok((answer, line))),
                _ => Poll::Pending,
            },
            Ok(None) if now < self.until => Poll::Pending,
            Ok(None) => self.end(Io::TimedOut.into()),
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn end<T>(&self, e: std::io::Error) -> Poll<Result<T>> {
        Poll::Ready(Err(broken(&self.address, &e)))
    }

    fn step(&mut self) -> Result<Option<Answer>> {
        let QuestionState::Asking(line) = &mut self.state else { return Ok(None) };
        let io = |e: std::io::Error| broken(&self.address, &e);
        self.body.flush(&mut *line.stream).map_err(io)?;
        let mut chunk = [0; 4096];
        loop {
            if let Some(body) = line.input.first(MAX_MESSAGE, &self.address)? {
                let answer = wire::decode(body, &self.address)?;
                line.input.take_first();
                return Ok(Some(answer));
            }
            match receive(&mut *line.stream, &mut chunk).map_err(io)? {
                None => return Ok(None),
                Some(0) => return Err(io(Io::UnexpectedEof.into())),
                Some(n) => line.input.extend(&chunk[..n]),
            }
        }
    }
}
