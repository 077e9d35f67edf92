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
pub use self::modelled::{EpochCell, EpochOption, Reading, reading};
#[cfg(not(loom))]
pub use self::real::{EpochCell, EpochOption, Reading, reading};

#[cfg(not(loom))]
mod real {
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
    pub struct EpochCell<T>(EpochOption<T>);

    impl<T: Send + Sync + 'static> EpochCell<T> {
        /// A cell with this value.
        pub fn new(value: T) -> Self {
            Self(EpochOption(Atomic::new(value)))
        }

        /// The present value.
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            self.0.read(r).expect("a cell always has a value")
        }

        /// Replaces the value.
        pub fn replace(&self, value: T) {
            let r = reading();
            let old = self.0.0.swap(Owned::new(value), AcqRel, &r.0);
            retire(old, &r.0);
        }
    }

    /// A value that may be absent.
    #[derive(Debug)]
    pub struct EpochOption<T>(Atomic<T>);

    impl<T: Send + Sync + 'static> EpochOption<T> {
        /// Without a value.
        pub fn empty() -> Self {
            Self(Atomic::null())
        }

        /// The present value.
        pub fn read<'r>(&'r self, r: &'r Reading) -> Option<&'r T> {
            // SAFETY: a value is dropped when all reading sections have ended that were there when
            // it was taken out, or with the cell; the reference outlives neither.
            unsafe { self.0.load(Acquire, &r.0).as_ref() }
        }

        /// Sets a value where there is none; false, and drops it, where there is one.
        pub fn set_if_empty(&self, value: T) -> bool {
            let r = reading();
            let set =
                self.0.compare_exchange(Shared::null(), Owned::new(value), AcqRel, Relaxed, &r.0);
            set.is_ok()
        }

        /// Takes the value out; false where there is none.
        pub fn clear(&self) -> bool {
            let r = reading();
            let old = self.0.swap(Shared::null(), AcqRel, &r.0);
            retire(old, &r.0);
            !old.is_null()
        }
    }

    impl<T> Drop for EpochOption<T> {
        fn drop(&mut self) {
            // SAFETY: the cell is exclusively borrowed, so no reader has a reference from it.
            drop(unsafe { std::mem::take(&mut self.0).try_into_owned() });
        }
    }

    fn retire<T: Send + 'static>(old: Shared<'_, T>, guard: &Guard) {
        if !old.is_null() {
            // SAFETY: it was taken out of its cell just now, by this thread alone.
            unsafe { guard.defer_destroy(old) };
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
    pub struct EpochCell<T>(EpochOption<T>);

    impl<T: Send + Sync + 'static> EpochCell<T> {
        /// As the real one.
        pub fn new(value: T) -> Self {
            Self(EpochOption(Mutex::new(Some(Arc::new(value)))))
        }
        /// As the real one.
        pub fn read<'r>(&'r self, r: &'r Reading) -> &'r T {
            self.0.read(r).expect("a cell always has a value")
        }
        /// As the real one.
        pub fn replace(&self, value: T) {
            *self.0.0.lock().unwrap() = Some(Arc::new(value));
        }
    }

    /// As the real one.
    #[derive(Debug)]
    pub struct EpochOption<T>(Mutex<Option<Arc<T>>>);

    impl<T: Send + Sync + 'static> EpochOption<T> {
        /// As the real one.
        pub fn empty() -> Self {
            Self(Mutex::new(None))
        }
        /// As the real one.
        pub fn read<'r>(&'r self, r: &'r Reading) -> Option<&'r T> {
            let value = self.0.lock().unwrap().clone()?;
            let at = Arc::as_ptr(&value);
            r.0.borrow_mut().push(value);
            // SAFETY: the section holds the value, and the reference does not outlive the section.
            Some(unsafe { &*at })
        }
        /// As the real one.
        pub fn set_if_empty(&self, value: T) -> bool {
            let mut now = self.0.lock().unwrap();
            let is_empty = now.is_none();
            now.get_or_insert(Arc::new(value));
            is_empty
        }
        /// As the real one.
        pub fn clear(&self) -> bool {
            self.0.lock().unwrap().take().is_some()
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
    fn an_option_is_set_once_and_dropped_with_its_cell() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let cell = EpochOption::empty();
        assert!(cell.read(&reading()).is_none() && !cell.clear());
        assert!(cell.set_if_empty(first.clone()) && !cell.set_if_empty(second.clone()));
        assert_eq!(Arc::strong_count(&second), 1);
        drop(cell);
        assert_eq!(Arc::strong_count(&first), 1);
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
