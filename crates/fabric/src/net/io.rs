//! The seam between the network code and what carries it: sockets, a clock, and waiting. `sockets.rs` is the system's.
//!
//! `virt` simulates one.
//! Nothing here blocks but [`Net::wait`], [`Net::resolve`] and [`Poller::wait`]. What cannot go on says `WouldBlock`.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::handshake::Nonce;
use super::key::Access;
use super::server::Server;
use crate::error::Result;
use crate::transport::Nanos;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    /// Bytes, or the end, or a connection.
    pub read: bool,
    /// Room for bytes, or the end of connecting.
    pub write: bool,
}

/// What a waiter can name.
pub(super) trait Socket: Send {
    /// Its descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Its number, where it has no descriptor.
    fn number(&self) -> u64 {
        0
    }
}

/// A connection, made or in the making.
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

    /// Hands bytes over; returns how many were taken.
    ///
    /// # Errors
    /// As [`Stream::read`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
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
    /// The wait that is under way, or the next one, ends at once.
    fn wake(&self);
}

/// Waits for many sockets. A socket that is ready is reported by every wait until it is not.
pub(super) trait Poller: Send {
    /// Waits for a socket, too, and reports it under a token.
    ///
    /// # Errors
    /// Those of the system.
    fn add(&mut self, token: u64, socket: &dyn Socket, what: Interest) -> io::Result<()>;

    /// Waits for something else of it.
    ///
    /// # Errors
    /// Those of the system.
    fn change(&mut self, token: u64, socket: &dyn Socket, what: Interest) -> io::Result<()>;

    /// Waits for it no more.
    fn remove(&mut self, socket: &dyn Socket);

    /// Waits, for so long at most, and appends what is ready.
    ///
    /// # Errors
    /// Those of the system.
    fn wait(&mut self, longest: Nanos, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// What ends a wait.
    fn waker(&self) -> Arc<dyn Waker>;
}

/// The network as one process sees it.
pub(super) trait Net: Send + Sync {
    /// The clock of the process.
    fn now(&self) -> Nanos;

    /// Bytes that no other process draws.
    ///
    /// # Errors
    /// `Unsupported` when there are none.
    fn nonce(&self) -> Result<Nonce>;

    /// The addresses of `HOST:PORT` in numbers. May take long: nothing on a client's path asks.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no address.
    fn resolve(&self, name: &str) -> Result<Vec<String>>;

    /// Listens, where the key of the pool lets it be reached; where, in numbers.
    ///
    /// # Errors
    /// `InvalidArgument` when that address cannot be had.
    fn listen(&self, at: &str, access: &Access) -> Result<(Box<dyn Listener>, String)>;

    /// Begins to connect to an address in numbers.
    ///
    /// # Errors
    /// Those of the system.
    fn dial(&self, at: &str) -> io::Result<Box<dyn Stream>>;

    /// Something to wait with.
    ///
    /// # Errors
    /// Those of the system.
    fn poller(&self) -> io::Result<Box<dyn Poller>>;

    /// Waits for one of a few sockets, for so long at most; not at all where [`Net::has_threads`] says no.
    fn wait(&self, sockets: &[(&dyn Stream, Interest)], longest: Nanos);

    /// Has a server run until its node is closed.
    ///
    /// # Errors
    /// `Busy` when there is no thread for it.
    fn serve(&self, server: Server) -> Result<Option<JoinHandle<()>>>;

    /// Whether threads may be started, and may wait. If not, all is polled.
    fn has_threads(&self) -> bool {
        true
    }

    /// What waits for an answer is polled again when something comes.
    fn wake_soon(&self, _waker: &std::task::Waker) {}

    /// As [`crate::transport::Transport::driver`], of client threads.
    fn driver(&self) -> u64 {
        0
    }
}
