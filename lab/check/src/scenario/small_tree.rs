//! Scripts that every tree has, over an index with so small nodes that a few operations split and
//! merge them. A crash suite runs them by [`SmallTree::crash_in_writes`] and its siblings, beside
//! those of its own structure.

use super::delay::{DelayScenario, harmless};
use super::sweeps::{at_least, double_crash, everywhere};
use super::{Op, Script, changes, deletes, inserts, updates, value};

/// A small tree: a script without loaded keys and operations, and what its nodes hold.
#[derive(Clone)]
pub struct SmallTree {
    /// Options and grants of its scripts.
    pub base: Script,
    /// Keys of leaves that an insert or a few split.
    pub full: u64,
    /// Keys of a full node of leaves.
    pub full_node: u64,
    /// Distance of the keys that split a leaf.
    pub apart: u64,
}

/// The tens below so many.
pub fn tens(n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(|n| n * 10)
}

impl SmallTree {
    /// A script over loaded keys.
    pub fn script(
        &self,
        name: &'static str,
        load: impl IntoIterator<Item = u64>,
        ops: impl IntoIterator<Item = Op>,
    ) -> Script {
        let load = (load.into_iter().collect(), 1.0);
        Script { name, load, ops: ops.into_iter().collect(), ..self.base.clone() }
    }

    /// Inserts into free slots, updates in place, deletes.
    pub fn changing(&self) -> Script {
        self.script("changing", tens(10), changes())
    }

    /// Values in blocks, longer and shorter than the values before.
    pub fn in_blocks(&self) -> Script {
        let ops = [
            Op::Insert(55, vec![7; 300]),
            Op::Update(55, vec![8; 400]),
            Op::Update(50, vec![9; 60]),
            Op::Update(50, vec![9; 200]),
            Op::Delete(55),
        ];
        self.script("blocks", tens(10), ops)
    }

    /// Inserts until leaves are split.
    pub fn splitting(&self, new: u64) -> Script {
        let ops = (0..6).map(|n| Op::Insert(new + self.apart * n, value(n)));
        self.script("split", tens(self.full), ops)
    }

    /// Inserts until a node of leaves is split.
    pub fn inner_splitting(&self) -> Script {
        let ops = (0..5).map(|n| Op::Insert(n * 10 + 5, value(n)));
        self.script("inner split", tens(self.full_node), ops)
    }

    /// Leaves with few keys are merged.
    pub fn merging(&self) -> Script {
        let gone = (0..32).filter(|n| n % 8 != 0).map(|n| n * 10);
        let before = deletes(gone).collect();
        Script { before, ..self.script("merge", tens(32), [Op::Maintain]) }
    }

    /// A bulk load.
    pub fn loading(&self, n: u64) -> Script {
        self.script("load", [], [Op::Load(tens(n).collect())])
    }

    /// Crashes at every verb of single operations and of several at once.
    ///
    /// # Panics
    /// When a run fails.
    pub fn crash_in_writes(&self) {
        assert!(at_least(everywhere(&self.changing(), 1).points, 200));
        everywhere(&self.in_blocks(), 1);
        let ops = [Op::Many((0..8).map(|n| (n * 17 + 1, value(n))).collect())];
        everywhere(&self.script("several at once", tens(10), ops), 1);
    }

    /// The same of splits, a new root and merges.
    ///
    /// # Panics
    /// When a run fails.
    pub fn crash_in_changes_of_structure(&self) {
        for new in [5, 75, 999] {
            everywhere(&self.splitting(new), 1);
        }
        everywhere(&self.inner_splitting(), 1);
        everywhere(&self.merging(), 1);
    }

    /// The same of bulk loads.
    ///
    /// # Panics
    /// When a run fails.
    pub fn crash_in_loads(&self) {
        everywhere(&self.loading(10), 1);
        everywhere(&self.loading(60), 7);
    }

    /// Two crashes around each kind of change.
    ///
    /// # Panics
    /// When a run fails.
    pub fn crash_twice(&self) {
        let ops = [Op::Update(10, value(9)), Op::Insert(11, value(8)), Op::Delete(20)];
        double_crash(&self.script("update", tens(10), ops), (2, 4));
        double_crash(&self.splitting(5), (2, 9));
        double_crash(&self.merging(), (3, 7));
        double_crash(&self.inner_splitting(), (5, 97));
        double_crash(&self.loading(40), (5, 11));
    }

    /// Every verb of single operations is late while others write the same leaves.
    ///
    /// # Panics
    /// When a run fails.
    pub fn late_in_writes(&self) {
        let others = inserts([51, 52, 53, 54, 61, 71, 500]).chain(updates([0, 10]));
        let others = others.chain(deletes([20, 30])).chain([Op::Maintain]);
        late(self.changing(), others.chain(inserts([21, 31])));
        let others = updates([0, 10]).chain(deletes([20])).chain([Op::Maintain]);
        late(self.in_blocks(), others.chain(inserts([20])));
    }

    /// The same of splits and merges.
    ///
    /// # Panics
    /// When a run fails.
    pub fn late_in_changes_of_structure(&self) {
        let others = inserts([1, 11, 21, 31, 41, 51, 61]).chain(updates([0, 150]));
        late(self.splitting(5), others.chain([Op::Maintain]));
        let others = inserts((0..8).map(|n| n * 10 + 1)).chain(updates([80, 90]));
        late(self.inner_splitting(), others);
        let others = inserts((0..6).map(|n| n * 10 + 1)).chain(updates([0, 80, 160]));
        let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts([161, 171, 181]));
        late(self.merging(), others);
    }

    /// The same of a bulk load.
    ///
    /// # Panics
    /// When a run fails.
    pub fn late_in_loads(&self) {
        late(self.loading(12), inserts([1, 2, 101, 555]));
    }
}

/// Every verb of a script is late, in turn, while others work.
///
/// # Panics
/// When a run fails.
pub fn late(script: Script, others: impl Iterator<Item = Op>) {
    harmless(&DelayScenario::new(script, others.collect()));
}
