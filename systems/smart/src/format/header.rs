//! A node's header: one word with the node's first position, its type, and the bytes that all its
//! keys share from there on.

use super::slot::NodeType;

/// Most bytes that a header holds.
pub const MOST_BYTES: usize = 6;
const KIND_SHIFT: u32 = 8;
const LEN_SHIFT: u32 = 13;
const BYTES_SHIFT: u32 = 16;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first position that the node describes, from 1.
    pub depth: u8,
    /// The node's type.
    pub kind: NodeType,
    len: u8,
    bytes: [u8; MOST_BYTES],
}

impl Header {
    /// The header of a node; its keys share `shared` from `depth` on. It keeps at most 6 bytes.
    pub fn new(depth: u8, kind: NodeType, shared: &[u8]) -> Self {
        let len = shared.len().min(MOST_BYTES);
        let mut bytes = [0; MOST_BYTES];
        bytes[..len].copy_from_slice(&shared[..len]);
        Self { depth, kind, len: len as u8, bytes }
    }

    /// Parses a word; `None` for a deleted node and for a word that is no header.
    pub fn parse(word: u64) -> Option<Self> {
        let kind = NodeType::of_code((word >> KIND_SHIFT) as u8 & 0x1f)?;
        let (depth, len) = (word as u8, (word >> LEN_SHIFT) as u8 & 7);
        let mut bytes = [0; MOST_BYTES];
        bytes.copy_from_slice(&word.to_le_bytes()[2..]);
        let fits = depth > 0 && usize::from(len) <= MOST_BYTES && depth.checked_add(len).is_some();
        fits.then_some(Self { depth, kind, len, bytes })
    }

    /// The word.
    pub fn bits(&self) -> u64 {
        let mut word = [0; 8];
        word[2..].copy_from_slice(&self.bytes);
        u64::from_le_bytes(word) >> BYTES_SHIFT << BYTES_SHIFT
            | u64::from(self.len) << LEN_SHIFT
            | u64::from(self.kind.code()) << KIND_SHIFT
            | u64::from(self.depth)
    }

    /// The shared bytes.
    pub fn shared(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The position that the slots tell apart.
    pub fn discriminates(&self) -> usize {
        usize::from(self.depth) + usize::from(self.len)
    }

    /// The same without its first `n` bytes.
    #[must_use]
    pub fn without_first(&self, n: usize) -> Self {
        let n = n.min(usize::from(self.len));
        Self::new(self.depth.saturating_add(n as u8), self.kind, &self.shared()[n..])
    }

    /// The same header from `depth` on; `depth` is at a shared byte or directly behind them.
    #[must_use]
    pub fn starting_at(&self, depth: usize) -> Self {
        self.without_first(depth.saturating_sub(usize::from(self.depth)))
    }

    /// The same of another type.
    #[must_use]
    pub fn with_kind(self, kind: NodeType) -> Self {
        Self { kind, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_keep_what_they_are_given(depth in 1u8..200, code in 1u8..9, shared in proptest::collection::vec(any::<u8>(), 0..7), n in 0usize..8) {
            let kind = NodeType::of_code(code).unwrap();
            let h = Header::new(depth, kind, &shared);
            prop_assert_eq!(Header::parse(h.bits()), Some(h));
            prop_assert_eq!(h.shared(), &shared[..]);
            prop_assert_eq!(h.discriminates(), usize::from(depth) + shared.len());
            let rest = h.without_first(n);
            prop_assert_eq!(rest.shared(), &shared[n.min(shared.len())..]);
            prop_assert_eq!(rest.discriminates(), h.discriminates());
            prop_assert_eq!(Header::parse(rest.bits()), Some(rest));
        }

        #[test]
        fn garbage_is_no_header_or_a_sane_one(word: u64) {
            if let Some(h) = Header::parse(word) {
                prop_assert!(h.depth > 0 && h.shared().len() <= 6 && h.discriminates() < 262);
            }
        }
    }
}
