//! Small remote calls, for what one-sided verbs cannot do: chunk allocation, registration, hand-over.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use crate::addr::NodeId;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result};

/// Names a service of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceId(pub u16);

/// Requests and replies have at most this many bytes; larger goes through regions.
pub const MAX_RPC_BYTES: usize = 64 << 10;

/// A handler's answer in the making.
pub type RpcFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + 'a>>;

/// Code that runs on a node's few cores. It reaches memory, its own node's too, through the endpoint it is given; calls of one
/// node run one at a time, and a handler cannot call another service.
pub trait RpcHandler: Send + Sync {
    /// Answers one request.
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a>;
}

/// The services of one node.
#[derive(Default)]
pub struct RpcHost {
    handlers: Mutex<BTreeMap<ServiceId, Arc<dyn RpcHandler>>>,
}

impl RpcHost {
    /// Installs a handler.
    pub fn install(&self, service: ServiceId, handler: Arc<dyn RpcHandler>) {
        self.handlers.lock().expect("no panic under this lock").insert(service, handler);
    }

    /// The handler of a service.
    ///
    /// # Errors
    /// `Unsupported` when none is installed.
    pub fn handler(&self, node: NodeId, service: ServiceId) -> Result<Arc<dyn RpcHandler>> {
        let handlers = self.handlers.lock().expect("no panic under this lock");
        handlers.get(&service).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{node} has no service {}: is it a node of this pool?", service.0),
            )
        })
    }
}

impl std::fmt::Debug for RpcHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let handlers = self.handlers.lock().expect("no panic under this lock");
        f.debug_list().entries(handlers.keys()).finish()
    }
}
