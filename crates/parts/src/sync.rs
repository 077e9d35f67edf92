//! The synchronization primitives of the shared kernels, replaced by loom's under `--cfg loom`.

#[cfg(not(loom))]
pub use arc_swap::{ArcSwap, ArcSwapOption};
#[cfg(not(loom))]
pub use std::sync::Mutex;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(loom)]
pub use self::modelled::{ArcSwap, ArcSwapOption};
#[cfg(loom)]
pub use loom::sync::Mutex;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU64};

/// Swappable pointers by the letter of their contract: each call is one atomic step.
#[cfg(loom)]
mod modelled {
    use super::Mutex;
    use std::sync::Arc;

    /// As `arc_swap::ArcSwap`.
    #[derive(Debug)]
    pub struct ArcSwap<T>(Mutex<Arc<T>>);

    impl<T> ArcSwap<T> {
        /// From a pointer.
        pub fn new(value: Arc<T>) -> Self {
            Self(Mutex::new(value))
        }
        /// From a value.
        pub fn from_pointee(value: T) -> Self {
            Self::new(Arc::new(value))
        }
        /// The present pointer.
        pub fn load(&self) -> Arc<T> {
            self.0.lock().unwrap().clone()
        }
        /// The present pointer.
        pub fn load_full(&self) -> Arc<T> {
            self.load()
        }
        /// Sets it.
        pub fn store(&self, value: Arc<T>) {
            *self.0.lock().unwrap() = value;
        }
    }

    /// As `arc_swap::ArcSwapOption`.
    #[derive(Debug)]
    pub struct ArcSwapOption<T>(Mutex<Option<Arc<T>>>);

    impl<T> ArcSwapOption<T> {
        /// None.
        pub fn empty() -> Self {
            Self(Mutex::new(None))
        }
        /// The present pointer.
        pub fn load(&self) -> Option<Arc<T>> {
            self.0.lock().unwrap().clone()
        }
        /// Sets it, returns the previous one.
        pub fn swap(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
            std::mem::replace(&mut *self.0.lock().unwrap(), value)
        }
        /// Sets it when it is none; returns the previous one. (The cache compares with none only.)
        pub fn compare_and_swap(
            &self,
            current: &Option<Arc<T>>,
            new: Option<Arc<T>>,
        ) -> Option<Arc<T>> {
            assert!(current.is_none());
            let mut now = self.0.lock().unwrap();
            if now.is_none() {
                *now = new;
                return None;
            }
            now.clone()
        }
    }
}
