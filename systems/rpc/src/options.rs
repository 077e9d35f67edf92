//! Creation options.

use dmtree_fabric::{Error, Result};
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

/// The layout of an index, and how it is read. The catalog stores them; the layout cannot change
/// later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How a client reads a key.
    pub reads: Reads,
    /// Bytes of a key kept inside its leaf; a longer one is in a block. A multiple of 8, 8 to 256.
    pub key_inline_bytes: u32,
    /// Bytes of a value kept inside its leaf; a longer one is in a block. A multiple of 8, 8 to
    /// 1024.
    pub value_inline_bytes: u32,
    /// Slots of a leaf, 4 to 128.
    pub leaf_slots: u32,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reads: Reads::Call,
            key_inline_bytes: 24,
            value_inline_bytes: 8,
            leaf_slots: 32,
            timeout_ms: 10_000,
        }
    }
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
        let (k, v) = (self.key_inline_bytes, self.value_inline_bytes);
        for (name, bytes, most) in [("key_inline_bytes", k, 256), ("value_inline_bytes", v, 1024)] {
            if !(8..=most).contains(&bytes) || !bytes.is_multiple_of(8) {
                return Err(Error::invalid(format!(
                    "{name} is {bytes}; it must be 8 to {most}, a multiple of 8"
                )));
            }
        }
        if !(4..=128).contains(&self.leaf_slots) {
            return Err(Error::invalid(format!(
                "leaf_slots is {}; it must be 4 to 128",
                self.leaf_slots
            )));
        }
        if self.timeout_ms == 0 {
            return Err(Error::invalid("timeout_ms is 0; it must be 1 at least"));
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let of = |o: Options| o.check().expect_err("refused").to_string();
        let base = Options::default;
        assert!(of(Options { key_inline_bytes: 12, ..base() }).contains("key_inline_bytes is 12"));
        assert!(
            of(Options { value_inline_bytes: 0, ..base() }).contains("value_inline_bytes is 0")
        );
        assert!(of(Options { leaf_slots: 129, ..base() }).contains("leaf_slots is 129"));
        assert!(of(Options { timeout_ms: 0, ..base() }).contains("timeout_ms is 0"));
        base().check().expect("allowed");
    }
}
