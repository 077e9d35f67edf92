//! A page of models: the leaves of a range of keys, and the lines that predict which one a key is
//! in.
//!
//! *Numbers of keys.* A line needs numbers. The number of a key is its *head*, the 8 bytes behind
//! the prefix that all lower fences of a group share; a key of the group without that prefix is
//! above all of them, and has the largest number. So the number keeps the order of keys of any
//! length. Lower fences with equal heads are not in one group: a run of them is a group of its own,
//! with a longer prefix. So numbers of a group ascend strictly.
//!
//! *Units.* A leaf counts as `span` units, and the fit sees each unit's border, interpolated
//! between two lower fences. A line that is within a bound of the fences is within it of the
//! interpolated borders too, so they cost no line; and the bound may be a part of a leaf. Numbers
//! are scaled by the span, so that borders are integers.
//!
//! *M (models).* The window of a key, by the page that was trained on a leaf, has that leaf, for
//! each key between the fences that the leaf had then. For let the key's number lie at or above the
//! border of unit u of leaf j, and below the next border (the last leaf of a group has the border
//! of its first unit alone). Predictions are monotone, and within the bound of u and of u + 1 at
//! the two borders. So u lies between the prediction less the bound and one, and the prediction
//! plus the bound; the window has the leaves of all units between the two.
//!
//! A page is immutable. Memory nodes keep its image in a block; what comes from there is checked
//! before it counts.

use std::ops::Range;

use dmtree_fabric::GlobalAddr;
use dmtree_parts::keys::{common, head};
use dmtree_parts::plr::{Fit, Line};
use serde::{Deserialize, Serialize};

use crate::Route;
use crate::learned::directory::Head;

/// How exact predictions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precision {
    /// Units of a leaf: its slots.
    pub span: u32,
    /// Units by which a prediction may be wrong.
    pub error: u32,
}

/// A leaf as a page names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeafEntry {
    leaf: u64,
    pub generation: u16,
    /// Tag of the upper fence that it had.
    pub fence: u32,
}

impl LeafEntry {
    /// A leaf in a generation, with the tag of its upper fence.
    pub fn new(leaf: GlobalAddr, generation: u16, fence: u32) -> Self {
        Self { leaf: leaf.bits(), generation, fence }
    }

    /// The leaf of a route.
    pub fn of(route: &Route) -> Self {
        Self::new(route.leaf, route.generation, route.fence)
    }

    /// Where it is.
    pub fn leaf(&self) -> GlobalAddr {
        GlobalAddr::from_bits(self.leaf)
    }
}

/// A lower fence, and its leaf.
pub(crate) type Fenced = (Vec<u8>, LeafEntry);

/// A line through the borders of some units of a group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Model {
    /// The first border, and its unit.
    first: u128,
    unit: u32,
    units: u32,
    slope: f64,
    intercept: f64,
}

/// Leaves with lower fences of different heads behind one prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Group {
    /// Its first lower fence.
    first: Vec<u8>,
    /// Bytes of the prefix.
    skip: u16,
    /// The number of its first leaf.
    leaf: u32,
    models: Vec<Model>,
}

impl Group {
    /// The number of a key at or above the first fence.
    fn number(&self, key: &[u8]) -> u64 {
        let skip = usize::from(self.skip);
        match key.starts_with(&self.first[..skip]) {
            true => head(key, skip),
            false => u64::MAX,
        }
    }
}

/// The models of a range of keys, with the table of its leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelPage {
    groups: Vec<Group>,
    leaves: Vec<LeafEntry>,
}

/// Cuts leaves into groups: the first leaf of each, and the length of its prefix.
fn cut(fences: &[Fenced], first: usize, out: &mut Vec<(usize, usize)>) {
    let [(low, _), .., (high, _)] = fences else {
        return out.extend(fences.iter().map(|(low, _)| (first, low.len())));
    };
    let skip = common(low, high);
    let heads: Vec<u64> = fences.iter().map(|(low, _)| head(low, skip)).collect();
    let mut from = 0;
    while from < heads.len() {
        let ascends = |i: &usize| heads[*i] < heads[i + 1];
        let to = (from..heads.len() - 1).find(|i| !ascends(i)).unwrap_or(heads.len());
        if to > from {
            let (low, high) = (&fences[from].0, &fences[to - 1].0);
            out.push((first + from, if to - from > 1 { common(low, high) } else { low.len() }));
        }
        if to == heads.len() {
            return;
        }
        let end = (to..heads.len()).find(|i| heads[*i] != heads[to]).unwrap_or(heads.len());
        match end - to < fences.len() {
            true => cut(&fences[to..end], first + to, out),
            // A shorter key ends in the prefix, and its head is that of zeros.
            false => {
                let middle = fences.len() / 2;
                cut(&fences[..middle], first, out);
                cut(&fences[middle..], first + middle, out);
            }
        }
        from = end;
    }
}

