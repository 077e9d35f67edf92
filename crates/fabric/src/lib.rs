//! One-sided memory verbs for indexes on disaggregated memory.
//!
//! Memory nodes and compute nodes expose regions of memory. A client reaches them through an
//! [`Endpoint`] with READ, WRITE, compare-and-swap and fetch-and-add, posted as single verbs, as
//! chains (one node, ordered, one doorbell) or as batches (any nodes, unordered). Index code is
//! `async` over an endpoint and knows no transport; a transport knows no index.
//!
//! The contract, which every transport keeps and code above may rely on, nothing more:
//!
//! - only an aligned 8-byte word is atomic; a READ that races a WRITE may see any mix of old and
//!   new words;
//! - inside a chain only WRITE->WRITE, WRITE->READ, WRITE->atomic and atomic->READ are ordered; two
//!   READs that end one are not ordered with each other;
//!   nothing is ordered across chains or queue pairs unless awaited;
//! - a WRITE that completed, or that precedes an executed atomic of its chain, is visible to every
//!   verb executed later;
//! - an error is returned only when the verb can no longer execute; the effect of a failed WRITE or
//!   atomic is unknown;
//! - guarantees of a platform beyond this are named in [`Capabilities`].
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod addr;
pub mod caps;
mod core;
mod counters;
pub mod cpu;
mod debug_line;
mod direct;
mod direct_op;
mod endpoint;
mod epoch_cell;
mod error;
mod exec;
mod host;
mod jobs;
pub mod local;
pub mod mark;
mod measured;
mod membership;
pub mod mutants;
#[cfg(feature = "tcp")]
pub mod net;
mod pause;
mod prefetch;
mod region;
mod rng;
mod rpc;
mod sampled;
mod scope;
#[cfg(feature = "sim")]
pub mod sim;
mod slab;
#[cfg(feature = "tcp")]
mod slots;
#[cfg(feature = "sim")]
pub mod suggest;
pub mod sync;
mod tasks;
pub mod trace;
mod transport;
pub mod verb;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wait;
mod waits;

pub use crate::addr::{GlobalAddr, NodeId, Role};
pub use crate::caps::Capabilities;
pub use crate::core::{Core, DetachedHook, Stalled, WaitReason};
pub use crate::counters::{
    Divided, OpCounts, ROUND_TRIP_BUCKETS, SideCounts, Snapshot, StepTimes, Totals,
};
pub use crate::direct::OwnMemory;
pub use crate::direct_op::{DirectOp, DirectVerbs};
pub use crate::endpoint::{DEFAULT_TIMEOUT_NS, Endpoint, OpScope, Post};
pub use crate::error::{Effect, Error, ErrorKind, Failure, Result};
pub use crate::exec::{Fifo, Policy, SeededRandom, Unfair, Worker};
pub use crate::jobs::{JobNumber, MAX_JOBS, MAX_RESULT_BYTES};
pub use crate::membership::{
    Change, InProcess, Lease, LeaseParameters, Member, MemberPhase, MemberState, Membership,
    MembershipFuture, MembershipState, MemoryAgent, MemoryState, Move, Mutant, News, Presence,
};
pub use crate::pause::{Backoff, Sleep, Yield};
pub use crate::region::{Pages, Region};
pub use crate::rng::golden_hash;
pub use crate::rpc::{MAX_RPC_BYTES, RpcCall, RpcFuture, RpcHandler, RpcHost, Service, ServiceId};
pub use crate::sampled::{Sampled, Verified};
pub use crate::scope::{OpKind, OpOutcome, Stage, Step};
pub use crate::slab::{Buf, MAX_BUF_BYTES, Slab};
pub use crate::transport::{
    Fabric, Idle, Nanos, Opcode, Progress, ShadowState, Ticket, Transport, WorkRequest,
};
pub use crate::waits::{MOST_AWAITED, WaitCount, Waits};
