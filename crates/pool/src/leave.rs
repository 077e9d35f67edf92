//! An operator asks a compute node of a running pool to leave it.
//!
//! A process with the pool's key asks, without a place in the pool. The process of the node sees it
//! when it looks, ends its work, and leaves in good order: its tables move to other compute nodes,
//! and nothing is recovered. A process that does not look stays.

use dmtree_fabric::net::{MembershipReport, NetFabric, NicConfig};
use dmtree_fabric::{Error, Member, MemberPhase, Result, Role};

use crate::status::{members, not_the_first};

/// A compute node that was asked to leave.
#[derive(Clone, Debug)]
pub struct Leaving {
    first: String,
    nic_config: NicConfig,
    member: Member,
}

impl Leaving {
    /// Asks the compute node `name` of the pool with its first memory node at an address.
    ///
    /// # Errors
    /// `NotFound` when the pool has no living compute node of this name, `Unsupported` for other
    /// nodes, `InvalidArgument` for the last compute node; `Unreachable` when a node does not
    /// answer.
    pub fn ask(first: &str, nic_config: &NicConfig, name: &str) -> Result<Self> {
        let m = membership(first, nic_config)?;
        let member = living(&m, name)?;
        let entry = m.node_directory.find(member.node);
        let address = entry.map(|e| e.address.as_str()).filter(|at| !at.is_empty());
        let address = address.ok_or_else(|| {
            Error::unreachable(format!("the pool does not know where {member} listens"))
        })?;
        NetFabric::ask_to_leave(address, nic_config, member)?;
        Ok(Self { first: first.to_owned(), nic_config: nic_config.clone(), member })
    }

    /// What it does now; `None` when it has left.
    ///
    /// # Errors
    /// `Unreachable` when the first memory node does not answer.
    pub fn standing(&self) -> Result<Option<&'static str>> {
        let m = membership(&self.first, &self.nic_config)?;
        let found = members(&m).find(|(member, _)| *member == self.member);
        Ok(found.map(|(_, standing)| standing))
    }

    /// The node and its incarnation.
    pub fn member(&self) -> Member {
        self.member
    }
}

fn membership(first: &str, nic_config: &NicConfig) -> Result<MembershipReport> {
    let mut view = NetFabric::view_of(first, nic_config)?;
    view.membership.take().ok_or_else(|| not_the_first(first, &view))
}

/// The living compute node of this name, which is not the last one.
fn living(m: &MembershipReport, name: &str) -> Result<Member> {
    let nodes = || members(m).map(|(member, _)| member);
    let is_living = |member: &Member| m.state.phase(*member) == Some(MemberPhase::Living);
    let computes = || nodes().filter(|member| member.node.role() == Role::Compute);
    if let Some(found) = computes().filter(is_living).find(|at| at.node.to_string() == name) {
        return match computes().filter(is_living).count() {
            0 | 1 => Err(Error::invalid(format!(
                "{name} is the last compute node: no other could take its tables; end its process"
            ))),
            _ => Ok(found),
        };
    }
    if let Some(other) = nodes().find(|member| member.node.to_string() == name) {
        return Err(match other.node.role() {
            Role::Compute => Error::not_found(format!("{name} is leaving, or has not joined yet")),
            _ => Error::unsupported(format!(
                "{name} keeps data, which nothing moves elsewhere: compute nodes can leave"
            )),
        });
    }
    let there: Vec<String> = computes().map(|member| member.node.to_string()).collect();
    Err(Error::not_found(format!(
        "the pool has no compute node {name:?}: it has {}",
        if there.is_empty() { "none".to_owned() } else { there.join(", ") }
    )))
}
