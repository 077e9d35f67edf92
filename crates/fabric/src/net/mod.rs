//! The network fabric: every node is a process of its own. Nodes reach each other over TCP. Verbs
//! travel as frames there, for function rather than speed, or over RDMA beside it (`data_path.rs`).
//!
//! Every process is one node: it has a region, listens, and serves verbs and remote calls on that
//! region to the members of the same pool. The first memory node also runs the membership server,
//! which keeps the node directory. There is no other service. Processes may start in any order, and
//! wait for each other up to a configured time. Addresses are all that is configured.
//!
//! One thread of a process serves all its connections (`server.rs`, `connection.rs`,
//! `sessions.rs`); the resources that peers may take are limited (`limits.rs`). Sockets and the
//! clock are behind an interface (`io.rs`): the operating system's (`sockets.rs`), or simulated
//! (`virt`, feature `sim`).
//!
//! *An error means that the verbs are over.* A list is sent as one frame per host, which executes
//! the frames of a link in their order. When a connection breaks, its frames are over when the host
//! says so, when it is gone, or when their use-by time has passed (`link.rs`).
//!
//! *Revocation.* A host that revokes a member's access destroys its ends of the member's queue
//! pairs, ends its links, and returns when none of their frames is being executed.
//!
//! *Over RDMA* a link carries offers and answers for one connection of its client thread
//! (`direct.rs`); the host's end of that belongs to the session, and is closed with it.

mod access;
mod admin;
mod agent;
mod boxes;
mod connection;
mod data_path;
mod dial;
mod direct;
#[cfg(feature = "etcd")]
mod etcd;
mod execute;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
#[cfg(test)]
mod hostile;
mod identity;
mod io;
mod journal_parts;
mod kept_in;
mod limits;
mod link;
mod membership;
mod membership_server;
mod node_directory;
#[cfg_attr(not(feature = "verbs"), path = "no_rdma.rs")]
mod rdma;
mod rendezvous;
mod roles;
mod server;
mod service;
mod sessions;
mod sockets;
mod start;
mod status;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod transport;
mod verdicts;
#[cfg(feature = "sim")]
pub mod virt;
mod wire;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::membership::{Change, Member, Membership, News, Presence};
use crate::rpc::{RpcHandler, ServiceId};
use crate::sync::locked;
use crate::transport::{Fabric, Nanos, Transport};

use admin::{Admin, unexpected};
use data_path::Common;
use rdma::Rdma;
use rendezvous::Rendezvous;
use roles::Badges;
use service::{Call, Inboxes};
use transport::NetTransport;
use wire::{Answer, Ask};

pub use access::{Access, Keys};
pub use data_path::{DataPath, NicConfig};
pub use identity::{Identity, KeyRole, KeyRoles};
pub use kept_in::KeptIn;
pub use membership_server::PoolConfig;
pub use node_directory::{NodeDirectory, NodeEntry};
pub use start::Place;
pub use status::{MembershipReport, NodeStatus, PoolView, Report};
pub use wire::{JournalDirectory, PoolId, ShardMark};

/// Shortest interval between two fetches of the node directory, ns.
const REFRESH_NS: Nanos = 100_000_000;

/// This process's node and its connections to the others. Clones share it; dropping the last one
/// closes the node.
#[derive(Clone)]
pub struct NetFabric(Arc<Node>);

