//! Data services of indexes on memory nodes, and their jobs.
//!
//! An index with operations that run on the cores of memory nodes provides a service ([`provide`]).
//! Every memory node has one data service, which passes a call or a job on by the number in its
//! first byte, and makes the service at the first. A process that knows no index of this number
//! refuses it. What a service takes of the node's memory: `holder.rs`.
//!
//! A compute node answers calls for the indexes that are open on it
//! ([`IndexServices::serve_index`]): those of an index that has an owner for each key.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::task::Poll;

use dmtree_fabric::{Endpoint, Error, Member, NodeId, Result, RpcFuture, RpcHandler, ServiceId};

use crate::holder::MemoryHolder;
use crate::node::PoolNode;
use crate::wire::{LONGEST_CALL_NS, call_within, locked};

/// The data services of every memory node.
pub const DATA_SERVICE: ServiceId = ServiceId(0x20);

/// The open indexes of every compute node.
pub(crate) const INDEX_SERVICE: ServiceId = ServiceId(0x21);

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

/// The end of a departure.
pub type LeaveFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// An index that is open on a compute node which owns ranges of its keys: it answers the calls of
/// other nodes.
pub trait RangeOwner: RpcHandler {
    /// Gives the ranges to other nodes, because this one leaves the pool. Errors: the membership
    /// takes the ranges from it then.
    fn leave<'a>(&'a self, ep: &'a Endpoint) -> LeaveFuture<'a>;
}

/// What answers for the open indexes of a compute node.
#[derive(Default)]
pub(crate) struct OpenIndexes(Mutex<BTreeMap<u32, Vec<Weak<dyn RangeOwner>>>>);

dmtree_fabric::debug_line!(OpenIndexes, it => "OpenIndexes({})", locked(&it.0).len());

impl OpenIndexes {
    /// The openings of an index, the latest first; those that have ended are forgotten.
    fn of(&self, index: u32) -> Vec<Arc<dyn RangeOwner>> {
        let mut all = locked(&self.0);
        let Some(its) = all.get_mut(&index) else { return Vec::new() };
        its.retain(|handler| handler.strong_count() > 0);
        let living = its.iter().rev().filter_map(Weak::upgrade).collect();
        if its.is_empty() {
            all.remove(&index);
        }
        living
    }

    fn all(&self) -> Vec<Arc<dyn RangeOwner>> {
        locked(&self.0).values().flatten().filter_map(Weak::upgrade).collect()
    }
}

/// The service of a compute node. A request begins with the number of its index; an empty answer is
/// that of a node, or of an opening, that does not have what is asked for.
pub(crate) struct IndexService(pub(crate) Arc<OpenIndexes>);

impl RpcHandler for IndexService {
    fn call<'a>(&'a self, ep: &'a Endpoint, from: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async move {
            let Some((index, rest)) = request.split_first_chunk() else {
                return Err(Error::invalid("a call of no index"));
            };
            for handler in self.0.of(u32::from_le_bytes(*index)) {
                let answer = handler.call(ep, from, rest).await?;
                if !answer.is_empty() {
                    return Ok(answer);
                }
            }
            Ok(Vec::new())
        })
    }

    fn is_data(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        true
    }
}

/// Calls between compute nodes for an index.
#[derive(Clone, Copy, Debug)]
pub struct IndexServices<'n>(pub(crate) &'n PoolNode);

impl IndexServices<'_> {
    /// Answers calls of other compute nodes for an index, as long as the handler is there. It may
    /// wait, and call memory nodes.
    pub fn serve_index(self, index: u32, handler: Weak<dyn RangeOwner>) {
        locked(&self.0.indexes.0).entry(index).or_default().push(handler);
    }

    /// The open indexes of this node give their ranges to other nodes.
    pub(crate) async fn give_ranges(self, ep: &Endpoint) -> Result<()> {
        for index in self.0.indexes.all() {
            index.leave(ep).await?;
        }
        Ok(())
    }

    /// Calls what a compute node has open of an index. An empty answer: it does not have what is
    /// asked for. The call ends after 50 ms at the latest, since the node may be dead; and at once
    /// when this node hears that it is, and was revoked everywhere.
    ///
    /// # Errors
    /// `Unreachable` then; those of the handler and of the fabric.
    pub async fn call_index(
        self,
        ep: &Endpoint,
        (to, index): (NodeId, u32),
        request: &[u8],
    ) -> Result<Vec<u8>> {
        let incarnation = self.0.fabric.incarnation(to).unwrap_or(0);
        let callee = Member { node: to, incarnation };
        let request = [&index.to_le_bytes(), request].concat();
        let mut call = pin!(call_within(ep, LONGEST_CALL_NS, to, INDEX_SERVICE, &request));
        let mut news = None;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = call.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            loop {
                // Listening begins before the look.
                let next = news.get_or_insert_with(|| self.0.view.news.listen());
                if self.0.view.is_revoked(callee) {
                    let text = format!("{callee} has died without an answer");
                    return Poll::Ready(Err(Error::unreachable(text).effect_unknown()));
                }
                if next.poll(cx.waker()).is_pending() {
                    return Poll::Pending;
                }
                news = None;
            }
        })
        .await
    }
}
