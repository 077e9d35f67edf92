//! Nodes in processes of their own, over TCP: for function rather than speed, and for what verbs do not carry.
//!
//! Every process is one node: it has a region, listens, and serves verbs and remote calls on that region to whoever belongs to the
//! same pool. The first memory node also keeps the roster (who is where) and the membership. There is no other service; processes may
//! start in any order, and wait for each other as long as they are told to. Addresses are all that is configured.
//!
//! *Error means over.* A list is sent as one frame per host; a thread of the host executes the frames of a link in their order. When
//! a connection breaks, its frames are over when the host says so, when it is gone, or when their use-by time has passed (`link.rs`).
//!
//! *Fencing.* A host that revokes a member's access ends its links and returns when none of their frames is being executed.

mod admin;
mod frames;
mod link;
mod membership;
mod registrar;
mod roster;
mod server;
mod service;
mod transport;
mod wire;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::addr::{NodeId, Role};
use crate::caps::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::membership::{InProcess, Member, MemberChange, MemberEvent, Membership, Terms};
use crate::region::Region;
use crate::rpc::{RpcHandler, ServiceId};
use crate::transport::{Fabric, Nanos, Transport};

use admin::{Admin, unexpected};
use registrar::Registrar;
use service::Call;
use transport::NetTransport;
use wire::{Answer, Ask, Introduction};

pub use registrar::Charter;
pub use roster::{Place, Roster};
pub use wire::PoolId;

/// The roster is not asked for more often than this, ns.
const REFRESH_NS: Nanos = 100_000_000;
/// Between two attempts to join a pool that is not ready.
const AGAIN: Duration = Duration::from_millis(100);

/// This process's node and its way to the others. Clone it freely; when the last clone goes, the node closes.
#[derive(Clone)]
pub struct NetFabric(Arc<Node>);

/// Closes the node when it is dropped: threads hold only what it points to.
struct Node {
    shared: Arc<Shared>,
}

/// What the threads of a node share.
pub(crate) struct Shared {
    me: Member,
    pool: PoolId,
    host: Arc<Host>,
    /// Start of this node's clock.
    epoch: std::time::Instant,
    roster: RwLock<Roster>,
    refreshed_at: AtomicU64,
    /// The incarnations that links may be opened to, where they are not the roster's.
    lives: Mutex<BTreeMap<NodeId, u32>>,
    /// On the first memory node.
    registrar: Option<Registrar>,
    /// To the first memory node; where it is.
    first: Admin,
    first_address: String,
    /// To other hosts.
    admins: Mutex<BTreeMap<Member, Arc<Admin>>>,
    sessions: server::Sessions,
    calls: Mutex<Option<Sender<Call>>>,
    next_link: AtomicU64,
    listens: String,
    closing: AtomicBool,
    log: Mutex<Vec<MemberEvent>>,
}

/// What a process that joins a pool says of itself.
#[derive(Clone, Debug)]
pub struct Joining<'a> {
    /// Where the first memory node listens.
    pub first: &'a str,
    /// Where this one is to listen; port 0 takes any.
    pub listen: &'a str,
    /// What it is.
    pub role: Role,
    /// The number it wants among the nodes of its role, if it matters.
    pub wanted: Option<u16>,
    /// How long it waits for a pool that is not ready.
    pub within: Duration,
}

impl NetFabric {
    /// Founds a pool: this process is its first memory node.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot listen there; `Full` when there is no memory.
    pub fn found(listen: &str, region_bytes: u64, charter: Charter, terms: Terms) -> Result<Self> {
        let (listener, at) = server::listen(listen)?;
        let me = Member { node: NodeId::memory(0), incarnation: 1 };
        let pool = PoolId(wire::draw());
        let registrar = Registrar::new(pool, charter, Arc::new(InProcess::new(terms)));
        registrar.enter(Place { member: me, address: String::new(), region_bytes });
        let (roster, first) = (registrar.roster(), at.to_string());
        Self::start(me, pool, region_bytes, roster, Some(registrar), first, listener)
    }

    /// The charter of the pool whose first memory node listens at an address.
    ///
    /// # Errors
    /// `Unreachable` when nobody answers within the time; `Incompatible` when it is something else or another version.
    pub fn charter(first: &str, within: Duration) -> Result<Vec<u8>> {
        Ok(ask_charter(first, within)?.1)
    }

