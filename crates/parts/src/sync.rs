//! The synchronization primitives of the shared kernels, replaced by loom's under `--cfg loom`.

pub use dmtree_fabric::sync::{EpochArc, EpochCell, Mutex, Reading, reading};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU64};
