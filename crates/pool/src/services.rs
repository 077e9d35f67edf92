//! Data services of indexes on memory nodes, and their jobs.
//!
//! An index with operations that run on the cores of memory nodes provides a service ([`provide`]).
//! Every memory node has one data service, which passes a call or a job on by the number in its
//! first byte, and makes the service at the first. A process that knows no index of this number
//! refuses it. What a service takes of the node's memory: `holder.rs`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use dmtree_fabric::{Endpoint, Error, NodeId, Result, RpcFuture, RpcHandler, ServiceId};

use crate::holder::MemoryHolder;
use crate::wire::locked;

/// The data services of every memory node.
pub const DATA_SERVICE: ServiceId = ServiceId(0x20);

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

/// The data services of one memory node.
pub(crate) struct DataServices {
    holder: MemoryHolder,
    made: Mutex<BTreeMap<DataService, Arc<dyn RpcHandler>>>,
}

impl DataServices {
    pub(crate) fn new(holder: MemoryHolder) -> Self {
        Self { holder, made: Mutex::default() }
    }

    /// The service of a request, and what is for it.
    fn find<'a>(&self, request: &'a [u8]) -> Result<(Arc<dyn RpcHandler>, &'a [u8])> {
        let Some((number, rest)) = request.split_first() else {
            return Err(Error::invalid("a call of no data service"));
        };
        Ok((self.of(DataService(*number))?, rest))
    }

    fn of(&self, number: DataService) -> Result<Arc<dyn RpcHandler>> {
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
            let (service, rest) = self.find(request)?;
            service.call(ep, from, rest).await
        })
    }

    fn job<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let (service, rest) = self.find(request)?;
            service.job(ep, from, rest).await
        })
    }

    fn is_data(&self) -> bool {
        true
    }
}