/// The lines of a group.
fn models_of(heads: &[u64], at: Precision) -> Vec<Model> {
    let (span, mut segments) = (u128::from(at.span), Vec::new());
    let mut fit = Fit::new(at.error, 0);
    for (i, head) in heads.iter().enumerate() {
        let first = u128::from(*head) * span;
        let borders = heads.get(i + 1).map_or(1, |_| span);
        let step = heads.get(i + 1).map_or(0, |next| u128::from(next - head));
        for border in (0..borders).map(|n| first + n * step) {
            fit.push(border, &mut segments).expect("heads of a group ascend");
        }
    }
    fit.end_segment(&mut segments);
    let model = |s: &dmtree_parts::plr::Segment| {
        let Line { slope, intercept } = s.line;
        Model { first: s.first, unit: s.ordinal, units: s.points, slope, intercept }
    };
    segments.iter().map(model).collect()
}

impl ModelPage {
    /// The page of these leaves, in the order of their lower fences. With `late`, a mutant, a group
    /// begins at its second fence.
    pub fn train(fences: &[Fenced], at: Precision, late: bool) -> Self {
        // The first leaf of all has an empty fence, which shares no prefix.
        let first = fences.iter().take_while(|(low, _)| low.is_empty()).count();
        let mut cuts = Vec::new();
        cut(&fences[..first], 0, &mut cuts);
        cut(&fences[first..], first, &mut cuts);
        let ends = cuts.iter().skip(1).map(|(first, _)| *first).chain([fences.len()]);
        let group = |((first, skip), end): (&(usize, usize), usize)| {
            let heads: Vec<u64> = fences[*first..end].iter().map(|f| head(&f.0, *skip)).collect();
            Group {
                first: fences[first + usize::from(late && *first > 0 && end - first > 1)].0.clone(),
                skip: *skip as u16,
                leaf: *first as u32,
                models: models_of(&heads, at),
            }
        };
        let groups = cuts.iter().zip(ends).map(group).collect();
        Self { groups, leaves: fences.iter().map(|f| f.1).collect() }
    }

    /// Its leaves.
    pub fn leaves(&self) -> &[LeafEntry] {
        &self.leaves
    }

    /// The leaves that may have a key of the page's range, and the likeliest one of them.
    pub fn window(&self, key: &[u8], at: Precision) -> (Range<usize>, usize) {
        let g = self.groups.partition_point(|g| g.first[..] <= *key).saturating_sub(1);
        let group = &self.groups[g];
        let first = group.leaf as usize;
        let last = self.groups.get(g + 1).map_or(self.leaves.len(), |g| g.leaf as usize) - 1;
        let x = u128::from(group.number(key)) * u128::from(at.span);
        let m = group.models.partition_point(|m| m.first <= x).saturating_sub(1);
        let Model { first: from, unit, units, slope, intercept } = group.models[m];
        let line = Line { slope, intercept };
        let u = u64::from(unit) + u64::from(line.predict(x.saturating_sub(from), units));
        let (span, error) = (u64::from(at.span), u64::from(at.error));
        let leaf = |unit: u64| (first + (unit / span) as usize).min(last);
        (leaf(u.saturating_sub(error + 1))..leaf(u + error) + 1, leaf(u))
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let of =
            |g: &Group| size_of::<Group>() + g.first.len() + g.models.len() * size_of::<Model>();
        let groups: usize = self.groups.iter().map(of).sum();
        (size_of::<Self>() + groups + size_of_val(&self.leaves[..])) as u64
    }

    /// Its image.
    pub fn encoded(&self, head: Head) -> Vec<u8> {
        postcard::to_stdvec(&(head, self)).expect("memory takes any image")
    }

