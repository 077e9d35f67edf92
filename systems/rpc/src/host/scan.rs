//! Scans of a tree.

use std::ops::Bound;

use dmtree_parts::{Page, Resume, ScanRequest};

use super::tree::{Stop, Tree, Visit};
use crate::wire::CALL_BYTES;

impl Tree {
    /// A page of a scan, and where the next begins; `None` when this node has no more of it. No
    /// leaf is split meanwhile, and of each the pairs are those of one instant.
    pub(crate) fn scan(
        &self,
        v: &Visit<'_>,
        knows: bool,
        r: &ScanRequest<'_>,
    ) -> Result<(Page, Option<Resume>), Stop> {
        let map = self.shared(knows)?;
        v.searched(map.leaves.len());
        let begin = |bound: Bound<&[u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => {
                Some(map.leaf_of(key).map(|leaf| leaf.low))
            }
            Bound::Unbounded => None,
        };
        let (low, high) = (begin(r.low).transpose()?, begin(r.high).transpose()?);
        let low = low.map_or(Bound::Unbounded, Bound::Included);
        let high = high.map_or(Bound::Unbounded, Bound::Included);
        let mut page = Page::new();
        if let (Bound::Included(low), Bound::Included(high)) = (low, high)
            && low > high
        {
            return Ok((page, None));
        }
        let mut leaves = map.leaves.range::<[u8], _>((low, high));
        let next = || if r.reverse { leaves.next_back() } else { leaves.next() };
        for (_, at) in std::iter::from_fn(next) {
            let _latch = self.latch(*at);
            let image = self.load(v, *at)?;
            let mut keys = image.sorted(v)?;
            if r.reverse {
                keys.reverse();
            }
            v.searched(1);
            v.entries(keys.len());
            for (key, i) in keys.iter().filter(|(key, _)| r.contains(key)) {
                if page.len() == r.limit || page.bytes() >= CALL_BYTES / 2 {
                    let last = page.get(page.len() - 1).map(|(key, _)| key.to_vec());
                    v.copied(page.bytes());
                    return Ok((page, last.map(|key| Resume(Bound::Excluded(key)))));
                }
                page.push(key, &image.value(v, *i)?);
            }
        }
        v.copied(page.bytes());
        Ok((page, None))
    }
}
