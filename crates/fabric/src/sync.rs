//! The synchronization primitives of shared kernels, replaced by loom's under `--cfg loom`.

#[cfg(not(loom))]
pub use std::sync::{Arc, Mutex};

#[cfg(loom)]
pub use loom::sync::{Arc, Mutex};
