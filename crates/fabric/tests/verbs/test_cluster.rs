//! A fabric of a few nodes on any RDMA device of the machine.

use std::rc::Rc;

use dmtree_fabric::verbs::{Config, VerbsFabric, VerbsTransport};
use dmtree_fabric::{Endpoint, NodeId};

pub use crate::common::{CN, MN, at, endpoint, fails, fetch, on};

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
    (Endpoint::alone(transport.clone(), 0), transport)
}
