//! The contract of a range index on disaggregated memory ([`contract`]), and the parts that several
//! indexes share: the cache of inner nodes with its mirrors ([`cache`]), delegation and combining
//! ([`combine`], and as published [`delegation`]), local FIFO mutexes in front of remote locks
//! ([`fifo_mutex`]), fairness between nodes ([`fairness`]) and hand-over ([`handover`]), lock words
//! on memory nodes ([`lock_words`]), the leaves and inner nodes that DMTree and the sound Sherman
//! have in common with their validation ([`tree`]), the frame of published designs ([`published`])
//! and their page tree ([`blink`]), background workers ([`worker`]), indexes of any type ([`any`])
//! and by name ([`naming`]), their options ([`options`](mod@options)), sorted keys ([`keys`]),
//! pairs to be loaded ([`pairs`]), what operations count ([`op`]), their pins and locks ([`held`]),
//! versions in the lines of nodes ([`lines`]), leaves that are hopscotch tables ([`hopscotch`]),
//! snapshots and atomic batches ([`snapshots`]), maintenance queues ([`maintenance`]), the driver
//! of garbage collections ([`gc`]), fixed hashes ([`hash`]), the fill of nodes after a bulk load
//! ([`fill`]) and lines through sorted keys ([`plr`]).
#![forbid(unsafe_code)]

pub mod any;
pub mod blink;
pub mod bytes;
pub mod cache;
pub mod combine;
pub mod contract;
pub mod delegation;
pub mod fairness;
pub mod fifo_mutex;
pub mod fill;
pub mod gc;
pub mod handover;
pub mod hash;
pub mod held;
pub mod hopscotch;
pub mod keys;
pub mod lines;
pub mod lock_words;
pub mod maintenance;
pub mod naming;
pub mod op;
pub mod options;
pub mod page;
pub mod pairs;
#[cfg(feature = "lab")]
pub mod peer;
pub mod plr;
pub mod published;
pub mod sharing;
pub mod slots;
pub mod snapshots;
pub mod sync;
pub mod tree;
pub mod worker;

#[cfg(feature = "lab")]
pub use any::AnyOptions;
pub use any::{AnyClient, AnyIndex, AnyNode};
pub use contract::{
    CacheStats, Found, KeyPlace, Loaded, MAX_KEY_BYTES, MAX_VALUE_BYTES, NodeContext, OpSet,
    Outcome, PAGE_BYTES, RangeIndex, Resume, Root, ScanRequest, Shape, Work, Write, behind_prefix,
    check_key, check_value,
};
pub use dmtree_fabric::mutants;
pub use fill::Fill;
pub use page::{Page, Values};
pub use snapshots::{BatchWrite, MAX_SNAPSHOTS, SnapshotId, SnapshotTable, check_batch};
pub use worker::Pause;
