//! The RDMA of a node: its NIC, its port, and a client thread's connections. `no_rdma.rs` stands in
//! for it where it is not built.

use std::sync::{Arc, OnceLock};

use super::data_path::NicConfig;
use super::execute;
use crate::caps::Capabilities;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::membership::Member;
use crate::verbs::{Accepted, Config, Nic, Port};

pub(super) use crate::verbs::Client;

/// A host's end of a client thread's connection: dropping it closes it.
pub(super) type End = Accepted;

/// A NIC that is opened when it is first needed, and once.
#[derive(Clone, Debug, Default)]
pub(super) struct Device(Arc<OnceLock<Arc<Nic>>>);

impl Device {
    pub(super) fn describe(e: &NicConfig) -> Result<String> {
        Ok(Self::open(e)?.to_string())
    }

    fn open(e: &NicConfig) -> Result<Arc<Nic>> {
        if let Some(nic) = e.opened.0.get() {
            return Ok(nic.clone());
        }
        let config = Config {
            device: e.device.clone(),
            gid_index: e.gid_index,
            huge_pages: e.huge_pages,
            ..Config::default()
        };
        let nic = Nic::open(&config)?;
        Ok(e.opened.0.get_or_init(|| nic).clone())
    }
}

/// A node's memory on its NIC.
pub(super) struct Rdma {
    nic: Arc<Nic>,
    port: Port,
    /// For a reader: why hosts' NICs refuse its verbs.
    denied: Option<Error>,
}

impl Rdma {
    /// Payload of a packet of the device that would be used, bytes.
    ///
    /// # Errors
    /// `Unsupported`, naming the missing part and how to get it.
    pub(super) fn probe(e: &NicConfig) -> Result<u32> {
        Ok(Device::open(e)?.mtu_bytes())
    }

    /// Registers the region of a node, and on-chip memory if `on_chip_bytes` of it are wanted and
    /// there is any.
    pub(super) fn open(
        e: &NicConfig,
        me: Member,
        host: Arc<Host>,
        on_chip_bytes: u32,
    ) -> Result<Self> {
        let nic = Device::open(e)?;
        let port = Port::open(nic.clone(), me, host, on_chip_bytes)?;
        let identity = e.access.keys.identity();
        let is_reader = identity.is_some_and(|identity| !identity.acts_as(me.node.role()));
        Ok(Self { nic, port, denied: is_reader.then(execute::reads_only) })
    }

    pub(super) fn on_chip_bytes(&self) -> u32 {
        self.port.on_chip_bytes()
    }

    /// Its capabilities.
    pub(super) fn caps(&self, mtu: u32, on_chip_bytes: u32) -> Capabilities {
        Capabilities { whole_write_bytes: mtu, on_chip_bytes, ..Capabilities::NONE }
    }

    pub(super) fn client(&self, me: Member) -> Result<Client> {
        Client::open(self.nic.clone(), me, self.denied.clone())
    }

    pub(super) fn accept(
        &self,
        from: Member,
        offer: &[u8],
        reads_only: bool,
    ) -> Result<(Vec<u8>, End)> {
        self.port.accept(from, offer, reads_only)
    }

    pub(super) fn revoke(&self, member: Member) {
        self.port.revoke(member);
    }
}

impl std::fmt::Display for Rdma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.nic)
    }
}
