//! What a pool of several processes looks like, for operators: asked of its nodes by a process that
//! has the key and no place in the pool.
//!
//! The first memory node says which nodes there are and what the membership holds of them; each
//! node that should answer is asked what it does itself. A node that does not is listed with the
//! error.

use std::sync::{Arc, Weak};

use dmtree_fabric::net::{MembershipReport, NetFabric, NicConfig, NodeStatus, PoolView};
use dmtree_fabric::{Error, Member, MemberPhase, NodeId, Presence, Result, Role};
use serde::Serialize;

use crate::chunks::ChunkService;
use crate::node::PoolNode;
use crate::owners::OwnerService;
use crate::reports::NodeReport;

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolStatus {
    /// Where it was asked.
    pub first: String,
    /// Tells it from others; 16 hexadecimal digits.
    pub pool: String,
    /// The fabric of its verbs.
    pub fabric: String,
    /// Where its membership is kept: at mn0, or in etcd.
    pub membership: String,
    /// For how long that has not answered the node that was asked, ms.
    pub membership_silent_ms: u64,
    /// The membership epoch.
    pub epoch: u64,
    /// Memory nodes that it has.
    pub memory_nodes: u16,
    /// Those that are ready, or have been.
    pub ready_memory_nodes: u16,
    /// Compute nodes that it can have at a time.
    pub most_compute_nodes: u16,
    /// Compute nodes that have died or left.
    pub deaths: u64,
    /// Whether tables are being moved to other nodes.
    pub moves_tables: bool,
    /// Its nodes: memory nodes first.
    pub nodes: Vec<MemberStatus>,
}

/// A node of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberStatus {
    /// Which.
    pub node: String,
    /// How often its number was given.
    pub incarnation: u32,
    /// Where it listens.
    pub address: String,
    /// What the membership holds of it.
    pub standing: &'static str,
    /// How long its lease lasts, if it has one.
    pub lease_ms: Option<u64>,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Links of client threads of other processes; none when it does not answer.
    pub links: Option<u64>,
    /// Whether an operator has asked it to leave the pool.
    pub is_asked_to_leave: bool,
    /// Whether other machines can connect to it without keys.
    pub is_insecure: bool,
    /// Why it does not answer.
    pub trouble: Option<String>,
    /// What it says of its work.
    pub report: NodeReport,
}

impl PoolStatus {
    /// Asks the pool with its first memory node at an address.
    ///
    /// # Errors
    /// `Unreachable` when that node does not answer, `Incompatible` when it is something else or
    /// has other keys, `InvalidArgument` when it is another node of a pool.
    pub fn ask(first: &str, nic_config: &NicConfig) -> Result<Self> {
        let view = NetFabric::view_of(first, nic_config)?;
        let Some(m) = &view.membership else {
            return Err(not_the_first(first, &view));
        };
        let nodes = members(m).map(|(member, standing)| {
            let here = view.here.clone().filter(|here| member == here.member);
            member_status(first, nic_config, m, (member, standing), here)
        });
        Ok(Self {
            first: first.to_owned(),
            pool: format!("{:016x}", view.pool.0),
            fabric: view.data_path.clone(),
            membership: view.membership_at.clone(),
            membership_silent_ms: view.membership_silent_ns / 1_000_000,
            epoch: m.state.epoch,
            memory_nodes: m.memory_nodes,
            ready_memory_nodes: m.ready,
            most_compute_nodes: m.compute_nodes,
            deaths: m.state.deaths,
            moves_tables: m.state.planned.is_some(),
            nodes: nodes.collect(),
        })
    }
}

/// The error of a node that does not keep the membership.
pub(crate) fn not_the_first(at: &str, view: &PoolView) -> Error {
    let node = view.here.as_ref().map_or("etcd".to_owned(), |here| here.member.node.to_string());
    Error::invalid(format!(
        "{at} is {node}, and the first memory node knows the pool: ask that one"
    ))
}

/// The nodes that are there, or that others wait for.
pub(crate) fn members(m: &MembershipReport) -> impl Iterator<Item = (Member, &'static str)> {
    let entries = m.node_directory.entries().iter();
    entries.filter_map(|entry| Some((entry.member, standing(m, entry.member)?)))
}

