//! An index of any type behind one vtable.
//!
//! The benchmark, the checker and the tools drive many types of indexes. Were their code generic,
//! it would be compiled once for each type, with all the futures of that type in every program.
//! They see an index as an [`AnyIndex`] instead. Its vtable is in the crate of the index, which
//! converts its options to `AnyOptions` (feature `lab`); all else follows from these. The price is
//! one allocation for each operation.

#[cfg(feature = "lab")]
mod options;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use dmtree_fabric::{Endpoint, Result};

use crate::contract::{
    CacheStats, Found, KeyPlace, Loaded, OpSet, Outcome, RangeIndex, Resume, ScanRequest, Shape,
    Work, Write,
};
use crate::fill::Fill;
use crate::page::{Page, Values};
use crate::snapshots::{BatchWrite, SnapshotId};
use crate::worker::Pause;

#[cfg(feature = "lab")]
pub use options::{AnyOptions, typed, value};

/// A running operation.
pub type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;
/// A client of any index.
pub type AnyIndex = Box<dyn AnyClient>;
/// Pairs to be loaded.
pub type LoadPairs<'a> = &'a mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>;
/// Keys that are foretold.
pub type ToldKeys<'a> = &'a mut dyn Iterator<Item = Vec<u8>>;

/// Makes [`AnyClient`] of the operations of [`RangeIndex`].
macro_rules! any_client {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {
        /// The operations of [`RangeIndex`], object-safe.
        #[allow(clippy::missing_errors_doc, reason = "they are the index's")]
        #[expect(missing_docs, reason = "they are those of RangeIndex")]
        pub trait AnyClient {
            fn ops(&self) -> OpSet;
            fn endpoint(&self) -> &Endpoint;
            fn place_of(&self, key: &[u8]) -> Option<KeyPlace>;
            fn is_settled(&self) -> bool;
            fn has_read_work(&self) -> bool;
            $(fn $name<'a>(&'a mut self, $($argument: $type),*) -> Running<'a, $out>;)*
        }

        impl<I: RangeIndex> AnyClient for I {
            fn ops(&self) -> OpSet {
                I::OPS
            }
            fn endpoint(&self) -> &Endpoint {
                RangeIndex::endpoint(self)
            }
            fn place_of(&self, key: &[u8]) -> Option<KeyPlace> {
                RangeIndex::place_of(self, key)
            }
            fn is_settled(&self) -> bool {
                RangeIndex::is_settled(self)
            }
            fn has_read_work(&self) -> bool {
                RangeIndex::has_read_work(self)
            }
            $(fn $name<'a>(&'a mut self, $($argument: $type),*) -> Running<'a, $out> {
                let ep = RangeIndex::endpoint(self);
                let measured = ep.measures_work().then(|| ep.clone());
                let running = Box::pin(RangeIndex::$name(self, $($argument),*));
                match measured {
                    None => running,
                    Some(ep) => Box::pin(async move { ep.measured(running).await }),
                }
            })*
        }
    };
}

any_client! {
    fn get(key: &'a [u8], out: &'a mut Vec<u8>) -> bool;
    fn write(key: &'a [u8], w: Write<'a>) -> Outcome;
    fn scan(r: &'a ScanRequest<'_>, page: &'a mut Page) -> Option<Resume>;
    fn get_many(keys: &'a [&[u8]], out: &'a mut Values) -> ();
    fn write_many(writes: &'a [(&[u8], Write<'_>)], out: &'a mut Vec<Result<Outcome>>) -> ();
    fn take_snapshot() -> SnapshotId;
    fn get_at(s: SnapshotId, key: &'a [u8], out: &'a mut Vec<u8>) -> bool;
    fn scan_at(s: SnapshotId, r: &'a ScanRequest<'_>, page: &'a mut Page) -> Option<Resume>;
    fn release_snapshot(s: SnapshotId) -> ();
    fn write_batch(batch: &'a [BatchWrite<'a>]) -> ();
    fn foretell(keys: ToldKeys<'a>) -> bool;
    fn load(pairs: LoadPairs<'a>, sorted: bool, fill: Fill) -> Loaded;
    fn maintain() -> Work;
    fn work() -> Pause;
    fn set_cache_bytes(bytes: u64) -> ();
    fn sweep() -> ();
    fn gc() -> Found;
    fn walk() -> Shape;
}

/// The state of an index of any type that the clients of one compute node share.
#[derive(Clone)]
pub struct AnyNode {
    state: Arc<dyn Any + Send + Sync>,
    client: fn(&Self, Endpoint) -> AnyIndex,
    cache_stats: fn(&Self) -> CacheStats,
}

impl AnyNode {
    #[cfg(feature = "lab")]
    fn of<I: RangeIndex>(state: Arc<I::Node>) -> Self {
        Self {
            state,
            client: |node, ep| Box::new(I::client(ep, node.typed())),
            cache_stats: |node| I::cache_stats(&node.typed()),
        }
    }

    /// The client of one slot.
    pub fn client(&self, ep: Endpoint) -> AnyIndex {
        (self.client)(self, ep)
    }

    /// The caches of this compute node.
    pub fn cache_stats(&self) -> CacheStats {
        (self.cache_stats)(self)
    }

    /// The state itself.
    ///
    /// # Panics
    /// When it is of another type.
    pub fn typed<N: Send + Sync + 'static>(&self) -> Arc<N> {
        self.state.clone().downcast().expect("the state of this type of index")
    }
}
