//! Versions of a key: a user key with a tag, which is a sequence number and a kind.
//!
//! Order: user keys ascend, and of one user key the newest version comes first.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// A sequence number; the first one is 1.
pub(crate) type Seq = u64;

/// Sequence number (56 bits) and kind (8 bits: 1 is a value, 0 a deletion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(pub(crate) u64);

impl Tag {
    /// Above every tag: a search with it finds the newest version.
    pub(crate) const NEWEST: Self = Self(u64::MAX);

    pub(crate) fn new(seq: Seq, is_value: bool) -> Self {
        Self(seq << 8 | u64::from(is_value))
    }

    /// The highest tag of a number: a search with it finds the newest version up to the number.
    pub(crate) fn up_to(seq: Seq) -> Self {
        Self(seq.min(u64::MAX >> 8) << 8 | 0xff)
    }

    pub(crate) fn seq(self) -> Seq {
        self.0 >> 8
    }

    pub(crate) fn is_value(self) -> bool {
        self.0 & 0xff == 1
    }
}

/// What is ordered as a version of a key.
pub(crate) trait Versioned {
    fn user(&self) -> &[u8];
    fn tag(&self) -> Tag;
}

/// The order of versions.
pub(crate) fn order((a, ta): (&[u8], Tag), (b, tb): (&[u8], Tag)) -> Ordering {
    a.cmp(b).then(tb.cmp(&ta))
}

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InternalKey {
    pub(crate) user: Box<[u8]>,
    pub(crate) tag: Tag,
}

impl Versioned for InternalKey {
    fn user(&self) -> &[u8] {
        &self.user
    }

    fn tag(&self) -> Tag {
        self.tag
    }
}

impl PartialOrd for InternalKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InternalKey {
    fn cmp(&self, other: &Self) -> Ordering {
        order((&self.user, self.tag), (&other.user, other.tag))
    }
}

/// What a search looks for, without a copy of the key.
pub(crate) struct Probe<'a>(pub(crate) &'a [u8], pub(crate) Tag);

impl Versioned for Probe<'_> {
    fn user(&self) -> &[u8] {
        self.0
    }

    fn tag(&self) -> Tag {
        self.1
    }
}

impl<'a> Borrow<dyn Versioned + 'a> for InternalKey {
    fn borrow(&self) -> &(dyn Versioned + 'a) {
        self
    }
}

impl PartialEq for dyn Versioned + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn Versioned + '_ {}

impl PartialOrd for dyn Versioned + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Versioned + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        order((self.user(), self.tag()), (other.user(), other.tag()))
    }
}

/// A version with its value (empty for a deletion).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) user: Vec<u8>,
    pub(crate) tag: Tag,
    pub(crate) value: Vec<u8>,
}

/// The smallest key above another one.
pub(crate) fn above(user: &[u8]) -> Vec<u8> {
    [user, &[0]].concat()
}

/// A range of user keys, lower end included, upper end excluded; `None` is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct KeyRange {
    pub(crate) low: Option<Vec<u8>>,
    pub(crate) high: Option<Vec<u8>>,
}

impl KeyRange {
    /// Whether no key is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.low.is_some() && self.high.is_some() && self.low >= self.high
    }

    /// No key from this one on.
    pub(crate) fn lower_high(&mut self, bound: Vec<u8>) {
        let high = self.high.take();
        self.high = high.into_iter().chain([bound]).min();
    }

    /// No key below this one.
    pub(crate) fn raise_low(&mut self, bound: Vec<u8>) {
        self.low = self.low.take().max(Some(bound));
    }

    pub(crate) fn is_under(&self, key: &[u8]) -> bool {
        self.low.as_ref().is_some_and(|low| key < &low[..])
    }

    pub(crate) fn is_over(&self, key: &[u8]) -> bool {
        self.high.as_ref().is_some_and(|high| key >= &high[..])
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        !self.is_under(key) && !self.is_over(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first_and_a_prefix_before_its_extension() {
        let key = |user: &[u8], seq| InternalKey { user: user.into(), tag: Tag::new(seq, true) };
        let mut keys = [key(b"b", 1), key(b"a", 1), key(b"a", 9), key(b"ab", 3), key(b"", 2)];
        keys.sort();
        let found: Vec<_> = keys.iter().map(|k| (&k.user[..], k.tag.seq())).collect();
        let wanted: [(&[u8], u64); 5] = [(b"", 2), (b"a", 9), (b"a", 1), (b"ab", 3), (b"b", 1)];
        assert_eq!(found, wanted);
        assert!(Tag::up_to(5) > Tag::new(5, true) && Tag::up_to(5) < Tag::new(6, false));
        assert!(Tag::up_to(u64::MAX) >= Tag::new(u64::MAX >> 8, true));
    }
}
