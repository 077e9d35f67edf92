//! TLS on a connection: TLS 1.3 with certificates of the pool on both sides.
//!
//! A [`Session`] has no socket: its owner passes one that does not block. It begins after the
//! greetings (`handshake.rs`) and lasts to the end of the connection. The peer is known when the
//! TLS handshake is over: then the certificate is one of the same authority, valid by this
//! machine's clock, of the same pool, and, for a connecting side, of a node of the expected kind.
//! Before that [`MAX_UNKNOWN_BYTES`] are taken from the peer at most, and nothing is said to it but
//! TLS.
//!
//! *Writing.* [`Session::write`] reports bytes as sent when the socket has taken all of their
//! ciphertext. A caller that gets `WouldBlock` has to write the same bytes again: they have been
//! encrypted already. So what waits to be sent is counted in one place, the caller's buffer.
//!
//! *Reading.* A read that returns fewer bytes than it was asked for leaves none in the session, so
//! that a poller of the socket misses nothing. Otherwise [`Session::has_buffered`] says so.
//!
//! The end of a stream without TLS's own farewell is not told from a broken connection: frames say
//! where they end.

mod bundle;
mod issue;
mod refusal;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::identity::{Identity, KeyRole};
use super::io::{Interest, Party};
use crate::error::{Error, Result};
use refusal::{CertificateOf, refusal};

pub(super) use bundle::{Bundle, identity_of};

/// The name that every certificate of a node has: the address of a node is not in it.
const NAME: &str = "dmtree";
/// Bytes that are taken from a peer before it is known.
const MAX_UNKNOWN_BYTES: usize = 4096;
/// Bytes that are taken off the socket of a known peer at once: rustls takes 4 KiB by itself.
const RECEIVE_BYTES: usize = 64 << 10;

/// TLS on one connection.
pub(super) struct Session {
    tls: Connection,
    keys: Arc<Bundle>,
    party: Party,
    /// The peer, once it is known.
    peer: Option<Identity>,
    /// Bytes that may still be taken from a peer that is not known.
    unknown_left: usize,
    /// What was taken off the socket and not passed to TLS yet.
    received: Inbox,
    /// Bytes that are encrypted and not reported as sent.
    unreported: usize,
    /// Decrypted bytes that were not read.
    decrypted: usize,
}

impl Session {
    pub(super) fn new(keys: &Arc<Bundle>, party: Party) -> Result<Self> {
        let failed = |e: rustls::Error| Error::unsupported(format!("no TLS: {e}"));
        let tls = match party {
            Party::Accepts => ServerConnection::new(keys.server.clone())
                .map_err(failed)
                .map(Connection::Server)?,
            Party::Connects(_) => {
                let name = ServerName::try_from(NAME).map_err(|e| Error::invalid(e.to_string()))?;
                let client = ClientConnection::new(keys.client.clone(), name).map_err(failed)?;
                Connection::Client(client)
            }
        };
        Ok(Self {
            tls,
            keys: keys.clone(),
            party,
            peer: None,
            unknown_left: MAX_UNKNOWN_BYTES,
            received: Inbox::default(),
            unreported: 0,
            decrypted: 0,
        })
    }

    /// The peer, once it is known.
    pub(super) fn peer(&self) -> Option<Identity> {
        self.peer
    }

    /// Whether bytes that are off the socket wait to be read.
    pub(super) fn has_buffered(&self) -> bool {
        self.decrypted > 0 || !self.received.is_empty()
    }

    /// The events to wait for, of a caller that waits for others.
    pub(super) fn interest(&self, wanted: Interest) -> Interest {
        match self.peer {
            Some(_) => wanted,
            None => Interest { read: true, write: self.tls.wants_write() },
        }
    }

    /// Reads what the peer has sent; 0 at the end.
    pub(super) fn read(&mut self, raw: &mut impl Raw, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        let mut is_drained = false;
        loop {
            filled += self.take_decrypted(&mut into[filled..])?;
            if filled == into.len() || (is_drained && filled > 0) {
                return Ok(filled);
            }
            match self.receive(raw) {
                Ok(Received::End) => return Ok(filled),
                Ok(Received::Some { drained }) => is_drained = drained,
                Err(e) if e.kind() == ErrorKind::WouldBlock && filled > 0 => return Ok(filled),
                Err(e) => return Err(e),
            }
        }
    }

    fn take_decrypted(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // What was decrypted before the peer was known to be of the pool is not for the caller.
        if self.decrypted == 0 || into.is_empty() || self.peer.is_none() {
            return Ok(0);
        }
        let n = self.tls.reader().read(into)?;
        self.decrypted = self.decrypted.saturating_sub(n);
        Ok(n)
    }

