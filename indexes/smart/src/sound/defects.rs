//! Defects on purpose, each a step left out or done too early: only a checker switches them on, to show that it finds them. Not an
//! option, not stored, off in every index that is opened.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! defects {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// A step left out, or done too early.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Defect {
            $($(#[doc = $doc])+ $name),+
        }

        impl Defect {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its name, as a checker is told it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),+
                }
            }
        }
    };
}

defects! {
    /// A slot names a new leaf before the leaf is there.
    SlotBeforeLeaf,
    /// A slot names a new node before node and leaf are there.
    SlotBeforeNode,
    /// A leaf is let go, under the next version, before its area has landed.
    ReleaseBeforeArea,
    /// A dead leaf is retired before its slot is vacant.
    RetireNamed,
    /// A node is made dead without its slots being frozen.
    CloseUnfrozen,
    /// What the dead hold is not taken from them.
    NoTakeOver,
    /// New memory is live and linked at once, also where an old pointer can lead.
    NeverYoung,
    /// A census takes what somebody has noted meanwhile.
    CensusNoNotes,
}

/// Which are on.
#[derive(Debug, Default)]
pub(crate) struct Defects(AtomicU64);

impl Defects {
    #[inline]
    pub(crate) fn has(&self, d: Defect) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << d as u8) != 0
    }

    pub(crate) fn set(&self, on: &[Defect]) {
        self.0.store(on.iter().fold(0, |all, d| all | 1 << *d as u8), Ordering::Relaxed);
    }
}
