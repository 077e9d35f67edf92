//! Values that threads read without a lock, and that are replaced whole.
//!
//! A reader announces once that it reads ([`reading`]); after that, following a pointer is a plain
//! load. A replaced value is dropped when every reader that may have it has ended. So readers wait
//! for nothing, and a writer never waits for readers. (A count of references would be two locked
//! instructions for each pointer, and each of them waits for the loads before it.)
//!
//! Memory of replaced values comes free as readers come and go, not at once: a thread that stays in
//! a reading section keeps it. A section is therefore short and has no await.

#[cfg(loom)]
pub use self::modelled::{EpochArc, EpochCell, Reading, reading};
#[cfg(not(loom))]
pub use self::real::{EpochArc, EpochCell, Reading, reading};

#[cfg(not(loom))]
mod real {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

    use crossbeam_epoch::{Atomic, Guard, Owned, Shared};

    /// A reading section of this thread: no value that it may reach is dropped.
    #[derive(Debug)]
    pub struct Reading(Guard);

    /// Begins one.
    pub fn reading() -> Reading {
        Reading(crossbeam_epoch::pin())
    }

    /// A value that is replaced whole.
    #[derive(Debug)]
    pub struct EpochCell<T>(Atomic<T>);

    impl<T: Send + Sync + 'static> EpochCell<T> {
        /// A cell with this value.
        pub fn new(value: T) -> Self {
            Self(Atomic::new(value))
        }

        /// The present value.
        #[inline]
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            // SAFETY: a value is dropped when all reading sections have ended that were there when
            // it was replaced, or with the cell; the reference outlives neither.
            unsafe { self.0.load(Acquire, &r.0).deref() }
        }

        /// Replaces the value.
        pub fn replace(&self, value: T) {
            let r = reading();
            let old = self.0.swap(Owned::new(value), AcqRel, &r.0);
            // SAFETY: it was taken out of its cell just now, by this thread alone.
            unsafe { r.0.defer_destroy(old) };
        }
    }

    impl<T> Drop for EpochCell<T> {
        fn drop(&mut self) {
            // SAFETY: the cell is exclusively borrowed, so no reader has a reference from it.
            drop(unsafe { std::mem::take(&mut self.0).try_into_owned() });
        }
    }

    /// A shared value that is replaced whole. A reader may keep the value beyond its section.
    #[derive(Debug)]
    pub struct EpochArc<T>(Atomic<T>);

    impl<T: Send + Sync + 'static> EpochArc<T> {
        /// A cell with this value.
        pub fn new(value: Arc<T>) -> Self {
            Self(Atomic::from(Arc::into_raw(value)))
        }

        /// The present value.
        #[inline]
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            // SAFETY: the cell owns a count of the value, and gives it back when all reading
            // sections have ended that were there when the value was replaced, or with the cell;
            // the reference outlives neither.
            unsafe { self.0.load(Acquire, &r.0).deref() }
        }

        /// The present value, with a count of its own.
        pub fn keep(&self, r: &Reading) -> Arc<T> {
            let value = self.0.load(Acquire, &r.0).as_raw();
            // SAFETY: the pointer is that of an `Arc`, and by the cell's count the value is alive
            // in this section (see `read`).
            unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            }
        }

        /// Replaces the value, and returns the one before.
        pub fn replace(&self, value: Arc<T>) -> Arc<T> {
            let r = reading();
            let old = self.0.swap(Shared::from(Arc::into_raw(value)), AcqRel, &r.0).as_raw();
            // SAFETY: the cell's count of the old value is this thread's alone since the swap. It
            // is given back when all readers that may have the value have ended; the returned one
            // is another.
            unsafe {
                Arc::increment_strong_count(old);
                r.0.defer_unchecked(move || Arc::decrement_strong_count(old));
                Arc::from_raw(old)
            }
        }
    }

    impl<T> Drop for EpochArc<T> {
        fn drop(&mut self) {
            // SAFETY: the cell is exclusively borrowed, so no reader has a reference from it, and
            // its count is given back once.
            unsafe {
                let value = self.0.load(Relaxed, crossbeam_epoch::unprotected()).as_raw();
                drop(Arc::from_raw(value));
            }
        }
    }
}

