//! The interface between the network code and the network: sockets, a clock, and waiting.
//! `sockets.rs` implements it by the operating system.
//!
//! `virt` implements it by simulation. Only [`Net::wait`], [`Net::resolve`] and [`Poller::wait`]
//! block. Other functions return `WouldBlock` instead.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::identity::Identity;
use super::server::Server;
use crate::addr::Role;
use crate::error::Result;
use crate::transport::Nanos;

/// Random bytes.
pub(super) type Nonce = [u8; 32];

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// That of the host.
    Accepts,
    /// The other one; which kind of node has to be the host, if that is known.
    Connects(Option<Role>),
}

/// The events that a waiter wants of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    /// Bytes, or the end, or a connection.
    pub read: bool,
    /// Room for bytes, or the end of connecting.
    pub write: bool,
}

/// A socket as a waiter identifies it.
pub(super) trait Socket: Send {
    /// Its descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Its number, where it has no descriptor.
    #[cfg(feature = "sim")]
    fn number(&self) -> u64 {
        0
    }
}

/// A connection, established or not yet.
pub(super) trait Stream: Socket {
    /// Whether the connection has been made.
    ///
    /// # Errors
    /// Why it could not be made.
    fn is_connected(&mut self) -> io::Result<bool>;

    /// Takes bytes that have arrived; 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock`, `Interrupted`; others end the connection.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends bytes; returns how many were accepted. After `WouldBlock` the same bytes have to be
    /// written again, with others behind them or not.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// From now on everything travels by TLS.
    ///
    /// # Errors
    /// Where there are no keys.
    fn begin_tls(&mut self, _as_party: Party) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The identity of the peer. By TLS, nothing is read and written before that is known.
    fn peer(&self) -> Identity {
        Identity::WITHOUT_KEYS
    }

    /// The events to wait for, of a caller that waits for others.
    fn interest(&self, wanted: Interest) -> Interest {
        wanted
    }

    /// Whether bytes can be read although the socket may have none.
    fn has_buffered(&self) -> bool {
        false
    }
}

/// A listening socket.
pub(super) trait Listener: Socket {
    /// The next connection, and the address that it comes from.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; others when it could not be taken.
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)>;
}

/// A socket is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub token: u64,
    pub read: bool,
    /// Neither side can send any more.
    pub is_over: bool,
}

/// Ends a wait from any thread.
pub(super) trait Waker: Send + Sync {
    /// Ends the current wait, or the next one, at once.
    fn wake(&self);
}

/// Waits for many sockets. A socket that is ready is reported by every wait until it is not.
pub(super) trait Poller: Send {
    /// Waits for a socket, too, and reports it under a token.
    fn add(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()>;

    /// Changes the events to wait for.
    fn change(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()>;

    /// Stops to wait for a socket.
    fn remove(&mut self, socket: &dyn Socket);

    /// Waits, for so long at most, and appends the sockets that are ready.
    fn wait(&mut self, longest: Nanos, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// The waker of this poller.
    fn waker(&self) -> Arc<dyn Waker>;
}

/// The network as one process sees it.
pub(super) trait Net: Send + Sync {
    /// The clock of the process.
    fn now(&self) -> Nanos;

    /// Whether connections are secured by keys.
    fn has_keys(&self) -> bool {
        false
    }

    /// Random bytes, unique to this process.
    ///
    /// # Errors
    /// `Unsupported` when there are none.
    fn nonce(&self) -> Result<Nonce>;

    /// The numeric addresses of `HOST:PORT`. May block for long: no client operation calls it.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no address.
    fn resolve(&self, name: &str) -> Result<Vec<String>>;

    /// Listens where the process may; returns the numeric address, too.
    ///
    /// # Errors
    /// `InvalidArgument` when that address cannot be had.
    fn listen(&self, at: &str) -> Result<(Box<dyn Listener>, String)>;

    /// Begins to connect to a numeric address.
    fn dial(&self, at: &str) -> io::Result<Box<dyn Stream>>;

    /// A poller.
    fn poller(&self) -> io::Result<Box<dyn Poller>>;

    /// Waits for one of a few sockets, for so long at most; not at all where [`Net::has_threads`]
    /// says no.
    fn wait(&self, sockets: &[(&dyn Stream, Interest)], longest: Nanos);

    /// Runs a server until its node is closed.
    ///
    /// # Errors
    /// `Busy` when there is no thread for it.
    fn serve(&self, server: Server) -> Result<Option<JoinHandle<()>>>;

    /// Whether threads may be started, and may wait. If not, all is polled.
    fn has_threads(&self) -> bool {
        true
    }

    /// The waiter is polled again when bytes arrive.
    fn wake_soon(&self, _waker: &std::task::Waker) {}

    /// Whether jobs that were started are lost: with a mutant of a simulated network.
    fn loses_jobs(&self) -> bool {
        false
    }

    /// As [`crate::transport::Transport::driver`], of client threads.
    fn driver(&self) -> u64 {
        0
    }
}
