//! A device and its port, probed: name, address, limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{
    AtomicCapability, DeviceAttr, DeviceContext, LinkLayer, PortAttr, PortState,
};

use super::config::Config;
use super::memory::on_chip_bytes;
use super::offer::{ip, is_v4};
use crate::error::{Error, Result};

/// The link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PortLink {
    InfiniBand,
    Ethernet,
}

/// Payload of a packet, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(super) struct Mtu(pub(super) u32);

impl TryFrom<u32> for Mtu {
    type Error = String;
    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Ok(Self(bytes)),
            _ => Err(format!("mtu is {bytes}: it is 256, 512, 1024, 2048 or 4096")),
        }
    }
}

impl From<Mtu> for u32 {
    fn from(mtu: Mtu) -> Self {
        mtu.0
    }
}

/// Where packets find the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub link: PortLink,
    pub lid: u16,
    pub gid: [u8; 16],
    pub gid_index: u8,
}

/// The limits of the device, lowered to the user's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Send queue entries of a queue pair.
    pub depth: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// READs and atomics of a queue pair outstanding at a time.
    pub initiator_depth: u8,
    /// READs and atomics that a queue pair serves at a time.
    pub responder_depth: u8,
    /// Bytes of one registration.
    pub chunk_bytes: u64,
}

/// A device and one of its ports. All nodes and client threads of a process that use it share one.
pub struct Nic {
    pub(super) config: Config,
    device: String,
    pub(super) port: u8,
    pub(super) address: Address,
    pub(super) mtu: Mtu,
    pub(super) limits: Limits,
    /// On-chip memory that it has.
    on_chip_bytes: u64,
    /// Client threads: they share the verbs outstanding evenly.
    clients: AtomicU32,
    /// Why this port and address.
    why: String,
}

crate::debug_line!(Nic, it => "Nic({})", it);

impl std::fmt::Display for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Address { link, lid, gid, gid_index } = &self.address;
        write!(f, "{} port {} ({link:?}", self.device, self.port)?;
        match link {
            PortLink::InfiniBand => write!(f, ", lid {lid}")?,
            PortLink::Ethernet => write!(f, ", address {} at index {gid_index}", ip(gid))?,
        }
        let Limits { depth, initiator_depth, responder_depth, .. } = self.limits;
        write!(
            f,
            ", mtu {}, send queues of {depth}, READs and atomics outstanding {initiator_depth} out and {responder_depth} in; {}; ",
            self.mtu.0, self.why
        )?;
        match self.on_chip_bytes {
            0 => f.write_str("no on-chip memory: locks are in DRAM)"),
            bytes => write!(f, "{bytes} bytes of on-chip memory for locks)"),
        }
    }
}

fn missing(what: &str, way_out: &str) -> Error {
    Error::unsupported(format!("verbs: {what}: {way_out}"))
}

/// An error of the library, with its number in words, the object and the remedy.
pub(super) fn failed(
    what: impl std::fmt::Display,
    e: &dyn std::error::Error,
    way_out: &str,
) -> Error {
    let mut text = format!("verbs: {what}: {e}");
    let mut cause = e.source();
    while let Some(c) = cause {
        text += &format!(": {c}");
        cause = c.source();
    }
    Error::unsupported(format!("{text}; {way_out}"))
}

/// The devices of this machine.
fn devices() -> Result<DeviceList> {
    const ENOSYS: i32 = 38;
    const EOPNOTSUPP: i32 = 95;
    match DeviceList::new() {
        Ok(list) if list.is_empty() => Err(missing(
            "this machine has no RDMA device",
            "load the driver of its NIC, or make a software device: rdma link add rxe0 type rxe netdev DEVICE",
        )),
        Ok(list) => Ok(list),
        Err(e) => {
            let errno = std::io::Error::last_os_error().raw_os_error();
            Err(match errno {
                Some(EOPNOTSUPP) => missing(
                    "libibverbs.so.1 is not there",
                    "apt-get install libibverbs1 ibverbs-providers",
                ),
                Some(ENOSYS) => missing(
                    "the kernel's part of RDMA is not loaded",
                    "modprobe ib_uverbs, and the driver of the NIC",
                ),
                _ => failed("devices cannot be listed", &e, "see `dmtree doctor`"),
            })
        }
    }
}