    /// Goes on until the peer is known, on a socket that blocks.
    pub(super) fn meet(&mut self, raw: &mut impl Raw) -> io::Result<()> {
        while self.peer.is_none() {
            self.flush(raw)?;
            if let Received::End = self.receive(raw)? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Passes received bytes to TLS, off the socket if there are none; 0 at the end.
    fn take(&mut self, raw: &mut impl Raw) -> io::Result<usize> {
        if self.received.is_empty() {
            let most = if self.peer.is_some() { RECEIVE_BYTES } else { self.unknown_left };
            self.received.fill(raw, most)?;
        }
        self.tls.read_tls(&mut self.received)
    }

    /// Takes bytes off the socket once, at most.
    fn receive(&mut self, raw: &mut impl Raw) -> io::Result<Received> {
        let n = self.take(raw)?;
        let drained = self.received.is_drained && self.received.is_empty();
        if n == 0 {
            return Ok(Received::End);
        }
        match self.tls.process_new_packets() {
            Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
            Err(e) => {
                // The peer gets the reason, where that is possible at once.
                while self.tls.wants_write() && self.tls.write_tls(&mut Out(raw)).is_ok() {}
                return Err(io::Error::other(refusal(&e, CertificateOf::Peer)));
            }
        }
        if self.peer.is_none() {
            self.unknown_left = self.unknown_left.saturating_sub(n);
            if !self.tls.is_handshaking() {
                self.peer = Some(self.identify().map_err(io::Error::other)?);
            }
        }
        match self.flush(raw) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(Received::Some { drained }),
        }
    }

    /// Who the peer is, by its certificate, which is one of the authority.
    fn identify(&self) -> Result<Identity> {
        let certificate = self.tls.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.ok_or_else(|| Error::corrupt("it has no certificate"))?;
        let identity = identity_of(certificate)?;
        if identity.pool != self.keys.identity().pool {
            return Err(Error::incompatible("its certificate is of another pool"));
        }
        // (A certificate that is for no node at all has failed before.)
        match self.party {
            Party::Connects(Some(role)) if !identity.acts_as(role) => {
                Err(Error::incompatible(format!(
                    "its certificate is that of no {} node: it has the role {}",
                    KeyRole::for_node(role),
                    identity.roles
                )))
            }
            _ => Ok(identity),
        }
    }

    /// Sends bytes; returns how many are on their way. After `WouldBlock` the same ones have to be
    /// written again.
    pub(super) fn write(&mut self, raw: &mut impl Raw, bytes: &[u8]) -> io::Result<usize> {
        if self.peer.is_none() {
            self.flush(raw)?;
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.unreported == 0 {
            self.unreported = self.tls.writer().write(bytes)?;
        }
        self.flush(raw)?;
        Ok(std::mem::take(&mut self.unreported).min(bytes.len()))
    }

    /// Sends what is encrypted.
    fn flush(&mut self, raw: &mut impl Raw) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Out(raw)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(e),
                Err(e) => return Err(self.why_closed(raw).unwrap_or(e)),
            }
        }
        Ok(())
    }

    /// The reason that a peer has sent before it closed the connection.
    fn why_closed(&mut self, raw: &mut impl Raw) -> Option<io::Error> {
        let n = self.take(raw).ok()?;
        let why = self.tls.process_new_packets().err().filter(|_| n > 0)?;
        Some(io::Error::other(refusal(&why, CertificateOf::Peer)))
    }
}

/// What a session has taken off its socket.
enum Received {
    /// Something; whether the socket has no more.
    Some {
        drained: bool,
    },
    End,
}

/// A socket that does not block.
pub(super) trait Raw: Read + Write {}

impl<T: Read + Write> Raw for T {}

/// Ciphertext that is off the socket and not passed to TLS.
#[derive(Default)]
struct Inbox {
    /// As many as the largest read so far: a read need not clear them.
    bytes: Vec<u8>,
    /// How many of them the last read has brought.
    len: usize,
    /// How many of those were passed on.
    at: usize,
    /// The socket had no more.
    is_drained: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.at == self.len
    }

    /// Reads from the socket once, so many bytes at most, into an empty inbox.
    fn fill(&mut self, raw: &mut impl Raw, most: usize) -> io::Result<()> {
        debug_assert!(self.is_empty(), "nothing is overwritten");
        if most == 0 {
            let what = "it says too much before it is known";
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        if self.bytes.len() < most {
            self.bytes.resize(most, 0);
        }
        (self.at, self.len) = (0, 0);
        self.len = raw.read(&mut self.bytes[..most])?;
        self.is_drained = self.len < most;
        Ok(())
    }
}

impl Read for Inbox {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = (&self.bytes[self.at..self.len]).read(into)?;
        self.at += n;
        Ok(n)
    }
}

/// Writes to a socket.
struct Out<'a, R>(&'a mut R);

impl<R: Raw> Write for Out<'_, R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
