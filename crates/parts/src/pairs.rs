//! Pairs on their way into an index: as they arrive, or all of them in one piece of memory, which
//! takes little more than their bytes.

use std::ops::Range;

use dmtree_fabric::{Error, Result};

/// Memory is given back in pieces of this many bytes: large ones, which allocators map by
/// themselves and shrink in place.
const GIVEN_BACK: usize = 16 << 20;

/// Pairs in ascending order of their keys.
#[derive(Debug, Default)]
pub struct Pairs {
    bytes: Vec<u8>,
    lengths: Lengths,
    /// The order, when it is not that of arrival.
    order: Option<Vec<u32>>,
}

/// Where pairs lie among the bytes.
#[derive(Debug)]
enum Lengths {
    /// All have the same lengths, and nothing is kept for a pair.
    Even { count: usize, key: usize, pair: usize },
    /// Where each ends, and how long its key is.
    Each { ends: Vec<u64>, keys: Vec<u16> },
}

impl Default for Lengths {
    fn default() -> Self {
        Self::Even { count: 0, key: 0, pair: 0 }
    }
}

impl Lengths {
    fn len(&self) -> usize {
        match self {
            Self::Even { count, .. } => *count,
            Self::Each { ends, .. } => ends.len(),
        }
    }

    fn truncate(&mut self, n: usize) {
        match self {
            Self::Even { count, .. } => *count = n.min(*count),
            Self::Each { ends, keys } => {
                ends.truncate(n);
                keys.truncate(n);
            }
        }
    }

    /// One more pair, of a key and a value of these lengths.
    fn push(&mut self, key: u16, value: usize) {
        let wide = usize::from(key);
        match self {
            Self::Even { count: 0, .. } => {
                *self = Self::Even { count: 1, key: wide, pair: wide + value };
            }
            Self::Even { count, key: k, pair } if (*k, *pair) == (wide, wide + value) => {
                *count += 1
            }
            Self::Even { count, key: k, pair } => {
                let (k, pair) = (*k as u16, *pair as u64);
                let ends = (1..=*count as u64).map(|i| i * pair).collect();
                *self = Self::Each { ends, keys: vec![k; *count] };
                self.push(key, value);
            }
            Self::Each { ends, keys } => {
                let end = ends.last().copied().unwrap_or(0);
                ends.push(end + (wide + value) as u64);
                keys.push(key);
            }
        }
    }

    /// The place of pair `i` by arrival, and the length of its key.
    fn get(&self, i: usize) -> (Range<usize>, usize) {
        match self {
            Self::Even { key, pair, .. } => (i * pair..(i + 1) * pair, *key),
            Self::Each { ends, keys } => {
                let start = if i == 0 { 0 } else { ends[i - 1] as usize };
                (start..ends[i] as usize, usize::from(keys[i]))
            }
        }
    }
}

/// Refuses pairs that an index cannot take.
pub type Check<'p> = dyn Fn(&[u8], &[u8]) -> Result<()> + 'p;

/// Pairs on their way into an index.
pub struct Arriving<'p> {
    pairs: &'p mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
    /// Keys ascend strictly; it is an error if they do not.
    sorted: bool,
    check: &'p Check<'p>,
    /// How many have arrived.
    count: u64,
    /// The last key, if they ascend.
    last: Vec<u8>,
}

impl<'p> Arriving<'p> {
    /// Pairs that `check` must accept.
    pub fn new(
        pairs: &'p mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        check: &'p Check<'p>,
    ) -> Self {
        Self { pairs, sorted, check, count: 0, last: Vec::new() }
    }

    /// Whether keys are said to ascend.
    pub fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// How many are still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        let (least, most) = self.pairs.size_hint();
        (most == Some(least)).then_some(least as u64)
    }

    /// Adds the next pairs, until `to` has so many or none is left.
    ///
    /// # Errors
    /// Those of `check`, and `InvalidArgument` for a key that does not ascend; both name the pair,
    /// from 1.
    pub fn fill(&mut self, to: &mut Pairs, pairs: usize) -> Result<()> {
        while to.len() < pairs {
            let Some((key, value)) = self.pairs.next() else { break };
            self.count += 1;
            let number = self.count;
            (self.check)(&key, &value).map_err(|e| e.context(format!("pair {number}")))?;
            if self.sorted && number > 1 && self.last >= key {
                return Err(Error::invalid(format!(
                    "pair {number}: its key is not above the one before; load it as unsorted"
                )));
            }
            to.push(&key, &value)?;
            self.last = key;
        }
        Ok(())
    }

    /// All pairs that are still to come, in key order; of equal keys the last stays.
    ///
    /// # Errors
    /// As [`Arriving::fill`].
    pub fn collect(&mut self) -> Result<Pairs> {
        let mut all = Pairs::default();
        self.fill(&mut all, usize::MAX)?;
        if !self.sorted {
            all.sort()?;
        }
        Ok(all)
    }
}

