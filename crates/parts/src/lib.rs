//! The contract of a range index on disaggregated memory ([`contract`]), and the parts that several indexes share: the cache of
//! inner nodes with its mirrors ([`cache`]), delegation and combining ([`combine`]), turns at remote locks ([`turns`]), sorted
//! keys ([`keys`]) and fixed hashes ([`hash`]).
#![forbid(unsafe_code)]

pub mod cache;
pub mod combine;
pub mod contract;
pub mod hash;
pub mod keys;
pub mod sync;
pub mod turns;

pub use contract::{
    CacheStats, Loaded, MAX_KEY_BYTES, MAX_VALUE_BYTES, NodeContext, OpSet, Outcome, PAGE_BYTES,
    Page, RangeIndex, Resume, Root, ScanRequest, Shape, Values, Work, Write, check_key,
    check_value,
};
