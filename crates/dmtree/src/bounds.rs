//! Ranges of keys.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

type Ends<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A range of keys: any of Rust's ranges over anything that is bytes, such as `"a".."b"`, `key..`,
/// `..`, `&low[..]..=&high[..]`, or a pair of [`Bound`]s.
///
/// (The standard `RangeBounds` would not let `..` and `"a".."b"` pass without naming a type.)
pub trait KeyRange {
    /// Lower and upper end.
    fn ends(&self) -> Ends<'_>;
}

impl KeyRange for RangeFull {
    fn ends(&self) -> Ends<'_> {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn ends(&self) -> Ends<'_> {
        (Bound::Included(self.start.as_ref()), Bound::Excluded(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn ends(&self) -> Ends<'_> {
        (Bound::Included(self.start().as_ref()), Bound::Included(self.end().as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn ends(&self) -> Ends<'_> {
        (Bound::Included(self.start.as_ref()), Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn ends(&self) -> Ends<'_> {
        (Bound::Unbounded, Bound::Excluded(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn ends(&self) -> Ends<'_> {
        (Bound::Unbounded, Bound::Included(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn ends(&self) -> Ends<'_> {
        (as_bytes(&self.0), as_bytes(&self.1))
    }
}

fn as_bytes<K: AsRef<[u8]>>(b: &Bound<K>) -> Bound<&[u8]> {
    match b {
        Bound::Included(k) => Bound::Included(k.as_ref()),
        Bound::Excluded(k) => Bound::Excluded(k.as_ref()),
        Bound::Unbounded => Bound::Unbounded,
    }
}

pub(crate) type OwnedBound = Bound<Vec<u8>>;

pub(crate) fn owned(b: Bound<&[u8]>) -> OwnedBound {
    b.map(<[u8]>::to_vec)
}

pub(crate) fn borrowed(b: &OwnedBound) -> Bound<&[u8]> {
    b.as_ref().map(Vec::as_slice)
}

/// The higher of two lower ends.
pub(crate) fn higher_low(a: OwnedBound, b: OwnedBound) -> OwnedBound {
    // An excluded key begins later than an included one.
    let rank = |x: &OwnedBound| match x {
        Bound::Unbounded => None,
        Bound::Included(k) => Some((k.clone(), 0)),
        Bound::Excluded(k) => Some((k.clone(), 1)),
    };
    if rank(&a) >= rank(&b) { a } else { b }
}

/// The lower of two upper ends.
pub(crate) fn lower_high(a: OwnedBound, b: OwnedBound) -> OwnedBound {
    let rank = |x: &OwnedBound| match x {
        Bound::Unbounded => (1, Vec::new(), 0),
        Bound::Excluded(k) => (0, k.clone(), 0),
        Bound::Included(k) => (0, k.clone(), 1),
    };
    if rank(&a) <= rank(&b) { a } else { b }
}

/// Whether no key can lie between two ends.
pub(crate) fn is_empty(low: &OwnedBound, high: &OwnedBound) -> bool {
    match (low, high) {
        (Bound::Included(l), Bound::Included(h)) => l > h,
        (Bound::Included(l) | Bound::Excluded(l), Bound::Excluded(h))
        | (Bound::Excluded(l), Bound::Included(h)) => l >= h,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing() {
        let k = |s: &str| s.as_bytes().to_vec();
        let low = higher_low(Bound::Included(k("b")), Bound::Excluded(k("b")));
        assert_eq!(low, Bound::Excluded(k("b")));
        assert_eq!(higher_low(low, Bound::Unbounded), Bound::Excluded(k("b")));
        let high = lower_high(Bound::Included(k("b")), Bound::Excluded(k("b")));
        assert_eq!(high, Bound::Excluded(k("b")));
        assert_eq!(lower_high(Bound::Unbounded, high), Bound::Excluded(k("b")));
        assert!(is_empty(&Bound::Excluded(k("a")), &Bound::Included(k("a"))));
        assert!(!is_empty(&Bound::Included(k("a")), &Bound::Included(k("a"))));
        assert!(is_empty(&Bound::Included(k("b")), &Bound::Excluded(k("a"))));
    }
}
