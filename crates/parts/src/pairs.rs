//! Pairs to be loaded, in one piece of memory: a load of ten million small pairs needs little more than their bytes.

use dmtree_fabric::{Error, Result};

/// Pairs in ascending order of their keys.
#[derive(Debug, Default)]
pub struct Pairs {
    bytes: Vec<u8>,
    /// Where each pair ends.
    ends: Vec<u64>,
    /// How long its key is.
    key_lens: Vec<u16>,
    /// The order, when it is not that of arrival.
    order: Option<Vec<u32>>,
}

impl Pairs {
    /// Takes over pairs that `check` accepts. `sorted` says that keys ascend strictly; otherwise they are sorted, and of equal
    /// keys the last stays.
    ///
    /// # Errors
    /// Those of `check`, and `InvalidArgument` for a key that does not ascend; both name the pair, from 1.
    pub fn collect(
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        mut check: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<Self> {
        let mut all = Self::default();
        for (key, value) in pairs {
            let number = all.len() + 1;
            check(&key, &value).map_err(|e| e.context(format!("pair {number}")))?;
            if sorted && number > 1 && all.key(number - 2) >= &key[..] {
                return Err(Error::invalid(format!(
                    "pair {number}: its key is not above the one before; load it as unsorted"
                )));
            }
            all.bytes.extend_from_slice(&key);
            all.bytes.extend_from_slice(&value);
            all.ends.push(all.bytes.len() as u64);
            let len = u16::try_from(key.len());
            all.key_lens.push(len.map_err(|_| Error::invalid("a key is over 65535 bytes"))?);
        }
        if !sorted {
            all.sort()?;
        }
        Ok(all)
    }

    fn sort(&mut self) -> Result<()> {
        let n = u32::try_from(self.ends.len()).map_err(|_| {
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
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        let pair = &self.bytes[start..self.ends[i] as usize];
        pair.split_at(usize::from(self.key_lens[i]))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.order.as_ref().map_or(self.ends.len(), Vec::len)
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
