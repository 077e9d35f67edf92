//! Memory of many nodes as one pool, for indexes that reach it with one-sided verbs.
//!
//! A memory node's region has a small head and chunks behind it. Chunks are handed out by a service
//! of the node that owns them; a compute node cuts what it got into type-stable objects ([`Arena`])
//! or into blocks of any size ([`BlockPtr`]) without any verb. Fingerprint-table cells lie on
//! *owner* nodes and are named by a [`TableId`] that survives a move.
//!
//! Memory is reused safely although readers cannot be seen: an object's *generation* grows with
//! every grant of its address, and what was unlinked waits on the limbo list until every operation
//! that ran at that time has ended ([`PoolNode::retire`], [`Reclaimer::reclaim`]). Whatever runs
//! out ends in an [`ErrorKind::Full`](dmtree_fabric::ErrorKind::Full) that names the nodes;
//! everything stays usable.
//!
//! `DESIGN.md` beside this crate has the byte maps and the invariants.
#![forbid(unsafe_code)]

mod arena;
mod blocks;
mod bump;
mod bytes;
mod catalog;
mod chunks;
mod cluster;
mod creation;
mod deposits;
mod epoch;
mod extents;
mod free_lists;
#[cfg(feature = "tcp")]
#[doc(hidden)]
pub mod fuzzing;
mod gates;
mod gc;
mod gc_log;
#[cfg(feature = "tcp")]
mod growth;
mod holder;
mod ids;
mod image_room;
mod images;
mod latencies;
mod layout;
#[cfg(feature = "tcp")]
mod leave;
mod lend;
mod marks;
mod membership_agent;
mod membership_status;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
pub mod metrics;
#[cfg(feature = "tcp")]
mod multi_process;
mod mutants;
mod node;
mod obtain;
mod on_chip;
mod options;
mod owners;
mod pieces;
#[cfg(feature = "tcp")]
mod pool_config;
mod purge;
mod ranges;
mod reassign;
mod reclaim;
mod refill;
mod reports;
mod segments;
mod services;
mod shape;
#[cfg(feature = "tcp")]
mod shares;
#[cfg(feature = "tcp")]
mod status;
mod transit;
mod usage;
mod view;
mod wire;

pub use crate::arena::{Arena, ArenaKey, Grant};
pub use crate::bump::{Bump, Stripes};
pub use crate::bytes::{parse_bytes, parse_count};
pub use crate::catalog::Catalog;
pub use crate::catalog::{
    IndexEntry, IndexState, MAX_INDEXES, MAX_NAME_BYTES, MAX_OPTIONS_BYTES, MAX_SYSTEM_BYTES,
    NewIndex,
};
pub use crate::cluster::Cluster;
pub use crate::creation::Creations;
pub use crate::creation::{Creation, Creator, Opening};
pub use crate::epoch::{EpochGuard, EpochHandle, QuiescentSection};
pub use crate::free_lists::KnownTables;
pub use crate::gates::{Gate, Ungated};
pub use crate::gc::GarbageCollection;
pub use crate::gc::{Gc, Held, Lost};
pub use crate::gc_log::{Span, Told};
pub use crate::holder::{MemoryHolder, TakenRun};
pub use crate::ids::{
    BLOCK_CLASSES, BLOCK_MAX_BYTES, BlockPtr, COMPUTE_PARTITIONS, MEMORY_PARTITIONS, PARTITIONS,
    TABLE_LINES, TableId, block_class_bytes, block_class_of,
};
pub use crate::images::ImageCells;
pub use crate::latencies::{LATENCY_BUCKETS, Latencies};
pub use crate::layout::{ANY_INDEX, ChunkRecord, ChunkUse};
#[cfg(feature = "tcp")]
pub use crate::leave::Leaving;
pub use crate::marks::Mark;
pub use crate::membership_agent::Heartbeat;
pub use crate::membership_agent::PoolMembership;
pub use crate::membership_status::MembershipStatus;
#[cfg(feature = "tcp")]
pub use crate::multi_process::{MemoryNode, join_as_journal, open_pool_config};
pub use crate::mutants::Mutant as PoolMutant;
pub use crate::node::PoolNode;
pub use crate::obtain::Supply;
pub use crate::options::{PoolJournal, PoolOptions};
pub use crate::ranges::Ranges;
pub use crate::reassign::Partitions;
pub use crate::reclaim::Reclaimed;
pub use crate::reclaim::Reclaimer;
pub use crate::refill::JournalNodes;
pub use crate::reports::{
    AwaitedReport, CacheReport, ComputeReport, IndexReport, IndexReports, MemoryReport, NodeReport,
    SideReport, WaitReport,
};
pub use crate::services::IndexServices;
pub use crate::services::{
    DATA_SERVICE, DataService, LeaveFuture, MakeService, RangeOwner, provide,
};
#[cfg(feature = "tcp")]
pub use crate::status::{MemberStatus, PoolStatus};
pub use crate::usage::{ArenaUsage, MemoryUsage, NodeUsage, PoolUsage, RecordUsage};
#[cfg(feature = "tcp")]
pub use dmtree_fabric::net::Place;
