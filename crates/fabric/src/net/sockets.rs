//! The system's sockets and clock.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::time::Timespec;

use super::access::{Access, Keys};
use super::identity::Identity;
use super::io::{Interest, Listener, Net, Nonce, Party, Poller, Ready, Socket, Stream, Waker};
use super::server::{SWEEP_NS, Server};
use super::tls::Session;
use crate::error::{Error, Result};
use crate::transport::Nanos;

/// Start of the clock of all nodes of this process: clients of several nodes can share an executor,
/// and its timers have one clock.
#[expect(clippy::disallowed_methods, reason = "this is the fabric's clock")]
static EPOCH: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// Keep-alive: idle time before the first probe; the peer's machine may be gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Interval of keep-alive probes.
const SILENCE_AGAIN: Duration = Duration::from_secs(10);
/// Events that one wait reports at most.
const EVENTS: usize = 128;
/// The token of the waker.
const WAKE: u64 = u64::MAX;

/// The system's network, as a process with this access may use it.
#[derive(Debug, Default)]
pub(super) struct System(Access);

impl System {
    pub(super) fn of(access: &Access) -> Arc<dyn Net> {
        Arc::new(Self(access.clone()))
    }
}

impl Net for System {
    fn now(&self) -> Nanos {
        EPOCH.elapsed().as_nanos() as Nanos
    }

    fn has_keys(&self) -> bool {
        self.0.keys.is_some()
    }

    fn nonce(&self) -> Result<Nonce> {
        random()
    }

    fn resolve(&self, name: &str) -> Result<Vec<String>> {
        let all = name.to_socket_addrs().map_err(|e| {
            Error::invalid(format!(
                "{name:?} is no address: {e}; write HOST:PORT, like 10.0.0.1:7000"
            ))
        })?;
        let all: Vec<String> = all.map(|at| at.to_string()).collect();
        match all.is_empty() {
            true => Err(Error::invalid(format!("{name:?} is the name of no host"))),
            false => Ok(all),
        }
    }

    fn listen(&self, at: &str) -> Result<(Box<dyn Listener>, String)> {
        let cannot = |e: io::Error| {
            Error::invalid(format!("cannot listen at {at:?}: {e}; give another address or port"))
        };
        for at in at.to_socket_addrs().map_err(cannot)? {
            self.0.check(&at)?;
        }
        let listener = TcpListener::bind(at).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let at = listener.local_addr().map_err(cannot)?;
        Ok((Box::new(Listening { listener, keys: self.0.keys.clone() }), at.to_string()))
    }

    fn dial(&self, at: &str) -> io::Result<Box<dyn Stream>> {
        let at: SocketAddr = at
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no address in numbers"))?;
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        let is_made = match rustix::net::connect(&fd, &at) {
            Ok(()) => true,
            Err(e) if [rustix::io::Errno::INPROGRESS, rustix::io::Errno::INTR].contains(&e) => {
                false
            }
            Err(e) => return Err(e.into()),
        };
        let (stream, keys) = (prepared(fd.into())?, self.0.keys.clone());
        Ok(Box::new(Connection { stream, is_made, keys, session: None }))
    }

    fn poller(&self) -> io::Result<Box<dyn Poller>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Box::new(Epoll { epoll, bell: Arc::new(Bell(bell)) }))
    }

    fn wait(&self, sockets: &[(&dyn Stream, Interest)], longest: Nanos) {
        let mut fds = Vec::with_capacity(sockets.len());
        for (socket, interest) in sockets {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.read);
            flags.set(PollFlags::OUT, interest.write);
            fds.extend(socket.fd().map(|fd| PollFd::from_borrowed_fd(fd, flags)));
        }
        match fds.is_empty() {
            true => std::thread::park_timeout(Duration::from_nanos(longest)),
            // Interrupted or not: the caller looks again.
            false => _ = rustix::event::poll(&mut fds, Some(&timespec(longest))),
        }
    }

    fn serve(&self, mut server: Server) -> Result<Option<JoinHandle<()>>> {
        let named = std::thread::Builder::new().name("dmtree server".into());
        let thread = named
            .spawn(move || while server.serve_ready(SWEEP_NS) {})
            .map_err(|e| Error::busy(format!("no thread for the server: {e}")))?;
        Ok(Some(thread))
    }
}

/// Bytes from the system's source of randomness.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::unsupported(format!("the system gives no random bytes: {e}")))?;
    Ok(bytes)
}

fn timespec(ns: Nanos) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sends small messages at once, and probes peers, so that a machine that is gone is detected.
fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(&stream, SILENCE_AGAIN)?;
    Ok(stream)
}

struct Listening {
    listener: TcpListener,
    keys: Keys,
}

impl Socket for Listening {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.as_fd())
    }
}

impl Listener for Listening {
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        let (stream, from) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        let stream = prepared(stream)?;
        let keys = self.keys.clone();
        Ok((Box::new(Connection { stream, is_made: true, keys, session: None }), from.ip()))
    }
}

struct Connection {
    stream: TcpStream,
    is_made: bool,
    keys: Keys,
    /// TLS, once it has begun.
    session: Option<Box<Session>>,
}

impl Socket for Connection {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
}

impl Stream for Connection {
    fn is_connected(&mut self) -> io::Result<bool> {
        if self.is_made {
            return Ok(true);
        }
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        if rustix::event::poll(&mut fds, Some(&timespec(0)))? == 0 {
            return Ok(false);
        }
        sockopt::socket_error(&self.stream)??;
        self.is_made = true;
        Ok(true)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.read(&mut self.stream, into),
            None => self.stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.write(&mut self.stream, bytes),
            None => self.stream.write(bytes),
        }
    }

    fn begin_tls(&mut self, as_party: Party) -> io::Result<()> {
        let bundle = self.keys.bundle().ok_or(io::ErrorKind::Unsupported)?;
        let session = Session::new(bundle, as_party).map_err(io::Error::other)?;
        self.session = Some(Box::new(session));
        Ok(())
    }

    fn peer(&self) -> Identity {
        let peer = self.session.as_ref().map(|session| session.peer());
        peer.map_or(Identity::WITHOUT_KEYS, |known| known.unwrap_or(Identity::UNKNOWN))
    }

    fn interest(&self, wanted: Interest) -> Interest {
        self.session.as_ref().map_or(wanted, |session| session.interest(wanted))
    }

    fn has_buffered(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_buffered())
    }
}

struct Bell(OwnedFd);

impl Waker for Bell {
    fn wake(&self) {
        // Full means that a wake is already pending.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

struct Epoll {
    epoll: OwnedFd,
    bell: Arc<Bell>,
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.read);
    flags.set(EventFlags::OUT, interest.write);
    flags
}

fn fd_of(socket: &dyn Socket) -> io::Result<BorrowedFd<'_>> {
    socket.fd().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

impl Poller for Epoll {
    fn add(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd_of(socket)?, EventData::new_u64(token), flags(interest))?)
    }

    fn change(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd_of(socket)?, EventData::new_u64(token), flags(interest))?)
    }

    fn remove(&mut self, socket: &dyn Socket) {
        // Removing a socket that was never added is harmless.
        let _ = socket.fd().map(|fd| epoll::delete(&self.epoll, fd));
    }

    fn wait(&mut self, longest: Nanos, ready: &mut Vec<Ready>) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timespec(longest))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE {
                let _ = rustix::io::read(&self.bell.0, &mut [0; 8]);
                continue;
            }
            let is_over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            let read = is_over || flags.contains(EventFlags::IN);
            ready.push(Ready { token, read, is_over });
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.bell.clone()
    }
}
