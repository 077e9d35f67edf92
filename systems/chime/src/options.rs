//! Creation options and ablation switches.

use dmtree_fabric::{Error, Result};
use dmtree_parts::options::{all_needed, check_range};
use serde::{Deserialize, Serialize};

/// How an insert learns where a leaf has free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vacancy {
    /// It READs the whole leaf.
    None,
    /// A word beside the lock says it; a READ after the compare-and-swap fetches it, as in the
    /// artifact of the FAST'26 paper, which has no masked atomics.
    Apart,
    /// The same in one chain with the compare-and-swap: the one round trip of the original, with
    /// one verb more.
    Chained,
}

/// What scans READ of the first and the last leaf of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scan {
    /// Whole leaves.
    Coarse,
    /// The neighbourhoods of all integers of the range, one READ for each run of slots.
    Fine,
    /// The same, with READs of neighbouring runs joined up to half a leaf.
    Greedy,
}

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them.
    pub struct Options = Self::published();
    /// Bytes of every key, 1 to 256.
    key_bytes: u32 = 24, in 1..=256;
    /// Bytes of every value, 0 to 1024.
    value_bytes: u32 = 8, in 0..=1024;
    /// Slots of a leaf: from twice the neighbourhood to 1024.
    span: u32 = 32;
    /// Records of an inner node, 4 to 1024. The operation that fills the last one splits it.
    inner_span: u32 = 32, in 4..=1024;
    /// Slots in which a key can be (`H`), 2 to 16.
    neighbourhood: u32 = 8, in 2..=16;
    /// Leaves are hopscotch tables. Otherwise they are sorted.
    hopscotch: bool = false;
    /// How an insert learns of free slots.
    vacancy: Vacancy = Vacancy::None;
    /// The metadata of a leaf stands before every `H` slots. Otherwise once, before all.
    replicas: bool = false;
    /// A leaf is the right one if its sibling is the next child of the node above. Otherwise its
    /// metadata has fence keys.
    sibling: bool = false;
    /// Share of the cache for the hotspot buffer, 0 to 0.9; 0: no speculative READs.
    hotspot_share: f64 = 0.0;
    /// What scans READ.
    scan: Scan = Scan::Coarse;
    /// Readers of one key on a compute node share a READ.
    delegation: bool = true;
    /// Writers of one key on a compute node share a WRITE.
    combining: bool = true;
    /// A WRITE that ends with the last slot of a leaf, or with a node, releases the lock, too.
    carried_unlock: bool = true;
    /// Records of inner nodes stand in the order in which they came: a new one is written by itself
    /// behind the others. Otherwise they are sorted, and a node is written whole.
    unsorted_inner: bool = false;
    /// Repair: descents use cached nodes of every level. As published these are hardly ever found.
    upper_levels: bool = false;
    /// Repair: an insert READs all slots in which its key can be. As published it READs as far as
    /// the first free slot.
    whole_neighbourhood: bool = false;
    /// Repair: an insert that goes to the right keeps the leaf at which the walk must end.
    keep_terminator: bool = false;
    /// Repair: a batch of delegation or combining is closed when its verb is posted.
    closed_batches: bool = false;
    /// Repair: the update of a last slot leaves the vacancy word alone. As published it writes one
    /// that it has not READ.
    known_words: bool = false;
    /// Bytes of a version: 1 as published (four bits count the WRITEs of an entry); repair: 2.
    version_bytes: u32 = 1, in 1..=2;
    /// Deletes, which the paper has and the public code has not: checkers show what they break.
    deletes: bool = false;
    /// Repair, where there are deletes: an insert that moves keys writes the leaf whole, so that a
    /// reader sees that its READ has crossed a move.
    whole_moves: bool = false;
    /// A bulk load ends a leaf where the first key of the next one is. Otherwise behind its own
    /// last key, as divisions do.
    loose_fences: bool = false;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// What CHIME starts from: sorted leaves with versions in every line, in the geometry of the
    /// FAST'26 artifact.
    pub fn base() -> Self {
        Self::first()
    }

    /// The first step: hopscotch leaves.
    pub fn hopscotch() -> Self {
        Self { hopscotch: true, ..Self::base() }
    }

    /// The second step: the vacancy word.
    pub fn vacancy() -> Self {
        Self { vacancy: Vacancy::Apart, ..Self::hopscotch() }
    }

    /// The third step: replicas of the leaf's metadata.
    pub fn replicas() -> Self {
        Self { replicas: true, ..Self::vacancy() }
    }

    /// The fourth step: validation by the sibling, without fence keys.
    pub fn sibling() -> Self {
        Self { sibling: true, ..Self::replicas() }
    }

    /// CHIME as published: adds the hotspot buffer and speculative READs.
    pub fn published() -> Self {
        Self { hotspot_share: 0.5, ..Self::sibling() }
    }

    /// The same with the geometry of the FAST'26 artifact: keys of 24 bytes, 32 slots.
    #[must_use]
    pub fn artifact(&self) -> Self {
        Self { key_bytes: 24, value_bytes: 8, span: 32, inner_span: 32, ..self.clone() }
    }

    /// The same with the geometry of the paper: keys of 8 bytes, 64 slots, 30 % of the cache for
    /// the hotspot buffer, and the vacancy word in the round trip of the lock.
    #[must_use]
    pub fn original(&self) -> Self {
        let chained = self.vacancy != Vacancy::None;
        Self {
            key_bytes: 8,
            span: 64,
            inner_span: 64,
            hotspot_share: if self.hotspot_share > 0.0 { 0.3 } else { 0.0 },
            vacancy: if chained { Vacancy::Chained } else { Vacancy::None },
            ..self.clone()
        }
    }

    /// The same with every repair, to isolate the published defects.
    #[must_use]
    pub fn repaired(&self) -> Self {
        Self {
            upper_levels: true,
            whole_neighbourhood: true,
            keep_terminator: true,
            closed_batches: true,
            known_words: true,
            version_bytes: 2,
            ..self.clone()
        }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        check_range("span", self.span.into(), u64::from(2 * self.neighbourhood), 1024)?;
        if !(0.0..=0.9).contains(&self.hotspot_share) {
            let share = self.hotspot_share;
            return Err(Error::invalid(format!("hotspot_share is {share}; it must be 0 to 0.9")));
        }
        let has_vacancy = self.vacancy != Vacancy::None;
        all_needed([
            (
                has_vacancy,
                self.hopscotch,
                "vacancy needs hopscotch = true: sorted leaves have none",
            ),
            (
                self.deletes || self.whole_moves,
                has_vacancy,
                "deletes and whole_moves need a vacancy of apart or chained",
            ),
            (self.replicas, has_vacancy, "replicas = true needs a vacancy of apart or chained"),
            (self.sibling, self.replicas, "sibling = true needs replicas = true"),
            (self.hotspot_share > 0.0, self.sibling, "hotspot_share above 0 needs sibling = true"),
            (
                self.scan != Scan::Coarse,
                self.sibling,
                "a scan of fine or greedy needs sibling = true",
            ),
        ])
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: small nodes, the
    /// techniques of `self`. Waits are shorter than by default, because some waits of the published
    /// protocol never end.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        let neighbourhood = of(&[2, 4, 8]);
        Self {
            neighbourhood,
            span: of(&[16, 16, 20, 32]).max(2 * neighbourhood),
            inner_span: of(&[4, 8, 16]),
            value_bytes: of(&[8, 8, 24, 64]),
            timeout_ms: 2_000,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let o = Options::published;
        for (bad, words) in [
            (Options { span: 15, ..o() }, "span is 15; it must be 16 to 1024"),
            (Options { span: 1025, ..o() }, "span is 1025; it must be 16 to 1024"),
            (Options { hotspot_share: 1.5, ..o() }, "hotspot_share is 1.5; it must be 0 to 0.9"),
            (Options { hotspot_share: f64::NAN, ..o() }, "hotspot_share is NaN"),
            (Options { sibling: false, ..o() }, "hotspot_share above 0 needs sibling"),
            (Options { replicas: false, ..Options::sibling() }, "sibling = true needs replicas"),
            (Options { vacancy: Vacancy::None, ..Options::replicas() }, "replicas = true needs"),
            (Options { hopscotch: false, ..Options::vacancy() }, "vacancy needs hopscotch"),
            (Options { scan: Scan::Fine, ..Options::vacancy() }, "fine or greedy needs sibling"),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        let steps = [Options::base(), Options::hopscotch(), Options::vacancy()];
        for o in steps.into_iter().chain([Options::replicas(), Options::sibling(), o()]) {
            o.check().expect("a preset");
            o.original().check().expect("a preset");
            o.repaired().check().expect("a preset");
            assert_eq!(o.original().artifact().key_bytes, 24);
        }
    }
}
