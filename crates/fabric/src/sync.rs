//! The lock of the shared kernels, replaced by loom's under `--cfg loom`, so that loom explores
//! every interleaving of them; and one way to take the locks of everything else.

pub use crate::epoch_cell::{EpochArc, EpochCell, Reading, reading};
pub use std::sync::Arc;

#[cfg(not(loom))]
pub use std::sync::{Mutex, atomic::AtomicBool};

#[cfg(loom)]
pub use loom::sync::{Mutex, atomic::AtomicBool};

/// Takes a lock also after a panic of its holder: the guarded state is changed in single steps.
pub fn locked<T>(m: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
