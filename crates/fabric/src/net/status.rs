//! What a node says of itself to every process with keys of the pool, without a place in the pool:
//! for operators. No operation asks this, and an answer waits for nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::admin::{Admin, unexpected};
use super::data_path::NicConfig;
use super::kept_in::KeptIn;
use super::node_directory::NodeDirectory;
use super::sockets::System;
use super::wire::{Answer, Ask, PoolId};
use super::{NetFabric, NodeShared};
use crate::addr::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::{Member, MembershipState};
use crate::sync::locked;
use crate::transport::Nanos;

/// Longest report of the layer above, bytes.
const MOST_REPORT_BYTES: usize = 1 << 20;

/// What a node says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node and its incarnation.
    pub member: Member,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// The data path of the pool's verbs.
    pub data_path: String,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Links of client threads of other processes.
    pub links: u64,
    /// Whether an operator has asked it to leave the pool.
    pub is_asked_to_leave: bool,
    /// Whether other machines can connect to it without keys.
    pub is_insecure: bool,
    /// What the layer above says; empty when it says nothing.
    pub report: Vec<u8>,
    /// What the membership server says, on the first memory node, and on every node where etcd
    /// keeps the membership.
    pub membership: Option<MembershipReport>,
    /// Where the membership is kept: mn0, or an address in etcd.
    pub membership_at: String,
    /// For how long it has not answered this node, ns.
    pub membership_silent_ns: Nanos,
}

/// What the membership server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MembershipReport {
    /// The newest state.
    pub state: MembershipState,
    /// How long the leases of members still last, ns.
    pub leases: Vec<(Member, Nanos)>,
    /// Where the nodes are.
    pub node_directory: NodeDirectory,
    /// Memory nodes that the pool has.
    pub memory_nodes: u16,
    /// Memory nodes that are ready, or have been.
    pub ready: u16,
    /// Compute nodes that the pool can have at a time.
    pub compute_nodes: u16,
    /// Journal nodes that the pool has.
    pub journal_nodes: u16,
}

/// A pool as its membership describes it.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The pool.
    pub pool: PoolId,
    /// The data path of its verbs.
    pub data_path: String,
    /// What the membership says; `None` when the node that was asked does not keep it.
    pub membership: Option<MembershipReport>,
    /// Where it is kept.
    pub membership_at: String,
    /// For how long it has not answered the node that was asked, ns.
    pub membership_silent_ns: Nanos,
    /// What that node says of itself; `None` when it was etcd that was asked.
    pub here: Option<NodeStatus>,
}

/// Says what the layer above has to say. It is called on the thread that serves peers: it must not
/// wait.
pub type Report = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

impl NodeShared {
    /// The process is told when it looks: it ends its work, and leaves in good order.
    pub(super) fn ask_to_leave(&self, member: Member) -> Result<()> {
        if member != self.me {
            return Err(Error::not_found(format!("{member} is gone: this is {}", self.me)));
        }
        if member.node.role() != Role::Compute {
            return Err(Error::unsupported(format!(
                "{member} keeps data, which nothing moves elsewhere: compute nodes can leave"
            )));
        }
        self.is_asked_to_leave.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Whether this machine alone can connect.
    fn is_loopback(&self) -> bool {
        let at = self.listens.parse::<std::net::SocketAddr>();
        at.is_ok_and(|at| at.ip().to_canonical().is_loopback())
    }

    pub(super) fn status(&self) -> NodeStatus {
        let report = locked(&self.report).clone();
        let report = report.map_or_else(Vec::new, |report| report());
        NodeStatus {
            member: self.me,
            pool: self.pool,
            data_path: self.common.data_path.name().to_owned(),
            region_bytes: self.host.region.len(),
            links: self.sessions.count(),
            is_asked_to_leave: self.is_asked_to_leave.load(Ordering::SeqCst),
            is_insecure: !self.net.has_keys() && !self.is_loopback(),
            report: if report.len() > MOST_REPORT_BYTES { Vec::new() } else { report },
            membership: self.rendezvous.report(self.now()),
            membership_at: self.rendezvous.place(),
            membership_silent_ns: self.rendezvous.silent_ns(self.now()),
        }
    }
}

impl NetFabric {
    /// What this node says of itself; `None` when it has been closed.
    pub fn status(&self) -> Option<NodeStatus> {
        let shared = &self.0.shared;
        (!shared.closing.load(Ordering::SeqCst)).then(|| shared.status())
    }

    /// Whether an operator has asked this compute node to leave the pool.
    pub fn is_asked_to_leave(&self) -> bool {
        self.0.shared.is_asked_to_leave.load(Ordering::SeqCst)
    }

    /// What the layer above says of this node.
    pub fn set_report(&self, report: Report) {
        *locked(&self.0.shared.report) = Some(report);
    }

    /// Asks the node at an address, as a process without a place in the pool.
    ///
    /// # Errors
    /// `Unreachable` when no answer comes within two seconds; `Incompatible` when another program
    /// or version answers, or the keys are of another pool.
    pub fn status_of(address: &str, nic_config: &NicConfig) -> Result<NodeStatus> {
        match ask_as_stranger(address, nic_config, &Ask::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// A pool, as the node at an address describes it, or as it is kept at an address in etcd.
    ///
    /// # Errors
    /// Those of [`NetFabric::status_of`], and of etcd.
    pub fn view_of(address: &str, nic_config: &NicConfig) -> Result<PoolView> {
        if let Some(address) = KeptIn::parse(address) {
            return address?.view(&System::of(&nic_config.access));
        }
        let mut status = Self::status_of(address, nic_config)?;
        Ok(PoolView {
            pool: status.pool,
            data_path: status.data_path.clone(),
            membership: status.membership.take(),
            membership_at: status.membership_at.clone(),
            membership_silent_ns: status.membership_silent_ns,
            here: Some(status),
        })
    }

    /// Asks the compute node at an address to leave the pool, as a process without a place in it.
    ///
    /// # Errors
    /// Those of [`NetFabric::status_of`]; `NotFound` when another node or incarnation listens
    /// there, `Unsupported` for a memory node or journal node.
    pub fn ask_to_leave(address: &str, nic_config: &NicConfig, member: Member) -> Result<()> {
        match ask_as_stranger(address, nic_config, &Ask::Leave(member))? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// Asks in the name of no member.
fn ask_as_stranger(address: &str, nic_config: &NicConfig, ask: &Ask) -> Result<Answer> {
    let net = System::of(&nic_config.access);
    let mut trouble = None;
    for at in net.resolve(address)? {
        match Admin::new(&net, at, None, None).ask(ask) {
            // The node itself has refused.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {
                return Err(e);
            }
            Err(e) => trouble = Some(e),
            answered => return answered,
        }
    }
    Err(trouble.unwrap_or_else(|| Error::invalid(format!("{address:?} is no address"))))
}
