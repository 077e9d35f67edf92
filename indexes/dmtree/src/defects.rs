//! Defects on purpose, one per edge that the protocol awaits and per order it chains: only a checker switches them on, to show that
//! it finds them. Not an option, not stored, off in every index that is opened.

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
    /// The unlock is not behind the table's WRITE in its chain.
    UnlockBesideTable,
    /// A write is acknowledged before its entry has landed.
    AcknowledgeEarly,
    /// An absence is confirmed by one READ of lock and table instead of compare-and-swap and READ.
    ConfirmWithoutCas,
    /// A held lock does not send a reader to the leaf.
    ConfirmWhileLocked,
    /// A delete clears the fingerprint before it blanks the entry.
    DeleteTableFirst,
    /// The entry is not behind its block.
    EntryBesideBlock,
    /// A torn update has no shadow.
    NoShadow,
    /// The shadow is written behind the entry.
    ShadowBehindEntry,
    /// A split writes the leaf's image before the commit word.
    ImageBeforeNext,
    /// A split writes the old leaf before the new one has landed.
    SplitBeforeSibling,
    /// A split publishes the new leaf before the old one has shrunk.
    PublishBeforeImage,
    /// A new leaf that was not published is reused in the same life.
    NoNewLife,
    /// A merge writes the neighbour's entries live instead of staged.
    MergeLive,
    /// A merge bypasses the neighbour before it has its entries.
    MergeNextEarly,
    /// A merge retires the neighbour before it is unlinked.
    RetireMergedEarly,
    /// A relocated leaf is retired before its left sibling has forgotten it.
    RetireRelocatedEarly,
    /// A relocation does not blank the old leaf.
    NoBlank,
    /// The burial of a table is not awaited before its cell is retired.
    BuryDetached,
    /// A part of a leaf counts for a scan although its version is not the table's.
    ScanOtherVersion,
    /// An entry of another life counts for a get.
    MirrorOtherLife,
    /// A write does not compare the table with its route.
    LockAnyTable,
    /// A merge of inner nodes moves the records that stay.
    InnerMergeMoves,
    /// A lock is taken over as soon as its holder is suspected.
    TakeOverEarly,
    /// A dead leaf is repaired without its heir.
    MendWithoutHeir,
    /// A take-over does not finish a half split.
    MendNoSplit,
    /// A take-over does not build the table anew.
    MendOldTable,
    /// Whether the lease has ended is not asked.
    NoLease,
    /// An abandoned lock word is freed, whatever it says about a change.
    WordForgetsChange,
    /// The release of a lock word is not behind the entry's WRITE in its chain.
    WordBesideEntry,
    /// A slot that a dead writer has torn is dropped without a look at its shadow.
    WordDropsTorn,
    /// A census does not wait for operations that run.
    CensusNoBarrier,
    /// A census does not ask what was noted.
    CensusNoNotes,
    /// A census does not look at the locks of what it takes.
    CensusNoLocks,
}

/// Which are on in every index that this process opens from now on.
static PLANTED: AtomicU64 = AtomicU64::new(0);

impl Defect {
    /// Switches defects on in every index that this process opens from now on, and all others off: for checkers.
    pub fn plant(on: &[Self]) {
        PLANTED.store(bits(on), Ordering::Relaxed);
    }
}

fn bits(on: &[Defect]) -> u64 {
    on.iter().fold(0, |bits, d| bits | 1 << (*d as u8))
}

/// Which are on.
#[derive(Debug)]
pub(crate) struct Defects(AtomicU64);

impl Default for Defects {
    fn default() -> Self {
        Self(AtomicU64::new(PLANTED.load(Ordering::Relaxed)))
    }
}

impl Defects {
    #[inline]
    pub(crate) fn has(&self, d: Defect) -> bool {
        let on = self.0.load(Ordering::Relaxed);
        on != 0 && on >> (d as u8) & 1 == 1
    }

    pub(crate) fn set(&self, on: &[Defect]) {
        self.0.store(bits(on), Ordering::Relaxed);
    }
}
