//! The simulated network as one process sees it.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker as TaskWaker;

use super::super::io::{Interest, Listener, Net, Nonce, Poller, Ready, Socket, Stream, Waker};
use super::super::server::Server;
use super::world::{Pid, World, ip_of};
use crate::error::{Error, Result};
use crate::sync::locked;
use crate::transport::Nanos;

/// The world, and the servers of its processes.
pub(super) struct Universe {
    world: Mutex<World>,
    pub(super) servers: Mutex<BTreeMap<Pid, Server>>,
}

impl Universe {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { world: Mutex::new(World::new(seed)), servers: Mutex::default() })
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        locked(&self.world)
    }
}

/// A process's network.
#[derive(Clone)]
pub(super) struct Virtual {
    pub(super) universe: Arc<Universe>,
    pub(super) pid: Pid,
}

impl Net for Virtual {
    fn now(&self) -> Nanos {
        self.universe.world().now
    }

    fn nonce(&self) -> Result<Nonce> {
        let mut world = self.universe.world();
        let mut nonce = [0; 32];
        for eight in nonce.chunks_exact_mut(8) {
            eight.copy_from_slice(&world.random.next_u64().to_le_bytes());
        }
        Ok(nonce)
    }

    fn resolve(&self, name: &str) -> Result<Vec<String>> {
        Ok(vec![name.to_string()])
    }

    fn listen(&self, at: &str) -> Result<(Box<dyn Listener>, String)> {
        let (id, at) = self
            .universe
            .world()
            .listen(self.pid, at)
            .ok_or_else(|| Error::invalid(format!("cannot listen at {at:?}")))?;
        Ok((Box::new(VirtualSocket { universe: self.universe.clone(), id }), at))
    }

    fn dial(&self, at: &str) -> io::Result<Box<dyn Stream>> {
        let id = self.universe.world().dial(self.pid, at);
        let id = id.ok_or(io::ErrorKind::ConnectionReset)?;
        Ok(Box::new(VirtualSocket { universe: self.universe.clone(), id }))
    }

    fn poller(&self) -> io::Result<Box<dyn Poller>> {
        Ok(Box::new(VirtualPoller { of: self.clone(), sockets: BTreeMap::new() }))
    }

    fn wait(&self, _: &[(&dyn Stream, Interest)], _: Nanos) {}

    fn serve(&self, server: Server) -> Result<Option<std::thread::JoinHandle<()>>> {
        let mut servers = locked(&self.universe.servers);
        servers.insert(self.pid, server);
        Ok(None)
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn wake_soon(&self, waker: &TaskWaker) {
        self.universe.world().wake_soon(self.pid, waker.clone());
    }

    fn loses_jobs(&self) -> bool {
        self.universe.world().mutant == Some(super::Mutant::JobsLost)
    }

    fn driver(&self) -> u64 {
        // One thread runs all of it.
        1
    }
}

/// A connection, or a listening socket.
struct VirtualSocket {
    universe: Arc<Universe>,
    id: u64,
}

impl Socket for VirtualSocket {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn number(&self) -> u64 {
        self.id
    }
}

impl Listener for VirtualSocket {
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        let (id, from) = self.universe.world().accept(self.id).ok_or(io::ErrorKind::WouldBlock)?;
        Ok((Box::new(Self { universe: self.universe.clone(), id }), ip_of(from)))
    }
}

impl Stream for VirtualSocket {
    fn is_connected(&mut self) -> io::Result<bool> {
        Ok(self.universe.world().is_connected(self.id)?)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.universe.world().read(self.id, into)?)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.universe.world().write(self.id, bytes)?)
    }
}

impl Drop for VirtualSocket {
    fn drop(&mut self) {
        self.universe.world().close(self.id);
    }
}

struct VirtualPoller {
    of: Virtual,
    /// By number: the token, and the events to wait for.
    sockets: BTreeMap<u64, (u64, Interest)>,
}

impl Poller for VirtualPoller {
    fn add(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()> {
        self.sockets.insert(socket.number(), (token, interest));
        Ok(())
    }

    fn change(&mut self, token: u64, socket: &dyn Socket, interest: Interest) -> io::Result<()> {
        self.add(token, socket, interest)
    }

    fn remove(&mut self, socket: &dyn Socket) {
        self.sockets.remove(&socket.number());
    }

    fn wait(&mut self, _: Nanos, ready: &mut Vec<Ready>) -> io::Result<()> {
        let world = self.of.universe.world();
        for (number, (token, interest)) in &self.sockets {
            if world.is_listening(*number) {
                if interest.read && world.has_waiting(*number) {
                    ready.push(Ready { token: *token, read: true, is_over: false });
                }
                continue;
            }
            let (read, write, is_over) = world.readiness(*number);
            if is_over || (interest.read && read) || (interest.write && write) {
                ready.push(Ready { token: *token, read: is_over || read, is_over });
            }
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(self.of.clone())
    }
}

impl Waker for Virtual {
    fn wake(&self) {
        self.universe.world().touch_if_alive(self.pid);
    }
}
