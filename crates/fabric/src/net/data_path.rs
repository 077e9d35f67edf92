//! The data path of a pool's verbs: frames on its TCP connections, or RDMA beside them. The first
//! memory node decides; remote calls and the membership use TCP in both cases.

use serde::{Deserialize, Serialize};

use super::access::Access;
use super::rdma::Device;
use crate::error::{Error, Result};

/// The data path of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataPath {
    /// Frames on the connections, which the host's processor executes.
    #[default]
    Frames,
    /// Queue pairs: the host's NIC executes verbs.
    Rdma,
}

impl DataPath {
    /// The name of the fabric on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frames => "tcp",
            Self::Rdma => "verbs",
        }
    }
}

impl std::fmt::Display for DataPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The configuration of a process: the key of the pool, its NIC, its memory. Only pools over RDMA
/// use the latter two. Nodes that get clones of one configuration share the NIC, and its limit of
/// outstanding verbs.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The keys of the process, or none.
    pub access: Access,
    /// Name of the RDMA device; the first one with an active port when not given.
    pub device: Option<String>,
    /// Index into the port's table of addresses; chosen by kind when not given.
    pub gid_index: Option<u8>,
    /// Huge pages for regions, where the system has any.
    pub huge_pages: bool,
    /// On-chip memory that a memory node exposes for locks, bytes at most; as much as the device
    /// has when not given.
    pub on_chip_bytes: Option<u32>,
    /// Cores of a memory node that run data services: a thread each. What the first memory node
    /// has, compute nodes assume of all.
    pub cores: u32,
    /// Opened when it is first needed.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "there is none to open"))]
    pub(super) opened: Device,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            access: Access::default(),
            device: None,
            gid_index: None,
            huge_pages: true,
            on_chip_bytes: None,
            cores: 1,
            opened: Device::default(),
        }
    }
}

impl NicConfig {
    /// A device and an index into its port's table of addresses; each is chosen when not given.
    pub fn of(device: Option<String>, gid_index: Option<u8>) -> Self {
        Self { device, gid_index, ..Self::default() }
    }

    /// The default device with this access to a pool.
    pub fn with(access: Access) -> Self {
        Self { access, ..Self::default() }
    }

    /// A description of the NIC that would be used.
    ///
    /// # Errors
    /// `Unsupported`, naming the missing part and how to get it.
    pub fn describe(&self) -> Result<String> {
        Device::describe(self)
    }
}

/// The properties that all nodes of a pool share; the first memory node announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Common {
    pub data_path: DataPath,
    /// Payload of a packet, bytes: WRITEs up to this size are atomic to readers. 0 without RDMA.
    pub mtu: u32,
    /// Cores of a memory node that run data services.
    pub cores: u32,
}

impl Common {
    /// Refuses to join a pool that does not fit: `insists` is the data path that the user asked
    /// for, `mtu` that of this node's port.
    pub(super) fn check(self, first: &str, insists: Option<DataPath>) -> Result<()> {
        match insists {
            Some(data_path) if data_path != self.data_path => Err(Error::incompatible(format!(
                "the pool of {first} is on fabric {}, not on {data_path}: give --fabric {}, or start its memory nodes with --fabric {data_path}",
                self.data_path, self.data_path
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a port with smaller packets than the pool's: a WRITE of one packet of the pool would
    /// be split.
    pub(super) fn check_mtu(self, first: &str, mine: u32) -> Result<()> {
        if mine >= self.mtu {
            return Ok(());
        }
        Err(Error::incompatible(format!(
            "mtu is {mine} at this node's port and {} in the pool of {first}: raise it here (ip link set dev INTERFACE mtu {}), or start the memory nodes on a network with an mtu that all nodes have",
            self.mtu,
            self.mtu + 200
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_is_named_with_a_way_out() {
        let pool = Common { data_path: DataPath::Rdma, mtu: 2048, cores: 1 };
        assert!(pool.check("mn", None).is_ok() && pool.check("mn", Some(DataPath::Rdma)).is_ok());
        let e = pool.check("10.0.0.1:7000", Some(DataPath::Frames)).expect_err("another fabric");
        assert!(e.to_string().contains("10.0.0.1:7000 is on fabric verbs, not on tcp"), "{e}");
        assert!(pool.check_mtu("mn", 2048).is_ok() && pool.check_mtu("mn", 4096).is_ok());
        let e = pool.check_mtu("mn", 1024).expect_err("smaller packets");
        assert!(e.to_string().contains("mtu is 1024") && e.to_string().contains("ip link"), "{e}");
    }
}
