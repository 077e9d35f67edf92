//! Creation options.

use dmtree_fabric::Result;
use dmtree_parts::tree::Geometry;
use serde::{Deserialize, Serialize};

/// How a client reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reads {
    /// By a call.
    Call,
    /// By a call for the address of the leaf, and a READ of it.
    Hybrid,
    /// By a READ of the leaf that cached routes name.
    Farm,
    /// As [`Reads::Farm`] or as [`Reads::Call`], whichever was faster of late.
    Cell,
}

dmtree_parts::options! {
    /// The layout of an index, and how it is read. The catalog stores them; the layout cannot
    /// change later.
    pub struct Options = Self::first();
    /// How a client reads a key.
    reads: Reads = Reads::Call;
    /// Bytes of a key kept inside its leaf; a longer one is in a block. A multiple of 8, 8 to 256.
    key_inline_bytes: u32 = 24, in 8..=256, by 8;
    /// Bytes of a value kept inside its leaf; a longer one is in a block. A multiple of 8, 8 to
    /// 1024.
    value_inline_bytes: u32 = 8, in 8..=1024, by 8;
    /// Slots of a leaf, 4 to 128.
    leaf_slots: u32 = 32, in 4..=128;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// With reads of this kind.
    #[must_use]
    pub fn reading(reads: Reads) -> Self {
        Self { reads, ..Self::default() }
    }

    /// Sizes and offsets of a leaf.
    pub(crate) fn geometry(&self) -> Geometry {
        let (k, v) = (self.key_inline_bytes as usize, self.value_inline_bytes as usize);
        Geometry { k, v, fanout: self.leaf_slots as usize }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`.
    #[must_use]
    pub(crate) fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        Self {
            key_inline_bytes: [8, 16, 24, 32][below(4) as usize],
            value_inline_bytes: [8, 8, 16, 64][below(4) as usize],
            leaf_slots: [4, 6, 8, 32][below(4) as usize],
            ..self.clone()
        }
    }
}
