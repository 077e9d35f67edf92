//! All nodes in one process, their memory reached through the NIC: for tests of the data path.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::config::Config;
use super::nic::Nic;
use super::port::Port;
use super::transport::VerbsTransport;
use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::error::Result;
use crate::local::LocalFabric;
use crate::membership::{Member, Presence};
use crate::region::Pages;
use crate::rpc::{RpcHandler, ServiceId};
use crate::sync::locked;
use crate::transport::{Fabric, Transport};

/// Nodes in this process, joined by a NIC. Clones share the fabric.
#[derive(Clone)]
pub struct VerbsFabric(pub(super) Arc<VerbsShared>);

pub(super) struct VerbsShared {
    /// The nodes and their services.
    pub node_directory: LocalFabric,
    pub nic: Arc<Nic>,
    ports: Mutex<Vec<(Member, Arc<Port>)>>,
    /// Start of the fabric's clock.
    pub epoch: std::time::Instant,
}

crate::debug_line!(
    VerbsFabric, it => "VerbsFabric({:?} on {})", it.0.node_directory.nodes(), it.0.nic
);

impl VerbsFabric {
    /// A fabric without nodes, on the device that the settings choose.
    ///
    /// # Errors
    /// `Unsupported`, naming the missing part and how to get it.
    #[expect(clippy::disallowed_methods, reason = "this is the fabric's clock")]
    pub fn new(config: &Config) -> Result<Self> {
        Ok(Self(Arc::new(VerbsShared {
            node_directory: LocalFabric::new(),
            nic: Nic::open(config)?,
            ports: Mutex::default(),
            epoch: std::time::Instant::now(),
        })))
    }

    /// The device.
    pub fn nic(&self) -> &Nic {
        &self.0.nic
    }

    /// Adds a node with a zeroed region of `bytes`, or brings a revoked one back with a new
    /// incarnation and a new region.
    ///
    /// # Errors
    /// `Exists` when the node is a member already; `Full` when its memory cannot be registered.
    pub fn add_node(&self, node: NodeId, bytes: u64) -> Result<()> {
        let huge = self.0.nic.config.huge_pages;
        let pages = if huge { Pages::Huge } else { Pages::Ordinary };
        self.0.node_directory.add_mapped_node(node, bytes, pages)?;
        let host = self.0.node_directory.known(node)?;
        let me = Member { node, incarnation: host.incarnation };
        let on_chip_bytes = self.0.nic.config.on_chip_bytes;
        let port = Port::open(self.0.nic.clone(), me, host, on_chip_bytes)?;
        let mut ports = locked(&self.0.ports);
        ports.retain(|(m, _)| m.node != node);
        ports.push((me, Arc::new(port)));
        Ok(())
    }

    /// A client thread's transport, of which tests ask more than of any.
    pub fn transport(&self, node: NodeId) -> Result<Rc<VerbsTransport>> {
        self.0.node_directory.check_member(node)?;
        let own = self.0.node_directory.known(node)?;
        Ok(Rc::new(VerbsTransport::new(self.0.clone(), own)?))
    }
}

impl VerbsShared {
    pub(super) fn port(&self, node: NodeId) -> Option<Arc<Port>> {
        let ports = locked(&self.ports);
        ports.iter().find(|(m, _)| m.node == node).map(|(_, p)| p.clone())
    }

    pub(super) fn caps(&self) -> Capabilities {
        let ports = locked(&self.ports);
        Capabilities {
            // One packet.
            whole_write_bytes: u32::from(self.nic.mtu),
            on_chip_bytes: ports.iter().map(|(_, p)| p.on_chip_bytes()).min().unwrap_or(0),
            mn_cores: 1,
            ..Capabilities::NONE
        }
    }
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn members(&self) -> Result<Vec<NodeId>> {
        self.0.node_directory.members()
    }

    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.node_directory.region_bytes(node)
    }

    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        Ok(self.transport(node)?)
    }

    fn caps(&self) -> Capabilities {
        self.0.caps()
    }

    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        self.0.node_directory.serve(node, service, handler)
    }

    fn revoke(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.0.node_directory.revoke(host, node, incarnation)?;
        if let Some(port) = self.0.port(host) {
            port.revoke(Member { node, incarnation });
        }
        Ok(())
    }

    fn connect(&self, node: NodeId, to: NodeId, incarnation: u32) {
        self.0.node_directory.connect(node, to, incarnation);
    }

    fn set_presence(&self, node: NodeId, of: NodeId, presence: Presence) {
        self.0.node_directory.set_presence(node, of, presence);
    }

    fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.0.node_directory.incarnation(node)
    }
}