impl Pairs {
    /// Takes over pairs that `check` accepts. `sorted` says that keys ascend strictly; otherwise
    /// they are sorted, and of equal keys the last stays.
    ///
    /// # Errors
    /// As [`Arriving::fill`].
    pub fn collect(
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        check: impl Fn(&[u8], &[u8]) -> Result<()>,
    ) -> Result<Self> {
        Arriving::new(pairs, sorted, &check).collect()
    }

    /// Adds a pair behind the others.
    ///
    /// # Errors
    /// `InvalidArgument` for a key over 65535 bytes.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        debug_assert!(self.order.is_none(), "pairs that were sorted are complete");
        let len =
            u16::try_from(key.len()).map_err(|_| Error::invalid("a key is over 65535 bytes"))?;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lengths.push(len, value.len());
        Ok(())
    }

    /// The pairs from number `i` on; they are none of these any more.
    pub fn split_off(&mut self, i: usize) -> Self {
        let mut rest = Self::default();
        for (key, value) in (i..self.len()).map(|n| self.get(n)) {
            rest.push(key, value).expect("its length was accepted before");
        }
        self.truncate(i);
        rest
    }

    /// Forgets all pairs and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.truncate(0);
        self.order = None;
    }

    fn sort(&mut self) -> Result<()> {
        let n = u32::try_from(self.lengths.len()).map_err(|_| {
            Error::invalid("more than 4294967295 pairs in one unsorted load: load them in parts")
        })?;
        let mut order: Vec<u32> = (0..n).collect();
        // Stable, so that of equal keys the last stays last; then only that one is kept.
        order.sort_by(|a, b| self.stored(*a as usize).0.cmp(self.stored(*b as usize).0));
        order.dedup_by(|later, earlier| {
            let same = self.stored(*later as usize).0 == self.stored(*earlier as usize).0;
            if same {
                *earlier = *later;
            }
            same
        });
        self.order = Some(order);
        Ok(())
    }

    fn stored(&self, i: usize) -> (&[u8], &[u8]) {
        let (place, key) = self.lengths.get(i);
        self.bytes[place].split_at(key)
    }

    /// Forgets the pairs from number `i` of the order on; their memory is returned where they came
    /// in that order. So a build from the end holds less and less.
    pub fn truncate(&mut self, i: usize) {
        if let Some(order) = &mut self.order {
            order.truncate(i);
            return;
        }
        let left = match i.min(self.lengths.len()) {
            0 => 0,
            i => self.lengths.get(i - 1).0.end,
        };
        self.lengths.truncate(i);
        self.bytes.truncate(left);
        if self.bytes.capacity() > left + GIVEN_BACK {
            self.bytes.shrink_to_fit();
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.order.as_ref().map_or(self.lengths.len(), Vec::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pair number `i` in key order.
    pub fn get(&self, i: usize) -> (&[u8], &[u8]) {
        self.stored(self.order.as_ref().map_or(i, |order| order[i] as usize))
    }

    /// Key number `i` in key order.
    pub fn key(&self, i: usize) -> &[u8] {
        self.get(i).0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 0..4)
    }

    proptest! {
        #[test]
        fn as_a_map_has_them(pairs in proptest::collection::vec((bytes(), bytes()), 0..40)) {
            let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
            let all = Pairs::collect(&mut pairs.into_iter(), false, |_, _| Ok(())).unwrap();
            let found: Vec<_> =
                (0..all.len()).map(|i| all.get(i)).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            let due: Vec<_> = map.into_iter().collect();
            prop_assert_eq!(&found, &due);
            let again = Pairs::collect(&mut due.into_iter(), true, |_, _| Ok(())).unwrap();
            prop_assert_eq!(again.len(), found.len());
            for mut all in [all, again] {
                for left in (0..found.len()).rev() {
                    all.truncate(left);
                    prop_assert_eq!(all.len(), left);
                    prop_assert!((0..left).all(|i| all.get(i) == (&found[i].0[..], &found[i].1[..])));
                }
            }
        }
    }

    #[test]
    fn errors_name_the_pair() {
        let pairs =
            |keys: &[u8]| keys.iter().map(|k| (vec![*k], vec![])).collect::<Vec<_>>().into_iter();
        let e = Pairs::collect(&mut pairs(&[1, 3, 3]), true, |_, _| Ok(())).unwrap_err();
        assert!(e.to_string().contains("pair 3: its key is not above"), "{e}");
        let refuse = |k: &[u8], _: &[u8]| match k {
            [3] => Err(Error::invalid("no threes")),
            _ => Ok(()),
        };
        let e = Pairs::collect(&mut pairs(&[1, 3]), false, refuse).unwrap_err();
        assert!(e.to_string().contains("pair 2") && e.to_string().contains("no threes"), "{e}");
    }
}
