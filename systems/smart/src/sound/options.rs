//! Creation options and ablation switches of the sound SMART.

use dmtree_fabric::Result;

use super::format::leaf::LeafShape;
use super::format::slot::MAX_LINES;

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them. The layout
    /// cannot change later; every switch is sound in every position.
    pub struct Options = Self::first();
    /// Bytes of a value kept inside its leaf; a longer value goes to a block of its own. A multiple
    /// of 8, 8 to 1024.
    value_inline_bytes: u32 = 8, in 8..=1024, by 8;
    /// Readers of one key share a READ.
    delegation: bool = true;
    /// Writers of one key share a WRITE.
    combining: bool = true;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// Sizes of leaves that the options determine.
    pub fn leaf_shape(&self) -> LeafShape {
        LeafShape { value: self.value_inline_bytes as usize }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        debug_assert!(self.leaf_shape().lines(dmtree_parts::MAX_KEY_BYTES) <= MAX_LINES);
        Ok(())
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        Self {
            value_inline_bytes: [8, 8, 16, 64][below(4) as usize],
            delegation: below(4) != 0,
            combining: below(4) != 0,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_has_room_for_the_longest_pair() {
        let most = Options { value_inline_bytes: 1024, ..Options::default() };
        most.check().expect("allowed");
        assert!(most.leaf_shape().lines(dmtree_parts::MAX_KEY_BYTES) <= MAX_LINES);
    }
}
