//! What a node says of itself to every process that has proven the pool's key, without a place in
//! the pool: for operators. No operation asks this, and an answer waits for nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::admin::{Admin, unexpected};
use super::data_path::NicConfig;
use super::io::Net;
use super::node_directory::NodeDirectory;
use super::sockets::System;
use super::wire::{Answer, Ask, PoolId};
use super::{NetFabric, NodeShared};
use crate::error::{Error, Result};
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
    /// What the layer above says; empty when it says nothing.
    pub report: Vec<u8>,
    /// What the membership server says, on the first memory node.
    pub membership: Option<MembershipReport>,
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

/// Says what the layer above has to say. It is called on the thread that serves peers: it must not
/// wait.
pub type Report = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

impl NodeShared {
    pub(super) fn status(&self) -> NodeStatus {
        let report = locked(&self.report).clone();
        let report = report.map_or_else(Vec::new, |report| report());
        NodeStatus {
            member: self.me,
            pool: self.pool,
            data_path: self.common.data_path.name().to_owned(),
            region_bytes: self.host.region.len(),
            links: self.sessions.count(),
            report: if report.len() > MOST_REPORT_BYTES { Vec::new() } else { report },
            membership: self.membership_server.as_ref().map(|m| m.report(self.now())),
        }
    }
}

impl NetFabric {
    /// What this node says of itself; `None` when it has been closed.
    pub fn status(&self) -> Option<NodeStatus> {
        let shared = &self.0.shared;
        (!shared.closing.load(Ordering::SeqCst)).then(|| shared.status())
    }

    /// What the layer above says of this node.
    pub fn set_report(&self, report: Report) {
        *locked(&self.0.shared.report) = Some(report);
    }

    /// Asks the node at an address, as a process without a place in the pool.
    ///
    /// # Errors
    /// `Unreachable` when no answer comes within two seconds; `Incompatible` when another program
    /// or version answers, or the key is another.
    pub fn status_of(address: &str, nic_config: &NicConfig) -> Result<NodeStatus> {
        let net: Arc<dyn Net> = Arc::new(System);
        let mut trouble = None;
        for at in net.resolve(address)? {
            let admin = Admin::new(&net, at, None, nic_config.access.key.clone());
            match admin.ask(&Ask::Status) {
                Ok(Answer::Status(status)) => return Ok(*status),
                Ok(other) => return Err(unexpected(&other)),
                Err(e) => trouble = Some(e),
            }
        }
        Err(trouble.unwrap_or_else(|| Error::invalid(format!("{address:?} is no address"))))
    }
}
