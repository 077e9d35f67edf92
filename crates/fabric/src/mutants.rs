//! Mutants: protocol steps that are left out, or done too early. Only a checker enables them, to
//! show that it finds them. They are no options, are not stored, and are off in all indexes and
//! pools that a program opens.

use std::sync::atomic::{AtomicU64, Ordering};

/// A set of mutants by their numbers.
#[derive(Debug)]
pub struct MutantSet<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> MutantSet<WORDS> {
    /// None.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Whether one is on: a load and a branch.
    #[inline]
    pub fn has(&self, number: usize) -> bool {
        self.0[number / 64].load(Ordering::Relaxed) >> (number % 64) & 1 != 0
    }

    /// Whether any is on: a load and a branch for 64 of them.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Enables these, and disables all others.
    pub fn set(&self, on: impl Iterator<Item = usize>) {
        let mut words = [0; WORDS];
        on.for_each(|n| words[n / 64] |= 1 << (n % 64));
        self.0.iter().zip(words).for_each(|(to, bits)| to.store(bits, Ordering::Relaxed));
    }
}

impl<const WORDS: usize> Clone for MutantSet<WORDS> {
    fn clone(&self) -> Self {
        Self(self.0.each_ref().map(|w| AtomicU64::new(w.load(Ordering::Relaxed))))
    }
}

impl<const WORDS: usize> Default for MutantSet<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Declares the mutants of an index, or of another part with a protocol: an enum `Mutant`, which
/// can be enabled for everything that the process opens from then on, and `Mutants`, the ones of
/// one node.
#[macro_export]
macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// A step left out, or done too early.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name),+
        }

        /// The mutants of everything that this process opens from now on.
        static ENABLED: $crate::mutants::MutantSet<{ Mutant::ALL.len().div_ceil(64) }> =
            $crate::mutants::MutantSet::new();

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Enables the mutants of these names, and disables all others.
            pub fn enable_named(names: &[&str]) {
                let named = |d: &&Self| names.contains(&d.name());
                ENABLED.set(Self::ALL.iter().filter(named).map(|d| *d as usize));
            }

            /// Its name on a checker's command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),+
                }
            }

            /// Enables mutants for everything that this process opens from now on, and disables all
            /// others: for checkers.
            pub fn enable(on: &[Self]) {
                ENABLED.set(on.iter().map(|d| *d as usize));
            }
        }

        /// Which are on in one node.
        #[derive(Debug)]
        pub(crate) struct Mutants($crate::mutants::MutantSet<{ Mutant::ALL.len().div_ceil(64) }>);

        impl Default for Mutants {
            fn default() -> Self {
                Self(ENABLED.clone())
            }
        }

        impl Mutants {
            #[inline]
            pub(crate) fn has(&self, d: Mutant) -> bool {
                self.0.has(d as usize)
            }

            #[inline]
            #[allow(dead_code, reason = "not every part has steps of its own without mutants")]
            pub(crate) fn any(&self) -> bool {
                self.0.any()
            }

            #[allow(dead_code, reason = "not every part has tests of single nodes")]
            pub(crate) fn set(&self, on: &[Mutant]) {
                self.0.set(on.iter().map(|d| *d as usize));
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::mutants! {
        /// The first.
        First,
        /// The second.
        Second,
    }

    #[test]
    fn enabled_mutants_apply_to_nodes_made_later() {
        let before = Mutants::default();
        Mutant::enable(&[Mutant::Second]);
        let after = Mutants::default();
        Mutant::enable(&[]);
        assert!(!before.has(Mutant::Second) && after.has(Mutant::Second));
        assert!(!after.has(Mutant::First));
        after.set(&[Mutant::First]);
        assert!(after.has(Mutant::First) && !after.has(Mutant::Second));
        Mutant::enable_named(&["First", "Third"]);
        let named = Mutants::default();
        Mutant::enable_named(&[]);
        assert!(named.has(Mutant::First) && !named.has(Mutant::Second));
        assert_eq!(Mutant::ALL.iter().map(|d| d.name()).collect::<Vec<_>>(), ["First", "Second"]);
    }

    #[test]
    fn more_than_a_word() {
        let set = MutantSet::<2>::new();
        set.set([3, 64, 127].into_iter());
        assert!((0..128).all(|n| set.has(n) == [3, 64, 127].contains(&n)));
    }
}
