//! Sets of numbers, kept as ranges: the bytes of memory nodes, or the lines of table partitions,
//! that have a holder.

use std::collections::BTreeMap;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `len` numbers from `start` on; false when some of them were there already.
    pub fn insert(&mut self, start: u64, len: u64) -> bool {
        let (mut start, mut end) = (start, start.saturating_add(len));
        if start == end {
            return true;
        }
        let fresh = !self.meets(start, len);
        while let Some((&s, &e)) = self.0.range(..=end).next_back()
            && e >= start
        {
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
        fresh
    }

    /// Whether any of `len` numbers from `start` on is in it.
    pub fn meets(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        self.0.range(..end).next_back().is_some_and(|(_, e)| *e > start) && len > 0
    }

    /// Its ranges: beginnings and lengths.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end)| (*start, end - start))
    }

    /// What is not in it of `len` numbers from `start` on: beginnings and lengths.
    pub fn gaps(&self, start: u64, len: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(len);
        let mut out = Vec::new();
        let mut at = start;
        let before = self.0.range(..start).next_back().filter(|(_, e)| **e > start);
        for (s, e) in before.into_iter().chain(self.0.range(start..end)) {
            if *s > at {
                out.push((at, s - at));
            }
            at = at.max(*e);
        }
        if at < end {
            out.push((at, end - at));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_set_of_numbers(steps in proptest::collection::vec((0u64..60, 0u64..9), 0..40), look in (0u64..60, 0u64..20)) {
            let mut ranges = Ranges::default();
            let mut model = std::collections::BTreeSet::new();
            for (start, len) in steps {
                let all: Vec<u64> = (start..start + len).collect();
                prop_assert_eq!(ranges.insert(start, len), all.iter().all(|n| !model.contains(n)));
                model.extend(all);
            }
            let (start, len) = look;
            let free: Vec<u64> = (start..start + len).filter(|n| !model.contains(n)).collect();
            prop_assert_eq!(ranges.meets(start, len), free.len() < len as usize);
            let gaps: Vec<u64> = ranges.gaps(start, len).iter().flat_map(|(s, l)| *s..s + l).collect();
            prop_assert_eq!(gaps, free);
        }
    }
}
