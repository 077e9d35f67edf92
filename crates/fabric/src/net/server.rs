//! What a node serves to others: it listens, and a thread per connection executes what comes.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Shared;
use super::admin::PATIENCE;
use super::frames::{self, Fields};
use super::handshake;
use super::key::{self, Access};
use super::rdma::End;
use super::roles::Admitted;
use super::service::{Call, Reply};
use super::wire::{self, Ask, MAX_FRAME, Welcome, broken};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::Member;
use crate::rpc::ServiceId;

/// A peer that does not take its answers within this time is cut off.
const ANSWERS_TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// A link as its host sees it.
struct Session {
    stream: TcpStream,
}

/// The links of all peers that are executed now.
#[derive(Default)]
pub(super) struct Sessions {
    all: Mutex<BTreeMap<(Member, u64), Session>>,
    ended: Condvar,
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(Member, u64), Session>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the links for which `which` says so; returns when nothing of them is executed any more.
    pub(super) fn end(&self, which: impl Fn(Member, u64) -> bool) {
        let mut all = self.all();
        loop {
            let mut left = false;
            for (_, session) in all.iter().filter(|((m, n), _)| which(*m, *n)) {
                let _ = session.stream.shutdown(Shutdown::Both);
                left = true;
            }
            if !left {
                return;
            }
            all = self.ended.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Leaves the sessions when its thread ends, however.
struct Entered<'s> {
    sessions: &'s Sessions,
    key: (Member, u64),
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.sessions.all().remove(&self.key);
        self.sessions.ended.notify_all();
    }
}

/// Listens until the node is closed.
pub(super) fn start(shared: &Arc<Shared>, listener: TcpListener) -> Result<()> {
    let weak = Arc::downgrade(shared);
    spawn("dmtree listener", move || {
        for stream in listener.incoming() {
            let Some(shared) = weak.upgrade() else { return };
            if shared.closing.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let weak = weak.clone();
            // Without a thread the peer sees a closed connection.
            let _ = spawn("dmtree session", move || receive(&weak, stream));
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let named = std::thread::Builder::new().name(name.into());
    named
        .spawn(run)
        .map(|_| ())
        .map_err(|e| Error::new(ErrorKind::Busy, format!("no thread for {name}: {e}")))
}

/// Binds a listening socket, where the pool's key lets it be reached.
pub(super) fn listen(at: &str, access: &Access) -> Result<(TcpListener, SocketAddr)> {
    let cannot = |e: std::io::Error| {
        Error::invalid(format!("cannot listen at {at:?}: {e}; give another address or port"))
    };
    for at in at.to_socket_addrs().map_err(cannot)? {
        access.check(&at)?;
    }
    let listener = TcpListener::bind(at).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    Ok((listener, at))
}

/// Takes a connection in and serves it to its end.
fn receive(shared: &Weak<Shared>, stream: TcpStream) {
    // Errors here are the peer's to see: it is told, or the connection closes.
    let _ = try_receive(shared, &stream);
    let _ = stream.shutdown(Shutdown::Both);
}

fn try_receive(weak: &Weak<Shared>, stream: &TcpStream) -> Result<()> {
    let name = stream.peer_addr().map_or_else(|_| "a peer".into(), |a| a.to_string());
    let io = |e: std::io::Error| broken(&name, &e);
    stream.set_nodelay(true).map_err(io)?;
    stream.set_write_timeout(Some(ANSWERS_TAKEN_WITHIN)).map_err(io)?;
    let Some(key) = weak.upgrade().map(|shared| shared.key.clone()) else { return Ok(()) };
    let mut side = handshake::Host::new(key, &key::random()?, name.clone());
    let hello = wire::shake(stream, &mut side, PATIENCE, &name)?;
    let welcome = |w: &Welcome| -> Result<()> {
        let mut to = stream;
        to.write_all(&side.welcome(w)?).map_err(io)
    };
    stream.set_read_timeout(None).map_err(io)?;
    let Some(shared) = weak.upgrade() else { return Ok(()) };
    let clock = shared.now();
    let admitted = match shared.admit(hello) {
        Ok(admitted) => admitted,
        Err(e) => return welcome(&Welcome::Refused((&e).into())),
    };
    match admitted {
        Admitted::Asking(speaker) => {
            welcome(&Welcome::Granted { clock })?;
            drop(shared);
            let ip = stream.peer_addr().map_err(io)?.ip();
            questions(weak, stream, &name, ip, speaker)
        }
        Admitted::Link { from, number, replaces } => {
            shared.sessions.end(|m, n| (m, n) == (from, replaces));
            let _entered = match enter(&shared, stream, (from, number)) {
                Ok(entered) => entered,
                Err(e) => return welcome(&Welcome::Refused((&e).into())),
            };
            welcome(&Welcome::Granted { clock })?;
            verbs(&shared, stream, from, &name)
        }
    }
}

fn enter<'s>(shared: &'s Shared, stream: &TcpStream, key: (Member, u64)) -> Result<Entered<'s>> {
    let stream = stream.try_clone().map_err(|e| broken("a peer", &e))?;
    let sessions = &shared.sessions;
    let mut all = sessions.all();
    // Under the lock: whoever revokes afterwards finds the session.
    shared.check_issuer(key.0)?;
    if all.contains_key(&key) {
        return Err(Error::corrupt(format!("{} opens link {} twice", key.0, key.1)));
    }
    all.insert(key, Session { stream });
    drop(all);
    Ok(Entered { sessions, key })
}

fn questions(
    weak: &Weak<Shared>,
    stream: &TcpStream,
    name: &str,
    ip: IpAddr,
    speaker: Option<Member>,
) -> Result<()> {
    loop {
        let ask: Ask = wire::receive(stream, name)?;
        let Some(shared) = weak.upgrade() else { return Ok(()) };
        wire::send(stream, &shared.answer(ask, speaker, ip))?;
    }
}

/// Writes a whole frame, one at a time.
pub(super) fn write(to: &Mutex<TcpStream>, frame: &[u8]) -> Result<()> {
    let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
    to.write_all(frame).map_err(|e| {
        let _ = to.shutdown(Shutdown::Both);
        broken("a peer", &e)
    })
}

/// Executes a link's frames until it ends.
fn verbs(shared: &Arc<Shared>, stream: &TcpStream, from: Member, name: &str) -> Result<()> {
    let io = |e: std::io::Error| broken(name, &e);
    let writer = Arc::new(Mutex::new(stream.try_clone().map_err(io)?));
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let (mut body, mut out) = (Vec::new(), Vec::new());
    // This host's end of the client thread's queue pair: it goes before the session is left, however it ends.
    let mut direct = Kept(None);
    loop {
        if reader.buffer().len() < 4 && !out.is_empty() {
            write(&writer, &out)?;
            out.clear();
        }
        let mut length = [0; 4];
        reader.read_exact(&mut length).map_err(io)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME {
            return Err(Error::corrupt(format!("{name} announces a frame of {length} bytes")));
        }
        if reader.buffer().len() < length && !out.is_empty() {
            write(&writer, &out)?;
            out.clear();
        }
        body.resize(length, 0);
        reader.read_exact(&mut body).map_err(io)?;
        let mut f = Fields(&body);
        let (kind, use_by) = (f.u8()?, f.u64()?);
        match kind {
            frames::POST if shared.rdma.is_none() => execute(shared, from, use_by, f.0, &mut out),
            frames::OFFER => {
                direct.close();
                answer(&mut out, frames::OFFER, accept(shared, from, use_by, f.0, &mut direct));
            }
            frames::CLOSE => {
                direct.close();
                answer(&mut out, frames::CLOSE, Ok(Vec::new()));
            }
            frames::CALL => {
                let number = f.u64()?;
                let service = ServiceId(f.u16()?);
                let reply = Reply::Away { to: writer.clone(), number };
                shared.call(Call { from, service, request: f.0.to_vec(), use_by, reply });
            }
            kind => return Err(Error::corrupt(format!("{name} sent a frame of kind {kind}"))),
        }
    }
}

/// This host's end of the queue pair of a session.
struct Kept(Option<End>);

impl Kept {
    /// When this returns nothing of it executes any more.
    fn close(&mut self) {
        self.0 = None;
    }
}

/// Takes the offer of a client thread, and keeps this host's end.
fn accept(
    shared: &Shared,
    from: Member,
    use_by: u64,
    offer: &[u8],
    kept: &mut Kept,
) -> Result<Vec<u8>> {
    if shared.now() > use_by {
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("{} had no time for an offer", shared.me.node),
        ));
    }
    let rdma = shared.rdma.as_ref().ok_or_else(|| {
        Error::new(
            ErrorKind::Incompatible,
            format!(
                "{} got an offer of RDMA in a pool on fabric {}: connect again",
                shared.me.node, shared.common.carrier
            ),
        )
    })?;
    let (answer, end) = rdma.accept(from, offer)?;
    kept.0 = Some(end);
    Ok(answer)
}

fn answer(out: &mut Vec<u8>, kind: u8, result: Result<Vec<u8>>) {
    let start = frames::begin(out, kind);
    frames::outcome(out, result.as_ref().err());
    out.extend(result.unwrap_or_default());
    frames::end(out, start);
}

fn execute(shared: &Shared, from: Member, use_by: u64, verbs: &[u8], out: &mut Vec<u8>) {
    let start = frames::begin(out, frames::POST);
    let found = out.len() + 1;
    out.push(1);
    let late =
        || Error::new(ErrorKind::Unreachable, format!("{} had no time for a list", shared.me.node));
    let result = match shared.now() > use_by {
        true => Err(late()),
        false => shared
            .check_issuer(from)
            .and_then(|()| frames::execute(&shared.host, verbs, out))
            .map_err(Error::effect_unknown),
    };
    if let Err(e) = result {
        out.truncate(found - 1);
        frames::outcome(out, Some(&e));
    }
    frames::end(out, start);
}
