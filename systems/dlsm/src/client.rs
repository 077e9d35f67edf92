//! A client: one fabric slot, and what all operations of it need.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dmtree_fabric::{Endpoint, Error, Result};

use crate::format::entry_bytes;
use crate::node::DlsmNode;

/// One fabric slot of a compute node.
pub(crate) struct Client {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<DlsmNode>,
    /// How many threads of its node write, as far as it knows; 0 before its first write.
    pub(crate) threads: Cell<u32>,
    pub(crate) puts: Cell<u32>,
    /// Names it to other nodes, and so many operations of it were for them.
    pub(crate) session: u64,
    pub(crate) operations: Cell<u64>,
}

/// Clients of this process.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

impl Client {
    /// The client of one slot.
    pub(crate) fn new(ep: Endpoint, node: Arc<DlsmNode>) -> Self {
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        let number = u64::from(CLIENTS.fetch_add(1, Ordering::Relaxed));
        let session = node.me >> 32 << 32 | number;
        let (threads, puts, operations) = Default::default();
        Self { ep, node, threads, puts, session, operations }
    }

    /// Refuses pairs that no MemTable has room for.
    pub(crate) fn check_size(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (bytes, most) = (entry_bytes(key, value) as u64, self.node.o.memtable_bytes);
        match bytes > most {
            true => Err(Error::invalid(format!(
                "a pair of {bytes} bytes is over memtable_bytes, which is {most}"
            ))),
            false => Ok(()),
        }
    }
}

/// A shard that its node has not opened.
#[cold]
pub(crate) fn not_open() -> Error {
    Error::closed("the shard of a key is not open")
}
