//! Creation options and ablation switches of the sound SMART.

use dmtree_fabric::{Error, Result};
use serde::{Deserialize, Serialize};

use super::format::leaf::LeafShape;
use super::format::slot::MAX_LINES;

/// The layout of an index, and the techniques it uses. The catalog stores them. The layout cannot
/// change later; every switch is sound in every position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Bytes of a value kept inside its leaf; a longer value goes to a block of its own. A multiple
    /// of 8, 8 to 1024.
    pub value_inline_bytes: u32,
    /// Readers of one key share a READ.
    pub delegation: bool,
    /// Writers of one key share a WRITE.
    pub combining: bool,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { value_inline_bytes: 8, delegation: true, combining: true, timeout_ms: 10_000 }
    }
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
        let v = self.value_inline_bytes;
        if !(8..=1024).contains(&v) || !v.is_multiple_of(8) {
            return Err(Error::invalid(format!(
                "value_inline_bytes is {v}; it must be 8 to 1024, a multiple of 8"
            )));
        }
        if self.timeout_ms == 0 {
            return Err(Error::invalid("timeout_ms is 0; it must be 1 at least"));
        }
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
    fn contradictions_are_named() {
        for bytes in [0, 7, 12, 1032] {
            let o = Options { value_inline_bytes: bytes, ..Options::default() };
            let e = o.check().expect_err("refused").to_string();
            assert!(e.contains(&format!("value_inline_bytes is {bytes}")), "{e}");
        }
        let o = Options { timeout_ms: 0, ..Options::default() };
        assert!(o.check().expect_err("refused").to_string().contains("timeout_ms is 0"));
        let most = Options { value_inline_bytes: 1024, ..Options::default() };
        most.check().expect("allowed");
        assert!(most.leaf_shape().lines(dmtree_parts::MAX_KEY_BYTES) <= MAX_LINES);
    }
}
