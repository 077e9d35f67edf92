//! Coverage marks: rare branches of index code count how often they are taken, so that a check can
//! report the ones it has never reached.
//!
//! They are off until [`set_on`], and then one load each. Nothing reads the counts during a run, so
//! they cannot influence one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ON: AtomicBool = AtomicBool::new(false);

/// Begins to count, or stops.
pub fn set_on(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// The counter of one mark; [`marks!`](crate::marks) makes them.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts, when counting is on.
    #[inline]
    pub fn hit(&self) {
        if ON.load(Ordering::Relaxed) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often so far.
    pub fn hits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether the text of a mark is that of a repair.
pub const fn is_repair(text: &str) -> bool {
    let (prefix, text) = (b"recovery: ", text.as_bytes());
    let mut i = 0;
    while i < prefix.len() {
        if i == text.len() || text[i] != prefix[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// A mark's name and how often it was reached.
pub type Reached = (&'static str, u64);

/// Declares the marks of a crate: an enum with named values, a method `hit`, and a function
/// `reached` that lists all.
#[macro_export]
macro_rules! marks {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$about:meta])* $mark:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$about])* #[doc = $text] $mark,)* }

        impl $name {
            const ALL: &'static [(Self, &'static str)] = &[$(($name::$mark, $text)),*];
            /// Which of them are events for the log.
            const REPAIRS: [bool; $name::ALL.len()] = [$($crate::mark::is_repair($text)),*];

            #[inline]
            fn counter(self) -> &'static $crate::mark::Counter {
                static COUNTERS: [$crate::mark::Counter; $name::ALL.len()] =
                    [const { $crate::mark::Counter::new() }; $name::ALL.len()];
                &COUNTERS[self as usize]
            }

            /// Counts that this branch was taken.
            #[inline]
            pub(crate) fn hit(self) {
                self.counter().hit();
                if Self::REPAIRS[self as usize] {
                    let (_, text) = Self::ALL[self as usize];
                    $crate::trace::report($crate::trace::Event::Repair, || text.to_owned());
                }
            }

            /// Every mark with how often it was reached.
            pub fn reached() -> Vec<$crate::mark::Reached> {
                Self::ALL.iter().map(|(mark, text)| (*text, mark.counter().hits())).collect()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::marks! {
        /// For this test.
        pub enum Mark {
            One => "one",
            Two => "two",
        }
    }

    #[test]
    fn they_count_only_when_on() {
        Mark::One.hit();
        super::set_on(true);
        Mark::Two.hit();
        Mark::Two.hit();
        super::set_on(false);
        Mark::Two.hit();
        assert_eq!(Mark::reached(), [("one", 0), ("two", 2)]);
    }
}