fn open(name: &str) -> Result<Arc<DeviceContext>> {
    let list = devices()?;
    let Some(device) = list.iter().find(|d| d.name() == name) else {
        let names: Vec<String> = list.iter().map(|d| d.name()).collect();
        return Err(missing(
            &format!("no device {name}"),
            &format!("there is {}", names.join(", ")),
        ));
    };
    device.open().map_err(|e| {
        failed(name, &e, "the user needs read and write access to /dev/infiniband/uverbs*")
    })
}

impl Nic {
    /// Finds a device with an active port, and probes both.
    ///
    /// # Errors
    /// `Unsupported`, naming the missing part and how to get it; `InvalidArgument` for unsound
    /// settings.
    pub fn open(config: &Config) -> Result<Arc<Self>> {
        config.check()?;
        let names: Vec<String> = match &config.device {
            Some(name) => vec![name.clone()],
            None => devices()?.iter().map(|d| d.name()).collect(),
        };
        let mut problems = Vec::new();
        for name in &names {
            match Self::probe(config, name) {
                Ok(nic) => return Ok(Arc::new(nic)),
                Err(e) => problems.push(e),
            }
        }
        let several = problems.len() > 1;
        let first = problems.into_iter().next();
        let first = first.unwrap_or_else(|| missing("no device", "see `dmtree doctor`"));
        Err(if several {
            first.context(format!("none of {} can be used", names.join(", ")))
        } else {
            first
        })
    }

    fn probe(config: &Config, name: &str) -> Result<Self> {
        let context = open(name)?;
        let attr = context.query_device().map_err(|e| failed(name, &e, "see `dmtree doctor`"))?;
        if attr.atomic_capability() == AtomicCapability::None {
            return Err(missing(&format!("{name} has no atomics"), "choose another device"));
        }
        let (port, port_attr) = active_port(config, name, &context, &attr)?;
        let link = match port_attr.link_layer() {
            LinkLayer::Ethernet => PortLink::Ethernet,
            _ => PortLink::InfiniBand,
        };
        let entries = gids(&context, port, &port_attr);
        let (gid, gid_index, why) = choose_gid(config, link, &entries)
            .map_err(|e| e.context(format!("{name} port {port}")))?;
        let address = Address { link, lid: port_attr.lid(), gid, gid_index };
        let mtu = Mtu(128 << (port_attr.active_mtu() as u32));
        let limits = limits(config, &attr);
        if limits.initiator_depth == 0 {
            return Err(missing(&format!("{name} issues no READs"), "choose another device"));
        }
        let (config, device) = (config.clone(), name.to_owned());
        let (on_chip_bytes, clients) = (on_chip_bytes(&context), AtomicU32::new(0));
        Ok(Self { config, device, port, address, mtu, limits, on_chip_bytes, clients, why })
    }

    /// A context of its own: doorbell registers are not shared between threads.
    pub(super) fn context(&self) -> Result<Arc<DeviceContext>> {
        open(&self.device)
    }

    /// Payload of a packet, bytes.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu.0
    }

    /// Name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// One more or less client thread.
    pub(super) fn add_client(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_client(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Verbs that each client thread may have outstanding.
    pub(super) fn share(&self) -> u32 {
        let all = self.config.outstanding.min(self.limits.completions / 2);
        (all / self.clients.load(Ordering::Relaxed).max(1)).max(2)
    }
}

fn active_port(
    config: &Config,
    name: &str,
    context: &DeviceContext,
    attr: &DeviceAttr,
) -> Result<(u8, PortAttr)> {
    let ports = match config.port {
        Some(port) if !(1..=attr.phys_port_cnt()).contains(&port) => {
            return Err(missing(
                &format!("{name} has no port {port}"),
                &format!("give one of 1 to {}", attr.phys_port_cnt()),
            ));
        }
        Some(port) => port..=port,
        None => 1..=attr.phys_port_cnt(),
    };
    let mut states = Vec::new();
    for port in ports {
        let attr = context
            .query_port(port)
            .map_err(|e| failed(format!("{name} port {port}"), &e, "see `dmtree doctor`"))?;
        if attr.port_state() == PortState::Active {
            return Ok((port, attr));
        }
        states.push(format!("port {port} is {:?}", attr.port_state()));
    }
    Err(missing(
        &format!("{name} has no active port ({})", states.join(", ")),
        "check the cable, and `ip link set dev INTERFACE up` or the subnet manager",
    ))
}

/// A row of a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GidRow {
    index: u8,
    gid: [u8; 16],
    is_v2: bool,
}