    /// The page of an image that has passed its checksum; `None` when it is no page, or another
    /// one than `head` says.
    pub fn decoded(head: Head, bytes: &[u8]) -> Option<Self> {
        let (found, page): (Head, Self) = postcard::from_bytes(bytes).ok()?;
        let ascends = |pair: &[Group]| pair[0].first < pair[1].first && pair[0].leaf < pair[1].leaf;
        let is_sound = |g: &Group| {
            usize::from(g.skip) <= g.first.len()
                && (g.leaf as usize) < page.leaves.len()
                && !g.models.is_empty()
                && g.models.windows(2).all(|pair| pair[0].first < pair[1].first)
        };
        let is_whole = found == head
            && page.groups.first().is_some_and(|g| g.leaf == 0)
            && page.groups.iter().all(is_sound)
            && page.groups.windows(2).all(ascends);
        is_whole.then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn fence() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<u32>().prop_map(|n| n.to_be_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..24),
            proptest::collection::vec(0u8..2, 0..14),
            (0u8..4, proptest::collection::vec(0u8..3, 0..12)).prop_map(|(a, tail)| {
                let mut key = vec![7; 20];
                key.push(a);
                key.extend_from_slice(&[9; 8][..]);
                key.extend(tail);
                key
            }),
            (0u32..3000).prop_map(|n| [&[1; 20][..], &n.to_be_bytes()].concat()),
        ]
    }

    fn page(fences: &BTreeSet<Vec<u8>>, at: Precision) -> ModelPage {
        let entry = |i: usize| {
            let leaf = GlobalAddr::new(NodeId::memory(0), 64 * (i as u64 + 1)).bits();
            LeafEntry { leaf, generation: 1, fence: i as u32 }
        };
        let fences: Vec<Fenced> =
            fences.iter().enumerate().map(|(i, f)| (f.clone(), entry(i))).collect();
        ModelPage::train(&fences, at, false)
    }

    proptest! {
        #[test]
        fn the_window_of_every_key_has_its_leaf(
            fences in proptest::collection::btree_set(fence(), 1..300),
            probes in proptest::collection::vec(fence(), 1..100),
            (span, error) in (4u32..=32, 0u32..=20),
        ) {
            let at = Precision { span, error };
            let page = page(&fences, at);
            for key in fences.iter().chain(&probes) {
                let Some(leaf) = fences.range(..=key.clone()).count().checked_sub(1) else { continue };
                let (window, likeliest) = page.window(key, at);
                prop_assert!(window.contains(&leaf), "{key:?}: {leaf} in {window:?}");
                prop_assert!(window.contains(&likeliest));
                prop_assert!(window.len() as u32 <= 2 + (2 * error + 1) / span);
            }
        }

        #[test]
        fn images_come_back_and_others_are_refused(
            fences in proptest::collection::btree_set(fence(), 1..60),
            flip in any::<usize>(),
        ) {
            let at = Precision { span: 8, error: 7 };
            let (page, head) = (page(&fences, at), Head::of(3, 5));
            let mut bytes = page.encoded(head);
            prop_assert_eq!(ModelPage::decoded(head, &bytes), Some(page));
            prop_assert_eq!(ModelPage::decoded(Head::of(3, 6), &bytes), None);
            prop_assert_eq!(ModelPage::decoded(Head::of(4, 5), &bytes), None);
            let n = bytes.len();
            bytes[flip % n] ^= 0x10;
            if let Some(odd) = ModelPage::decoded(head, &bytes) {
                // Whatever it names, a window lies in its table.
                for key in &fences {
                    prop_assert!(odd.window(key, at).0.end <= odd.leaves().len());
                }
            }
        }
    }

    /// Uniform keys in leaves of eight: the lines are as long as those of the published setting.
    #[test]
    fn a_line_holds_some_two_hundred_keys() {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 33
        };
        let keys: BTreeSet<u64> = (0..400_000).map(|_| next()).collect();
        let fences = keys.iter().step_by(8).map(|k| k.to_be_bytes().to_vec()).collect();
        let page = page(&fences, Precision { span: 8, error: 7 });
        let lines: usize = page.groups.iter().map(|g| g.models.len()).sum();
        let keys_of_a_line = keys.len() / lines;
        assert!((180..320).contains(&keys_of_a_line), "{keys_of_a_line}");
    }
}
