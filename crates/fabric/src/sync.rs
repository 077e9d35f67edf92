//! The lock of the shared kernels, replaced by loom's under `--cfg loom`, so that loom explores
//! every interleaving of them.

pub use std::sync::Arc;

#[cfg(not(loom))]
pub use std::sync::Mutex;

#[cfg(loom)]
pub use loom::sync::Mutex;