fn gids(context: &DeviceContext, port: u8, attr: &PortAttr) -> Vec<GidRow> {
    let len = u8::try_from(attr.gid_tbl_len()).unwrap_or(u8::MAX);
    let row = |index: u8| {
        let Gid { raw: gid } = context.query_gid(port, u32::from(index)).ok()?;
        let kind = context.query_gid_type(port, u32::from(index)).ok()?;
        (gid != [0; 16]).then_some(GidRow { index, gid, is_v2: kind == 1 })
    };
    (0..len).filter_map(row).collect()
}

/// Over Ethernet: version 2 of RoCE, which routers pass on, with the address of an interface rather
/// than one made of its hardware address, which no route leads to.
fn choose_gid(config: &Config, link: PortLink, rows: &[GidRow]) -> Result<([u8; 16], u8, String)> {
    if let Some(index) = config.gid_index {
        let row = rows.iter().find(|r| r.index == index);
        let valid: Vec<String> = rows.iter().map(|r| r.index.to_string()).collect();
        return row.map(|r| (r.gid, index, "the address was asked for".to_owned())).ok_or_else(
            || {
                missing(
                    &format!("no address at index {index}"),
                    &format!("there is {}", valid.join(", ")),
                )
            },
        );
    }
    let rank = |r: &GidRow| match (link, r.is_v2) {
        (PortLink::InfiniBand, _) => (1, "the port's first address"),
        (_, true) if is_v4(&r.gid) => (4, "RoCE version 2 over IPv4"),
        (_, true) if r.gid[0] != 0xfe => (3, "RoCE version 2 over IPv6"),
        (_, true) => (2, "RoCE version 2 over a link-local address: one subnet only"),
        (_, false) => (1, "RoCE version 1: one subnet only"),
    };
    // The first of the best.
    let best = rows.iter().rev().max_by_key(|r| rank(r).0);
    best.map(|r| (r.gid, r.index, rank(r).1.to_owned())).ok_or_else(|| {
        missing(
            "the port has no address",
            "give its interface one: ip addr add ADDRESS/24 dev INTERFACE",
        )
    })
}

fn limits(config: &Config, attr: &DeviceAttr) -> Limits {
    let at_most = |have: i32| u32::try_from(have).unwrap_or(0);
    let byte = |have: i32| u8::try_from(have.max(0)).unwrap_or(u8::MAX);
    let largest = attr.max_mr_size().max(4096);
    Limits {
        depth: config.depth.min(at_most(attr.max_qp_wr())),
        // Every verb outstanding may end in a completion of its own when its queue pair breaks.
        completions: (config.outstanding.saturating_mul(2)).min(at_most(attr.max_cqe())),
        initiator_depth: byte(attr.max_qp_init_rd_atom()),
        responder_depth: byte(attr.max_qp_rd_atom()),
        chunk_bytes: config.chunk_bytes.min(1 << largest.ilog2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_chosen_by_kind() {
        let v4 = |n| std::net::Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped().octets();
        let local = [0xfe; 16];
        let row = |index, gid, is_v2| GidRow { index, gid, is_v2 };
        let rows = [
            row(0, local, false),
            row(1, local, true),
            row(2, v4(1), false),
            row(3, v4(1), true),
            row(5, v4(2), true),
        ];
        let chosen =
            |config: &Config, link, rows: &[GidRow]| choose_gid(config, link, rows).map(|c| c.1);
        let auto = Config::default();
        assert_eq!(chosen(&auto, PortLink::Ethernet, &rows).expect("any"), 3);
        assert_eq!(chosen(&auto, PortLink::Ethernet, &rows[..2]).expect("any"), 1);
        assert_eq!(chosen(&auto, PortLink::InfiniBand, &rows[..1]).expect("any"), 0);
        let asked = Config { gid_index: Some(2), ..Config::default() };
        assert_eq!(chosen(&asked, PortLink::Ethernet, &rows).expect("there"), 2);
        let e =
            chosen(&Config { gid_index: Some(4), ..Config::default() }, PortLink::Ethernet, &rows);
        assert!(e.expect_err("no row").to_string().contains("there is 0, 1, 2, 3, 5"));
        assert!(
            chosen(&auto, PortLink::Ethernet, &[])
                .expect_err("none")
                .to_string()
                .contains("ip addr add")
        );
    }
}