    /// Joins a pool. The size of this node's region follows from the charter.
    ///
    /// # Errors
    /// As [`NetFabric::charter`]; `Busy` when the pool is not ready within the time, or has no place; `Exists` for a memory node
    /// that comes back: what it held is lost.
    pub fn join(
        how: &Joining<'_>,
        region_bytes: impl FnOnce(&[u8]) -> Result<u64>,
    ) -> Result<Self> {
        let until = deadline(how.within);
        let (pool, charter) = ask_charter(how.first, how.within)?;
        let region_bytes = region_bytes(&charter)?;
        let (listener, at) = server::listen(how.listen)?;
        let first = Admin::new(how.first.to_string(), Some(pool));
        let ask = Ask::Register(Introduction {
            role: how.role,
            wanted: how.wanted,
            listens: at.to_string(),
            region_bytes,
            nonce: wire::draw(),
        });
        let answer = again_until(until, || first.ask(&ask))?;
        let Answer::Registered { me, roster } = answer else { return Err(unexpected(&answer)) };
        let first = how.first.to_string();
        Self::start(me, pool, region_bytes, roster, None, first, listener)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the fabric's clock")]
    fn start(
        me: Member,
        pool: PoolId,
        region_bytes: u64,
        roster: Roster,
        registrar: Option<Registrar>,
        first_address: String,
        listener: std::net::TcpListener,
    ) -> Result<Self> {
        let listens = listener.local_addr().map(|a| a.to_string()).unwrap_or_default();
        let shared = Arc::new(Shared {
            me,
            pool,
            host: Arc::new(Host::new(me.node, me.incarnation, Region::new(region_bytes))),
            epoch: std::time::Instant::now(),
            roster: RwLock::new(roster),
            refreshed_at: AtomicU64::new(0),
            lives: Mutex::default(),
            registrar,
            first: Admin::new(first_address.clone(), Some(pool)),
            first_address,
            admins: Mutex::default(),
            sessions: server::Sessions::default(),
            calls: Mutex::default(),
            next_link: AtomicU64::new(1),
            listens,
            closing: AtomicBool::new(false),
            log: Mutex::default(),
        });
        let calls = service::start(&shared)?;
        *locked(&shared.calls) = Some(calls);
        server::start(&shared, listener)?;
        shared.note(me, MemberChange::Joined);
        Ok(Self(Arc::new(Node { shared })))
    }

    /// Which node in which life this process is.
    pub fn me(&self) -> Member {
        self.0.shared.me
    }

    /// Where it listens.
    pub fn listens(&self) -> &str {
        &self.0.shared.listens
    }

    /// Which pool it belongs to.
    pub fn pool(&self) -> PoolId {
        self.0.shared.pool
    }

    /// Who is where, as far as this node knows.
    pub fn roster(&self) -> Roster {
        self.0.shared.roster()
    }

    /// Asks who is where.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn refresh(&self) -> Result<()> {
        self.0.shared.refresh_roster()
    }

    /// This memory node can be used: its services run and its region is formatted. Compute nodes are let in when all are ready.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn ready(&self) -> Result<()> {
        match self.0.shared.ask(&Ask::Ready(self.me()))? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The membership of the pool.
    pub fn membership(&self) -> Arc<dyn Membership> {
        match &self.0.shared.registrar {
            Some(registrar) => registrar.membership.clone(),
            None => Arc::new(membership::Remote::new(self.0.shared.clone())),
        }
    }
}

