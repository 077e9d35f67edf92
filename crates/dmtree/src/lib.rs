#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// The documents are made with all features (`package.metadata.docs.rs`): without one a link leads
// nowhere.
#![cfg_attr(
    not(all(feature = "parquet", feature = "serde", feature = "stream", feature = "tcp")),
    allow(rustdoc::broken_intra_doc_links)
)]

#[cfg(feature = "async")]
mod async_client;
mod batch;
mod bounds;
mod builder;
#[cfg(feature = "bytes")]
mod bytes_pairs;
#[cfg(feature = "json")]
mod checkpoint;
mod client;
mod collection;
#[cfg_attr(not(feature = "tcp"), path = "no_connect.rs")]
mod connect;
mod counters;
mod durable;
#[cfg(feature = "json")]
mod export;
mod feed;
mod filled;
mod idle_maintenance;
mod incarnation;
mod index;
#[cfg(feature = "tcp")]
#[cfg_attr(not(feature = "durable"), path = "no_journal_node.rs")]
mod journal_node;
pub mod keys;
mod latency;
mod open;
mod options;
mod pool;
mod refill;
mod restart;
mod scan;
mod session;
mod size;
mod stats;
mod status;
mod thread_sessions;
#[cfg(feature = "serde")]
mod typed;

#[cfg(feature = "stream")]
pub use crate::async_client::AsyncPairs;
#[cfg(feature = "async")]
pub use crate::async_client::{AsyncClient, AsyncOptions, AsyncScan, Reply};
pub use crate::batch::Batch;
pub use crate::bounds::KeyRange;
pub use crate::builder::PoolBuilder;
#[cfg(feature = "bytes")]
pub use crate::bytes_pairs::BytesPairs;
#[cfg(feature = "json")]
pub use crate::checkpoint::{CheckpointSeries, CheckpointSize, WrittenCheckpoint, checkpoint_of};
#[cfg(feature = "tcp")]
pub use crate::connect::Connector;
pub use crate::durable::OpenProgress;
pub use crate::index::{Index, LoadOrder};
#[cfg(feature = "tcp")]
pub use crate::journal_node::JournalNode;
#[cfg(feature = "tracing")]
pub use crate::latency::set_slow_operations;
pub use crate::options::Options;
pub use crate::pool::Pool;
pub use crate::refill::Refilled;
pub use crate::scan::{PageSource, Pairs, Scan};
pub use crate::session::Session;
pub use crate::size::ByteSize;
pub use crate::stats::{MemoryStats, Operation, OperationCounts, PoolStats, ShapeStats, Stats};
#[cfg(feature = "serde")]
pub use crate::typed::{Typed, TypedPairs};

pub use dmtree_fabric::{
    Effect, Error, ErrorKind, OpCounts, OpKind, OpOutcome, Result, SideCounts, Snapshot, Totals,
    WaitCount, WaitReason, Waits,
};
pub use dmtree_parts::{
    CacheStats, Loaded, MAX_KEY_BYTES, MAX_VALUE_BYTES, Outcome, Page, Resume, ScanRequest, Shape,
    Values,
};
pub use dmtree_pool::Latencies;
