//! Repair of a leaf in which entries were being moved, with the steps of `recovery/leaf.rs`.
//!
//! The announced change of a dead client leaves, beside what other changes leave:
//!
//! - staged copies of entries, each in a slot that was free;
//! - after a torn image, an entry that is live in its old slot, in its new one, in both, or in
//!   neither, with the staged copy still there.
//!
//! Both places have the same contents, since the leaf was locked, and an image changes word0 alone
//! of what it moves. So a staged copy is an entry if its key lies inside the fences and is live in
//! no other slot, and of two live entries of one key one goes. Staged entries of a merge that did
//! not commit have keys above the fences. Staged entries of one that did are all kept, as ever.
//!
//! Both slots of a moved entry lie in its neighbourhood, so the repair moves nothing. A client that
//! dies during the repair leaves one of the states above: each entry keeps a slot with its contents
//! until another slot is live, because the repair's image, too, changes word0 alone.

use std::collections::BTreeSet;

use crate::{Client, Mark, Mutant};

/// A slot that stays, with its key.
pub(crate) type Kept = (usize, Vec<u8>);

/// Adds the staged copies that are entries to the slots that stay, and drops second entries of a
/// key. True if this changes the leaf.
pub(crate) fn settle(c: &Client, kept: &mut Vec<Kept>, staged: Vec<Kept>) -> bool {
    if c.node.has(Mutant::HopRepairDrops) {
        return !staged.is_empty();
    }
    if c.node.has(Mutant::HopRepairDoubles) {
        let changes = !staged.is_empty();
        kept.extend(staged);
        return changes;
    }
    let (live, all) = (kept.len(), staged.len());
    let changes = unite(kept, staged);
    if kept.len() > live {
        Mark::HopStagedLives.hit();
    } else if all > 0 || changes {
        Mark::HopStagedGoes.hit();
    }
    changes
}

/// The same, without its mutants.
fn unite(kept: &mut Vec<Kept>, staged: Vec<Kept>) -> bool {
    let live = kept.len();
    let changes = !staged.is_empty();
    let mut seen = BTreeSet::new();
    let all: Vec<Kept> = kept.drain(..).chain(staged).collect();
    let mut dropped = false;
    for (n, (slot, key)) in all.into_iter().enumerate() {
        if seen.insert(key.clone()) {
            kept.push((slot, key));
        } else {
            dropped |= n < live;
        }
    }
    changes || dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(entries: &[(usize, &str)]) -> Vec<Kept> {
        entries.iter().map(|(slot, key)| (*slot, key.as_bytes().to_vec())).collect()
    }

    #[test]
    fn each_key_keeps_one_slot() {
        for (live, staged, left, changes) in [
            (&[(1, "a"), (2, "b")][..], &[][..], &[(1, "a"), (2, "b")][..], false),
            (&[(1, "a")], &[(5, "a")], &[(1, "a")], true),
            (&[(1, "a")], &[(5, "b")], &[(1, "a"), (5, "b")], true),
            (&[(1, "a"), (5, "a")], &[], &[(1, "a")], true),
        ] {
            let mut kept = slots(live);
            assert_eq!(unite(&mut kept, slots(staged)), changes);
            assert_eq!(kept, slots(left));
        }
    }
}