impl std::fmt::Debug for NetFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NetFabric({} at {})", self.0.shared.me, self.0.shared.listens)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        *locked(&self.shared.calls) = None;
        // The listener looks up when somebody comes.
        if let Ok(at) = self.shared.listens.parse() {
            let _ = std::net::TcpStream::connect_timeout(&at, AGAIN);
        }
        self.shared.sessions.end(|_, _| true);
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Nanos {
        self.epoch.elapsed().as_nanos() as Nanos
    }

    fn next_link(&self) -> u64 {
        self.next_link.fetch_add(1, Ordering::Relaxed)
    }

    fn roster(&self) -> Roster {
        match &self.registrar {
            Some(registrar) => registrar.roster(),
            None => self.roster.read().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn place(&self, node: NodeId) -> Option<Place> {
        match &self.registrar {
            Some(registrar) => registrar.roster().find(node).cloned(),
            None => self.roster.read().unwrap_or_else(PoisonError::into_inner).find(node).cloned(),
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Answer> {
        match &self.registrar {
            Some(registrar) => {
                let here = std::net::Ipv4Addr::LOCALHOST.into();
                match registrar.answer(ask.clone(), here, self.now()) {
                    Answer::Refused(f) => Err(f.into()),
                    answer => Ok(answer),
                }
            }
            // An address alone does not say who it was that did not answer.
            None => self.first.ask(ask).map_err(|e| match e.kind() {
                ErrorKind::Unreachable => e.context("the first memory node"),
                _ => e,
            }),
        }
    }

    fn refresh_roster(&self) -> Result<()> {
        if self.registrar.is_some() {
            return Ok(());
        }
        match self.ask(&Ask::Roster)? {
            Answer::Roster(roster) => {
                *self.roster.write().unwrap_or_else(PoisonError::into_inner) = roster;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Where a node is; asks when it is not known, but not all the time.
    fn find(&self, node: NodeId) -> Option<Place> {
        if let Some(place) = self.place(node) {
            return Some(place);
        }
        let (now, last) = (self.now(), self.refreshed_at.load(Ordering::Relaxed));
        if last != 0 && now < last + REFRESH_NS {
            return None;
        }
        self.refreshed_at.store(now.max(1), Ordering::Relaxed);
        self.refresh_roster().ok()?;
        self.place(node)
    }

    /// Which life of a node links are to be with, where the layer above has said so.
    fn known_life(&self, node: NodeId) -> Option<u32> {
        locked(&self.lives).get(&node).copied()
    }

    /// With whom, and where, a link to a node is to be opened.
    fn reach(&self, node: NodeId) -> Result<(Member, String)> {
        let place = self.find(node).ok_or_else(|| {
            Error::new(
                ErrorKind::Unreachable,
                format!("{node} is no node of this pool, or has not come yet"),
            )
        })?;
        let incarnation = self.known_life(node).unwrap_or(place.member.incarnation);
        let address =
            if place.address.is_empty() { self.first_address.clone() } else { place.address };
        Ok((Member { node, incarnation }, address))
    }

    fn check_pool(&self, pool: PoolId) -> Result<()> {
        if pool == self.pool {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "{} belongs to another pool: its process has restarted with an empty region, or the address is another's; what was in the old pool is gone, start its compute processes again",
                self.me.node
            ),
        ))
    }

    /// Whether somebody means this node in this life.
    fn check_life(&self, to: Member) -> Result<()> {
        if to == self.me {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Incompatible,
            format!("here is {}, not {to}: it has restarted, or another took its address", self.me),
        ))
    }

    /// Whether a member may reach this node.
    fn check_issuer(&self, from: Member) -> Result<()> {
        let host = &self.host;
        let is_revoked = host.revocations.load(Ordering::SeqCst) > 0
            && host.is_revoked(from.node, from.incarnation);
        match is_revoked {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Fenced,
                format!("{} refuses {from}: it has lost its membership", self.me.node),
            )),
        }
    }

    /// Returns when nothing of a member, or a former life of it, is executed here any more.
    fn revoke(&self, member: Member) {
        self.host.revoke(member.node, member.incarnation);
        self.note(member, MemberChange::Fenced);
        self.sessions.end(|m, _| m.node == member.node && m.incarnation <= member.incarnation);
    }

    fn note(&self, member: Member, change: MemberChange) {
        let mut log = locked(&self.log);
        let number = log.len() as u64;
        let Member { node, incarnation } = member;
        log.push(MemberEvent { number, node, incarnation, change });
    }

    /// Hands a call to the thread that answers.
    fn call(&self, call: Call) {
        // Without that thread the node is closing, and nobody waits.
        if let Some(calls) = &*locked(&self.calls) {
            let _ = calls.send(call);
        }
    }

    fn fence_at(&self, host: NodeId, member: Member) -> Result<()> {
        if host == self.me.node {
            self.revoke(member);
            return Ok(());
        }
        let (at, address) = self.reach(host)?;
        let admin = locked(&self.admins)
            .entry(at)
            .or_insert_with(|| Arc::new(Admin::new(address, Some(self.pool))))
            .clone();
        match admin.ask(&Ask::Fence(member))? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl Fabric for NetFabric {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.roster().places().iter().map(|p| p.member.node).collect()
    }

    fn members(&self) -> Result<Vec<NodeId>> {
        match self.0.shared.ask(&Ask::Members)? {
            Answer::Members(all) => {
                let mut nodes: Vec<_> = all.into_iter().map(|m| m.node).collect();
                nodes.dedup();
                Ok(nodes)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.shared.find(node).map(|p| p.region_bytes)
    }

    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        let shared = &self.0.shared;
        if node != shared.me.node {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("this process is {}, not {node}", shared.me.node),
            ));
        }
        Ok(Rc::new(NetTransport::new(shared.clone())))
    }

    fn caps(&self) -> Capabilities {
        transport::CAPS
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        let shared = &self.0.shared;
        if node != shared.me.node {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("this process is {}, not {node}", shared.me.node),
            ));
        }
        shared.host.rpc.install(service, handler);
        Ok(())
    }

    fn fence(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.0.shared.fence_at(host, Member { node, incarnation })
    }

    fn connect(&self, _node: NodeId, to: NodeId, incarnation: u32) {
        locked(&self.0.shared.lives).insert(to, incarnation);
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        match node == self.0.shared.me.node {
            true => Some(self.0.shared.me.incarnation),
            false => self.0.shared.find(node).map(|p| p.member.incarnation),
        }
    }

    fn events(&self, since: u64) -> Vec<MemberEvent> {
        locked(&self.0.shared.log).get(since as usize..).unwrap_or(&[]).to_vec()
    }
}

fn locked<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "connection set-up is in real time")]
fn deadline(within: Duration) -> std::time::Instant {
    std::time::Instant::now() + within
}

/// Asks again until it works, or fails for good, or the time is over.
fn again_until<T>(until: std::time::Instant, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match ask() {
            Err(e) if e.is_retryable() && deadline(AGAIN) < until => {
                std::thread::park_timeout(AGAIN);
            }
            Err(e) if e.is_retryable() => return Err(e.context("waited in vain")),
            done => return done,
        }
    }
}

fn ask_charter(first: &str, within: Duration) -> Result<(PoolId, Vec<u8>)> {
    let admin = Admin::new(first.to_string(), None);
    match again_until(deadline(within), || admin.ask(&Ask::Charter))? {
        Answer::Charter { pool, charter } => Ok((pool, charter)),
        other => Err(unexpected(&other)),
    }
}