fn standing(m: &MembershipReport, member: Member) -> Option<&'static str> {
    Some(match member.node.role() {
        Role::Memory | Role::Journal => {
            let state = m.state.memory_node(member.node);
            match state.map(|m| (m.presence, m.gap)) {
                Some((Presence::Present, _)) if state.is_some_and(|m| m.is_new) => {
                    "new: not every compute node knows it"
                }
                Some((Presence::Present, false)) => "present",
                Some((Presence::Present, true)) => "present; its part lacks writes: refill it",
                Some((Presence::Missing, false)) => "missing",
                Some((Presence::Lost, false)) => "lost",
                Some((Presence::Missing, true)) => "missing; writes go on without it",
                Some((Presence::Lost, true)) => "lost; writes go on without it",
                // The first one keeps the membership, and holds no lease.
                None if member.node == NodeId::memory(0) => "present",
                None => "starting",
            }
        }
        Role::Compute => match m.state.phase(member) {
            Some(MemberPhase::Gone) => return None,
            Some(phase) => phase.in_words(),
            None => "starting",
        },
    })
}

fn is_away(m: &MembershipReport, member: Member) -> bool {
    let memory = m.state.memory_node(member.node);
    memory.is_some_and(|m| m.presence.is_away())
}

fn member_status(
    first: &str,
    nic_config: &NicConfig,
    m: &MembershipReport,
    (member, standing): (Member, &'static str),
    here: Option<NodeStatus>,
) -> MemberStatus {
    let entry = m.node_directory.find(member.node);
    let listens = entry.map(|e| e.address.as_str()).filter(|at| !at.is_empty());
    let address = listens.unwrap_or(first).to_owned();
    let lease = m.leases.iter().find(|(of, _)| *of == member);
    let answered = match here {
        Some(status) => Ok(status),
        None if is_away(m, member) => Err(Error::unreachable("not asked")),
        None => ask_member(&address, nic_config, member),
    };
    let report = answered.as_ref().ok().and_then(NodeReport::of);
    MemberStatus {
        node: member.node.to_string(),
        incarnation: member.incarnation,
        address,
        standing,
        lease_ms: lease.map(|(_, ns)| ns / 1_000_000),
        region_bytes: entry.map_or(0, |e| e.region_bytes),
        links: answered.as_ref().ok().map(|status| status.links),
        is_asked_to_leave: answered.as_ref().is_ok_and(|status| status.is_asked_to_leave),
        is_insecure: answered.as_ref().is_ok_and(|status| status.is_insecure),
        trouble: answered.err().map(|e| e.to_string()),
        report: report.unwrap_or_default(),
    }
}

/// Another node may listen at its address by now.
fn ask_member(address: &str, nic_config: &NicConfig, member: Member) -> Result<NodeStatus> {
    let status = NetFabric::status_of(address, nic_config)?;
    if status.member == member {
        return Ok(status);
    }
    Err(Error::unreachable(format!("{} listens at its address", status.member)))
}

impl NodeReport {
    /// That of a node; `None` when it says nothing.
    pub fn of(status: &NodeStatus) -> Option<Self> {
        postcard::from_bytes(&status.report).ok()
    }
}

fn encode(report: &NodeReport) -> Vec<u8> {
    postcard::to_stdvec(report).unwrap_or_default()
}

/// A memory node reports.
pub(crate) fn report_memory(
    fabric: &NetFabric,
    (chunks, owners): (Arc<ChunkService>, Arc<OwnerService>),
) {
    fabric.set_report(Arc::new(move || {
        let (memory, partitions) = (Some(chunks.report()), owners.partitions());
        encode(&NodeReport { memory, partitions, ..NodeReport::default() })
    }));
}

/// A compute node reports.
pub(crate) fn report_compute(fabric: &NetFabric, node: &Arc<PoolNode>) {
    // The node has the fabric.
    let node: Weak<PoolNode> = Arc::downgrade(node);
    fabric.set_report(Arc::new(move || match node.upgrade() {
        Some(node) => encode(&node.work()),
        None => Vec::new(),
    }));
}