/// Closes the node when it is dropped: threads hold only its shared state.
struct Node {
    shared: Arc<NodeShared>,
    /// The thread that serves peers.
    server: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the threads of a node share.
pub(crate) struct NodeShared {
    me: Member,
    pool: PoolId,
    host: Arc<Host>,
    /// The properties that the nodes of the pool share.
    common: Common,
    /// The node's memory on its NIC, in a pool over RDMA.
    rdma: Option<Rdma>,
    /// The capabilities of the fabric.
    caps: Capabilities,
    /// Sockets and the clock.
    net: Arc<dyn io::Net>,
    node_directory: Mutex<NodeDirectory>,
    refreshed_at: AtomicU64,
    /// The incarnations that links may be opened to, where they differ from the node directory's.
    incarnations: Mutex<BTreeMap<NodeId, u32>>,
    /// Counts their changes: connections are checked again after one.
    incarnations_news: AtomicU64,
    /// Dead nodes and memory nodes that are away, as far as this node knows.
    verdicts: verdicts::Verdicts,
    rendezvous: Rendezvous,
    /// Those of the pool's members.
    badges: Badges,
    /// Where the first memory node is.
    first_address: String,
    /// To other hosts.
    admins: Mutex<BTreeMap<Member, Arc<Admin>>>,
    sessions: sessions::Sessions,
    calls: Mutex<Option<Inboxes>>,
    /// Where they come out, where no thread answers them.
    inbox: Mutex<Option<Receiver<Call>>>,
    next_link: AtomicU64,
    listens: String,
    closing: AtomicBool,
    /// Whether an operator has asked this compute node to leave.
    is_asked_to_leave: AtomicBool,
    /// Whether this memory node acts for the membership.
    acts: AtomicBool,
    /// What the layer above says of this node.
    report: Mutex<Option<Report>>,
    /// The layer above hears which parts of the journal have gaps.
    hears_gaps: Mutex<Option<Gaps>>,
}

/// Takes the parts of the journal with a gap (`MembershipState::gaps`).
type Gaps = Box<dyn Fn(u64) + Send>;

impl NetFabric {
    /// The node and incarnation of this process.
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

    /// The node directory, as far as this node knows it.
    pub fn node_directory(&self) -> NodeDirectory {
        self.0.shared.node_directory()
    }

    /// The data path of its pool.
    pub fn data_path(&self) -> DataPath {
        self.0.shared.common.data_path
    }

    /// A description of the NIC and its port, and the on-chip memory that this node exposes for
    /// locks; `None` without RDMA.
    pub fn nic(&self) -> Option<(String, u32)> {
        self.0.shared.rdma.as_ref().map(|rdma| (rdma.to_string(), rdma.on_chip_bytes()))
    }

    /// The backing of its region's memory.
    pub fn pages(&self) -> crate::region::Pages {
        self.0.shared.host.region.pages()
    }

    /// This memory node can be used: its services run and its region is formatted. Compute nodes
    /// are let in when all are ready.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn ready(&self) -> Result<()> {
        let on_chip_bytes = self.0.shared.rdma.as_ref().map_or(0, Rdma::on_chip_bytes);
        // The agent starts first: from now on it revokes access for every death.
        if !self.0.shared.acts.swap(true, Ordering::SeqCst) {
            agent::start(&self.0.shared, on_chip_bytes)?;
        }
        Ok(())
    }

    /// Calls this with the parts of the journal that have gaps, many times within a lease: before
    /// [`NetFabric::ready`].
    pub fn hear_gaps(&self, hear: impl Fn(u64) + Send + 'static) {
        *locked(&self.0.shared.hears_gaps) = Some(Box::new(hear));
    }

    /// Is a memory node that can be used, and acts for the membership; to the end of the node, or
    /// for ever.
    pub async fn act(&self, ep: &crate::endpoint::Endpoint) -> Result<()> {
        agent::act(&self.0.shared, ep).await
    }

    /// Answers remote calls where no thread does; to the end of the node.
    pub async fn answer(&self, ep: &crate::endpoint::Endpoint) {
        let inbox = locked(&self.0.shared.inbox).take();
        if let Some(inbox) = inbox {
            service::serve_on(&self.0.shared, ep, &inbox).await;
        }
    }

    /// The transport of a client thread.
    #[cfg(feature = "sim")]
    pub(crate) fn transport(&self) -> Result<NetTransport> {
        NetTransport::new(self.0.shared.clone())
    }

    /// Takes the membership news since the last call. Only the processes that decide have
    /// any: the first memory node, or all where etcd keeps the membership.
    pub fn take_news(&self) -> Vec<News> {
        self.0.shared.rendezvous.take_news()
    }

    /// Ends all service to peers, as the end of the process would: the node has lost its
    /// membership, and no node uses its memory any more. Its own clients end by themselves.
    pub fn close(&self) {
        self.0.close();
    }

    /// The membership of the pool.
    pub fn membership(&self) -> Arc<dyn Membership> {
        match self.0.shared.rendezvous.server() {
            Some(membership_server) => membership_server.membership.clone(),
            None => Arc::new(membership::Remote::new(self.0.shared.clone())),
        }
    }
}

