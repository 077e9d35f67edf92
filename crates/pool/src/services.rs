//! Data services of indexes on memory nodes, and the memory that they take for themselves.
//!
//! An index with operations that run on the cores of memory nodes provides a service ([`provide`]).
//! Every memory node has one data service, which passes a call on by the number in its first byte,
//! and makes the service at the first call. A process that knows no index of this number refuses
//! the call.
//!
//! Memory of a service is runs of chunks with the memory node's own id as owner. The record is
//! written before the service learns of the run, as for every owner. No garbage collection takes
//! such a run: it stays the service's until the node stops, and is lost with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use dmtree_fabric::{Endpoint, Error, Member, NodeId, Result, RpcFuture, RpcHandler, ServiceId};

use crate::chunks::{ChunkService, RunRequest};
use crate::layout::ChunkUse;
use crate::wire::locked;

/// The data services of every memory node.
pub const DATA_SERVICE: ServiceId = ServiceId(0x20);

/// Chunks with objects of less than a line are memory that one owner cuts as it likes.
const OBJECT_BYTES: u32 = 8;

/// The number of an index's data service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataService(pub u8);

/// Makes the service of one memory node.
pub type MakeService = fn(MemoryHolder) -> Arc<dyn RpcHandler>;

static PROVIDED: RwLock<BTreeMap<DataService, MakeService>> = RwLock::new(BTreeMap::new());

/// The memory nodes of this process have this service from now on.
pub fn provide(number: DataService, make: MakeService) {
    PROVIDED.write().unwrap_or_else(PoisonError::into_inner).insert(number, make);
}

/// A memory node as the holder of memory.
#[derive(Clone)]
pub struct MemoryHolder {
    chunks: Arc<ChunkService>,
    me: Member,
    chunk_bytes: u64,
}

dmtree_fabric::debug_line!(MemoryHolder, it => "MemoryHolder({})", it.me);

impl MemoryHolder {
    pub(crate) fn new(chunks: Arc<ChunkService>, node: NodeId, chunk_bytes: u64) -> Self {
        Self { chunks, me: Member { node, incarnation: 0 }, chunk_bytes }
    }

    /// The memory node.
    pub fn node(&self) -> NodeId {
        self.me.node
    }

    /// Takes a zeroed run of so many bytes at least, for an index: offset and bytes.
    ///
    /// # Errors
    /// `Full` when there is none; those of the fabric.
    pub async fn take(&self, ep: &Endpoint, index: u32, bytes: u64) -> Result<(u64, u64)> {
        let count = u32::try_from(bytes.div_ceil(self.chunk_bytes)).unwrap_or(u32::MAX).max(1);
        let used_for = ChunkUse::Arena;
        let object_bytes = OBJECT_BYTES;
        let run = RunRequest { used_for, kind: 0, index, object_bytes, count, least: 0 };
        match self.chunks.take(ep, self.me, run).await? {
            Some(offset) => Ok((offset, u64::from(count) * self.chunk_bytes)),
            None => Err(Error::full(format!(
                "{} has no {count} chunks in a row: delete keys, or give it more memory",
                self.me.node
            ))),
        }
    }
}

/// The data services of one memory node.
pub(crate) struct DataServices {
    holder: MemoryHolder,
    made: Mutex<BTreeMap<DataService, Arc<dyn RpcHandler>>>,
}

impl DataServices {
    pub(crate) fn new(holder: MemoryHolder) -> Self {
        Self { holder, made: Mutex::default() }
    }

    fn find(&self, number: DataService) -> Result<Arc<dyn RpcHandler>> {
        let mut made = locked(&self.made);
        if let Some(service) = made.get(&number) {
            return Ok(service.clone());
        }
        let provided = PROVIDED.read().unwrap_or_else(PoisonError::into_inner);
        let Some(make) = provided.get(&number) else {
            return Err(Error::unsupported(format!(
                "{} has no data service {}: start it with a program that has this index",
                self.holder.node(),
                number.0
            )));
        };
        let service = make(self.holder.clone());
        made.insert(number, service.clone());
        Ok(service)
    }
}

impl RpcHandler for DataServices {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let Some((number, rest)) = request.split_first() else {
                return Err(Error::invalid("a call of no data service"));
            };
            self.find(DataService(*number))?.call(ep, from, rest).await
        })
    }

    fn is_data(&self) -> bool {
        true
    }
}