/// The same by the letter of the contract: each call is one atomic step, and a section holds all
/// that it has read.
#[cfg(loom)]
mod modelled {
    use std::any::Any;
    use std::cell::RefCell;

    use crate::sync::{Arc, Mutex};

    /// As the real one.
    #[derive(Debug, Default)]
    pub struct Reading(RefCell<Vec<Arc<dyn Any>>>);

    /// As the real one.
    pub fn reading() -> Reading {
        Reading::default()
    }

    /// As the real one.
    #[derive(Debug)]
    pub struct EpochCell<T>(EpochArc<T>);

    impl<T: Send + Sync + 'static> EpochCell<T> {
        /// As the real one.
        pub fn new(value: T) -> Self {
            Self(EpochArc::new(Arc::new(value)))
        }
        /// As the real one.
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            self.0.read(r)
        }
        /// As the real one.
        pub fn replace(&self, value: T) {
            self.0.replace(Arc::new(value));
        }
    }

    /// As the real one.
    #[derive(Debug)]
    pub struct EpochArc<T>(Mutex<Arc<T>>);

    impl<T: Send + Sync + 'static> EpochArc<T> {
        /// As the real one.
        pub fn new(value: Arc<T>) -> Self {
            Self(Mutex::new(value))
        }
        /// As the real one.
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            let value = self.0.lock().unwrap().clone();
            let at = Arc::as_ptr(&value);
            r.0.borrow_mut().push(value);
            // SAFETY: the section holds the value, and the reference does not outlive the section.
            unsafe { &*at }
        }
        /// As the real one.
        pub fn keep(&self, _: &Reading) -> Arc<T> {
            self.0.lock().unwrap().clone()
        }
        /// As the real one.
        pub fn replace(&self, value: Arc<T>) -> Arc<T> {
            std::mem::replace(&mut *self.0.lock().unwrap(), value)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_value_lives_as_long_as_a_reader_and_no_longer() {
        let value = Arc::new(1);
        let cell = EpochCell::new(value.clone());
        let r = reading();
        let seen = cell.read(&r);
        cell.replace(Arc::new(2));
        assert_eq!((**seen, **cell.read(&r)), (1, 2));
        drop(r);
        for _ in 0..10_000 {
            cell.replace(Arc::new(3));
            if Arc::strong_count(&value) == 1 {
                return;
            }
            // A reader of another test may hold its epoch while it waits for this processor.
            std::thread::yield_now();
        }
        panic!("a replaced value is not dropped");
    }

    #[test]
    fn a_kept_value_outlives_its_cell() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let cell = EpochArc::new(first.clone());
        let r = reading();
        let (seen, kept) = (cell.read(&r), cell.keep(&r));
        assert!(Arc::ptr_eq(&cell.replace(second.clone()), &first));
        assert_eq!((*seen, *kept, *cell.read(&r)), (1, 1, 2));
        drop(r);
        assert_eq!(Arc::strong_count(&second), 2);
        drop(cell);
        assert_eq!(Arc::strong_count(&second), 1);
        assert_eq!(*kept, 1);
    }

    #[test]
    fn readers_and_writers_together() {
        let cell = EpochCell::new(vec![0u64; 64]);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|s| {
            for t in 0..2 {
                let cell = &cell;
                s.spawn(move || {
                    for i in 0..rounds {
                        cell.replace(vec![i * 2 + t; 64]);
                    }
                });
                s.spawn(move || {
                    for _ in 0..rounds {
                        let r = reading();
                        let seen = cell.read(&r);
                        assert!(seen.iter().all(|x| *x == seen[0]));
                    }
                });
            }
        });
    }
}