crate::debug_line!(NetFabric, it => "NetFabric({} at {})", it.0.shared.me, it.0.shared.listens);

impl Node {
    /// Ends all service. When this returns the address is free.
    fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        *locked(&self.shared.calls) = None;
        self.shared.host.jobs.cancel(|_| true);
        self.shared.sessions.end(|_, _| true);
        self.shared.sessions.wake();
        // (The thread drops no node: it has none.)
        if let Some(server) = locked(&self.server).take() {
            let _ = server.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let waits = self.shared.net.has_threads();
        let acts =
            self.shared.rendezvous.server().is_none() && self.shared.acts.load(Ordering::SeqCst);
        self.shared.closing.store(true, Ordering::SeqCst);
        if waits && acts {
            // The others need not wait for the end of its lease.
            let _ = self.shared.ask(&Ask::Propose(self.shared.me, Change::Leave));
        }
        self.close();
    }
}

impl NodeShared {
    pub(crate) fn now(&self) -> Nanos {
        self.net.now()
    }

    fn node_directory(&self) -> NodeDirectory {
        let own = self.rendezvous.own_directory();
        own.unwrap_or_else(|| locked(&self.node_directory).clone())
    }

    fn entry(&self, node: NodeId) -> Option<NodeEntry> {
        match self.rendezvous.own_directory() {
            Some(own) => own.find(node).cloned(),
            None => locked(&self.node_directory).find(node).cloned(),
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Answer> {
        self.rendezvous.ask(ask, &*self.net)
    }

    /// The same, polled where nothing may block.
    async fn ask_soon(&self, ask: &Ask) -> Result<Answer> {
        self.rendezvous.ask_soon(ask, &*self.net).await
    }

    fn refresh_node_directory(&self) -> Result<()> {
        if self.rendezvous.server().is_some() {
            return Ok(());
        }
        self.take_node_directory(self.ask(&Ask::NodeDirectory)?)
    }

    /// Adopts the answer of the membership server.
    fn take_node_directory(&self, answer: Answer) -> Result<()> {
        match answer {
            Answer::NodeDirectory(node_directory) => {
                *locked(&self.node_directory) = node_directory;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the node directory may be fetched again: at most once per [`REFRESH_NS`].
    fn is_time_to_refresh(&self) -> bool {
        let (now, last) = (self.now(), self.refreshed_at.load(Ordering::Relaxed));
        if self.rendezvous.server().is_some() || (last != 0 && now < last + REFRESH_NS) {
            return false;
        }
        self.refreshed_at.store(now.max(1), Ordering::Relaxed);
        true
    }

    /// A node's directory entry; fetches the directory, and waits, when it is unknown, at most once
    /// per [`REFRESH_NS`].
    fn find(&self, node: NodeId) -> Option<NodeEntry> {
        if let Some(entry) = self.entry(node) {
            return Some(entry);
        }
        if self.is_time_to_refresh() {
            self.refresh_node_directory().ok()?;
        }
        self.entry(node)
    }

    /// The incarnation of a node that links must reach, where the layer above has set one.
    fn known_incarnation(&self, node: NodeId) -> Option<u32> {
        locked(&self.incarnations).get(&node).copied()
    }

    /// The member and address of a connection to a node, as far as is known.
    fn reach_known(&self, node: NodeId) -> Result<(Member, String)> {
        let entry = self.entry(node).ok_or_else(|| {
            Error::unreachable(format!("{node} is no node of this pool, or has not come yet"))
        })?;
        let incarnation = self.known_incarnation(node).unwrap_or(entry.member.incarnation);
        let address =
            if entry.address.is_empty() { self.first_address.clone() } else { entry.address };
        Ok((Member { node, incarnation }, address))
    }

    /// Whether a node is this process's.
    fn check_own(&self, node: NodeId) -> Result<()> {
        if node == self.me.node {
            return Ok(());
        }
        let text = format!("this process is {}, not {node}", self.me.node);
        Err(Error::not_found(text))
    }

    fn check_pool(&self, pool: PoolId) -> Result<()> {
        if pool == self.pool {
            return Ok(());
        }
        Err(Error::incompatible(format!(
            "{} belongs to another pool: its process has restarted with an empty region, or the address is another's; the contents of the old pool are gone, start its compute processes again",
            self.me.node
        )))
    }

    /// Whether a peer addresses this node in this incarnation.
    fn check_incarnation(&self, to: Member) -> Result<()> {
        if to == self.me {
            return Ok(());
        }
        Err(Error::incompatible(format!(
            "here is {}, not {to}: it has restarted, or another took its address",
            self.me
        )))
    }

    /// Refuses work that may not be begun after this time of this node's clock.
    fn check_time(&self, use_by: Nanos, work: &str) -> Result<()> {
        if self.now() > use_by {
            return Err(Error::unreachable(format!("{} had no time for {work}", self.me.node)));
        }
        Ok(())
    }

    /// Whether a member may reach this node.
    fn check_issuer(&self, from: Member) -> Result<()> {
        let host = &self.host;
        let is_revoked = host.revocations.load(Ordering::SeqCst) > 0
            && host.is_revoked(from.node, from.incarnation);
        match is_revoked {
            false => Ok(()),
            true => Err(Error::revoked(format!(
                "{} refuses {from}: it has lost its membership",
                self.me.node
            ))),
        }
    }

    /// Returns when no verb or job of a member, or of a former incarnation of it, is executed here
    /// any more. Where nothing may wait it fails while a job runs, and is tried again.
    fn revoke(&self, member: Member) -> Result<()> {
        self.host.revoke(member.node, member.incarnation);
        if let Some(rdma) = &self.rdma {
            rdma.revoke(member);
        }
        self.sessions.end(|m, _| m.node == member.node && m.incarnation <= member.incarnation);
        let waits = self.net.has_threads();
        self.host.jobs.end_of(member.node, member.incarnation, waits)
    }

    /// Passes a call to the service thread, or to a core for data services.
    fn call(&self, call: Call) {
        // Without that thread the node is closing, and no caller waits.
        if let Some(calls) = &*locked(&self.calls) {
            self.sessions.calls_bytes.fetch_add(call.request.len(), Ordering::Relaxed);
            let is_data = self.host.rpc.is_data(call.service);
            let inbox = if is_data { &calls.data } else { &calls.control };
            let _ = inbox.send(call);
        }
    }

    fn fence_at(&self, host: NodeId, member: Member) -> Result<()> {
        if host == self.me.node {
            return self.revoke(member);
        }
        // Fetches the directory, and waits, when it is unknown.
        let _ = self.find(host);
        let (at, address) = self.reach_known(host)?;
        let admin = locked(&self.admins)
            .entry(at)
            .or_insert_with(|| {
                let credential = self.badges.credential(self.me);
                let role = Some(at.node.role());
                let admin = Admin::new(&self.net, address, Some(self.pool), role);
                Arc::new(admin.speaking_for(credential))
            })
            .clone();
        match admin.ask(&Ask::Revoke(member))? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl Fabric for NetFabric {
    fn name(&self) -> &'static str {
        self.data_path().name()
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
        shared.check_own(node)?;
        Ok(Rc::new(NetTransport::new(shared.clone())?))
    }

    fn caps(&self) -> Capabilities {
        self.0.shared.caps
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        let shared = &self.0.shared;
        shared.check_own(node)?;
        shared.host.rpc.install(service, handler);
        Ok(())
    }

    fn revoke(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.0.shared.fence_at(host, Member { node, incarnation })
    }

    fn connect(&self, _node: NodeId, to: NodeId, incarnation: u32) {
        let shared = &self.0.shared;
        locked(&shared.incarnations).insert(to, incarnation);
        shared.incarnations_news.fetch_add(1, Ordering::Release);
    }

    fn abandon(&self, _node: NodeId, dead: Member) {
        let shared = &self.0.shared;
        if shared.verdicts.end(dead) {
            shared.incarnations_news.fetch_add(1, Ordering::Release);
        }
    }

    fn set_presence(&self, _node: NodeId, of: NodeId, presence: Presence) {
        let shared = &self.0.shared;
        shared.verdicts.set_presence(of, presence);
        shared.incarnations_news.fetch_add(1, Ordering::Release);
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        match node == self.0.shared.me.node {
            true => Some(self.0.shared.me.incarnation),
            false => self.0.shared.find(node).map(|p| p.member.incarnation),
        }
    }
}
