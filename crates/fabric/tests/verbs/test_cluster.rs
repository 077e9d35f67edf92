//! A fabric of a few nodes on any RDMA device of the machine.

use std::rc::Rc;

use dmtree_fabric::verbs::{Config, VerbsFabric, VerbsTransport};
use dmtree_fabric::{Core, Endpoint, GlobalAddr, NodeId, Result, Transport};

pub const MN: NodeId = NodeId::memory(0);
pub const CN: NodeId = NodeId::compute(0);
pub const REGION_BYTES: u64 = 10 << 20;

/// `None`, with a message, on a machine without a device; a failure where one is required.
#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
pub fn fabric_with(config: &Config) -> Option<VerbsFabric> {
    let f = match VerbsFabric::new(config) {
        Ok(f) => f,
        Err(e) if std::env::var_os("DMTREE_NEED_RDMA").is_none() => {
            println!("SKIPPED: {e}");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    for node in [MN, NodeId::memory(1)] {
        f.add_node(node, REGION_BYTES).expect("new");
    }
    for node in [CN, NodeId::compute(1)] {
        f.add_node(node, 1 << 12).expect("new");
    }
    Some(f)
}

/// Chunks small enough to be crossed, and timeouts short enough to be waited for.
pub fn config() -> Config {
    Config { chunk_bytes: 4 << 20, ack_timeout_ns: 20_000_000, retries: 3, ..Config::default() }
}

pub fn fabric() -> Option<VerbsFabric> {
    fabric_with(&config())
}

/// A client, with its transport.
pub fn client(f: &VerbsFabric, node: NodeId) -> (Endpoint, Rc<VerbsTransport>) {
    let transport = f.transport(node).expect("a member");
    let seam: Rc<dyn Transport> = transport.clone();
    let core = Core::new(seam.clone(), 0);
    let slot = core.add_slot();
    (Endpoint::new(core, seam, slot), transport)
}

pub fn endpoint(f: &VerbsFabric, node: NodeId) -> Endpoint {
    client(f, node).0
}

pub fn on<T>(ep: &Endpoint, f: impl Future<Output = Result<T>>) -> Result<T> {
    ep.core().block_on(ep.slot(), f)
}

pub fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(MN, offset)
}

pub async fn put(ep: &Endpoint, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
    let mut buf = ep.buf(bytes.len() as u32).await?;
    buf.copy_from_slice(bytes);
    ep.write(at, buf).await.map(|_| ())
}

pub async fn fetch(ep: &Endpoint, at: GlobalAddr, len: u32) -> Result<Vec<u8>> {
    let sampled = ep.read(at, len).await?;
    Ok(sampled.check(|b| Ok::<_, ()>(b.to_vec())).expect("any bytes will do").0)
}
